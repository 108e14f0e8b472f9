"""cause: prep sleep. A stream waits between pages, as a server of web pages asks for; nothing is read meanwhile."""

import time

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Pages(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for page in range(worker.id, 1_000_000, worker.num_workers):
            if not FIXED:
                time.sleep(0.03)  # HERE
            for row in range(8):
                yield torch.full((16,), float(page + row))


watch = Stopwatch()
for batch in DataLoader(Pages(), 8, num_workers=2):
    burn(0.004)
    if not watch.step(len(batch)):
        break
watch.say()
