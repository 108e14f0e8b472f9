"""Gradients of four batches an update."""

import scene
import torch

EVERY = 4

arguments = scene.parse()
model = scene.Model(arguments)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = scene.loader(arguments, scene.Samples(arguments))
for _ in range(arguments.epochs):
    for number, batch in enumerate(train):
        (model(**batch)["loss"] / EVERY).backward()
        if (number + 1) % EVERY == 0:
            optimizer.step()
            optimizer.zero_grad()
model.report()
