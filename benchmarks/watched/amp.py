"""Mixed precision: bfloat16 under autocast."""

import scene
import torch

arguments = scene.parse()
model = scene.Model(arguments)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = scene.loader(arguments, scene.Samples(arguments))
for _ in range(arguments.epochs):
    for batch in train:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda" if arguments.cuda else "cpu", torch.bfloat16):
            loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
model.report()
