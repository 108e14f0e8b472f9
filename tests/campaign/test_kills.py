"""Running commands, killed at random moments: nobody is left, every record can be read, no finished case is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

import psutil
import pytest
from commands import DEVICE, TINY, call

from loaderbench.errors import ConfigError
from loaderbench.recording.store import Store, load_run
from tests.campaign.drawn import SEED, TIMES
from tests.campaign.watching import Command, alive, left, send

NUM_KILLS = 84 * TIMES
KILLS_A_TEST = 12
MOST_S = 14.0
"""Seconds after its start up to which a command is killed: it needs about 7 to measure the first case."""
GONE_S = 12.0
SHORT = ("--steps", "6", "--warmup", "2", "--duration", "2", "--arms", "device,real", "--quiet")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def command_lines(small_set: Path, set_copy: Path, random: Random) -> list[object]:
    data, workers = small_set / "96", random.choice(["1", "2"])
    loader = random.choice(["multiprocess", "threaded", "serial"])
    several = ["serial,multiprocess", "threaded,synthetic"][random.randrange(2)]
    return random.choice(
        [
            ["run", data, *DEVICE, "--workers", workers, "--loader", loader, "--duration", "60", "--quiet"],
            ["run", data, *DEVICE, "--workers", workers, "--loader", "multiprocess", *SHORT],
            ["sweep", data, *DEVICE, "--workers", workers, "--loader", several, "--repeats", "3", *SHORT],
            [
                "compare",
                f"a={data}",
                f"b={set_copy / '96'}",
                *DEVICE,
                "--workers",
                workers,
                "--cache",
                "as-is",
                *SHORT,
            ],
            ["tune", data, *DEVICE, "--budget", "60", "--loader", several, "--workers", "1", "--quiet"],
        ]
    )


def victims(command: Command, random: Random) -> tuple[str, list[psutil.Process]]:
    """Who is killed: the command, its measuring process, one of the workers, or all at once."""
    main = psutil.Process(command.process.pid)
    others = [process for process in alive(command.token) if process.pid != main.pid]
    kind = random.choice(["command", "command", "measuring process", "worker", "all", "stopped, then the command"])
    measuring = [process for process in others if parent(process) == main.pid and is_measuring(process)]
    workers = [process for process in others if parent(process) in {one.pid for one in measuring}]
    if kind == "all":
        return kind, [main, *others]
    if kind == "stopped, then the command":
        for process in (*measuring, *workers):
            send(process, signal.SIGSTOP)
        return kind, [main]
    chosen = {"measuring process": measuring[:1], "worker": workers[:1]}.get(kind, [])
    return (kind, chosen) if chosen else ("command", [main])


def parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


def is_measuring(process: psutil.Process) -> bool:
    try:
        return "loaderbench.running.child" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def finished(results: Path) -> dict[str, bytes]:
    """Run → record, of the cases that ended well."""
    records = {path.parent.name: path.read_bytes() for path in results.glob("*/run.json")}
    return {run: record for run, record in records.items() if json.loads(record)["status"] == "ok"}


def check_store(results: Path, before: dict[str, bytes], what: str) -> None:
    after = finished(results)
    assert {run: after.get(run) for run in before} == before, f"{what}: a finished case was lost or changed"
    for run in Store(results).runs():
        assert run.status in ("ok", "failed", "interrupted", "skipped", "crashed"), (
            f"{what}: {run.run_id} {run.problem}"
        )
        if run.record is not None and run.status == "ok":
            load_run(run.path)
        elif run.record is None:
            try:
                load_run(run.path)
            except ConfigError as error:
                assert "damaged" not in str(error), f"{what}: {error}"
    assert [study.problem for study in Store(results).studies() if study.problem] == [], what


@pytest.mark.parametrize("part", range(NUM_KILLS // KILLS_A_TEST))
def test_a_kill_at_any_moment_leaves_nobody_and_loses_nothing(
    part: int, small_set: Path, set_copy: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("t")
    results, before = tmp_path / "results", dict[str, bytes]()
    for number in range(part * KILLS_A_TEST, (part + 1) * KILLS_A_TEST):
        random = Random(f"{SEED} {number}")
        line = command_lines(small_set, set_copy, random)
        moment, signal_number = random.uniform(0, MOST_S), random.choice([9, 9, 9, signal.SIGTERM, signal.SIGINT, 1])
        command = Command([*line, "--results", results], variables={"TMPDIR": str(temporary)})
        time.sleep(moment)  # the random moment itself, not a wait for something
        before |= finished(results)
        kind = "nobody: it had ended"
        if command.process.poll() is None:
            kind, processes = victims(command, random)
            for process in processes:
                send(process, signal_number)
        what = f"seed {SEED} number {number}: {line[0]}, {kind}, signal {signal_number} after {moment:.1f} s"
        print(what)
        if kind in ("measuring process", "worker"):  # a study goes on with its next case
            time.sleep(5)
            command.process.send_signal(signal.SIGTERM)
        ended = command.end(90)
        assert ended.code is not None, f"{what}: it hung: {ended.told}"
        assert "Traceback" not in ended.err, f"{what}: {ended.told}"
        assert left(command.token, GONE_S) == [], f"{what}: processes are left"
        check_store(results, before, what)
    check_leftovers(results, small_set, temporary)


def check_leftovers(results: Path, small_set: Path, temporary: Path) -> None:
    """The next run removes what killed processes had to leave in memory, and the store serves every command."""
    words = ["run", small_set / "96", *TINY, "--loader", "synthetic", "--results", results]
    after = Command(words, variables={"TMPDIR": str(temporary)}).end(90)
    assert after.code == 0, after.told
    for arguments in (["list"], ["report", "--format", "csv", "--out", "-"]):
        assert call(*arguments, "--results", results).code == 0
    judged = call("analyze", "--all", "--quiet", "--results", results)
    assert (judged.code, judged.err) == (0, "")
    sockets = [path.name for path in temporary.iterdir() if path.name.startswith("pymp-")]
    print(f"left in the temporary folder: {sorted(os.listdir(temporary))}")  # noqa: PTH208
    assert sockets == []
    shutil.rmtree(temporary)
