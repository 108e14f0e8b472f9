"""cause: contention own_threads. A script asks for 24 threads, as on the machine that it was written for."""

import torch
from common import FIXED, Stopwatch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1 if FIXED else 24)
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
opt = torch.optim.SGD(net.parameters(), 1e-6)
data = TensorDataset(torch.ones(4000, 256))


def train(batch):
    opt.zero_grad()
    loss = net(batch).square().mean()  # HERE
    loss.backward()  # HERE
    opt.step()  # HERE


watch, goes_on = Stopwatch(), True
while goes_on:
    for (batch,) in DataLoader(data, 64, num_workers=1):
        train(batch)
        goes_on = watch.step(batch.sum())
        if not goes_on:
            break
watch.say()
