"""cause: prep lock. A semaphore lets one worker read at a time."""

import multiprocessing
import time

import torch
from common import FIXED, Stopwatch
from torch.utils.data import DataLoader, Dataset

slots = multiprocessing.Semaphore(8 if FIXED else 1)


class Limited(Dataset):
    def __len__(self):
        return 100_000

    def read(self, i):
        slots.acquire()  # HERE
        try:
            time.sleep(0.002)
            return float(i)
        finally:
            slots.release()

    def __getitem__(self, i):
        return torch.full((50,), self.read(i))


watch = Stopwatch()
for batch in DataLoader(Limited(), 8, num_workers=2):
    time.sleep(0.003)
    if not watch.step(batch.sum()):
        break
watch.say()
