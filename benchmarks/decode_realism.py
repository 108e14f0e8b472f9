"""Does a byte of a synthetic image take as long to decode as a byte of a photograph?

Real photographs (those in the wheels of scikit-learn and scikit-image, resized; above 512² a mosaic of
them) and synthetic ones are encoded to the same mean file size and decoded by Pillow, in turns. Printed is
the ratio of their decode time per byte, with a 95 % interval from resampling the rounds; then, what making a
megapixel takes of one core (aim: 150 ms) beside Pillow's encoding alone.

    python benchmarks/decode_realism.py [--rounds 30]
"""

import argparse
import io
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "images")]
from photographs import encode, real_images  # noqa: E402

from loaderbench.images.paint import encoding_for, paint  # noqa: E402

SIZES = ((256, 256), (500, 375), (512, 512), (1024, 1024))


def encode_to_mean_size(images: list[Image.Image], mean_bytes: float) -> list[bytes]:
    """All images at the quality that comes nearest to a mean file size."""
    tried = [[encode(image, quality) for image in images] for quality in range(80, 100)]
    return min(tried, key=lambda files: abs(np.log(np.mean([len(file) for file in files]) / mean_bytes)))


def decode_ns_per_byte(files: list[bytes]) -> float:
    begun = time.thread_time_ns()
    for file in files:
        Image.open(io.BytesIO(file), formats=("JPEG",)).load()
    return (time.thread_time_ns() - begun) / sum(map(len, files))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    print("size        synthetic KB   real KB   synthetic ns/byte   real ns/byte   ratio (95 %)")
    for width, height in SIZES:
        encoding = encoding_for(width, height)
        synthetic = [
            encode(paint(np.random.default_rng([5, i]), width, height, 5, encoding.smoothness), encoding.quality)
            for i in range(40 if width < 1024 else 12)
        ]
        mean_bytes = np.mean([len(file) for file in synthetic])
        real = encode_to_mean_size(real_images(width, height), float(mean_bytes))
        pairs = np.array([(decode_ns_per_byte(synthetic), decode_ns_per_byte(real)) for _ in range(rounds + 2)])[2:]
        chosen = pairs[rng.integers(0, rounds, (2000, rounds))].mean(axis=1)
        low, high = np.quantile(chosen[:, 0] / chosen[:, 1], [0.025, 0.975])
        means = pairs.mean(axis=0)
        print(
            f"{f'{width}×{height}':<12}{mean_bytes / 1e3:12.1f}{np.mean([len(file) for file in real]) / 1e3:10.1f}"
            f"{means[0]:20.2f}{means[1]:15.2f}   {means[0] / means[1]:.3f} ({low:.3f}–{high:.3f})"
        )
    print_cost_of_making(rounds)


def print_cost_of_making(rounds: int) -> None:
    """CPU milliseconds of the fastest round: others have met a neighbour on their core."""
    made, encoded = [], []
    paint(np.random.default_rng(0), 64, 64, 0, 2.0)  # the textures are made once per process
    for number in range(rounds):
        begun = time.thread_time_ns()
        image = paint(np.random.default_rng(number), 1024, 1024, 0, 2.0)
        painted = time.thread_time_ns()
        encode(image, 95)
        ended = time.thread_time_ns()
        made.append((ended - begun) / 1e6)
        encoded.append((ended - painted) / 1e6)
    times = np.median(np.divide(made, encoded))
    print(f"a megapixel is made in {min(made):.0f} ms of one core, {times:.1f} × its encoding")


if __name__ == "__main__":
    main()
