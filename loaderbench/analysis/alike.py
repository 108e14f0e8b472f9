"""Whether the arms' loaders did the same work. Arms may differ only in what they leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.statistics import blocks_of, draws_of_mean
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SPAN, STEP, Recording, Segment

ALIKE = 0.02
"""Fraction by which the CPU time of preparing an image may differ between two arms. Equal work on a quiet machine is
within 1 %; what glibc's trimming of the heap does is 10 to 30 % (`selftest --only alike`)."""
PAIRS = ((Arm.RAM, Arm.REAL), (Arm.PREP, Arm.FREE))
"""Arms that prepare the same images beside the same device work, the first from memory."""
ARMS_ALIKE = tuple(arm for pair in PAIRS for arm in pair)
LEAST_WINDOWS = 2
"""The machine's own drift shows between windows only."""
STREAMS = {Arm.RAM: 11, Arm.REAL: 12, Arm.PREP: 13, Arm.FREE: 14}
"""Of random numbers: other ones than those of the steps."""


@dataclass(frozen=True)
class Preparation:
    """What workers spend on preparing one image in one arm, reading left out."""

    cpu_s: Quantity
    minor_faults: float
    num_windows: int


@dataclass(frozen=True)
class Difference:
    """An arm whose loader needs more or less CPU time for the same images than another's."""

    arm: Arm
    other: Arm
    ratio: Quantity
    """CPU time of preparing an image in `arm` ÷ the same in `other`."""
    more_faults: float
    """Minor page faults an image in `arm` beyond those in `other`."""


def preparation(segments: Sequence[Segment]) -> Preparation | None:
    """Return what preparing an image took in an arm's windows; None where the loader does not record it."""
    windows: list[list[NDArray[np.float64]]] = []
    for segment in segments:
        spans, rows = segment.spans, segment.window
        if spans is None or spans.shape[1] <= SPAN["read_cpu_ns"] or not len(rows):
            return None
        spans = spans[segment.num_warmup : len(segment.steps)]
        if len(spans) != len(rows) or (spans[:, [SPAN["read_cpu_ns"], SPAN["minor_faults"]]] < 0).any():
            return None
        cpu_s = (spans[:, SPAN["cpu_ns"]] - spans[:, SPAN["read_cpu_ns"]]) / 1e9
        num_samples = rows[:, STEP["num_samples"]].astype(np.float64)
        windows.append([cpu_s / num_samples, spans[:, SPAN["minor_faults"]] / num_samples])
    if not windows:
        return None
    blocks = blocks_of(windows)
    cpu_s_mean, faults = blocks.means()
    if cpu_s_mean <= 0:
        return None
    stream = STREAMS.get(segments[0].arm, 0)
    return Preparation(
        Quantity(float(cpu_s_mean), draws_of_mean(blocks, stream)[:, 0], len(blocks)), float(faults), len(windows)
    )


def differences(recording: Recording) -> Iterator[Difference]:
    """Yield the pairs of arms whose preparation differs by more than ALIKE, beyond the interval of its ratio."""
    for arm, other in PAIRS:
        of_arm, of_other = preparation(recording.of(arm)), preparation(recording.of(other))
        if of_arm is None or of_other is None or min(of_arm.num_windows, of_other.num_windows) < LEAST_WINDOWS:
            continue
        ratio = of_arm.cpu_s / of_other.cpu_s
        if ratio.low > 1 + ALIKE or ratio.high < 1 - ALIKE:
            yield Difference(arm, other, ratio, of_arm.minor_faults - of_other.minor_faults)
