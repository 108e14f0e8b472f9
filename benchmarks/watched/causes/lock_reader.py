"""cause: prep lock. All workers share one lock around a slow device."""

import multiprocessing
import time
from contextlib import nullcontext

import torch
from common import FIXED, Stopwatch
from torch.utils.data import DataLoader, Dataset

lock = nullcontext() if FIXED else multiprocessing.Lock()


class Device(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        with lock:  # HERE
            time.sleep(0.004)
        return torch.full((100,), float(i))


watch = Stopwatch()
for batch in DataLoader(Device(), 4, num_workers=3):
    if not watch.step(batch.sum()):
        break
watch.say()
