"""cause: prep epoch_start. A batch sampler sorts all lengths at the start of each epoch, in the main process."""

import random

from common import FIXED, burn, say_whole, whole
from torch.utils.data import DataLoader, Dataset, Sampler

LENGTHS = [random.randrange(10, 500) for _ in range(400_000)]


class Numbers(Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, i):
        return i


class Buckets(Sampler):
    kept = None

    def __len__(self):
        return 120

    def __iter__(self):
        if self.kept is None or not FIXED:
            order = sorted(range(len(LENGTHS)), key=lambda i: (LENGTHS[i], random.random()))
            self.kept = [order[k : k + 8] for k in range(0, len(order), 8)]
        yield from random.sample(self.kept, 120)


loader, begun, num = DataLoader(Numbers(), batch_sampler=Buckets(), num_workers=2), whole(), 0
for _ in range(10):
    for _ in loader:
        burn(0.006)
        num += 1
say_whole(begun, num)
