"""Shares of threads whose time is known by construction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderbench.recording.estimate import Estimate
from loaderbench.recording.thread_samples import (
    STATES,
    UNKNOWN_PLACE,
    Place,
    Role,
    SampledThread,
    SampleRows,
    State,
    ThreadSamples,
    share_of,
    wilson,
)

LOOKS = 400


def looked_at(states: list[list[State]], weights: list[list[float]] | None = None) -> SampleRows:
    """A row of states a worker, a column a look."""
    rows = SampleRows()
    threads = [rows.add_thread(SampledThread("worker", number)) for number in range(len(states))]
    for look in range(len(states[0])):
        for number, thread in enumerate(threads):
            rows.add(float(look), thread, states[number][look], weights[number][look] if weights else 1.0)
    return rows


def share(samples: ThreadSamples, role: Role, is_counted: Any) -> Estimate | None:
    return share_of(samples, samples.threads_of(role), is_counted)


def share_in(samples: ThreadSamples, role: Role, state: State) -> Estimate | None:
    return share(samples, role, samples.state == STATES.index(state))


def test_the_interval_of_a_count_is_wilsons() -> None:
    # Agresti and Coull, The American Statistician 52 (1998): no success in 10 has the upper end z² ÷ (n + z²).
    assert wilson(0.0, 10) == (0.0, pytest.approx(1.959964**2 / (10 + 1.959964**2)))
    assert wilson(1.0, 10)[1] == pytest.approx(1.0)


@pytest.mark.parametrize("together", [False, True])
def test_intervals_hold_for_periodic_work_at_random_times(together: bool) -> None:
    """Four workers read for 30 % of each period of 0.7 s, each at its own time or all at once."""
    draws = np.random.default_rng(5)
    held, trials = 0, 300
    for _ in range(trials):
        times = np.cumsum(draws.exponential(0.05, LOOKS))
        phases = np.zeros(4) if together else draws.uniform(0, 0.7, 4)
        reads = [((times + phase) % 0.7) < 0.21 for phase in phases]
        states: list[list[State]] = [["file" if one else "running" for one in row] for row in reads]
        found = share_in(looked_at(states).samples(), "worker", "file")
        assert found is not None and found.low is not None and found.high is not None
        low, high = found.low, found.high
        held += low <= 0.3 <= high
    assert held / trials >= 0.92
    width = high - low
    assert width == pytest.approx(2 * 1.96 * np.sqrt(0.21 / (LOOKS * (1 if together else 4))), rel=0.25)


def test_a_look_counts_by_its_weight() -> None:
    samples = looked_at([["sleep", "running"]], [[3.0, 1.0]]).samples()
    found = {state: share_in(samples, "worker", state) for state in STATES}
    assert {state: one.value for state, one in found.items() if one is not None and one.value > 0} == {
        "sleep": 0.75,
        "running": 0.25,
    }


def test_places_are_kept_once_and_shared_out() -> None:
    rows = SampleRows()
    thread = rows.add_thread(SampledThread("consumer"))
    here, there = Place("train.py", 3, "step", "backward"), Place("train.py", 9, "save")
    for number, place in enumerate([here, here, Place("train.py", 3, "step", "backward"), there, None]):
        rows.add(number, thread, "running", 1.0, place)
    samples = rows.samples()
    assert samples.places == (here, there)
    for place, expected in ((0, 0.6), (UNKNOWN_PLACE, 0.2), (1, 0.2)):
        found = share(samples, "consumer", samples.place == place)
        assert found is not None and round(found.value, 3) == expected


def test_of_a_role_that_was_not_seen_no_share_is_known() -> None:
    samples = looked_at([["sleep"]]).samples()
    assert share_in(samples, "pin", "sleep") is None
    assert share_of(samples, [], samples.state == STATES.index("sleep")) is None
    assert share_in(SampleRows().samples(), "worker", "sleep") is None
