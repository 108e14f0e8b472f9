"""What a script does with its loaders, from stamps at their iterators' borders.

One thread takes batches. Between two of its stamps it does one thing: it waits for a batch, works on one, makes an
iterator, or is busy with something else; so the times of all kinds sum to the whole.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, Literal, Protocol

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.devices.step_events import StepEvents, step_events
from loaderbench.recording.facts import (
    MOST_EPOCHS,
    SCRIPT_LANE,
    STEP,
    STEP_FIELDS,
    CpuWindow,
    Segment,
    WaitLooks,
    WatchedEpoch,
    WatchedSettings,
)
from loaderbench.samplers.cpu_window import CpuClock
from loaderbench.watching.doses import Dose, Doses, num_steps, warmup_steps
from loaderbench.watching.in_step import QUICK_BURSTS, InStep, Others, drawn_steps, least_steps
from loaderbench.watching.shadow import Shadow
from loaderbench.watching.spans import SpanRing
from loaderbench.watching.surroundings import Surroundings
from loaderbench.watching.transforms import Times

Probes = str
"""`none`, or some of PROBES with commas between them."""
PROBES = ("burst", "delay", "shadow")
Kind = Literal["before", "opening", "first", "wait", "step", "held", "after"]
"""What the thread does: nothing of a loader's yet; making an iterator; waiting for its first batch; for a later one;
working on a batch; it is held by a burst; something else, behind an iterator's end."""

EPOCH_KINDS: tuple[Kind, ...] = ("opening", "first", "wait", "step", "after")
LEAST_S, LATER_S = 0.5, 30.0
"""Between two bursts; later ones, behind QUICK_BURSTS, keep the longer distance."""
PATIENCE_S, MOST_FAILED = 5.0, 3
"""A queue that is not full by then is left as it is; after so many of these in a row no burst is tried any more."""
WINDOW_STEPS = 2048
"""Of the longest window: a worker's spans of it are still there when it ends."""
WINDOW_S = 5.0
"""Of a window that no burst will end: where workers end with an epoch, nothing is known of the processors of its last
one."""
LOOK_S, LOOK_STEPS, LOOK_COSTS = 0.1, 16, 200
"""So long, and up to so many steps more, from one wait in which all threads are looked at to the next; and so many
times as long as it took to look at them."""
POLL_S = 0.0005
MOST_READY = 8
"""Steps with data ready behind a burst, besides the first one."""
READY_S, MOST_REST_S = 0.05, 0.1
"""On the processors these take so long at most, and workers that begin no batch meanwhile rest no longer than that."""
END_S = 2.0
"""For which a device is asked for its last steps when the script has ended."""
MOST_PARTS, MOST_LEVELS = 8, 3
"""Of a batch, to look for its first array in."""
MOST_ROWS = 200_000
"""Steps that are kept; the oldest windows are dropped."""


@dataclass(frozen=True)
class Source:
    """What tells one loader of a script from another."""

    kind: str
    data: str
    """Class of the data set."""
    num_samples: int | None
    """Of the data set; None where it has no length."""
    batch_size: int | None
    workers: int
    prefetch: int
    """Batches that each worker prepares ahead."""
    order: str
    """Class of the sampler: `RandomSampler`."""
    tells: bool = True
    """Whether its workers and its queue can be seen."""
    options: str = ""
    """Arguments that are switched on: `persistent_workers pin_memory`."""

    @property
    def depth(self) -> int:
        return self.workers * self.prefetch


class Queue(Protocol):
    """The batches that a loader has ready."""

    def is_full(self) -> bool: ...

    def pids(self) -> list[int]:
        """Of the processes that fill it."""
        ...


@dataclass
class Seen:
    """All iterators of one loader."""

    source: Source
    segments: list[Segment] = field(default_factory=list)
    num_iterators: int = 0
    num_batches: int = 0
    num_samples: int = 0
    num_rounds: int = -1
    """Number of the last one."""
    has_spans: bool = False
    """Its workers' stamps are known; windows without them are left out then."""
    settings: WatchedSettings | None = None
    """Of a DataLoader."""
    times: list[Times] = field(default_factory=list)
    """Of its iterators' transforms."""
    marks: list[tuple[int, ...]] = field(default_factory=list)
    """What the thread had spent on it, and its batches, when each iterator was made."""
    surroundings: Surroundings = field(default_factory=Surroundings)
    phase: str | None = None
    times_waits: bool = False
    """Its workers tell nothing, so that what this thread does while it waits was timed."""


class Watcher:
    """All loaders of one script, on the thread that first takes a batch."""

    def __init__(
        self, probes: Probes = "burst", tell: Callable[[Watcher], None] | None = None, others: Others | None = None
    ) -> None:
        """`others`: of several ranks, which are all held at the same steps."""
        self.probes, self._tell = probes, tell
        self._in_step = None if others is None else InStep(others)
        self._wanted = frozenset(probes.split(","))
        self.doses = Doses()
        self.follows_device = True
        self.device: StepEvents | None = None
        """Tells when the device's part of a step is done; None while the script uses none."""
        self.shadow: Shadow | None = None
        self.shadow_of: Source | None = None
        self.no_shadow: str | None = None
        """Why there is none, where one was wanted."""
        self._unsettled: deque[Unsettled] = deque()
        self.begun_ns = self._since = time.perf_counter_ns()
        self.times_ns: dict[tuple[Source | None, Kind], int] = defaultdict(int)
        self._doing: tuple[Source | None, Kind] = (None, "before")
        self.seen: dict[Source, Seen] = {}
        self._thread: int | None = None
        self.taking: Watched | None = None
        """The iterator whose next batch the thread waits for: one within it is a part of it."""
        self._active: Watched | None = None
        self.num_broken = 0
        """Windows that another loader's batch ended."""
        self.paused_ns = self.rested_ns = self.num_bursts = 0
        self._last_burst_ns = self.begun_ns
        self.no_burst: str | None = None
        """Why there are none, where some were wanted."""
        self.windows_ns = 0
        """Spent at the ends of windows."""
        self.is_closed = False
        self.closes_by_ns = sys.maxsize
        """Windows that are longer end there."""
        self._failed = 0
        self.judged: Source | None = None
        """The loader that the verdict is about, where `--apply` changed it."""
        self.before_first: Callable[[], None] | None = None
        """Called once an iterator was made, before its first batch."""
        self.phase: Callable[[], str] | None = None
        """What a trainer's callback tells: `train` or `evaluate`."""
        self.optimizer_steps: int | None = None
        self._random = random.Random(0)
        self.clock = CpuClock(counts_reads=True)

    # -- what the thread does --------------------------------------------------------------------------------

    def enter(self, source: Source, kind: Kind, now: int) -> None:
        """From `now` on it does this."""
        self.times_ns[self._doing] += now - self._since
        self._doing, self._since = (source, kind), now

    def opened(
        self, source: Source, begun: int, ring: SpanRing | None, made: Sequence[int], queue: Queue | None
    ) -> Watched | None:
        """An iterator was made, from `begun` until now; `made`: what each worker had made before. None on another
        thread than that of the first iterator, whose times would overlap, and for one within another's."""
        if self._thread is None:
            self._thread = threading.get_ident()
            if self.before_first is not None:
                self.before_first()
        if threading.get_ident() != self._thread or self.taking is not None:
            return None
        seen = self.seen.setdefault(source, Seen(source))
        seen.num_iterators += 1
        self.enter(source, "opening", begun)
        if len(seen.marks) <= MOST_EPOCHS:
            seen.marks.append(self.spent(seen))
        if self.phase is not None:
            seen.phase = self.phase()
        return Watched(self, seen, ring, made, queue)

    @property
    def is_on_its_thread(self) -> bool:
        """Whether this is the thread that it watches."""
        return self._thread is None or threading.get_ident() == self._thread

    def takes_over(self, watched: Watched, now: int) -> None:
        """Another iterator takes a batch: whatever step was under way is not one step any more."""
        if self._active is not None and self._active is not watched:
            self.num_broken += self._active.seen is not watched.seen
            self._active.broken()
        self._active = watched

    # -- the device --------------------------------------------------------------------------------------------

    def look_for_device(self) -> bool:
        """Whether the script has begun to use one: what was stamped before tells only of the host."""
        if self.device is not None or not self.follows_device or (device := step_events()) is None:
            return False
        self.device = device
        for one in self.seen.values():
            one.segments.clear()
        return True

    def keep(self, unsettled: Unsettled) -> None:
        """A window, which the device may still be at work on."""
        self._unsettled.append(unsettled)
        self.settle()

    def settle(self) -> None:
        """The windows whose steps the device has done become segments; one whose times cannot be known is dropped."""
        while self._unsettled and self._unsettled[0].is_done:
            self._unsettled.popleft().become_segment()

    def _wait_for_device(self) -> None:
        """At the script's end: what it left to do may still be going on, and is asked for a while."""
        begun = time.perf_counter_ns()
        while self.device is not None and not self.device.harvest():
            if time.perf_counter_ns() - begun > END_S * 1e9:
                break
            time.sleep(POLL_S)
        self.settle()

    @property
    def wall_s(self) -> float:
        """From the start to the last stamp."""
        return (self._since - self.begun_ns) / 1e9

    def spent_ns(self, source: Source) -> int:
        """On its batches: waiting and working."""
        return sum(ns for (one, kind), ns in self.times_ns.items() if one == source and kind in ("wait", "step"))

    @property
    def main(self) -> Seen | None:
        """The loader that most of the time went to: the training's."""
        if self.judged is not None:
            return self.seen.get(self.judged)
        trains = [one for one in self.seen.values() if one.phase != "evaluate"] or list(self.seen.values())
        return max(trains, key=lambda one: self.spent_ns(one.source), default=None)

    def spent(self, seen: Seen) -> tuple[int, ...]:
        """On a loader so far, by EPOCH_KINDS, and its batches."""
        return (*(self.times_ns[seen.source, kind] for kind in EPOCH_KINDS), seen.num_batches)

    def epochs(self, seen: Seen) -> tuple[WatchedEpoch, ...]:
        """What the thread spent on each of a loader's iterators."""
        marks = [*seen.marks, self.spent(seen)][: MOST_EPOCHS + 1]
        found = []
        for before, after in pairwise(marks):
            *ns, num = (end - begin for begin, end in zip(before, after, strict=True))
            opening, first, wait, step, after_s = (one / 1e9 for one in ns)
            found.append(WatchedEpoch(opening, first, wait, step, after_s, num))
        return tuple(found)

    def close(self) -> None:
        """The script has ended, or the watch of it. An iterator that goes on is no longer seen."""
        self.is_closed = True
        now = time.perf_counter_ns()
        self.times_ns[self._doing] += now - self._since
        self._since = now
        if self._active is not None:
            if not self.is_on_its_thread:
                self._active.forget_processors()  # they were read by another thread, which alone can end that
            self._active.broken()
        self._wait_for_device()
        if self.shadow is not None:
            self.shadow.close()

    def so_far(self) -> Watcher:
        """A copy of what was seen, up to the window that ended last, for another thread. It costs some microseconds."""
        taken = copy.copy(self)
        taken.times_ns, taken._active = defaultdict(int, self.times_ns), None
        taken._unsettled, taken.device, taken.shadow = deque(), None, None
        taken.seen = {source: replace(one, segments=[*one.segments]) for source, one in self.seen.items()}
        taken.close()
        taken.device, taken.shadow = self.device, self.shadow
        return taken

    # -- bursts ----------------------------------------------------------------------------------------------

    def leads_to_delays(self, queue: Queue | None) -> bool:
        """Whether the window that begins now leads to one with delays: drawn, where bursts could be too."""
        if not self.wants("delay"):
            return False
        return not self.can_burst(queue) or self._random.random() < 0.5

    def wants(self, probe: str) -> bool:
        return probe in self._wanted

    def dose(self, watched: Watched, rows: list[list[int]], now: int) -> Dose | None:
        """Of the window that follows these steps; None where there is to be none."""
        if not self.wants("delay") or self.main is not watched.seen or len(rows) < 2:
            return None
        steps = [after[0] - before[0] for before, after in pairwise(rows)]
        return self.doses.next(
            steps, watched.seen.source.workers, now - rows[0][0], now - self.begun_ns,
            stream=self.device is not None and self.device.problem is None,
        )  # fmt: skip

    def can_burst(self, queue: Queue | None) -> bool:
        return self.wants("burst") and queue is not None and self.no_burst is None

    def may_burst(self, watched: Watched, now: int, open_ns: int) -> bool:
        """`open_ns`: how long the window is open."""
        if not self.can_burst(watched.queue):
            return False
        if self._in_step is not None:
            return self._in_step.is_due(self, watched)
        is_time = self.num_bursts < QUICK_BURSTS or now - self._last_burst_ns >= LATER_S * 1e9
        return is_time and open_ns >= LEAST_S * 1e9 and self.main is watched.seen

    def rows_until_turn(self, seen: Seen) -> int:
        """Steps of a window that begins now, before it may end."""
        until = drawn_steps(seen.source.depth, self._random)
        return until if self._in_step is None else min(until, self._in_step.steps_left(seen))

    def look_after(self) -> int:
        """Steps until the next look, once it is time."""
        return self._random.randrange(LOOK_STEPS)

    def steps_more(self, seen: Seen) -> int:
        """Until a burst that the clock asks for; 0 where the steps alone say when."""
        if self._in_step is not None:
            return 0
        return self._random.randrange(least_steps(seen.source.depth)) + 1

    def hold(self, watched: Watched, queue: Queue) -> bool:
        """Hold the script until the queue is full; on several ranks until those of all are. Whether they are."""
        begun = time.perf_counter_ns()
        if self._in_step is None:
            full = self.fill(queue)
        else:
            full = self._in_step.hold(self, watched.seen, queue, self.fill)
        self._last_burst_ns = time.perf_counter_ns()
        self.paused_ns += self._last_burst_ns - begun
        return full

    def fill(self, queue: Queue) -> bool:
        """Wait until the queue is full. Whether it is."""
        begun = time.perf_counter_ns()
        try:
            full = queue.is_full()
            while not full and time.perf_counter_ns() - begun < PATIENCE_S * 1e9:
                time.sleep(POLL_S)
                full = queue.is_full()
        except (AttributeError, NotImplementedError) as error:
            self.no_burst = f"this loader's queue cannot be seen ({error})"
            full = False
        self._failed = 0 if full else self._failed + 1
        if self._failed >= MOST_FAILED and self.no_burst is None:
            self.no_burst = f"its queue was not full after {PATIENCE_S:g} s"
        return full

    def told(self) -> None:
        """A window has ended."""
        if self._tell is not None:
            self._tell(self)


class Watched:
    """One iterator."""

    def __init__(
        self, watcher: Watcher, seen: Seen, ring: SpanRing | None, made: Sequence[int], queue: Queue | None
    ) -> None:
        self.watcher, self.seen, self.ring, self.queue = watcher, seen, ring, queue
        self._made = list(made)
        self._source = seen.source
        self._batch = 0
        self._tells_size: bool | None = None
        """Whether the first dimension of a batch's first array is its samples; None before the first batch."""
        self._arm, self._rows = Arm.REAL, list[list[int]]()
        self._warmup = max(1, 2 * self._source.depth)
        self._until_burst = watcher.rows_until_turn(seen)
        self._first, self._number, self._started = 0, seen.num_batches, False
        self._cpu_since: float | None = None
        """When the readings of the window's processors began; None: they did not."""
        self._wait_cpu: float | None = None
        """Of this thread within next(), seconds since then; None: its workers tell what batches cost."""
        self._looks: list[WaitLooks] = []
        self._next_look_ns, self._until_look = 0, 0
        self._dose: Dose | None = None
        self._leads_to_delays = watcher.leads_to_delays(queue)
        self._rests_since: int | None = None
        """When the workers were told to begin no batch; None: they were not."""
        self._ready_until: int | None = None
        """Behind a burst on a device: batches that are handed over later are none that were ready; None: all are."""

    def step(self, take: Callable[[Any], Any], iterator: Any) -> Any:
        """The next batch, by `take(iterator)`."""
        called = time.perf_counter_ns()
        watcher = self.watcher
        if watcher.taking is not None or watcher.is_closed:
            return take(iterator)
        watcher.takes_over(self, called)
        device = watcher.device
        if device is not None:
            device.harvest()
        if watcher.shadow is not None:
            watcher.shadow.tick(called)
        if self._rows and self._rows[-1][2] < 0:
            self._rows[-1][2] = called
            if device is not None:
                device.mark(self._rows[-1], 4)
        if self._started and (
            len(self._rows) >= self._until_burst or (self._ready_until is not None and called > self._ready_until)
        ):
            called = self._turn(called)
        if self._dose is not None:
            watcher.enter(self._source, "held", called)
            called = watcher.doses.give(self._dose, called, device)
        watcher.enter(self._source, "wait" if self._started else "first", called)
        watcher.taking = self
        try:
            batch = take(iterator) if self._wait_cpu is None else self._take_timed(take, iterator, called)
        except BaseException as error:
            self.ended()
            if not isinstance(error, StopIteration):
                self.ring = None  # a script that goes on gets batches that its workers did not make in turn
            raise
        finally:
            watcher.taking = None
        returned = time.perf_counter_ns()
        watcher.enter(self._source, "step", returned)
        self._started = True
        num = self._samples_of(batch)
        self._rows.append([called, returned, -1, num, -1])
        self.seen.num_batches += 1
        self.seen.num_samples += num
        self._batch += 1
        if self._cpu_since is None and len(self._rows) == self._warmup and self._arm is Arm.REAL:
            if watcher.look_for_device():
                self._rows.clear()
                self._first, self._number = self._batch, self.seen.num_batches
            else:
                watcher.clock.begin()
                self._cpu_since = time.thread_time()
                if watcher.probes != "none" and watcher.device is None and self._told_ring is None:
                    self._wait_cpu, self.seen.times_waits = 0.0, True
        return batch

    def _samples_of(self, batch: Any) -> int:
        """Of a DataLoader's batches the first array tells only if it told the batch size of the first one: its first
        dimension may be channels, or time. A batch of one may be a block that was made before."""
        found, size = samples_of(batch), self._source.batch_size
        if size is None or size == 1 or self._source.kind != "DataLoader":
            return found or size or 1
        most = min(size, self._source.num_samples or size)
        if self._tells_size is None:
            self._tells_size = found == most
        return (found or most) if self._tells_size else most

    def _take_timed(self, take: Callable[[Any], Any], iterator: Any, called: int) -> Any:
        """The next batch, of workers that tell nothing: what this thread does meanwhile; now and then what all do."""
        if called >= self._next_look_ns:
            self._until_look -= 1
            if self._until_look < 0:
                return self._take_looked(take, iterator, called)
        return self._take_counted(take, iterator)

    def _take_counted(self, take: Callable[[Any], Any], iterator: Any) -> Any:
        begun = time.thread_time()
        batch = take(iterator)
        if self._wait_cpu is not None:  # what makes the batch may have ended the watch
            self._wait_cpu += time.thread_time() - begun
        return batch

    def _take_looked(self, take: Callable[[Any], Any], iterator: Any, called: int) -> Any:
        """The next batch, while all other threads are looked at."""
        batch, seen = self.watcher.clock.look(partial(self._take_counted, take, iterator))
        now, cost_ns = time.perf_counter_ns(), 0
        if seen is not None:
            self._looks.append(seen)
            cost_ns = now - called - round(seen.wall_s * 1e9)
        self.watcher.windows_ns += cost_ns
        self._next_look_ns = now + max(round(LOOK_S * 1e9), LOOK_COSTS * cost_ns)
        # So many steps later than the clock says: time passes in long steps.
        self._until_look = self.watcher.look_after()
        return batch

    @property
    def num_batches(self) -> int:
        return self._batch

    def ended(self) -> None:
        """The iterator gave its last batch, or failed."""
        self._close()
        self.watcher.enter(self._source, "after", time.perf_counter_ns())

    def broken(self) -> None:
        """The step under way is none: the script turned to something else."""
        if self._rows and self._rows[-1][2] < 0:
            self._rows.pop()
        self._close()

    def forget_processors(self) -> None:
        """Nothing is known of the open window's processors."""
        self._cpu_since = None

    def _turn(self, called: int) -> int:
        """The end of a window of this many steps: a burst begins or ends, where one may. When next() was called."""
        watcher = self.watcher
        if self._arm is not Arm.REAL:
            self._close()
            return called
        first = self._first_row()
        dose = watcher.dose(self, self._rows[first:], called) if self._leads_to_delays else None
        if dose is not None:
            self._close()
            self._dose, self._arm, workers = dose, Arm.DELAYED, self._source.workers
            self._warmup, self._until_burst = warmup_steps(workers), num_steps(workers)
            return called
        open_ns = called - self._rows[first][0]
        due = not self._leads_to_delays and watcher.may_burst(self, called, open_ns)
        if due and len(self._rows) > self._until_burst and (until := watcher.steps_more(self.seen)):
            # Time passes in long steps: what comes behind the one in which it became time is no step at random.
            self._until_burst = len(self._rows) + until
            return called
        if not due:
            waits = watcher.can_burst(self.queue) or self._leads_to_delays
            is_long = not waits and open_ns >= WINDOW_S * 1e9
            if is_long or len(self._rows) >= WINDOW_STEPS or called >= watcher.closes_by_ns:
                self._close()
                self._warmup = 1  # nothing was disturbed
            return called
        queue, more = self.queue, self._steps_ready(self._rows[first:])
        assert queue is not None
        self._close()
        watcher.enter(self._source, "held", called)
        if watcher.hold(self, queue):
            watcher.num_bursts += 1
            # The window begins where the pause ends. The first step behind it is none to count, where more follow with
            # their batches ready: caches are cold, and a device was left without work, so that launches show that else
            # are hidden. On the processors the second one is still a little slower.
            now, device = time.perf_counter_ns(), watcher.device
            cold = 0 if not more else 2 if device is None and more > 2 else 1
            self._arm, self._warmup, self._until_burst = Arm.DEVICE, 1 + cold, 2 + more
            self._rows.append([now, now, now, 0, -1])
            if more and (ring := self._told_ring) is not None:
                self._rests_since, until = now, now + round(MOST_REST_S * 1e9)
                ring.rest_until(until)
                self._ready_until = None if device is None else until
            if device is not None:
                device.mark(self._rows[-1], 4)
        return time.perf_counter_ns()

    def _steps_ready(self, rows: list[list[int]]) -> int:
        """How many steps behind a burst have their batches ready, without the first. `rows`: steps before it. Workers
        that begin batches meanwhile would hand the ready ones over late, and slow down steps on the processors: they
        rest, where they can be told to. Else a worker is asked for its next batch when one of its ready ones is taken,
        so that those of the other workers come at once; on the processors only the first step counts then."""
        most, on_device = min(MOST_READY, self._source.depth - 1), self.watcher.device is not None
        if self._told_ring is None:
            return min(most, self._source.workers - 1) if on_device else 0
        if on_device:
            return most  # its steps go on by themselves
        # In half of its steps it may have waited for the processors that the workers had.
        own_ns = sorted(issued - returned for _, returned, issued, *_ in rows)[len(rows) // 4]
        return min(most, int(READY_S * 1e9 / max(own_ns, 1)))

    @property
    def _told_ring(self) -> SpanRing | None:
        """Where its workers write when they made each batch, and are told to rest; None where they do not."""
        return self.ring if self.ring is not None and any(self.ring.made()) else None

    def _go_on(self) -> None:
        """Workers that rest behind a burst do so no more."""
        since, self._rests_since = self._rests_since, None
        if since is None or self.ring is None:
            return
        self.ring.rest_until(0)
        self.watcher.rested_ns += min(time.perf_counter_ns() - since, round(MOST_REST_S * 1e9))

    def _first_row(self) -> int:
        return min(self._warmup, len(self._rows) - 1)

    def _close(self) -> None:
        """The window's steps become a segment; the next window begins as one of the run as it is."""
        begun = time.perf_counter_ns()
        self._go_on()
        self._end_window()
        self.watcher.told()
        self.watcher.windows_ns += time.perf_counter_ns() - begun

    def _end_window(self) -> None:
        rows, arm, first, number = self._rows, self._arm, self._first, self._number
        warmup, cpu_since, wait_cpu_s, looks = self._warmup, self._cpu_since, self._wait_cpu, self._looks
        while rows and rows[-1][2] < 0:
            rows.pop()
        until, self._ready_until = self._ready_until, None
        if until is not None and rows and rows[-1][2] > until:
            rows = [row for row in rows if row[1] <= until]
            warmup = max(1, min(warmup, len(rows) - 1))
        dose, self._dose = self._dose, None
        self._leads_to_delays = self.watcher.leads_to_delays(self.queue)
        self._rows, self._arm, self._first = [], Arm.REAL, self._batch
        self._cpu_since, self._wait_cpu, self._looks = None, None, []
        self._warmup, self._number = max(1, 2 * self._source.depth), self.seen.num_batches
        self._until_burst = self.watcher.rows_until_turn(self.seen)
        if len(rows) <= warmup:
            return
        cpu = None if cpu_since is None else self.watcher.clock.end()
        consumer_s = None if cpu_since is None else time.thread_time() - cpu_since
        spans = None
        if arm is Arm.REAL:
            spans = None if self.ring is None else self.ring.table(self._made, first, len(rows))
            if spans is None and self.seen.has_spans:
                return  # batches that cannot be told from each other, at the end of shards of unlike lengths
            self.seen.has_spans |= spans is not None
        seen = self.seen  # a window of the run as it is, and the burst behind it, are one round
        seen.num_rounds = max(0, seen.num_rounds + (arm is Arm.REAL))
        on_device = self.watcher.device is not None
        make = partial(
            _segment, arm, seen.num_rounds, warmup, rows, spans, cpu, consumer_s, on_device=on_device,
            first_batch=number - (arm is Arm.DEVICE),  # its first row is the pause
            wait_cpu_s=wait_cpu_s, looks=_together(looks) if looks else None,
        )  # fmt: skip
        self.watcher.keep(Unsettled(seen, rows, dose, make, on_device=on_device))
        pids = [] if self.queue is None else self.queue.pids()
        seen.surroundings.look(seen.num_batches, seen.num_iterators, pids)


@dataclass
class Unsettled:
    """A window that has ended on the host."""

    seen: Seen
    rows: list[list[int]]
    dose: Dose | None
    make: Callable[[], Segment]
    on_device: bool

    @property
    def is_done(self) -> bool:
        return not self.on_device or self.rows[-1][4] != -1

    def become_segment(self) -> None:
        if self.on_device and min(row[4] for row in self.rows) < 0:
            return
        segment = self.make()
        if self.dose is not None:
            segment.delay = self.dose.facts()
            if segment.delay is None:
                return
        kept = self.seen.segments
        kept.append(segment)
        while sum(len(one.steps) for one in kept) > MOST_ROWS and len(kept) > 2:
            kept.pop(0)


def _segment(
    arm: Arm, number: int, warmup: int, rows: list[list[int]], spans: Any, cpu: CpuWindow | None,
    consumer_s: float | None, *, on_device: bool, first_batch: int, wait_cpu_s: float | None, looks: WaitLooks | None,
) -> Segment:  # fmt: skip
    """A step ends where the script asks for the next batch: a script that computes on the processors waits for its
    work. On a device it ends when that has done what was enqueued by then. Nothing is known of copies. Files are not
    seen, so that their bytes are unknown."""
    stamps = np.asarray(rows, dtype=np.int64)
    table = np.full((len(rows), len(STEP_FIELDS)), -1, dtype=np.int64)
    called, returned, issued = stamps[:, 0], stamps[:, 1], stamps[:, 2]
    done = np.maximum(stamps[:, 4], issued if arm is Arm.DEVICE else 0) if on_device else issued
    for name, values in (
        ("called_ns", called), ("returned_ns", returned), ("issued_ns", issued), ("waited_ns", issued),
        ("copy_begin_ns", returned), ("copy_end_ns", returned), ("done_ns", done), ("num_samples", stamps[:, 3]),
    ):  # fmt: skip
        table[:, STEP[name]] = values
    return Segment(
        arm=arm, round=number, num_warmup=warmup, steady=True, steps=table, spans=spans, opened_ns=int(called[0]),
        closed_ns=int(done[-1]), lane=SCRIPT_LANE, wall_s=(int(done[-1]) - int(called[0])) / 1e9, cpu=cpu,
        consumer_cpu_s=consumer_s, wait_cpu_s=wait_cpu_s, wait_looks=looks, first_batch=first_batch,
    )  # fmt: skip


def _together(looks: Sequence[WaitLooks]) -> WaitLooks:
    return WaitLooks(sum(one.num for one in looks), sum(one.wall_s for one in looks), sum(one.busy_s for one in looks))


def samples_of(batch: Any, levels: int = MOST_LEVELS) -> int | None:
    """The first dimension of the first array in it; None where there is none, or it does not tell. Of each list no more
    than MOST_PARTS are looked at, so many levels deep: the script waits meanwhile."""
    if isinstance(batch, dict):
        parts: Any = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    else:
        try:
            shape = getattr(batch, "shape", None)
            return int(shape[0]) if shape is not None and len(shape) else None
        except Exception:  # a nested tensor, a class of the script's own: nothing of the script may fail for a figure
            return None
    if not levels:
        return None
    found = (samples_of(one, levels - 1) for one in islice(parts, MOST_PARTS))
    return next((num for num in found if num is not None), None)
