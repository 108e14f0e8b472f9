"""cause: compute logging. Each step writes its metrics to a file and syncs it."""

import json
import tempfile
from pathlib import Path

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

file = Path(tempfile.mkdtemp(), "metrics.json").open("w")  # noqa: SIM115 - for all of the script


class Rows(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        return torch.full((8,), float(i))


def log_metrics(number, values):
    for name in range(200):
        file.write(json.dumps({"step": number, "name": name, "values": values}) + "\n")  # HERE
    file.flush()


watch = Stopwatch()
for number, batch in enumerate(DataLoader(Rows(), 16, num_workers=2)):
    burn(0.005)
    if not FIXED:
        log_metrics(number, list(range(900)))  # HERE
    if not watch.step(batch.sum()):
        break
watch.say()
