"""cause: compute logging. A progress bar is drawn anew, and flushed, in each step."""

import sys

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

data = TensorDataset(torch.arange(64.0 * 20000).reshape(20000, 64))


def log_step(bar, losses):
    bar.set_postfix({f"loss_{number}": f"{loss:.4f}" for number, loss in enumerate(losses)})  # HERE
    for loss in losses:
        bar.write(f"{loss:.6f}", file=sys.stderr)  # HERE


watch, goes_on = Stopwatch(), True
while goes_on:
    bar = tqdm(DataLoader(data, 64, num_workers=1), mininterval=0, miniters=1, disable=FIXED)
    for (batch,) in bar:
        burn(0.004)
        if not FIXED:
            log_step(bar, [float(one) for one in batch[:24, 0]])
        goes_on = watch.step(batch.sum())
        if not goes_on:
            break
watch.say()
