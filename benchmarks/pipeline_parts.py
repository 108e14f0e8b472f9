"""What the option `samples=direct` saves with Pillow: the same files and crops in torchvision's way, part by part.

    python benchmarks/pipeline_parts.py FOLDER [FOLDER …] [--rounds 24] [--json FILE]

One process, one thread, CPU seconds: neighbours on the machine disturb it less than a race of loaders. FOLDER holds
JPEGs (a stored resolution). `torchvision` is what its training reference does, and `multiprocess` by default; `direct`
what `multiprocess` does with that option. Each round takes both through all images, in an order drawn anew, every
second image mirrored. A ratio is the median of the rounds' torchvision ÷ direct, with its 95 % interval: for uint8
batches, and for float32, where ToTensor and Normalize come in. Drawing the crops is left out on both sides.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate
from torchvision.transforms import functional
from turns import median_interval, spread

from loaderbench.decoders.base import Geometry
from loaderbench.decoders.pillow import PillowDecoder
from loaderbench.loaders.transform import IMAGENET_MEAN, IMAGENET_STD, Normalizer, SampleRandom, random_crop
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.running.heap import keep_freed_memory

SIDE = 224
NUM_IMAGES = 64
PARTS = ("decode", "crop, resize, mirror", "to uint8 tensor", "to float32 tensor", "batch of uint8", "batch of float32")
OF = {"uint8": (0, 1, 2, 4), "float32": (0, 1, 3, 5)}
"""Output → the parts that make it."""
Sample = tuple[bytes, tuple[int, int, int, int], bool]
"""Encoded bytes; top, left, height, width of the crop; whether it is mirrored."""


class Clock:
    """CPU seconds of this thread in each part."""

    def __init__(self) -> None:
        self.seconds = [0.0] * len(PARTS)
        self._begun = time.thread_time()

    def spent(self, part: int) -> None:
        """The time since the last call belongs to `part`."""
        now = time.thread_time()
        self.seconds[part] += now - self._begun
        self._begun = time.thread_time()


def direct(samples: list[Sample]) -> list[float]:
    """The pixels go straight into their batch; float32 is normalized straight into another."""
    decoder, normalize, pixels = PillowDecoder(), Normalizer(SIDE, SIDE), np.empty((SIDE, SIDE, 3), np.uint8)
    of_bytes, of_floats = (np.empty((len(samples), SIDE, SIDE, 3), kind) for kind in (np.uint8, np.float32))
    clock = Clock()
    for number, (encoded, box, mirror) in enumerate(samples):
        image = decoder.decode(encoded)
        clock.spent(0)
        decoder.crop_resize(image, Geometry(*box, SIDE, SIDE, 0, 0, mirror), pixels)
        clock.spent(1)
        of_bytes[number] = pixels
        clock.spent(4)
        normalize(pixels, of_floats[number])
        clock.spent(3)
    return clock.seconds


def torchvisions(samples: list[Sample]) -> list[float]:
    """RandomResizedCrop, RandomHorizontalFlip, PILToTensor or ToTensor and Normalize, the default collate."""
    bytes_of, floats_of, clock = [], [], Clock()
    for encoded, box, mirror in samples:
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
        clock.spent(0)
        image = functional.resized_crop(image, *box, [SIDE, SIDE])
        image = functional.hflip(image) if mirror else image
        clock.spent(1)
        bytes_of.append(functional.pil_to_tensor(image))
        clock.spent(2)
        floats_of.append(functional.normalize(functional.to_tensor(image), list(IMAGENET_MEAN), list(IMAGENET_STD)))
        clock.spent(3)
    default_collate(bytes_of)
    clock.spent(4)
    default_collate(floats_of)
    clock.spent(5)
    return clock.seconds


def samples_of(folder: Path) -> list[Sample]:
    found: list[Sample] = []
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))[:NUM_IMAGES]):
        with Image.open(path) as image:
            box = random_crop(image.height, image.width, SampleRandom(0, 0, number))
        found.append((path.read_bytes(), box, bool(number % 2)))
    return found


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Microseconds an image of each part and side, medians of the rounds; the ratio for each output."""
    samples, sides = samples_of(folder), {"direct": direct, "torchvision": torchvisions}
    taken: dict[str, list[list[float]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in random.Random(number).sample(list(sides), len(sides)):
            taken[name].append(sides[name](samples))
    us = {name: np.array(seconds) / len(samples) * 1e6 for name, seconds in taken.items()}
    print(f"\n{folder.name}: CPU µs an image{'':<12}{'direct':>8}{'torchvision':>13}")
    for number, part in enumerate(PARTS):
        print(f"  {part:<30}{np.median(us['direct'][:, number]):>9.0f}{np.median(us['torchvision'][:, number]):>13.0f}")
    ratios = {}
    for output, parts in OF.items():
        whole = {name: values[:, parts].sum(axis=1) for name, values in us.items()}
        ratios[output] = median_interval(whole["torchvision"] / whole["direct"])
        print(f"  {output}: torchvision ÷ direct {spread(ratios[output])}", flush=True)
    medians = {name: dict(zip(PARTS, np.median(values, axis=0).tolist(), strict=True)) for name, values in us.items()}
    return {"folder": folder.name, "num_images": len(samples), "us_an_image": medians, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--json", type=Path, help="write the figures, with the environment")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as measuring processes do
    rows = [measure(folder, arguments.rounds) for folder in arguments.folders]
    if arguments.json is not None:
        figures = {"environment": to_json(environment()), "rounds": arguments.rounds, "rows": rows}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
