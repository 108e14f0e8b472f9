"""From segments to findings, as analyze goes, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loaderbench.analysis.model import Model
from loaderbench.analysis.steps import ArmSteps, join_arms
from loaderbench.analysis.verdict import Attribution, attribute
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import CacheState
from loaderbench.recording.facts import CacheFacts, CopyFacts, Run, Segment, StorageFacts
from loaderbench.recording.record import Estimate, Removable, Share
from tests.analysis.event_model import FILE_BYTES, NEVER_SHORT, Pipeline, measure
from tests.made import make_case, make_device, make_facts, make_loader, make_run

NUM_FILES = 1_000_000


def join(segments: Sequence[Segment], workers: int = 1) -> Mapping[Arm, ArmSteps]:
    return join_arms(segments, max(workers, 1))


def judge_arms(
    arms: Mapping[Arm, ArmSteps],
    *,
    reads_files: bool = True,
    owns_transfer: bool = False,
    synchronous: bool = False,
    overlap: bool = False,
    starved_fraction: float | None = None,
    storage_idle: bool = False,
) -> Attribution:
    """The findings on these arms."""
    model = Model(arms, reads_files, owns_transfer, synchronous, overlap, starved=starved_fraction)
    return attribute(model, storage_idle=storage_idle)


def judge(
    pipe: Pipeline, segments: Sequence[Segment] | None = None, storage_idle: bool = False, **given: Any
) -> Attribution:
    """The findings on the pipeline's run, measured as `given` says unless its segments are there already."""
    return judge_arms(
        join(measure(pipe, **given) if segments is None else segments, pipe.workers),
        reads_files=pipe.reads_files,
        owns_transfer=pipe.owns_transfer,
        synchronous=pipe.workers == 0,
        overlap=pipe.overlap,
        storage_idle=storage_idle,
    )


def run_of(pipe: Pipeline, segments: Sequence[Segment] | None = None, *, name: str = "r", **given: Any) -> Run:
    """The pipeline's run as it is stored, its segments measured as `given` says unless they are there already."""
    is_slow = pipe.latency_ms or pipe.storage_ms or pipe.is_uneven
    cache: CacheState = "as-is" if is_slow else "warm"
    loader = "serial" if not pipe.workers else "multiprocess" if pipe.in_turn else "threaded"
    case = make_case(
        workers=pipe.workers, prefetch=pipe.prefetch, overlap=pipe.overlap, cache=cache, loader=loader
    )  # fmt: skip
    facts = make_facts(
        device=make_device(overlap=pipe.overlap),
        loader=make_loader(decodes=pipe.reads_files, owns_transfer=pipe.owns_transfer),
        cache=CacheFacts(cache, measured_once=False),
        copy=CopyFacts(batch_bytes=38_535_168, link_bytes_per_s=50e9),
    )
    if pipe.tells_all:  # each file is read once
        facts = replace(facts, storage=StorageFacts(NUM_FILES, NUM_FILES * FILE_BYTES, source="test", reason=None))
    measured = measure(pipe, **given) if segments is None else list(segments)
    cpus = (pipe.cores or NEVER_SHORT) if pipe.tells_all else 2
    return make_run(case, measured, facts=facts, cpus_usable=cpus, run_id=name, sampling_cpu_s=0.1)


def gain(found: Attribution, cause: Removable) -> float:
    estimate = found.verdict.speedup_if_removed[cause]
    assert estimate is not None
    return estimate.value


def share(found: Attribution, name: Share) -> float:
    estimate = found.shares[name]
    assert estimate is not None
    return estimate.value


def waits(found: Attribution) -> tuple[float, float]:
    """The wait for data by the arms and by the timeline."""
    waiting = found.verdict.waiting_for_data
    assert waiting is not None
    return waiting.by_arms.value, waiting.by_timeline.value


def reasons(found: Attribution) -> list[str]:
    """The verdict's reasons in words."""
    return [reason.text() for reason in found.verdict.reasons]


def estimates(found: Attribution) -> list[Estimate]:
    """Every estimate in the findings."""
    verdict = found.verdict
    given = [*found.shares.values(), *verdict.speedup_if_removed.values(), found.utilization, verdict.joint_speedup]
    if verdict.waiting_for_data is not None:
        given += [verdict.waiting_for_data.by_arms, verdict.waiting_for_data.by_timeline]
    return [estimate for estimate in given if estimate is not None]


def assert_sound(found: Attribution) -> None:
    """What holds of any findings: finite, value within its interval, no loss from removing a cause."""
    for estimate in estimates(found):
        ends = [end for end in (estimate.low, estimate.high) if end is not None]
        assert np.isfinite([estimate.value, *ends]).all()
        assert (estimate.low is None) == (estimate.n < 2)  # one block has no width
        if estimate.low is None:
            assert estimate.high is None
        elif estimate.high is None:  # not bounded
            assert estimate.unit == "ratio" and estimate.low <= estimate.value
        else:
            assert estimate.low <= estimate.value <= estimate.high
            assert estimate.unit == "fraction" or estimate.high <= 10 * estimate.value
    verdict = found.verdict
    for speedup in verdict.speedup_if_removed.values():
        assert speedup is None or speedup.low is None or speedup.low >= 1.0 - 1e-12
    known = [estimate for estimate in found.shares.values() if estimate is not None]
    assert all(estimate.value >= -1e-12 for estimate in known)
    # A verdict is undetermined for a reason. Others have one where causes were not, or cannot be, told apart.
    codes = {reason.code for reason in verdict.reasons}
    assert (verdict.bottleneck == "undetermined") == bool(codes - {"not_separated"}) or verdict.bottleneck == "mixed"
    assert all(reason.text() for reason in verdict.reasons)
