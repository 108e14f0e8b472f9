"""Run records for tests of what draws them.

MADE UP: no figure here was measured. They are computed from invented arm times, so that shares, rates and
speed-ups of one record agree with each other as those of a real one must.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loaderbench import plain
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.findings.caveats import CAVEATS
from loaderbench.plain import JsonObject
from loaderbench.plugins import LOADERS
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import (
    SCHEMA,
    CacheFacts,
    DeviceFacts,
    Facts,
    Failure,
    FailureFacts,
    LoaderFacts,
    RoundFacts,
    StartupFacts,
    Status,
    StorageFacts,
    WorkloadFacts,
)
from loaderbench.recording.record import (
    Bottleneck,
    DeviceFigures,
    Estimate,
    GapClass,
    GapHistogram,
    GapShare,
    KernelGap,
    NfsOperations,
    RunRecord,
    Share,
    StorageFigures,
    TraceClock,
    Verdict,
)

MEASURING = "not measured in this made-up example"


def estimate(value: float, half_width_fraction: float = 0.02, unit: str = "ratio") -> Estimate:
    return Estimate(
        value, value * (1 - half_width_fraction), value * (1 + half_width_fraction), unit, n=12, method="made up"
    )


def between(value: float, low: float | None, high: float | None) -> Estimate:
    return Estimate(value, low, high, "ratio", n=12, method="made up")


def case(**changes: Any) -> Case:
    made: JsonObject = {
        "dataset": "/data/photos/512",
        "dataset_name": "photos",
        "resolution": 512,
        "loader": "multiprocess",
        "decoder": "pillow",
        "workers": 8,
        "prefetch": 2,
        "batch_size": 64,
        "model": "resnet50",
        "mode": "train",
        "precision": "fp32",
        "device": "emulated:h200-resnet50-train-fp32",
        "input_size": 224,
        "output": "float32",
        "overlap": True,
        "cache": "as-is",
        "arms": ["device", "host", "ram", "real", "free"],
        "warmup": None,
        "steps": None,
        "duration_s": 60.0,
        "buffer_ratio": None,
        "max_bytes": None,
        "ci_target": 0.03,
        "kernels": True,
        "loss_scale": None,
        "seed": 0,
        "repeat": 0,
        "max_failure_fraction": 0.01,
        "loader_options": {},
        "decode_scale": None,
        "decoder_options": {},
    }
    return Case.from_json({**made, **changes})


ENVIRONMENT: JsonObject = {
    "python": "3.11.2",
    "kernel": "6.1.0-example",
    "architecture": "x86_64",
    "cpu_model": "Example CPU",
    "cpus_online": 8,
    "cpus_usable": 8,
    "cpu_limit_reason": None,
    "cpu_governor": None,
    "memory_limit_bytes": 34359738368,
    "memory_limit_source": "MemTotal",
    "transparent_huge_pages": None,
    "shm_size_bytes": None,
    "open_files_limit": 1024,
    "memlock_limit_bytes": None,
    "container": None,
    "packages": {"torch": "2.11.0", "loaderbench": "0.1.0"},
    "gpus": [],
    "gpus_reason": "no GPU here",
    "variables": {},
}


FACTS = Facts(
    device=DeviceFacts(kind="cuda", name="a device"),
    workload=WorkloadFacts("resnet50", "train", "fp32"),
    loader=LoaderFacts(True, owns_transfer=False, traits=LOADERS.built_in["multiprocess"].traits),
    cache=CacheFacts("as-is", measured_once=False),
    storage=StorageFacts(num_images=16, image_bytes=None, source=None, reason=None),
    startup=StartupFacts(),
    failures=FailureFacts(),
    rounds=RoundFacts((Arm.REAL,), 1, "steps"),
)
"""Of a recording whose segments a test makes."""


def measured(
    *,
    run_id: str = "20250102-030405-006-512-multiprocess-w8-0a1b2c3d-4e5f60",
    device_ms: float = 32.0,
    host_ms: float = 33.0,
    ram_ms: float = 64.0,
    real_ms: float = 70.0,
    free_ms: float = 62.0,
    bottleneck: Bottleneck = "prep",
    **changes: Any,
) -> RunRecord:
    """A run that ended well: as on a laptop with an emulated H200 (no kernel times, no cold proof)."""
    asked = case(**changes)
    batch = asked.step.batch_size

    def rate(step_ms: float, half_width_fraction: float = 0.02) -> Estimate:
        return estimate(batch / step_ms * 1e3, half_width_fraction, "samples/s")

    def share(fraction: float, half_width_fraction: float = 0.02) -> Estimate:
        return estimate(fraction, half_width_fraction, "fraction")

    shares = {
        "compute": share(device_ms / real_ms),
        "launch": None,
        "transfer": share((host_ms - device_ms) / real_ms, 0.3),
        "prep": share((ram_ms - host_ms) * 0.9 / real_ms),
        "contention": share((ram_ms - host_ms) * 0.1 / real_ms, 0.5),
        "storage": share((real_ms - ram_ms - 1) / real_ms, 0.4),
        "unexplained": share(1 / real_ms, 0.9),
    }
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "rules_version": RULES_VERSION,
        "run_id": run_id,
        "status": "ok",
        "failure": None,
        "case": asked,
        "environment": ENVIRONMENT,
        "started_at": "2025-01-02T03:04:05.006+00:00",
        "wall_s": 75.0,
        "throughput": rate(real_ms),
        "step_time_s": {
            "mean": real_ms / 1e3,
            "p50": real_ms * 0.98 / 1e3,
            "p95": real_ms * 1.14 / 1e3,
            "p99": real_ms * 1.31 / 1e3,
        },
        "time_to_first_batch_s": 1.84,
        "loader_rate": rate(free_ms),
        "ingestion_rate": rate(device_ms, 0.002),
        "accelerator_utilization_fraction": device_ms / real_ms,
        "shares": shares,
        "verdict": {
            "bottleneck": bottleneck,
            "summary": f"Limited by {bottleneck}: {real_ms:.0f} ms a step, {host_ms:.0f} ms without it.",
            "speedup_if_removed": {
                "storage": estimate(real_ms / ram_ms),
                "prep": estimate(real_ms / host_ms),
                "transfer": estimate(max(1.0, real_ms / max(device_ms, free_ms))),
                "launch": None,
                "compute": estimate(max(1.0, real_ms / free_ms)),
            },
            "evidence": [
                f"The loader alone gives {batch / free_ms * 1e3:.0f} images/s, "
                f"the device takes {batch / device_ms * 1e3:.0f}.",
                "Decoding takes 71 % of a worker's time.",
            ],
            "advice": [
                {
                    "code": "other_decoder",
                    "cause": "prep",
                    "change": {"decoder": "turbojpeg"},
                    "action": "Decode with turbojpeg: --decoder turbojpeg.",
                    "predicted_speedup": estimate(1.6, 0.1),
                },
                {
                    "code": "smaller_images",
                    "cause": "prep",
                    "action": "Store the images at 256: loaderbench dataset derive.",
                },
            ],
        },
        "capacities": {
            "storage": None,
            "prep": rate(ram_ms),
            "loader": rate(free_ms),
            "transfer": rate(1.4),
            "issue": rate(2.2),
            "device": rate(device_ms, 0.002),
        },
        "storage": {
            "bytes_read": 0,
            "expected_bytes": 121_000_000,
            "moved_fraction": None,
            "bandwidth_bytes_per_s": 0.0,
            "reads_per_s": None,
            "mean_file_bytes": None,
            "ceiling_bytes_per_s": None,
            "ceiling": None,
            "source": "/proc/diskstats nvme0n1 sectors_read",
            "cache_state": asked.subject.cache,
            "residency_fraction": {"before": 1.0, "after": 1.0},
            "cold_proven": False,
        },
        "stages": {"read": 0.00011, "decode": 0.0054, "augment": 0.0019, "collate": 0.00021},
        "cpu": {
            "busy_fraction": 0.93,
            "cores_used": None,
            "seconds_per_sample": 0.0081,
            "workers_rss_bytes": 2_900_000_000,
            "workers_pss_bytes": None,
        },
        "device": {
            "kind": "emulated",
            "name": "emulated H200 (resnet50 train fp32)",
            "emulated": True,
            "overlap": True,
            "memory_bytes": None,
            "details": {},
            "busy_fraction": device_ms / real_ms,
            "kernel_gap": None,
            "busy_witnesses": None,
            "memory_peak_bytes": None,
            "nvml": None,
            "clock_drift_ns": None,
        },
        "overhead_fraction": None,
        "caveats": [
            {
                "code": "emulated_device",
                "message": "The device is emulated: its step time is a profile's, not measured.",
            },
            {"code": "kernel_gap_not_measured", "message": f"Launch share and kernel gaps: {MEASURING}."},
            {
                "code": "overhead_not_measured",
                "message": f"Overhead: {MEASURING}",
                "hint": "run `loaderbench selftest`.",
            },
            {
                "code": "ceiling_not_measured",
                "message": f"Storage capacity and ceiling: {MEASURING}; add the arm fetch.",
            },
            {
                "code": "residency_unknown",
                "message": "The cache was left as it was, so the storage share holds for that state alone.",
            },
        ],
    }
    return plain.from_json(RunRecord, plain.to_json(made))


def heavy() -> RunRecord:
    """A run with much to say: more advice and caveats than fit, each of them long."""
    record = measured(dataset_name="a data set with a long name", loader_options={"key": "value"})
    verdict = verdict_of(record)
    long = "decode in threads, directly into the batch: --loader threaded --decoder libjpeg --output uint8 --workers 2"
    advice = tuple(replace(verdict.advice[0], action=f"{long} (more threads give < 3 %)") for _ in range(5))
    told = ("cold_not_proven", "witnesses_disagree", *(row.code for row in CAVEATS[:14]))
    caveats = tuple(Caveat(code, message=f"{long} {code}") for code in dict.fromkeys(told) if code != "eviction_failed")
    return replace(record, verdict=replace(verdict, advice=advice), caveats=caveats)


def ended_badly(status: Status = "failed", **changes: Any) -> RunRecord:
    """A run without a single figure."""
    return RunRecord(
        schema=SCHEMA,
        rules_version=RULES_VERSION,
        run_id="20250102-030506-007-512-dali-w8-1a2b3c4d-5e6f70",
        status=status,
        failure=Failure("CaseFailed", "worker 3 was killed by signal 9; look for the OOM killer in dmesg"),
        case=case(**{"loader": "dali", "decoder": None, **changes}),
        environment=None,
        started_at="2025-01-02T03:05:06.007+00:00",
        wall_s=3.0,
    )


def sweep() -> list[RunRecord]:
    """Three resolutions × three loaders: compute-bound when small, prep-bound when large; one failed."""
    loaders = [("serial", "pillow", 0, 4.0), ("multiprocess", "pillow", 8, 1.0), ("threaded", "turbojpeg", 8, 0.6)]
    records = []
    for resolution, prep_ms in ((256, 20.0), (512, 62.0), (1024, 190.0)):
        for number, (loader, decoder, workers, factor) in enumerate(loaders):
            free_ms = prep_ms * factor
            ram_ms = max(33.0, free_ms * 1.03)
            record = measured(
                run_id=f"20250102-0304{number:02d}-006-{resolution}-{loader}-w{workers}-0a1b2c3d-4e5f60",
                free_ms=free_ms,
                ram_ms=ram_ms,
                real_ms=ram_ms + 1.0 + 0.02 * free_ms,
                bottleneck="prep" if ram_ms > 36.5 else "compute",
                dataset=f"/data/photos/{resolution}",
                resolution=resolution,
                loader=loader,
                decoder=decoder,
                workers=workers,
            )
            records.append(record)
    return [*records, ended_badly(resolution=1024, dataset="/data/photos/1024")]


def nvme_and_nfs() -> dict[str, list[RunRecord]]:
    """The sides of a comparison: the second storage is much slower cold, and equal warm."""
    sides: dict[str, list[RunRecord]] = {"nvme": [], "nfs": []}
    for cache in ("cold", "warm"):
        for workers in (1, 32):
            for name, records in sides.items():
                real_ms = 300.0 if (name, cache) == ("nfs", "cold") else 70.0
                record = measured(
                    run_id=f"{name}-{cache}-{workers}", real_ms=real_ms, dataset=f"/{name}/512", dataset_name=name,
                    cache=cache, workers=workers,
                )  # fmt: skip
                if name == "nfs":
                    nfs = NfsOperations(
                        operations_per_s=610.0, rtt_s=0.0052, queue_s=0.0001, exe_s=0.0054, retransmits=0.0,
                        in_flight=3.1,
                    )  # fmt: skip
                    record = replace(record, storage=replace(storage_of(record), nfs=nfs))
                records.append(record)
    return sides


# -- records that differ ---------------------------------------------------------------------------------


def verdict_of(record: RunRecord) -> Verdict:
    assert record.verdict is not None
    return record.verdict


def summed_up(record: RunRecord, summary: str) -> RunRecord:
    return replace(record, verdict=replace(verdict_of(record), summary=summary))


def without_share(record: RunRecord, name: Share) -> RunRecord:
    assert record.shares is not None
    return replace(record, shares={**record.shares, name: None})


def storage_of(record: RunRecord) -> StorageFigures:
    assert record.storage is not None
    return record.storage


def device_of(record: RunRecord) -> DeviceFigures:
    assert record.device is not None
    return record.device


def with_gaps(record: RunRecord, gap: KernelGap) -> RunRecord:
    return replace(record, device=replace(device_of(record), kernel_gap=gap))


def kernel_gap(
    by_class: Mapping[GapClass, GapShare],
    *,
    total_fraction: float,
    count_per_step: float,
    p50_s: float | None,
    p95_s: float | None = None,
    histogram: GapHistogram | None = None,
    num_steps: int = 10,
) -> KernelGap:
    """What a traced window of a run showed."""
    return KernelGap(
        num_steps=num_steps,
        count_per_step=count_per_step,
        p50_s=p50_s,
        p95_s=p95_s,
        total_fraction=total_fraction,
        by_class=by_class,
        histogram=histogram or GapHistogram((1e-5, 1e-3), (5, 10, 5)),
        largest=(),
        perturbation_fraction=None,
        busy_fraction=1 - total_fraction,
        kernel_fraction=1 - total_fraction,
        event_busy_fraction=1.0,
        kernels_per_step=100.0,
        source="made up",
        clock=TraceClock(0, 0, 0),
    )
