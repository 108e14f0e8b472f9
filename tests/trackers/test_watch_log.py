"""What of a watch is logged, and that a tracker's failure leaves the script as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderbench.recording.record import Estimate
from loaderbench.recording.store import Store
from loaderbench.studies import watch_logging
from loaderbench.studies.measure import judged
from loaderbench.studies.watch_logging import WatchLog, page_of_run, summary_of
from loaderbench.studies.watch_writing import Judging
from loaderbench.trackers import tracker
from loaderbench.trackers.tracker import Kind, Library, Point, Summary, Target
from loaderbench.watching.seen import Seen, Source
from loaderbench.watching.watcher import Watcher
from tests.watched_facts import run_of, segment

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Source("DataLoader", "Numbers", 80, 8, 2, 2, "RandomSampler")


class Keeps:
    """Keeps points and summaries."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.summaries: list[Summary] = []

    def point(self, point: Point) -> None:
        self.points.append(point)

    def summarize(self, summary: Summary) -> None:
        self.summaries.append(summary)

    def close(self, *, failed: bool) -> None: ...


class InScript(Library):
    """A library whose runs are objects of the script."""

    def __init__(self) -> None:
        self.run: Keeps | None = Keeps()
        self.hooks: list[Callable[[], None]] = []

    def script_run(self) -> Any:
        return self.run

    def logged(self, run: Any) -> Any:
        return run

    def before_finish(self, run: Any, do: Callable[[], None]) -> None:
        self.hooks.append(do)

    def target_of(self, name: str) -> Target:
        raise AssertionError("the script has a run of its own")

    def open_run(self, target: Target) -> Any:
        raise AssertionError


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> InScript:
    found = InScript()
    monkeypatch.setattr(Kind, "load", lambda self: found)
    monkeypatch.setattr(watch_logging, "POINT_S", 0.0)
    return found


def watching() -> tuple[Watcher, Seen]:
    watcher = Watcher("none")
    seen = watcher.seen[SOURCE] = Seen(SOURCE, None)
    return watcher, seen


def moved(seen: Seen, wait_s: float, step_s: float, batches: int) -> None:
    seen.times_ns["wait"] += round(wait_s * 1e9)
    seen.times_ns["step"] += round(step_s * 1e9)
    seen.num_batches += batches
    seen.num_samples += 8 * batches


def test_points_are_of_the_time_since_the_last_one(library: InScript, tmp_path: Path) -> None:
    watcher, seen = watching()
    log = WatchLog("train.py", Judging("train.py"))
    log.add(["wandb"], watcher)
    moved(seen, 3.0, 1.0, 10)
    log.tick(watcher)
    moved(seen, 1.0, 3.0, 30)
    log.tick(watcher)
    log.end(watcher, None, Store(tmp_path), pytest.fail, failed=False)
    assert library.run is not None
    assert [one.step for one in library.run.points] == [10, 40]
    assert [one.values["waiting_fraction"] for one in library.run.points] == [0.75, 0.25]
    assert [one.values["samples_per_s"] for one in library.run.points] == pytest.approx([20.0, 60.0])


def test_a_trainers_steps_are_the_steps(library: InScript, tmp_path: Path) -> None:
    watcher, seen = watching()
    log = WatchLog("train.py", Judging("train.py"))
    log.add(["wandb"], watcher)
    watcher.optimizer_steps = 5
    moved(seen, 3.0, 1.0, 20)
    log.tick(watcher)
    log.end(watcher, None, Store(tmp_path), pytest.fail, failed=False)
    assert library.run is not None and [one.step for one in library.run.points] == [5]


def test_the_end_has_shares_the_summary_and_the_page(library: InScript, tmp_path: Path) -> None:
    watcher, seen = watching()
    log = WatchLog("train.py", Judging("train.py"))
    log.add(["wandb"], watcher)
    run = run_of(segment(np.full(60, 0.2), np.full(60, 0.1), 2), 2)
    record = judged(run)
    store = Store(tmp_path)
    folder = store.open_run(run.case)
    folder.write_case(run.case)
    record = replace(record, run_id=folder.run_id)
    folder.write_run(replace(run, run_id=folder.run_id))
    folder.write_record(record)
    moved(seen, 3.0, 1.0, 20)
    log.end(watcher, record, store, pytest.fail, failed=False)
    assert library.run is not None
    values = library.run.points[-1].values
    assert record.shares is not None and record.verdict is not None
    for name, share in record.shares.items():
        assert values.get(f"share/{name}") == (None if share is None else share.value)
    assert values["accelerator_utilization_fraction"] == record.accelerator_utilization_fraction
    (summary,) = library.run.summaries
    assert summary.values["verdict"] == record.verdict.bottleneck and summary.values["run_id"] == folder.run_id
    assert summary.page is not None and summary.page.startswith("<!") and record.verdict.summary[:20] in summary.text
    assert tuple(summary.points) == tuple(library.run.points)


def test_a_summary_leaves_out_what_is_unknown() -> None:
    record = judged(run_of(segment(np.full(60, 0.2), np.full(60, 0.1), 2), 2))
    assert record.verdict is not None
    gain = Estimate(2.0, None, 3.0, "ratio", 3, "made up")
    verdict = replace(record.verdict, bottleneck="prep", joint=(), speedup_if_removed={"prep": gain}, advice=())
    values = summary_of(replace(record, verdict=verdict, run_id="")).values
    assert values["gain"] == 2.0 and values["gain_high"] == 3.0
    assert not {"gain_low", "advice", "run_id"} & set(values)


def test_a_run_that_is_not_stored_has_its_page_too() -> None:
    run = run_of(segment(np.full(60, 0.2), np.full(60, 0.1), 2), 2)
    page = page_of_run(run, judged(run))
    assert page is not None and "<svg" in page


def test_a_run_that_the_script_finishes_is_summed_up_before(
    library: InScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(segment(np.full(60, 0.2), np.full(60, 0.1), 2), 2)
    monkeypatch.setattr(watch_logging, "run_of", lambda *given: run)
    watcher, seen = watching()
    log = WatchLog("train.py", Judging("train.py"))
    log.add(["wandb"], watcher)
    moved(seen, 3.0, 1.0, 20)
    log.tick(watcher)
    (finish,) = library.hooks
    finished = library.run
    finish()
    assert finished is not None and len(finished.summaries) == 1 and finished.summaries[0].page is not None
    library.run = None
    moved(seen, 3.0, 1.0, 20)
    log.tick(watcher)
    log.end(watcher, judged(run), Store(tmp_path), pytest.fail, failed=False)
    assert len(finished.summaries) == 1  # and no run of our own was opened


def test_whatever_a_library_raises_reaches_nobody(
    library: InScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(library, "script_run", fails)
    watcher, seen = watching()
    log = WatchLog("train.py", Judging("train.py"))
    log.add(["wandb"], watcher)
    moved(seen, 3.0, 1.0, 20)
    log.tick(watcher)
    said: list[str] = []
    log.end(watcher, None, Store(tmp_path), said.append, failed=False)
    assert said == ["not everything was logged to wandb: RuntimeError: broken"]


SCRIPT = """
import sys, time
from torch.utils.data import DataLoader
print("begins")
for batch in DataLoader(list(range(600)), 4):
    time.sleep(0.004)
print("ends", file=sys.stderr)
sys.exit(3)
"""
RAISES = """
class Run:
    def __getattr__(self, name):
        raise ConnectionError("the server said no")
run = None
def Settings(**given): ...
def init(**given): return Run()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_ends_as_ever_whatever_its_tracker_does(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "wandb.py").write_text(RAISES)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'fake'}"}
    command = [sys.executable, "-m", "loaderbench", "watch"]

    def ended(*options: str) -> subprocess.CompletedProcess[str]:
        words = [*command, *options, "train.py"]
        return subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    bare, logged = ended(), ended("--log-to", "wandb", "--json", "r.json")
    assert (bare.returncode, bare.stdout) == (logged.returncode, logged.stdout) == (3, "begins\n")
    lines = [line for line in logged.stderr.splitlines() if "not everything" in line]
    assert lines == ["loaderbench: not everything was logged to wandb: ConnectionError: the server said no"]
    assert "not everything" not in bare.stderr and json.loads((tmp_path / "r.json").read_text())["status"] == "ok"


def test_every_name_has_its_extra() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one.package for one in tracker.TRACKERS.values()} <= set(extras)
