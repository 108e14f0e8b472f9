"""The record of a simulated run: complete, valid, reproducible, each null explained."""

from __future__ import annotations

import json

import jsonschema
import pytest

from loaderbench.analysis.record import make_record
from loaderbench.cases.case import Case
from loaderbench.recording.store import SCHEMA_FILE, plain_json
from loaderbench.recording.types import Recording, Run
from tests.analysis.simulate import Pipeline, run

CASE = Case(
    dataset="/data/256", dataset_name="data", resolution=256, loader="multiprocess", decoder="pillow", workers=2,
    prefetch=2, batch_size=64, model="resnet50", mode="train", precision="fp32", device="emulated:x", input_size=224,
    cache="cold",
)  # fmt: skip


def simulated(pipeline: Pipeline, arms: tuple[str, ...] | None = None) -> Run:
    segments = [one for one in run(pipeline) if arms is None or one.arm in arms]
    facts = {
        "device": {"kind": "emulated", "name": "emulated device"}, "workload": {}, "peak_memory_bytes": None,
        "loader": {"decodes": True, "owns_transfer": False}, "num_failures": 0, "failures": [], "queue_depth": 4,
        "num_images": 1000, "image_bytes": 35_000_000, "storage_source": "test", "storage_reason": None,
        "cache": {"state": "cold", "measured_once": False, "caveats": []}, "build_s_real": 0.5,
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


def test_throughput_is_samples_over_time() -> None:
    record = make_record("r1", simulated(Pipeline(device=0.030, read=0.002, decode=0.198, workers=2)))
    assert record["throughput"]["value"] == pytest.approx(64 / 0.1, rel=0.02)
    assert record["ingestion_rate"]["value"] == pytest.approx(64 / 0.030, rel=1e-6)
    assert record["loader_rate"]["value"] == pytest.approx(64 / 0.1, rel=0.02)
    assert record["storage"]["cold_proven"] is True


def test_a_failed_run_keeps_its_reason_and_no_figures() -> None:
    failed = Run(CASE, "failed", "2026-01-01T00:00:00+00:00", 1.0, None, [], [], {}, ("CaseFailed", "the disk is gone"))
    record = make_record("r2", failed)
    assert record["failure"] == {"kind": "CaseFailed", "message": "the disk is gone"}
    assert record["throughput"] is None
