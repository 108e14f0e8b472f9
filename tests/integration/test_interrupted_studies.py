"""Studies that are interrupted or killed in the middle: what was finished is kept, can be read, and is judged again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import commands
import numpy as np
import psutil
import pytest
from commands import DEVICE, TINY, Started, call
from numpy.typing import NDArray
from pictures import write_tree

from loaderbench.cases.case import PRECISIONS
from loaderbench.machine import usable_cpus
from loaderbench.recording.model_split import SplitFacts
from loaderbench.recording.store import Store
from loaderbench.recording.studies import PrecisionFacts, SelfTestFacts, StudyKind, TuneFacts
from tests.studies.kept import assert_kept
from tests.thinned import thinned

TUNE = ("--loader", "serial,threaded", "--decoder", "pillow", "--workers", "1", "--prefetch", "2", "--budget", "600")


@dataclass(frozen=True)
class Kind:
    """A study that takes long, and how to see that a part of it is finished."""

    arguments: tuple[str | Path, ...]
    finished: str
    """Files of its results folder that are there from then on."""
    num: int = 1

    def reached(self, results: Path) -> Callable[[], bool]:
        return lambda: len(list(results.glob(self.finished))) >= self.num


@pytest.fixture
def kinds(small_set: Path, set_copy: Path) -> dict[str, Kind]:
    fast = ("--res", "96", *TINY, "--repeats", "50", "--arms", "real")
    return {
        "sweep": Kind(("sweep", small_set, "--loader", "serial,synthetic", *fast), "*/run.json", 2),
        "compare": Kind(
            (
                "compare", f"a={small_set}", f"b={set_copy}", "--res", "96", *TINY, "--rounds", "50",
                "--cache", "warm", "--arms", "real", "--loader", "threaded",
            ),
            "*/run.json",
            2,
        ),
        "tune": Kind(("tune", small_set, "--res", "96", *DEVICE, *TUNE, "--quiet"), "*/runs/*/run.json"),
        "precision": Kind(
            (
                "precision", "--device", "cpu", "--model", "lenet", "--input-size", "32", "--steps", "20",
                "--batch-size", "2", "--quiet",
            ),
            "*/study.json",
        ),
        "selftest": Kind(("selftest", "--quick", "--device", "emulated"), "*/runs/*/run.json"),
    }  # fmt: skip


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands put what they do not keep; the self-test's data set is not one of those."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("LOADERBENCH_DATA", str(tmp_path / "data"))
    return folder


STUDIES = ["sweep", "compare", "tune", "precision", pytest.param("selftest", marks=pytest.mark.slow)]
SLOW_STUDIES = ["tune", "precision", "selftest"]
"""Where their being killed is tested: they end as the others do."""


@pytest.mark.parametrize("number", thinned([signal.SIGINT, signal.SIGTERM], 2))
@pytest.mark.parametrize("kind", STUDIES)
def test_an_interrupted_study_keeps_what_was_finished(
    kind: StudyKind, number: int, kinds: dict[str, Kind], temporary: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    with Started(*kinds[kind].arguments, "--results", results) as started:
        started.wait_for(kinds[kind].reached(results), timeout_s=120)
        started.process.send_signal(number)
        ended = started.end()
        assert ended.code == commands.ENDED_BY[number]
        assert "interrupted" in ended.lines[-1] and "Traceback" not in ended.err
        started.wait_until_gone()  # Python's own tracker of semaphores ends when it sees that they are gone
    study = assert_kept(results, kind)
    match study.facts:
        case PrecisionFacts(modes=modes):
            assert modes[0].status == "ok" and modes[0].timing is not None and len(modes) < len(PRECISIONS)
        case TuneFacts():
            assert study.own_runs
        case SelfTestFacts(scenarios=scenarios):
            assert len(study.own_runs) >= len(scenarios)
        case _:
            assert len(study.runs) >= kinds[kind].num
            assert {record["status"] for record in commands.records(results)} <= {"ok", "interrupted"}
    assert list(temporary.glob("pymp-lb-*")) == []


@pytest.mark.skipif(usable_cpus() < 2, reason="two members with a thread each need two CPUs")
def test_an_interrupted_split_keeps_its_times_and_no_member_stays(temporary: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    devices = ("--device", "cpu:1,cpu:1", "--batch-size", "2", "--turns", "100000", "--quiet")
    with Started("model", "split", "lenet", *devices, "--results", results) as started:
        started.wait_for(lambda: list(results.glob("*/study.json")), timeout_s=120)  # the search is done
        assert started.child() is not None
        assert sum(not _is_guard(pid) for pid in started.sessions) == 3  # the command and its two members
        started.process.send_signal(signal.SIGINT)
        ended = started.end()
        assert ended.code == commands.INTERRUPTED
        assert "times and" in ended.lines[-1] and "Traceback" not in ended.err
        started.wait_until_gone()
    facts = assert_kept(results, "model_split", num_runs=0).facts
    assert isinstance(facts, SplitFacts) and facts.interrupted and facts.failure is None and facts.times
    assert list(temporary.glob("loaderbench-*")) == []


def _is_guard(pid: int) -> bool:
    """The shell that removes what a killed process leaves behind."""
    return psutil.Process(pid).name() == "sh"


@pytest.mark.parametrize("kind", [*STUDIES[:2], *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_STUDIES)])
def test_a_killed_study_leaves_what_loads_or_is_named(
    kind: StudyKind, kinds: dict[str, Kind], temporary: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    with Started(*kinds[kind].arguments, "--results", results) as started:
        started.wait_for(kinds[kind].reached(results), timeout_s=120)
        started.process.kill()
        started.end()
    stores = [Store(results), *(Store(folder) for folder in results.glob("*/runs"))]
    runs = [run for store in stores for run in store.runs()]
    assert {run.status for run in runs} <= {"ok", "crashed"}
    assert sum(run.status == "ok" for run in runs) >= (0 if kind == "precision" else kinds[kind].num)
    for run in runs:
        assert (run.record is None) == (run.status == "crashed")
    listed = call("list", "--results", results)
    assert (listed.code, listed.err) == (0, "")
    for run in Store(results).runs():
        if run.status == "crashed":
            assert f"{run.run_id}: process" in " ".join(listed.out.split()).replace("- ", "-")
            shown = call("show", run.run_id, "--results", results)
            assert (shown.code, len(shown.lines)) == (2, 1) and "ended before the result was written" in shown.err
    # whatever is whole is judged again, the runs of its study among them
    every = call("analyze", "--all", "--results", results, "--quiet", "--json", "-")
    judged = json.loads(every.out)
    assert (every.code, every.err) == (0, "") and all(one["reproduced"] for one in judged)
    assert {run.run_id for run in runs if run.status == "ok"} <= {one["name"] for one in judged}
    if kind != "sweep":  # whose study is stored behind its last run
        (stored,) = Store(results).studies()
        assert stored.problem is None and stored.study is not None
        shown = call("show", stored.study_id, "--results", results)
        assert (shown.code, shown.err) == (0, "")
    # and what lies elsewhere is no result
    assert not [path for path in temporary.rglob("*") if path.suffix in (".json", ".npz", ".jsonl")]


@pytest.mark.alone  # beside others a run may be undetermined, and advise nothing
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_run_whose_advice_is_being_verified_keeps_its_record(
    number: int, photographs: list[NDArray[np.uint8]], temporary: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    # Decoding takes several times the device's step: a verdict on a busy machine too; without one nothing is advised.
    large = tmp_path / "large"
    write_tree(large / "400", photographs, [(400, 400)] * 24)
    options = ("--res", "400", *DEVICE, "--loader", "serial", "--cache", "warm", "--verify")
    enough = ("--steps", "30", "--duration", "6")
    with Started("run", large, *options, *enough, "--quiet", "--results", results) as started:
        started.wait_for(lambda: commands.records(results))
        started.wait_for(lambda: list(temporary.glob("pymp-lb-*/worker.log")))
        started.process.send_signal(number)
        ended = started.end()
        assert ended.code == -number and "Traceback" not in ended.err
    (record,) = commands.records(results)
    assert record["status"] == "ok" and record["throughput"]["value"] > 0
    again = call("analyze", "latest", "--results", results)
    assert again.code == 0 and "reproduced exactly" in " ".join(again.out.split())
    assert not [path for path in temporary.rglob("*") if path.suffix in (".json", ".npz")]
