"""The offload study: the command with real steps on the CPU and by replay, and made-up processes that fail."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ENDED_BY, INTERRUPTED, Ended, Started, call

from loaderbench.analysis.offload import offload_of
from loaderbench.cases.case import Step
from loaderbench.cases.options import ModelOptions
from loaderbench.offloading import hooks, inference
from loaderbench.offloading.copies import CpuCopier, HostCopy
from loaderbench.offloading.plan import Plan, least_cap, ledger, plan_for
from loaderbench.offloading.search import candidates
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.recording.offload_study import ModelOffload, OffloadFacts, ResultCheck
from loaderbench.recording.store import Store
from loaderbench.running.jobs.table import OffloadRequest
from loaderbench.running.offload_trace import saved_trace
from loaderbench.studies import model_offload as study_module
from loaderbench.studies import offload_runs as runs_module
from loaderbench.studies.model_offload import OffloadStudy
from loaderbench.studies.offload_plan import plan_offload
from loaderbench.studies.offload_runs import TimedRuns
from tests.studies.here import Here
from tests.studies.kept import assert_kept, only_study

BATCH = 64
SLOW_LINK = """
machine = "toy"
device_name = "toy card"
model = "{model}"
mode = "{mode}"
precision = "fp32"
input_size = 28
issue_ms = {{ value = 0.0, label = "assumed", source = "a test" }}
tail_ms = {{ value = 0.0, label = "assumed", source = "a test" }}
link_bytes_per_s = {{ value = 1e9, label = "assumed", source = "a test" }}
memory_bytes = {{ value = 1e9, label = "assumed", source = "a test" }}
[[steps]]
batch_size = 64
duration_ms = {{ value = 6.4, label = "measured", source = "a test" }}
busy_ms = {{ value = 6.4, label = "measured", source = "a test" }}
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> Iterator[type[Here]]:
    """Jobs in this process."""

    class Own(Here):
        pass

    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))
    monkeypatch.setattr(study_module, "Child", Own)
    monkeypatch.setattr(runs_module, "KeptChild", Own)
    yield Own


@cache
def lenet_trace(mode: Any) -> SavedTrace:
    return saved_trace(Step("lenet", mode, "fp32", "cpu", BATCH, 28, channels=1), 0, on_accelerator=False)


@cache
def between(mode: str) -> int:
    """Bytes in which lenet's batch does not fit, but with a part of it on the host."""
    trace = lenet_trace(mode)
    return (ledger(trace, plan_for(trace)).peak_bytes + least_cap(trace)) // 2


def lenet(results: Path, *flags: str, mode: str = "train", memory: int | None = None) -> Ended:
    size = ("--memory", str(between(mode) if memory is None else memory))
    shared = ("--batch-size", str(BATCH), "--device", "cpu", "--steps", "6", "--results", str(results))
    return call("model", "offload", "lenet", "--mode", mode, *shared, *size, *flags)


# -- on the CPU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["train", pytest.param("infer", marks=pytest.mark.slow)])
def test_the_study_runs_below_the_memory_in_which_the_batch_does_not_fit(
    mode: str, tmp_path: Path, here: type[Here]
) -> None:
    results = tmp_path / "results"
    done = lenet(results, "--study", "--json", "-", mode=mode)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["without"]["outcome"] == "out_of_memory" and found["without"]["s_per_image"] is None
    rows = found["thresholds"]
    assert rows[0]["above_bytes"] == 0 and rows[-1]["above_bytes"] is None
    for row in rows:
        # the profiler's memory events know nothing of plans
        assert row["outcome"] == "fits" and 0 < row["peak_live_bytes"] <= between(mode)
        assert row["host_bytes"] > 0 and row["moved_bytes_per_step"] > 0 and row["num_steps"] == 6
        assert row["s_per_image"]["low"] <= row["s_per_image"]["value"] <= row["s_per_image"]["high"]
    fastest = min(rows, key=lambda row: row["s_per_image"]["value"])
    assert (found["best_above_bytes"], found["best_after_fraction"]) == (
        fastest["above_bytes"], fastest["after_fraction"],
    )  # fmt: skip
    # The batch does not fit without offloading, so the smallest one is compared.
    assert (found["best"]["check"]["batch_size"], found["best"]["check"]["difference"]) == (1, 0)
    ratio = found["everything"]["s_per_image"]["value"] / found["batch_one_s_per_image"]
    assert found["everything"]["to_batch_one"]["value"] == pytest.approx(ratio)
    assert "does not fit" in found["answer"][0] and "the time per image of batch 1" in found["answer"][0]
    study = assert_kept(results, "model_offload", num_runs=0)
    facts = study.facts
    assert isinstance(facts, OffloadFacts) and not facts.interrupted and facts.num_rounds == 3
    for one in facts.settings:  # what was moved is what the plan said
        assert one.ledger is not None
        planned = (one.ledger.host_bytes, one.ledger.out_bytes, one.ledger.in_bytes)
        assert {(turn.host_bytes, turn.out_bytes, turn.in_bytes) for turn in one.turns} == {planned}
    assert study.study_id[:19] in call("list", "--results", results).out
    page = tmp_path / "report.html"
    report = call("report", "--results", results, "--out", page)
    text = page.read_text()
    assert report.code == 0 and "<svg" in text and "lenet" in text and "what would not fit" in text


def test_one_setting_runs_beside_the_batch_without_it(tmp_path: Path, here: type[Here]) -> None:
    done = lenet(tmp_path, "--offload-above", "0", "--json", "-", memory=10**8)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    (row,) = found["thresholds"]
    assert found["without"]["outcome"] == row["outcome"] == "fits" and found["best"] is None
    assert row["above_bytes"] == 0 and row["moved_bytes_per_step"] > 0
    assert row["peak_live_bytes"] <= found["without"]["peak_live_bytes"]
    assert "same RAM" in " ".join(done.err.split()) and "fits in 95.4 MiB without offloading" in done.err


def test_nothing_moves_where_the_batch_fits(tmp_path: Path, here: type[Here]) -> None:
    done = lenet(tmp_path, "--json", "-", memory=10**8)
    (row,) = json.loads(done.out)["thresholds"]
    assert (done.code, row["moved_bytes_per_step"], row["host_bytes"]) == (0, 0, 0)
    assert "no tensor moves" in " ".join(done.err.split())


def test_what_no_hook_sees_is_said(tmp_path: Path, here: type[Here]) -> None:
    done = call(
        "model", "offload", "offload_models:unhooked", "--device", "cpu", "--batch-size", "2", "--input-size", "32",
        "--offload-above", "0", "--steps", "6", "--results", tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "Not offloaded" in done.out and "kept" in done.out and "context" in done.out


# -- whether the results are right -----------------------------------------------------------------------


def made_up(name: str, results: Path, *flags: str) -> Ended:
    return call(
        "model", "offload", f"offload_models:{name}", "--device", "cpu", "--batch-size", "2", "--input-size", "32",
        "--offload-above", "0", "--steps", "6", "--results", results, *flags,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_results_of_the_asked_setting_are_those_without_offloading(
    mode: str, tmp_path: Path, here: type[Here]
) -> None:
    done = lenet(tmp_path, "--offload-above", "0", "--json", "-", mode=mode, memory=10**8)
    found = json.loads(done.out)
    (row,) = found["thresholds"]
    tensors = 8 if mode == "train" else 1  # weights and biases of four layers; the logits
    assert row["check"] == {
        "batch_size": BATCH, "num_tensors": tensors, "difference": 0.0, "plain_difference": None,
    }  # fmt: skip
    assert done.code == 0 and found["not_compared"] is None
    assert "were compared with those without offloading: equal to the bit." in " ".join(done.err.split())


def test_a_model_whose_gradients_differ_is_refused(tmp_path: Path, here: type[Here]) -> None:
    done = made_up("rewritten", tmp_path, "--json", "-")
    found = json.loads(done.out)
    (row,) = found["thresholds"]
    assert (done.code, row["outcome"], row["s_per_image"], row["to_batch_one"]) == (1, "failed", None, None)
    assert row["check"]["difference"] > 0.01 and row["check"]["plain_difference"] == 0
    assert found["answer"][1].startswith("Refused, everything on the host: its gradients differ from those without")
    assert "(batch 2; two steps without it are equal)" in found["answer"][1]
    assert_kept(tmp_path, "model_offload", num_runs=0)


def test_steps_that_differ_by_themselves_are_no_fault(tmp_path: Path, here: type[Here]) -> None:
    done = made_up("noisy", tmp_path, "--json", "-")
    (row,) = json.loads(done.out)["thresholds"]
    assert (done.code, row["outcome"]) == (0, "fits")
    assert 0 < row["check"]["difference"] < 1e-3 and 0 < row["check"]["plain_difference"] < 1e-3
    assert "two steps without offloading differ by" in " ".join(done.err.split())


class Spoiling(CpuCopier):
    """Brings back other values than it took."""

    def back(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        super().back(copy, storage)
        storage.fill_(0)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_copy_that_spoils_values_is_found(
    mode: str, large: bool, tmp_path: Path, here: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "copier_for", lambda device: Spoiling())
    monkeypatch.setattr(inference, "copier_for", lambda device: Spoiling())
    memory = between(mode) if large else 10**8
    done = lenet(tmp_path, "--offload-above", "0", "--json", "-", mode=mode, memory=memory)
    found = json.loads(done.out)
    (row,) = found["thresholds"]
    assert done.code == 1 and row["outcome"] == "failed" and "differ from those without offloading" in row["why"]
    # What does not fit without offloading is compared by the smallest batch.
    assert row["check"]["batch_size"] == (1 if large else BATCH)


def test_no_setting_of_a_study_is_the_best_whose_results_differ(
    tmp_path: Path, here: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "copier_for", lambda device: Spoiling())
    done = lenet(tmp_path, "--study", "--json", "-")
    found = json.loads(done.out)
    assert done.code == 1 and found["best"] is None and found["best_to_everything"] is None
    assert {row["outcome"] for row in found["thresholds"]} == {"failed"}


def test_the_next_best_is_the_answer_where_the_bests_results_differ(tmp_path: Path, here: type[Here]) -> None:
    checked: list[Plan] = []

    def spoilt(self: TimedRuns, batch_size: int, plan: Plan) -> ResultCheck:
        checked.append(plan)
        return ResultCheck(batch_size, 10, 0.5 if len(checked) == 1 else 0.0, 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedRuns, "check", spoilt)
        done = lenet(tmp_path, "--study", "--json", "-", memory=10**8)
    found = json.loads(done.out)
    assert done.code == 1 and len(checked) == 2 and checked[0] != checked[1]
    outcomes = [row["outcome"] for row in found["thresholds"]]
    assert outcomes.count("failed") == 1 and found["best"]["outcome"] == "fits" and found["best"]["check"]


def test_what_cannot_be_compared_is_said(tmp_path: Path, here: type[Here]) -> None:
    def fails(request: Any) -> Failure | None:
        """The comparison, whose request has one step."""
        is_check = isinstance(request, OffloadRequest) and request.num_steps == 1
        return Failure("OutOfMemory", "does not fit: a step takes more") if is_check else None

    here.failing = staticmethod(fails)
    done = lenet(tmp_path, "--offload-above", "0", "--json", "-", memory=10**8)
    found = json.loads(done.out)
    (row,) = found["thresholds"]
    assert (done.code, row["outcome"], row["check"]) == (0, "fits", None)
    assert found["not_compared"] == "does not fit: a step takes more"
    said = "The gradients were not compared with those of a step without offloading: does not fit: a step takes more."
    assert said in " ".join(done.err.split())


# -- by replay -------------------------------------------------------------------------------------------


def emulated(tmp_path: Path, *flags: str, mode: str = "train", memory: int) -> Ended:
    profile = tmp_path / "toy.toml"
    profile.write_text(SLOW_LINK.format(model="lenet", mode=mode))
    shared = ("--batch-size", str(BATCH), "--memory", str(memory), "--mode", mode)
    device = ("--device", f"emulated:{profile}", "--results", str(tmp_path / "results"))
    return call("model", "offload", "lenet", *shared, *device, *flags)


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_an_emulated_card_is_a_replay_that_says_so(mode: str, tmp_path: Path, here: type[Here]) -> None:
    step = Step("lenet", "train" if mode == "train" else "infer", "fp32", "cpu", BATCH, 28, channels=1)
    trace = saved_trace(step, 0, on_accelerator=True)
    full = ledger(trace, plan_for(trace)).peak_bytes
    memory = (full + least_cap(trace)) // 2
    done = emulated(tmp_path, "--study", "--json", "-", mode=mode, memory=memory)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["not_compared"] == "an emulated device runs no model"
    assert found["not_measured"] and "do not use them as measured speeds" in " ".join(done.err.split())
    assert found["without"]["outcome"] == "out_of_memory" and found["without"]["predicted_peak_bytes"] == full
    for row in found["thresholds"]:
        assert row["label"] == "assumed" and row["outcome"] == "fits" and row["peak_live_bytes"] <= memory
        # closed form: never faster than the profile's step, never slower than with all copies in a row
        compute, copies = 6.4e-3, row["moved_bytes_per_step"] / 1e9
        assert compute <= row["step_s"]["value"] <= compute + copies + 1e-12
        assert row["s_per_image"]["low"] is None and row["num_steps"] == 0
    assert found["batch_one_s_per_image"] == pytest.approx(1e-4)  # in proportion to 6.4 ms at 64
    assert_kept(tmp_path / "results", "model_offload", num_runs=0)


# -- what goes wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--offload-above", "-1"), "--offload-above must be a number of KB, 0 or more, not -1"),
        (("--offload-above", "1e308"), "--offload-above must be a number of KB, 0 or more, not 1e+308"),
        (("--offload-above", "nan"), "--offload-above must be a number of KB, 0 or more, not nan"),
        (
            ("--offload-above", "8", "--offload-after", "1.5"),
            "--offload-after must be a fraction of the device's memory",
        ),
        (("--offload-above", "8", "--offload-after", "-0.1"), "from 0 to 1, not -0.1"),
        (("--offload-after", "0.4"), "--offload-after needs --offload-above too"),
        (("--study", "--offload-above", "8"), "--study finds the thresholds"),
        (("--memory", "16Q"), "--memory takes a size such as 16G"),
        (("--memory", "100000G"), "exceeds the available"),
        (("--steps", "5"), "--steps must be at least 6, not 5"),
        (("--batch-size", "0"), "--batch-size must be at least 1"),
        (("--memory", "100K"), "cannot fit: "),
        (("--memory", "100K", "--study"), "needs"),
        (("--offload-above", "x"), "--offload-above"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    flags: tuple[str, ...], said: str, tmp_path: Path, here: type[Here]
) -> None:
    done = call("model", "offload", "lenet", "--device", "cpu", "--batch-size", "8", "--results", tmp_path, *flags)
    assert done.code == 2 and said in " ".join(done.err.split()), done.err
    assert [*tmp_path.glob("2*")] == []


def test_too_little_host_memory_is_said_before_anything_runs(
    tmp_path: Path, here: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_module, "host_memory", lambda: (10**6, "MemAvailable"))
    done = lenet(tmp_path, "--offload-above", "0", memory=10**7)
    assert done.code == 2 and "offloading needs" in done.lines[-1]
    assert "976.6 KiB are free" in done.lines[-1] and [*tmp_path.glob("2*")] == []


def test_an_interrupted_study_keeps_what_was_timed(tmp_path: Path, here: type[Here]) -> None:
    asked: list[OffloadRequest] = []

    def interrupted(request: Any) -> Failure | None:
        if isinstance(request, OffloadRequest):
            asked.append(request)
            if len([one for one in asked if one.plan is not None]) == 3:
                raise KeyboardInterrupt
        return None

    here.failing = staticmethod(interrupted)
    done = lenet(tmp_path, "--study")
    assert done.code == INTERRUPTED and done.lines[-1].endswith("interrupted: 1 setting was timed and is kept")
    study = only_study(tmp_path)
    found = study.findings
    assert isinstance(found, ModelOffload) and found.interrupted and found.batch_one_s_per_image is not None
    assert found.not_compared == "it was interrupted before"
    assert [row.outcome for row in found.thresholds].count("fits") == 1
    assert "Interrupted: not all settings were timed." in " ".join(done.out.split())
    assert_kept(tmp_path, "model_offload", num_runs=0)


def test_an_interrupt_right_behind_a_settings_line_keeps_it(tmp_path: Path, here: type[Here]) -> None:
    plan = plan_offload(
        "lenet", ModelOptions(device="cpu"), BATCH, memory=str(between("train")), steps=6, above_kb=0, after=0
    )
    study = OffloadStudy(plan, Store(tmp_path))
    said: list[str] = []

    def say(line: str, stays: bool) -> None:
        if line.endswith("ms per image"):
            said.append(line)
            if "above 0 KB" in line:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(say)
    assert len(said) == 1 == study.num_timed
    stored = only_study(tmp_path).facts
    assert isinstance(stored, OffloadFacts) and [len(one.turns) for one in stored.settings] == [1]


def test_settings_for_which_the_host_has_too_little_are_left_out(
    tmp_path: Path, here: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = between("train")
    needs = sorted(  # on the CPU the device's share and the host's are of one memory
        one.ledger.host_reserved_bytes + one.ledger.peak_live_bytes
        for one in candidates(lenet_trace("train"), memory, round(memory * 0.995)).found
    )
    free = (needs[0] + needs[-1]) // 2
    monkeypatch.setattr(study_module, "host_memory", lambda: (free, "MemAvailable"))
    done = lenet(tmp_path, "--study")
    found = only_study(tmp_path).findings
    assert isinstance(found, ModelOffload) and done.code == 0
    outcomes = {row.outcome for row in found.thresholds}
    assert outcomes == {"fits", "no_host_memory"} and found.best is not None
    (left_out,) = [row for row in found.thresholds if row.above_bytes == 0 and not row.after_fraction]
    assert left_out.outcome == "no_host_memory" and left_out.s_per_image is None and " are free" in str(left_out.why)
    assert "no host memory" in " ".join(done.out.split())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_interrupt_keeps_what_was_timed_and_leaves_no_process(number: int, tmp_path: Path) -> None:
    arguments = ("--study", "--device", "cpu", "--memory", str(between("train")), "--steps", "3000")
    with Started("model", "offload", "lenet", "--batch-size", str(BATCH), *arguments, "--results", tmp_path) as command:
        command.wait_for(lambda: [*tmp_path.glob("*/study.json")], timeout_s=100)
        command.process.send_signal(number)
        ended = command.end()
        command.wait_until_gone()
    assert ended.code == ENDED_BY[number] and "are kept" in ended.lines[-1]
    assert_kept(tmp_path, "model_offload", num_runs=0)


def test_an_interrupt_before_anything_was_timed_leaves_no_figure(tmp_path: Path, here: type[Here]) -> None:
    def interrupted(request: Any) -> Failure | None:
        raise KeyboardInterrupt

    here.failing = staticmethod(interrupted)
    done = lenet(tmp_path, "--study", "--json", "-")
    assert done.code == INTERRUPTED and "interrupted: 0 settings were timed" in done.lines[-1]
    found = json.loads(done.out)
    assert (found["thresholds"], found["best"], found["batch_one_s_per_image"]) == ([], None, None)
    assert_kept(tmp_path, "model_offload", num_runs=0)


def test_a_setting_that_fails_is_told_and_the_others_are_kept(tmp_path: Path, here: type[Here]) -> None:
    plans: list[Plan] = []

    def fails(request: Any) -> Failure | None:
        """The second plan."""
        if not isinstance(request, OffloadRequest) or request.plan is None:
            return None
        if request.plan not in plans:
            plans.append(request.plan)
        return Failure("PlanMismatch", "the step saves other tensors") if plans.index(request.plan) == 1 else None

    here.failing = staticmethod(fails)
    done = lenet(tmp_path, "--study")
    found = only_study(tmp_path).findings
    assert isinstance(found, ModelOffload)
    outcomes = {row.outcome for row in found.thresholds}
    assert outcomes == {"fits", "failed"} and found.best is not None and done.code == 1
    assert "the step saves other tensors" in " ".join(done.out.split())


def test_findings_follow_from_the_facts_alone(tmp_path: Path, here: type[Here]) -> None:
    lenet(tmp_path, "--offload-above", "4", memory=10**8)
    facts = only_study(tmp_path).facts
    assert isinstance(facts, OffloadFacts)
    tight = offload_of(replace(facts, memory_bytes=1000))
    assert {row.outcome for row in tight.thresholds} == {"out_of_memory"}
