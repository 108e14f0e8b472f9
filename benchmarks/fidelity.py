"""Do our loaders cost what they stand for? Each against the same pipeline as its makers write it.

    python benchmarks/fidelity.py [DATASET …] [--workers 2] [--rounds 10] [--seconds 2] [--quick] [--json FILE]
                                  [--only multiprocess,dali]

- `multiprocess` with Pillow, what `run` takes by default, against a plain script: torchvision's ImageFolder, its
  transforms of training or evaluation, PILToTensor (uint8) or ToTensor and Normalize (float32), DataLoader; and its
  option `samples=direct` against that.
- `dali` on the CPU against NVIDIA's ResNet-50 example: file reader, random-crop decoder, resize, crop-mirror-normalize,
  its PyTorch iterator; with the example's channels-last layout, which is what our model takes, and with its other one.

Both sides read the same files, crop with the same ranges, and hand over batches of one size and type; batches are taken
and dropped. Each side has a process of its own. Ours keeps the memory that it frees, as measuring processes do, so that
arms are alike (loaderbench/running/heap.py). The plain script runs as users start it, and with its memory kept, too:
the ratio of these two is what that alone gives.

Every round starts these processes anew: the same work takes one process up to 10 % more or less than the next, by where
its memory lies. It runs each side once for each row, in an order drawn anew, behind a warm-up that empties the queues.
Printed: of each pair the median over rounds of the rates' ratio with its 95 % interval, and the same of the CPU seconds
an image, inverted, which varies less where others use the machine. The aim is that ours is within 5 % of theirs: what
is blamed on a loader is then not the fault of ours, and what it reaches, a user's own script reaches.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from loader_rates import Contestant, ours, rate, reference
from numpy.typing import NDArray
from PIL import Image
from turns import judged, median_interval, spread

from loaderbench.images.manifest import resolve_dataset
from loaderbench.loaders.transform import CROP_RATIO, CROP_SCALE, CROP_TRIES, IMAGENET_MEAN, IMAGENET_STD
from loaderbench.machine import environment, usable_cpus
from loaderbench.plain import JsonObject, to_json
from loaderbench.running.heap import keep_freed_memory

LEAST, MOST = 0.95, 1.05
RESOLUTIONS = (256, 512, 1024, 2048)


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


class Side:
    """One side of a pair, in a process of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ours, theirs = multiprocessing.get_context("spawn").Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=_take_turns, args=(name, theirs))
        self._process.start()
        theirs.close()

    def turn(self, row: argparse.Namespace) -> tuple[float, float]:
        """(images/s, CPU seconds an image) of one turn.

        Raises:
            EOFError: the process ended; it has said why.
        """
        self._ours.send(row)
        rates: tuple[float, float] = self._ours.recv()
        return rates

    def close(self) -> None:
        self._ours.close()
        self._process.join()


def _take_turns(name: str, connection: Connection) -> None:
    """What a side's process does: a turn for each row that is asked for."""
    multiprocessing.set_start_method("fork", force=True)  # a spawned process would spawn its workers, too
    if name in KEEPS_MEMORY:
        keep_freed_memory()
    last, contestant = None, None
    with ExitStack() as stack, suppress(EOFError):
        while True:
            row = connection.recv()
            if row != last:
                stack.close()
                last, contestant = row, CONTESTANTS[name](row, stack)
            assert contestant is not None
            num_warmup = row.workers * row.prefetch + row.workers
            connection.send(rate(contestant, row.seconds, num_warmup, row.batch_size, row.workers))


PLAIN, KEPT, OURS, DIRECT = "plain", "plain, memory kept", "ours", "ours, direct"
CONTESTANTS: dict[str, Callable[[argparse.Namespace, ExitStack], Contestant]] = {
    PLAIN: lambda row, stack: reference(row, row.workers, row.mode),
    KEPT: lambda row, stack: reference(row, row.workers, row.mode),
    OURS: lambda row, stack: ours(row, "multiprocess", "pillow", stack, row.mode),
    DIRECT: lambda row, stack: ours(row, "multiprocess", "pillow", stack, row.mode, samples="direct"),
    "dali": lambda row, stack: ours(row, "dali", None, stack),
    "NVIDIA's example, HWC": lambda row, stack: nvidia_example(row, "HWC"),
    "NVIDIA's example, CHW": lambda row, stack: nvidia_example(row, "CHW"),
}
KEEPS_MEMORY = (KEPT, OURS, DIRECT, "dali")
PAIRS = {
    "multiprocess": ((OURS, KEPT), (OURS, PLAIN), (KEPT, PLAIN), (DIRECT, OURS)),
    "dali": (("dali", "NVIDIA's example, HWC"), ("dali", "NVIDIA's example, CHW")),
}
"""What is compared, and with what."""
ROWS = {
    "multiprocess": tuple((output, mode) for output in ("uint8", "float32") for mode in ("train", "infer")),
    "dali": (("float32", "train"),),
}
"""Outputs and modes, over every folder; of `dali` over the second folder alone."""


def batch_size_of(folder: str) -> int:
    """64, of large pictures fewer: a turn is to hold several batches of each worker."""
    with Image.open(next(Path(folder).rglob("*.jpg"))) as image:
        return min(64, max(16, 64 * 512 // min(image.size)))


def rows_of(what: str, folders: Sequence[str], arguments: argparse.Namespace) -> list[argparse.Namespace]:
    """What is measured of a key of PAIRS: each folder, output and mode."""
    return [
        argparse.Namespace(
            dataset=folder, folder=Path(folder).name, output=output, mode=mode, workers=arguments.workers,
            prefetch=arguments.prefetch, input_size=arguments.input_size, seconds=arguments.seconds,
            batch_size=batch_size_of(folder),
        )
        for folder in folders
        for output, mode in ROWS[what]
    ]  # fmt: skip


def compared(what: str, folders: Sequence[str], arguments: argparse.Namespace) -> list[JsonObject]:
    """Ratios of each pair of a key of PAIRS, in each row."""
    rows, pairs = rows_of(what, folders, arguments), PAIRS[what]
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    turns: dict[tuple[int, str], list[tuple[float, float]]] = {
        (number, name): [] for number in range(len(rows)) for name in names
    }
    for turn in range(arguments.rounds):
        with ExitStack() as stack:
            sides = {name: Side(name) for name in names}
            for side in sides.values():
                stack.callback(side.close)
            for number, row in enumerate(rows):
                for name in random.Random(f"{turn} {number}").sample(names, len(names)):
                    turns[number, name].append(sides[name].turn(row))
                latest = ", ".join(f"{name} {turns[number, name][-1][0]:,.0f}" for name in names)
                print(f"round {turn + 1}, {row.folder} {row.output} {row.mode}: {latest} images/s", flush=True)
    return [
        ratios_of(row, pair, *(np.array(turns[number, name]) for name in pair))
        for number, row in enumerate(rows)
        for pair in pairs
    ]


def ratios_of(
    row: argparse.Namespace, pair: tuple[str, str], first: NDArray[np.float64], second: NDArray[np.float64]
) -> JsonObject:
    """The ratio of two sides' rates, and that of their CPU seconds an image, inverted: above 1 the first is faster.
    Each side: [rounds, (images/s, CPU seconds an image)]."""
    return {
        "folder": row.folder, "output": row.output, "mode": row.mode, "batch_size": row.batch_size, "pair": list(pair),
        "ratio": list(median_interval(first[:, 0] / second[:, 0])),
        "by_cpu": list(median_interval(second[:, 1] / first[:, 1])),
        "rates": [first[:, 0].tolist(), second[:, 0].tolist()],
        "cpu_s": [first[:, 1].tolist(), second[:, 1].tolist()],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", help=f"ImageFolder trees  [default: the generated set at {RESOLUTIONS}]")
    parser.add_argument("--workers", type=int, default=usable_cpus())
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each side in each round")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1 s, at 512 only")
    parser.add_argument("--only", choices=sorted(PAIRS))
    parser.add_argument("--json", type=Path, help="write the figures, with the environment")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 3, 1.0
    made = (512,) if arguments.quick else RESOLUTIONS
    folders = [str(Path(one).resolve()) for one in arguments.datasets] or [
        resolve_dataset(None, one)[0] for one in made
    ]
    rows = [] if arguments.only == "dali" else compared("multiprocess", folders, arguments)
    if arguments.only != "multiprocess":
        try:
            importlib.import_module("nvidia.dali")
        except ImportError as error:
            print(f"dali ÷ NVIDIA's example: skipped ({error}); pip install 'loaderbench[dali]'")
        else:
            rows += compared("dali", folders[:2][-1:], arguments)
    print()
    for row in rows:
        found, by_cpu = tuple(row["ratio"]), tuple(row["by_cpu"])
        goal = f"  {LEAST} to {MOST}: {judged(found, LEAST, MOST)}" if row["pair"][0] in (OURS, "dali") else ""
        print(
            f"{row['folder']:>5} {row['output']:8}{row['mode']:6}{' ÷ '.join(row['pair']):32}{spread(found)}  "
            f"by CPU {spread(by_cpu)}{goal}"
        )
    if arguments.json:
        settings = {
            name: getattr(arguments, name) for name in ("workers", "prefetch", "input_size", "rounds", "seconds")
        }
        figures = {"rows": rows, "settings": settings, "environment": to_json(environment())}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
