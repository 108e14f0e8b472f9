"""Free-running images/s of every loader on the same files, against the limit of libjpeg-turbo on this machine.

    python benchmarks/loaders.py [--res 256,512,1024,2048] [--rounds 7] [--seconds 2] [--quick] [--json FILE]

The same training crops (RandomResizedCrop 224 and flip) as uint8 batches, files in the page cache, one worker on each
usable CPU, no device. Each contestant lives in a process of its own, which has filled its queue and sleeps before
another one is measured; every round measures all in turn, in an order drawn anew. A ratio is the median of the rounds'
ratios, with a 95 % interval over the rounds; beside it stands the ratio of CPU seconds an image, which
varies less where others use the machine. `limit` decodes the same crops from memory in C, on every CPU, and does
nothing else (with the scaling of `--decode-scale auto`; `limit, full size` without).

Each peer runs as its documentation sets it up (its own decoder, else Pillow) and, where it takes a decoder of ours,
once more with the one that our fastest loader has. What cannot run here is listed with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from turns import Interval, come_to_rest, cpu_s, judged, median_interval, spread

from loaderbench import native, plugins
from loaderbench.errors import LoaderbenchError
from loaderbench.images.index import index_images
from loaderbench.images.manifest import resolve_dataset
from loaderbench.images.shards import DataSet, open_data_set
from loaderbench.machine import environment, usable_cpus
from loaderbench.plain import to_json

OURS, DEFAULTS = "threaded libjpeg auto", "threaded libjpeg"
LIMIT, FULL_LIMIT = "limit", "limit, full size"
NOT_RACED = ("synthetic", "cached", "nvjpeg")
"""Loaders that decode nothing, or nothing on a CPU."""
LEAST_BATCHES = 4
"""Of each worker in a measurement: fewer would be a matter of when a batch happens to be finished."""
START_S, TURN_S = 180.0, 120.0
"""Longest start and longest turn of a contestant before it is given up."""
TARGETS = {
    "limit": {256: 0.85, 512: 0.85, 1024: 0.90, 2048: 0.90},
    "best peer": {256: 1.4, 512: 1.4, 1024: 1.3, 2048: 1.2},
    "fed": {256: 1.10, 512: 1.05, 1024: 0.98, 2048: 0.98},
    "full limit, by CPU": {256: 0.72, 512: 0.79, 1024: 0.90},
    "defaults": {256: 1.0, 512: 1.0, 1024: 1.0},
}


@dataclass(frozen=True)
class Setting:
    dataset: str
    workers: int
    prefetch: int
    batch_size: int
    input_size: int
    seconds: float


@dataclass(frozen=True)
class Contestant:
    name: str
    kind: str
    """`ours`, `peer` (as its documentation has it), `fed` (with our decoder), `limit`."""
    loader: str = ""
    decoder: str | None = None
    scale: str = "off"


def contestants() -> list[Contestant]:
    """Every loader that is known at this moment, the limit, and torchvision's own pipeline."""
    found = [
        Contestant(LIMIT, "limit", scale="auto"),
        Contestant("limit, in processes", "limit", scale="auto"),
        Contestant("limit + resize", "limit", scale="auto"),
        Contestant(FULL_LIMIT, "limit"),
        Contestant(OURS, "ours", "threaded", "libjpeg", "auto"),
        Contestant(DEFAULTS, "ours", "threaded", "libjpeg"),
        Contestant("threaded turbojpeg", "ours", "threaded", "turbojpeg"),
        Contestant("multiprocess simplejpeg", "peer", "multiprocess", "turbojpeg"),
        Contestant("multiprocess torchvision", "peer", "multiprocess", "torchvision"),
        Contestant("torchvision ImageFolder + DataLoader", "peer"),
    ]
    for name in plugins.LOADERS.names():
        if name in (*NOT_RACED, "threaded"):
            continue
        choice = plugins.loader_choice(name)
        if choice.decoder is None:
            found.append(Contestant(name, "peer", name))
            continue
        kind = "one CPU" if name == "serial" else "peer"
        decoder = choice.decoder.name
        found.append(Contestant(f"{name} {decoder}", kind, name, decoder))
        kind = "one CPU" if name == "serial" else "fed"
        found.append(Contestant(f"{name} libjpeg auto", kind, name, "libjpeg", "auto"))
    return found


# -- in a contestant's process ---------------------------------------------------------------------------


class Limit:
    """Turns of libjpeg-turbo alone."""

    def __init__(self, setting: Setting, contestant: Contestant) -> None:
        from loaderbench.decoders import libjpeg
        from loaderbench.loaders.transform import recipe_of

        images = index_images(setting.dataset)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "limit.c")  # in one file, so that the cache of builds sees a change of either
            source.write_text(libjpeg.SOURCE.read_text() + Path(__file__).with_name("limit.c").read_text())
            library = ctypes.CDLL(str(native.build(source, ("jpeg", "m"), libjpeg.FLAGS)))
        self._call = library.lb_limit
        self._call.restype = ctypes.c_double
        data = [Path(path).read_bytes() for path in images.paths()]
        recipe = recipe_of(context_of(setting, DataSet(images), contestant), (setting.input_size,) * 2)
        self._arguments = (
            ctypes.byref(libjpeg.c_recipe(recipe, contestant.scale)), len(data), (ctypes.c_char_p * len(data))(*data),
            (ctypes.c_int64 * len(data))(*map(len, data)), setting.workers, int("processes" in contestant.name),
            int("resize" in contestant.name), ctypes.c_double(setting.seconds),
        )  # fmt: skip

    def turn(self) -> tuple[float, float]:
        """(images/s, CPU seconds an image)"""
        begun_cpu, begun = cpu_s(), time.perf_counter()
        rate: float = self._call(*self._arguments)
        if rate < 0:
            raise LoaderbenchError("an image could not be decoded")
        return rate, (cpu_s() - begun_cpu) / (rate * (time.perf_counter() - begun))


class Stream:
    """Turns of an endless iterator of batches, from one batch's arrival to another's, its queue emptied first."""

    def __init__(self, setting: Setting, batches: Callable[[], Iterator[Any]], has_queue: bool = True) -> None:
        self._setting = setting
        self._batches = batches()
        # Some hold more batches than they are asked to (torchdata eight, not four): one that is ready before the turn
        # begins would count as made in it.
        self._most_ready = setting.workers * (2 * setting.prefetch + 1) if has_queue else 0

    def turn(self) -> tuple[float, float]:
        """(images/s, CPU seconds an image)"""
        setting = self._setting
        workers = setting.workers
        for _ in range(self._most_ready):
            next(self._batches)
        begun_cpu, begun, count = cpu_s(), time.perf_counter(), 0
        while True:
            next(self._batches)
            count += 1
            elapsed = time.perf_counter() - begun
            if elapsed >= setting.seconds and count >= LEAST_BATCHES * workers and count % workers == 0:
                num_images = count * setting.batch_size
                return num_images / elapsed, (cpu_s() - begun_cpu) / num_images


def context_of(setting: Setting, data: DataSet, contestant: Contestant) -> Any:
    from loaderbench.loaders.base import LoaderContext

    return LoaderContext(
        images=data.images, shards=data.shards, batch_size=setting.batch_size,
        workers=0 if contestant.loader == "serial" else setting.workers,
        prefetch=setting.prefetch, decoder=contestant.decoder, input_size=setting.input_size, mode="train",
        output="uint8", seed=0,
        decoder_options={"scale": contestant.scale} if contestant.decoder == "libjpeg" else {},
    )  # fmt: skip


def build(contestant: Contestant, setting: Setting) -> Any:
    if contestant.kind == "limit":
        return Limit(setting, contestant)
    if not contestant.loader:
        from loader_rates import reference  # imports torchvision

        arguments = argparse.Namespace(**vars(setting), output="uint8")
        return Stream(setting, reference(arguments, setting.workers))
    module = plugins.LOADERS.load(contestant.loader)
    data = open_data_set(
        setting.dataset, plugins.LOADERS.find(contestant.loader).traits.format
    )  # says how to convert, where it must be
    context = context_of(setting, data, contestant)
    return Stream(setting, module.build(module.Options(), context).batches, has_queue=contestant.loader != "serial")


def serve(pipe: Connection, contestant: Contestant, setting: Setting) -> None:
    """A contestant's process: ("ready" | "skipped", reason), then what each turn gives."""
    try:
        running = build(contestant, setting)
        running.turn()  # a first one for whatever is set up late
        come_to_rest()
    except (LoaderbenchError, ImportError, OSError, RuntimeError, ValueError, TypeError) as error:
        pipe.send(("skipped", f"{error or type(error).__name__}".splitlines()[0]))
        return
    pipe.send(("ready", ""))
    with contextlib.suppress(EOFError):  # the parent may have been killed
        while pipe.recv():
            try:
                turn = running.turn()
                come_to_rest()
            except LoaderbenchError as error:
                pipe.send(("skipped", str(error)))
            else:
                pipe.send(turn)
    os._exit(0)  # the libraries' own ends take seconds, and nothing is left to save


# -- in the parent ---------------------------------------------------------------------------------------


class Runner:
    """One contestant's process."""

    def __init__(self, contestant: Contestant, setting: Setting) -> None:
        self.contestant = contestant
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=serve, args=(far, contestant, setting))
        self._process.start()
        far.close()
        state, reason = self._answer(START_S)
        self.reason: str | None = None if state == "ready" else reason

    def _answer(self, seconds: float) -> tuple[Any, Any]:
        try:
            if self._pipe.poll(seconds):
                answer: tuple[Any, Any] = self._pipe.recv()
                return answer
        except EOFError:
            self._process.join()
            return "skipped", f"its process ended with {self._process.exitcode}"
        return "skipped", f"no answer within {seconds:g} s"

    def turn(self) -> tuple[float, float] | None:
        """(images/s, CPU seconds an image); None where it failed: `reason` then says why."""
        self._pipe.send(True)
        rate, cpu_s = self._answer(TURN_S)
        if isinstance(rate, str):
            self.reason = cpu_s
            return None
        return rate, cpu_s

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended already
            self._pipe.send(False)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def race(setting: Setting, chosen: list[Contestant], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """{"rates": {name: [images/s of each round]}, "cpu_s": {name: [CPU seconds an image]}, "skipped": […]}."""
    runners, skipped = [], []
    with ThreadPoolExecutor(setting.workers) as starting:
        started = list(starting.map(Runner, chosen, itertools.repeat(setting)))
    for contestant, runner in zip(chosen, started, strict=True):
        if runner.reason is None:
            runners.append(runner)
        else:
            runner.end()
            say(f"  {contestant.name}: skipped: {runner.reason}")
            skipped.append({"name": contestant.name, "reason": runner.reason})
    rates: dict[str, list[float]] = {runner.contestant.name: [] for runner in runners}
    cpu_s: dict[str, list[float]] = {runner.contestant.name: [] for runner in runners}
    try:
        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            for runner in random.Random(number).sample(runners, len(runners)):
                name = runner.contestant.name
                if runner.reason is None and (turn := runner.turn()) is not None:
                    rates[name].append(turn[0])
                    cpu_s[name].append(turn[1])
                if runner.reason is not None and name in rates:
                    say(f"  {name}: given up: {runner.reason}")
                    skipped.append({"name": name, "reason": runner.reason})
                    del rates[name], cpu_s[name]
    finally:
        for runner in runners:
            runner.end()
    return {"rates": rates, "cpu_s": cpu_s, "skipped": skipped}


def ratio(rates: dict[str, list[float]], name: str, other: str) -> Interval:
    """Of the rounds' ratios."""
    return median_interval(np.array(rates[name]) / np.array(rates[other]))


def judge(found: dict[str, Any], chosen: list[Contestant], resolution: int) -> list[dict[str, Any]]:
    """Our fastest loader against the limit, the best peer, and each loader with the same decoder; the one that decodes
    at full size, as users get it, against the limit of that (by CPU time) and against each peer."""
    rates = found["rates"]
    kinds = {one.name: one.kind for one in chosen}
    peers = [name for name in rates if kinds[name] == "peer"]
    pairs = [("limit", OURS, LIMIT)]
    if peers:
        pairs.append(("best peer", OURS, max(peers, key=lambda name: np.median(rates[name]))))
    pairs += [("fed", OURS, name) for name in rates if kinds[name] == "fed"]
    pairs += [("full limit, by CPU", DEFAULTS, FULL_LIMIT), *(("defaults", DEFAULTS, name) for name in peers)]
    rows = []
    for kind, name, other in pairs:
        if name not in rates or other not in rates:
            continue
        by_clock, by_cpu = ratio(rates, name, other), ratio(found["cpu_s"], other, name)
        target = TARGETS[kind].get(resolution)
        rows.append({
            "resolution": resolution, "target_of": kind, "name": name, "against": other,
            **dict(zip(("ratio", "low", "high"), by_clock, strict=True)),
            **dict(zip(("cpu_ratio", "cpu_low", "cpu_high"), by_cpu, strict=True)), "target": target,
            "judged": None if target is None else judged(by_cpu if kind.endswith("CPU") else by_clock, target),
        })  # fmt: skip
    return rows


def show(found: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    rates = found["rates"]
    print(f"\n{'':<40}{'images/s':>9}{'CPU ms/image':>14}{'÷ limit (95 %)':>26}")
    for name in sorted(rates, key=lambda one: -np.median(rates[one])):
        cpu_ms = np.median(found["cpu_s"][name]) * 1000
        line = f"{name:<40}{np.median(rates[name]):>9.0f}{cpu_ms:>14.3f}"
        if LIMIT in rates:
            line += spread(ratio(rates, name, LIMIT)).rjust(26)
        print(line)
    for row in rows:
        verdict = "" if row["target"] is None else f"   ≥ {row['target']:.2f}: {row['judged']}"
        print(
            f"  {row['name']} ÷ {row['against']}: {spread((row['ratio'], row['low'], row['high']))}"
            f"  by CPU {spread((row['cpu_ratio'], row['cpu_low'], row['cpu_high']))}"
            f"  ({row['target_of']}){verdict}"
        )
    if rows and found["skipped"]:
        missing = dict.fromkeys(one["name"].split()[0] for one in found["skipped"])
        print(f"  (the best peer is the best of those that ran: not {', '.join(missing)})")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="a data set with the variants, in place of the generated one")
    parser.add_argument("--res", help="stored resolutions  [default: 256,512,1024,2048; quick: 256,1024]")
    parser.add_argument("--only", help="contestants whose names hold one of these, comma separated; the limit always")
    parser.add_argument("--workers", type=int, default=usable_cpus())
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--batch-size", type=int, help="[default: 64; above 512 pixels 32, above 1024 16]")
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--rounds", type=int, help="[default: 7; quick: 3]")
    parser.add_argument("--seconds", type=float, help="of a turn, at least  [default: 2; quick: 1]")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", help="write all figures to this file, or - for standard output")
    arguments = parser.parse_args()
    quick = arguments.quick
    resolutions = [int(one) for one in (arguments.res or ("256,1024" if quick else "256,512,1024,2048")).split(",")]
    rounds = arguments.rounds or (3 if quick else 7)
    chosen = [
        one
        for one in contestants()
        if arguments.only is None
        or one.name == LIMIT
        or any(part.strip() in one.name for part in arguments.only.split(","))
    ]
    tables, rows = [], []
    with contextlib.redirect_stdout(sys.stderr if arguments.json == "-" else sys.stdout):
        for resolution in resolutions:
            dataset, name = resolve_dataset(arguments.dataset, resolution)
            images = index_images(dataset)
            num_bytes = sum(len(Path(path).read_bytes()) for path in images.paths())  # into the page cache
            batch_size = 64 if resolution <= 512 else 32 if resolution <= 1024 else 16
            setting = Setting(
                dataset, arguments.workers, arguments.prefetch, arguments.batch_size or batch_size,
                arguments.input_size, arguments.seconds or (1.0 if quick else 2.0),
            )  # fmt: skip
            mean_bytes = num_bytes / len(images)
            print(
                f"\n{name}/{resolution}: {len(images)} files of {mean_bytes / 1000:.0f} KB, {setting.workers} workers"
            )
            found = race(setting, chosen, rounds, lambda line: print(line, file=sys.stderr, flush=True))
            judged = judge(found, chosen, resolution)
            show(found, judged)
            rows += judged
            about = {"resolution": resolution, "num_files": len(images), "mean_bytes": mean_bytes}
            about |= {key: value for key, value in vars(setting).items() if key != "dataset"} | {"rounds": rounds}
            tables.append(about | found)
            figures = {"environment": to_json(environment()), "ratios": rows, "tables": tables}
            if arguments.json not in (None, "-"):  # an interrupted run keeps what is finished
                Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
    if arguments.json == "-":
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
