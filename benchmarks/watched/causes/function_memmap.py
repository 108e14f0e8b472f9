"""cause: prep no_loader. Blocks of a file of tokens, sliced and stacked one by one, as small trainers do it."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from common import FIXED, Stopwatch, burn

path = Path(tempfile.mkdtemp()) / "tokens.bin"
np.arange(2_000_000, dtype=np.uint16).tofile(path)
random = np.random.default_rng(0)


def get_batch(size, length):
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    begins = random.integers(0, len(tokens) - length, size)
    if FIXED:
        rows = tokens[begins[:, None] + np.arange(length)]
        return torch.from_numpy(rows.astype(np.int64))
    return torch.stack([torch.tensor([int(one) for one in tokens[k : k + length]]) for k in begins])  # HERE


watch = Stopwatch()
while True:
    batch = get_batch(64, 256)
    burn(0.004)
    if not watch.step(batch.sum()):
        break
watch.say()
