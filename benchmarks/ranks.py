"""Which rank is late, and by what: `torchrun -m loaderbench run` with one cause built in, or none.

    python benchmarks/ranks.py [--only NAME,NAME] [--rounds 1] [--quick] [--json FILE [--add]]

Every run is a launch of its own, of 2 to 4 ranks on emulated devices that ask for little. What is built in exists
outside of what judges it:

- `reading`: one rank reads its files through FUSE, where each open takes long;
- `shard`: all read one storage, in which some files take long: all of them in one rank's share;
- `preparing`: one rank has larger images;
- `processors`: one rank may use one processor, which busy processes use too;
- `device`: one rank's emulated device is slower;
- `files`: all read one storage, in which some files take long, whoever meets them: the late rank changes;
- `stops`: each rank has a storage of its own, and these stand still in turn (the FUSE server is stopped);
- `nothing`: nothing, or the same for all. No rank may be named.

Half of the runs have an all-reduce in each step, which makes all ranks equally slow. In half of them one rank's clock
is 50 ms ahead or behind, in a time namespace of its own (as root): the offset that the run recorded is held against it.
A line a run: the truth (who, by what), what was said, `right`, `in part` (the rank, not the cause), `undetermined` or
`WRONG`; a rank that was not named although one was late is wrong too. The exit status is 1 where one is wrong, or an
offset is off by more than 1 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from capacity import PROFILE

from loaderbench.errors import LoaderbenchError, UnavailableError
from loaderbench.images.synthesize import make_dataset
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.selftest.disturbers import neighbours
from loaderbench.selftest.slow_fuse import slow_fuse

BATCH, STEP_MS = 2, 20.0
"""Of every rank: little to decode, so that 4 ranks leave these processors idle."""
SECONDS = 5.0
"""`--duration`."""
LATE = 1.7
"""A late rank's step ÷ the others'."""
SIDE, LARGE, LARGEST = 96, 1024, 2048
"""Pixels of a side: of all, of `processors`, of `preparing`."""
NUM_IMAGES, NUM_LARGE = 1200, 64
SLOW_IN_SHARE, SHARE_S = 0.25, 0.06
"""`shard`: part of the late rank's files, and how long each takes."""
SLOW_FILES, FILE_S = 0.12, 0.06
"""`files`: the same of all files."""
STOP_S, PAUSE_S = 0.15, 0.05
"""`stops`: how long a storage stands still, and how long none does after that."""
NUM_BUSY = 6
OFFSET_S, OFF_S = 0.050, 1e-3
"""Of a shifted clock, and how far the recorded one may be off."""
LIMIT_S = 120.0
"""Of one launch."""
Truth = tuple[str, str, int | None] | None
"""(pattern, cause, rank) as the verdict names them; None: nobody is late."""


@dataclass(frozen=True)
class Asked:
    """A launch to ask about."""

    kind: str
    loader: str
    ranks: int
    all_reduce: bool
    late: int = 0
    """The rank, where one is."""
    offset_rank: int | None = None
    offset_s: float = 0.0

    @property
    def name(self) -> str:
        how = "all-reduce" if self.all_reduce else "alone"
        return f"{self.kind}/{self.loader}-{self.ranks}-rank{self.late}-{how}"

    @property
    def truth(self) -> Truth:
        return {
            "reading": ("rank", "reading", self.late),
            "shard": ("rank", "reading", self.late),
            "preparing": ("rank", "preparing", self.late),
            "processors": ("rank", "processors", self.late),
            "device": ("rank", "device", self.late),
            "files": ("rotating", "reading", None),
            "stops": ("rotating", "reading", None),
        }.get(self.kind)


@dataclass
class OneRank:
    """What is one rank's alone."""

    folder: str
    step_ms: float = STEP_MS
    cpu: int | None = None


@dataclass
class Row:
    """What came of a launch."""

    name: str
    truth: Truth
    said: Truth = None
    mark: str = "failed"
    imbalance_fraction: float | None = None
    seconds: float = 0.0
    offsets_s: list[tuple[int, float, float]] = field(default_factory=list)
    """(rank, injected, recorded) of a launch with a shifted clock, by rank 0's."""
    failure: str | None = None

    @property
    def off_s(self) -> float | None:
        """The largest error of the recorded offsets."""
        return max((abs(recorded - injected) for _, injected, recorded in self.offsets_s), default=None)


KINDS = ("reading", "shard", "preparing", "processors", "device", "files", "stops")
LOADERS = {"reading": "threaded", "files": "threaded", "device": "threaded"}
"""The second loader of a kind, else `multiprocess`: `threaded` does not tell that it waited for a processor."""
MORE_RANKS = (
    ("device", 3, 2),
    ("device", 4, 1),
    ("reading", 3, 1),
    ("reading", 4, 3),
    ("shard", 3, 2),
    ("files", 4, 0),
)


def cases() -> dict[str, Asked]:
    """Name → launch, each with another place of the shifted clock."""
    found = []
    for kind in KINDS:
        for loader in ("serial", LOADERS.get(kind, "multiprocess")):
            found += [Asked(kind, loader, 2, joint, late) for late in (0, 1) for joint in (True, False)]
    found += [Asked(kind, "serial", ranks, bool(ranks % 2), late) for kind, ranks, late in MORE_RANKS]
    even = ("serial", "multiprocess", "threaded")
    found += [Asked("nothing", loader, 2, joint) for loader in even for joint in (True, False)]
    found += [Asked("nothing", "serial", ranks, joint) for ranks in (3, 4) for joint in (True, False)]
    found += [Asked("nothing-slow", "serial", 2, joint) for joint in (True, False)]
    shifted = [
        one if number // 2 % 2 else Asked(
            one.kind, one.loader, one.ranks, one.all_reduce, one.late, number // 4 % one.ranks,
            OFFSET_S if number // 8 % 2 else -OFFSET_S,
        )
        for number, one in enumerate(found)
    ]  # fmt: skip
    return {one.name: one for one in shifted}


QUICK = ("reading/serial-2-rank0-all", "device/serial-2-rank1-alone", "nothing/serial-2-rank0-all")


# -- what is built in ------------------------------------------------------------------------------------


class Bench:
    """Where launches are made, and the images that they read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def images(self, side: int) -> Path:
        """Small ones are many: what is read once is not read again soon."""
        make_dataset(self.folder / "made", [side], NUM_IMAGES // 4 if side == SIDE else NUM_LARGE)
        tree = self.folder / "made" / str(side)
        more = tree / "class0" / "more"
        if side == SIDE and not more.exists():
            made = sorted(tree.rglob("*.jpg"))
            more.mkdir(parents=True)
            for number in range(NUM_IMAGES - len(made)):
                shutil.copyfile(made[number % len(made)], more / f"{number:05d}.jpg")
        return tree

    def with_slow_share(self, ranks: int, late: int) -> Path:
        """Images of which the rank's files alone are among those that FUSE slows (`tail` of slow_fuse)."""
        root = self.folder / f"share-{ranks}-{late}"
        if root.exists():
            return root
        made = sorted(self.images(SIDE).rglob("*.jpg"))
        (root / "all").mkdir(parents=True)
        for number, source in enumerate(made):
            slow = number % ranks == late and number // ranks % round(1 / SLOW_IN_SHARE) == 0
            shutil.copyfile(source, root / named(number, slow=slow, part=SLOW_IN_SHARE))
        return root


def named(number: int, *, slow: bool, part: float) -> str:
    """A name, in the order of `number`, that is or is not among the `part` of all names that FUSE slows."""
    for salt in range(1000):
        name = f"all/{number:05d}-{salt}.jpg"
        if (zlib.crc32(f"/{name}".encode()) < part * 2**32) == slow:
            return name
    raise AssertionError("a hash that is no hash")


@contextmanager
def slow_opens(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    plain = bench.images(SIDE)
    with slow_fuse(plain, open_latency_s=LATE * STEP_MS / 1e3 / BATCH) as bed:
        yield [OneRank(bed.path if rank == asked.late else str(plain)) for rank in range(asked.ranks)]


@contextmanager
def slow_for_all(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    with slow_fuse(bench.images(SIDE), open_latency_s=LATE * STEP_MS / 1e3 / BATCH) as bed:
        yield [OneRank(bed.path) for _ in range(asked.ranks)]


@contextmanager
def slow_share(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    with slow_fuse(bench.with_slow_share(asked.ranks, asked.late), tail=(SLOW_IN_SHARE, SHARE_S)) as bed:
        yield [OneRank(bed.path) for _ in range(asked.ranks)]


@contextmanager
def slow_files(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    with slow_fuse(bench.images(SIDE), tail=(SLOW_FILES, FILE_S)) as bed:
        yield [OneRank(bed.path) for _ in range(asked.ranks)]


@contextmanager
def stops(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    plain, over = bench.images(SIDE), threading.Event()
    with ExitStack() as stack:
        beds = [stack.enter_context(slow_fuse(plain)) for _ in range(asked.ranks)]

        def turn() -> None:
            while not over.is_set():
                for bed in beds:
                    os.kill(bed.daemon_pid, signal.SIGSTOP)
                    over.wait(STOP_S)
                    os.kill(bed.daemon_pid, signal.SIGCONT)
                    over.wait(PAUSE_S)

        turning = threading.Thread(target=turn)
        turning.start()
        try:
            yield [OneRank(bed.path) for bed in beds]
        finally:
            over.set()
            turning.join()


@contextmanager
def large_images(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    plain, large = bench.images(SIDE), bench.images(LARGEST)
    yield [OneRank(str(large if rank == asked.late else plain)) for rank in range(asked.ranks)]


@contextmanager
def busy_processor(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < asked.ranks:
        raise UnavailableError(f"{asked.ranks} ranks with a processor each need as many")
    images = bench.images(LARGE)
    with neighbours(NUM_BUSY) as busy:
        for pid in busy.pids:
            os.sched_setaffinity(pid, {cpus[asked.late]})
        yield [OneRank(str(images), cpu=cpus[rank]) for rank in range(asked.ranks)]


@contextmanager
def slow_device(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    plain = str(bench.images(SIDE))
    yield [OneRank(plain, LATE * STEP_MS if rank == asked.late else STEP_MS) for rank in range(asked.ranks)]


@contextmanager
def nothing(bench: Bench, asked: Asked) -> Iterator[list[OneRank]]:
    yield [OneRank(str(bench.images(SIDE))) for _ in range(asked.ranks)]


MAKERS: dict[str, Callable[[Bench, Asked], AbstractContextManager[list[OneRank]]]] = {
    "reading": slow_opens, "shard": slow_share, "preparing": large_images, "processors": busy_processor,
    "device": slow_device, "files": slow_files, "stops": stops, "nothing": nothing, "nothing-slow": slow_for_all,
}  # fmt: skip
COLD = ("shard", "files", "stops")
"""What is read once would be in memory, and no longer slow."""


# -- asking, and judging ---------------------------------------------------------------------------------


def arguments_of(asked: Asked, folder: Path) -> list[str]:
    """Of `loaderbench`, for all ranks."""
    workers = [] if asked.loader == "serial" else ["--workers", "1"]
    return [
        "run", "--loader", asked.loader, *workers, "--cache", "cold" if asked.kind in COLD else "as-is",
        "--batch-size", str(BATCH), "--input-size", "64", "--precision", "fp32", "--arms", "real", "--no-kernels",
        "--duration", str(SECONDS), *(["--all-reduce", "1M"] if asked.all_reduce else []),
        "--results", str(folder / "results"), "--json", str(folder / "answer.json"), "--quiet",
    ]  # fmt: skip


def setup_of(asked: Asked, ranks: Sequence[OneRank], folder: Path) -> dict[str, Any]:
    """What benchmarks/one_rank.py reads."""
    own = []
    for number, rank in enumerate(ranks):
        profile = folder / f"device-{rank.step_ms:g}.toml"
        profile.write_text(PROFILE.format(batch=BATCH, ms=rank.step_ms))
        shifted = asked.offset_s if number == asked.offset_rank and os.geteuid() == 0 else 0.0
        own.append(
            {"arguments": [rank.folder, "--device", f"emulated:{profile}"], "cpu": rank.cpu, "offset_s": shifted}
        )
    return {"arguments": arguments_of(asked, folder), "ranks": own}


def launch(setup: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What rank 0 wrote. Raises LoaderbenchError where the launch fails, and leaves nothing of it running."""
    described, answer = folder / "setup.json", folder / "answer.json"
    described.write_text(json.dumps(setup))
    answer.unlink(missing_ok=True)
    script = str(Path(__file__).with_name("one_rank.py"))
    started = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(len(setup["ranks"])),
         script, str(described)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        _, said = started.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise LoaderbenchError(f"took more than {LIMIT_S:.0f} s") from None
    finally:
        if started.poll() is None:
            started.terminate()  # torchrun ends its ranks
            started.communicate()
    if started.returncode:
        lines = [line for line in said.splitlines() if "loaderbench:" in line] or said.splitlines()[-3:]
        raise LoaderbenchError(f"ended with {started.returncode}: {' '.join(lines)[-400:]}")
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def said_of(case: dict[str, Any]) -> Truth:
    """What the verdict names."""
    part = case["verdict"]["part"]
    if case["verdict"]["limited_by"] != "imbalance" or part is None:
        return None
    return part["pattern"], part["late_by"], part["rank"]


def judge(truth: Truth, said: Truth, *, measured: bool) -> str:
    """`measured`: whether there were steps to judge."""
    if not measured:
        return "undetermined"
    if truth == said:
        return "right"
    if truth is not None and said is not None and (truth[0], truth[2]) == (said[0], said[2]) and said[1] == "data":
        return "in part"
    return "WRONG"


def offsets_of(setup: dict[str, Any], case: dict[str, Any]) -> list[tuple[int, float, float]]:
    """(rank, what its stamps lack to be on rank 0's clock, what was recorded), where a clock was shifted."""
    shifts = [rank["offset_s"] for rank in setup["ranks"]]
    if not any(shifts):
        return []
    return [(number, shifts[0] - shifts[number], one["clock_offset_s"]) for number, one in enumerate(case["ranks"])]


def ask(bench: Bench, asked: Asked) -> Row:
    """Launch it while what is built in is there."""
    row = Row(asked.name, asked.truth)
    with MAKERS[asked.kind](bench, asked) as ranks:
        setup, begun = setup_of(asked, ranks, bench.folder), time.perf_counter()
        try:
            (case,) = launch(setup, bench.folder)["cases"]
        except LoaderbenchError as error:
            row.failure = str(error)
            return row
        row.seconds = time.perf_counter() - begun
    row.said = said_of(case)
    row.mark = judge(row.truth, row.said, measured=case["imbalance"] is not None)
    row.imbalance_fraction = None if case["imbalance"] is None else case["imbalance"]["fraction"]["value"]
    row.offsets_s = offsets_of(setup, case)
    return row


def words(what: Truth) -> str:
    if what is None:
        return "nobody"
    pattern, late_by, rank = what
    return f"{pattern if rank is None else f'{pattern} {rank}'}, {late_by}"


def told(row: Row) -> str:
    """The row's text."""
    if row.failure is not None:
        return f"{row.name:42s} failed: {row.failure}"
    cost = "" if row.imbalance_fraction is None else f"{row.imbalance_fraction:6.1%}"
    off = "" if row.off_s is None else f"  clocks off by {1e3 * row.off_s:.3f} ms"
    said = f"truth {words(row.truth):21s} said {words(row.said):21s} {cost}"
    return f"{row.name:42s} {said} {row.mark:12s}{row.seconds:5.0f} s{off}"


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Of all rows, and of those with a cause and without."""
    marks = ("right", "in part", "undetermined", "WRONG", "failed")

    def counts(some: Sequence[Row]) -> dict[str, int]:
        return {mark: sum(row.mark == mark for row in some) for mark in marks}

    causes = [row for row in rows if row.truth is not None]
    errors = [row.off_s for row in rows if row.off_s is not None]
    return {
        "with_cause": counts(causes),
        "with_cause_all_reduce": counts([row for row in causes if row.name.endswith("all-reduce")]),
        "without_cause": counts([row for row in rows if row.truth is None]),
        "shifted_clocks": len(errors),
        "worst_clock_error_s": max(errors, default=None),
    }


def print_summary(found: dict[str, Any]) -> None:
    for name in ("with_cause", "with_cause_all_reduce", "without_cause"):
        counts = found[name]
        listed = ", ".join(f"{num} {mark}" for mark, num in counts.items() if num) or "none"
        print(f"{name.replace('_', ' ')}: {sum(counts.values())} runs: {listed}")
    if found["shifted_clocks"]:
        print(
            f"clocks shifted by {1e3 * OFFSET_S:.0f} ms in {found['shifted_clocks']} runs: recorded offsets off by "
            f"{1e3 * found['worst_clock_error_s']:.3f} ms at most"
        )


def written_before(path: Path) -> list[Row]:
    kept = json.loads(path.read_text())["rows"]
    return [Row(**one) for one in kept]


def main() -> None:
    known = cases()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="beginnings of names, comma separated; --list has the names")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is launched")
    parser.add_argument("--quick", action="store_true", help="three of them")
    parser.add_argument("--json", type=Path, help="write all rows, with the environment")
    parser.add_argument("--add", action="store_true", help="to the rows that the file of --json holds")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(known))
        return
    wanted = QUICK if arguments.quick else ("",) if arguments.only is None else tuple(arguments.only.split(","))
    if unknown := [begin for begin in wanted if not any(name.startswith(begin) for name in known)]:
        parser.error(f"--only: no name begins with {', '.join(unknown)}; see --list")
    if arguments.add and arguments.json is None:
        parser.error("--add needs --json")
    rows = written_before(arguments.json) if arguments.add and arguments.json.exists() else []
    with tempfile.TemporaryDirectory(prefix="loaderbench-ranks-", dir=os.environ.get("TMPDIR")) as folder:
        bench = Bench(Path(folder))
        try:
            for name in [name for name in known if name.startswith(wanted)] * arguments.rounds:
                try:
                    rows.append(ask(bench, known[name]))
                    print(told(rows[-1]), flush=True)
                except UnavailableError as error:
                    print(f"{name:42s} skipped: {error}", flush=True)
        except KeyboardInterrupt:
            print("interrupted: what was finished counts")
    found = summarize(rows)
    print_summary(found)
    if arguments.json is not None:
        facts = {"summary": found, "rows": [asdict(row) for row in rows], "environment": to_json(environment())}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    bad = any(row.mark in ("WRONG", "failed") or (row.off_s or 0.0) > OFF_S for row in rows)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
