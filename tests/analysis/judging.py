"""From segments to findings, as make_record goes, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderbench.analysis.attribution import Attribution, attribute
from loaderbench.analysis.record import ALL_ARMS
from loaderbench.analysis.steps import ArmSteps, arm_steps
from loaderbench.recording.types import Estimate, Segment
from tests.analysis.event_model import Pipeline, measure


def join(segments: Sequence[Segment], workers: int = 1) -> dict[str, ArmSteps]:
    found = {arm: arm_steps(segments, arm, stream, max(workers, 1)) for stream, arm in enumerate(ALL_ARMS)}
    return {arm: steps for arm, steps in found.items() if steps is not None}


def judge(
    pipe: Pipeline, segments: Sequence[Segment] | None = None, storage_idle: bool = False, **given: Any
) -> Attribution:
    """The findings on the pipeline's run, measured as `given` says unless its segments are there already."""
    return attribute(
        join(measure(pipe, **given) if segments is None else segments, pipe.workers),
        reads_files=pipe.reads_files,
        owns_transfer=pipe.owns_transfer,
        synchronous=pipe.workers == 0,
        starved_fraction=None,
        overlap=pipe.overlap,
        storage_idle=storage_idle,
    )


def gain(found: Attribution, cause: str) -> float:
    one = found.speedup_if_removed[cause]
    assert one is not None
    return one.value


def share(found: Attribution, cause: str) -> float:
    one = found.shares[cause]
    assert one is not None
    return one.value


def estimates(found: Attribution) -> list[Estimate]:
    """Every estimate in the findings."""
    given = [*found.shares.values(), *found.speedup_if_removed.values(), found.utilization, found.joint_speedup]
    given += found.witnesses or ()
    return [one for one in given if one is not None]


def assert_sound(found: Attribution) -> None:
    """What holds of any findings: finite, value within its interval, no loss from removing a cause."""
    for one in estimates(found):
        assert np.isfinite([one.value, one.low, one.high]).all()
        assert one.low <= one.value <= one.high
    for speedup in found.speedup_if_removed.values():
        assert speedup is None or speedup.low >= 1.0 - 1e-12
    known = [one for one in found.shares.values() if one is not None]
    assert all(one.value >= -1e-12 for one in known)
    assert (found.bottleneck == "undetermined") == bool(found.reasons) or found.bottleneck == "mixed"
