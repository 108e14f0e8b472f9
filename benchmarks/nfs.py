"""Images/s and processes over a late wire: the threaded loader with read-ahead against DataLoader's workers.

    python benchmarks/nfs.py [--latencies-ms 5,20] [--processes 1,2,4,8] [--mbit 60] [--quick] [--json FILE]

A real NFS server and client inside User-Mode Linux (`make test-beds` installs it), one processor. Every contestant
takes the same crops with the same decoder: DataLoader with 1 to 8 processes, `threaded` in one process with one
decoding thread and 8 or 32 threads that read ahead. They take turns; the client's page cache is emptied before each
one, and the bytes that the server sent are held against those of the images (`by wire`, 1 where all came from there).

The limit is the lower of two: how many of these files a second the wire's bandwidth carries (closed form, without what
protocols add), and how many the processor in there prepares when they are in memory (measured in the same rounds). A
ratio is the median of the rounds' ratios, with a 95 % interval over the rounds; against the limit only what came by
wire counts. Aim: the limit with at most a quarter of the processes that DataLoader needs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from loaders import Contestant, Setting, Stream, context_of
from turns import come_to_rest, median_interval, spread

from loaderbench import plugins
from loaderbench.errors import LoaderbenchError
from loaderbench.images.files import replace_file
from loaderbench.images.index import ImageIndex, index_images
from loaderbench.images.shards import DataSet
from loaderbench.images.synthesize import make_dataset
from loaderbench.machine import environment
from loaderbench.plain import to_json

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.beds.nfs_probe import mount_at
from tests.beds.uml_init import set_speed
from tests.beds.uml_nfs import INSIDE_OUT, INSIDE_PATH, uml_nfs

IO_THREADS = (8, 32)
NUM_IMAGES, NUM_COPIES = 250, 8
"""Files of 256×256 pixels on the server: more than a turn reads."""
BATCH_SIZE = 16
PREFETCH = {"multiprocess": 2, "threaded": 8}
"""Batches ahead of each worker: one decoding thread holds as many as DataLoader with 4 processes."""
PROCESSOR = "files in memory"
Turn = Callable[[], tuple[float, int]]
"""(images/s, images taken)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latencies-ms", help="round trips of the wire  [default: 5,20; quick: 20]")
    parser.add_argument("--processes", help="of DataLoader  [default: 1,2,4,8; quick: 4,8]")
    parser.add_argument("--mbit", type=float, default=60.0, help="bandwidth of the wire, Mbit/s")
    parser.add_argument("--rounds", type=int, help="[default: 4; quick: 2]")
    parser.add_argument("--seconds", type=float, help="of a turn, at least  [default: 4; quick: 3]")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    quick = arguments.quick
    latencies = arguments.latencies_ms or ("20" if quick else "5,20")
    processes = arguments.processes or ("4,8" if quick else "1,2,4,8")
    rounds, seconds = arguments.rounds or (2 if quick else 4), arguments.seconds or (3.0 if quick else 4.0)
    if arguments.inside is not None:
        counts, waits_ms = [int(text) for text in processes.split(",")], [float(text) for text in latencies.split(",")]
        race_inside(arguments.inside, counts, waits_ms, arguments.mbit, rounds, seconds)
        os._exit(0)  # as in loaders.py: nothing is left to save
    with tempfile.TemporaryDirectory(prefix="loaderbench-nfs-") as folder:
        tree = make_images(Path(folder, "set"))
        inside = [sys.executable, __file__, "--inside", str(tree), "--latencies-ms", latencies]
        inside += ["--processes", processes, "--mbit", str(arguments.mbit)]
        inside += ["--rounds", str(rounds), "--seconds", str(seconds)]
        out = Path(folder, "out")
        failed = None
        try:
            with uml_nfs(tree) as bed:
                ended = bed.run(inside, out_dir=out, timeout_s=1800.0)
            if ended.rc:
                # All of it: behind the error itself stand those of the workers that were ended for it.
                print(ended.stderr, file=sys.stderr)
                failed = f"inside the bed it ended with {ended.rc}, see above"
        except LoaderbenchError as error:
            failed = str(error)
        except KeyboardInterrupt:
            failed = "interrupted"
        found = [json.loads(path.read_text()) for path in sorted(out.glob("latency-*.json"))]
    for one in found:
        show(one)
    if arguments.json is not None and found:
        figures = {"environment": to_json(environment()), "latencies": found}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if failed is not None:
        sys.exit(f"nfs.py: {failed}" + (f"; {len(found)} finished latencies count" if found else ""))


def make_images(root: Path) -> Path:
    """Copies beside the originals: each is a file of its own to the server and to the client's page cache."""
    make_dataset(root, [256], NUM_IMAGES)
    tree = root / "256"
    for path in list(tree.rglob("*.jpg")):
        for number in range(1, NUM_COPIES):
            shutil.copyfile(path, path.with_stem(f"{path.stem}-{number}"))
    return tree


# -- inside ----------------------------------------------------------------------------------------------


def race_inside(
    host_tree: str, processes: list[int], latencies_ms: list[float], mbit: float, rounds: int, seconds: float
) -> None:
    """Start all, run them in turn at each latency, and write what `race` returns to a file of each latency."""
    near = index_images(host_tree)  # the same files without a wire: listing them over it would take minutes
    far = near.at_root(INSIDE_PATH)
    # Those with processes first: they fork while this process has no threads yet.
    turns: dict[str, Turn] = {
        f"DataLoader, {number} processes": start("multiprocess", {}, number, far, seconds) for number in processes
    }
    for number in IO_THREADS:
        turns[f"threaded, {number} reading ahead"] = start("threaded", {"io_threads": number}, 1, far, seconds)
    turns[PROCESSOR] = start("threaded", {}, 1, near, seconds)
    for number, latency_ms in enumerate(latencies_ms):
        set_speed(mbit * 1e6, latency_ms / 1e3)
        about = {"latency_ms": latency_ms, "mbit": mbit, "seconds": seconds, "num_files": len(near)}
        found = about | race(turns, rounds, float(near.sizes.mean()))
        with replace_file(Path(INSIDE_OUT, f"latency-{number:02}.json")) as file:
            file.write(json.dumps(found).encode())


def race(turns: dict[str, Turn], rounds: int, mean_bytes: float) -> dict[str, Any]:
    """{"mean_bytes": …, "rates": {name: [images/s]}, "served": {name: [share]}}.

    `served` is the bytes that the server sent over those of the images that were taken: 1 where all came by wire.
    """
    rates: dict[str, list[float]] = {name: [] for name in turns}
    served: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in np.random.default_rng(number).permutation(list(turns)).tolist():
            if name != PROCESSOR:
                Path("/proc/sys/vm/drop_caches").write_text("1")
            before = server_bytes()
            rate, num_images = turns[name]()
            wait_for_silence()  # what it reads until its queue is full again replaces what was there before the turn
            rates[name].append(rate)
            served[name].append((server_bytes() - before) / (num_images * mean_bytes))
            print(f"round {number + 1} {name}: {rate:.0f} images/s, {served[name][-1]:.2f} by wire", flush=True)
    return {"mean_bytes": mean_bytes, "rates": rates, "served": served}


def start(loader: str, options: dict[str, Any], workers: int, images: ImageIndex, seconds: float) -> Turn:
    """A loader with its queue full."""
    setting = Setting(images.root, workers, PREFETCH[loader], BATCH_SIZE, 224, seconds)
    module = plugins.LOADERS.load(loader)
    context = context_of(setting, DataSet(images), Contestant(loader, "", loader, "libjpeg", "auto"))
    batches = module.build(module.Options(**options), context).batches()
    num_taken = itertools.count()
    stream = Stream(setting, lambda: (batch for batch, _ in zip(batches, num_taken, strict=False)))

    def turn() -> tuple[float, int]:
        before = next(num_taken)
        rate, _ = stream.turn()
        return rate, (next(num_taken) - before - 1) * BATCH_SIZE

    turn()
    wait_for_silence()
    print(f"{loader} {options or workers} is up", flush=True)
    return turn


def wait_for_silence() -> None:
    """Return when nothing is computed and nothing comes over the wire: a loader that waits for files uses no CPU."""
    while True:
        before = server_bytes()
        come_to_rest()
        if server_bytes() == before:
            return


def server_bytes() -> int:
    return mount_at(INSIDE_PATH).bytes["serverread"]


# -- outside ---------------------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> None:
    rates = {name: np.array(values) for name, values in found["rates"].items()}
    wire = found["mbit"] * 1e6 / 8 / found["mean_bytes"]
    limit = np.minimum(wire, rates[PROCESSOR])
    best = max((name for name in rates if name.startswith("DataLoader")), key=lambda name: np.median(rates[name]))
    print(
        f"\nround trip {found['latency_ms']:g} ms, {found['mbit']:g} Mbit/s "
        f"= {wire:.0f} files/s of {found['mean_bytes'] / 1000:.1f} KB"
    )
    print(f"{'':<28}{'images/s':>9}{'by wire':>9}{'by wire ÷ limit (95 %)':>26}{'÷ best DataLoader (95 %)':>26}")
    for name, values in rates.items():
        line = f"{name:<28}{np.median(values):>9.0f}{np.median(found['served'][name]):>9.2f}"
        # An image may come again while it is in memory.
        by_wire = values if name == PROCESSOR else values * np.minimum(1.0, found["served"][name])
        for ratios in (by_wire / limit, values / rates[best]):
            line += spread(median_interval(ratios), 2).rjust(26)
        print(line)
    print(flush=True)


if __name__ == "__main__":
    main()
