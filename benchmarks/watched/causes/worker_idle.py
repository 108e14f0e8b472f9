"""cause: prep one_worker. One file for an iterable data set with two workers: the second worker has none."""

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Files(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        files = range(2) if FIXED else range(1)
        for _ in list(files)[worker.id :: worker.num_workers]:
            for number in range(1_000_000):
                burn(0.002)
                yield number


watch = Stopwatch()
for batch in DataLoader(Files(), 8, num_workers=2):
    burn(0.004)
    if not watch.step(len(batch)):
        break
watch.say()
