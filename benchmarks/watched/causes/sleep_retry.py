"""cause: prep sleep. A client waits a little before each request; what it asks for is in memory."""

import time

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset


class Client:
    def get(self, key):
        if not FIXED:
            time.sleep(0.006)  # HERE
        return bytes(4096)


class Remote(Dataset):
    client = Client()

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        data = self.client.get(i)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8), i


watch = Stopwatch()
for _, number in DataLoader(Remote(), 12, num_workers=2):
    burn(0.006)
    if not watch.step(number.sum()):
        break
watch.say()
