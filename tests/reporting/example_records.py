"""Run records for tests of what draws them.

MADE UP: no figure here was measured. They are computed from invented arm times, so that shares, rates and
speed-ups of one record agree with each other as those of a real one must.
"""

from __future__ import annotations

from typing import Any

MEASURING = "not measured in this made-up example"


def estimate(value: float, half_width_fraction: float = 0.02, unit: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "value": value,
        "low": value * (1 - half_width_fraction),
        "high": value * (1 + half_width_fraction),
        "n": 12,
        "method": "made up",
    }
    if unit is not None:
        made["unit"] = unit
    return made


def case(**changes: Any) -> dict[str, Any]:
    made = {
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
    return {**made, **changes}


def measured(
    *,
    run_id: str = "20250102-030405-006-512-multiprocess-w8-0a1b2c3d-4e5f60",
    device_ms: float = 32.0,
    host_ms: float = 33.0,
    ram_ms: float = 64.0,
    real_ms: float = 70.0,
    free_ms: float = 62.0,
    bottleneck: str = "prep",
    **changes: Any,
) -> dict[str, Any]:
    """A run that ended well: as on a laptop with an emulated H200 (no kernel times, no cold proof)."""
    asked = case(**changes)
    batch = asked["batch_size"]

    def rate(step_ms: float, half_width_fraction: float = 0.02) -> dict[str, Any]:
        return estimate(batch / step_ms * 1e3, half_width_fraction, "samples/s")

    shares = {
        "compute": estimate(device_ms / real_ms),
        "launch": None,
        "transfer": estimate((host_ms - device_ms) / real_ms, 0.3),
        "prep": estimate((ram_ms - host_ms) * 0.9 / real_ms),
        "contention": estimate((ram_ms - host_ms) * 0.1 / real_ms, 0.5),
        "storage": estimate((real_ms - ram_ms - 1) / real_ms, 0.4),
        "unexplained": estimate(1 / real_ms, 0.9),
    }
    return {
        "schema": 1,
        "run_id": run_id,
        "status": "ok",
        "failure": None,
        "case": asked,
        "environment": {
            "cpu": "Example CPU",
            "cpus_usable": 8,
            "memory_bytes": 34359738368,
            "kernel": "6.1.0-example",
            "python": "3.11.2",
            "torch": "2.11.0",
            "loaderbench": "0.1.0",
        },
        "started_at": "2025-01-02T03:04:05.006+00:00",
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
                {"action": "Decode with turbojpeg: --decoder turbojpeg.", "predicted_speedup": estimate(1.6, 0.1)},
                {"action": "Store the images at 256: loaderbench dataset derive.", "predicted_speedup": None},
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
            "bandwidth_bytes_per_s": 0.0,
            "ceiling_bytes_per_s": None,
            "source": "/proc/diskstats nvme0n1 sectors_read",
            "cache_state": asked["cache"],
            "residency_fraction": {"before": 1.0, "after": 1.0},
            "cold_proven": None,
        },
        "stages": {"read": 0.00011, "decode": 0.0054, "augment": 0.0019, "collate": 0.00021},
        "cpu": {"busy_fraction": 0.93, "seconds_per_sample": 0.0081, "workers_rss_bytes": 2_900_000_000},
        "device": {
            "name": "emulated H200 (resnet50 train fp32)",
            "busy_fraction": device_ms / real_ms,
            "kernel_gap": None,
            "memory_peak_bytes": None,
            "nvml": None,
        },
        "overhead_fraction": None,
        "caveats": [
            {
                "code": "emulated_device",
                "message": "The device is emulated: its step time is a profile's, not measured.",
            },
            {"code": "no_kernel_times", "message": f"Launch share and kernel gaps: {MEASURING}."},
            {"code": "no_overhead", "message": f"Overhead: {MEASURING}; run `loaderbench selftest`."},
            {"code": "no_fetch", "message": f"Storage capacity and ceiling: {MEASURING}; add the arm fetch."},
            {
                "code": "as_is",
                "message": "The cache was left as it was, so the storage share holds for that state alone.",
            },
        ],
    }


def ended_badly(status: str = "failed", **changes: Any) -> dict[str, Any]:
    """A run without a single figure."""
    return {
        "schema": 1,
        "run_id": "20250102-030506-007-512-dali-w8-1a2b3c4d-5e6f70",
        "status": status,
        "failure": {
            "kind": "CaseFailed",
            "message": "worker 3 was killed by signal 9; look for the OOM killer in dmesg",
        },
        "case": case(**{"loader": "dali", "decoder": None, **changes}),
        "environment": None,
        "started_at": "2025-01-02T03:05:06.007+00:00",
        "caveats": [],
    }


def sweep() -> list[dict[str, Any]]:
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
