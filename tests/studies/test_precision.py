"""The precision study: one real run on the CPU, and made-up measuring processes for what goes wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from commands import Started
from rich.console import Console

from loaderbench import plain
from loaderbench.cases.options import PrecisionOptions, group
from loaderbench.devices.select import num_visible_gpus
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import Failure
from loaderbench.recording.store import Store
from loaderbench.recording.studies import NumberFacts, PrecisionFacts, PrecisionResult
from loaderbench.reporting.studies import print_findings
from loaderbench.running.jobs.precision import follow_steps
from loaderbench.running.jobs.table import Examined, ExamineRequest, Job, StepsRequest
from loaderbench.running.supervisor import JobFailed
from loaderbench.studies import precision as study_module
from loaderbench.studies.precision import PrecisionStudy
from loaderbench.studies.precision_plan import PrecisionPlan, plan_precision
from tests.filled import same
from tests.made import make_device
from tests.precision_facts import MODEL, numbers, timing
from tests.studies.kept import assert_kept

NUM_STEPS = 6
NUM_PARAMETERS = 1_366_792  # torchvision's table


def plan(**changes: Any) -> PrecisionPlan:
    given = {
        "model": MODEL, "device": "cpu", "precisions": ["fp32", "bf16", "amp-fp16"], "steps": NUM_STEPS,
        "batch_size": 4, "input_size": 64, "seed": 3,
    }  # fmt: skip
    return plan_precision(group(PrecisionOptions, {**given, **changes}))


def as_json(study: PrecisionStudy) -> dict[str, Any]:
    """What `--json` gives."""
    found = study.store().findings
    assert isinstance(found, PrecisionResult)
    return dict(json.loads(json.dumps(plain.to_json(found), allow_nan=False)))


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mode["precision"]: mode for mode in result["modes"]}


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return []


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("precision")


@pytest.fixture(scope="module")
def study(lines: list[str], results: Path) -> PrecisionStudy:
    """A real study on the CPU."""
    study = PrecisionStudy(plan(), Store(results))
    study.run(lambda line, keep: lines.append(line))
    return study


@pytest.fixture(scope="module")
def result(study: PrecisionStudy) -> dict[str, Any]:
    """It, as JSON gives it back."""
    return as_json(study)


@pytest.mark.slow
def test_the_total_is_the_sum_of_the_steps_and_gives_the_rate(result: dict[str, Any]) -> None:
    for name in ("fp32", "bf16"):
        mode = by_name(result)[name]
        assert len(mode["raw"]["step_s"]) == NUM_STEPS and min(mode["raw"]["step_s"]) > 0
        assert mode["total_s"] == pytest.approx(sum(mode["raw"]["step_s"]), rel=1e-9)
        assert mode["images_per_s"]["value"] == pytest.approx(4 * NUM_STEPS / mode["total_s"])
        assert mode["images_per_s"]["low"] < mode["images_per_s"]["value"] < mode["images_per_s"]["high"]
    fp32, bf16 = (by_name(result)[name] for name in ("fp32", "bf16"))
    assert fp32["speedup"]["value"] == 1
    assert bf16["speedup"]["value"] == pytest.approx(fp32["total_s"] / bf16["total_s"])


def test_fp32_followed_twice_is_the_same_to_the_last_bit() -> None:
    request = StepsRequest(plan().steps[0], 3, seed=3)
    first, second = (follow_steps(request, lambda message: None) for _ in range(2))
    assert first.loss is not None and same(first, second)


@pytest.mark.slow
def test_fp32_again_begins_alike_and_is_a_yardstick(result: dict[str, Any]) -> None:
    # given the same weights and batches in two processes, the second rounding the backward pass otherwise
    found = by_name(result)["fp32"]["agreement"]
    # then the first forward pass gives the same number, and the first gradients differ in their last bits at most
    assert found["loss_deviation"]["first"] == 0
    assert found["gradient_norm_deviation"]["first"] < 1e-5
    assert found["loss_deviation"]["max"] < 0.05
    assert found["agrees"] is None


@pytest.mark.slow
def test_bf16_strays_by_the_order_of_its_digits(result: dict[str, Any]) -> None:
    # given a type of 8 significant bits, whose rounding error is up to 2**-9 = 0.2 % of each value
    found = by_name(result)["bf16"]["agreement"]
    # then the first loss, an average over many roundings, is off by a part of that, and not by nothing
    assert 1e-6 < found["loss_deviation"]["first"] < 2**-7
    assert 1e-5 < found["gradient_norm_deviation"]["first"] < 1
    assert found["num_overflow_steps"] == found["num_nonfinite_losses"] == 0


@pytest.mark.slow
def test_a_mode_that_the_device_lacks_is_skipped_with_its_reason(result: dict[str, Any]) -> None:
    skipped = by_name(result)["amp-fp16"]
    assert (skipped["status"], skipped["failure"]["kind"]) == ("skipped", "UnavailableError")
    assert "use fp32, bf16, pure-bf16, amp-bf16" in skipped["failure"]["message"]
    assert skipped["total_s"] is None and skipped["agreement"] is None


@pytest.mark.slow
def test_memory_on_the_cpu_is_told_as_what_it_is(result: dict[str, Any]) -> None:
    memory = by_name(result)["fp32"]["memory"]
    # weights, gradients and momentum, 4 bytes each
    assert memory["rss_growth_bytes"] > 3 * 4 * NUM_PARAMETERS
    assert memory["allocated_bytes"] is None and "no memory of its own" in memory["missing"]["allocated_bytes"]
    assert "memory_is_rss" in [one["code"] for one in result["caveats"]]


@pytest.mark.slow
def test_what_is_printed_fits_80_columns_and_names_every_mode(study: PrecisionStudy, lines: list[str]) -> None:
    stream, found = io.StringIO(), study.study().findings
    assert isinstance(found, PrecisionResult)
    print_findings(None, found, Console(file=stream, width=80))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for expected in ("fp32 again", "bf16", "RSS growth", "amp-fp16, skipped", "memory_is_rss", "yes"):
        assert expected in text
    assert any("left)" in line for line in lines)


@pytest.mark.slow
def test_what_was_measured_is_kept(results: Path, result: dict[str, Any]) -> None:
    stored = assert_kept(results, "precision", num_runs=0)
    assert plain.to_json(stored.findings) == result
    # the steps that the total is the sum of are facts, bit by bit
    facts = stored.facts
    assert isinstance(facts, PrecisionFacts)
    timings = {mode.precision: mode.timing for mode in facts.modes}
    assert timings["fp32"] is not None and timings["fp32"].step_s.tolist() == by_name(result)["fp32"]["raw"]["step_s"]


class FakeChild:
    """A measuring process of known answers. `answers` maps (job, precision) to a result or what it raises."""

    answers: dict[tuple[str, str], Any] = {}  # noqa: RUF012 - set by each test

    def __init__(self, log: Path) -> None:
        pass

    def __enter__(self) -> FakeChild:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, job: Job[Any, Any], request: ExamineRequest | StepsRequest, on_message: object) -> Any:
        default = {
            "examine_device": Examined(make_device(kind="made up", name="made up", on_host_cpus=True), {}),
            "time_steps": timing(step_s=0.1, num_bytes=800),
            "follow_steps": numbers([7.0, 6.0], [2.0, 1.0]),
        }[job.function]
        answer = self.answers.get((job.function, request.step.precision), default)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def failed(message: str, kind: str = "CaseFailed") -> JobFailed:
    return JobFailed(Failure(kind, message))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., PrecisionStudy]:
    def run(answers: dict[tuple[str, str], Any], **changes: Any) -> PrecisionStudy:
        monkeypatch.setattr(FakeChild, "answers", answers)
        monkeypatch.setattr(study_module, "Child", FakeChild)
        study = PrecisionStudy(plan(steps=2, **changes), Store(tmp_path))
        with contextlib.suppress(KeyboardInterrupt):
            study.run(lambda line, keep: None)
        return study

    return run


@pytest.mark.parametrize(
    ("lacking", "code"), [((), 0), (("bf16",), 0), (("fp32", "bf16"), 1)], ids=["none", "one", "all"]
)
def test_a_command_all_of_whose_modes_were_skipped_exits_with_1(
    lacking: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = {("time_steps", name): failed("this device lacks it", "UnavailableError") for name in lacking}
    monkeypatch.setattr(FakeChild, "answers", lacks)
    monkeypatch.setattr(study_module, "Child", FakeChild)
    asked = ("precision", "--precisions", "fp32,bf16", "--device", "cpu", "--steps", "2", "--quiet")
    ended = commands.call(*asked, "--results", tmp_path)
    assert ended.code == code, ended.err


def test_ratios_are_to_fp32(run: Callable[..., PrecisionStudy]) -> None:
    # given half the time and a quarter of the memory
    result = as_json(run({("time_steps", "bf16"): timing(step_s=0.05, num_bytes=200)}))
    assert by_name(result)["bf16"]["speedup"]["value"] == pytest.approx(2)
    assert by_name(result)["bf16"]["memory_ratio"] == 0.25


def test_a_mode_that_does_not_fit_is_a_failed_row_and_the_rest_goes_on(run: Callable[..., PrecisionStudy]) -> None:
    result = as_json(run({("time_steps", "bf16"): failed("does not fit")}))
    assert [mode["status"] for mode in result["modes"]] == ["ok", "failed", "ok"]
    assert by_name(result)["bf16"]["failure"]["message"] == "does not fit"


def test_a_failure_behind_the_clock_keeps_the_time(run: Callable[..., PrecisionStudy]) -> None:
    mode = by_name(as_json(run({("follow_steps", "bf16"): failed("does not fit")})))["bf16"]
    assert mode["status"] == "failed" and mode["total_s"] == pytest.approx(0.2) and mode["agreement"] is None


def test_without_fp32_there_are_no_ratios(run: Callable[..., PrecisionStudy], tmp_path: Path) -> None:
    result = as_json(run({("time_steps", "fp32"): failed("does not fit")}))
    bf16 = by_name(result)["bf16"]
    assert bf16["total_s"] is not None
    assert bf16["speedup"] is bf16["memory_ratio"] is bf16["agreement"] is None
    assert "fp32_not_measured" in [one["code"] for one in result["caveats"]]
    assert_kept(tmp_path, "precision", num_runs=0)


def test_ctrl_c_keeps_what_was_finished(run: Callable[..., PrecisionStudy], tmp_path: Path) -> None:
    result = as_json(run({("follow_steps", "bf16"): KeyboardInterrupt()}))
    assert [mode["status"] for mode in result["modes"]] == ["ok", "interrupted"]
    assert by_name(result)["bf16"]["total_s"] is not None, "it was timed before"
    assert_kept(tmp_path, "precision", num_runs=0)


def test_what_is_wrong_in_every_mode_is_said_once(run: Callable[..., PrecisionStudy]) -> None:
    with pytest.raises(ConfigError, match="unknown model"):
        run({("time_steps", "fp32"): failed("unknown model 'resnet5'", "ConfigError")})


def test_nan_is_null_in_json_and_counts(run: Callable[..., PrecisionStudy], tmp_path: Path) -> None:
    nan = float("nan")
    result = as_json(run({("follow_steps", "bf16"): numbers([7.0, nan], [nan, nan])}))
    json.dumps(result, allow_nan=False)
    bf16 = by_name(result)["bf16"]
    assert bf16["raw"]["loss"] == [7.0, None]
    assert (bf16["agreement"]["num_overflow_steps"], bf16["agreement"]["agrees"]) == (2, False)
    # the fact is what it was
    facts = assert_kept(tmp_path, "precision").facts
    assert isinstance(facts, PrecisionFacts) and facts.modes[1].numbers is not None
    assert same(facts.modes[1].numbers, numbers([7.0, nan], [nan, nan]))


def test_logits_are_kept_and_compared(run: Callable[..., PrecisionStudy], tmp_path: Path) -> None:
    # given bf16's logits off by a tenth in one of four images, which changes its class
    fp32 = np.eye(4, dtype=np.float32)
    bf16 = fp32.copy()
    bf16[0] = [0.9, 1.0, 0.0, 0.0]
    answers = {
        ("follow_steps", name): NumberFacts(outputs=outputs) for name, outputs in (("fp32", fp32), ("bf16", bf16))
    }
    result = as_json(run(answers, mode="infer", precisions=["fp32", "bf16"]))
    agreement = by_name(result)["bf16"]["agreement"]
    assert agreement["top1_fraction"] == 0.75 and agreement["num_nonfinite_images"] == 0
    assert agreement["output_deviation"] == pytest.approx(np.hypot(0.1, 1.0) / 2, rel=1e-6)
    facts = assert_kept(tmp_path, "precision", num_runs=0).facts
    assert isinstance(facts, PrecisionFacts) and facts.modes[1].numbers is not None
    assert np.array_equal(facts.modes[1].numbers.outputs, bf16)  # type: ignore[arg-type]


def test_fp32_always_runs_and_runs_first() -> None:
    steps = plan(precisions=["bf16", "fp32", "bf16"]).steps
    assert [step.precision for step in steps] == ["fp32", "bf16"]


def test_a_loss_scale_reaches_the_modes_that_use_one() -> None:
    steps = plan(precisions=["bf16", "fp16", "amp-fp16"], loss_scale="512").steps
    assert [step.loss_scale for step in steps] == [None, None, "512", "512"]


def test_auto_without_a_gpu_means_the_cpu_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaderbench.studies.precision_plan.num_visible_gpus", lambda: 0)
    planned = plan(device="auto", batch_size=None, input_size=None, steps=None)
    assert {step.device for step in planned.steps} == {"cpu"}
    assert (planned.num_steps, planned.steps[0].batch_size, planned.steps[0].input_size) == (30, 8, 64)
    assert planned.note is not None and planned.note.startswith("No NVIDIA GPU here: 30 steps run on the CPU")


def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no NVIDIA GPU here .*; use --device cpu$"):
        plan(device="cuda:0")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": "emulated"}, "use --device cpu"),
        ({"device": "emulated:h200"}, "use --device cpu"),
        ({"precisions": ["fp8"]}, "--precisions must be one of fp32,"),
        ({"steps": 1}, "--steps must be at least 2"),
        ({"input_size": 16}, "--input-size must be at least 32"),
        ({"batch_size": 0}, "--batch-size must be"),
        ({"mode": "both"}, "--mode must be one of"),
        ({"loss_scale": "0", "precisions": ["fp16"]}, "dynamic or a whole number"),
        ({"loss_scale": "1.5", "precisions": ["fp16"]}, "dynamic or a whole number"),
        ({"loss_scale": "dynamic"}, None),
        ({"loss_scale": "dynamic", "precisions": ["bf16"]}, "--loss-scale is for fp16, pure-fp16, amp-fp16"),
        ({"loss_scale": "dynamic", "precisions": ["fp16"], "mode": "infer"}, "for training"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(changes: dict[str, Any], says: str | None) -> None:
    if says is None:
        plan(**changes)
        return
    with pytest.raises(ConfigError) as caught:
        plan(**changes)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_an_interrupted_command_ends_its_process_and_keeps_the_json(tmp_path: Path) -> None:
    target, results = tmp_path / "precision.json", tmp_path / "results"
    command = ("precision", "--device", "cpu", "--model", MODEL, "--steps", "100000", "--json", target)
    with Started(*command, "--results", results) as started:
        started.wait_for(started.child)
        os.kill(started.process.pid, signal.SIGINT)
        ended = started.end()
        assert ended.code == commands.INTERRUPTED
        assert "interrupted" in ended.lines[-1] and "Traceback" not in ended.err
        assert started.alive() == []
    assert json.loads(target.read_text())["model"] == MODEL
    assert_kept(results, "precision")


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    names = ["fp32", "tf32", "bf16", "fp16", "pure-bf16", "pure-fp16", "amp-bf16", "amp-fp16"]
    asked = plan(model="resnet18", device="cuda", precisions=names, steps=20, batch_size=32)
    study = PrecisionStudy(asked, Store(tmp_path_factory.mktemp("precision")))
    study.run(lambda line, keep: None)
    return by_name(as_json(study))


@pytest.mark.gpu
@pytest.mark.skipif(num_visible_gpus() == 0, reason="no NVIDIA GPU (or not asked for: -m gpu)")
class TestOnGpu:
    def test_every_mode_runs_or_says_why_not(self, modes: dict[str, dict[str, Any]]) -> None:
        assert {mode["status"] for mode in modes.values()} <= {"ok", "skipped"}
        assert modes["fp32"]["status"] == modes["fp16"]["status"] == "ok"

    def test_half_storage_takes_less_memory_and_reserved_holds_allocated(
        self, modes: dict[str, dict[str, Any]]
    ) -> None:
        for mode in modes.values():
            if mode["status"] == "ok":
                assert mode["memory"]["reserved_bytes"] >= mode["memory"]["allocated_bytes"] > 0
        assert modes["fp16"]["memory_ratio"] < modes["amp-fp16"]["memory_ratio"] < 1.1
        assert modes["fp16"]["memory_ratio"] < 0.8

    def test_the_first_step_differs_by_rounding(self, modes: dict[str, dict[str, Any]]) -> None:
        for name in ("fp16", "amp-fp16"):
            assert 0 < modes[name]["agreement"]["loss_deviation"]["first"] < 0.01
