"""cause: prep order. One request in many times out and is sent again; batches come in order."""

import time

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset


class Requests(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        burn(0.0005)
        if (i * 104_729) % 150 == 11:
            time.sleep(0.25)
        return i


watch = Stopwatch()
for batch in DataLoader(Requests(), 6, num_workers=3, in_order=not FIXED):
    burn(0.005)
    if not watch.step(len(batch)):
        break
watch.say()
