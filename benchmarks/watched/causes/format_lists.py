"""cause: prep dataset_code. Rows are nested lists of numbers, which each sample makes a tensor of."""

import numpy as np
import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

ROWS = [np.random.default_rng(number).random((3, 40, 40)).astype(np.float32) for number in range(64)]
LISTS = [row.tolist() for row in ROWS]


class Rows(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        if FIXED:
            return torch.from_numpy(ROWS[i % 64])
        return torch.tensor(LISTS[i % 64])  # HERE


watch = Stopwatch()
for batch in DataLoader(Rows(), 32, num_workers=2):
    burn(0.004)
    if not watch.step(batch.sum()):
        break
watch.say()
