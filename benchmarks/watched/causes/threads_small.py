"""cause: contention own_threads. Many more threads than processors, for small operations."""

import torch
from common import FIXED, Stopwatch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1 if FIXED else 12)
net = torch.nn.Sequential(torch.nn.Conv1d(8, 32, 3), torch.nn.ReLU(), torch.nn.Conv1d(32, 8, 3))
data = TensorDataset(torch.arange(8.0 * 64 * 4000).reshape(4000, 8, 64))
watch, goes_on = Stopwatch(), True
while goes_on:
    for (batch,) in DataLoader(data, 16, num_workers=1):
        net(batch).sum().backward()  # HERE
        goes_on = watch.step(batch.sum())
        if not goes_on:
            break
watch.say()
