"""Real torchrun, gloo and emulated devices: what is measured, and what happens where a rank is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from loaderbench.recording.store import Store
from loaderbench.selftest.slow_fuse import slow_fuse

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROFILE = """
machine = "toy"
device_name = "toy card"
model = "resnet50"
mode = "train"
precision = "fp32"
input_size = 64
issue_ms = {{ value = 0.1, label = "assumed", source = "a test" }}
tail_ms = {{ value = 0.0, label = "assumed", source = "a test" }}
link_bytes_per_s = {{ value = 5e10, label = "assumed", source = "a test" }}
[[steps]]
batch_size = 4
duration_ms = {{ value = {ms}, label = "assumed", source = "a test" }}
busy_ms = {{ value = {ms}, label = "assumed", source = "a test" }}
"""
ENDS_S = 10.0
"""What the issue allows, from the loss of a rank to the end of the launch."""


@contextmanager
def launched(
    data: Path, folder: Path, *more: str, seconds: float, slow: int | None = None, data_of_1: Path | None = None,
    command: str = "run",
) -> Iterator[Any]:  # fmt: skip
    """`torchrun -m loaderbench run`, 2 ranks. `slow`: a rank whose device takes twice as long. `data_of_1`: what rank 1
    reads."""
    for name, ms in (("even", 40.0), ("slow", 80.0)):
        (folder / f"{name}.toml").write_text(PROFILE.format(ms=ms))
    script = folder / "rank.py"
    script.write_text(
        "import os, runpy, sys\n"
        f"name = 'slow' if os.environ['RANK'] == '{slow}' else 'even'\n"
        f"data = '{data_of_1 or data}' if os.environ['RANK'] == '1' else '{data}'\n"
        f"device = 'emulated:{folder}/' + name + '.toml'\n"
        f"sys.argv = ['loaderbench', '{command}', data, *sys.argv[1:], '--device', device]\n"
        "runpy.run_module('loaderbench', run_name='__main__')\n"
    )
    arguments = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script),
        "--batch-size", "4", "--input-size", "64", "--loader", "serial", "--cache", "as-is", "--no-kernels",
        "--duration", str(seconds), "--results", str(folder / "results"), *more,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield started
    finally:
        if started.poll() is None:
            for process in psutil.Process(started.pid).children(recursive=True):
                process.kill()
            started.kill()
        started.communicate()


def measuring(launch: Any, folder: Path) -> dict[int, tuple[psutil.Process, psutil.Process]]:
    """Rank → (its command, its measuring process), once windows are measured."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = {}
        for one in psutil.Process(launch.pid).children(recursive=True):
            try:
                if "loaderbench.running.child" in one.cmdline():
                    command = one.parent()
                    assert command is not None
                    found[int(command.environ()["RANK"])] = (command, one)
            except psutil.Error:
                continue
        if len(found) == 2:
            time.sleep(6)
            return found
        time.sleep(0.2)
    raise AssertionError("no measuring processes")


def ended(launch: Any, begun: float, pids: list[psutil.Process]) -> str:
    """What the launch said. It must have ended in time, and nothing of it be left."""
    _, said = launch.communicate(timeout=90)
    assert launch.returncode != 0
    spoke = [line for line in said.splitlines() if line.startswith("loaderbench: ")]
    assert len(spoke) == 1, said
    assert time.monotonic() - begun < ENDS_S, said
    until = time.monotonic() + 8
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in pids) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [one for one in pids if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    return spoke[0]


@pytest.mark.alone
def test_a_slow_device_is_named_whether_an_all_reduce_hides_it_or_not(small_set: Path, tmp_path: Path) -> None:
    for number, more in enumerate((["--all-reduce", "1M"], [])):
        folder = tmp_path / str(number)
        folder.mkdir()
        answer = folder / "answer.json"
        with launched(
            small_set / "96", folder, "--arms", "real", *more, "--json", str(answer), seconds=4, slow=1
        ) as launch:
            out, said = launch.communicate(timeout=120)
            assert launch.returncode == 0, said
        (case,) = json.loads(answer.read_text())["cases"]
        part = case["verdict"]["part"]
        assert (case["verdict"]["limited_by"], part["pattern"], part["late_by"], part["rank"]) == (
            "imbalance", "rank", "device", 1,
        )  # fmt: skip
        assert case["imbalance"]["joint"] == bool(more)
        assert case["imbalance"]["step_s"] == pytest.approx(0.080, rel=0.05)
        assert case["imbalance"]["mean_s"] == pytest.approx(0.060, rel=0.05)
        assert "Rank 1" in out
        store = Store(folder / "results")
        assert len(store.runs()) == 2 and [one.study.kind for one in store.studies() if one.study] == ["ranks"]
        assert {run.record.case.subject.shard for run in store.runs() if run.record} == {"0/2", "1/2"}


@pytest.mark.parametrize("victim", ["measuring process", "command"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_ends_the_launch_by_name(
    small_set: Path, tmp_path: Path, victim: str, number: signal.Signals
) -> None:
    with launched(small_set / "96", tmp_path, "--ci-target", "0.00001", seconds=100) as launch:
        ranks = measuring(launch, tmp_path)
        command, child = ranks[1]
        everybody = [one for pair in ranks.values() for one in pair]
        begun = time.monotonic()
        (child if victim == "measuring process" else command).send_signal(number)
        said = ended(launch, begun, everybody)
    assert "rank 1 on " in said and "ended the run" in said


@pytest.mark.bed
@pytest.mark.parametrize("loader", ["serial", "multiprocess"])
def test_a_storage_that_hangs_ends_the_launch_by_name(small_set: Path, tmp_path: Path, loader: str) -> None:
    """Rank 1's alone: no answer is no error."""
    with slow_fuse(small_set / "96") as bed:
        more = ["--ci-target", "0.00001", "--arms", "real", "--cache", "cold", "--loader", loader, "--workers", "1"]
        with launched(small_set / "96", tmp_path, *more, seconds=100, data_of_1=Path(bed.path)) as launch:
            ranks = measuring(launch, tmp_path)
            begun = time.monotonic()
            os.kill(bed.daemon_pid, signal.SIGSTOP)
            said = ended(launch, begun, [one for pair in ranks.values() for one in pair])
    assert "rank 1 on " in said and "does its storage hang?" in said


def ended_well(store: Store) -> set[str]:
    """Ids of the runs that are finished."""
    if not store.root.exists():
        return set()
    return {run.run_id for run in store.runs() if run.record is not None and run.record.status == "ok"}


@pytest.mark.bed
def test_a_storage_that_hangs_leaves_the_finished_cases_of_a_sweep(small_set: Path, tmp_path: Path) -> None:
    """All ranks read it. Once it answers again, --resume measures the rest."""
    store, options = Store(tmp_path / "results"), ("--arms", "real", "--cache", "cold", "--batch-size", "2,4")
    with slow_fuse(small_set / "96") as bed:
        data = Path(bed.path)
        with launched(data, tmp_path, *options, seconds=4, command="sweep") as launch:
            until = time.monotonic() + 90
            while len(ended_well(store)) < 2 and time.monotonic() < until:  # a run a rank
                time.sleep(0.2)
            of_first = bed.bytes_served()
            while bed.bytes_served() == of_first and time.monotonic() < until:
                time.sleep(0.2)
            assert bed.bytes_served() > of_first  # the second case reads
            pids = psutil.Process(launch.pid).children(recursive=True)
            begun = time.monotonic()
            os.kill(bed.daemon_pid, signal.SIGSTOP)
            try:
                said = ended(launch, begun, pids)
            finally:
                os.kill(bed.daemon_pid, signal.SIGCONT)
        assert "does its storage hang?" in said
        before = ended_well(store)
        assert len(before) == 2
        (study,) = [one.study for one in store.studies() if one.study]
        (kept,) = study.facts.cases
        assert kept.case.step.batch_size == 2 and {part.run_id for part in kept.parts} == before
        assert "does its storage hang?" in study.facts.ended.what

        with launched(data, tmp_path, *options, "--resume", seconds=4, command="sweep") as launch:
            _, errors = launch.communicate(timeout=120)
            assert launch.returncode == 0, errors
    assert "already has 1 of 2 cases" in errors
    assert before < ended_well(store) and len(ended_well(store)) == 4


def test_a_data_set_that_vanishes_ends_the_launch_by_name(small_set: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(small_set / "96", data)
    with launched(data, tmp_path, "--ci-target", "0.00001", "--arms", "real", seconds=100) as launch:
        ranks = measuring(launch, tmp_path)
        begun = time.monotonic()
        shutil.rmtree(data)
        said = ended(launch, begun, [one for pair in ranks.values() for one in pair])
    assert "ended the run: cannot read" in said


def test_an_interrupted_sweep_keeps_its_cases_and_resumes(small_set: Path, tmp_path: Path) -> None:
    """As at a terminal: Ctrl-C goes to torchrun, which hands it on, while the second of two cases is measured."""
    store, options = Store(tmp_path / "results"), ("--arms", "real", "--batch-size", "2,4")

    def first_ended() -> bool:
        return any(run.record is not None and run.record.status == "ok" for run in store.runs())

    with launched(small_set / "96", tmp_path, *options, seconds=4, command="sweep") as launch:
        until = time.monotonic() + 90
        while not (store.root.exists() and first_ended()) and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(2)
        ranks = psutil.Process(launch.pid).children(recursive=True)
        begun = time.monotonic()
        launch.send_signal(signal.SIGINT)
        said = ended(launch, begun, ranks)
    assert "1 of 2 cases finished and are kept" in said and "--resume" in said
    before = {run.run_id for run in store.runs() if run.record is not None and run.record.status == "ok"}
    assert len(before) == 2  # a run a rank
    answer = tmp_path / "answer.json"
    with launched(
        small_set / "96", tmp_path, *options, "--resume", "--json", str(answer), seconds=4, command="sweep"
    ) as launch:
        _, errors = launch.communicate(timeout=120)
        assert launch.returncode == 0, errors
    cases = json.loads(answer.read_text())["cases"]
    assert [case["case"]["batch_size"] for case in cases] == [2, 4]
    assert {one["run_id"] for one in cases[0]["ranks"]} == before
    assert not before & {one["run_id"] for one in cases[1]["ranks"]}
    assert "already has 1 of 2 cases" in errors


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--verify"], "loaderbench: --verify works in one process only: run it without the launcher"),
        (["--price", "2/h"], "loaderbench: --price works in one process only: run it without the launcher"),
        (["--loader", "webdataset"], "loaderbench: --loader webdataset reads containers"),
    ],
)
def test_what_ranks_cannot_do_is_refused_in_one_line(
    small_set: Path, tmp_path: Path, more: list[str], says: str
) -> None:
    with launched(small_set / "96", tmp_path, *more, seconds=4) as launch:
        _, said = launch.communicate(timeout=60)
    assert launch.returncode != 0
    (line,) = [line for line in said.splitlines() if line.startswith("loaderbench: ")]
    assert line.startswith(says)
    assert not (tmp_path / "results").exists()
