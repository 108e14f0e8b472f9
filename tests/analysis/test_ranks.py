"""Ranks whose timelines are written down, and what their lateness must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from made import make_case, make_environment
from numpy.typing import NDArray

from loaderbench.analysis.ranks import ranks_of
from loaderbench.cases.arms import Arm
from loaderbench.recording.rank_place import RankClock, RankPlace
from loaderbench.recording.ranks import RANK_STEP_FIELDS, RankedCase, RankedFigures, RankRun, RanksFacts, RankWindow

STEPS, WORK = 30, 0.010
MS = 1_000_000


def table(
    data: NDArray[np.float64], work: NDArray[np.float64], read: NDArray[np.float64], prep: NDArray[np.float64],
    queued: NDArray[np.float64], *, joint: bool, shift_s: float,
) -> list[NDArray[np.int64]]:  # fmt: skip
    """Steps of ranks [ranks, steps] that wait for data for `data` s from the begin of a step and then work; with a
    barrier the next one begins when the last has arrived. `shift_s`: rank r's clock is r times this behind."""
    ranks, num = data.shape
    begin, rows = np.zeros(ranks), [[] for _ in range(ranks)]  # type: ignore[var-annotated]
    for step in range(num):
        returned = begin + data[:, step]
        done = returned + work[:, step]
        for rank in range(ranks):
            back = -rank * shift_s
            stamps = [begin[rank] + back, returned[rank] + back, returned[rank] + back, done[rank] + back]
            rows[rank].append([*stamps, 4, 400, read[rank, step], prep[rank, step], queued[rank, step]])
        begin = np.full(ranks, done.max()) if joint else done
    factor = np.array([1e9] * 4 + [1, 1, 1e9, 1e9, 1e9])
    return [np.rint(np.array(one) * factor).astype(np.int64) for one in rows]


def facts(
    data: NDArray[np.float64], work: NDArray[np.float64] | None = None, read: NDArray[np.float64] | None = None, *,
    prep: NDArray[np.float64] | None = None, queued: NDArray[np.float64] | None = None,
    joint: bool = True, nodes: Sequence[str] | None = None, shift_s: float = 0.0, uncertainty_s: float = 1e-4,
) -> RanksFacts:  # fmt: skip
    ranks = len(data)
    work = np.full_like(data, WORK) if work is None else work
    read = np.full_like(data, 0.002) if read is None else read
    nodes = ["a"] * ranks if nodes is None else nodes
    prep = np.full_like(data, 0.001) if prep is None else prep
    queued = none(ranks) if queued is None else queued
    tables = table(data, work, read, prep, queued, joint=joint, shift_s=shift_s)
    assert tables[0].shape[1] == len(RANK_STEP_FIELDS)
    parts = tuple(
        RankRun(
            place=RankPlace(rank, ranks, rank, nodes[rank], "a test"),
            run_id=f"run-{rank}",
            status="ok",
            clocks=(RankClock(rank * shift_s, uncertainty_s, 0),),
            windows=tuple(
                RankWindow(Arm.REAL, joint, number, 1, rows)
                for number, rows in enumerate(np.array_split(tables[rank], 2))
            ),
            num_images=10,
        )
        for rank in range(ranks)
    )
    return RanksFacts(make_environment(), ranks, "a test", 1, (RankedCase(make_case(batch_size=4), parts),))


def found(*timelines: NDArray[np.float64], **more: Any) -> RankedFigures:
    """What is said of ranks with such facts."""
    (figures,) = ranks_of(facts(*timelines, **more), {}).cases
    return figures


def none(ranks: int) -> NDArray[np.float64]:
    return np.zeros((ranks, STEPS))


def one_late(ranks: int, late: int, by: float = 0.005) -> NDArray[np.float64]:
    data = none(ranks)
    data[late] = by
    return data


def named(figures: RankedFigures) -> tuple[Any, ...]:
    part = figures.verdict.part
    assert figures.verdict.limited_by == "imbalance" and part is not None
    return part.pattern, part.late_by, part.rank


@pytest.mark.parametrize("joint", [True, False])
def test_one_rank_with_slow_files(joint: bool) -> None:
    figures = found(one_late(3, 1), read=0.002 + one_late(3, 1), joint=joint)
    imbalance = figures.imbalance
    assert imbalance is not None and imbalance.joint == joint
    assert imbalance.step_s == pytest.approx(0.015) and imbalance.mean_s == pytest.approx(0.035 / 3)
    assert imbalance.fraction.value == pytest.approx(1 - 0.035 / 3 / 0.015)
    assert named(figures) == ("rank", "reading", 1)
    assert [one.last_fraction for one in figures.ranks] == [0.0, 1.0, 0.0]
    assert figures.ranks[1].data_s == pytest.approx(0.005) and figures.ranks[0].data_s == 0
    assert figures.ranks[1].lateness_s == pytest.approx(0.010 / 3)
    assert figures.together_samples_per_s == pytest.approx(3 * 4 / 0.015)


@pytest.mark.parametrize("joint", [True, False])
def test_slow_files_that_one_rank_after_the_other_meets(joint: bool) -> None:
    data = none(3)
    for step in range(STEPS):
        data[step % 3, step] = 0.005
    figures = found(data, read=0.002 + data, joint=joint)
    assert figures.imbalance is not None
    assert figures.imbalance.fraction.value == pytest.approx(1 - 0.035 / 3 / 0.015, rel=0.03)
    assert named(figures) == ("rotating", "reading", None)


def test_a_rank_that_prepares_slowly_one_whose_loader_does_not_tell_and_a_slow_device() -> None:
    late = one_late(2, 0)
    assert named(found(late)) == ("rank", "data", 0)
    assert named(found(none(4), work=WORK + one_late(4, 3))) == ("rank", "device", 3)
    assert named(found(late, read=np.full_like(late, -1e-9))) == ("rank", "data", 0)


@pytest.mark.parametrize(
    ("queued", "named_cause", "others"),
    [
        (0.004, "processors", {"preparing": 0.001}),
        (0.001, "preparing", {"processors": 0.001}),
        (-1e-9, "preparing", {}),
    ],
)
def test_a_rank_whose_workers_wait_for_processors(queued: float, named_cause: str, others: dict[str, float]) -> None:
    # 5 ms late, all of it in preparing; `queued` of it without a processor. It costs half of that at 2 ranks.
    late = one_late(2, 1)
    known = np.where(late > 0, queued, min(queued, 0.0))
    figures = found(late, prep=0.001 + late, queued=known)
    assert named(figures) == ("rank", named_cause, 1)
    assert figures.imbalance is not None
    parts = {part.late_by: part.seconds for part in figures.imbalance.parts if part.late_by != named_cause}
    assert parts == {name: pytest.approx(seconds / 2) for name, seconds in others.items()}


def test_what_was_queued_beyond_preparing_was_queued_in_reading() -> None:
    # 5 ms more in reading and 1 ms in preparing, 3 ms of both without a processor
    late = one_late(2, 1, 0.006)
    stages = {"read": 0.002 + late * 5 / 6, "prep": 0.001 + late / 6, "queued": late / 2}
    figures = found(late, **stages)
    assert figures.imbalance is not None
    parts = {part.late_by: part.seconds for part in figures.imbalance.parts}
    assert parts == {"reading": pytest.approx(0.0015), "processors": pytest.approx(0.0015)}


def test_a_node_all_of_whose_ranks_are_late() -> None:
    data = none(4)
    data[2:] = 0.005
    figures = found(data, read=0.002 + data, nodes=["a", "a", "b", "b"])
    part = figures.verdict.part
    assert part is not None and (part.pattern, part.late_by, part.node) == ("node", "reading", "b")
    assert part.seconds == pytest.approx(0.0025)
    assert figures.imbalance is not None
    assert sum(one.seconds for one in figures.imbalance.parts) == pytest.approx(0.0025)


def test_one_late_rank_of_a_node_is_not_its_node() -> None:
    figures = found(one_late(4, 3), nodes=["a", "a", "b", "b"])
    part = figures.verdict.part
    assert part is not None and (part.pattern, part.rank, part.node) == ("rank", 3, "b")


def test_clocks_that_differ_change_nothing_once_their_offset_is_known() -> None:
    straight, shifted = (found(one_late(3, 1), shift_s=shift) for shift in (0.0, 0.050))
    assert straight.imbalance is not None and shifted.imbalance is not None
    assert shifted.imbalance.step_s == pytest.approx(straight.imbalance.step_s)
    assert named(shifted) == named(straight)
    assert [bar.begin_ms for bar in shifted.strip] == pytest.approx([bar.begin_ms for bar in straight.strip])


def test_even_ranks_are_limited_by_what_each_is_limited_by_and_too_few_steps_tell_nothing() -> None:
    even = found(none(3))
    assert even.verdict.limited_by is None and even.verdict.part is None
    assert even.imbalance is not None and even.imbalance.fraction.value == pytest.approx(0)
    assert "run" in even.missing["shares"]
    few = found(none(3)[:, :6])
    assert few.imbalance is None and "steps" in few.missing["imbalance"]


def test_the_strip_shows_who_waits_for_whom() -> None:
    figures = found(one_late(2, 1))
    waits = {(bar.rank, bar.what) for bar in figures.strip}
    assert waits == {(0, "step"), (0, "others"), (1, "data"), (1, "step")}
    assert sum(bar.end_ms - bar.begin_ms for bar in figures.strip if bar.what == "others") == pytest.approx(
        5 * sum(bar.what == "others" for bar in figures.strip), rel=0.01
    )
