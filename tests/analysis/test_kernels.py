"""Gaps between kernels: answers by hand, arithmetic on random intervals, and traces that lost something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loaderbench.analysis.kernels import (
    HISTOGRAM_EDGES_S,
    classify,
    clock_error_ns,
    disagreeing,
    gaps,
    missing,
    perturbation,
    summarize,
    union,
    window_of,
)
from loaderbench.cases.arms import Arm
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import (
    COPY,
    KERNEL,
    MEMSET,
    SPAN_FIELDS,
    STEP_FIELDS,
    Segment,
    TraceFacts,
    TraceWitness,
)
from loaderbench.recording.record import GAP_CLASSES, BusyWitnesses, DeviceFigures, GapShare, Verdict
from loaderbench.reporting.words import evidence
from tests.made import make_record, make_segment

COMPUTE, COPIES = 7, 13
"""Streams."""
Row = tuple[int, int, int, int, int]


def step(called: int, returned: int, issued: int, waited: int, done: int) -> list[int]:
    row = dict.fromkeys(STEP_FIELDS, -1) | {
        "called_ns": called, "returned_ns": returned, "issued_ns": issued, "waited_ns": waited,
        "copy_begin_ns": returned, "copy_end_ns": returned, "done_ns": done, "num_samples": 8, "encoded_bytes": 0,
    }  # fmt: skip
    return [row[name] for name in STEP_FIELDS]


def traced(steps: list[list[int]], rows: list[Row], workers: tuple[int, ...] | None = None, **trace: Any) -> Segment:
    spans = None
    if workers is not None:
        spans = np.zeros((len(workers), len(SPAN_FIELDS)), dtype=np.int64)
        spans[:, SPAN_FIELDS.index("worker")] = workers
    facts = replace(TraceFacts("a script", 0, 0, 0, ()), **trace)
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return make_segment(Arm.TRACED, np.array(steps, dtype=np.int64), spans, kernels=table, first_batch=40, trace=facts)


BEFORE = step(0, 10, 300, 300, 1000)
"""The step before the window, which begins at 1000."""
RAN: Row = (400, 1000, COMPUTE, KERNEL, 0)


def found(segment: Segment) -> list[tuple[int, int, str]]:
    assert segment.kernels is not None
    idle = gaps(union(segment.kernels[:, :2]), *window_of(segment))
    return [(int(a), int(b), GAP_CLASSES[kind]) for (a, b), kind in zip(idle, classify(idle, segment), strict=True)]


# -- scripted timelines ----------------------------------------------------------------------------------


def test_the_host_was_in_next() -> None:
    given_ = traced(
        [BEFORE, step(500, 2000, 2300, 2300, 3000)],
        [RAN, (2010, 2110, COPIES, COPY, 1), (2110, 3000, COMPUTE, KERNEL, 1)],
    )
    assert found(given_) == [(1000, 2010, "data_stall")]


def test_the_host_issued_too_slowly() -> None:
    given_ = traced(
        [BEFORE, step(900, 910, 2900, 2900, 3000)],
        [RAN, *((a, b, COMPUTE, KERNEL, 1) for a, b in ((1000, 1200), (1500, 1700), (2800, 3000)))],
    )
    assert found(given_) == [(1200, 1500, "launch"), (1700, 2800, "launch")]


def test_between_a_copy_and_the_first_kernel_that_was_in_the_queue() -> None:
    given_ = traced(
        [BEFORE, step(900, 910, 960, 960, 3000)],
        [RAN, (1000, 1600, COPIES, COPY, 1), (1650, 3000, COMPUTE, KERNEL, 1)],
    )
    assert found(given_) == [(1600, 1650, "transfer_sync")]


def test_the_host_woke_late_from_waiting_for_the_device() -> None:
    given_ = traced(
        [step(0, 10, 300, 1400, 1000), step(1400, 1410, 1500, 1500, 3000)],
        [RAN, (1480, 3000, COMPUTE, KERNEL, 1)],
    )
    assert found(given_) == [(1000, 1480, "transfer_sync")]


def test_a_kernel_that_was_in_the_queue_began_late() -> None:
    given_ = traced(
        [BEFORE, step(310, 320, 390, 390, 3000)],
        [RAN, (1000, 1500, COMPUTE, KERNEL, 1), (1505, 2990, COMPUTE, KERNEL, 1)],
    )
    assert found(given_) == [(1500, 1505, "other"), (2990, 3000, "other")]


def test_issuing_a_later_step_is_no_launch_gap_of_this_one() -> None:
    # given a host that is ahead: in the gap of step 1 it issues step 2
    given_ = traced(
        [BEFORE, step(310, 320, 390, 390, 2000), step(395, 400, 1900, 1900, 3000)],
        [
            RAN, (1000, 1500, COMPUTE, KERNEL, 1), (1600, 2000, COMPUTE, KERNEL, 1), (2000, 3000, COMPUTE, KERNEL, 2),
        ],
    )  # fmt: skip
    assert found(given_) == [(1500, 1600, "other")]


def test_what_runs_beside_a_copy_or_on_another_stream_is_no_gap() -> None:
    given_ = traced(
        [BEFORE, step(900, 910, 960, 960, 3000)],
        [
            RAN, (900, 1500, COPIES, COPY, 1), (1400, 2000, COMPUTE, KERNEL, 1), (1900, 3000, 20, KERNEL, 1),
            (1450, 1460, COMPUTE, MEMSET, 1),
        ],
    )  # fmt: skip
    assert found(given_) == []
    assert summarize(given_).p50_s is None


def mixed() -> Segment:
    """Two steps of 2000 ns: a stall of 1010, launch gaps of 300 and 500."""
    return traced(
        [BEFORE, step(500, 2000, 2300, 2300, 3000), step(2900, 2910, 4900, 4900, 5000)],
        [
            RAN, (2010, 2110, COPIES, COPY, 1), (2110, 3000, COMPUTE, KERNEL, 1),
            *((a, b, COMPUTE, KERNEL, 2) for a, b in ((3000, 3200), (3500, 4000), (4500, 5000))),
        ],
        workers=(3, 1, 2),
    )  # fmt: skip


def test_the_summary_of_a_scripted_window() -> None:
    gap = summarize(mixed())
    assert gap.num_steps == 2
    assert gap.count_per_step == 1.5
    assert gap.p50_s == pytest.approx(500e-9)
    assert gap.total_fraction == pytest.approx(1810 / 4000)
    assert gap.busy_fraction == pytest.approx(2190 / 4000)
    assert gap.kernel_fraction == pytest.approx(2090 / 4000)  # the copy left out
    assert gap.by_class["data_stall"] == GapShare(0.5, pytest.approx(1010 / 4000))
    assert gap.by_class["launch"] == GapShare(1.0, pytest.approx(800 / 4000))
    assert sum(one.fraction for one in gap.by_class.values()) == pytest.approx(gap.total_fraction)
    # occupancy: 3000 − 2000 and 5000 − 3000 of 4000
    assert gap.event_busy_fraction == pytest.approx(3000 / 4000)
    assert gap.perturbation_fraction is None
    first = gap.largest[0]
    assert (first.gap_class, first.step, first.batch, first.worker) == ("data_stall", 0, 41, 1)
    assert (first.begin_s, first.duration_s) == (0.0, pytest.approx(1010e-9))
    assert [one.batch for one in gap.largest] == [41, 42, 42]
    filled = [(edge, n) for edge, n in zip(HISTOGRAM_EDGES_S, gap.histogram.counts[1:], strict=True) if n]
    assert np.allclose(filled, [(1e-7, 1), (10**-6.5, 1), (1e-6, 1)], rtol=1e-9, atol=0)


def test_only_the_ten_largest_are_named() -> None:
    kernels = [(1000 + 100 * n, 1100 + 100 * n - n, COMPUTE, KERNEL, 1) for n in range(20)]
    gap = summarize(traced([BEFORE, step(900, 910, 2900, 2900, 3000)], [RAN, *kernels]))
    assert [round(one.duration_s * 1e9) for one in gap.largest] == list(range(19, 9, -1))


def test_what_tracing_costs_is_the_step_time_against_both_neighbours() -> None:
    def window(arm: Arm, period: int) -> Segment:
        steps = [step(0, 0, 0, 0, period * number) for number in range(5)]
        return make_segment(arm, np.array(steps))

    before, behind = window(Arm.UNTRACED, 100), window(Arm.UNTRACED, 120)
    assert perturbation(window(Arm.TRACED, 121), [before, behind]) == pytest.approx(0.10)


# -- random intervals ------------------------------------------------------------------------------------

intervals = st.lists(st.tuples(st.integers(-20, 120), st.integers(0, 30)), max_size=30).map(
    lambda pairs: np.array([(begin, begin + length) for begin, length in pairs], dtype=np.int64).reshape(-1, 2)
)


def covered(some: NDArray[np.int64]) -> set[int]:
    return {at for begin, end in some.tolist() for at in range(begin, end)}


@given(intervals, st.integers(-10, 110), st.integers(0, 110))
def test_union_and_gaps_fill_the_window(some: NDArray[np.int64], begin: int, length: int) -> None:
    end = begin + length
    merged = union(some)
    idle = gaps(merged, begin, end)
    assert covered(merged) == covered(some)
    assert np.all(merged[1:, 0] > merged[:-1, 1]) and np.all(merged[:, 1] > merged[:, 0])  # disjoint, in order
    assert covered(idle) == set(range(begin, end)) - covered(some)
    busy = len(covered(some) & set(range(begin, end)))
    assert busy + int((idle[:, 1] - idle[:, 0]).sum()) == length
    assert np.all(idle[:, 1] > idle[:, 0])


def test_nothing_leaves_all_of_the_window() -> None:
    assert gaps(union(np.empty((0, 2), dtype=np.int64)), 5, 9).tolist() == [[5, 9]]


def test_a_million_intervals_take_no_time() -> None:
    begin = np.arange(1_000_000, dtype=np.int64)[::-1] * 10
    merged = union(np.stack([begin, begin + 5], axis=1))
    assert len(merged) == 1_000_000
    assert len(gaps(merged, 0, 10_000_000)) == 1_000_000


# -- traces that lost something --------------------------------------------------------------------------


def steady(kernels: int = 100, num_steps: int = 6, **trace: Any) -> Segment:
    """Steps of 1000 ns, each of `kernels` kernels in its second half."""
    steps = [step(1000 * n, 1000 * n + 10, 1000 * n + 900, 1000 * n + 900, 1000 * n + 1000) for n in range(num_steps)]
    rows = [
        (1000 * n + 500 + 5 * k, 1000 * n + 503 + 5 * k, COMPUTE, KERNEL, n)
        for n in range(num_steps)
        for k in range(kernels)
    ]
    return traced(steps, rows, **trace)


def without(segment: Segment, step_number: int, how_many: int) -> Segment:
    assert segment.kernels is not None
    lost = np.flatnonzero(segment.kernels[:, 4] == step_number)[:how_many]
    return replace(segment, kernels=np.delete(segment.kernels, lost, axis=0))


def witness(counted: float, expected: float, at_least: bool = False) -> TraceWitness:
    return TraceWitness("pieces", counted, expected, at_least)


def said(segment: Segment) -> list[str]:
    """What the trace lacks, in words."""
    return [reason.text() for reason in missing(segment)]


def test_a_whole_trace_is_missing_nothing() -> None:
    assert missing(steady(witnesses=(witness(100, 100), witness(100, 60, at_least=True)))) == []
    assert missing(without(steady(), 3, 5)) == []  # 5 % are allowed


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (without(steady(), 3, 6), "1 of 5 steps differ by more than 5"),
        (without(steady(), 3, 100), "1 of 5 steps have no kernel"),
        (without(steady(kernels=4), 5, 3), "1 of 5 steps differ by more than 2"),
        (steady(kernels=1, graph_launches=5), "1 kernels for 1.0 CUDA graph launches per step"),
        (steady(witnesses=(witness(100, 110),)), "pieces of the virtual timeline: 100 per step, expected 110"),
        (steady(witnesses=(witness(110, 100),)), "pieces of the virtual timeline: 110 per step, expected 100"),
        (steady(witnesses=(witness(100, 110, at_least=True),)), "expected at least 110"),
    ],
)
def test_a_trace_that_lost_kernels_says_so(broken: Segment, says: str) -> None:
    assert any(says in reason for reason in said(broken)), said(broken)


def test_a_graph_of_many_kernels_that_were_recorded_is_whole() -> None:
    assert missing(steady(kernels=60, graph_launches=5)) == []


def test_clocks_that_do_not_fit_are_seen() -> None:
    shifted = steady()
    assert shifted.kernels is not None and clock_error_ns(shifted) == 0
    shifted.kernels[:, :2] += 200  # the last kernels of a step now end behind it
    assert clock_error_ns(shifted) > 100
    assert any("clocks do not match" in reason for reason in said(shifted))


# -- words -----------------------------------------------------------------------------------------------


def test_witnesses_of_the_busy_time_agree_within_three_points() -> None:
    agree = BusyWitnesses(kernels=0.92, nvml=0.945, gpm=0.90, events_at_most=0.97)

    def told(**changes: float | None) -> str:
        seen = replace(agree, **changes)
        apart = disagreeing(seen, 0.03)
        if not apart:
            return ""
        caveat = Caveat("busy_witnesses_disagree", {"kernels": seen.kernels, "others": apart})
        return caveat.worded().message

    assert told() == ""
    assert "nvml 96.0%" in told(nvml=0.96)
    assert "gpm 80.0%" in told(gpm=0.80)
    assert "events at most 85.0%" in told(events_at_most=0.85)
    assert told(nvml=None, gpm=None) == ""


def test_the_evidence_names_shares_and_witnesses() -> None:
    witnesses = BusyWitnesses(kernels=0.5225, nvml=0.53, gpm=None, events_at_most=0.75)
    device = DeviceFigures(
        kind="cuda", name="a GPU", emulated=False, overlap=True, memory_bytes=None, details={}, busy_fraction=None,
        kernel_gap=summarize(mixed()), busy_witnesses=witnesses, memory_peak_bytes=None, nvml=None, clock_drift_ns=None,
    )  # fmt: skip
    first, second = evidence(make_record(device=device, verdict=Verdict("undetermined")))
    assert "45.2%" in first and "data_stall 25.2%" in first and "launch 20.0%" in first and "other" not in first
    assert "kernels 52.2%, nvml 53.0%" in second and "at most 75.0%" in second and "gpm" not in second
