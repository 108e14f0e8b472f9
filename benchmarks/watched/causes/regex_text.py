"""cause: prep dataset_code. A tokenizer of regular expressions, compiled for each word, in an iterable data set."""

import re

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

words = [f"token{i}" for i in range(400)]
line = " ".join(words)


class Lines(IterableDataset):
    def tokens(self):
        found = 0
        for word in words[:60]:
            pattern = word if FIXED else word + "(?!x)"
            found += line.count(pattern) if FIXED else len(re.findall("(" + pattern + "|zz)", line))  # HERE
        return found

    def __iter__(self):
        info = get_worker_info()
        for i in range(info.id, 1_000_000, info.num_workers):
            self.tokens()
            yield torch.tensor([float(i)])


watch = Stopwatch()
for batch in DataLoader(Lines(), 8, num_workers=2):
    burn(0.003)
    if not watch.step(batch.sum()):
        break
watch.say()
