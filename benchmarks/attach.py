"""Is `attach` right? Training scripts with a built-in cause are started and looked at from outside at a random time.

    python benchmarks/attach.py [--causes] [--only CASE,…] [--seconds 20] [--rounds 1] [--json FILE]
    python benchmarks/attach.py --cost [--workers 8] [--rounds 12] [--seconds 8]

`--causes` takes the scripts that `watch` is asked about (benchmarks/watched/causes) in place of this file's own. Each
case is looked at with three grades of rights at once: with names of functions, with calls alone
(/proc/PID/syscall), and with neither, as where ptrace is not permitted. The true gain is that of the same script
without the cause, by its own stopwatch, in rounds of both; the true rate is the stopwatch's in the time of the looks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from turns import median_interval, spread
from watch_causes import Built, run, scripts

from loaderbench.attach.facts import JobFacts
from loaderbench.attach.find import process_of
from loaderbench.attach.judge import judge_job
from loaderbench.attach.measure import Job, watch_jobs
from loaderbench.errors import UnavailableError
from loaderbench.selftest.disturbers import Disturber, neighbours, quota
from loaderbench.selftest.slow_fuse import slow_fuse

SCRIPT = Path(__file__).parent / "watched" / "attached.py"
NUM_FILES, FILE_FLOATS = 512, 4096
START_S = 90.0
GRADES = ("names", "calls", "few")
FIXED_S = 8.0
PREP = "prep"
CLEAR = 1.2
"""True gain from which on a case counts."""


@dataclass(frozen=True)
class Case:
    """One built-in cause."""

    cause: str
    """Of the script."""
    right: tuple[str, ...]
    """Bottlenecks that are right."""
    details: tuple[str | None, ...]
    flags: tuple[str, ...] = ()
    outside: str = ""
    """What is slow outside of the script."""
    may_be_open: tuple[str, ...] = ()
    """Grades that cannot say it: undetermined is right there."""


CASES = {
    "storage-open": Case("none", ("storage",), ("latency",), ("--step-ms", "10"), "open"),
    "storage-open-4": Case("none", ("storage",), ("latency",), ("--workers", "4"), "open"),
    "storage-read": Case("none", ("storage",), ("latency", "bandwidth"), (), "read"),
    "storage-pinned": Case("none", ("storage",), ("latency",), ("--pin",), "open"),
    "storage-main": Case("none", ("storage",), ("latency",), ("--workers", "0"), "open"),
    "faults": Case("faults", ("storage",), ("latency",), (), "read"),
    "socket": Case("socket", ("storage",), ("connections",), (), "server"),
    "network": Case("network", (PREP,), ("network",), (), "server"),
    "decode": Case("decode", (PREP,), ("dataset_code", "decode", None), ("--ms", "30")),
    "decode-4": Case("decode", (PREP,), ("dataset_code", "decode", None), ("--ms", "30", "--workers", "4")),
    "collate": Case("collate", (PREP,), ("collate", None), ("--ms", "30")),
    "sleep": Case("sleep", (PREP,), ("sleep",)),
    "sleep-4": Case("sleep", (PREP,), ("sleep",), ("--workers", "4")),
    "lock": Case("lock", (PREP,), ("lock",)),
    "lock-4": Case("lock", (PREP,), ("lock",), ("--workers", "4", "--ms", "60")),
    "sampler": Case("sampler", (PREP,), ("sampler",), ("--ms", "30"), may_be_open=("calls", "few")),
    "delivery": Case("delivery", (PREP,), ("delivery",), ("--ms", "100")),
    "one-worker": Case("one_worker", (PREP,), ("one_worker",)),
    "order": Case("order", (PREP,), ("order", "one_worker", "sleep"), ("--workers", "4", "--ms", "20")),
    "compute": Case("compute", ("compute",), ("step",)),
    "compute-pinned": Case("compute", ("compute",), ("step",), ("--pin",)),
    "issue": Case("issue", ("compute",), ("step",), may_be_open=("calls", "few")),
    "neighbours": Case("decode", ("contention",), ("neighbours",), ("--ms", "7", "--fix-nothing"), "neighbours"),
    "quota": Case("decode", ("contention",), ("quota",), ("--ms", "7", "--fix-nothing"), "quota"),
    "threads": Case("threads", (PREP, "contention"), ("own_threads", "dataset_code", None), ("--ms", "30")),
    "affinity": Case("decode", ("contention",), ("affinity", "neighbours"), ("--ms", "7", "--fix-nothing"), "affinity"),
}  # fmt: skip


@contextmanager
def slow_server() -> Iterator[int]:
    """The port of a server that answers each request after the time that it names, 64 KiB or 16 bytes."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client:
            while len(asked := client.recv(5)) == 5:
                time.sleep(int.from_bytes(asked[1:], "little") / 1e6)
                client.sendall(bytes(65536 if asked[:1] == b"s" else 16))

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()


@contextmanager
def started(case: Case, data: Path, folder: Path, *, fixed: bool, seconds: float) -> Iterator[tuple[int, Path]]:
    """(PID of the script, its stopwatch's log) once it trains."""
    log = folder / f"log-{time.monotonic_ns()}"
    with ExitStack() as stack:
        prefix: list[str] = []
        disturber: Disturber | None = None
        flags = [flag for flag in case.flags if flag != "--fix-nothing"]
        if fixed and "--fix-nothing" not in case.flags:
            flags.append("--fix")
        if case.outside in ("open", "read") and not fixed:
            slow_s = 0.04 / 8 * (2 if case.outside == "open" else 1.5)
            slow = {"open_latency_s": slow_s} if case.outside == "open" else {"latency_s": slow_s}
            data = Path(stack.enter_context(slow_fuse(data, **slow)).path)
        elif case.outside == "server":
            flags += ["--port", str(stack.enter_context(slow_server()))]
        elif case.outside == "neighbours" and not fixed:
            disturber = stack.enter_context(neighbours(8))
        elif case.outside == "quota" and not fixed:
            disturber = stack.enter_context(quota(0.5))
        elif case.outside == "affinity" and not fixed:
            prefix = ["taskset", "-c", "0"]
        if disturber is not None:  # from when the script trains
            disturber.turn(on=False)
            prefix = disturber.command_prefix
        command = [*prefix, sys.executable, str(SCRIPT), str(data), str(log), "--cause", case.cause,
                   "--seconds", str(seconds), *flags]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + START_S
            while len(lines_of(log)) < 5:
                if process.poll() is not None or time.monotonic() > end:
                    raise UnavailableError(f"the script of {case.cause} did not begin to train")
                time.sleep(0.1)
            if disturber is not None:
                disturber.turn(on=True)
            yield process.pid, log
        finally:
            process.kill()
            process.wait()


def lines_of(log: Path) -> list[tuple[float, int, str]]:
    if not log.exists():
        return []
    rows = [line.split() for line in log.read_text().splitlines()]
    return [(float(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]


def rate_in(log: Path, begin: float, end: float) -> float:
    """Steps a second by the stopwatch, between these times."""
    rows = [(at, steps) for at, steps, _ in lines_of(log) if begin <= at <= end]
    return (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0]) if len(rows) > 1 else float("nan")


def ask(name: str, case: Case, data: Path, folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Look at the case, and time it with and without its cause."""
    gains, rates = [], []
    said: dict[str, dict[str, Any]] = {}
    for turn in range(rounds):
        with started(case, data, folder, fixed=False, seconds=seconds + 60) as (pid, log):
            facts, begin, end = look(pid, seconds)
            rate = rate_in(log, begin, end)
        with started(case, data, folder, fixed=True, seconds=60) as (_, log):
            time.sleep(FIXED_S)
            now = time.monotonic()
            without = rate_in(log, now - FIXED_S, now)
        gains.append(without / rate)
        rates.append(rate)
        if turn == 0:
            said = {grade: judged(case, grade, one, rate) for grade, one in facts.items()}
    return row(name, case.right, gains, rates[0], said)


def look(pid: int, seconds: float) -> tuple[dict[str, JobFacts], float, float]:
    """(grade of rights → what was seen with it, when the looks began, when they ended), from a random time on."""
    time.sleep(random.uniform(0.5, 3.0))
    process = process_of(pid)
    assert process is not None
    jobs = {
        "names": Job(process), "calls": Job(process, with_names=False),
        "few": Job(process, with_names=False, with_calls=False),
    }  # fmt: skip
    begin = time.monotonic()
    watch_jobs([*jobs.values()], seconds, lambda part, looked: None)
    end = time.monotonic()
    facts = {grade: job.facts() for grade, job in jobs.items()}
    for job in jobs.values():
        job.close()
    return facts, begin, end


def row(
    name: str, right: Sequence[str], gains: list[float], rate: float, said: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    gain = statistics.median(gains)
    for one in said.values():
        bounds = one["bounds"]
        is_same = bounds is not None and one["detail_right"]  # without the detail they are of another removal
        one["holds"] = bounds[0] * 0.95 <= gain <= bounds[1] * 1.05 if is_same else None
    return {"name": name, "right": list(right), "gain": gain, "gains": gains, "rate": rate, "said": said}


def ask_script(built: Built, seconds: float, rounds: int) -> dict[str, Any]:
    """Look at a script of `watch`'s benchmark; its own stopwatch says what it takes with its cause and without."""
    case = Case("", (built.cause,), (built.detail,), may_be_open=("calls", "few"))
    command = [sys.executable, str(built.path)]
    gains = []
    for turn in range(rounds):
        took = {fixed: run(command, fixed=fixed)["seconds_per_step"] for fixed in (turn % 2 == 0, turn % 2 == 1)}
        gains.append(took[False] / took[True])
    with tempfile.TemporaryDirectory(prefix="loaderbench-attach-") as folder:
        begun = Path(folder, "begun")
        environment = {**os.environ, "FIX": "", "SECONDS": str(seconds + 60), "BEGUN": str(begun)}
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=built.path.parent, env=environment
        )
        try:
            end = time.monotonic() + START_S
            while not begun.exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise UnavailableError(f"{built.path.stem} did not begin to train")
                time.sleep(0.1)
            facts, _, _ = look(process.pid, seconds)
        finally:
            process.kill()
            process.wait()
    said = {grade: judged(case, grade, one, 1.0 / took[False]) for grade, one in facts.items()}
    return row(built.path.stem, case.right, gains, 1.0 / took[False], said)


def judged(case: Case, grade: str, facts: Any, rate: float) -> dict[str, Any]:
    found = judge_job(facts)
    verdict = found.verdict
    gain = next((one for cause, one in verdict.speedup_if_removed.items() if cause == verdict.bottleneck), None)
    right = verdict.bottleneck in case.right
    if verdict.bottleneck in ("undetermined", "mixed"):
        outcome = "open" if grade in case.may_be_open else "undetermined"
    else:
        outcome = "right" if right else "WRONG"
    counted = found.steps_per_s
    return {
        "outcome": outcome, "said": verdict.bottleneck, "detail": verdict.cause_detail,
        "detail_right": right and verdict.cause_detail in case.details,
        "detail_wrong": right and verdict.cause_detail not in (*case.details, None),
        "bounds": None if gain is None else (gain.low or 1.0, float("inf") if gain.high is None else gain.high),
        "looks": len(np.unique(facts.samples.time_s)),
        "rate_error": None if counted is None else counted.value / rate - 1.0, "evidence": verdict.evidence,
        "summary": verdict.summary, "states": verdict.where and [
            (one.role, one.state, round(one.fraction, 2), one.what, one.function) for one in verdict.where
        ],
    }  # fmt: skip


def cost(data: Path, folder: Path, workers: int, seconds: float, rounds: int) -> dict[str, Any]:
    """What being looked at costs a job, in turns of one run: its time and its processor time a step, looked at ÷ not;
    and what looking takes of a processor."""
    case = Case("decode", (), (), ("--ms", "8", "--workers", str(workers)))
    walls, cpus, own = [], [], []
    with started(case, data, folder, fixed=False, seconds=2 * rounds * (seconds + 3) + 60) as (pid, log):
        for number in range(rounds):
            took: dict[bool, tuple[float, float]] = {}
            for looked_at in (number % 2 == 0, number % 2 == 1):
                time.sleep(1.0)
                process = process_of(pid)
                assert process is not None
                job = Job(process) if looked_at else None
                begin, before = time.monotonic(), cpu_of(pid)
                if job is not None:
                    looked = watch_jobs([job], seconds, lambda part, looked: None)
                    own.append(looked.cpu_s / looked.wall_s)
                    job.close()
                else:
                    time.sleep(seconds)
                used, end = cpu_of(pid) - before, time.monotonic()
                rate = rate_in(log, begin, end)
                took[looked_at] = (1.0 / rate, used / (end - begin) / rate)
            walls.append(took[True][0] / took[False][0])
            cpus.append(took[True][1] / took[False][1])
    found = {"step": median_interval(walls), "processor time a step": median_interval(cpus)}
    for name, ratio in found.items():
        print(f"{name}, looked at ÷ not: {spread(ratio)}")
    print(f"looking takes {statistics.median(own):.2%} of one processor, {workers} workers")
    return {"workers": workers, "rounds": rounds, **found, "cores": own}


def cpu_of(pid: int) -> float:
    """CPU seconds of a job and its workers so far (schedstat of all threads)."""
    pids = [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]
    threads = [thread for one in pids for thread in Path(f"/proc/{one}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def line(row: dict[str, Any]) -> str:
    parts = []
    for grade, one in row["said"].items():
        bounds = "" if one["bounds"] is None else f" {one['bounds'][0]:.2f}–{one['bounds'][1]:.2f}"
        holds = {None: "", True: "", False: " OUT"}[one["holds"]]
        rate = "" if one["rate_error"] is None else f" {one['rate_error']:+.1%}"
        parts.append(f"{grade}: {one['outcome']} {one['said']}/{one['detail']}{bounds}{holds}{rate} ({one['looks']})")
    return f"{row['name']:16s} true {row['gain']:5.2f}×  " + " | ".join(parts)


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    clear = [row for row in rows if "compute" in row["right"] or row["gain"] >= CLEAR]
    for grade in GRADES:
        said = [row["said"][grade] for row in clear]
        named = [one for one in said if one["outcome"] == "right"]
        found[grade] = {
            "cases": len(said), "right": len(named), "detail_right": sum(one["detail_right"] for one in named),
            "detail_wrong": sum(one["detail_wrong"] for one in named),
            "wrong": sum(one["outcome"] == "WRONG" for one in said),
            "open": sum(one["outcome"] == "open" for one in said),
            "gain_in_bounds": sum(bool(one["holds"]) for one in named if one["detail"] != "step"),
            "with_bounds": sum(one["holds"] is not None for one in named if one["detail"] != "step"),
        }  # fmt: skip
    return found


def make_data(folder: Path) -> Path:
    folder.mkdir()
    values = np.random.default_rng(0)
    for number in range(NUM_FILES):
        (folder / f"{number:05d}.bin").write_bytes(values.standard_normal(FILE_FLOATS, dtype=np.float32).tobytes())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="cases, or beginnings of their names, comma separated")
    parser.add_argument("--causes", action="store_true", help="the scripts of watch's benchmark in place of these")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--cost", action="store_true", help="what being looked at costs a job")
    parser.add_argument("--workers", type=int, default=8, help="with --cost")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="loaderbench-attach-") as made:
        folder = Path(made)
        data = make_data(folder / "data")
        if options.cost:
            spent = cost(data, folder, options.workers, options.seconds, options.rounds)
            if options.json:
                options.json.write_text(json.dumps(spent, indent=1) + "\n")
            return
        asked: dict[str, Callable[[], dict[str, Any]]] = (
            {one.path.stem: partial(ask_script, one, options.seconds, options.rounds) for one in scripts()}
            if options.causes
            else {name: partial(ask, name, case, data, folder, options.seconds, options.rounds)
                  for name, case in CASES.items()}
        )  # fmt: skip
        for name, question in asked.items():
            if not name.startswith(wanted):
                continue
            try:
                rows.append(question())
                print(line(rows[-1]), flush=True)
            except UnavailableError as error:
                print(f"{name}: left out: {error}", flush=True)
    found = summarize(rows)
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps({"summary": found, "rows": rows}, indent=1, default=str) + "\n")
    if any(one["wrong"] for one in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
