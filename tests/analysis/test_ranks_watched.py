"""Ranks of a script that is not ours, whose timelines are written down: whose batches are late, what is not told."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loaderbench.analysis.ranks import ranks_of
from loaderbench.analysis.record import analyze
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SCRIPT_LANE, STEP, STEP_FIELDS, RankRecording, Run, Segment
from loaderbench.recording.rank_place import RankPlace
from loaderbench.recording.ranks import RankedCase, RankedFigures, RankRun, RanksFacts, RankWindow
from tests.made import make_case, make_environment
from tests.watched_facts import MS, run_of, segment

Times = NDArray[np.float64]
WORK_MS = 10.0


def windows_of(data_ms: Times, end_ms: Times, read_ms: Times, cuts: Sequence[int]) -> tuple[RankWindow, ...]:
    """One rank's steps, which end at `end_ms`, in windows from each cut on."""
    begin = np.concatenate([[0.0], end_ms[:-1]])
    returned = begin + data_ms
    one = np.full(len(data_ms), 1.0)
    columns = [begin * MS, returned * MS, end_ms * MS, end_ms * MS, 4 * one, -one, read_ms * MS, MS * one, 0 * one]
    rows = np.rint(np.stack(columns, axis=1)).astype(np.int64)
    edges = [*cuts, len(rows)]
    return tuple(
        RankWindow(Arm.REAL, False, number, 1, rows[since:until], since)
        for number, (since, until) in enumerate(pairwise(edges))
    )


def found(
    data_ms: Times, *, read_ms: Times | None = None, cuts: Sequence[Sequence[int]] | None = None, alone: bool = False,
    away: Sequence[int] = (), nodes: Sequence[str] = ("a", "a", "a", "a"),
) -> RankedFigures:  # fmt: skip
    """[ranks, steps] waits of a training whose every step ends for all when the last rank arrives; `alone`: none waits
    for another."""
    ranks, num = data_ms.shape
    ends = (
        np.cumsum(data_ms + WORK_MS, axis=1) if alone else np.tile(np.cumsum(data_ms.max(axis=0) + WORK_MS), (ranks, 1))
    )
    read_ms = np.full((ranks, num), 2.0) if read_ms is None else read_ms
    parts = tuple(
        RankRun(
            RankPlace(rank, ranks, rank, nodes[rank], "a test"), f"run-{rank}", "ok", (),
            windows_of(data_ms[rank], ends[rank], read_ms[rank], (0,) if cuts is None else cuts[rank]), None,
        )
        for rank in range(ranks)
        if rank not in away
    )  # fmt: skip
    case = RankedCase(make_case(batch_size=4), parts, watched=True)
    (figures,) = ranks_of(RanksFacts(make_environment(), ranks, "a test", 1, (case,)), {}).cases
    return figures


def late(ranks: int, which: int, num: int = 80) -> Times:
    data = np.zeros((ranks, num))
    data[which] = 5.0
    return data


def test_the_rank_whose_batches_are_late_is_named_though_all_step_together() -> None:
    data = late(2, 1)
    figures = found(data, read_ms=2.0 + data, cuts=((0, 40), (0, 13, 50)))
    imbalance, part = figures.imbalance, figures.verdict.part
    assert imbalance is not None and part is not None
    assert imbalance.step_s == pytest.approx(0.015) and imbalance.mean_s == pytest.approx(0.0125)
    assert imbalance.fraction.value == pytest.approx(2.5 / 15)
    assert (figures.verdict.limited_by, part.pattern, part.late_by, part.rank) == ("imbalance", "rank", "reading", 1)
    assert [one.last_fraction for one in figures.ranks] == [0.0, 1.0]
    assert [one.data_s for one in figures.ranks] == pytest.approx([0.0, 0.005])
    assert all(one.own_step_s is None for one in figures.ranks)  # what a rank computes is not told
    assert figures.samples_per_s == pytest.approx(2 * 4 / 0.015)
    assert imbalance.num_steps == 80 - len({0, 13, 40, 50})  # the first one of a window has no begin


def test_batches_that_come_late_on_one_rank_after_the_other() -> None:
    data = np.zeros((3, 90))
    data[np.arange(90) % 3, np.arange(90)] = 5.0
    figures = found(data)
    part = figures.verdict.part
    assert part is not None and (part.pattern, part.rank) == ("rotating", None)
    assert figures.imbalance is not None and figures.imbalance.fraction.value == pytest.approx(10 / 3 / 15, rel=0.02)


def test_even_batches_are_nobody_s_and_nobody_is_last() -> None:
    figures = found(np.full((2, 60), 3.0))
    assert figures.imbalance is not None and figures.imbalance.fraction.value == pytest.approx(0.0, abs=1e-9)
    assert figures.verdict.limited_by is None
    assert [one.last_fraction for one in figures.ranks] == [0.0, 0.0]


def test_ranks_that_do_not_step_together_are_not_compared() -> None:
    figures = found(late(2, 1), alone=True)
    assert figures.imbalance is None and "do not step together" in figures.missing["imbalance"]
    assert "10 ms to 15 ms" in figures.missing["imbalance"]


def test_a_rank_that_handed_nothing_over_and_nodes_whose_clocks_differ() -> None:
    figures = found(late(3, 1), away=(2,), nodes=("a", "b", "b"))
    assert figures.missing["ranks"].startswith("rank 2 ") and figures.samples_per_s is None
    assert figures.strip == () and "clocks" in figures.missing["strips"]
    assert found(late(2, 1)).strip != ()
    alone = found(late(2, 1), away=(1,))
    assert alone.imbalance is None and "steps" in alone.missing["imbalance"]


def burst(step_ms: float, number: int, begun_ms: float) -> Segment:
    """The pause, a step that does not count, and one with its batch there."""
    steps = np.full((2, len(STEP_FIELDS)), -1, dtype=np.int64)
    for row, (called, done) in enumerate(((begun_ms, begun_ms), (begun_ms, begun_ms + step_ms))):
        for name in ("called_ns", "returned_ns", "copy_begin_ns", "copy_end_ns"):
            steps[row, STEP[name]] = called * MS
        for name in ("issued_ns", "waited_ns", "done_ns"):
            steps[row, STEP[name]] = done * MS
        steps[row, STEP["num_samples"]] = 8 * row
    return Segment(
        Arm.DEVICE, number, 1, True, steps, None, int(begun_ms * MS), int((begun_ms + step_ms) * MS), lane=SCRIPT_LANE
    )


def of_rank(*, many: bool) -> Run:
    """Its batches are there; its steps take 26 ms, and 8 ms in bursts, where the batches of all ranks are there."""
    random = np.random.default_rng(1)
    real = [segment(np.full(60, 1.0), random.normal(26.0, 0.2, 60), 2) for _ in range(2)]
    run = run_of(real[0], 2, num_bursts=6)
    assert run.recording is not None
    run.recording.segments += [real[1], *(burst(8.0 + 0.01 * one, one, 3000.0 + 100 * one) for one in range(6))]
    if many:
        run.recording.rank = RankRecording(RankPlace(0, 2, 0, "a", "a test"), (), num_local=2)
    return run


def test_waits_for_other_ranks_batches_are_not_this_rank_s_own() -> None:
    alone, beside = analyze(of_rank(many=False)), analyze(of_rank(many=True))
    assert alone.verdict is not None and beside.verdict is not None
    assert alone.verdict.bottleneck == "undetermined"
    assert beside.verdict.bottleneck == "compute"
    assert next(one.code for one in beside.notes) == "of_many_ranks"


def test_ranks_of_a_node_share_its_processors_in_what_is_advised() -> None:
    def most_workers(num_local: int) -> Any:
        run = run_of(segment(np.full(200, 20.0), np.full(200, 2.0), 1), 1, cpus=8)
        assert run.recording is not None
        run.recording.rank = RankRecording(RankPlace(0, 4, 0, "a", "a test"), (), num_local=num_local)
        verdict = analyze(run).verdict
        assert verdict is not None
        changes = [one.change["workers"] for one in verdict.advice if one.change and "workers" in one.change]
        return max(changes, default=None)

    assert most_workers(1) == 8 and most_workers(4) == 2
