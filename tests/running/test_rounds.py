"""The rounds: in which order arms are measured, when it is enough, and what a limit of bytes allows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import CacheState, Case
from loaderbench.errors import ConfigError
from loaderbench.images.shards import DataSet
from loaderbench.recording.facts import (
    PAUSE_FIELDS,
    READ_BIN,
    READ_BIN_EDGES_NS,
    READ_BIN_FIELDS,
    READ_FIELDS,
    STEP_FIELDS,
    CpuWindow,
    ReadTimes,
    RoundFacts,
    Segment,
    StorageWindow,
)
from loaderbench.running import rounds, window
from loaderbench.running.peers import ALONE
from loaderbench.running.rounds import Budget, measure_rounds, most_steps
from loaderbench.running.streams import Stream
from loaderbench.running.window import LONGEST_WINDOW_S, Length, Windows
from tests.made import make_case, make_segment

COLD = (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL, Arm.FREE, Arm.PREP, Arm.FETCH)


class Clock:
    """A clock that only the windows move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(rounds.time, "perf_counter", lambda: self.now)


class FakeWindows:
    """Windows whose length and step times are scripted."""

    def __init__(self, clock: Clock, case: Case, step_s: Callable[[Arm, int], float], window_s: float) -> None:
        computes = None if case.step.device.startswith("emulated") else "cpu"
        self.rig, self.peers = SimpleNamespace(case=case, device=SimpleNamespace(torch_device=computes)), ALONE
        self.feeds = SimpleNamespace(num_readers=case.feed.lanes)
        self.asked: list[tuple[Arm, int, Length]] = []
        self.cpu: CpuWindow | None = None
        self._clock, self._step_s, self._window_s = clock, step_s, window_s

    def measure(self, arm: Arm, number: int, length: Length) -> Segment:
        self.asked.append((arm, number, length))
        self._clock.now += self._window_s
        table = np.full((13, len(STEP_FIELDS)), -1, dtype=np.int64)
        table[:, 1] = np.arange(13) * self._step_s(arm, number) * 1e9
        if arm.on_device:
            table[:, 6] = table[:, 1]
        segment = make_segment(arm, table, round=number)
        segment.cpu = self.cpu
        return segment


def computing_case(**case: Any) -> Case:
    """A case on a device that computes: each of its arms is measured in every round."""
    return make_case(**{"device": "cpu", **case})


def steady(arm: Arm, number: int) -> float:
    return 0.010


def measured(
    monkeypatch: pytest.MonkeyPatch, arms: tuple[Arm, ...] = COLD, *, seconds: float = 20.0, window_s: float = 0.1,
    step_s: Callable[[Arm, int], float] = steady, most_bytes: bool = False, cpu: CpuWindow | None = None, **case: Any,
) -> tuple[RoundFacts, list[tuple[Arm, int, Length]], list[Segment]]:  # fmt: skip
    windows = FakeWindows(Clock(monkeypatch), computing_case(**case), step_s, window_s)
    windows.cpu = cpu
    segments: list[Segment] = []
    facts = measure_rounds(cast(Windows, windows), arms, Budget(seconds, most_bytes), segments)
    return facts, windows.asked, segments


def test_arms_take_turns_until_all_are_known_well_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, asked, segments = measured(monkeypatch)
    assert facts == RoundFacts(COLD, 3, "ci_target")  # never after fewer rounds
    assert [(arm, number) for arm, number, _ in asked] == [(arm, number) for number in range(3) for arm in COLD]
    assert [segment.arm for segment in segments] == [arm for arm, _, _ in asked]


def test_a_window_s_length_follows_from_the_time_and_its_arm_s_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked, _ = measured(monkeypatch, seconds=14.0)
    # 14 s for four rounds of seven arms: half a second each
    assert {arm: length for arm, number, length in asked if number == 0} == {
        arm: Length(0.25 if arm in (Arm.DEVICE, Arm.HOST, Arm.FETCH) else 0.5) for arm in COLD
    }
    for seconds, longest in ((1.0, rounds.MIN_SEGMENT_S), (1000.0, rounds.MAX_SEGMENT_S)):
        _, asked, _ = measured(monkeypatch, (Arm.REAL,), seconds=seconds)
        assert {length.target_s for _, _, length in asked} == {longest}


def test_an_arm_that_is_not_known_well_is_measured_until_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def moving(arm: Arm, number: int) -> float:
        return 0.010 * (1 + number % 2) if arm is Arm.FREE else 0.010

    facts, asked, _ = measured(monkeypatch, seconds=5.0, window_s=0.125, step_s=moving)
    # 41 windows of 0.125 s begin within 5 s: five whole rounds of seven arms, and six windows of the next
    assert (facts.stopped_by, facts.num_rounds) == ("duration", 6)
    assert len(asked) == 41 and asked[-1][:2] == (Arm.PREP, 5)


@pytest.mark.parametrize("arm", [Arm.FETCH, Arm.PREP])
@pytest.mark.parametrize(
    ("step_s", "moves", "stopped_by"),
    [(0.010, 0.02, "ci_target"), (0.010, 0.5, "duration"), (0.003, 0.5, "ci_target"), (0.008, 0.5, "duration")],
)
def test_reading_and_preparing_alone_need_to_be_known_as_well_as_the_gain_that_they_decide(
    arm: Arm, step_s: float, moves: float, stopped_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A gain counts from 1.10 on; what is surely faster than the device's 10 ms decides nothing, however it moves.
    def moving(some: Arm, number: int) -> float:
        return step_s * (1 + moves * (number % 2)) if some is arm else 0.010

    facts, _, _ = measured(monkeypatch, seconds=5.0, window_s=0.125, step_s=moving)
    assert facts.stopped_by == stopped_by


def test_the_first_round_is_whole_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, asked, _ = measured(monkeypatch, seconds=1.0, window_s=10.0)
    assert facts == RoundFacts(COLD, 1, "duration")
    assert [arm for arm, _, _ in asked] == list(COLD)


def test_on_slow_storage_real_gets_the_time_of_arms_that_no_gain_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(arm: Arm, number: int) -> float:
        return 0.016 if arm in (Arm.DEVICE, Arm.HOST) else 0.3

    # given windows of 12 steps that take 4 s each, of which 13 s hold three of each arm at most
    facts, asked, _ = measured(monkeypatch, seconds=13.0, window_s=2.0, step_s=slow)
    assert [arm for arm, number, _ in asked if number == 0] == [one for one in COLD if one not in rounds.SPARED]
    # then the next round begins with `real`, and it is as long as what is missing: 15 steps and one, less 12
    again = [(arm, length.target_s) for arm, number, length in asked if number == 1]
    assert again[0] == (Arm.REAL, pytest.approx(0.3 * 4))
    assert set(facts.arms) == set(COLD) - set(rounds.SPARED)
    # and where the device is as slow, it is not the loader's rate that is known already
    facts, _, _ = measured(monkeypatch, seconds=13.0, window_s=2.0, step_s=lambda arm, number: 0.3)
    assert facts.arms == COLD


def test_the_loader_alone_is_measured_where_its_threads_wait_for_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(arm: Arm, number: int) -> float:
        return 0.016 if arm in (Arm.DEVICE, Arm.HOST) else 0.3

    def arms(queued_s: float) -> set[Arm]:
        window = CpuWindow(2.0, 3.6, queued_s, 0.0, 3.6, 0.0, 2, None, None)
        facts, _, _ = measured(monkeypatch, seconds=13.0, window_s=2.0, step_s=slow, cpu=window)
        return set(facts.arms)

    assert arms(0.3) == set(COLD) - {Arm.FREE, Arm.PREP}  # 8 % of 3.9 s
    assert arms(0.5) == set(COLD) - {Arm.PREP}  # 12 % of 4.1 s


def test_a_window_of_the_first_round_may_take_its_share_and_real_two(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked, _ = measured(monkeypatch, seconds=16.0, window_s=1.0)
    # eight shares of 16 s: two for `real`; each window took one second
    longest = [length.longest_s for _, number, length in asked if number == 0]
    assert longest == pytest.approx([16 / 8, 15 / 7, 14 / 6, 2 * 13 / 5, 12 / 3, 11 / 2, 10 / 1])


@pytest.mark.parametrize(("steps", "num_rounds", "each"), [(100, 3, 34), (15, 3, 5), (14, 1, 14), (1, 1, 1)])
def test_a_number_of_steps_is_spread_over_the_rounds(
    steps: int, num_rounds: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, asked, _ = measured(monkeypatch, steps=steps)
    assert (facts.stopped_by, facts.num_rounds) == ("steps", num_rounds)
    assert {length.steps for _, _, length in asked} == {each}


def test_a_number_of_steps_takes_its_time_unless_one_was_given_too(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, asked, _ = measured(monkeypatch, steps=100, seconds=1.0, window_s=10.0)
    assert (facts.stopped_by, facts.num_rounds) == ("steps", 3)
    # all 100 of each arm, in windows that nothing ends early
    assert all(length.steps == 34 and length.longest_s == np.inf for _, _, length in asked)
    assert len(asked) == 3 * len(COLD)
    facts, asked, _ = measured(monkeypatch, steps=100, seconds=1.0, window_s=1.0, strict_duration=True)
    assert (facts.stopped_by, facts.num_rounds) == ("duration", 1)
    assert {length.longest_s for _, _, length in asked} == {0.5, rounds.MIN_SEGMENT_S}
    # fewer steps tell less: a window may take half of what is left, others may need less; 10 s at most, or its share
    _, asked, _ = measured(monkeypatch, steps=100, seconds=50.0, window_s=6.0, strict_duration=True)
    longest = [length.longest_s for _, number, length in asked if number == 0]
    assert longest == pytest.approx([LONGEST_WINDOW_S] * 3 + [2 * 32 / 5] + [LONGEST_WINDOW_S] * 2 + [14.0])


def test_no_window_is_begun_that_cannot_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # given windows of 12 s, 13 steps each: with 8 workers one has 12 at least, and one without a loader 4
    _, asked, _ = measured(monkeypatch, (Arm.DEVICE, Arm.REAL), seconds=39.0, window_s=12.0, workers=8,
                           step_s=lambda arm, number: 1.0)  # fmt: skip
    # then behind the first round there is time for `device`, and with 3 s left for no window of `real`
    assert [(arm, number) for arm, number, _ in asked] == [
        (Arm.DEVICE, 0), (Arm.REAL, 0), (Arm.DEVICE, 1),
    ]  # fmt: skip


def test_what_real_lacks_spares_nothing_where_it_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a data set that could be measured as it is only once, slowly
    windows = FakeWindows(Clock(monkeypatch), computing_case(workers=8), steady, 2.0)
    before = windows.measure(Arm.REAL, 0, Length(1.0))
    before.steps[:, 1] = before.steps[:, 6] = np.arange(13) * 600_000_000
    windows.asked.clear()
    facts = measure_rounds(cast(Windows, windows), (Arm.DEVICE, Arm.PREP), Budget(13.0, False), [before])
    assert Arm.PREP in facts.arms


def test_where_bytes_are_limited_no_round_reads_more_than_was_planned() -> None:
    assert rounds._turns(COLD, uneven=True, short=False)[:4] == (Arm.REAL, Arm.FETCH, Arm.REAL, Arm.RAM)
    assert rounds._turns(COLD, uneven=True, short=False)[-2:] == (Arm.DEVICE, Arm.HOST)
    for twice in (False, True):
        turns = rounds._turns(COLD, uneven=True, short=False, twice=twice)
        assert sum(arm.touches_storage for arm in turns) == 3 + twice and {*turns} == {*COLD}


def test_a_limit_of_bytes_allows_four_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _, _ = measured(monkeypatch, most_bytes=True, step_s=lambda arm, number: 0.010 * (1 + number % 2))
    assert (facts.stopped_by, facts.num_rounds) == ("max_bytes", 4)
    facts, _, _ = measured(monkeypatch, most_bytes=True)
    assert (facts.stopped_by, facts.num_rounds) == ("ci_target", 3)
    _, asked, _ = measured(monkeypatch, most_bytes=True, seconds=1000.0)
    assert max(length.target_s for _, _, length in asked) == 2.5  # its windows are longer in place of more rounds


def test_a_long_run_ends_no_sooner_than_with_long_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _, _ = measured(monkeypatch, seconds=60.0)
    # three windows of 60 s / 28 for each arm, in parts of 0.75 s
    assert (facts.stopped_by, facts.num_rounds) == ("ci_target", 9)
    facts, _, _ = measured(monkeypatch, seconds=1000.0)
    assert facts.num_rounds == 10  # 7.5 s of each arm


# -- bytes -------------------------------------------------------------------------------------------------


def data_set(page_bytes: float = 40_960.0, total: int = 10**9) -> DataSet:
    files = SimpleNamespace(sizes=np.array([total // 2, total - total // 2]))
    return cast(DataSet, SimpleNamespace(files=files, sample_page_bytes=page_bytes))


def test_without_a_limit_a_window_may_take_any_number_of_steps() -> None:
    assert most_steps(make_case(max_bytes=None), data_set(), COLD, 5, once=False) == sys.maxsize


def test_a_limit_of_bytes_by_hand() -> None:
    # 64 images of 10 pages a batch; 60 % of 2 GB over 4 rounds of `real`, `free` and `fetch`
    case = make_case(cache="cold", max_bytes=2_000_000_000, workers=2, prefetch=2, batch_size=64)
    batches = 0.6 * 2e9 / (12 * 64 * 40_960)
    assert most_steps(case, data_set(), COLD, 5, once=False) == int(batches) - 2 * (2 + 2)
    # of `real` alone, four windows; where it can be measured once, one
    real = (Arm.DEVICE, Arm.RAM, Arm.REAL)
    assert most_steps(case, data_set(), real, 5, once=False) == int(3 * batches) - 8
    assert most_steps(case, data_set(), real, 5, once=True) == int(12 * batches) - 8


@given(
    st.integers(10**6, 10**12), st.integers(0, 16), st.integers(1, 8), st.integers(1, 512),
    st.sampled_from([COLD, (Arm.REAL,), (Arm.DEVICE, Arm.REAL, Arm.FREE)]), st.booleans(),
)  # fmt: skip
def test_what_is_allowed_stays_below_the_limit_or_is_refused_with_one_that_suffices(
    max_bytes: int, workers: int, prefetch: int, batch_size: int, arms: tuple[Arm, ...], once: bool
) -> None:
    given_ = {"workers": workers, "prefetch": prefetch, "batch_size": batch_size}

    def of(limit: int) -> int:
        return most_steps(make_case(cache="cold", max_bytes=limit, **given_), data_set(), arms, 5, once=once)

    lanes = max(workers, 1)
    windows = 1 if once else 4 * sum(arm in (Arm.REAL, Arm.FREE, Arm.FETCH) for arm in arms)
    try:
        steps = of(max_bytes)
    except ConfigError as error:
        needed = int(str(error).split("give at least ")[1].split("M")[0].replace(",", "")) * 10**6
        assert of(needed + 10**6) >= lanes + 1 + 5
        assert "--max-bytes" in str(error) and "\n" not in str(error)
        return
    read = windows * (steps + lanes * (prefetch + 2)) * batch_size * 40_960
    assert read <= 0.6 * max_bytes  # what is prepared ahead when a window closes was read as well
    assert steps >= lanes + 1 + 5


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_a_warm_run_reads_all_of_the_data_set_first(cache: CacheState) -> None:
    case = make_case(cache=cache, max_bytes=900_000_000)
    if cache == "warm":
        with pytest.raises(ConfigError, match=r"--cache warm reads the whole data set once, 1,000,000,000 bytes"):
            most_steps(case, data_set(), COLD, 5, once=False)
    else:
        assert most_steps(case, data_set(), COLD, 5, once=False) > 0


# -- a storage with nothing to do ----------------------------------------------------------------------------

WARM = (Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.RAM, Arm.FREE, Arm.FETCH)


def in_turns(monkeypatch: pytest.MonkeyPatch, idle: Callable[[int], bool], **case: Any) -> tuple[RoundFacts, list[Arm]]:
    """The arms as they are measured, where `idle` says of the windows of `real` so far whether they prove it."""
    windows = FakeWindows(Clock(monkeypatch), computing_case(**case), steady, 0.1)
    segments: list[Segment] = []

    def proven(seen: Sequence[Segment]) -> bool:
        return idle(sum(segment.arm is Arm.REAL for segment in seen))

    facts = measure_rounds(cast(Windows, windows), WARM, Budget(20.0, most_bytes=False), segments, proven)
    return facts, [arm for arm, _, _ in windows.asked]


def test_where_the_storage_has_nothing_to_do_the_time_of_ram_goes_to_real(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, arms = in_turns(monkeypatch, lambda num_real: num_real > 0)
    assert arms == [Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.REAL, Arm.FREE, Arm.FETCH] * 3
    assert facts.stopped_by == "ci_target" and Arm.RAM not in facts.arms


@pytest.mark.parametrize(("workers", "again"), [(6, 0), (8, 1)])
def test_real_is_measured_again_behind_its_time_where_it_has_less_than_two_rounds(
    workers: int, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = FakeWindows(Clock(monkeypatch), computing_case(workers=workers), steady, 10.0)  # of twelve steps each
    facts = measure_rounds(cast(Windows, windows), WARM, Budget(1.0, most_bytes=False), [], lambda seen: bool(seen))
    arms = [arm for arm, _, _ in windows.asked]
    assert facts.num_rounds == 1 and arms == [Arm.DEVICE, Arm.HOST, Arm.REAL, *[Arm.REAL] * again, Arm.FREE, Arm.FETCH]


def test_a_proof_that_breaks_brings_ram_back(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, arms = in_turns(monkeypatch, lambda num_real: 0 < num_real < 3)
    assert arms[:12] == [*WARM[:3], Arm.REAL, *WARM[4:], *WARM]
    assert facts.arms == WARM


def test_a_number_of_steps_of_real_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arms = in_turns(monkeypatch, lambda num_real: num_real > 0, steps=30)
    assert arms == [Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FREE, Arm.FETCH] * 3


def stalled_reads(begin_s: float, length_s: float, lasts_s: float) -> ReadTimes:
    """Two readers of files of 1 ms; both waited through one pause."""
    histogram = np.zeros((len(READ_BIN_EDGES_NS) + 1, len(READ_BIN_FIELDS)), dtype=np.int64)
    at = int(np.searchsorted(READ_BIN_EDGES_NS, 1_000_000, side="right"))
    for what in ("open", "read", "file"):
        histogram[at, READ_BIN[f"{what}s"]], histogram[at, READ_BIN[f"{what}_ns"]] = 500, 500 * 1_000_000
    pause = {"begin_ns": begin_s * 1e9, "end_ns": (begin_s + length_s) * 1e9, "waiting": 2, "released": 2}
    pauses = np.array([[pause.get(name, 0) for name in PAUSE_FIELDS]], dtype=np.int64)
    slow = {"begin_ns": begin_s * 1e9, "open_ns": 0, "read_ns": length_s * 1e9}
    slowest = np.array([[slow.get(name, 0) for name in READ_FIELDS]] * 2, dtype=np.int64)
    return ReadTimes(histogram, slowest, pauses, 0, int(lasts_s * 1e9))


def test_once_the_storage_stood_still_real_and_fetch_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a storage that stands still in the warm-up of `real`'s second window
    clock, reads = Clock(monkeypatch), stalled_reads(1.0, 0.6, 3.0)

    class Uneven(FakeWindows):
        def measure(self, arm: Arm, number: int, length: Length) -> Segment:
            self._window_s = max(0.5, length.target_s)
            segment = super().measure(arm, number, length)
            if arm is Arm.REAL and number == 1:
                segment.reads = reads
            return segment

    windows = Uneven(clock, computing_case(workers=2), steady, 0.5)
    segments: list[Segment] = []
    measure_rounds(cast(Windows, windows), COLD, Budget(40.0, most_bytes=False), segments)
    asked = [(arm, number) for arm, number, _ in windows.asked]
    second = [arm for arm, number in asked if number == 1]
    # then the round ends there, and the next begins with them, `real` twice, in windows that would hold the pause
    assert second == [Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL]
    third = [(arm, length.target_s) for arm, number, length in windows.asked if number == 2]
    assert [arm for arm, _ in third[:4]] == [Arm.REAL, Arm.FETCH, Arm.REAL, Arm.RAM]
    assert third[0][1] > 1.0 and third[2][1] > 1.0 and third[3][1] < 1.0


class Stalling(FakeWindows):
    """Windows as long as they were asked to be, and `beyond_s` more with their warm-up and their end, over a storage
    that stood still for 1.7 s of the 4.6 s of the first window of `real`, or another arm (`seen_in`)."""

    def __init__(self, clock: Clock, beyond_s: float) -> None:
        super().__init__(clock, computing_case(workers=2), steady, 0.0)
        self.beyond_s = beyond_s
        self.seen_in = Arm.REAL
        self.ends: list[float] = []

    def measure(self, arm: Arm, number: int, length: Length) -> Segment:
        beyond_s = self.beyond_s if arm.decodes else 0.2
        self._window_s = length.target_s + beyond_s
        segment = super().measure(arm, number, length)
        segment.steps = np.repeat(segment.steps[:1], 11, axis=0)
        segment.steps[:, 1] = np.linspace(0, length.target_s * 1e9, 11)
        if arm.on_device:
            segment.steps[:, 6] = segment.steps[:, 1]
        segment.wall_s = length.target_s + beyond_s
        if arm is self.seen_in and number == 0:
            segment.reads = stalled_reads(1.0, 1.7, 4.6)
        self.ends.append(self._clock.now)
        return segment


def over_stalls(monkeypatch: pytest.MonkeyPatch, seconds: float, beyond_s: float) -> tuple[Stalling, list[Segment]]:
    windows, segments = Stalling(Clock(monkeypatch), beyond_s), list[Segment]()
    facts = measure_rounds(cast(Windows, windows), COLD, Budget(seconds, most_bytes=False), segments)
    assert facts.stopped_by == "duration"
    return windows, segments


@pytest.mark.parametrize("seconds", [20.0, 25.0, 40.0])
def test_where_fetch_alone_tells_of_stalls_it_shares_the_time_with_real(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    # given a loader that does not tell when it reads, and one standstill in the first window of `fetch`
    windows = Stalling(Clock(monkeypatch), 0.5)
    windows.seen_in = Arm.FETCH
    segments = list[Segment]()
    measure_rounds(cast(Windows, windows), COLD, Budget(seconds, most_bytes=False), segments)
    long = [(arm, length.target_s) for arm, number, length in windows.asked if number == 1 and length.target_s > 3]
    assert [arm for arm, _ in long][:2] == [Arm.REAL, Arm.FETCH]
    assert long[0][1] <= 2 * long[1][1] and long[1][1] >= 4.6  # a whole period each
    assert windows.ends[-1] - 1000.0 <= seconds + rounds.MIN_SEGMENT_S


@pytest.mark.parametrize(("looked_s", "wanted_s"), [(1.4, 5.0), (0.3, 0.6)])
def test_a_standstill_between_windows_asks_for_longer_ones(
    monkeypatch: pytest.MonkeyPatch, looked_s: float, wanted_s: float
) -> None:
    # given a look at the page cache, before the first window of `fetch`, that took longer than the others
    measure = FakeWindows.measure

    def looked(self: FakeWindows, arm: Arm, number: int, length: Length) -> Segment:
        segment = measure(self, arm, number, length)
        if arm.touches_storage:
            took_s = looked_s if (arm, number) == (Arm.FETCH, 0) else 0.15
            segment.storage = StorageWindow(None, 1000, None, 0.0, 0.0, looked_s=took_s)
        return segment

    monkeypatch.setattr(FakeWindows, "measure", looked)
    _, asked, _ = measured(monkeypatch, seconds=20.0)
    # then the next windows of `real` are four times as long as the storage stood still
    (length,) = [one for arm, number, one in asked if (arm, number) == (Arm.REAL, 1)][:1]
    assert length.target_s == pytest.approx(wanted_s, rel=0.2)


def test_windows_over_a_storage_that_stands_still_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # given time for one window of two periods, 9.2 s, but not for two of them and one of `fetch`
    windows, segments = over_stalls(monkeypatch, 20.0, 1.5)
    long = [(arm, number, length.target_s) for arm, number, length in windows.asked if length.target_s > 3]
    # then arms that no gain of the storage needs are left out for `real`, which gets all that is left
    assert [(arm, number) for arm, number, _ in long] == [(Arm.REAL, 1)]
    assert 9.2 <= long[0][2] <= 10.0
    assert {one.arm for one in segments} == set(COLD) - set(rounds.SPARED)
    # and nothing ends later than the shortest window does whose warm-up ended in time
    assert windows.ends[-1] - 1000.0 <= 20.0 + rounds.MIN_SEGMENT_S
    assert [one.arm for one in segments].count(Arm.FETCH) == 1


@pytest.mark.parametrize("seconds", [8.0, 12.0, 16.0, 18.0, 25.0, 40.0, 60.0])
@pytest.mark.parametrize("beyond_s", [0.5, 2.5])
def test_whatever_the_time_the_rounds_end_with_it(
    seconds: float, beyond_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, segments = over_stalls(monkeypatch, seconds, beyond_s)
    first = [end for end, (_, number, _) in zip(windows.ends, windows.asked, strict=True) if number == 0]
    over_s = windows.ends[-1] - max(1000.0 + seconds, first[-1])
    assert over_s <= rounds.MIN_SEGMENT_S
    if seconds >= 60:  # time enough for all arms
        assert {one.arm for one in segments} == set(COLD)
    if seconds >= 40:  # and for long windows of both
        for arm in (Arm.REAL, Arm.FETCH):
            assert max(length.target_s for one, _, length in windows.asked if one is arm) >= 9.2


# -- arms that an emulated device paces ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "moves", "windows"), [("emulated:h200-resnet50-train", 0.0, 2), ("cpu", 0.0, 6), ("emulated", 0.01, 6)]
)
def test_the_time_of_arms_that_a_clock_paces_goes_to_those_that_vary(
    device: str, moves: float, windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `free` is never known well enough; `host` and `device` are, unless issuing, which is real work, paces them
    def step_s(arm: Arm, number: int) -> float:
        if arm in (Arm.DEVICE, Arm.HOST):
            return 0.010 * (1 + moves * (number % 2))
        return 0.010 * (1 + number % 2) if arm is Arm.FREE else 0.010

    facts, asked, _ = measured(monkeypatch, seconds=4.1, window_s=0.125, step_s=step_s, device=device)
    counts = {arm: sum(one is arm for one, _, _ in asked) for arm in COLD}
    assert facts.stopped_by == "duration" and counts[Arm.REAL] >= 5
    assert counts[Arm.HOST] == counts[Arm.DEVICE] and (counts[Arm.HOST] == 2) == (windows == 2)


def test_a_number_of_steps_is_measured_of_every_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked, _ = measured(monkeypatch, device="emulated", steps=30)
    assert sum(arm is Arm.HOST for arm, _, _ in asked) == 3


# -- the end of a window -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lanes", "first_s", "target_s", "longest_s", "num"),
    [
        pytest.param(8, 0.1, 0.25, 9.0, 16, id="the round is completed within the longest time"),
        pytest.param(8, 0.1, 0.25, 0.2, 16, id="and beyond it, for as long as a round took"),
        pytest.param(8, 0.1, 0.125, 0.1, 4, id="not where there was no whole round"),
        pytest.param(1, 0.1, 0.25, 9.0, 9, id="without others each step is a round"),
        pytest.param(8, 0.1, 0.165, 9.0, 8, id="one round is enough where another window can follow"),
        pytest.param(8, 0.1, 0.165, 0.15, 16, id="two where the time allowed one"),
        pytest.param(8, 1.0, 1.065, 1.05, 8, id="but not if a round takes long"),
    ],
)
def test_a_window_ends_with_a_whole_round_of_the_workers(
    lanes: int, first_s: float, target_s: float, longest_s: float, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given batches that come eight at a time, 0.01 s apart, and `first_s` behind those before, so much more each time
    now = [0]
    monkeypatch.setattr(window.time, "perf_counter_ns", lambda: now[0])

    class Loop:
        def __init__(self) -> None:
            self.host = [(0, 0, 0, 0)]

        def run(self, most: int, until_ns: int) -> int:
            for number in range(most):
                begun = now[0]
                number_of_round, place = divmod(len(self.host) - 1, 8)
                now[0] += 10_000_000 if place else int(first_s * 1e9) * (1 + number_of_round)
                self.host.append((begun, now[0], now[0], now[0]))
                if now[0] > until_ns:
                    return number + 1
            return most

    loop, windows = Loop(), cast(Any, object.__new__(Windows))
    windows.rig = SimpleNamespace(case=make_case(workers=lanes))
    windows._fill(loop, 1, 2, Length(target_s, None, longest_s / 0.6), sys.maxsize)
    assert len(loop.host) - 1 == num


@pytest.mark.parametrize(("step_s", "warmup", "late"), [(1.9, 3, 1), (2.1, 2, 0)])
def test_one_round_of_long_steps_is_warm_up_enough(
    step_s: float, warmup: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr(window.time, "perf_counter_ns", lambda: now[0])

    class Loop:
        def __init__(self) -> None:
            self.host: list[tuple[int, int, int, int]] = []
            self.spans: list[None] = []

        def run(self, most: int, until_ns: int) -> int:
            for _ in range(most):
                begun, now[0] = now[0], now[0] + int(step_s * 1e9)
                self.host.append((begun, now[0], now[0], now[0]))
                self.spans.append(None)
            return most

    loop, windows = Loop(), cast(Any, object.__new__(Windows))
    windows.rig = SimpleNamespace(case=make_case(workers=2), buffer_batches=4)
    windows.cpu, windows._paces = SimpleNamespace(begin=lambda: None), {}
    stream = Stream(iter(()), cast(Any, object()))
    found = windows._open(Arm.REAL, stream, loop, Length(0.5, None, 4.0), sys.maxsize, None, straight=False)
    assert found == (warmup + late, False) and len(loop.host) == warmup + late


# -- a window of a number of steps ---------------------------------------------------------------------------


@pytest.mark.parametrize(("longest_s", "ran"), [(np.inf, [2, 18]), (100.0, [2, 18]), (0.0, [2])])
def test_a_window_of_a_number_of_steps_ends_early_only_where_its_time_is_up(longest_s: float, ran: list[int]) -> None:
    asked: list[tuple[int, int]] = []

    class Loop:
        host = ((0, 0, 0, 0, 8, 0),) * 3

        def run(self, num: int, until_ns: int) -> int:
            asked.append((num, until_ns))
            return num

    windows = cast(Any, object.__new__(Windows))
    windows.rig = SimpleNamespace(case=make_case(workers=2))
    windows._fill(Loop(), 1, 20, Length(0.5, 20, longest_s), sys.maxsize)
    assert [num for num, _ in asked] == ran
    if longest_s == np.inf:
        assert asked[-1][1] > time.perf_counter_ns() + 25e9  # nothing but a sign of life interrupts it
