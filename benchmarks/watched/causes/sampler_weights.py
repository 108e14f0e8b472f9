"""cause: prep sampler. A sampler draws each index by cumulative weights, in the main process."""

import bisect
import random

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset, Sampler

NUM = 40_000
weights = [1 + i % 7 for i in range(NUM)]


class Numbers(Dataset):
    def __len__(self):
        return NUM

    def __getitem__(self, i):
        return float(i)


class Weighted(Sampler):
    def __len__(self):
        return NUM

    def draw(self):
        total, sums = 0, []
        for one in weights[:6000]:  # HERE
            total += one  # HERE
            sums.append(total)  # HERE
        return bisect.bisect(sums, random.random() * total)

    def __iter__(self):
        for i in range(NUM):
            if not FIXED:
                self.draw()
            yield i


watch = Stopwatch()
for batch in DataLoader(Numbers(), 48, sampler=Weighted(), num_workers=2):
    burn(0.008)
    if not watch.step(batch.sum()):
        break
watch.say()
