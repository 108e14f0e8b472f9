"""The search over ranks that are not there and whose times are known; then real ones on a small set."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from capacity_facts import STEP_S, even, look_of
from commands import INTERRUPTED, Started, call, run
from made import make_device, rates_probe

from loaderbench.cases.options import CapacityOptions
from loaderbench.cases.study import read_options
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.recording.capacity import CapacityFacts
from loaderbench.recording.facts import Failure
from loaderbench.recording.store import Store
from loaderbench.running.crew import OneFailed
from loaderbench.running.jobs.table import RankOpened, RankRunRequest, Surveyed
from loaderbench.running.supervisor import JobFailed, ProcessDied
from loaderbench.studies import capacity
from loaderbench.studies.capacity import CapacityStudy
from loaderbench.studies.capacity_plan import plan_capacity
from tests.studies.kept import assert_kept, only_study

TOY = """
machine = "toy"
device_name = "toy card"
model = "resnet50"
mode = "train"
precision = "fp32"
input_size = 64
tail_ms = { value = 0.0, label = "assumed", source = "a test" }
link_bytes_per_s = { value = 1e10, label = "assumed", source = "a test" }
[[steps]]
batch_size = 2
duration_ms = { value = 40.0, label = "assumed", source = "a test" }
"""


@pytest.fixture
def device(tmp_path: Path) -> str:
    """An emulated card that takes 50 images/s."""
    (tmp_path / "toy.toml").write_text(TOY)
    return f"emulated:{tmp_path / 'toy.toml'}"


def quiet(line: str, keep: bool) -> None:
    pass


# -- ranks that are not there ------------------------------------------------------------------------------


class Known:
    """Stands for Crew: ranks that share a storage of `storage` ranks' demand."""

    storage = 7.5
    """The truth is ⌊storage ÷ 0.9⌋ = 8."""
    fails: dict[int, JobFailed]
    asked: list[tuple[str, int]]

    def __init__(self, log: Path, on_message: Any, **more: Any) -> None:
        self.num = 0

    def __enter__(self) -> Known:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def grow(self, number: int) -> None:
        self.num = number

    def ask(self, job: Any, requests: Mapping[int, Any]) -> dict[int, Any]:
        type(self).asked.append((job.function, len(requests)))
        match job.function:
            case "open_rank":
                period = round(STEP_S * 1e9)
                return dict.fromkeys(requests, RankOpened(make_device(), period, period))
            case "survey_files":
                return {0: Surveyed(0.0, {"read_bytes": 1}, "a test", None)}
            case "probe_storage":
                return {0: rates_probe(1e6, 1e6, 1e6)}
        return self._looked(requests)

    def _looked(self, requests: Mapping[int, RankRunRequest]) -> dict[int, Any]:
        ranks = len(requests)
        assert [request.rank for request in requests.values()] == list(range(ranks)) and ranks <= self.num
        assert {(request.ranks, request.epoch) for request in requests.values()} == {(ranks, requests[0].epoch)}
        if ranks in type(self).fails:
            raise OneFailed(ranks - 1, type(self).fails[ranks])
        au = min(1.0, self.storage / ranks)
        return dict(enumerate(look_of(even(ranks, STEP_S / au)).parts))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> type[Known]:
    monkeypatch.setattr(capacity, "Crew", Known)
    Known.fails, Known.asked, Known.storage = {}, [], 7.5
    return Known


def study_of(small_set: Path, device: str, results: Path, **asked: Any) -> CapacityStudy:
    given = {"loader": "serial", "workers": 1, "batch_size": 2, "device": device, "precision": "fp32"}
    options = CapacityOptions(**{"max_ranks": 20, **asked})
    plan = plan_capacity(str(small_set / "96"), read_options(given), options)
    return CapacityStudy(plan, Store(results))


def test_the_number_is_found_by_doubling_and_halving(
    small_set: Path, device: str, tmp_path: Path, known: type[Known]
) -> None:
    study, said = study_of(small_set, device, tmp_path / "results"), list[str]()
    study.run(lambda line, keep: said.append(line) if keep else None)
    assert [number for function, number in known.asked if function == "run_rank"] == [1, 2, 4, 8, 16, 12, 10, 9]
    assert sum(number for function, number in known.asked if function == "open_rank") == 16  # each once
    study.store()
    stored = assert_kept(tmp_path / "results", "capacity", num_runs=0)
    assert isinstance(stored.facts, CapacityFacts) and not stored.facts.interrupted
    found = json.loads(call("show", "latest", "--results", tmp_path / "results", "--json", "-").out)
    assert (found["found_ranks"], found["next_ranks"], found["au_target_fraction"]) == (8, 9, 0.9)
    assert [point["ranks"] for point in found["curve"]] == [1, 2, 4, 8, 9, 10, 12, 16]
    assert found["curve"][4]["au_fraction"] == pytest.approx(7.5 / 9)
    assert found["curve"][4]["samples_per_s"]["value"] == pytest.approx(7.5 * 2 / STEP_S)
    assert said[0].startswith("1 rank: AU 100.0 %") and len(said) == 8


def test_a_rank_that_dies_ends_it_by_name_and_what_was_measured_is_kept(
    small_set: Path, device: str, tmp_path: Path, known: type[Known]
) -> None:
    known.fails = {4: ProcessDied(Failure("CaseFailed", "the measuring process was killed by SIGKILL"))}
    study = study_of(small_set, device, tmp_path / "results")
    study.run(quiet)
    assert isinstance(study.error, CaseFailed) and "rank 3 of 4: the measuring process was" in str(study.error)
    found = only_study(tmp_path / "results")
    assert isinstance(found.facts, CapacityFacts) and [look.ranks for look in found.facts.looks] == [1, 2]
    assert found.facts.failure is not None and not found.facts.interrupted


def test_a_failure_before_anything_was_measured_leaves_nothing(
    small_set: Path, device: str, tmp_path: Path, known: type[Known]
) -> None:
    known.fails = {1: JobFailed(Failure("ConfigError", "the files are gone"))}
    study = study_of(small_set, device, tmp_path / "results")
    with pytest.raises(ConfigError, match=r"^the files are gone$"):
        study.run(quiet)
    assert list((tmp_path / "results").glob("*")) == []


def test_an_interrupt_keeps_the_looks(
    small_set: Path, device: str, tmp_path: Path, known: type[Known], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(small_set, device, tmp_path / "results")

    def stopped(self: Known, requests: Any) -> Any:
        if len(requests) == 4:
            raise KeyboardInterrupt
        return looked(self, requests)

    looked = Known._looked
    monkeypatch.setattr(Known, "_looked", stopped)
    with pytest.raises(KeyboardInterrupt):
        study.run(quiet)
    study.store()
    facts = assert_kept(tmp_path / "results", "capacity", num_runs=0).facts
    assert isinstance(facts, CapacityFacts) and facts.interrupted and len(facts.looks) == 2


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--au", "1.5"), "--au must be a fraction between 0 and 1, such as 0.9, not 1.5"),
        (("--max-ranks", "0"), "--max-ranks must be from 1 to 256, not 0"),
        (("--duration", "0"), "--duration must be above 0"),
        (("--steps", "0"), "--steps must be at least 1"),
        (("--barrier", "some"), "--barrier must be one of step, none"),
        (("--device", "cpu"), "use --device emulated, not cpu"),
        (("--device", "emulated:nosuch"), "no device profile 'nosuch'"),
        (("--batch-size", "13", "--max-ranks", "4"), "4 ranks of batch 13 need 52 images"),
        (("--loader", "synthetic"), "--loader synthetic does not read"),
        (("--loader", "webdataset"), "--loader webdataset does not read"),
        (("--cache", "warm"), "--cache warm measures memory"),
        (("--loader", "serial,threaded"), "takes one --loader"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    flags: tuple[str, ...], message: str, small_set: Path, tmp_path: Path
) -> None:
    ended = call(
        "capacity", small_set / "96", "--max-ranks", "2", "--batch-size", "4", *flags, "--results", tmp_path / "r"
    )
    assert (ended.code, len(ended.lines)) == (2, 1) and message in ended.err
    assert list((tmp_path / "r").glob("*")) == []


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    ended = call("capacity", tmp_path / "nowhere", "--results", tmp_path / "r")
    assert (ended.code, len(ended.lines)) == (2, 1) and "neither a folder" in ended.err


# -- real ranks --------------------------------------------------------------------------------------------

FAST = ("--batch-size", "2", "--input-size", "64", "--duration", "0.6", "--precision", "fp32")


def test_real_ranks_from_the_command_to_the_report(small_set: Path, device: str, tmp_path: Path) -> None:
    results, target = tmp_path / "results", tmp_path / "found.json"
    done = run(
        "capacity", small_set / "96", "--device", device, *FAST, "--max-ranks", "2", "--au", "0.05",
        "--results", results, "--json", target, timeout_s=170,
    )  # fmt: skip
    assert (done.code, "It feeds 2 accelerators at AU ≥ 5 %" in done.out) == (0, True), done.err
    found = json.loads(target.read_text())
    assert found["found_ranks"] == 2 and found["demand_samples_per_s"] == pytest.approx(50)
    facts = assert_kept(results, "capacity", num_runs=0).facts
    assert isinstance(facts, CapacityFacts)
    one, two = facts.looks
    assert [len(look.parts) for look in (one, two)] == [1, 2]
    assert [part.num_images for part in two.parts] == [24, 24]  # shards of 48 files
    assert len(two.parts[0].steps) == len(two.parts[1].steps) >= 10  # at a barrier both take as many
    for part in (*one.parts, *two.parts):
        assert (np.diff(part.steps[:, 2]) >= 0).all() and part.cpu is not None and part.cpu.own_s > 0
    report = call("report", "--results", results, "--format", "md", "--out", "-")
    assert report.code == 0 and "How many accelerators 96 feeds" in report.out


@pytest.mark.slow
def test_without_a_barrier_the_ranks_need_not_take_as_many_steps(small_set: Path, device: str, tmp_path: Path) -> None:
    done = run(
        "capacity", small_set / "96", "--device", device, *FAST, "--max-ranks", "2", "--au", "0.05", "--quiet",
        "--barrier", "none", "--loader", "threaded", "--results", tmp_path / "results", timeout_s=170,
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    findings = only_study(tmp_path / "results").findings
    assert findings is not None and findings.curve[-1].waits_at_barrier_fraction == 0.0  # type: ignore[union-attr]


def ranks_of(started: Started) -> list[int]:
    """Pids of the ranks' processes: leaders of a session that are no shell (supervisor.Child, Guard)."""
    started.child()
    leaders = [pid for pid in started.sessions - {started.process.pid} if psutil.pid_exists(pid)]
    return [pid for pid in leaders if psutil.Process(pid).name() != "sh"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_signal_ends_all_ranks_and_what_was_measured_is_kept(
    number: int, small_set: Path, device: str, tmp_path: Path
) -> None:
    """Ctrl-C of the command, or the death of one rank."""
    results = tmp_path / "results"
    with Started(
        "capacity", small_set / "96", "--device", device, *FAST, "--max-ranks", "4", "--au", "0.01", "--steps", "99999",
        "--results", results, "--duration", "1",
    ) as started:  # fmt: skip
        started.wait_for(lambda: list(results.glob("*/study.json")), timeout_s=120)  # a rank alone stops after 4 s
        started.wait_for(lambda: len(ranks_of(started)) >= 2, timeout_s=60)
        if number == signal.SIGINT:
            started.process.send_signal(number)
        else:
            os.kill(max(ranks_of(started)), number)
        ended = started.end(timeout_s=10)
        started.wait_until_gone()
    if number == signal.SIGINT:
        assert ended.code == INTERRUPTED and "measurements finished and are kept" in ended.lines[-1]
    else:
        assert ended.code == 1 and "killed by SIGKILL" in ended.lines[-1] and "rank 1 of 2" in ended.lines[-1]
    assert "Traceback" not in ended.err
    facts = only_study(results).facts
    assert isinstance(facts, CapacityFacts) and len(facts.looks) >= 1
