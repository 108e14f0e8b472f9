"""What `loaderbench model size` asks for, read into a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loaderbench.cases.case import Step
from loaderbench.cases.options import ModelOptions, SizeOptions
from loaderbench.cases.study import check_range, check_seconds
from loaderbench.devices.base import KnownTimes
from loaderbench.devices.select import known_times
from loaderbench.errors import ConfigError
from loaderbench.studies.model import plan_model

if TYPE_CHECKING:
    from loaderbench.recording.model_size import FeedFacts, FileSource

NUM_ROUNDS = 3
LEAST_STEPS = 4
"""Steps of a batch in a round: the blocks that its interval rests on."""


@dataclass(frozen=True)
class SizePlan:
    """What is to be measured, and what is to be answered."""

    step: Step
    """Of batch 1."""
    on_host_cpus: bool
    seed: int
    target_per_s: float | None
    latency_s: float | None
    percentile: float
    batch_sizes: tuple[int, ...] | None
    """None: doubled."""
    max_batch: int | None
    num_steps: int | None
    """Of each batch in a round; None: as the time allows."""
    duration_s: float
    times: KnownTimes | None
    """None: they are measured."""
    feed: FeedFacts | None = None
    no_feed: str | None = None
    mean_file_bytes: float | None = None
    mean_file_source: FileSource | None = None


def plan_size(model: str, options: ModelOptions, asked: SizeOptions, results: Path) -> SizePlan:
    """What the options ask for. `results`: the folder of the runs that may tell of loader and storage.

    Raises:
        ConfigError: a value out of range, a contradiction, no such device, run or data set.
    """
    if asked.target is None and asked.latency is None:
        raise ConfigError("give a goal: --target 5000/s, --latency 50ms, or both")
    if not 1 <= asked.percentile <= 99.99:
        raise ConfigError(f"--percentile must be from 1 to 99.99, not {asked.percentile:g}")
    for size in asked.batch_size or ():
        check_range("--batch-size", size, 1)
    check_range("--max-batch", asked.max_batch, 1)
    check_range("--steps", asked.steps, LEAST_STEPS * NUM_ROUNDS)
    check_seconds("--duration", asked.duration, 1.0)
    if asked.batch_size is not None and asked.max_batch is not None:
        raise ConfigError("give either --batch-size or --max-batch")
    planned = plan_model(model, options)
    from loaderbench.recording.store import Store  # late: it needs numpy
    from loaderbench.studies.stored_feed import find_feed

    feed, no_feed = find_feed(Store(results), asked.run, asked.data)
    mean, source = _mean_file_bytes(asked, feed)
    return SizePlan(
        step=planned.step,
        on_host_cpus=planned.device.on_host_cpus,
        seed=planned.seed,
        target_per_s=asked.target,
        latency_s=asked.latency,
        percentile=asked.percentile,
        batch_sizes=None if asked.batch_size is None else tuple(sorted({*asked.batch_size})),
        max_batch=asked.max_batch,
        num_steps=None if asked.steps is None else math.ceil(asked.steps / NUM_ROUNDS),
        duration_s=asked.duration,
        times=known_times(planned.step.device),
        feed=feed,
        no_feed=no_feed,
        mean_file_bytes=mean,
        mean_file_source=source,
    )


def _mean_file_bytes(asked: SizeOptions, feed: FeedFacts | None) -> tuple[float | None, FileSource | None]:
    """(mean size of a file, where it is from)."""
    if asked.mean_file_bytes is not None:
        return float(asked.mean_file_bytes), "given"
    if asked.data is not None:
        from loaderbench.images.index import index_images

        return float(index_images(str(asked.data.resolve())).sizes.mean()), "data"
    mean = None if feed is None else feed.mean_file_bytes
    return mean, None if mean is None else "run"
