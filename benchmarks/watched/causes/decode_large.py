"""cause: prep decode. Photographs are stored many times larger than they are used."""

import io

import numpy as np
import torch
from common import FIXED, Stopwatch, burn
from PIL import Image
from torch.utils.data import DataLoader, Dataset


def stored(side):
    pixels = np.random.default_rng(0).integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((side, side)).save(file, "JPEG")
    return file.getvalue()


photo = stored(128 if FIXED else 1024)


class Photos(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        picture = Image.open(io.BytesIO(photo)).convert("RGB")  # HERE
        return torch.from_numpy(np.asarray(picture.resize((64, 64))).copy())


watch = Stopwatch()
for batch in DataLoader(Photos(), 8, num_workers=2):
    burn(0.005)
    if not watch.step(len(batch)):
        break
watch.say()
