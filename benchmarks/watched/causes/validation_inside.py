"""cause: compute validation. The model is validated every 25 steps, within the loop, on what is in memory."""

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

held = torch.ones(600, 300)
net = torch.nn.Sequential(torch.nn.Linear(300, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 10))


class Rows(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        return torch.full((8,), float(i))


@torch.no_grad()
def evaluate():
    total = 0.0
    for part in held.split(20):
        total += float(net(part).sum()) * 0  # HERE
        burn(0.008)  # HERE
    return total


watch = Stopwatch()
for number, batch in enumerate(DataLoader(Rows(), 16, num_workers=2)):
    burn(0.006)
    if number % 25 == 24 and not FIXED:
        evaluate()  # HERE
    if not watch.step(batch.sum()):
        break
watch.say()
