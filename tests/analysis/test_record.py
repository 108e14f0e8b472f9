"""The record of a simulated run: complete, valid, reproducible, each null explained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from loaderbench.analysis.record import ALL_ARMS, make_record
from loaderbench.cases.case import Case
from loaderbench.recording.store import SCHEMA_FILE, plain_json
from loaderbench.recording.types import STEP_FIELDS, Recording, Run, Series
from tests.analysis.simulate import Pipeline, run
from tests.analysis.test_kernels import steady, without

CASE = Case(
    dataset="/data/256", dataset_name="data", resolution=256, loader="multiprocess", decoder="pillow", workers=2,
    prefetch=2, batch_size=64, model="resnet50", mode="train", precision="fp32", device="emulated:x", input_size=224,
    cache="cold",
)  # fmt: skip


def simulated(pipeline: Pipeline, arms: tuple[str, ...] | None = None) -> Run:
    segments = [one for one in run(pipeline, arms=ALL_ARMS) if arms is None or one.arm in arms]
    facts = {
        "device": {"kind": "emulated", "name": "emulated device"}, "workload": {}, "peak_memory_bytes": None,
        "loader": {"decodes": True, "owns_transfer": False, "description": {"loader": "simulated"}},
        "num_failures": 0, "failures": [],
        "num_images": 1000, "image_bytes": 35_000_000, "storage_source": "test", "storage_reason": None,
        "cache": {"state": "cold", "measured_once": False, "caveats": []}, "build_s_real": 0.5,
        "batch_bytes": 10_000_000, "link_bytes_per_s": 50e9,
        "stopped_by": "duration", "num_rounds": 3, "loop_overhead_s": 1e-5, "arms": [],
    }  # fmt: skip
    return Run(
        CASE, "ok", "2026-01-01T00:00:00+00:00", 60.0, Recording(segments, facts, []), [], [], {"cpus_usable": 2}
    )


@pytest.mark.parametrize("arms", [None, ("real",), ("device", "host", "real")])
def test_a_record_is_valid_and_the_same_twice(arms: tuple[str, ...] | None) -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    first = make_record("r1", simulated(Pipeline(read=0.001, decode=0.1), arms))
    second = make_record("r1", simulated(Pipeline(read=0.001, decode=0.1), arms))
    not_finite: list[str] = []
    plain = plain_json(first, not_finite)
    jsonschema.validate(plain, schema)
    assert not_finite == []
    assert plain == plain_json(second, [])


def test_what_was_not_measured_is_null_with_a_reason() -> None:
    record = make_record("r1", simulated(Pipeline(read=0.001, decode=0.1), ("real",)))
    assert record["accelerator_utilization_fraction"] is None
    assert record["capacities"]["storage"] is None
    codes = {caveat["code"] for caveat in record["caveats"]}
    assert {"arms_not_measured", "kernel_gap_not_measured", "device_memory_not_measured", "cpu_not_measured"} <= codes


def with_trace(kernels: int = 100, lost: int = 0) -> Run:
    """A simulated run, behind its arms a scripted trace: half of each step idle, kernels of 3 ns every 5."""
    given = simulated(Pipeline(read=0.001, decode=0.1))
    assert given.recording is not None
    given.recording.segments.append(without(steady(kernels), 2, lost))
    return given


def test_a_whole_trace_fills_the_kernel_gaps() -> None:
    record = plain_json(make_record("r1", with_trace()), [])
    jsonschema.validate(record, json.loads(SCHEMA_FILE.read_text()))
    gap = record["device"]["kernel_gap"]
    assert gap["busy_fraction"] == pytest.approx(100 * 3 / 1000)
    assert gap["count_per_step"] == 501 / 5  # 99 within each step, 6 around them
    assert record["device"]["busy_witnesses"]["kernels"] == pytest.approx(0.3)
    assert any("100 a step, 70.0% of 5 traced steps" in line for line in record["verdict"]["evidence"])
    assert not {"kernel_gap_not_measured", "trace_incomplete"} & {caveat["code"] for caveat in record["caveats"]}


def test_a_trace_that_lost_kernels_gives_no_gaps() -> None:
    record = make_record("r1", with_trace(lost=50))
    assert record["device"]["kernel_gap"] is None
    (said,) = [caveat["message"] for caveat in record["caveats"] if caveat["code"] == "trace_incomplete"]
    assert "1 of 5 steps" in said and "(50 to 100)" in said


def test_nvml_is_held_against_the_kernels_over_long_windows_alone() -> None:
    given = with_trace()
    assert given.recording is not None
    t_ns = np.arange(0, 600, dtype=np.int64) * 10**8
    given.series.append(Series("gpu_utilization_fraction", "fraction", "gauge", "x", t_ns, np.full(600, 0.4)))
    for number, one in enumerate(given.recording.segments):
        one.facts |= {"opened_ns": number * 10**9, "closed_ns": number * 10**9 + 5 * 10**9}
    assert make_record("r1", given)["device"]["busy_witnesses"]["nvml"] is None
    for one in given.recording.segments:
        one.facts["closed_ns"] += 10**9
    record = make_record("r1", given)
    assert record["device"]["busy_witnesses"]["nvml"] == pytest.approx(0.4)
    (said,) = [caveat["message"] for caveat in record["caveats"] if caveat["code"] == "busy_witnesses_disagree"]
    assert "30.0%" in said and "nvml 40.0%" in said


def test_stages_of_a_loader_that_counts_batches_are_seconds_of_a_thread() -> None:
    """10 batches of 64 images on 2 threads: 640 ms in the decoder of both, 64 ms in the reader of one."""
    given = simulated(Pipeline(read=0.001, decode=0.1))
    assert given.recording is not None
    real = [one for one in given.recording.segments if one.arm == "real"]
    for one in given.recording.segments:
        one.spans = None
    for number, one in enumerate(real):
        counted = {"read": [10, 64_000_000], "decode": [10, 640_000_000], "resize": [0, 0]}
        one.facts["stage_times"] = counted if number == 0 else {stage: [0, 0] for stage in counted}
    record = make_record("r1", given)
    assert record["stages"] == pytest.approx({"read": 0.0001, "decode": 0.002})

    given.recording.facts["loader"]["no_stage_times"] = "no C compiler"
    for one in real:
        one.facts["stage_times"] = None
    record = make_record("r1", given)
    assert record["stages"] is None
    (said,) = [caveat["message"] for caveat in record["caveats"] if caveat["code"] == "stages_not_measured"]
    assert "no C compiler" in said


def test_the_record_tells_which_libraries_were_loaded() -> None:
    given = simulated(Pipeline(read=0.001, decode=0.1))
    assert given.recording is not None
    del given.recording.facts["loader"]["description"]  # stored by a version that kept none
    assert make_record("r1", given)["loader"] is None
    described = {"loader": "torch DataLoader", "decoder": {"library": "pillow-simd", "version": "12.1.1.post0"}}
    given.recording.facts["loader"]["description"] = described
    record = make_record("r1", given)
    assert record["loader"] == described
    jsonschema.validate(plain_json(record, []), json.loads(SCHEMA_FILE.read_text()))


EXPLAINED_BY = {
    "accelerator_utilization": {"arms_not_measured"},
    "capacities": {"arms_not_measured", "loader_owns_transfer", "no_files"},
    "cpu": {"cpu_not_measured"},
    "device.busy_fraction": {"launch_not_measured", "arms_not_measured"},
    "device.busy_witnesses": {"kernel_gap_not_measured", "trace_incomplete"},
    "device.kernel_gap": {"kernel_gap_not_measured", "trace_incomplete"},
    "device.memory_peak_bytes": {"device_memory_not_measured"},
    "device.nvml": {"nvml_not_measured", "emulated_device"},
    "ingestion_rate": {"arms_not_measured"},
    "loader_rate": {"arms_not_measured"},
    "shares.launch": {"arms_not_measured", "launch_not_measured"},
    "shares": {"arms_not_measured", "loader_owns_transfer"},
    "stages": {"stages_not_measured"},
    "storage.bytes_read": {"storage_bytes_unknown"},
    "storage.bandwidth_bytes_per_s": {"storage_bytes_unknown"},
    "storage.reads_per_s": {"storage_bytes_unknown"},
    "storage.moved_fraction": {"storage_bytes_unknown"},
    "storage.ceiling": {"ceiling_not_measured"},
    "storage.residency_fraction": {"residency_unknown"},
    "storage": {"no_files"},
    "transfer": {"arms_not_measured", "loader_owns_transfer", "no_transfer"},
    "verdict.speedup_if_removed.launch": {"arms_not_measured", "launch_not_measured"},
    "verdict.speedup_if_removed": {"arms_not_measured", "loader_owns_transfer"},
}
"""Null figures, by the longest of these that begins their place, and the caveats of which one must be there."""
MAY_BE_NULL = {"failure", "verdict.joint_speedup"}
"""Null says something itself: no failure; no joint gain because one cause is named."""


def nulls(value: Any, where: str = "") -> Iterator[str]:
    if value is None:
        yield where
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from nulls(item, f"{where}.{name}" if where else name)


def unknown_bytes(run: Run) -> None:
    for one in run.recording.segments if run.recording else ():
        one.facts |= {"moved": None, "residency_before": None, "residency_after": None}


def no_busy_time(run: Run) -> None:
    for one in run.recording.segments if run.recording else ():
        one.steps[:, STEP_FIELDS.index("busy_ns")] = -1


def no_spans(run: Run) -> None:
    for one in run.recording.segments if run.recording else ():
        one.spans = None


def nothing(run: Run) -> None:
    """As it was simulated."""


@pytest.mark.parametrize("spoil", [nothing, unknown_bytes, no_busy_time, no_spans])
@pytest.mark.parametrize(
    "arms", [None, ("real",), ("device", "real"), ("device", "host", "real"), ("device", "host", "ram", "real")]
)
def test_each_null_figure_has_a_caveat(arms: tuple[str, ...] | None, spoil: Callable[[Run], None]) -> None:
    spoiled = simulated(Pipeline(read=0.001, decode=0.1, copy=0.001), arms)
    spoil(spoiled)
    not_finite: list[str] = []
    record = plain_json(make_record("r1", spoiled), not_finite)
    jsonschema.validate(record, json.loads(SCHEMA_FILE.read_text()))
    assert not_finite == []
    codes = {caveat["code"] for caveat in record["caveats"]}
    del record["case"]  # what was asked, where null is a value
    unexplained = []
    for place in set(nulls(record)) - MAY_BE_NULL:
        prefixes = [name for name in EXPLAINED_BY if place.startswith(name)]
        assert prefixes, f"{place} is null, and nobody said what explains it"
        if not EXPLAINED_BY[max(prefixes, key=len)] & codes:
            unexplained.append(place)
    assert unexplained == []


@pytest.mark.parametrize(("moved", "resident", "state"), [(0.5, 0.4, "as-is"), (0.02, 0.5, "warm"), (1.0, 0.0, "cold")])
def test_a_cold_arm_that_the_page_cache_served_is_what_it_was(moved: float, resident: float, state: str) -> None:
    given = simulated(Pipeline(read=0.4, decode=0.01))
    assert given.recording is not None
    for segment in given.recording.segments:
        if segment.arm == "real":
            segment.facts["moved"] = {"read_bytes": int(moved * segment.facts["expected_bytes"]), "reads": 1}
            segment.facts["residency_before"] = resident

    record = make_record("r1", given)

    assert record["storage"]["cache_state"] == state
    assert record["storage"]["cold_proven"] is (state == "cold")
    assert record["verdict"]["bottleneck"] == ("storage" if state == "cold" else "undetermined")
    if state != "cold":
        assert f"{moved:.0%} came from the storage" in record["verdict"]["summary"]


def test_unmeasured_shares_are_null_and_not_zero() -> None:
    record = make_record("r1", simulated(Pipeline(read=0.001, decode=0.1), ("device", "host", "real")))
    assert record["shares"]["storage"] is None
    assert record["shares"]["prep"] is None
    assert record["shares"]["transfer"]["value"] == pytest.approx(0.0, abs=1e-9)
    assert record["verdict"]["bottleneck"] == "undetermined"


def test_throughput_is_samples_over_time() -> None:
    record = make_record("r1", simulated(Pipeline(device=0.030, read=0.002, decode=0.198, workers=2)))
    assert record["throughput"]["value"] == pytest.approx(64 / 0.1, rel=0.02)
    assert record["ingestion_rate"]["value"] == pytest.approx(64 / 0.030, rel=1e-6)
    assert record["loader_rate"]["value"] == pytest.approx(64 / 0.1, rel=0.02)
    assert record["storage"]["cold_proven"] is True


def test_the_copy_is_split_into_what_shows_and_what_does_not() -> None:
    # given a copy of 12 ms beside steps of 10 ms
    given = simulated(Pipeline(device=0.010, copy=0.012, decode=0.001, overlap=True))
    record = make_record("r1", given)
    copy = record["transfer"]
    assert (copy["bytes_per_step"], copy["ceiling_bytes_per_s"]) == (10_000_000, 50e9)
    assert copy["copy_s"] == pytest.approx(0.012) and copy["link_bytes_per_s"] == pytest.approx(10e6 / 0.012)
    assert copy["exposed_s"] == pytest.approx(0.002, rel=0.02) and copy["hidden_s"] == pytest.approx(0.010, rel=0.02)
    assert any("12.00 ms, 2.00 ms of it exposed; 0.8 GB/s" in line for line in record["verdict"]["evidence"])


def test_a_failed_run_keeps_its_reason_and_no_figures() -> None:
    failed = Run(CASE, "failed", "2026-01-01T00:00:00+00:00", 1.0, None, [], [], {}, ("CaseFailed", "the disk is gone"))
    record = make_record("r2", failed)
    assert record["failure"] == {"kind": "CaseFailed", "message": "the disk is gone"}
    assert record["throughput"] is None
