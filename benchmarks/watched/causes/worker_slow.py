"""cause: prep one_worker. One worker of three reads from a slower place; batches come in order."""

import time

from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Places(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        time.sleep(0.012 if get_worker_info().id == 1 and not FIXED else 0.003)
        return i


watch = Stopwatch()
for batch in DataLoader(Places(), 8, num_workers=3):
    burn(0.005)
    if not watch.step(batch.sum()):
        break
watch.say()
