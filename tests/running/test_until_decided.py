"""The rounds of a run that ends once it is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import CpuWindow, RoundFacts, Segment
from loaderbench.running.rounds import Budget
from loaderbench.running.until_decided import ORDER, UntilDecided
from loaderbench.running.window import Length, Windows
from tests.running.test_rounds import COLD, Clock, FakeWindows, computing_case, steady


class Said:
    """A look that says what it is given."""

    def __init__(self, decided: bool = False, telling: tuple[Arm, ...] = (), names: str = "undetermined") -> None:
        self.decided, self.telling = decided, telling
        self.verdict = SimpleNamespace(bottleneck=names)

    def is_decided(self, before: object) -> bool:
        return self.decided


def looked(
    monkeypatch: pytest.MonkeyPatch, says: Callable[[list[Segment]], Said], *, seconds: float = 60.0,
    window_s: Callable[[Arm, float], float] = lambda arm, target_s: target_s + 1.0,
    step_s: Callable[[Arm, int], float] = lambda arm, number: 0.01 + number / 1e4,
    cpu: CpuWindow | None = None,
) -> tuple[RoundFacts, list[tuple[Arm, int, Length]], list[Segment]]:  # fmt: skip
    """A run until it is decided, each window a second longer than it was asked to be."""

    class Timed(FakeWindows):
        def measure(self, arm: Arm, number: int, length: Length) -> Segment:
            self._window_s = window_s(arm, length.target_s)
            segment = super().measure(arm, number, length)
            segment.wall_s = self._window_s
            return segment

    windows = Timed(Clock(monkeypatch), computing_case(), step_s, 0.0)
    windows.cpu = cpu
    segments: list[Segment] = []
    budget = Budget(seconds, False)
    looking = lambda: cast(Any, says(segments))  # noqa: E731
    facts = UntilDecided(cast(Windows, windows), COLD, budget, segments, on_window=looking).measure()
    return facts, windows.asked, segments


def real_part(segments: Sequence[Segment]) -> float:
    return sum(one.wall_s or 0 for one in segments if one.arm is Arm.REAL) / sum(one.wall_s or 0 for one in segments)


@pytest.mark.parametrize("num", [8, 11, 20])
def test_a_run_ends_when_it_is_decided_and_real_had_half_of_the_time(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, asked, segments = looked(monkeypatch, lambda seen: Said(len(seen) >= num, (Arm.RAM,)))
    assert facts.stopped_by == "decided"
    assert [arm for arm, _, _ in asked[: len(COLD)]] == list(ORDER)  # each once, whatever is known by then
    assert num <= len(segments) <= num + 3 and real_part(segments) >= 0.5


def test_a_run_that_nothing_decides_takes_its_time_and_real_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _, segments = looked(monkeypatch, lambda seen: Said())
    assert facts.stopped_by == "duration"
    assert 0.5 <= real_part(segments) <= 0.65
    assert 55 <= sum(one.wall_s or 0 for one in segments) <= 62


def test_what_no_look_decides_ends_once_all_is_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _, segments = looked(monkeypatch, lambda seen: Said(), step_s=steady)
    assert facts.stopped_by == "ci_target" and 30 <= sum(one.wall_s or 0 for one in segments) <= 45


def test_arms_without_which_a_cause_is_named_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, asked, _ = looked(monkeypatch, lambda seen: Said(len(seen) >= 20, names="storage"))
    first = [arm for arm, number, _ in asked if not number]
    assert first == [arm for arm in ORDER if arm not in (Arm.PREP, Arm.FREE)]
    assert {Arm.PREP, Arm.FREE} < {arm for arm, _, _ in asked}  # once there is time for them
    assert facts.stopped_by == "decided"


def test_the_arm_that_could_change_the_answer_most_comes_next_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked, _ = looked(monkeypatch, lambda seen: Said(telling=(Arm.FETCH, Arm.RAM)))
    later = [(arm, number) for arm, number, _ in asked if number]
    assert len({*later}) == len(later)  # none twice in a round
    by_round: dict[int, list[Arm]] = {}
    for arm, number in later:
        by_round.setdefault(number, []).append(arm)
    orders = [tuple(one[1:3]) for one in by_round.values() if len(one) > 2]
    assert orders and {*orders} == {(Arm.FETCH, Arm.RAM)}
    assert all(one[0] is Arm.REAL for one in by_round.values())


def test_free_is_measured_before_a_decision_where_the_threads_waited_for_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = CpuWindow(2.0, 1.0, 1.0, 0.0, 3.6, 0.0, 2, None, None)
    facts, asked, _ = looked(monkeypatch, lambda seen: Said(len(seen) >= 6, names="storage"), cpu=waiting)
    assert facts.stopped_by == "decided"
    assert Arm.FREE in {arm for arm, _, _ in asked} and Arm.PREP not in {arm for arm, _, _ in asked}
