"""cause: prep one_worker. A worker logs what it does in detail; the other does not."""

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Logged(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        burn(0.0005)
        if get_worker_info().id == 0 and not FIXED:
            burn(0.002)
        return i


watch = Stopwatch()
for batch in DataLoader(Logged(), 12, num_workers=2):
    burn(0.003)
    if not watch.step(batch.sum()):
        break
watch.say()
