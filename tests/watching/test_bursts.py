"""Steps behind a burst: which of them stand for the script's own step, and what its workers do meanwhile."""

import gc
import multiprocessing
import time

import numpy as np
import pytest
import torch

from loaderbench.analysis.record import Judged
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SPAN, STEP
from loaderbench.studies.watched_run import run_of
from loaderbench.watching import doses, iterator, spans, stopwatch
from loaderbench.watching import watcher as stamps
from loaderbench.watching.data_loader import noticed
from loaderbench.watching.iterator import MOST_REST_S
from loaderbench.watching.seen import Source
from loaderbench.watching.spans import Lane, SpanRing
from loaderbench.watching.watcher import Watcher
from tests.watching.test_doses import Clock, Loader, NoCpuClock, judged_of

EMPTY_NS = 100_000
"""Of a step that only takes a batch."""


class Orders(SpanRing):
    """What the workers were told, on a virtual clock; what they wrote is not read."""

    written = 1

    def __init__(self, clock: Clock) -> None:
        super().__init__(2)
        self.clock, self.since, self.rests = clock, None, list[tuple[int, int]]()

    def rest_until(self, ns: int) -> None:
        if ns:
            assert ns - self.clock.now == MOST_REST_S * 1e9
            self.since = self.clock.now  # type: ignore[assignment]
        elif self.since is not None:
            self.rests.append((self.since, self.clock.now))
            self.since = None

    def made(self) -> list[int]:
        return [self.written, 0]

    def table(self, before: object, first: int, num: int, by: object = None) -> None:  # type: ignore[override]
        return None


class RestingLoader(Loader):
    """Its workers rest when they are told to. Its step takes `step_ns`; `beside_ns` more where they work meanwhile,
    and `cold_ns` more behind a pause. Of `every` batches all but the last are only taken."""

    beside_ns = cold_ns = 0
    every, number = 1, 0
    orders: Orders

    def take(self, iterator: object) -> dict[str, np.ndarray]:
        for since, until in self.orders.rests[-1:]:
            if since <= max(self.ready_at[-1], self.taken_at[-self.depth]) <= until:
                self.ready_at[-1] = until
        return super().take(iterator)

    def step(self, *, paused: bool) -> None:
        self.number += 1
        if self.number % self.every:
            self.clock.now += EMPTY_NS
            return
        works = self.orders.since is None and self.batch_ns > self.step_ns
        self.clock.now += self.step_ns + (self.beside_ns if works else 0) + (self.cold_ns if paused else 0)


def watched(
    monkeypatch: pytest.MonkeyPatch, *, batch_ms: float, step_ms: float, beside_ms: float = 0.0, cold_ms: float = 0.0,
    prefetch: int = 2, steps: int = 4000, every: int = 1, skipped: int = 0,
) -> tuple[Judged, Watcher, Orders]:  # fmt: skip
    clock = Clock()
    monkeypatch.setattr(stamps, "time", clock)
    monkeypatch.setattr(iterator, "time", clock)
    monkeypatch.setattr(doses, "time", clock)
    watcher = Watcher("burst")
    watcher.clock, watcher.follows_device = NoCpuClock(), False  # type: ignore[assignment]
    source = Source("DataLoader", "Files", 12_000, 4, 2, prefetch, "RandomSampler")
    loader = RestingLoader(clock, round(batch_ms * 1e6), round(step_ms * 1e6), depth=2 * prefetch, jitter=0.02)
    loader.every = every
    loader.beside_ns, loader.cold_ns, loader.orders = round(beside_ms * 1e6), round(cold_ms * 1e6), Orders(clock)
    one = watcher.opened(source, clock.now, loader.orders, (), loader)
    assert one is not None
    for number in range(steps):
        before = watcher.num_bursts
        one.step(loader.take, None)
        if number < skipped:
            clock.now += 2_000
            continue
        loader.step(paused=watcher.num_bursts > before)
    one.ended()
    watcher.close()
    monkeypatch.undo()
    return judged_of(run_of(watcher, "train.py", "train.py", "")), watcher, loader.orders


def many_epochs(monkeypatch: pytest.MonkeyPatch, epochs: int, steps: int, *, tells: bool) -> Watcher:
    """Steps of 10 ms on a virtual clock; `tells`: its queue can be seen."""
    clock = Clock()
    monkeypatch.setattr(stamps, "time", clock)
    monkeypatch.setattr(iterator, "time", clock)
    watcher = Watcher("burst")
    watcher.clock, watcher.follows_device = NoCpuClock(), False  # type: ignore[assignment]
    source = Source("DataLoader", "Files", 12_000, 4, 2, 2, "RandomSampler")
    for _ in range(epochs):
        loader = RestingLoader(clock, 4_000_000, 10_000_000, depth=4, jitter=0.02)
        loader.orders = Orders(clock)
        one = watcher.opened(source, clock.now, None, (), loader if tells else None)
        assert one is not None
        for _ in range(steps):
            one.step(loader.take, None)
            loader.step(paused=False)
        one.ended()
    watcher.close()
    monkeypatch.undo()
    return watcher


def test_bursts_go_on_each_half_minute_though_each_epoch_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = many_epochs(monkeypatch, 50, 300, tells=True)  # 150 s in epochs of 3 s
    assert 22 <= watcher.num_bursts <= 25


def test_a_window_that_no_burst_will_end_is_none_of_a_whole_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = many_epochs(monkeypatch, 1, 2000, tells=False)  # 20 s
    assert watcher.main is not None
    lengths = [one.wall_s for one in watcher.main.segments]
    assert len(lengths) >= 4 and max(filter(None, lengths)) < 5.2


def test_neither_the_pause_nor_workers_at_work_lengthen_the_step_with_data_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a step of 2 ms, of 2.6 beside workers, of 3.5 behind a pause; a batch each 7 ms
    judged, watcher, orders = watched(monkeypatch, batch_ms=7.0, step_ms=2.0, beside_ms=0.6, cold_ms=1.5)
    assert watcher.num_bursts >= 20
    base = judged.model.base
    assert base is not None and base.value == pytest.approx(2.0e-3, rel=0.01)
    assert judged.attribution.verdict.joint_speedup is not None
    assert judged.attribution.verdict.joint_speedup.value == pytest.approx(7.0 / 2.0, rel=0.05)
    # and the workers rested from the end of each pause for the four steps that had their batches: 3.5 + 3 x 2 ms
    assert len(orders.rests) == watcher.num_bursts and orders.since is None
    assert {until - since for since, until in orders.rests} == {9_500_000}
    assert watcher.rested_ns == 9_500_000 * watcher.num_bursts
    assert judged.facts.watched is not None and judged.facts.watched.rested_s == watcher.rested_ns / 1e9


@pytest.mark.parametrize(("batch_ms", "step_ms"), [(4.0, 10.0), (12.0, 3.0)])
def test_batches_that_a_resumed_run_skips_are_none_of_its_steps(
    monkeypatch: pytest.MonkeyPatch, batch_ms: float, step_ms: float
) -> None:
    # for a half of its batches, and more than 20 bursts
    judged, watcher, _ = watched(monkeypatch, batch_ms=batch_ms, step_ms=step_ms, steps=8000, skipped=4000)
    assert watcher.num_bursts > 30
    assert judged.model.real.value == pytest.approx(max(batch_ms, step_ms) / 1e3, rel=0.05)
    assert judged.model.base is not None and judged.model.base.value == pytest.approx(step_ms / 1e3, rel=0.05)


@pytest.mark.parametrize("every", [2, 4, 5, 8])
@pytest.mark.parametrize("prefetch", [1, 2, 8])
@pytest.mark.parametrize("batch_ms", [4.0, 8.0])
def test_bursts_meet_each_step_of_an_accumulation_though_the_clock_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, every: int, prefetch: int, batch_ms: float
) -> None:
    # Batches are only taken, and worked on behind the last of them, for 3 ms each. Half a second is over during that
    # work nearly always: a burst just then would meet the first batch of the next accumulation, whose step is empty.
    judged, watcher, _ = watched(
        monkeypatch, batch_ms=batch_ms, step_ms=3.0 * every, beside_ms=0.3 * every, prefetch=prefetch, every=every,
        steps=6000,
    )  # fmt: skip
    assert watcher.num_bursts >= 20
    own_ms = 3.0 + 0.1 * (every - 1) / every
    gain = judged.attribution.verdict.joint_speedup
    assert gain is not None
    assert gain.value == pytest.approx(judged.model.real.value * 1e3 / own_ms, rel=0.12)


@pytest.mark.parametrize(
    ("step_ms", "prefetch", "counted"), [(8.0, 2, 2), (30.0, 2, 1), (2.0, 8, 7), (2.0, 2, 2), (2.0, 1, 1)]
)
def test_the_steps_behind_a_burst_are_few_where_they_are_long(
    monkeypatch: pytest.MonkeyPatch, step_ms: float, prefetch: int, counted: int
) -> None:
    # 50 ms of them at most, without the first; no more than batches were there; 8 at most; of many not the second
    judged, _, orders = watched(monkeypatch, batch_ms=3 * step_ms, step_ms=step_ms, prefetch=prefetch)
    bursts = [one for one in judged.recording.segments if one.arm is Arm.DEVICE]
    assert {len(one.steps) - one.num_warmup for one in bursts} == {counted}
    assert {one.num_warmup for one in bursts} == {3 if step_ms < 30.0 and prefetch > 1 else 2}
    assert orders.rests


def test_no_more_steps_are_behind_a_burst_than_batches_were_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two workers of 8 batches ahead each, one of which was at its shard's end: of 16 batches 3 are there.
    monkeypatch.setattr(RestingLoader, "size", lambda self: 3)
    judged, _, _ = watched(monkeypatch, batch_ms=6.0, step_ms=2.0, prefetch=8)
    bursts = [one for one in judged.recording.segments if one.arm is Arm.DEVICE]
    assert bursts and {len(one.steps) for one in bursts} == {1 + 3}


def test_behind_long_steps_one_is_counted_and_no_worker_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    judged, watcher, orders = watched(monkeypatch, batch_ms=120.0, step_ms=60.0, steps=1500)
    bursts = [one for one in judged.recording.segments if one.arm is Arm.DEVICE]
    assert bursts and {(len(one.steps), one.num_warmup) for one in bursts} == {(2, 1)}
    assert not orders.rests and not watcher.rested_ns
    assert judged.model.base is not None and judged.model.base.value == pytest.approx(0.06, rel=0.01)


def test_workers_that_know_of_no_rest_are_given_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # Spawned ones: what they make next would hold up the batches that are ready, and the first step is the only one
    # without it.
    monkeypatch.setattr(Orders, "written", 0)
    judged, watcher, orders = watched(monkeypatch, batch_ms=7.0, step_ms=2.0, beside_ms=0.6)
    bursts = [one for one in judged.recording.segments if one.arm is Arm.DEVICE]
    assert bursts and {(len(one.steps), one.num_warmup) for one in bursts} == {(2, 1)}
    assert not orders.rests and not watcher.rested_ns


def test_a_worker_rests_as_long_as_it_is_told_and_its_span_begins_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(spans, "time", clock)
    monkeypatch.setattr(stopwatch, "time", clock)
    monkeypatch.setattr(clock, "process_time_ns", lambda: 0, raising=False)
    ring = SpanRing(2)
    lane, begun = Lane(ring, 1), clock.now
    ring.rest_until(begun + 7_000_000)
    lane.fetch(lambda: clock.sleep(0.001))
    ring.rest_until(0)
    lane.fetch(lambda: clock.sleep(0.002))
    table = ring.table([0, 0], 1, 1)
    assert table is not None and table[0, SPAN["start_ns"]] == begun + 7_000_000
    assert ring.made() == [0, 2] and clock.now == begun + 10_000_000


class Slow(torch.utils.data.Dataset[int]):
    """A sample each millisecond."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return index


def test_pytorchs_workers_begin_no_batch_while_those_that_were_ready_are_used() -> None:
    watcher = Watcher("burst")
    watcher.follows_device = False
    taken = []
    with noticed(watcher):
        for batch in torch.utils.data.DataLoader(Slow(), 8, num_workers=2):
            taken += batch.tolist()
            time.sleep(0.001)
    watcher.close()
    assert taken == list(range(4000))
    (seen,) = watcher.seen.values()
    bursts = [one for one in seen.segments if one.arm is Arm.DEVICE and len(one.steps) == 5]
    starts = np.concatenate([one.spans[:, SPAN["start_ns"]] for one in seen.segments if one.spans is not None])
    assert len(bursts) >= 2
    for one in bursts:
        # from the end of the first step behind it, at which the first batch more was asked for
        begun, rested = one.steps[1, STEP["done_ns"]], one.steps[0, STEP["done_ns"]] + round(MOST_REST_S * 1e9)
        ended = min(one.steps[-1, STEP["done_ns"]], rested)
        assert not ((starts > begun) & (starts < ended)).any()
    # and go on behind them, long before they would by themselves
    ends = [int(one.steps[-1, STEP["done_ns"]]) for one in bursts]
    assert min(starts[starts > end].min() - end for end in ends if (starts > end).any()) < MOST_REST_S / 2 * 1e9
    assert 0 < watcher.rested_ns < 20 * len(bursts) * 5e6


def test_workers_of_an_epoch_that_is_left_behind_a_burst_rest_no_more() -> None:
    watcher = Watcher("burst")
    watcher.follows_device = False
    loader = torch.utils.data.DataLoader(Slow(), 8, num_workers=2)
    with noticed(watcher):
        for _ in loader:
            if watcher.num_bursts:
                break
        left = watcher.active
        assert left is not None and left.ring is not None and left.ring._rest_until[0] > 0
        next(iter(loader))
        assert left.ring._rest_until[0] == 0
    watcher.close()


def test_workers_of_an_iterator_that_is_left_before_its_end_end_at_once() -> None:
    watcher = Watcher("burst")
    watcher.follows_device = False
    gc.collect()
    gc.disable()  # an iterator in a cycle would live until Python looks for cycles
    try:
        with noticed(watcher):
            for _ in range(3):
                for number, _batch in enumerate(torch.utils.data.DataLoader(Slow(), 8, num_workers=1)):
                    if number == 40:
                        break
                left = time.perf_counter()
                assert not multiprocessing.active_children()
                assert time.perf_counter() - left < 4.0  # PyTorch gives a worker 5 s
    finally:
        gc.enable()
