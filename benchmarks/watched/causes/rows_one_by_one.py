"""cause: prep dataset_code. Rows of a tensor in memory, taken one by one for batches of thousands."""

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

rows = torch.arange(16.0 * 200_000).reshape(200_000, 16)


class Rows(Dataset):
    def __len__(self):
        return len(rows)

    def __getitem__(self, i):
        return rows[i]  # HERE


watch, goes_on = Stopwatch(), True
while goes_on:
    in_batches = BatchSampler(SequentialSampler(rows), 2048, drop_last=True)
    loader = DataLoader(Rows(), batch_size=None, sampler=in_batches) if FIXED else DataLoader(Rows(), 2048)
    for batch in loader:
        burn(0.003)
        goes_on = watch.step(batch[0, 0])
        if not goes_on:
            break
watch.say()
