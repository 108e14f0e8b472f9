"""cause: contention gil. A thread that polls a list of results in Python, without a rest."""

import threading

import torch
from common import FIXED, Stopwatch
from torch.utils.data import DataLoader, Dataset

results = list(range(5000))


def poll():
    while True:
        done = 0
        for one in results:  # HERE
            if one % 3 == 0:  # HERE
                done += 1  # HERE


class Rows(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        return torch.full((8, 8), float(i))


torch.set_num_threads(1)
if not FIXED:
    threading.Thread(target=poll, daemon=True).start()
net = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(12)])
watch = Stopwatch()
for batch in DataLoader(Rows(), 32, num_workers=2):
    net(batch).sum().backward()
    if not watch.step(batch.sum()):
        break
watch.say()
