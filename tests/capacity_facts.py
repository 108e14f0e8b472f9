"""Made-up looks at ranks whose times are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from made import make_case, make_device, make_environment, rates_probe
from numpy.typing import NDArray

from loaderbench.recording.capacity import CapacityFacts, Look, RankPart
from loaderbench.recording.facts import CpuWindow

STEP_S, BATCH = 0.1, 4
IMAGE_BYTES = 50_000


def cpu_window(own_s: float, wall_s: float, machine_busy_s: float, **more: Any) -> CpuWindow:
    known: dict[str, Any] = {
        "own_queued_s": 0.0, "consumer_queued_s": 0.0, "stolen_s": 0.0, "cpus": 2, "quota_cpus": None,
        "num_throttled": None,
    }  # fmt: skip
    return CpuWindow(wall_s, own_s, machine_busy_s=machine_busy_s, **{**known, **more})


def look_of(
    ready_s: NDArray[np.float64], *, busy: float = 0.1, cpu_s: float = 0.001, read_part: float = 0.9, images: int = 1000
) -> Look:
    """Batches that are there at these seconds [ranks, steps] after the start, and steps issued at once. `busy`: part of
    2 processors; `cpu_s`: of an image; `read_part`: of the loading, a tenth of a step."""
    ranks, steps = ready_s.shape
    wall_s = float(ready_s.max()) + STEP_S
    ready = np.rint(ready_s * 1e9).astype(np.int64)
    loading_s = 0.1 * STEP_S
    parts = []
    for row in ready:
        table = np.stack([row - round(loading_s * 1e9), row, row + round(STEP_S * 1e9)], axis=1)
        cpu = cpu_window(cpu_s * BATCH * steps, wall_s, 2 * busy * wall_s)
        parts.append(
            RankPart(
                steps=table,
                num_images=images // ranks,
                encoded_bytes=IMAGE_BYTES * BATCH * steps,
                num_reads=BATCH * steps,
                read_s=read_part * loading_s * steps,
                cpu=cpu,
            )
        )
    return Look(ranks, tuple(parts), 0.0, 0.0)


def even(ranks: int, interval_s: float, steps: int = 60) -> NDArray[np.float64]:
    """Each rank has a batch at the same instants, `interval_s` apart."""
    return np.tile(np.arange(steps) * interval_s, (ranks, 1))


def au_look(ranks: int, au: float, **more: Any) -> Look:
    """Ranks with this AU."""
    return look_of(even(ranks, STEP_S / au), **more)


def capacity_facts(*looks: Look, storage: float | None = 400.0, **changes: Any) -> CapacityFacts:
    """`storage`: images/s of the ceiling; None: it was not probed. One rank takes 40 images/s."""
    known: dict[str, Any] = {
        "case": make_case(loader="serial", workers=0, batch_size=BATCH, cache="cold", device="emulated:toy"),
        "au_target": 0.9,
        "max_ranks": 32,
        "barrier": "step",
        "least_steps": 10,
        "environment": make_environment(),
        "num_images": 1000,
        "image_bytes": 1000 * IMAGE_BYTES,
        "file_system": "ext4",
        "in_memory": False,
        "device": make_device(name="a toy"),
        "step_ns": round(STEP_S * 1e9),
        "period_ns": round(STEP_S * 1e9),
        "probe": None if storage is None else rates_probe(*[storage * IMAGE_BYTES] * 3),
        "looks": looks,
        "interrupted": False,
    }
    return CapacityFacts(**{**known, **changes})


def of_storage(ranks: Sequence[int], storage: float = 400.0, **more: Any) -> list[Look]:
    """Looks at ranks that share what a storage gives, 40 images/s of which each takes."""
    return [au_look(number, min(1.0, storage / (40.0 * number)), **more) for number in ranks]
