"""cause: contention affinity. A worker_init_fn pins all workers to the same processor, which the script uses, too."""

import os

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

CPUS = sorted(os.sched_getaffinity(0))


def pin(worker):
    os.sched_setaffinity(0, {CPUS[0]} if not FIXED else set(CPUS))


class Decoded(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        burn(0.001)
        return i


watch = Stopwatch()
for batch in DataLoader(Decoded(), 16, num_workers=2, worker_init_fn=pin):
    burn(0.001)
    if not watch.step(batch.sum()):
        break
watch.say()
