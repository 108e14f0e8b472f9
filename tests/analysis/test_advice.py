"""Predictions against a simulation of the changed pipeline, which shares no code with the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loaderbench.analysis.advice import (
    MOST_ACTIONS,
    WORTH_TRYING,
    Measured,
    _fewer_workers,
    _for_storage,
)
from loaderbench.analysis.predictions import KNEE, PIXEL_BYTES, Predictions, knee
from loaderbench.analysis.record import analyze, judged_run
from loaderbench.cases.arms import Arm
from loaderbench.findings.table import words
from loaderbench.plugins import LOADERS
from loaderbench.recording.facts import (
    READ,
    SPAN,
    STEP,
    CacheFacts,
    CeilingProbe,
    CpuWindow,
    PrepProbe,
    RamCopyFacts,
    Run,
    ScaleProbe,
    Segment,
)
from loaderbench.recording.record import Advice, StorageFigures, StorageSlowness
from loaderbench.reporting.words import flags, worded
from loaderbench.running.read_times import read_times
from tests.analysis.simulate import ARMS, Pipeline, run, step_seconds
from tests.made import (
    NOTHING,
    make_case,
    make_device,
    make_facts,
    make_loader,
    make_prep_probe,
    make_run,
    rates_probe,
)

CASE = make_case(output="uint8", cache="warm")


def with_cpu_time(segments: list[Segment]) -> list[Segment]:
    """Decoding computes, reading waits."""
    for one in segments:
        if one.spans is not None:
            one.spans[:, SPAN["cpu_ns"]] = one.spans[:, SPAN["decode_ns"]]
    return segments


def simulated(
    pipeline: Pipeline,
    *,
    cpus: int = 2,
    prep_probe: PrepProbe | None = None,
    ceiling: CeilingProbe | None = None,
    owns_transfer: bool = False,
    **case: Any,
) -> Run:
    """A run that tells what advice rests on."""
    asked = CASE.changed(workers=pipeline.workers, **case)
    pipeline = replace(pipeline, read=pipeline.read or 0.0002)  # reading from memory costs something too
    segments = with_cpu_time(run(pipeline, arms=ARMS))
    if owns_transfer:
        segments = [one for one in segments if one.arm != Arm.HOST]
    if case.get("loader") == "dali":
        for one in segments:
            one.spans = None
    facts = make_facts(
        device=make_device(overlap=pipeline.overlap),
        loader=make_loader(owns_transfer=owns_transfer),
        cache=CacheFacts(asked.subject.cache, measured_once=False),
        prep_probe=prep_probe or make_prep_probe(pillow=0.002),
    )
    facts = replace(facts, storage=replace(facts.storage, ceiling=ceiling))
    return make_run(asked, segments, facts=facts, cpus_usable=cpus)


def advice(pipeline: Pipeline, **given: Any) -> tuple[Advice, ...]:
    """The advice on a simulated run."""
    return advice_on(simulated(pipeline, **given))


def advice_on(asked: Run) -> tuple[Advice, ...]:
    record = worded(analyze(asked))
    assert record.verdict is not None
    check_rules(record.verdict.advice)
    return record.verdict.advice


def check_rules(found: Sequence[Advice]) -> None:
    predictions = [one.predicted_speedup for one in found]
    known = [prediction for prediction in predictions if prediction is not None]
    values = [prediction.value for prediction in known]
    assert len(found) <= MOST_ACTIONS
    assert values == sorted(values, reverse=True)
    assert all(value >= WORTH_TRYING for value in values)
    assert [prediction is None for prediction in predictions] == sorted(
        prediction is None for prediction in predictions
    )
    for prediction in known:
        assert prediction.low is not None and prediction.high is not None
        assert prediction.low <= prediction.value <= prediction.high


def value_of(one: Advice) -> float:
    assert one.predicted_speedup is not None
    return one.predicted_speedup.value


def predicted(found: Sequence[Advice], **change: Any) -> float:
    """What the advice predicts for exactly this change."""
    (one,) = [one for one in found if one.change == change]
    return value_of(one)


def gain(before: Pipeline, **after: Any) -> float:
    return step_seconds(before) / step_seconds(replace(before, **after))


@pytest.mark.parametrize(("cpus", "knee"), [(2, 2), (4, 4), (16, 7)])
def test_more_workers_up_to_the_processors_or_the_device(cpus: int, knee: int) -> None:
    slow = Pipeline(device=0.030, decode=0.200, workers=1)
    # 7 workers give a batch each 28.6 ms, just faster than the device takes them.
    found = advice(slow, cpus=cpus)
    assert predicted(found, workers=knee) == pytest.approx(gain(slow, workers=knee), rel=0.03)


def test_no_more_workers_where_the_processors_are_full() -> None:
    found = advice(Pipeline(device=0.030, decode=0.200, workers=2), cpus=2)
    assert not [one for one in found if one.change and "workers" in one.change]


def test_workers_slow_each_other_as_the_probe_saw() -> None:
    # given processors that share their units: all busy, each is 1.5 times as slow
    shared = make_prep_probe(pillow=0.002)
    slowed = replace(shared.decoders["pillow"], all_cpus_image_s=0.003)
    shared = replace(shared, decoders={"pillow": slowed})
    slow = Pipeline(device=0.030, decode=0.200, workers=1)
    found = advice(slow, cpus=2, prep_probe=shared)
    assert predicted(found, workers=2) == pytest.approx(gain(slow, workers=2, decode=0.300), rel=0.03)


def test_a_parallel_loader_instead_of_the_serial_one() -> None:
    serial = Pipeline(device=0.030, issue=0.010, decode=0.100, workers=0)
    found = advice(serial, cpus=2, loader="serial")
    # Two processors make a batch in (100 + 10 ms of issuing) ÷ 2.
    change = {"loader": "multiprocess", "workers": 2}
    assert predicted(found, **change) == pytest.approx(0.110 / 0.055, rel=0.03)


@pytest.mark.parametrize("slow_s", [0.08, 0.0])
def test_a_serial_loader_over_slow_files_is_told_of_one_that_reads_ahead(slow_s: float) -> None:
    # given reads of which those of one file of 32 take 80 ms each time, or none
    asked = simulated(Pipeline(device=0.030, read=0.200, decode=0.020, workers=0), loader="serial", cache="cold")
    assert asked.recording is not None
    numbers = np.random.default_rng(1).integers(32, size=640)
    taken_ns = np.where(numbers == 5, round(slow_s * 1e9), 0) + 1_000_000
    rows = np.stack([numbers, np.cumsum(taken_ns) - taken_ns, np.zeros(640), taken_ns, np.ones(640)], 1)
    for number, segment in enumerate(asked.recording.segments):
        if segment.arm.touches_storage:
            rows[:, READ["begin_ns"]] += 10**10 * number
            segment.reads = read_times(rows.astype(np.int64))
    record = worded(analyze(asked))
    assert record.verdict is not None
    assert record.verdict.bottleneck == "storage"
    ahead = [one for one in record.verdict.advice if one.code == "parallel_loader"]
    assert [one.predicted_speedup for one in ahead] == ([None] if slow_s else [])


def test_another_decoder_by_its_measured_cost() -> None:
    slow = Pipeline(device=0.030, decode=0.200, workers=2)
    found = advice(slow, prep_probe=make_prep_probe(pillow=0.002, turbojpeg=0.001))
    assert predicted(found, decoder="turbojpeg") == pytest.approx(gain(slow, decode=0.100), rel=0.03)


def test_a_faster_decoder_gains_no_more_than_the_device_lets_it() -> None:
    slow = Pipeline(device=0.080, decode=0.200, workers=2)
    found = advice(slow, prep_probe=make_prep_probe(pillow=0.002, turbojpeg=0.0002))
    assert predicted(found, decoder="turbojpeg") == pytest.approx(gain(slow, decode=0.020), rel=0.03)


def test_few_unlike_windows_of_the_loader_alone_leave_a_prediction_its_interval() -> None:
    # given a loader that the device waits for, and windows of it alone that took 0.6 and 1.6 times as long
    slow = Pipeline(device=0.030, decode=0.200, workers=2)
    asked = simulated(slow, prep_probe=make_prep_probe(pillow=0.002, turbojpeg=0.001))
    assert asked.recording is not None
    alone = [one for one in asked.recording.segments if one.arm is Arm.FREE]
    for segment, times in zip(alone, (0.6, 1.0, 1.6), strict=False):
        known, first = segment.steps > 0, int(segment.steps[0, STEP["called_ns"]])
        known[:, STEP["num_samples"]] = False
        segment.steps[known] = first + ((segment.steps[known] - first) * times).astype(np.int64)
    (one,) = [one for one in advice_on(asked) if one.change == {"decoder": "turbojpeg"}]
    found = one.predicted_speedup
    assert found is not None and found.low is not None and found.high is not None
    assert found.value == pytest.approx(gain(slow, decode=0.100), rel=0.05)
    assert found.high < 1.4 * found.low


def test_uint8_saves_the_hand_over_of_floats() -> None:
    handover_s = {"float32": {**NOTHING, "shared": 0.0005}, "uint8": {**NOTHING, "shared": 0.0001}}
    costs = replace(make_prep_probe(pillow=0.0010), handover_s=handover_s)
    slow = Pipeline(device=0.030, decode=0.150, workers=2)
    found = advice(slow, prep_probe=costs, output="float32")
    assert predicted(found, output="uint8") == pytest.approx(gain(slow, decode=0.110), rel=0.03)


def probe_with_torchvisions(as_torchvision_s: float, stack_s: float) -> PrepProbe:
    """Pillow's sample takes 1 ms straight into its batch, and so much as torchvision's users make it."""
    costs = make_prep_probe(pillow=0.0010)
    pillow = replace(costs.decoders["pillow"], as_torchvision_s=dict.fromkeys(PIXEL_BYTES, (as_torchvision_s,) * 8))
    return replace(costs, decoders={"pillow": pillow}, stack_s={one: {"shared": stack_s} for one in PIXEL_BYTES})


DIRECT: dict[str, Any] = {"loader_options": {"samples": "direct"}}


def test_samples_straight_into_their_batch_save_the_copies() -> None:
    slow = Pipeline(device=0.030, decode=0.150, workers=2)
    found = advice(slow, prep_probe=probe_with_torchvisions(0.0014, 0.0001))
    assert predicted(found, **DIRECT) == pytest.approx(gain(slow, decode=0.100), rel=0.03)
    (one,) = [one for one in found if one.change == DIRECT]
    assert one.action.endswith("--loader-option samples=direct")


def test_another_decoder_saves_them_too() -> None:
    slow, costs = Pipeline(device=0.030, decode=0.150, workers=2), probe_with_torchvisions(0.0014, 0.0001)
    other = make_prep_probe(turbojpeg=0.0005).decoders
    found = advice(slow, prep_probe=replace(costs, decoders={**costs.decoders, **other}))
    assert predicted(found, decoder="turbojpeg") == pytest.approx(gain(slow, decode=0.050), rel=0.03)


@pytest.mark.parametrize(
    "changed",
    [{"loader_options": {"samples": "direct"}}, {"loader": "threaded"}, {"decoder": "turbojpeg"}],
)
def test_samples_that_go_straight_into_their_batch_are_not_advised_to(changed: dict[str, Any]) -> None:
    slow, costs = Pipeline(device=0.030, decode=0.150, workers=2), probe_with_torchvisions(0.0014, 0.0001)
    decoders = {**costs.decoders, **make_prep_probe(turbojpeg=0.0010).decoders}
    found = advice(slow, prep_probe=replace(costs, decoders=decoders), **changed)
    assert "direct_samples" not in [one.code for one in found]


def test_a_run_of_a_version_without_them_is_not_advised_to_what_it_did() -> None:
    found = advice(Pipeline(device=0.030, decode=0.150, workers=2), prep_probe=make_prep_probe(pillow=0.0010))
    assert "direct_samples" not in [one.code for one in found]


def probe_of_scales(off_s: float, auto_s: float, difference: Sequence[float], **image_s: float) -> PrepProbe:
    """libjpeg takes so long for a sample with and without scaling; the other decoders cannot."""
    scales = ScaleProbe((off_s,) * len(difference), (auto_s,) * len(difference), tuple(difference))
    return replace(make_prep_probe(libjpeg=off_s, **image_s), scales={"libjpeg": scales})


DIFFERENCE = (0.0, 1.0, 2.0, 5.0)


@pytest.mark.parametrize("loader", ["multiprocess", "threaded", "torchdata"])
def test_a_smaller_scale_by_its_measured_cost_and_with_what_it_changes(loader: str) -> None:
    # given a loader of whatever hand-over, whose decoder takes 1.5 ms, and half of that where it scales
    slow, costs = Pipeline(device=0.030, decode=0.150, workers=2), probe_of_scales(0.0015, 0.00075, DIFFERENCE)
    asked = simulated(slow, prep_probe=costs, loader=loader, decoder="libjpeg", decode_scale="off")
    assert asked.recording is not None
    traits = make_loader(traits=LOADERS.built_in[loader].traits)
    asked.recording.facts = replace(asked.recording.facts, loader=traits)
    found = advice_on(asked)
    assert predicted(found, decode_scale="auto") == pytest.approx(gain(slow, decode=0.075), rel=0.03)
    (one,) = [one for one in found if one.change == {"decode_scale": "auto"}]
    assert one.details == {"mean": 2.0, "most": 5.0, "scaled_fraction": 0.75, "num_samples": 4}
    for told in ("--decode-scale auto", "2.00 of 255", "5.00 in the most changed of 4 samples", "75%"):
        assert told in one.action


def test_a_decoder_that_cannot_scale_is_changed_with_it() -> None:
    slow = Pipeline(device=0.030, decode=0.200, workers=2)
    found = advice(slow, prep_probe=probe_of_scales(0.0010, 0.0005, DIFFERENCE, pillow=0.0020))
    assert predicted(found, decoder="libjpeg") == pytest.approx(gain(slow, decode=0.100), rel=0.03)
    both = {"decoder": "libjpeg", "decode_scale": "auto"}
    assert predicted(found, **both) == pytest.approx(gain(slow, decode=0.050), rel=0.03)


@pytest.mark.parametrize(
    ("decode_scale", "auto_s"),
    [("off", 0.00148), ("auto", 0.0005)],
    ids=["it gives next to nothing", "the run decodes so already"],
)
def test_a_smaller_scale_is_not_advised_where_it_gives_nothing(decode_scale: str, auto_s: float) -> None:
    found = advice(
        Pipeline(device=0.030, decode=0.150, workers=2), prep_probe=probe_of_scales(0.0015, auto_s, (0.0,)),
        decoder="libjpeg", decode_scale=decode_scale,
    )  # fmt: skip
    assert "scaled_decode" not in [one.code for one in found]


def test_threads_with_their_own_decoder_are_known_to_prepare_what_they_did() -> None:
    # given a probe that beside other work saw all processors decode a third of what the run did
    slow, costs = Pipeline(device=0.030, decode=0.150, workers=2), probe_of_scales(0.0015, 0.00075, DIFFERENCE)
    held = replace(costs.decoders["libjpeg"], all_cpus_rate=64 / 0.075 / 3)
    asked = simulated(
        slow, prep_probe=replace(costs, decoders={"libjpeg": held}), loader="threaded", decoder="libjpeg",
        decode_scale="off",
    )  # fmt: skip
    assert asked.recording is not None
    traits = make_loader(traits=LOADERS.built_in["threaded"].traits)
    asked.recording.facts = replace(asked.recording.facts, loader=traits)
    assert predicted(advice_on(asked), decode_scale="auto") == pytest.approx(gain(slow, decode=0.075), rel=0.03)


# -- what a change keeps of the run's options ---------------------------------------------------------------


def changes(**asked: Any) -> dict[str, dict[str, Any]]:
    """Code → change of the advice on a run with these options, which two processors and its decoder slow down."""
    workers = 0 if asked["loader"] == "serial" else 2
    pipeline = Pipeline(device=0.010, issue=0.001, decode=0.200, workers=workers)
    costs = probe_of_scales(0.0010, 0.0005, DIFFERENCE, pillow=0.0020, turbojpeg=0.0004)
    if asked["decoder"] == "libjpeg":
        del cast(dict[str, Any], costs.decoders)["turbojpeg"]
    handed = {one: {**NOTHING, "shared": 0.0005, "private": 0.0005} for one in PIXEL_BYTES}
    given = simulated(pipeline, prep_probe=replace(costs, handover_s=handed), **asked)
    assert given.recording is not None
    traits = make_loader(traits=LOADERS.built_in[asked["loader"]].traits)
    given.recording.facts = replace(given.recording.facts, loader=traits)
    return {str(one.code): dict(one.change or {}) for one in advice_on(given)}


def test_another_loader_keeps_the_scale_and_the_options_that_it_takes() -> None:
    scaled: dict[str, Any] = {"decoder": "libjpeg", "decode_scale": "auto"}
    # given --decode-scale auto, threads keep it: their own decoder scales
    threads = changes(loader="multiprocess", **scaled)["decode_in_threads"]
    assert threads["decoder"] == "libjpeg" and "decode_scale" not in threads
    # given --loader-option samples=direct, worker processes keep it, and threads do not know it
    direct: dict[str, Any] = {"loader_options": {"samples": "direct"}, "decoder": "pillow"}
    assert "loader_options" not in changes(loader="serial", **direct)["parallel_loader"]
    assert changes(loader="multiprocess", **direct)["decode_in_threads"]["loader_options"] == {}
    # given options that no trait names, no other loader gets them
    own: dict[str, Any] = {"loader_options": {"own": "1"}, "decoder": "pillow"}
    assert changes(loader="serial", **own)["parallel_loader"]["loader_options"] == {}


def test_the_decoder_s_options_stay_with_it() -> None:
    resized: dict[str, Any] = {"decoder": "libjpeg", "decode_scale": "off", "decoder_options": {"own": "1"}}
    assert "decoder_options" not in changes(loader="multiprocess", **resized)["decode_in_threads"]
    pillows = changes(loader="multiprocess", decoder="pillow", decoder_options={"own": "1"})
    assert pillows["other_decoder"] == {"decoder": "turbojpeg", "decoder_options": {}}
    assert pillows["decode_in_threads"]["decoder_options"] == {}


def test_what_another_decoder_cannot_do_is_said() -> None:
    asked = simulated(
        Pipeline(device=0.010, decode=0.200, workers=2), decoder="libjpeg", decode_scale="auto",
        decoder_options={"own": "1"}, prep_probe=make_prep_probe(libjpeg=0.002, turbojpeg=0.001),
    )  # fmt: skip
    (other,) = [one for one in advice_on(asked) if one.code == "other_decoder"]
    assert other.change == {"decoder": "turbojpeg", "decoder_options": {}, "decode_scale": None}
    assert other.action.endswith("; drop --decoder-option own and --decode-scale")


def test_uint8_copies_a_quarter() -> None:
    slow_link = Pipeline(device=0.030, copy=0.060, decode=0.020, workers=2)
    found = advice(slow_link, output="float32")
    assert predicted(found, output="uint8") == pytest.approx(gain(slow_link, copy=0.015), rel=0.03)


def test_uint8_beside_the_compute_gains_what_the_copy_was_longer() -> None:
    # given a copy of 60 ms beside 30 ms of compute: a quarter of it is hidden
    found = advice(Pipeline(device=0.030, copy=0.060, decode=0.020, workers=2, overlap=True), output="float32")
    assert predicted(found, output="uint8") == pytest.approx(2.0, rel=0.03)


def storage_probe(*rates: float) -> CeilingProbe:
    """Stages of 1, 2, 4 … readers at these bytes/s."""
    return rates_probe(*rates, seconds=1.0, slices_bytes=(), slice_s=1.0, user_cpu_s=0.0)


def test_data_in_memory_with_what_the_storage_lacks() -> None:
    slow_disk = Pipeline(device=0.030, read=0.180, decode=0.020, workers=2)
    (first, *_) = found = advice(slow_disk, cache="cold", ceiling=storage_probe(12.5e6, 25e6, 25e6, 25e6))
    assert predicted(found, cache="warm") == pytest.approx(gain(slow_disk, read=0.0), rel=0.03)
    # 64 × 35 kB in 30 ms are 75 MB/s
    assert "needs 75 MB/s, this storage delivers 25 MB/s to 2 readers" in first.action
    # a cap: more workers would wait for it together
    assert not [one for one in found if one.cause == "storage" and "workers" in (one.change or {})]


def test_faster_storage_is_not_advised_where_the_storage_gives_all_that_is_needed() -> None:
    # given a run that needs 75 MB/s, of a storage that gives 1,742
    slow_reads = Pipeline(device=0.030, read=0.180, decode=0.020, workers=2)
    found = advice(slow_reads, cache="cold", ceiling=storage_probe(900e6, 1742e6, 1742e6, 1742e6))
    assert not [one for one in found if "faster storage" in one.action or one.code == "faster_storage"]
    # then the data in memory still helps, as it was measured
    assert predicted(found, cache="warm") == pytest.approx(gain(slow_reads, read=0.0), rel=0.03)
    (kept,) = [one for one in found if one.code == "data_in_memory"]
    assert "not bandwidth; the run needs 75 MB/s, this storage delivers 1,742 MB/s" in kept.action


@pytest.mark.parametrize("loader", ["multiprocess", "threaded"])
def test_no_more_workers_are_advised_than_processors_where_the_workers_wait_for_one(loader: str) -> None:
    # given a late storage, so that more readers than processors would be worth it …
    late = Pipeline(device=0.030, read=0.180, decode=0.020, workers=2)
    rates = [1e6 * 2**number for number in range(6)]
    given = simulated(late, cpus=2, cache="cold", loader=loader, ceiling=storage_probe(*rates))
    calm = analyze(given).verdict
    assert calm is not None and any("workers" in (one.change or {}) for one in calm.advice)
    # … and workers that are runnable without a processor for a third of their time
    assert given.recording is not None
    for one in given.recording.segments:
        if one.spans is not None:
            wall = one.spans[:, SPAN["ready_ns"]] - one.spans[:, SPAN["start_ns"]]
            one.spans[:, SPAN["runqueue_ns"]] = wall // 3
    crowded = analyze(given).verdict
    assert crowded is not None
    assert not [one for one in crowded.advice if int(str((one.change or {}).get("workers", 0))) > 2]
    assert not [one for one in crowded.advice if int(str(one.details.get("workers", 0))) > 2]


def test_a_quota_leaves_its_processors_whatever_others_hold_of_the_rest() -> None:
    # given a pod of 8 processors of a node's 64, of which others use 30
    slow = Pipeline(device=0.010, decode=0.080, workers=2)
    asked = simulated(slow, cpus=8)
    alone = {repr(one.change): value_of(one) for one in advice_on(asked) if one.predicted_speedup}
    assert asked.recording is not None
    for one in asked.recording.segments:
        one.cpu = CpuWindow(10.0, 20.0, 0.5, 0.0, 320.0, 0.0, 64, 8.0, 0)
    beside = {repr(one.change): value_of(one) for one in advice_on(asked) if one.predicted_speedup}
    assert max(alone.values()) > 3.0
    assert max(beside.values()) == pytest.approx(max(alone.values()), rel=0.05)


def test_more_readers_against_a_latency() -> None:
    # given storage that serves each of many readers as fast as one alone
    late = Pipeline(device=0.030, read=0.180, decode=0.020, workers=2)
    rates = [1e6 * 2**number for number in range(6)]
    found = advice(late, cpus=2, cache="cold", ceiling=storage_probe(*rates))
    (more,) = [one for one in found if one.cause == "storage" and "workers" in (one.change or {})]
    # then as many as bring 200 ms a batch down to the device's 30: seven
    assert more.change == {"workers": 7}
    assert value_of(more) == pytest.approx(gain(late, workers=7), rel=0.05)


def test_more_threads_that_only_read_against_a_latency() -> None:
    # given two such threads beside two workers, and storage that serves each of many readers as fast as one alone
    late = Pipeline(device=0.030, read=0.180, decode=0.020, workers=2)
    rates = [1e6 * 2**number for number in range(6)]
    given: dict[str, Any] = {"cache": "cold", "loader": "threaded", "loader_options": {"io_threads": "2"}}
    asked = simulated(late, cpus=2, ceiling=storage_probe(*rates), **given)
    assert asked.recording is not None
    asked.recording.facts = replace(
        asked.recording.facts, loader=make_loader(traits=LOADERS.built_in["threaded"].traits)
    )
    (more,) = [one for one in advice_on(asked) if one.code == "more_files_at_once"]
    # 180 ms of reading in two threads: as many as bring it down to the device's 30
    assert value_of(more) == pytest.approx(0.100 / 0.030, rel=0.1)
    assert more.change is not None and [*more.change] == ["loader_options"]
    assert "--loader-option io_threads=" in more.action
    # then more workers are no more readers
    predictor = predictions(asked)
    few, many = (predictor.readers_of(predictor.case.changed(workers=workers)) for workers in (2, 8))
    assert few == many == 2


def predictions(asked: Run, *, cpus: int = 8, storage_known: bool = True) -> Predictions:
    assert asked.recording is not None
    judged = judged_run(asked, asked.recording)
    assert judged is not None and judged.replays is not None
    return Predictions(judged.replays, cpus, storage_costs=judged.model.has_storage, storage_known=storage_known)


@pytest.mark.parametrize(("cache", "fits"), [("warm", True), ("cold", False)])
def test_no_data_in_memory_is_advised_where_they_are_or_cannot_be(cache: str, fits: bool) -> None:
    both = Pipeline(device=0.030, read=0.140, decode=0.140, workers=2)
    asked = simulated(both, cpus=8, cache=cache, prep_probe=make_prep_probe(pillow=0.002, turbojpeg=0.001))
    assert asked.recording is not None
    facts = asked.recording.facts
    copy = RamCopyFacts(num_images=10, bytes=10, subset=True, memory_holds_all=fits, where="tmpfs")
    asked.recording.facts = replace(facts, storage=replace(facts.storage, ram_copy=copy))
    found = advice_on(asked)
    assert found and not [one for one in found if "cache" in (one.change or {}) or "--cache warm" in one.action]


def without_fetch(pipeline: Pipeline, **given: Any) -> Run:
    asked = simulated(pipeline, **given)
    assert asked.recording is not None
    asked.recording.segments = [one for one in asked.recording.segments if one.arm is not Arm.FETCH]
    return asked


def test_what_a_storage_feeds_that_was_not_measured_by_itself_is_not_predicted() -> None:
    # given a disk whose cap makes two of four workers wait: with 16 it gives no more
    capped = Pipeline(device=0.020, read=0.3, decode=0.5, workers=4)
    probe = make_prep_probe(pillow=0.002, turbojpeg=0.001)
    asked = without_fetch(capped, cpus=8, cache="cold", prep_probe=probe)
    found = advice_on(asked)
    assert not [one for one in found if one.predicted_speedup and "workers" in (one.change or {})]
    # and of another decoder the interval holds that it gains nothing
    decoders = [one for one in found if one.change and "decoder" in one.change and "cache" not in one.change]
    assert decoders
    for one in decoders:
        assert one.predicted_speedup is not None and one.predicted_speedup.low is not None
        assert one.predicted_speedup.low < 1.03
    whole = simulated(capped, cpus=8, cache="cold", prep_probe=probe)
    assert any("workers" in (one.change or {}) for one in advice_on(whole) if one.predicted_speedup)


def test_where_fetch_missed_what_held_up_the_run_it_is_not_known_what_the_storage_feeds() -> None:
    asked = simulated(
        Pipeline(device=0.020, read=0.3, decode=0.5, workers=4), cpus=8, cache="cold",
        prep_probe=make_prep_probe(pillow=0.002, turbojpeg=0.001),
    )  # fmt: skip
    assert predictions(asked).predict({"workers": 8}) is not None
    missed = predictions(asked, storage_known=False)
    assert missed.predict({"workers": 8}) is None
    # and a quicker decoder may gain nothing at all: the storage may hold the workers up that long
    quicker = missed.predict({"decoder": "turbojpeg"})
    assert quicker is not None and quicker.value > 1.2 and quicker.low == pytest.approx(1.0, abs=0.12)


def test_of_files_in_memory_whose_storage_is_asked_all_the_same_the_loader_alone_is_not_its_preparation() -> None:
    # given opens that a server answers slowly, though the files are in memory
    asked = simulated(Pipeline(device=0.010, read=0.180, decode=0.020, workers=2), cache="warm")
    assert asked.recording is not None
    asked.recording.segments = [one for one in asked.recording.segments if one.arm is not Arm.PREP]
    record = analyze(asked)
    assert record.capacities is not None and record.capacities["loader"] is not None
    assert record.capacities["prep"] is None


def test_fewer_workers_are_advised_where_more_only_wait_for_each_other() -> None:
    # given eight workers on two processors: 0.1 s of work a batch take each 0.4 s
    crowded = Pipeline(device=0.010, decode=0.4, workers=8)
    asked = simulated(crowded, cpus=2, cache="warm", loader="multiprocess", decoder="pillow")
    assert asked.recording is not None
    for one in asked.recording.segments:
        one.cpu = CpuWindow(10.0, 20.0, 60.0, 0.0, 20.0, 0.0, 2, None, None)
        if one.spans is not None and len(one.spans):
            one.spans[:, SPAN["cpu_ns"]] = 100_000_000
            one.spans[:, SPAN["runqueue_ns"]] = 300_000_000
    (fewer,) = _fewer_workers(measured(asked, cpus=2, contention=True))
    assert fewer.change == {"workers": 2}
    assert fewer.predicted is not None and fewer.predicted.value == pytest.approx(1.0, abs=0.1)


def measured(asked: Run, *, cpus: int, contention: bool = False, storage: StorageFigures | None = None) -> Measured:
    assert asked.recording is not None
    judged = judged_run(asked, asked.recording)
    assert judged is not None
    return Measured(predictions(asked, cpus=cpus), judged.model, contention, storage=storage)


@pytest.mark.parametrize("kind", ["stalls", "tail", "latency", None])
def test_what_is_advised_against_a_storage_that_is_slow_now_and_then(kind: StorageSlowness | None) -> None:
    """A probe that met a standstill in its first stage, so that more readers seem to be served much better."""
    late = simulated(
        Pipeline(device=0.030, read=0.180, decode=0.020, workers=2),
        cpus=2, cache="cold", ceiling=storage_probe(30e6, 60e6, 600e6, 700e6),
    )  # fmt: skip
    figures = SimpleNamespace(kind=kind, latency_of=None, tail=None, slow_folder=None)
    given = measured(late, cpus=2, storage=cast(StorageFigures, figures))
    actions = {one.code: one for one in _for_storage(given)}
    assert ("more_files_at_once" in actions) == (kind != "stalls")
    action = actions["data_in_memory"]
    told = words(action.code, {**(action.details or {}), "change": {**(action.change or {})}})
    slow = {"stalls": "stalls cost", "tail": "slow files cost"}.get(str(kind), "the latency of each file costs")
    assert f"{slow} the time, not bandwidth" in told
    assert ("or move it to a storage without" in told) == (kind in ("stalls", "tail"))


def test_storage_and_prep_together() -> None:
    both = Pipeline(device=0.030, read=0.140, decode=0.140, workers=2)
    found = advice(both, cpus=8, cache="cold", prep_probe=make_prep_probe(pillow=0.002, turbojpeg=0.001))
    (joined,) = [one for one in found if one.change and "cache" in one.change and len(one.change) > 1]
    pace = {
        "decode": 0.070 if "decoder" in (joined.change or {}) else 0.140,
        "workers": (joined.change or {}).get("workers", 2),
    }
    assert value_of(joined) == pytest.approx(gain(both, read=0.0, **pace), rel=0.05)


def test_a_larger_batch_where_launches_limit() -> None:
    launching = Pipeline(device=0.008, busy=0.008, issue=0.030, decode=0.010, workers=2)
    found = advice(launching)
    truth = 2 * gain(launching, device=0.016, busy=0.016, decode=0.020)
    assert predicted(found, batch_size=128) == pytest.approx(truth, rel=0.03)
    assert any("CUDA graph" in one.action and one.change is None for one in found)


def test_nothing_for_a_run_that_computes() -> None:
    assert advice(Pipeline(device=0.100, decode=0.020, workers=2), cpus=8) == ()


def test_a_loader_that_tells_no_cpu_time_gets_advice_without_figures() -> None:
    found = advice(
        Pipeline(device=0.030, decode=0.200, workers=1), cpus=4, loader="dali", decoder=None, owns_transfer=True
    )
    assert [one.action for one in found] == ["add workers: --workers 4 (now 1)"]
    assert found[0].predicted_speedup is None
    assert found[0].at_most is not None and found[0].at_most.value > 1.1


def test_changes_read_as_options() -> None:
    assert (
        flags({"loader_options": {"io_threads": "8", "a": "b"}}) == "--loader-option io_threads=8 --loader-option a=b"
    )
    assert (
        flags({"loader": "threaded", "batch_size": 128, "loader_options": {}}) == "--loader threaded --batch-size 128"
    )


def test_predictions_hold_over_random_loaders() -> None:
    # given loaders slower than their device, of any size
    random = np.random.default_rng(3)
    for _ in range(10):
        workers = int(random.integers(1, 4))
        decode = float(random.uniform(0.08, 0.4)) * workers
        slow = Pipeline(device=float(random.uniform(0.01, 0.05)), decode=decode, workers=workers, jitter=0.05)
        faster = float(random.uniform(0.3, 0.9))
        found = advice(slow, cpus=8, prep_probe=make_prep_probe(pillow=0.002, turbojpeg=0.002 * faster))
        for one in found:
            change = one.change or {}
            if set(change) <= {"workers", "decoder"} and change:
                pace = {"workers": change.get("workers", workers)}
                pace["decode"] = decode * (faster if "decoder" in change else 1.0)
                assert value_of(one) == pytest.approx(gain(slow, **pace), rel=0.06)


def test_advice_to_workers_that_wait_for_processors_rests_on_what_decoding_costs_by_itself() -> None:
    """Eight workers on two processors, none of whose wall times is their work's.

    Of 64 images each takes 0.5 ms to read and 3.5 ms to decode, and beside so many others 4.2 ms. The queue stands in
    front of reading, so that by the wall reading is most of it. A decoder of half the time saves half of decoding, and
    pays all of the 20 %, or nothing of it; with a worker for each processor these are gone.
    """
    images, read, decode, stretched = 64, 0.0005, 0.0035, 1.2
    cpu_s = images * (read + stretched * decode)
    crowded = Pipeline(device=0.010, decode=8 * cpu_s / 2, workers=8)
    probe = make_prep_probe(pillow=decode, turbojpeg=decode / 2)
    asked = simulated(crowded, cpus=2, prep_probe=probe, loader="multiprocess", decoder="pillow")
    assert asked.recording is not None
    wall_s = 8 * cpu_s / 2
    for one in asked.recording.segments:
        if one.arm is Arm.FETCH:
            one.steps[:, STEP["returned_ns"]] = one.steps[0, STEP["returned_ns"]] + np.arange(len(one.steps)) * int(
                images * read / 2 * 1e9
            )
        one.cpu = CpuWindow(10.0, 20.0, 60.0, 0.0, 20.0, 0.0, 2, None, None)
        if one.spans is not None and len(one.spans):
            one.spans[:, SPAN["read_ns"]] = int(0.7 * wall_s * 1e9)
            one.spans[:, SPAN["decode_ns"]] = int(0.3 * wall_s * 1e9)
            one.spans[:, SPAN["cpu_ns"]] = int(cpu_s * 1e9)
            one.spans[:, SPAN["read_cpu_ns"]] = int(images * read * 1e9)
            one.spans[:, SPAN["runqueue_ns"]] = int((wall_s - cpu_s) * 1e9)
            one.spans[:, SPAN["read_queue_ns"]] = int((0.7 * wall_s - images * read) * 1e9)
    verdict = worded(analyze(asked)).verdict
    assert verdict is not None
    told = {tuple(sorted((one.change or {}).items())): value_of(one) for one in verdict.advice if one.predicted_speedup}
    (quicker,) = [one.predicted_speedup for one in verdict.advice if one.change == {"decoder": "turbojpeg"}]
    assert quicker is not None and quicker.low is not None and quicker.high is not None
    ends = [cpu_s / (images * (read + paid * decode / 2)) for paid in (stretched, 1.0)]
    assert ends[0] < quicker.value < ends[1]
    assert quicker.value == pytest.approx(cpu_s / (images * (read + 1.1 * decode / 2)), rel=0.03)
    assert quicker.low < ends[0] and ends[1] < quicker.high
    assert told[(("workers", 2),)] == pytest.approx(cpu_s / (images * (read + decode)), rel=0.03)


@pytest.mark.parametrize("full", [1, 2, 3, 7, 8, 24, 100, 191, 192, 500])
def test_the_knee_is_that_of_a_look_at_every_number(full: int) -> None:
    looked = []

    def gain(number: int) -> float:
        looked.append(number)
        return min(number, full) / 2.0

    numbers = range(1, 193)
    best = max(min(number, full) / 2.0 for number in numbers)
    assert knee(numbers, gain) == next(number for number in numbers if min(number, full) / 2.0 >= KNEE * best)
    assert len(looked) == len(set(looked)) <= 16
