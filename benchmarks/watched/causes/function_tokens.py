"""cause: prep no_loader. The loop makes its batches by a function, which decodes its tokens anew each time."""

import numpy as np
import torch
from common import FIXED, Stopwatch, burn

text = bytes(np.random.default_rng(0).integers(97, 122, 300_000, dtype=np.uint8)).decode()
kept = np.frombuffer(text.encode(), np.uint8)


def get_batch(size):
    tokens = kept if FIXED else np.array([ord(one) for one in text[:120_000]])  # HERE
    begin = np.random.default_rng(len(tokens)).integers(0, 100_000, size)
    return torch.from_numpy(np.stack([tokens[at : at + 64] for at in begin]).astype(np.int64))


def main():
    emb, watch = torch.nn.Embedding(128, 16), Stopwatch()
    while True:
        batch = get_batch(12)
        emb(batch).sum().backward()
        burn(0.004)
        if not watch.step(1.0):
            break
    watch.say()


if __name__ == "__main__":
    main()
