"""Do our loaders cost what they stand for? Each against the same pipeline as its makers write it.

    python benchmarks/fidelity.py [DATASET] [--workers 2] [--rounds 10] [--seconds 2] [--quick] [--json FILE]

- `multiprocess` with Pillow against torchvision's reference training: ImageFolder, its transforms, DataLoader; with
  float32 batches as training takes them, and with uint8, which leaves ToTensor and Normalize out on both sides.
- `dali` on the CPU against NVIDIA's ResNet-50 example: file reader, random-crop decoder, resize, crop-mirror-normalize,
  its PyTorch iterator; with the example's channels-last layout, which is what our model takes, and with its other one.

Both sides read the same files, crop with the same ranges, and hand over batches of one size and type; batches are taken
and dropped. Every round runs the two sides of a pair once each, in an order that alternates, behind a warm-up that
empties their queues. Printed: the median over rounds of ours ÷ theirs with its 95 % interval, and the same of
the CPU seconds an image, theirs ÷ ours, which varies less where others use the machine. The aim is that
the ratio is at least 0.98: what is blamed on a loader is then not the fault of ours. By as much as it is above 1, a
user's own pipeline of this kind prepares less than ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from loader_rates import Contestant, ours, rate, reference
from turns import judged, median_interval, spread

from loaderbench.images.manifest import resolve_dataset
from loaderbench.loaders.transform import CROP_RATIO, CROP_SCALE, CROP_TRIES, IMAGENET_MEAN, IMAGENET_STD
from loaderbench.machine import environment, usable_cpus
from loaderbench.plain import to_json

REACH = 0.98


def nvidia_example(arguments: argparse.Namespace, layout: str) -> Contestant:
    """The pipeline of DALI's ResNet-50 training example with its `dali_cpu` switch, without a GPU; endless.

    Its crop ranges (area from 0.1, ratio 0.8 to 1.25) are torchvision's here, since they decide how much is decoded.
    """
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

    @pipeline_def(exec_dynamic=True)  # type: ignore[untyped-decorator]
    def example() -> Any:
        images, labels = fn.readers.file(
            file_root=arguments.dataset, shard_id=0, num_shards=1, random_shuffle=True, pad_last_batch=True,
            name="Reader",
        )  # fmt: skip
        images = fn.decoders.image_random_crop(
            images, device="cpu", output_type=types.RGB, random_aspect_ratio=list(CROP_RATIO),
            random_area=list(CROP_SCALE), num_attempts=CROP_TRIES,
        )  # fmt: skip
        side = arguments.input_size
        images = fn.resize(images, resize_x=side, resize_y=side, interp_type=types.INTERP_TRIANGULAR)
        images = fn.crop_mirror_normalize(
            images, dtype=types.FLOAT, output_layout=layout, crop=(side, side),
            mean=[255 * value for value in IMAGENET_MEAN], std=[255 * value for value in IMAGENET_STD],
            mirror=fn.random.coin_flip(probability=0.5),
        )  # fmt: skip
        return images, labels

    def run() -> Iterator[Any]:
        pipeline = example(
            batch_size=arguments.batch_size, num_threads=arguments.workers, device_id=None,
            prefetch_queue_depth=arguments.prefetch,
        )  # fmt: skip
        batches = DALIClassificationIterator(
            pipeline, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
        )
        try:
            while True:
                yield from batches
        finally:
            pipeline._shutdown()

    return run


def measure(pair: str, sides: dict[str, Contestant], arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates of both sides in turn, the ratio of ours to theirs, and that of CPU seconds an image, theirs to ours."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(arguments.rounds):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            num_warmup = arguments.workers * arguments.prefetch + 2
            turn = rate(sides[name], arguments.seconds, num_warmup, arguments.batch_size)
            rates[name].append(turn[0])
            cpu[name].append(turn[1])
        told = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in rates.items())
        print(f"{pair}, round {number + 1} of {arguments.rounds}: {told} images/s", flush=True)
    first, second = (np.array(values) for values in rates.values())
    ratio, low, high = median_interval(first / second)
    by_cpu = median_interval(np.array(cpu["theirs"]) / np.array(cpu["ours"]))
    return {"pair": pair, "ratio": ratio, "low": low, "high": high, "by_cpu": by_cpu, "rates": rates, "cpu_s": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", help="an ImageFolder tree  [default: the generated set at 512]")
    parser.add_argument("--workers", type=int, default=usable_cpus())
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each side in each round")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1 s")
    parser.add_argument("--json", type=Path, help="write the figures, with the environment")
    arguments = parser.parse_args()
    arguments.dataset = arguments.dataset or resolve_dataset(None, 512)[0]
    if arguments.quick:
        arguments.rounds, arguments.seconds = 3, 1.0
    rows = []
    with ExitStack() as stack:
        for output in ("uint8", "float32"):
            arguments.output = output
            sides = {
                "ours": ours(arguments, "multiprocess", "pillow", stack),
                "theirs": reference(arguments, arguments.workers),
            }
            rows.append(measure(f"multiprocess ÷ torchvision, {output}", sides, arguments))
        try:
            theirs = {layout: nvidia_example(arguments, layout) for layout in ("HWC", "CHW")}
        except ImportError as error:
            print(f"dali ÷ NVIDIA's example: skipped ({error}); pip install 'loaderbench[dali]'")
        else:
            dali = ours(arguments, "dali", None, stack)
            for layout, example in theirs.items():
                pair = f"dali ÷ NVIDIA's example, {layout}"
                rows.append(measure(pair, {"ours": dali, "theirs": example}, arguments))
    print()
    for row in rows:
        found = row["ratio"], row["low"], row["high"]
        print(f"{row['pair']:30s} {spread(found)}  by CPU {spread(row['by_cpu'])}  ≥ {REACH}: {judged(found, REACH)}")
    if arguments.json:
        settings = {
            name: getattr(arguments, name)
            for name in ("workers", "prefetch", "batch_size", "input_size", "rounds", "seconds")
        }
        figures = {"rows": rows, "settings": settings, "environment": to_json(environment())}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
