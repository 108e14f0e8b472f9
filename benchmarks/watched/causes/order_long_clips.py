"""cause: prep order. A few clips take a hundred times as long; all that is ready waits for them."""

import time

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        time.sleep(0.4 if (i * 7919) % 240 == 3 else 0.001)
        return i


watch = Stopwatch()
for batch in DataLoader(Clips(), 8, num_workers=4, in_order=not FIXED):
    burn(0.006)
    if not watch.step(len(batch)):
        break
watch.say()
