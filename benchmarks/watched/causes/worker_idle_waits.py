"""cause: prep one_worker. Three workers share two remote streams by number, so that one has none; each sample waits."""

import time

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

STREAMS = 3 if FIXED else 1


class Streams(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for _ in range(STREAMS)[worker.id :: worker.num_workers]:
            for number in range(1_000_000):
                time.sleep(0.004)
                yield number


watch = Stopwatch()
for batch in DataLoader(Streams(), 8, num_workers=3):
    burn(0.005)
    if not watch.step(len(batch)):
        break
watch.say()
