"""How many accelerators a storage feeds: `loaderbench capacity` on storage whose true speed is set.

    python benchmarks/capacity.py [--only NAME,NAME] [--duration 15] [--ranks 10.5] [--batch 4] [--steps N]
                                  [--json FILE]
    python benchmarks/capacity.py --only nfs --ranks 8.5 --batch 1 --duration 10
    python benchmarks/capacity.py --dlio VENV [--only 1x60,2x150] [--json FILE]

With --dlio instead: AU by dlio-benchmark beside ours (benchmarks/dlio.py, which says how to install it), for so many
ranks of so many images/s.

`fuse` and `disk` cap the bandwidth (a FUSE mount; a loop device throttled in the block layer, as root). The emulated
device is made so fast that C ÷ (0.9 · demand) is the number of --ranks, C the cap in images of the set's mean size and
demand the images/s of one rank at AU 1. Right: the number found is within 1 of the truth's whole part, and the
storage's bandwidth is what stops the next one. `nfs` asks the same of a real NFS mount whose wire is capped, inside
User-Mode Linux, where all runs on one slow processor (only where --only names it). `latency` delays each
read instead, beyond what one rank can hide: it must be called latency. `cpu` is the impostor: images on tmpfs, and
ranks that decode more than the processors do. It must be called the processors.

The exit status is 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dlio

from loaderbench.errors import LoaderbenchError, UnavailableError
from loaderbench.images.index import index_images
from loaderbench.images.synthesize import make_dataset
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.selftest.slow_fuse import slow_fuse
from loaderbench.selftest.throttled_loop import throttled_loop

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.beds.uml_nfs import INSIDE_OUT, UmlNfsBed, uml_nfs

AU = 0.9
IMAGES_PER_S = {"fuse": 200.0, "disk": 200.0, "nfs": 20.0}
"""C of each capped bed: low, so that the processors have little to do."""
SIDES, NUM_IMAGES, NUM_COPIES = {"fuse": 96, "latency": 96, "disk": 384, "nfs": 384}, 400, 10
"""Pixels of a side; files made; copies of each, so that a look reads none twice. The throttled disk gives its rate to
few readers only where files are large: its clock ticks every 4 ms."""
LATENCY_S = 0.04
KEPT = ("ranks", "au_fraction", "num_steps", "num_looks", "cpu_use_fraction", "storage_use_fraction")
"""Of a point of the curve."""
PROFILE = """
machine = "bed"
device_name = "made for benchmarks/capacity.py"
model = "resnet50"
mode = "train"
precision = "fp32"
input_size = 64
issue_ms = {{ value = 0.1, label = "assumed", source = "benchmarks/capacity.py" }}
tail_ms = {{ value = 0.0, label = "assumed", source = "benchmarks/capacity.py" }}
link_bytes_per_s = {{ value = 50e9, label = "assumed", source = "benchmarks/capacity.py" }}

[[steps]]
batch_size = {batch}
duration_ms = {{ value = {ms}, label = "assumed", source = "benchmarks/capacity.py" }}
busy_ms = {{ value = {ms}, label = "assumed", source = "benchmarks/capacity.py" }}
"""


@dataclass(frozen=True)
class Asked:
    """A bed to ask about."""

    path: str
    demand: float
    """Images/s of one rank at AU 1."""
    truth: int | None
    """The number that the cap gives; None: only the cause is judged."""
    cause: str
    most: int
    prefix: Sequence[str] = ()
    inside: UmlNfsBed | None = None
    """Where the command runs."""


@dataclass
class Line:
    """What came."""

    name: str
    truth: int | None
    cause: str
    predicted: int | None
    found: int | None
    said: str | None
    right: bool
    seconds: float
    curve: list[dict[str, Any]] = field(default_factory=list)


def make_images(root: Path, side: int) -> Path:
    """Copies beside the originals: each is a file of its own to the page cache."""
    make_dataset(root, [side], NUM_IMAGES)
    tree = root / str(side)
    for path in list(tree.rglob("*.jpg")):
        for number in range(1, NUM_COPIES):
            shutil.copyfile(path, path.with_stem(f"{path.stem}-{number}"))
    return tree


@contextmanager
def capped(name: str, tree: Path, ranks: float) -> Iterator[Asked]:
    """A bed with a bandwidth, and ranks so fast that it feeds `ranks` of them."""
    rate = IMAGES_PER_S[name]
    bytes_per_s = rate * float(index_images(str(tree)).sizes.mean())
    demand, truth, most = rate / (AU * ranks), int(ranks), min(32, 2 * int(ranks) + 4)
    if name == "fuse":
        with slow_fuse(tree, bytes_per_s=bytes_per_s) as bed:
            yield Asked(bed.path, demand, truth, "storage_bandwidth", most)
    else:
        with throttled_loop(tree, bytes_per_s=bytes_per_s) as disk:
            yield Asked(disk.path, demand, truth, "storage_bandwidth", most, prefix=disk.command_prefix)


@contextmanager
def over_nfs(name: str, tree: Path, ranks: float) -> Iterator[Asked]:
    """As `capped`, by the wire between an NFS client and its server."""
    rate = IMAGES_PER_S[name]
    bits_per_s = 8 * rate * float(index_images(str(tree)).sizes.mean())
    with uml_nfs(tree, bandwidth_bits_per_s=bits_per_s, memory="8G") as bed:
        yield Asked(bed.path, rate / (AU * ranks), int(ranks), "storage_bandwidth", int(ranks) + 3, inside=bed)


@contextmanager
def late(name: str, tree: Path, ranks: float) -> Iterator[Asked]:
    """Each read is late: a rank, which reads one file after the other, has 0.8 of what it takes."""
    with slow_fuse(tree, latency_s=LATENCY_S) as bed:
        yield Asked(bed.path, 1.25 / LATENCY_S, 0, "storage_latency", 4)


@contextmanager
def impostor(name: str, tree: Path, ranks: float) -> Iterator[Asked]:
    """Images in memory, and ranks of which three decode more than these processors can."""
    with tempfile.TemporaryDirectory(prefix="loaderbench-capacity-", dir="/dev/shm") as folder:
        made = Path(folder, "set")
        make_dataset(made, [512], 200)
        yield Asked(str(made / "512"), 100.0, None, "client_cpu", 16)


BEDS: dict[str, Callable[[str, Path, float], Any]] = {
    "fuse": capped, "disk": capped, "latency": late, "cpu": impostor, "nfs": over_nfs,
}  # fmt: skip
USUAL = ("fuse", "disk", "latency", "cpu")
INSIDE_S = 1200.0
"""At most, inside User-Mode Linux."""


def ask(asked: Asked, folder: Path, duration: float, steps: int, batch: int) -> tuple[dict[str, Any], float]:
    """(what `--json` gave, seconds). Raises LoaderbenchError where it fails."""
    profile, target = folder / "rank.toml", folder / "answer.json"
    out = folder if asked.inside is None else Path(INSIDE_OUT)
    profile.write_text(PROFILE.format(batch=batch, ms=1e3 * batch / asked.demand))
    command = [
        *asked.prefix, sys.executable, "-m", "loaderbench", "capacity", asked.path, "--device", f"emulated:{profile}",
        "--batch-size", str(batch), "--input-size", "64", "--au", str(AU), "--max-ranks", str(asked.most),
        "--duration", str(duration), "--steps", str(steps), "--results", str(out / "results"),
        "--json", str(out / target.name),
    ]  # fmt: skip
    begun = time.perf_counter()
    if asked.inside is None:
        status = subprocess.run(command, check=False).returncode
    else:
        ended = asked.inside.run(command, out_dir=folder, timeout_s=INSIDE_S)
        status = ended.rc
        print(ended.stderr, ended.stdout, flush=True)
    if status:
        raise LoaderbenchError(f"capacity ended with {status}")
    answer: dict[str, Any] = json.loads(target.read_text())
    return answer, time.perf_counter() - begun


def judged(name: str, asked: Asked, answer: dict[str, Any], seconds: float) -> Line:
    found, said = answer["found_ranks"], answer["next_is_stopped_by"]
    near = asked.truth is None or (found is not None and abs(found - asked.truth) <= 1)
    return Line(
        name, asked.truth, asked.cause, answer["predicted_ranks"], found, said, near and said == asked.cause, seconds,
        [
            {key: point[key] for key in KEPT}
            | {"mlperf": point["mlperf"]["au_fraction"], "rate": point["samples_per_s"]["value"]}
            for point in answer["curve"]
        ],
    )  # fmt: skip


def beside_dlio(installed: Path, only: str | None, target: Path | None) -> None:
    places: Sequence[tuple[int, float]] = dlio.PLACES
    if only is not None:
        places = [(int(ranks), float(demand)) for ranks, demand in (one.split("x") for one in only.split(","))]
    with tempfile.TemporaryDirectory(prefix="loaderbench-capacity-", dir=os.environ.get("TMPDIR")) as folder:
        side = SIDES["fuse"]
        make_dataset(Path(folder, "set"), [side], NUM_IMAGES)
        pairs = dlio.compare(installed, Path(folder, "set", str(side)), Path(folder), PROFILE, places)
    if target is not None:
        facts = {"pairs": [asdict(pair) for pair in pairs], "environment": to_json(environment())}
        target.write_text(json.dumps(facts, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {', '.join(BEDS)}, comma separated")
    parser.add_argument("--duration", type=float, default=15.0, help="seconds of a look")
    parser.add_argument("--batch", type=int, default=4, help="images of a step")
    parser.add_argument("--steps", type=int, default=10, help="least steps of a look")
    parser.add_argument("--ranks", type=float, default=10.5, help="that the capped beds are to feed")
    parser.add_argument("--dlio", type=Path, metavar="VENV", help="compare with dlio-benchmark, installed there")
    parser.add_argument("--json", type=Path, help="write all lines, with the environment")
    arguments = parser.parse_args()
    if arguments.dlio is not None:
        beside_dlio(arguments.dlio, arguments.only, arguments.json)
        return
    names = [*USUAL] if arguments.only is None else arguments.only.split(",")
    if set(names) - set(BEDS):
        parser.error(f"--only takes some of {', '.join(BEDS)}")
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="loaderbench-capacity-", dir=os.environ.get("TMPDIR")) as folder:
        for name in names:
            tree = Path(folder)
            if name in SIDES and not (tree := Path(folder, "set", str(SIDES[name]))).exists():
                tree = make_images(Path(folder, "set"), SIDES[name])
            try:
                with BEDS[name](name, tree, arguments.ranks) as asked:
                    line = judged(
                        name, asked, *ask(asked, Path(folder), arguments.duration, arguments.steps, arguments.batch)
                    )
            except UnavailableError as error:
                print(f"{name}: skipped: {error}", flush=True)
                continue
            except LoaderbenchError as error:
                print(f"{name}: failed: {error}", flush=True)
                line = Line(name, None, "", None, None, None, False, 0.0)
            lines.append(line)
            truth = f"truth {line.truth if line.truth is not None else 'any number'} ({line.cause})"
            said = f"found {line.found} ({line.said}), predicted {line.predicted}"
            print(
                f"{name:8s} {truth:36s} {said:48s} {'right' if line.right else 'WRONG'} {line.seconds:5.0f} s",
                flush=True,
            )
    if arguments.json is not None:
        facts = {"lines": [asdict(line) for line in lines], "environment": to_json(environment())}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(0 if all(line.right for line in lines) else 1)


if __name__ == "__main__":
    main()
