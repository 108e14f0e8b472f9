"""Batches in pinned memory, copied without waiting, the loss read every 32 steps: the host runs ahead of the GPU."""

import scene
import torch

arguments = scene.parse()
model = scene.Model(arguments)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = scene.loader(arguments, scene.Samples(arguments), pin_memory=arguments.cuda)
device = "cuda" if arguments.cuda else "cpu"
step = 0
for _ in range(arguments.epochs):
    for batch in train:
        optimizer.zero_grad()
        loss = model(**{name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()})["loss"]
        loss.backward()
        optimizer.step()
        step += 1
        if step % 32 == 0:
            loss.item()
model.report()
