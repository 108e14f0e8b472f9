"""cause: compute gc. The script keeps a history of dictionaries, which the collector walks again and again."""

import gc

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

tree = {i: {"left": [i], "right": (i,)} for i in range(900_000)}
if FIXED:
    gc.collect()
    gc.freeze()


class Rows(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        return torch.full((8,), float(i))


history, watch = [], Stopwatch()
gc.set_threshold(700, 10, 2)
for batch in DataLoader(Rows(), 16, num_workers=1):
    burn(0.004)
    history.extend([{"value": [k]} for k in range(3000)])  # HERE
    history = history[-20_000:]
    if not watch.step(batch.sum()):
        break
watch.say()
