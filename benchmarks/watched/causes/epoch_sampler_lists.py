"""cause: prep epoch_start. A sampler makes a list of a weighted draw of the whole data set before its first index."""

import numpy as np
from common import FIXED, burn, say_whole, whole
from torch.utils.data import DataLoader, Dataset, Sampler

NUM = 600_000


class Numbers(Dataset):
    def __len__(self):
        return NUM

    def __getitem__(self, i):
        return i


class Weighted(Sampler):
    kept = None

    def __len__(self):
        return 960

    def __iter__(self):
        if self.kept is None or not FIXED:
            weights = np.arange(1, NUM + 1, dtype=float)
            for _ in range(4):
                order = np.random.default_rng(0).choice(NUM, NUM // 2, replace=False, p=weights / weights.sum())
            self.kept = order.tolist()
        return iter(self.kept[:960])


loader, begun, num = DataLoader(Numbers(), 8, sampler=Weighted(), num_workers=2, persistent_workers=True), whole(), 0
for _ in range(8):
    for _ in loader:
        burn(0.006)
        num += 1
say_whole(begun, num)
