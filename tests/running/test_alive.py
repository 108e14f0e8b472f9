"""What a measuring process tells of itself while its storage hangs, on a clock of the test's."""

from __future__ import annotations

from typing import Any

import pytest

from loaderbench.running.alive import Pulse

S = 1_000_000_000


class Loop:
    """Stands in for a step loop: (…, when the step was over, …)."""

    def __init__(self) -> None:
        self.host: list[tuple[int, ...]] = []
        self.collective: Any = None

    def step(self, at: int) -> None:
        self.host.append((0, 0, 0, at, 4, 400))


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pulse(clock: Clock) -> Pulse:
    return Pulse(clock)


def window(pulse: Pulse, clock: Clock, *, first_s: int, steps: int = 3) -> Any:
    """A window of one step a second behind its first batch."""
    loop: Any = Loop()
    pulse.begins(loop, "real")
    clock.now += first_s * S
    for _ in range(steps):
        loop.step(clock.now)
        clock.now += S
    return loop


def test_a_step_that_does_not_end_is_told_beside_the_longest_before_it(pulse: Pulse, clock: Clock) -> None:
    window(pulse, clock, first_s=1)
    clock.now += 6 * S
    told = pulse.look()
    assert (told.waits_s, told.longest_s) == (7.0, 1.0)  # a second had passed already


def test_first_batches_are_judged_by_those_of_an_earlier_window_only(pulse: Pulse, clock: Clock) -> None:
    pulse.begins(Loop(), "real")  # type: ignore[arg-type]
    clock.now += 30 * S
    assert pulse.look().waits_s is None
    pulse.ends()
    window(pulse, clock, first_s=2)
    pulse.ends()
    assert pulse.look().waits_s is None  # between windows
    pulse.begins(Loop(), "fetch")  # type: ignore[arg-type]
    assert pulse.look().waits_s is None  # of another arm
    pulse.ends()
    pulse.begins(Loop(), "real")  # type: ignore[arg-type]
    clock.now += 9 * S
    told = pulse.look()
    assert (told.waits_s, told.longest_s) == (9.0, 3.0)  # until the second step was over


def test_what_is_done_between_windows_is_judged_by_the_time_before(pulse: Pulse, clock: Clock) -> None:
    with pulse.during("evicting"):
        clock.now += 2 * S
        assert pulse.look().waits_s is None
    assert pulse.look().waits_s is None
    with pulse.during("evicting"):
        clock.now += 8 * S
        told = pulse.look()
        assert (told.waits_s, told.longest_s) == (8.0, 2.0)


def test_each_file_is_a_sign_of_life(pulse: Pulse, clock: Clock) -> None:
    told: list[tuple[int, int]] = []
    progress = pulse.seen_in(lambda what: lambda done, total: told.append((done, total)))("evicting")
    for files in (1, 9):
        with pulse.during("preparing the cache"):
            for number in range(files):
                clock.now += 2 * S
                progress(number + 1, files)
            clock.now += S
            if files == 9:  # 19 s, where the first took 3
                alive = pulse.look()
                assert alive.waits_s == 1.0
    assert told[-1] == (9, 9)


def test_who_waits_at_a_collective_is_not_the_one_that_hangs(pulse: Pulse, clock: Clock) -> None:
    loop = window(pulse, clock, first_s=1)
    clock.now += 9 * S
    loop.collective = type("Stands", (), {"waits": True})()
    assert pulse.look().waits_s is None
    loop.collective.waits = False
    assert pulse.look().waits_s == 10.0
