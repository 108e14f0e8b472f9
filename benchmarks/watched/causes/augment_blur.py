"""cause: prep augment. A blur of a large radius, by NumPy, of each image."""

import numpy as np
import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

image = np.random.default_rng(0).random((96, 96, 3), dtype=np.float32)


def blur(picture, radius):
    padded = np.pad(picture, ((radius, radius), (radius, radius), (0, 0)))
    total = np.zeros_like(picture)
    for down in range(2 * radius + 1):
        for right in range(2 * radius + 1):
            total += padded[down : down + len(picture), right : right + len(picture)]  # HERE
    return total / (2 * radius + 1) ** 2


class Photos(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return torch.from_numpy(image * (i % 7) if FIXED else blur(image * (i % 7), 7))


watch = Stopwatch()
for batch in DataLoader(Photos(), 8, num_workers=2):
    burn(0.005)
    if not watch.step(len(batch)):
        break
watch.say()
