"""cause: prep delivery. Texts of unlike lengths, left as a list of tensors, one for each sample."""

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return torch.arange(20 + i % 50)


def collate(samples):
    return torch.nn.utils.rnn.pad_sequence(samples) if FIXED else samples


watch = Stopwatch()
for batch in DataLoader(Texts(), 128, num_workers=2, collate_fn=collate):
    burn(0.006)
    if not watch.step(batch[0].sum() if FIXED else torch.stack([one[0] for one in batch]).sum()):
        break
watch.say()
