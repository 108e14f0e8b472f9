"""cause: compute logging. Every step computes and writes all statistics of the weights, number by number."""

import csv
import io

import torch
from common import FIXED, Stopwatch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
opt = torch.optim.SGD(net.parameters(), 1e-6)
data = TensorDataset(torch.ones(8000, 64))
writer = csv.writer(io.StringIO())


def log_metrics(module):
    for name, weights in module.named_parameters():
        row = [float(one) for one in weights.detach().flatten()[:400]]  # HERE
        writer.writerow([name, *row])  # HERE


watch, goes_on = Stopwatch(), True
while goes_on:
    for (batch,) in DataLoader(data, 64, num_workers=1):
        opt.zero_grad()
        net(batch).square().mean().backward()
        opt.step()
        if not FIXED:
            log_metrics(net)
        goes_on = watch.step(len(batch))
        if not goes_on:
            break
watch.say()
