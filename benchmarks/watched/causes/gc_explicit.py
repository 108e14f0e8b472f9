"""cause: compute gc. The loop collects garbage in every sixth step, over many live objects."""

import gc

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

cache = [[i] for i in range(400_000)]


class Rows(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        return torch.full((8,), float(i))


def train(loader):
    watch = Stopwatch()
    for number, batch in enumerate(loader):
        burn(0.006)
        if number % 6 == 5 and not FIXED:
            gc.collect()  # HERE
        if not watch.step(batch.sum()):
            break
    watch.say()


gc.disable()
train(DataLoader(Rows(), 16, num_workers=2))
