"""Accelerate around a loop of one's own."""

import accelerate
import scene
import torch

arguments = scene.parse()
model = scene.Model(arguments)
accelerator = accelerate.Accelerator(cpu=not arguments.cuda)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = scene.loader(arguments, scene.Samples(arguments))
prepared, optimizer, train = accelerator.prepare(model, optimizer, train)
for _ in range(arguments.epochs):
    for batch in train:
        optimizer.zero_grad()
        accelerator.backward(prepared(**batch)["loss"])
        optimizer.step()
model.report()
