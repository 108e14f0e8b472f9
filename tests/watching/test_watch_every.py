"""`watch --every`: what a script leaves that cannot say goodbye."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loaderbench.recording.store import Store, StoredRun, load_run
from loaderbench.studies import watch_writing
from loaderbench.studies.watch_writing import Writing
from tests.watching.test_watch_command import loaderbench, python, watched

SCRIPT = """
import os, signal, sys, time
from torch.utils.data import DataLoader

class Numbers:
    def __init__(self, num): self.num = num
    def __len__(self): return self.num
    def __getitem__(self, index): return index

taken = 0
for epoch in range({epochs}):
    for batch in DataLoader(Numbers(4 * {steps}), 4, num_workers={workers}):
        taken += 1
        time.sleep(0.004)
        print(taken, flush=True)
{end}
"""


def written(folder: Path, *, steps: int = 1000, epochs: int = 1, workers: int = 2, end: str = "") -> Path:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(steps=steps, epochs=epochs, workers=workers, end=end))
    return script


def only_run(folder: Path) -> StoredRun:
    (found,) = Store(folder / "results").runs()
    return found


def lines_of_list(folder: Path) -> str:
    return " ".join(loaderbench("list", "--results", "results", folder=folder).out.split())


@pytest.mark.slow
def test_a_killed_script_leaves_what_was_seen_whole(tmp_path: Path) -> None:
    # given a script of 6 s that is stored each second
    command = [sys.executable, "-m", "loaderbench", "watch", "--every", "1", "--results", str(tmp_path / "results")]
    seen: list[StoredRun] = []
    with subprocess.Popen([*command, str(written(tmp_path, steps=1500))], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            # when it is looked at while it goes on, and killed behind 900 steps: 3.6 s, without a word
            if int(line) % 50 == 0:
                seen += [run for run in Store(tmp_path / "results").runs() if run.record is not None]
            if int(line) == 900:
                process.kill()
    assert process.wait() == -signal.SIGKILL
    # then all that was ever there was whole, of one run, and went on growing
    last = only_run(tmp_path)
    assert last.record is not None and last.record.watched is not None and last.record.num_steps is not None
    steps = [run.record.num_steps for run in seen if run.record is not None]
    assert {run.run_id for run in seen} == {last.run_id} and steps == sorted(steps) and len(set(steps)) > 1
    # and the record says how far it is
    assert last.record.so_far_s is not None and 1.0 < last.record.so_far_s < 30.0
    assert 100 < last.record.num_steps < last.record.watched.loaders[0].num_batches <= 900
    codes = [caveat.code for caveat in last.record.caveats]
    assert "watched_so_far" in codes and last.problem is not None and "before the run ended" in last.problem
    assert "ended before the result was written" in lines_of_list(tmp_path)
    # and its facts give its record
    run = load_run(last.path)
    assert run.recording is not None and run.recording.facts.watched is not None
    assert run.recording.facts.watched.cost is not None and run.recording.facts.watched.cost.num_writes >= 1
    shown = loaderbench("analyze", "latest", "--results", "results", folder=tmp_path)
    assert shown.code == 0, shown.err
    left = sorted(path.name for path in last.path.iterdir() if not path.name.startswith("."))
    assert [name for name in left if name.startswith("arrays")] in ([f"arrays-{number}.npz"] for number in range(1, 40))


def test_a_script_that_ends_leaves_one_run_that_had_ended(tmp_path: Path) -> None:
    bare = python(written(tmp_path, steps=400), folder=tmp_path)
    seen = watched("--every", "1", tmp_path / "train.py", folder=tmp_path)
    assert (seen.code, seen.out) == (0, bare.out), seen.err
    run = only_run(tmp_path)
    assert run.problem is None and run.record is not None and run.record.so_far_s is None
    assert run.record.watched is not None and run.record.watched.loaders[0].num_batches == 400
    cost = run.record.watched.cost
    assert cost is not None and cost.num_writes >= 1 and cost.longest_write_s > 0
    assert run.record.overhead_fraction is not None and run.record.overhead_fraction < 0.3  # of some seconds
    whole = loaderbench("show", "latest", "--all", "--results", "results", folder=tmp_path)
    assert "watching took at most" in whole.out
    assert sorted(path.name for path in run.path.iterdir()) == ["arrays.npz", "case.json", "facts.json", "run.json"]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, marks=pytest.mark.slow),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_a_hard_crash_leaves_the_last_write(tmp_path: Path, end: str, code: int) -> None:
    seen = watched("--every", "1", written(tmp_path, steps=500, end=f"time.sleep(1); {end}"), folder=tmp_path)
    assert seen.code == code
    record = only_run(tmp_path).record
    assert record is not None and record.so_far_s is not None and record.verdict is not None


@pytest.mark.slow
def test_workers_of_each_epoch_are_forked_while_it_is_stored(tmp_path: Path) -> None:
    # 20 epochs of 0.2 s, each with workers of its own, and a write as often as may be
    script = written(tmp_path, steps=30, epochs=25)
    seen = watched("--every", "1", script, folder=tmp_path)
    assert seen.code == 0, seen.err
    assert [int(line) for line in seen.out.splitlines()] == list(range(1, 751))


@pytest.mark.slow
def test_what_cannot_be_stored_meanwhile_is_said_and_the_script_goes_on(tmp_path: Path) -> None:
    # given a script whose results folder cannot be made any more
    script = written(tmp_path, steps=450)
    script.write_text(f"open('results', 'w').close()\n{script.read_text()}")
    seen = watched("--every", "1", "--results", "results", script, folder=tmp_path)
    # then the script's own output is whole, and the end says why nothing is stored
    assert [int(line) for line in seen.out.splitlines()] == list(range(1, 451))
    assert "cannot write results" in seen.err and "Traceback" not in seen.err


@pytest.mark.parametrize(
    ("every_s", "at"),
    [
        (600.0, [30, 90, 210, 450, 930, 1530, 2130]),  # distances 30, 60, 120, 240, 480, 600, 600
        (45.0, [30, 75, 120]),
        (2.0, [2, 4, 6]),
    ],
)
def test_a_run_is_stored_soon_after_its_start_and_then_less_and_less_often(
    every_s: float, at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0
    monkeypatch.setattr(watch_writing, "time", SimpleNamespace(perf_counter_ns=lambda: now_s * 10**9))
    watcher: Any = SimpleNamespace(begun_ns=0, closes_by_ns=0, so_far=lambda: None)
    writing, began = Writing(Store("unused"), every_s, lambda _: None, watcher), []
    thread: Any = SimpleNamespace(is_free=True, begin=lambda *_: began.append(now_s))
    monkeypatch.setattr(writing, "_thread", thread)
    while len(began) < len(at):
        assert watcher.closes_by_ns == at[len(began)] * 10**9  # windows end there
        now_s += 1
        writing.tick(watcher)
    assert began == at


@pytest.mark.parametrize("every", ["0.2", "-1", "nan"])
def test_too_often_is_refused(tmp_path: Path, every: str) -> None:
    seen = watched("--every", every, written(tmp_path), folder=tmp_path)
    assert seen.code == 2 and "too often" in seen.err


def test_never_leaves_nothing_of_a_killed_script(tmp_path: Path) -> None:
    script = written(tmp_path, steps=400, end="os.kill(os.getpid(), signal.SIGKILL)")
    assert watched("--every", "0", script, folder=tmp_path).code == -signal.SIGKILL
    assert not Store(tmp_path / "results").runs()
