"""cause: prep delivery. Detection targets as a list of dictionaries of small tensors."""

import torch
from common import FIXED, Stopwatch, burn
from torch.utils.data import DataLoader, Dataset

FIELDS = ("boxes", "labels", "area", "crowd", "number", "size")


class Detections(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return torch.full((3, 32, 32), i % 7, dtype=torch.uint8), {
            field: torch.ones(4, 4) * (i % 9) for field in FIELDS
        }


def collate(samples):
    images, targets = zip(*samples, strict=True)
    if FIXED:
        return torch.stack(images), {field: torch.cat([one[field] for one in targets]) for field in FIELDS}
    return torch.stack(images), list(targets)


watch = Stopwatch()
for images, _ in DataLoader(Detections(), 24, num_workers=2, collate_fn=collate):
    burn(0.004)
    if not watch.step(images.sum()):
        break
watch.say()
