"""cause: compute checkpoint. The model is saved in every fourth step."""

import tempfile
from pathlib import Path

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

path = Path(tempfile.mkdtemp(), "last.pt")


class Rows(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        return torch.full((8,), float(i))


net = torch.nn.Linear(2000, 8000)
watch = Stopwatch()
for number, batch in enumerate(DataLoader(Rows(), 16, num_workers=2)):
    burn(0.008)
    if number % 4 == 3 and not FIXED:
        torch.save(net.state_dict(), path)  # HERE
    if not watch.step(batch.sum()):
        break
watch.say()
