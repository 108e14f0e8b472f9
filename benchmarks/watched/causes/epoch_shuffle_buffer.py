"""cause: prep epoch_start. A stream fills a large shuffle buffer before the first sample of each epoch."""

from common import FIXED, burn, say_whole, whole
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BUFFER = 40 if FIXED else 2_000


class Stream(IterableDataset):
    def read(self, worker):
        for number in range(worker.id, 100_000, worker.num_workers):
            burn(0.0004)
            yield number

    def __iter__(self):
        stream = self.read(get_worker_info())
        held = [next(stream) for _ in range(BUFFER)]
        for at in range(320):
            given, held[at % BUFFER] = held[at % BUFFER], next(stream)
            yield given


loader, begun, num = DataLoader(Stream(), 8, num_workers=2, persistent_workers=True), whole(), 0
for _ in range(8):
    for _ in loader:
        burn(0.006)
        num += 1
say_whole(begun, num)
