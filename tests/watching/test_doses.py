"""Known delays: what they say of runs whose truth is set, and what they take."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.doses import response_of
from loaderbench.analysis.record import Judged, judged_run
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import Run, Segment
from loaderbench.studies.watched_run import run_of
from loaderbench.watching import doses, iterator
from loaderbench.watching import watcher as stamps
from loaderbench.watching.doses import PART, Doses, num_steps
from loaderbench.watching.seen import Source
from loaderbench.watching.watcher import Watcher


class Clock:
    """A host whose time passes only where something takes it."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def perf_counter_ns(self) -> int:
        return self.now

    def thread_time(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


class NoCpuClock:
    """Processors are not virtual."""

    def begin(self) -> None:
        """Nothing to read."""

    def end(self) -> None:
        """Nothing is known."""

    def look(self, what: Callable[[], Any]) -> tuple[Any, None]:
        return what(), None


class Loader:
    """Workers that make a batch each `batch_ns`, `depth` of them ahead at most; the script works on each for
    `step_ns`. Without workers a batch is made when it is asked for."""

    def __init__(self, clock: Clock, batch_ns: int, step_ns: int, *, depth: int, jitter: float = 0.0) -> None:
        self.clock, self.batch_ns, self.step_ns, self.depth = clock, batch_ns, step_ns, depth
        self.random, self.jitter = np.random.default_rng(0), jitter
        self.handover_ns = 0
        self.taken_at: list[int] = []
        self.ready_at: list[int] = []

    def take(self, iterator: object) -> dict[str, np.ndarray]:
        batch_ns = round(self.batch_ns * (1 + self.jitter * self.random.standard_normal()))
        if not self.depth:
            self.clock.now += batch_ns
            return {"inputs": np.zeros((4, 2))}
        number = len(self.taken_at)
        begun = max(
            self.ready_at[-1] if self.ready_at else 0,
            self.taken_at[number - self.depth] if number >= self.depth else 0,
        )
        self.ready_at.append(begun + batch_ns)
        self.clock.now = max(self.clock.now, self.ready_at[-1])
        self.taken_at.append(self.clock.now)
        self.clock.now += self.handover_ns
        return {"inputs": np.zeros((4, 2))}

    def pids(self) -> list[int]:
        return []

    def size(self) -> int:
        return self.depth

    def is_full(self) -> bool:
        self.clock.sleep(0.001)
        begun = self.taken_at[-self.depth]
        return self.clock.now >= max(self.ready_at[-1], begun) + self.depth * self.batch_ns


def watched(
    monkeypatch: pytest.MonkeyPatch, probes: str, *, batch_ms: float, step_ms: float, workers: int, steps: int = 3000,
    jitter: float = 0.0, handover_ms: float = 0.0,
) -> tuple[Run, Watcher]:  # fmt: skip
    """The run of a script on a virtual clock."""
    clock = Clock()
    monkeypatch.setattr(stamps, "time", clock)
    monkeypatch.setattr(iterator, "time", clock)
    monkeypatch.setattr(doses, "time", clock)
    watcher = Watcher(probes)
    watcher.clock = NoCpuClock()  # type: ignore[assignment]
    source = Source("DataLoader", "Files", 12_000, 4, workers, 2 if workers else 0, "RandomSampler")
    loader = Loader(clock, round(batch_ms * 1e6), round(step_ms * 1e6), depth=2 * workers, jitter=jitter)
    loader.handover_ns = round(handover_ms * 1e6)
    one = watcher.opened(source, clock.now, None, (), loader if workers else None)
    assert one is not None
    for _ in range(steps):
        one.step(loader.take, None)
        clock.now += loader.step_ns
    one.ended()
    watcher.close()
    monkeypatch.undo()
    run = run_of(watcher, "train.py", "train.py", "")
    assert run is not None
    return run, watcher


def judged_of(run: Run | None) -> Judged:
    """What is computed from a run of which something was seen."""
    assert run is not None and run.recording is not None
    judged = judged_run(run, run.recording)
    assert judged is not None
    return judged


@pytest.mark.parametrize(
    ("batch_ms", "step_ms", "workers", "least", "most"),
    [
        (4.0, 10.0, 2, 0.9, 1.1),  # the step paces
        (20.0, 10.0, 2, -0.1, 0.1),  # the loader paces, and hides a delay of 4 ms
        (11.0, 10.0, 2, 0.3, 0.7),  # it hides 1 ms of a delay of 2.2 ms
        (5.0, 10.0, 0, 0.9, 1.1),  # they take turns
    ],
)
def test_a_delay_lengthens_the_run_as_far_as_nothing_else_paces_it(
    monkeypatch: pytest.MonkeyPatch, batch_ms: float, step_ms: float, workers: int, least: float, most: float
) -> None:
    run, watcher = watched(
        monkeypatch, "delay", batch_ms=batch_ms, step_ms=step_ms, workers=workers, jitter=0.02
    )  # fmt: skip
    judged = judged_of(run)
    assert run.recording is not None
    (dose,) = judged.doses
    assert least < dose.response.value < most
    assert dose.response.low is not None and dose.response.high is not None
    assert least < dose.response.high and most > dose.response.low
    # the timeline, which knows nothing of the delays, lets expect the same
    assert dose.agrees is True
    # and they took what they may at most, which the watch tells
    wall_ns = watcher.wall_s * 1e9
    assert 0 < watcher.doses.total_ns <= PART * wall_ns
    delayed = [one for one in run.recording.segments if one.arm is Arm.DELAYED]
    taken = sum(one.delay.mean_ns * len(one.steps) for one in delayed if one.delay is not None)
    assert taken == pytest.approx(watcher.doses.total_ns, rel=0.02)


def test_delays_tell_where_nothing_else_does_that_a_wait_is_only_the_handing_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given batches that are always ready, and take 4 ms to hand over; neither bursts nor workers' stamps
    options = {"batch_ms": 4.0, "step_ms": 10.0, "workers": 2, "handover_ms": 4.0}
    said = {}
    for probes in ("none", "delay"):
        run, _ = watched(monkeypatch, probes, **options)
        said[probes] = judged_of(run).attribution.verdict.bottleneck
    # then by the timeline alone the wait is the loader's, with delays the step's own
    assert said == {"none": "mixed", "delay": "compute"}


def test_both_probes_take_turns_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    run, watcher = watched(monkeypatch, "burst,delay", batch_ms=20.0, step_ms=10.0, workers=2, steps=6000)
    judged = judged_of(run)
    assert judged.attribution.verdict.bottleneck != "undetermined"
    assert watcher.num_bursts >= 4 and judged.doses[0].agrees is True


def test_witnesses_that_disagree_leave_the_verdict_open(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a run whose loader paces it, by bursts and timeline
    run, _ = watched(monkeypatch, "burst,delay", batch_ms=20.0, step_ms=10.0, workers=2, jitter=0.02, steps=6000)
    assert run.recording is not None
    # when its delays had lengthened each step by all of them
    for one in run.recording.segments:
        if one.delay is not None:
            _lengthen(one, round(one.delay.mean_ns))
    judged = judged_of(run)
    # then nothing is named
    assert judged.doses[0].agrees is False
    verdict = judged.attribution.verdict
    assert verdict.bottleneck == "undetermined" and verdict.reasons[0].code == "delays_disagree"


def _lengthen(segment: Segment, by_ns: int) -> None:
    added = np.arange(1, len(segment.steps) + 1) * by_ns
    segment.steps[:, :7] += added[:, None]


def test_a_short_run_has_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = watched(monkeypatch, "delay", batch_ms=4.0, step_ms=10.0, workers=2, steps=150)
    assert run.recording is not None and run.recording.facts.watched is not None
    assert "too short" in (run.recording.facts.watched.no_doses or "")
    assert judged_of(run).doses == ()


def test_nothing_is_delayed_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for probes in ("none", "burst"):
        run, watcher = watched(monkeypatch, probes, batch_ms=4.0, step_ms=10.0, workers=2)
        assert watcher.doses.total_ns == 0 and run.recording is not None
        assert {one.arm for one in run.recording.segments} <= {Arm.REAL, Arm.DEVICE}


def test_the_interval_of_the_response_holds_the_truth_as_often_as_it_says() -> None:
    random, held = np.random.default_rng(1), 0
    for _ in range(400):
        without = 10 + random.normal(0, 0.1, 8)
        delay = np.full(8, 2.0)
        growth = 0.6 * delay + random.normal(0, 0.2, 8)
        found = response_of(np.column_stack([without + growth, without, delay]))
        assert found.low is not None and found.high is not None
        held += found.low <= 0.6 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_the_budget_holds_whatever_the_steps_take() -> None:
    budget = Doses()
    given = budget.next([10_000_000] * 40, 2, 10**9, 2 * 10**9, stream=False)
    assert given is not None and given.asked_ns * num_steps(2) <= PART * 2 * 10**9
    budget.total_ns = round(PART * 10**9)
    assert budget.next([10_000_000] * 40, 2, 10**9, 10**9, stream=False) is None
    assert budget.next([10**10] * 40, 2, 4 * 10**11, 4 * 10**11, stream=False) is not None  # a cap of 0.2 s a step


def test_a_delay_is_as_long_as_it_is_stored() -> None:
    dose = Doses().next([10_000_000] * 40, 2, 10**9, 2 * 10**9, stream=False)
    assert dose is not None
    begun = time.perf_counter_ns()
    now = Doses().give(dose, begun, None)
    facts = dose.facts()
    assert facts is not None and facts.mean_ns == now - begun >= dose.asked_ns
