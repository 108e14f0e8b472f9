"""cause: prep dataset_code. An archive of many members is opened for each sample, which parses its directory."""

import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

path = Path(tempfile.mkdtemp()) / "images.zip"
with zipfile.ZipFile(path, "w") as archive:
    for number in range(1500):
        archive.writestr(f"images/{number:06d}.bin", bytes(3072))


class Images(Dataset):
    archive = None

    def __len__(self):
        return 1500 * 1000

    def opened(self):
        if FIXED:
            self.archive = self.archive or zipfile.ZipFile(path)
            return self.archive
        return zipfile.ZipFile(path)  # HERE

    def __getitem__(self, i):
        member = self.opened().read(f"images/{i % 1500:06d}.bin")
        return torch.from_numpy(np.frombuffer(member, dtype=np.uint8).copy())


watch = Stopwatch()
for batch in DataLoader(Images(), 4, num_workers=2):
    burn(0.003)
    if not watch.step(len(batch)):
        break
watch.say()
