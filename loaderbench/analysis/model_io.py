"""`model io`, judged from its stored facts: what copies of a batch take, and how many bytes a second that is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.model_split import median_of
from loaderbench.recording.model_io import CopiesFacts, CopyFigures, IoFacts, IoRow, ModelIo
from loaderbench.recording.record import Estimate

BY_PROFILE = "bytes ÷ the copy rate of the device's profile"
NOT_MEASURED = "it was interrupted before"


def io_of(facts: IoFacts) -> ModelIo:
    """The table. A pure function of the facts."""
    return ModelIo(
        model=facts.model,
        precision=facts.precision,
        device_name=facts.device_name if facts.device is None else facts.device.name,
        input_size=facts.input_size,
        channels=facts.channels,
        inputs=facts.inputs,
        same_memory=facts.device is not None and facts.device.on_host_cpus,
        known=facts.known,
        batches=tuple(_row(facts, batch) for batch in facts.batches),
        interrupted=len(facts.batches) < facts.num_batches,
    )


def _row(facts: IoFacts, batch: CopiesFacts) -> IoRow:
    rate = None if facts.known is None else facts.known.bytes_per_s
    why = None if batch.failure is None else batch.failure.message
    return IoRow(
        batch_size=batch.batch_size,
        data_in=_figures(batch.in_bytes, batch.in_s, rate),
        data_out=_figures(batch.out_bytes, batch.out_s, rate),
        why=why,
    )


def _figures(num_bytes: int | None, seconds: NDArray[np.float64] | None, rate: float | None) -> CopyFigures:
    if num_bytes is not None and rate is not None:
        taken = Estimate(num_bytes / rate, None, None, "s", 0, BY_PROFILE)
        return CopyFigures(num_bytes, taken, Estimate(rate, None, None, "bytes/s", 0, BY_PROFILE))
    if num_bytes is None or seconds is None or not len(seconds):
        return CopyFigures(num_bytes, None, None)
    return CopyFigures(num_bytes, median_of(seconds), median_of(num_bytes / seconds, "bytes/s"))
