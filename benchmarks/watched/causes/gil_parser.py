"""cause: contention gil. A thread parses what another machine sends, in Python, all the time."""

import json
import threading

import torch
from common import FIXED, Stopwatch
from torch.utils.data import DataLoader, TensorDataset

text = json.dumps([{"step": i, "loss": i / 7} for i in range(3000)])


class Statistics:
    def run(self):
        while True:
            rows = json.loads(text)  # HERE
            self.mean = sum(one["loss"] for one in rows) / len(rows)  # HERE


torch.set_num_threads(1)
if not FIXED:
    threading.Thread(target=Statistics().run, daemon=True).start()
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), 0.0)
watch = Stopwatch()
data = TensorDataset(torch.arange(64.0 * 20000).reshape(20000, 64))
while True:
    goes_on = True
    for (batch,) in DataLoader(data, 64, num_workers=0):
        opt.zero_grad()
        net(batch).mean().backward()
        opt.step()
        goes_on = watch.step(batch.sum())
        if not goes_on:
            break
    if not goes_on:
        break
watch.say()
