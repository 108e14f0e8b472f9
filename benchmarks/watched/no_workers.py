"""The plain loop with a loader that works in the main process."""

import scene
import torch

arguments = scene.parse()
arguments.workers = 0
model = scene.Model(arguments)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = scene.loader(arguments, scene.Samples(arguments))
for _ in range(arguments.epochs):
    for batch in train:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
model.report()
