"""cause: prep sleep. A data set reads a file of its own, and keeps to a rate of samples by sleeping."""

import tempfile
import time
from pathlib import Path

import numpy as np
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

folder = Path(tempfile.mkdtemp())
for number in range(64):
    (folder / f"{number}.bin").write_bytes(np.full(20_000, number, np.uint8).tobytes())


class Limited(Dataset):
    last = 0.0

    def __len__(self):
        return 100_000

    def wait(self):
        left = self.last + 0.008 - time.monotonic()
        if left > 0 and not FIXED:
            time.sleep(left)  # HERE
        self.last = time.monotonic()

    def __getitem__(self, i):
        self.wait()
        return np.frombuffer((folder / f"{i % 64}.bin").read_bytes(), np.uint8)[:1000].astype(np.float32)


watch = Stopwatch()
for batch in DataLoader(Limited(), 6, num_workers=2):
    burn(0.005)
    if not watch.step(batch.sum()):
        break
watch.say()
