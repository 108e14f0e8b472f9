"""cause: contention affinity. A library pins the process when it is imported; its workers inherit that."""

import os

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

if not FIXED:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Decoded(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        burn(0.0015)
        return i


watch = Stopwatch()
for batch in DataLoader(Decoded(), 12, num_workers=2):
    burn(0.002)
    if not watch.step(batch.sum()):
        break
watch.say()
