"""What a wait adds to the CPU time of the next image: why arms that read take more than those fed from memory.

    python benchmarks/after_waits.py FOLDER [FOLDER …] [--rounds 12]

One process, one thread, CPU seconds, Pillow, malloc that keeps freed memory. In each round every image of FOLDER (JPEGs
of one size) is prepared in four ways, in an order drawn anew for each image: its bytes from memory, read from the page
cache, read from the storage with the pages dropped before, and from memory after a sleep of SLEEP_S. Reading and
sleeping are not in the times. Printed: microseconds beyond those from memory, and the ratio, as medians over rounds
with their 95 % interval.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import numpy as np
from turns import median_interval, spread

from loaderbench.decoders.base import Geometry
from loaderbench.decoders.pillow import PillowDecoder
from loaderbench.running.heap import keep_freed_memory

SIDE, MOST_IMAGES = 224, 100
SLEEP_S = 0.0006
"""About a read of 50 KB from a local disk."""
WAYS = ("memory", "page cache", "storage", "sleep")


def taken(path: Path, way: str, known: bytes) -> bytes:
    """The image's bytes."""
    if way == "sleep":
        time.sleep(SLEEP_S)
    if way in ("memory", "sleep"):
        return bytes(bytearray(known))
    with path.open("rb", buffering=0) as file:
        if way == "storage":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def prepare(encoded: bytes, decoder: PillowDecoder, pixels: np.ndarray) -> int:
    """CPU nanoseconds of decoding and resizing it."""
    begun = time.thread_time_ns()
    image = decoder.decode(encoded)
    decoder.crop_resize(image, Geometry(0, 0, image.height, image.width, SIDE, SIDE, 0, 0, False), pixels)
    return time.thread_time_ns() - begun


def one_round(images: list[tuple[Path, bytes]]) -> dict[str, float]:
    """CPU microseconds an image, by way."""
    decoder, pixels = PillowDecoder(), np.empty((SIDE, SIDE, 3), np.uint8)
    sums = dict.fromkeys(WAYS, 0)
    for path, known in images:
        for way in random.sample(WAYS, len(WAYS)):
            sums[way] += prepare(taken(path, way, known), decoder, pixels)
            path.read_bytes()  # the next way finds it in the page cache
    return {way: total / len(images) / 1e3 for way, total in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    keep_freed_memory()
    for folder in arguments.folders:
        paths = sorted(folder.rglob("*.jpg"))[:MOST_IMAGES]
        images = [(path, path.read_bytes()) for path in paths]
        one_round(images[:10])
        rounds = [one_round(images) for _ in range(arguments.rounds)]
        print(f"{folder}: {np.median([one['memory'] for one in rounds]):.0f} µs an image from memory")
        for way in WAYS[1:]:
            more = median_interval([one[way] - one["memory"] for one in rounds])
            ratio = median_interval([one[way] / one["memory"] for one in rounds])
            print(f"  {way:<10} {spread(more, 0)} µs more   {spread(ratio)}x")


if __name__ == "__main__":
    main()
