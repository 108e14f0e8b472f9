"""A new loader in each epoch, as scripts have whose data changes."""

import scene
import torch

arguments = scene.parse()
model = scene.Model(arguments)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(arguments.epochs):
    for batch in scene.loader(arguments, scene.Samples(arguments)):
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
model.report()
