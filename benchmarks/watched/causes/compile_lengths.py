"""cause: compute compile. A compiled function is compiled again for each length that a batch has."""

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch._dynamo.config.cache_size_limit = 10_000
torch._dynamo.config.accumulated_cache_size_limit = 10_000


class Texts(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return torch.full((64 if FIXED else 64 + i // 8 % 4000,), float(i % 5))


def loss(batch):
    return (batch.sin() * batch.cos()).square().mean()


compiled = torch.compile(loss, backend="eager", dynamic=False)
watch = Stopwatch()
for batch in DataLoader(Texts(), 8, num_workers=2):
    burn(0.004)
    compiled(batch)  # HERE
    if not watch.step(len(batch)):
        break
watch.say()
