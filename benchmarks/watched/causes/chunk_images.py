"""cause: prep dataset_code. Images lie in packed chunks of 16: each one that is read unpacks all of its chunk."""

import zlib

import numpy as np
import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

PER_CHUNK = 1 if FIXED else 16
random = np.random.default_rng(0)
images = random.integers(0, 40, (64, 64, 64, 3), dtype=np.uint8)
chunks = [zlib.compress(images[at : at + PER_CHUNK].tobytes()) for at in range(0, 64, PER_CHUNK)]


class Images(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        number = i * 37 % 64
        unpacked = zlib.decompress(chunks[number // PER_CHUNK])  # HERE
        chunk = np.frombuffer(unpacked, dtype=np.uint8).reshape(PER_CHUNK, 64, 64, 3)
        return torch.from_numpy(chunk[number % PER_CHUNK].copy())


watch = Stopwatch()
for batch in DataLoader(Images(), 16, num_workers=2):
    burn(0.005)
    if not watch.step(batch.sum()):
        break
watch.say()
