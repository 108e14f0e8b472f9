"""One model in every precision: each mode's time, memory and numbers against fp32's. docs/precision.md defines them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.agreement import inference_agreement, training_agreement
from loaderbench.analysis.statistics import Blocks, blocks_of, draws_of_mean, interval
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.record import Estimate
from loaderbench.recording.studies import (
    InferenceAgreement,
    ModeFacts,
    ModeFigures,
    NumberFacts,
    PrecisionFacts,
    PrecisionResult,
    RawNumbers,
    TrainingAgreement,
)

NUM_BLOCKS = 10
"""Blocks of consecutive steps that the intervals rest on."""


def compare_precisions(facts: PrecisionFacts) -> PrecisionResult:
    """All results of the modes measured so far; fp32 is the first of them."""
    fp32 = facts.modes[0] if facts.modes else None
    shared = facts.device is not None and facts.device.on_host_cpus
    return PrecisionResult(
        model=facts.model,
        mode=facts.mode,
        device=facts.device,
        device_name=facts.device_name if facts.device is None else facts.device.name,
        num_steps=facts.num_steps,
        batch_size=facts.batch_size,
        input_size=facts.input_size,
        inputs=facts.inputs,
        seed=facts.seed,
        environment=facts.environment,
        memory_of="rss_growth_bytes" if shared else "allocated_bytes",
        modes=tuple(_figures(facts, mode, fp32, shared=shared) for mode in facts.modes),
        caveats=tuple(_caveats(facts, fp32, shared=shared)),
    )


def _caveats(facts: PrecisionFacts, fp32: ModeFacts | None, *, shared: bool) -> list[Caveat]:
    caveats = list(facts.caveats)
    if fp32 is None or fp32.timing is None:
        caveats.append(Caveat("fp32_not_measured"))
    if shared:
        caveats.append(Caveat("memory_is_rss"))
        return caveats
    reasons = {mode.timing.memory.missing.get("process_bytes") for mode in facts.modes if mode.timing is not None}
    known = sorted(reason for reason in reasons if reason is not None)
    return [*caveats, *(Caveat("process_memory_not_measured", {"reason": reason}) for reason in known)]


def _figures(facts: PrecisionFacts, mode: ModeFacts, fp32: ModeFacts | None, *, shared: bool) -> ModeFigures:
    timing, numbers = mode.timing, mode.numbers
    figures = ModeFigures(
        precision=mode.precision,
        status=mode.status,
        failure=mode.failure,
        loss_scale=None,
        total_s=None,
        images_per_s=None,
        speedup=None,
        memory=None,
        memory_ratio=None,
        workload=None,
        raw=RawNumbers(
            step_s=None if timing is None else tuple(timing.step_s.tolist()),
            loss=None if numbers is None else _finite(numbers.loss),
            gradient_norm=None if numbers is None else _finite(numbers.gradient_norm),
        ),
        agreement=_agreement(facts, mode),
    )
    if timing is None:
        return figures
    blocks, optimizer = _blocks(timing.step_s), timing.workload.optimizer
    figures = replace(
        figures,
        loss_scale=None if optimizer is None else optimizer.loss_scale,
        total_s=math.fsum(timing.step_s),
        images_per_s=_ratio(facts.batch_size, blocks),
        memory=timing.memory,
        workload=timing.workload,
    )
    if fp32 is None or fp32.timing is None:
        return figures
    itself = Estimate(1.0, 1.0, 1.0, "ratio", len(blocks), "the others are compared with fp32")
    name = "rss_growth_bytes" if shared else "allocated_bytes"
    mine, theirs = getattr(timing.memory, name), getattr(fp32.timing.memory, name)
    return replace(
        figures,
        speedup=itself if mode is fp32 else _ratio(_blocks(fp32.timing.step_s), blocks),
        memory_ratio=mine / theirs if mine is not None and theirs else None,
    )


def _agreement(facts: PrecisionFacts, mode: ModeFacts) -> TrainingAgreement | InferenceAgreement | None:
    """A mode's numbers against fp32's; fp32's against its own under another rounding. None where either is missing."""
    fp32 = facts.modes[0]
    mine = facts.repeat if mode is fp32 else mode.numbers
    if fp32.numbers is None or mine is None:
        return None
    if mine.outputs is not None and fp32.numbers.outputs is not None:
        return inference_agreement(mine.outputs, fp32.numbers.outputs)
    if mode is fp32:
        return replace(training_agreement(mine, fp32.numbers), agrees=None)  # it is the yardstick
    return training_agreement(mine, fp32.numbers, _own_deviation(facts, fp32.numbers))


def _own_deviation(facts: PrecisionFacts, fp32: NumberFacts) -> float:
    """Deviation of fp32 from itself under another rounding; 0 where fp32 was not followed twice."""
    if facts.repeat is None:
        return 0.0
    return training_agreement(facts.repeat, fp32).loss_deviation.mean or 0.0


def _finite(values: NDArray[np.float64] | None) -> tuple[float | None, ...] | None:
    """The values, None in place of those that are not finite."""
    return None if values is None else tuple(value if math.isfinite(value) else None for value in values.tolist())


def _blocks(step_s: Sequence[float] | NDArray[np.float64]) -> Blocks:
    return blocks_of([[np.asarray(step_s, dtype=np.float64)]], blocks_per_segment=NUM_BLOCKS)


def _ratio(over: Blocks | float, under: Blocks) -> Estimate:
    """`over` (a number, or another mode's step time) ÷ the step time, with the interval within these processes."""
    top: NDArray[np.float64] | float
    if isinstance(over, Blocks):
        value, top, unit, n = float(over.means()[0]), draws_of_mean(over, 0), "ratio", min(len(over), len(under))
    else:
        value, top, unit, n = float(over), float(over), "samples/s", len(under)
    draws = np.asarray(top / draws_of_mean(under, 1))
    return interval(value / float(under.means()[0]), draws, unit, n)
