"""Whatever ends a run: no process left, no copy left in memory, one line that says why, the right exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import commands
import psutil
import pytest
from commands import DEVICE, GONE_S, LONG, TINY, Started

from loaderbench.analysis.caveats import BEHIND_THE_ROUNDS
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.recording.progress import Message, SegmentDone
from loaderbench.recording.store import Store
from loaderbench.reporting.live import Progress
from loaderbench.studies.verify import to_verify


def wait_until_empty(folder: Path) -> None:
    deadline = time.monotonic() + GONE_S
    while os.listdir(folder) and time.monotonic() < deadline:  # noqa: PTH208
        time.sleep(0.05)
    assert os.listdir(folder) == []  # noqa: PTH208


@pytest.mark.parametrize("moment", ["while Python starts", "while torch is imported", "while it measures"])
@pytest.mark.parametrize("number", commands.ENDED_BY)
def test_an_interrupted_run_leaves_nothing(number: int, moment: str, small_set: Path, tmp_path: Path) -> None:
    cold = moment != "while it measures"
    with Started("run", small_set, "--res", "96", *LONG, "--results", tmp_path, cold=cold) as started:
        if moment == "while Python starts":
            started.wait_for(started.takes_signals)
        elif moment == "while torch is imported":
            started.wait_for(started.child)
        else:
            started.wait_for(started.loader_workers)

        started.process.send_signal(number)
        ended = started.end()

        assert ended.code == commands.ENDED_BY[number]
        assert "interrupted" in ended.lines[-1] and "Traceback" not in ended.err
        assert started.alive() == []
        assert started.shared_memory_left() == set()
    assert all(record["status"] == "interrupted" for record in commands.records(tmp_path))


ENDS = {
    "Ctrl-C": (
        lambda child: signal.raise_signal(signal.SIGINT),
        "interrupted", commands.INTERRUPTED, "ended by the user or the system",
    ),
    "death": (
        lambda child: os.kill(child, signal.SIGKILL),
        "failed", 1, "the measuring process was killed by SIGKILL",
    ),
}  # fmt: skip
"""How a run ends in its second round: (what ends it, status, exit code, the reason)."""
PACE_S = 32e-3
"""A step of the emulated device at batch 64: loaderbench/devices/profiles/h200.toml."""


@pytest.mark.parametrize("end", [pytest.param(end, marks=pytest.mark.slow if end == "death" else ()) for end in ENDS])
def test_a_run_that_ends_early_keeps_its_finished_windows(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, status, code, reason = ENDS[end]
    heard, windows = Progress.message, list[int]()

    def ending(view: Progress, case: Case | None, message: Message) -> None:
        heard(view, case, message)
        if isinstance(message, SegmentDone) and message.arm is Arm.REAL:
            windows.append(message.round)
            if message.round == 1:
                (child,) = [one for one in psutil.Process().children() if "loaderbench.running.child" in one.cmdline()]
                ends(child.pid)

    monkeypatch.setattr(Progress, "message", ending)
    monkeypatch.setattr("loaderbench.running.process.subprocess", subprocess)  # a real process, with its name
    asked = ("run", "--loader", "synthetic", *DEVICE, "--batch-size", "64", "--duration", "30", "--ci-target", "0.0001")
    json_file = tmp_path / "run.json"
    ended = commands.call(*asked, "--results", tmp_path / "runs", "--json", json_file)

    assert ended.code == code
    shown = " ".join(ended.out.split())
    assert shown.startswith(f"{status}: {reason}") and "until then: " in shown
    record = json.loads(json_file.read_text())
    (stored,) = Store(tmp_path / "runs").runs()
    assert stored.record is not None and stored.run_id == record["run_id"]
    assert (stored.record.status, stored.record.stopped_by, stored.record.measured) == (status, "interrupted", False)
    assert windows == [0, 1]
    recording = Store(tmp_path / "runs").load_run(str(tmp_path / "runs" / stored.run_id)).recording
    assert recording is not None and [one.round for one in recording.of(Arm.REAL)] in ([0], [0, 1])
    assert len(recording.of(Arm.DEVICE)) == 2  # the first of the second round came before
    # the emulated device's own pace
    assert record["step_time_s"]["mean"] == pytest.approx(PACE_S, rel=0.15)
    codes = {caveat["code"] for caveat in record["caveats"]}
    assert "ended_early" in codes and not codes & {*BEHIND_THE_ROUNDS, "cpu_not_measured"}
    assert end == "Ctrl-C" or not record["verdict"]["advice"]
    assert to_verify(stored.record) == []
    if end == "Ctrl-C":
        assert ended.lines[-1] == f"loaderbench: interrupted: the part measured so far is kept: {stored.run_id}"
    again = commands.call("show", stored.run_id, "--results", tmp_path / "runs")
    assert again.code == 0 and "until then: " in " ".join(again.out.split())


def test_a_second_ctrl_c_only_ends_it_sooner(small_set: Path, tmp_path: Path) -> None:
    with Started("run", small_set, "--res", "96", *LONG, "--results", tmp_path) as started:
        started.wait_for(started.loader_workers)

        for _ in range(4):
            started.process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        ended = started.end()

        assert ended.code == commands.INTERRUPTED
        assert len(ended.lines) == 1
        assert started.alive() == []
        assert started.shared_memory_left() == set()


def test_finished_cases_are_kept_when_the_next_is_interrupted(small_set: Path, tmp_path: Path) -> None:
    study = ("sweep", small_set, "--res", "96,128", "--loader", "multiprocess")
    with Started(*study, *TINY, "--repeats", "20", "--results", tmp_path) as started:
        started.wait_for(lambda: commands.records(tmp_path))

        started.process.send_signal(signal.SIGINT)
        ended = started.end()

        kept = [record["status"] for record in commands.records(tmp_path)]
        num_finished = kept.count("ok")
        assert ended.code == commands.INTERRUPTED
        assert num_finished >= 1
        assert ended.lines[-1] == (
            f"loaderbench: interrupted: {num_finished} of 40 cases finished and are kept; repeat the command with "
            "--resume to measure the rest"
        )
        assert started.alive() == []


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of the commands that the test starts. Its name is short, as those of sockets must
    be."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_a_killed_command_takes_its_processes_with_it(small_set: Path, tmp_path: Path, temporary: Path) -> None:
    with Started("run", small_set, "--res", "96", *LONG, "--results", tmp_path) as started:
        started.wait_for(started.loader_workers)

        started.process.kill()
        started.end()

        started.wait_until_gone()
        assert started.shared_memory_left() == set()
        wait_until_empty(temporary)
    listing = commands.run("list", "--results", tmp_path)
    assert listing.code == 0
    assert "crashed" in listing.out


@pytest.mark.slow
def test_a_command_killed_at_its_start_takes_its_child_with_it(small_set: Path, tmp_path: Path) -> None:
    with Started("run", small_set, "--res", "96", *LONG, "--results", tmp_path, cold=True) as started:
        started.wait_for(started.child)  # it is importing torch now
        started.process.kill()
        started.end()
        started.wait_until_gone()


@pytest.mark.slow
def test_the_copies_that_two_killed_processes_left_go_with_the_next_run(small_set: Path, tmp_path: Path) -> None:
    """One batch may stay where a worker died between torch's naming and unlinking of its memory: with the supervisor
    killed too, nobody is left who knows that this torch_PID file is not another program's."""
    with Started("run", small_set, "--res", "96", *LONG, "--results", tmp_path) as started:
        started.wait_for(started.loader_workers)
        os.kill(started.process.pid, signal.SIGSTOP)  # so that it cannot tidy up after its child
        child = started.child()
        assert child is not None
        assert started.copies_left() != set()  # looked at here: a run of another test may be the next one
        os.kill(child, signal.SIGKILL)
        started.process.kill()
        started.end()
        started.wait_until_gone()

        after = commands.run("run", small_set, "--res", "96", *TINY, "--results", tmp_path)

        assert after.code == 0
        assert started.copies_left() == set()


def test_a_killed_loader_worker_fails_the_case_in_one_line(small_set: Path, tmp_path: Path, temporary: Path) -> None:
    with Started("run", small_set, "--res", "96", *LONG, "--results", tmp_path) as started:
        worker = started.wait_for(started.loader_workers)[0]

        os.kill(worker, signal.SIGKILL)
        ended = started.end()

        assert ended.code == 1
        assert len(ended.lines) == 1
        assert f"(pid {worker}) was killed by signal 9" in ended.lines[0]
        assert started.alive() == []
        assert started.shared_memory_left() == set()
        assert os.listdir(temporary) == []  # noqa: PTH208
    (record,) = commands.records(tmp_path)
    assert record["status"] == "failed"


def test_a_killed_measuring_process_fails_the_case_in_one_line(
    small_set: Path, tmp_path: Path, temporary: Path
) -> None:
    with Started("run", small_set, "--res", "96", *LONG, "--results", tmp_path) as started:
        started.wait_for(started.loader_workers)
        child = started.child()
        assert child is not None

        os.kill(child, signal.SIGKILL)
        ended = started.end()

        assert ended.code == 1
        assert len(ended.lines) == 1
        assert "the measuring process was killed by SIGKILL" in ended.lines[0]
        assert started.alive() == []
        assert started.shared_memory_left() == set()
        assert os.listdir(temporary) == []  # noqa: PTH208


@pytest.mark.parametrize("how", ["removed", "renamed"])
@pytest.mark.parametrize("loader", ["multiprocess", "threaded"])
def test_a_data_set_that_vanishes_fails_the_case_in_one_line(
    loader: str, how: str, small_set: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(small_set, tmp_path / "set")
    with Started(
        "run", own, "--res", "96", *LONG, "--duration", "6", "--loader", loader, "--results", tmp_path / "r"
    ) as started:
        child = started.wait_for(started.child)
        started.wait_for(lambda: any(f"-{child}-" in path.name for path in Path("/dev/shm").iterdir()))

        shutil.rmtree(own) if how == "removed" else own.rename(tmp_path / "elsewhere")
        ended = started.end()

        assert ended.code == 1
        assert len(ended.lines) == 1
        assert f"cannot read {own}" in ended.lines[0] or f"cannot copy {own}" in ended.lines[0]
        assert started.alive() == []
        assert started.shared_memory_left() == set()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_making_of_images_resumes(number: int, tmp_path: Path) -> None:
    make = ("dataset", "make", "--res", "128", "--num-images", "150", "--out", tmp_path / "set")
    with Started(*make) as started:
        started.wait_for(lambda: any(tmp_path.rglob("*.jpg")))

        for _ in range(2):
            started.process.send_signal(number)
            time.sleep(0.05)
        ended = started.end()

        assert ended.code == commands.ENDED_BY[number]
        assert ended.lines[-1] == "loaderbench: interrupted"
        assert "Traceback" not in ended.err
        started.wait_until_gone()
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    assert 0 < len(made) < 150

    again = commands.run(*make)

    assert again.code == 0
    assert len(list(tmp_path.rglob("*.jpg"))) == 150
    assert all(path.stat().st_mtime_ns == then for path, then in made.items())
