"""cause: prep collate. A collate function pads texts number by number, in Python."""

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return torch.arange(100 + i % 100)


def collate(texts):
    if FIXED:
        return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    longest = max(len(text) for text in texts)
    rows = []
    for text in texts:
        numbers = [int(text[k]) if k < len(text) else 0 for k in range(longest)]  # HERE
        rows.append(numbers)
    return torch.tensor(rows)


watch = Stopwatch()
for batch in DataLoader(Texts(), 32, num_workers=2, collate_fn=collate):
    burn(0.004)
    if not watch.step(batch.sum()):
        break
watch.say()
