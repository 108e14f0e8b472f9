"""The sizing study: real runs of small models on the CPU, and made-up measuring processes for what goes wrong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
from commands import Started

from loaderbench.cases.case import Step
from loaderbench.cases.options import ModelOptions, Numbers, Rate, SizeOptions, Time
from loaderbench.devices.emulated import EmulatedDevice
from loaderbench.devices.profile import named
from loaderbench.errors import ConfigError, OutOfMemory
from loaderbench.loaders.base import Batch
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.recording.facts import STEP, Failure, MemoryFacts, WorkloadFacts
from loaderbench.recording.model_size import SizeFacts, Sizing, StepRound
from loaderbench.recording.record import CpuFigures, Residency, RunRecord, StorageFigures
from loaderbench.recording.store import Store
from loaderbench.running.jobs.model_size import time_batch
from loaderbench.running.jobs.table import BatchRequest, Job, TimedBatch
from loaderbench.running.loop import StepLoop
from loaderbench.running.supervisor import JobFailed
from loaderbench.studies import model_size as study_module
from loaderbench.studies.model_size import SizeStudy
from loaderbench.studies.size_plan import SizePlan, plan_size
from loaderbench.studies.stored_feed import feed_of, find_feed
from loaderbench.workloads.emulated import EmulatedWorkload
from loaderbench.workloads.lenet import LeNet
from tests.made import make_case, make_device, make_estimate, make_record
from tests.studies.kept import assert_kept

GENEROUS = 1e6
"""Seconds that no test takes."""


def plan(store: Path, **changes: Any) -> SizePlan:
    asked = {"target": Rate(5000), "duration": GENEROUS, **changes}
    names = ("mode", "input_size", "input_shape", "device", "precision", "optimizer")
    options = {"mode": "infer", "device": "cpu", **{name: asked.pop(name) for name in names if name in asked}}
    model = asked.pop("model", "lenet")
    return plan_size(model, ModelOptions(**options), SizeOptions(**asked), store)


# -- made-up processes -----------------------------------------------------------------------------------


class FakeChild:
    """A measuring process of known answers. `answers` maps a batch to the seconds of its steps, or what it raises."""

    answers: Callable[[int], Any]
    asked: list[int]

    def __init__(self, log: Path) -> None:
        pass

    def __enter__(self) -> FakeChild:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def child(self, decoder: str | None) -> FakeChild:
        return self

    def end(self) -> None:
        pass

    def ask(self, job: Job[Any, Any], request: BatchRequest, on_message: object) -> Any:
        size = request.step.batch_size
        type(self).asked.append(size)
        answer = type(self).answers(size)
        if isinstance(answer, BaseException):
            raise answer
        step_s, rss = answer if isinstance(answer, tuple) else (answer, None)
        rounds = StepRound(np.full(min(request.num_steps, 700), step_s))
        device = make_device(kind="made up", name="made up", emulated=False, on_host_cpus=True)
        memory = MemoryFacts(None, None, None, rss)
        return TimedBatch(device, rounds, memory, WorkloadFacts("lenet", "infer", "fp32"))


def predicted(child: object, step: Step, batch_sizes: Sequence[int], seed: int) -> dict[int, int]:
    return {size: 1000 * size for size in batch_sizes}


def failed(message: str, kind: str = "CaseFailed") -> JobFailed:
    return JobFailed(Failure(kind, message))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[SizeStudy, Sizing]]:
    def run(answers: Callable[[int], Any], **changes: Any) -> tuple[SizeStudy, Sizing]:
        monkeypatch.setattr(FakeChild, "answers", staticmethod(answers), raising=False)
        monkeypatch.setattr(FakeChild, "asked", [], raising=False)
        monkeypatch.setattr(study_module, "Child", FakeChild)
        monkeypatch.setattr(study_module, "KeptChild", FakeChild)
        monkeypatch.setattr(study_module, "predict_peaks", predicted)
        study = SizeStudy(plan(tmp_path, **changes), Store(tmp_path))
        with contextlib.suppress(KeyboardInterrupt):
            study.run(lambda line, keep: None)
        found = study.store().findings
        assert isinstance(found, Sizing)
        return study, found

    return run


Run = Callable[..., tuple[SizeStudy, Sizing]]


def sizes(found: Sizing) -> list[int]:
    return [row.batch_size for row in found.batches]


def test_batches_are_doubled_until_two_doublings_gain_nothing(run: Run, tmp_path: Path) -> None:
    # given images/s that grow to batch 4 and stay there: a step takes as long as four images, and then longer
    _, found = run(lambda size: 0.01 * max(size, 4) / 4)
    assert sizes(found) == [1, 2, 4, 8, 16] and found.stopped_by == "no_gain"
    assert found.batches[-1].samples_per_s is not None
    assert found.batches[-1].samples_per_s.value == pytest.approx(400)
    assert (found.devices_needed, found.bound, found.num_rounds) == (13, "compute", 3)  # 5000 ÷ 400 = 12.5
    assert_kept(tmp_path, "model_size", num_runs=0)


def test_further_rounds_go_from_the_largest_batch_down(run: Run) -> None:
    run(lambda size: 0.01 * size, max_batch=4)
    assert FakeChild.asked == [1, 2, 4, 4, 2, 1, 4, 2, 1]


def test_out_of_memory_ends_the_ladder_and_bounds(run: Run, tmp_path: Path) -> None:
    study, found = run(lambda size: 0.01 if size <= 4 else failed("does not fit: batch 8", "OutOfMemory"))
    assert sizes(found) == [1, 2, 4, 8] and found.stopped_by == "memory"
    assert (found.chosen_batch, found.bound, found.devices_needed) == (4, "memory", 13)
    assert found.batches[-1].failure == Failure("OutOfMemory", "does not fit: batch 8") and not study.failed
    assert_kept(tmp_path, "model_size", num_runs=0)


def test_a_batch_that_would_not_fit_the_host_is_not_tried(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # given memory that grows by 1 GB an image, and 6 GB that are free
    monkeypatch.setattr(study_module, "available_memory_bytes", lambda: (6_000_000_000, "made up"))
    _, found = run(lambda size: (0.01, size * 1_000_000_000))
    assert sizes(found) == [1, 2, 4, 8] and FakeChild.asked[:3] == [1, 2, 4] and 8 not in FakeChild.asked
    last = found.batches[-1]
    assert last.status == "skipped" and last.failure is not None and last.failure.kind == "OutOfMemory"
    assert "needs about 8.0 GB" in last.failure.message and "6.0 GB are free" in last.failure.message
    assert (found.stopped_by, found.bound) == ("memory", "memory")


def test_the_ladder_ends_where_steps_take_longer_than_the_limit(run: Run) -> None:
    _, found = run(lambda size: 0.01 * size**0.5, latency=Time(0.025))
    # then batch 8, of 28 ms, is the last, and shows what the limit costs
    assert sizes(found) == [1, 2, 4, 8] and found.stopped_by == "latency"
    assert (found.chosen_batch, found.bound, found.devices_needed) == (4, "latency", 25)  # 4 ÷ 20 ms = 200 a second


def test_the_time_ends_the_ladder_before_a_batch_that_would_pass_it(run: Run) -> None:
    # given steps of which four take 4 s, 6.9 s, 12 s, and 60 s altogether
    study, found = run(lambda size: 1.0 * size**0.79, duration=60.0)
    assert found.stopped_by == "duration" and sizes(found)[-1] >= 4 and len(sizes(found)) < 8
    assert found.still_grows and not study.failed


def test_a_list_is_measured_as_it_is_given(run: Run) -> None:
    _, found = run(lambda size: 0.01, batch_size=Numbers((12, 3, 3)))
    assert sizes(found) == [3, 12] and found.stopped_by == "list"
    assert found.batches[-1].samples_per_s is not None
    assert found.batches[-1].samples_per_s.value == pytest.approx(1200)


def test_the_largest_batch_asked_for_ends_it(run: Run) -> None:
    _, found = run(lambda size: 0.01, max_batch=6)
    assert sizes(found) == [1, 2, 4] and found.stopped_by == "max_batch"


def test_a_batch_of_one_that_batch_norm_refuses_is_a_row_and_two_is_tried(run: Run) -> None:
    study, found = run(lambda size: failed("batch norm", "BatchTooSmall") if size == 1 else 0.01, max_batch=4)
    assert [row.status for row in found.batches] == ["failed", "ok", "ok"] and not study.failed
    with pytest.raises(ConfigError, match="batch norm"):
        run(lambda size: failed("batch norm", "BatchTooSmall"), batch_size=Numbers((1,)))


def test_what_is_wrong_with_every_batch_is_said_once(run: Run) -> None:
    with pytest.raises(ConfigError, match="unknown model"):
        run(lambda size: failed("unknown model 'lenets'", "ConfigError"))
    assert FakeChild.asked == [1]


def test_a_batch_that_fails_is_kept_ends_the_ladder_and_fails_the_command(run: Run, tmp_path: Path) -> None:
    study, found = run(lambda size: 0.01 if size < 4 else failed("killed by SIGKILL"))
    assert [row.status for row in found.batches] == ["ok", "ok", "failed"]
    assert found.stopped_by == "failed" and study.failed and found.devices_needed == 25
    assert_kept(tmp_path, "model_size", num_runs=0)


def test_nothing_that_fits_fails_the_command(run: Run) -> None:
    study, found = run(lambda size: failed("does not fit", "OutOfMemory"))
    assert study.failed and found.no_answer == "nothing_measured" and sizes(found) == [1]


def test_a_failure_in_a_later_round_leaves_the_earlier_ones(run: Run) -> None:
    seen: list[int] = []

    def answer(size: int) -> Any:
        seen.append(size)
        return failed("does not fit", "OutOfMemory") if size == 2 and seen.count(2) > 1 else 0.01

    _, found = run(answer, max_batch=2)
    assert [row.status for row in found.batches] == ["ok", "ok"]
    assert found.batches[0].num_steps == 3 * found.batches[1].num_steps


def test_ctrl_c_keeps_what_was_measured(run: Run, tmp_path: Path) -> None:
    _, found = run(lambda size: 0.01 if size < 4 else KeyboardInterrupt())
    assert [row.status for row in found.batches] == ["ok", "ok", "interrupted"]
    assert found.stopped_by == "interrupted" and found.chosen_batch == 2
    assert_kept(tmp_path, "model_size", num_runs=0)


def test_enough_steps_for_the_percentile_are_asked_for(run: Run) -> None:
    _, found = run(lambda size: 0.001, max_batch=1)
    assert found.batches[0].num_steps == 660 and found.batches[0].p99_s == pytest.approx(0.001)
    _, found = run(lambda size: 0.001, max_batch=1, steps=30)
    assert found.batches[0].num_steps == 30 and found.batches[0].p99_s is None


# -- real steps ------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_timed_steps_take_what_a_stopwatch_says(tmp_path: Path) -> None:
    step = replace(plan(tmp_path).step, batch_size=64)
    begun = time.perf_counter()
    found = time_batch(BatchRequest(step, 40, 4, 60.0, 0), lambda message: None)
    took = time.perf_counter() - begun
    assert len(found.round.step_s) == 40 and found.round.alone_s is None, "on the CPU a step is done when it returns"
    assert 0 < found.round.step_s.sum() < took
    assert found.workload.num_parameters == 416 + 6_416 + 12_850 + 510
    # and the least disturbed step is that of the same network, written here, under a clock of our own
    model, images = LeNet(1, 28, 10).eval().to(memory_format=torch.channels_last), torch.randn(64, 1, 28, 28)
    images = images.to(memory_format=torch.channels_last)
    seconds = []
    with torch.inference_mode():
        for _ in range(40):
            begun = time.perf_counter()
            model(images)
            seconds.append(time.perf_counter() - begun)
    assert found.round.step_s.min() == pytest.approx(min(seconds), rel=0.5)


@pytest.mark.alone
def test_a_job_ends_when_its_time_is_over_but_not_before_the_least_steps(tmp_path: Path) -> None:
    step = plan(tmp_path).step
    found = time_batch(BatchRequest(step, 10**9, 5, 0.0, 0), lambda message: None)
    assert len(found.round.step_s) == 5
    found = time_batch(BatchRequest(step, 10**9, 4, 0.3, 0), lambda message: None)
    steps = found.round.step_s
    assert len(steps) >= 4 and 0.2 < steps.sum() < 0.3 + 2 * steps.max()


def test_a_batch_that_does_not_fit_the_host_is_out_of_memory_by_type(tmp_path: Path) -> None:
    step = replace(plan(tmp_path).step, batch_size=2**40)  # 3 PB of images
    with pytest.raises(OutOfMemory, match="a batch of 1099511627776 images needs more than this machine's free memory"):
        time_batch(BatchRequest(step, 4, 4, 1.0, 0), lambda message: None)


def assert_answers(written: dict[str, Any], rate: dict[str, Any]) -> None:
    """The number of devices for 100,000 images/s where the rate's interval decides it, else its bounds."""
    needed = math.ceil(100_000 / rate["value"])
    fewest, most = (math.ceil(100_000 / rate[end]) if rate[end] else None for end in ("high", "low"))
    assert written["devices_needed"] == needed
    assert written["devices_needed_interval"] == {"value": needed, "low": fewest, "high": most}
    decided = fewest is not None and most is not None and most <= max(1.5 * fewest, fewest + 1)
    assert written["is_decided"] == decided
    wide = "any number of" if most is None else f"{most:,}"
    said = f"{needed:,} device" if decided else f"Not decided: {fewest:,} to {wide} devices"
    assert written["answer"][0].startswith(said)


@pytest.mark.alone
def test_a_real_model_is_sized_shown_and_judged_again(tmp_path: Path) -> None:
    results, target = tmp_path / "results", tmp_path / "size.json"
    ended = commands.run(
        "model", "size", "lenet", "--mode", "infer", "--device", "cpu", "--target", "100k/s", "--latency", "2s",
        "--percentile", "50", "--batch-size", "1,16", "--steps", "90", "--mean-file-bytes", "2k", "--json", target,
        "--results", results,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert max(map(len, ended.out.splitlines())) <= 80 and "What loader and storage must deliver" in ended.out
    written = json.loads(target.read_text())
    one, many = written["batches"]
    assert {"batch_size", "step_s", "samples_per_s", "p99_s", "peak_live_bytes"} <= set(one)
    # sixteen images take less than sixteen times one
    assert many["samples_per_s"]["value"] > one["samples_per_s"]["value"]
    assert many["step_s"]["value"] * many["samples_per_s"]["value"] == pytest.approx(16)
    assert one["num_steps"] == 90 and one["p99_s"] is None and one["p50_s"] > 0
    assert one["peak_live_bytes"] is None and one["rss_growth_bytes"] > 0 and one["memory_missing"]["allocated_bytes"]
    # at least the 20,192 weights and an image, fp32
    assert one["no_prediction"] is None and one["predicted_peak_bytes"] > 4 * (20_192 + 28**2)
    assert many["predicted_peak_bytes"] > one["predicted_peak_bytes"]
    assert written["bound"] == "compute" and written["chosen_batch"] == 16
    assert written["demand"]["bytes_per_s"] == 200e6
    assert_answers(written, many["samples_per_s"])
    assert_kept(results, "model_size", num_runs=0)


def test_an_interrupted_command_ends_its_process_and_keeps_the_json(tmp_path: Path) -> None:
    target, results = tmp_path / "size.json", tmp_path / "results"
    command = (
        "model",
        "size",
        "lenet",
        "--device",
        "cpu",
        "--target",
        "1/s",
        "--batch-size",
        "4,8",
        "--steps",
        "9999999",
    )
    with Started(*command, "--duration", "9999", "--json", target, "--results", results) as started:
        started.wait_for(started.child)
        os.kill(started.process.pid, signal.SIGINT)
        ended = started.end()
        assert ended.code == commands.INTERRUPTED
        assert "interrupted" in ended.lines[-1] and "Traceback" not in ended.err
        assert started.alive() == []
    assert json.loads(target.read_text())["model"] == "lenet"
    assert_kept(results, "model_size", num_runs=0)


# -- known times -----------------------------------------------------------------------------------------


def test_an_emulated_device_is_sized_by_its_profile_alone(tmp_path: Path) -> None:
    ended = commands.run(
        "model", "size", "resnet50", "--device", "emulated", "--target", "20k/s", "--json", "-", "--results", tmp_path
    )
    assert ended.code == 0, ended.err
    written = json.loads(ended.out)
    by_size = {row["batch_size"]: row for row in written["batches"]}
    # 53.4 ms for 256 images, by the profile's file; 20,000 ÷ 4,794 = 4.2
    step = by_size[256]["step_s"]
    assert step["value"] == pytest.approx(0.0534) and step["low"] is step["high"] is None
    assert step["method"] == "a constant of the device's profile, measured"
    assert (written["devices_needed"], written["chosen_batch"], written["stopped_by"]) == (5, 256, "known")
    assert written["devices_needed_interval"] == {"value": 5, "low": None, "high": None}
    assert all(row["p99_s"] is None and row["peak_live_bytes"] is None for row in written["batches"])
    assert {row["memory_missing"]["allocated_bytes"] for row in written["batches"]} == {
        "an emulated device builds no model"
    }
    assert "They have no spread" in " ".join(ended.err.split())
    assert_kept(tmp_path, "model_size", num_runs=0)


@pytest.mark.alone
@pytest.mark.parametrize("size", [8, 64])
def test_a_known_period_is_what_the_emulated_device_does(size: int, tmp_path: Path) -> None:
    """Its virtual clock, run by the loop that measures real devices: at batch 8 issuing is slower than the device."""
    profile = named("h200-resnet50-train-amp-bf16")
    step = replace(plan(tmp_path, model="resnet50", mode="train", device="emulated").step, batch_size=size)
    device = EmulatedDevice(profile, size, 224)
    workload = EmulatedWorkload(step, device, image_size=224)
    batch = Batch(*workload.example("uint8"), size, 0)
    loop = StepLoop(repeat(batch), device, workload, resident=True)
    loop.run(25, 2**63)
    done_ns = loop.steps()[5:, STEP["done_ns"]]
    # the least disturbed step: issuing burns CPU time, which takes longer where others compute
    assert np.diff(done_ns).min() / 1e6 == pytest.approx(profile.period_ms(size).value, rel=0.05)


def test_a_list_of_batches_and_a_largest_one_hold_for_known_times_too(tmp_path: Path) -> None:
    def known(**changes: Any) -> tuple[list[int], str]:
        planned = plan(tmp_path, model="resnet50", mode="train", device="emulated", **changes)
        study = SizeStudy(planned, Store(tmp_path))
        assert planned.times is not None
        study._look_up(planned.times)
        facts = study.facts()
        return [batch.batch_size for batch in facts.batches], facts.stopped_by

    assert known(batch_size=Numbers((64, 48))) == ([48, 64], "list")
    assert known(max_batch=48) == ([1, 2, 4, 8, 16, 32, 48], "max_batch")
    assert known() == ([1, 2, 4, 8, 16, 32, 64, 128, 256], "known")


# -- the stored run --------------------------------------------------------------------------------------


def stored_run(results: Path, dataset: Path, run_id: str = "20260101-000000-001-a", **figures: Any) -> RunRecord:
    case = make_case(dataset=str(dataset), dataset_name=dataset.name, workers=8)
    storage = StorageFigures(
        bytes_read=None, expected_bytes=None, moved_fraction=None, bandwidth_bytes_per_s=None, reads_per_s=None,
        mean_file_bytes=110_000.0, ceiling_bytes_per_s=None, ceiling=None, source=None, cache_state=None,
        residency_fraction=Residency(None, None), cold_proven=False,
    )  # fmt: skip
    record = make_record(
        case, run_id=run_id, environment=environment(), throughput=make_estimate(400.0), storage=storage,
        cpu=CpuFigures(None, None, 0.004, None, None),
        capacities={"storage": make_estimate(620.0, 0.05), "prep": None, "loader": make_estimate(180.0)},
    )  # fmt: skip
    record = replace(record, **figures)
    folder = results / run_id
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(record.case.to_json()))
    (folder / "run.json").write_text(json.dumps(to_json(record)))
    return record


def test_the_newest_run_of_the_only_data_set_is_joined_and_its_figures_are_copied(tmp_path: Path) -> None:
    stored_run(tmp_path, tmp_path / "photos")
    newest = stored_run(tmp_path, tmp_path / "photos", "20260102-000000-001-b")
    feed, why = find_feed(Store(tmp_path), None, None)
    assert feed is not None and why is None
    assert (feed.run_id, feed.named, feed.workers) == (newest.run_id, False, 8)
    assert feed == feed_of(newest, named=False)
    assert feed.mean_file_bytes == 110_000 and feed.cpu_s_per_sample == 0.004
    assert feed.capacities["loader"] == make_estimate(180.0) and feed.capacities["prep"] is None
    # its mean file size counts where no other is given
    assert plan(tmp_path).mean_file_bytes == 110_000 and plan(tmp_path).mean_file_source == "run"
    assert plan(tmp_path, mean_file_bytes=5).mean_file_source == "given"


def test_runs_of_two_data_sets_are_ambiguous_until_one_is_named(tmp_path: Path) -> None:
    older = stored_run(tmp_path, tmp_path / "photos" / "256")
    stored_run(tmp_path, tmp_path / "others", "20260102-000000-001-b")
    assert find_feed(Store(tmp_path), None, None) == (
        None, "runs of several data sets are stored (256, others): choose one with --run or --data"
    )  # fmt: skip
    for data in (tmp_path / "photos" / "256", tmp_path / "photos"):
        feed, _ = find_feed(Store(tmp_path), None, data)
        assert feed is not None and feed.run_id == older.run_id
    named_run, _ = find_feed(Store(tmp_path), "20260101", None)
    assert named_run is not None and (named_run.run_id, named_run.named) == (older.run_id, True)


def test_runs_of_another_machine_or_without_a_rate_are_not_taken(tmp_path: Path) -> None:
    stored_run(tmp_path, tmp_path / "a", environment=replace(environment(), cpu_model="another"))
    stored_run(tmp_path, tmp_path / "a", "20260102-000000-001-b", throughput=None)
    feed, why = find_feed(Store(tmp_path), None, None)
    assert feed is None and why is not None and "measure one with `loaderbench run`" in why
    with pytest.raises(ConfigError, match="--run 20260102"):
        find_feed(Store(tmp_path), "20260102", None)


def test_the_processors_time_of_a_run_that_computed_on_them_is_not_the_loader_s(tmp_path: Path) -> None:
    record = stored_run(tmp_path, tmp_path / "a")
    on_cpu = replace(record, case=record.case.changed(device="cpu"))
    feed = feed_of(on_cpu, named=True)
    assert feed.cpu_s_per_sample is None and feed.no_cpu_s is not None and "on the CPU" in feed.no_cpu_s
    assert feed_of(replace(record, cpu=None), named=True).no_cpu_s == "the run has no CPU times"


def test_a_data_set_gives_its_mean_file_size(small_set: Path, tmp_path: Path) -> None:
    files = [path.stat().st_size for path in (small_set / "96").rglob("*.jpg")]
    planned = plan(tmp_path, data=small_set / "96")
    assert planned.mean_file_source == "data"
    assert planned.mean_file_bytes == pytest.approx(sum(files) / len(files))


# -- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "give a goal: --target 5000/s, --latency 50ms, or both"),
        (("--target", "5000"), "--target takes a rate such as 5000/s"),
        (("--latency", "50"), "--latency takes a time such as 50ms"),
        (("--target", "1/s", "--percentile", "100"), "--percentile must be from 1 to 99.99"),
        (("--target", "1/s", "--batch-size", "0"), "--batch-size must be at least 1"),
        (("--target", "1/s", "--max-batch", "0"), "--max-batch must be at least 1"),
        (("--target", "1/s", "--steps", "3"), "--steps must be at least 12"),
        (("--target", "1/s", "--duration", "0"), "--duration must be at least 1"),
        (("--target", "1/s", "--batch-size", "1", "--max-batch", "2"), "give either --batch-size or --max-batch"),
        (("--target", "1/s", "--input-shape", "1,28,28"), "resnet18 takes images with 3 channels, not 1"),
        (("--target", "1/s", "--device", "emulated"), "no emulated profile of h200 for resnet18"),
        (("--target", "1/s", "--run", "latest"), "no finished run"),
        (("--target", "1/s", "--data", "/nowhere"), "/nowhere"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    ended = commands.call("model", "size", "resnet18", *flags, "--results", tmp_path / "results")
    assert (ended.code, ended.out, len(ended.lines)) == (2, "", 1), ended.err
    assert says in ended.err


def test_a_model_that_cannot_take_the_images_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    ended = commands.run(
        "model", "size", "vgg16", "--device", "cpu", "--input-size", "31", "--target", "1/s", "--results", tmp_path
    )
    assert (ended.code, ended.out) == (2, "")
    assert ended.lines[-1].endswith("it takes images of 32×32 or larger; give --input-size 224")


def test_facts_and_findings_are_of_one_kind(tmp_path: Path) -> None:
    facts = SizeStudy(plan(tmp_path), Store(tmp_path)).facts()
    assert isinstance(facts, SizeFacts) and facts.mode == "infer" and facts.channels == 1 and facts.input_size == 28


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("broken", "OSError: no weights"),
        ("mapping", "returns a dict, not a torch.nn.Module"),
        ("absent", "has no callable 'absent'"),
        ("linear", "does not take images of 1×8×8"),
    ],
)
def test_a_factory_that_makes_no_model_is_refused_in_one_line(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_factory.py").write_text(
        "import torch\n\ndef broken():\n    raise OSError('no weights')\n\ndef mapping():\n    return {}\n\n"
        "def linear():\n    return torch.nn.Linear(3, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    flags = ("--device", "cpu", "--target", "1/s", "--input-shape", "1,8,8", "--results", tmp_path / "results")
    ended = commands.run("model", "size", f"odd_factory:{name}", *flags)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert says in ended.lines[-1] and ended.lines[-1].startswith(f"loaderbench: --model odd_factory:{name}")


@pytest.mark.parametrize(
    ("answer", "code"), [(0.01, 0), ("OutOfMemory", 0), ("CaseFailed", 1)], ids=["well", "no memory", "failed"]
)
def test_the_command_s_exit_code_says_whether_a_batch_failed(
    answer: Any, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = answer if isinstance(answer, float) else failed("it ended", answer)
    monkeypatch.setattr(FakeChild, "answers", staticmethod(lambda size: 0.01 if size < 2 else late), raising=False)
    monkeypatch.setattr(FakeChild, "asked", [], raising=False)
    monkeypatch.setattr(study_module, "Child", FakeChild)
    monkeypatch.setattr(study_module, "KeptChild", FakeChild)
    monkeypatch.setattr(study_module, "predict_peaks", predicted)
    asked = ("model", "size", "lenet", "--device", "cpu", "--target", "1/s", "--max-batch", "2", "--quiet")
    ended = commands.call(*asked, "--results", tmp_path)
    assert (ended.code, ended.out) == (code, ""), ended.err
