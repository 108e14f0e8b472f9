"""One iterator of a watched script: stamps at its borders, and the windows that they make."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from loaderbench.cases.arms import Arm
from loaderbench.originals import time
from loaderbench.recording.facts import WaitLooks
from loaderbench.watching.doses import Dose, num_steps, warmup_steps
from loaderbench.watching.seen import Queue, Seen
from loaderbench.watching.spans import SpanRing
from loaderbench.watching.windows import Unsettled, segment_of, together

if TYPE_CHECKING:
    from loaderbench.watching.watcher import Watcher

WINDOW_STEPS = 2048
"""Of the longest window: a worker's spans of it are still there when it ends."""
WINDOW_S = 5.0
"""Of a window that no burst will end: where workers end with an epoch, nothing is known of the processors of its last
one."""
LOOK_S, LOOK_STEPS, LOOK_COSTS = 0.1, 16, 200
"""So long, and up to so many steps more, from one wait in which all threads are looked at to the next; and so many
times as long as it took to look at them."""
QUICK_LOOKS, LATER_LOOKS = 40, 4
"""Of a loader; later ones come at so many times that distance."""
MOST_READY = 8
"""Steps with data ready behind a burst, besides the first one."""
READY_S, MOST_REST_S = 0.05, 0.1
"""On the processors these take so long at most, and workers that begin no batch meanwhile rest no longer than that."""
AGAIN_S = 0.05
"""Between two looks whether an open window may end, where steps are shorter: one takes as long as all other stamps."""
MOST_PARTS, MOST_LEVELS = 8, 3
"""Of a batch, to look for its first array in."""


class Watched:
    """One iterator."""

    def __init__(
        self, watcher: Watcher, seen: Seen, ring: SpanRing | None, made: Sequence[int], queue: Queue | None
    ) -> None:
        self.watcher, self.seen, self.ring, self.queue = watcher, seen, ring, queue
        self._made = list(made)
        self.by = array("H")
        """The worker of each batch, as the iterator says; empty where it does not."""
        self._first_known = False
        self._source = seen.source
        self._batch = 0
        self._size_at: Any = None
        """In a dictionary or a list: what tells a batch's samples; None: all of it is looked through."""
        self._tells_size: bool | None = None
        """Whether the first dimension of a batch's first array is its samples; None before the first batch."""
        self._arm, self._rows = Arm.REAL, list[list[int]]()
        self._warmup = seen.warmup
        self._until_burst = self._next_look = watcher.rows_until_turn(seen)
        """Steps of the window before a burst may end it, and before the next look whether it ends."""
        self._first, self._number, self._started = 0, seen.num_batches, False
        self._only_stamps = False
        """Nothing else is done at a step, until the window may end."""
        self._cpu_since: float | None = None
        """When the readings of the window's processors began; None: they did not."""
        self._wait_cpu: float | None = None
        """Of this thread within next(), seconds since then; None: its workers tell what batches cost."""
        self._looks: list[WaitLooks] = []
        self._dose: Dose | None = None
        self._leads_to_delays = watcher.leads_to_delays(queue)
        self._rests_since: int | None = None
        """When the workers were told to begin no batch; None: they were not."""
        self._ready_until: int | None = None
        """Behind a burst on a device: batches that are handed over later are none that were ready; None: all are."""

    def step(self, take: Callable[[Any], Any], iterator: Any) -> Any:
        """The next batch, by `take(iterator)`. Behind a step the caches hold nothing of this: each line costs."""
        called = time.perf_counter_ns()
        watcher, seen, rows = self.watcher, self.seen, self._rows
        if watcher.taking is not None or watcher.is_closed or threading.get_ident() != watcher.thread:
            return self._handed_on(take, iterator)
        if self._only_stamps and watcher.active is self and 0 < len(rows) < self._next_look and rows[-1][2] < 0:
            rows[-1][2] = called
        else:
            called = self._before(called)
        watcher.enter(seen, "wait" if self._started else "first", called)
        watcher.taking = self
        try:
            batch = take(iterator) if self._wait_cpu is None else self._take_timed(take, iterator, called)
        except BaseException as error:
            watcher.taking = None
            if isinstance(error, StopIteration):
                seen.starts[-1].stop_ns = time.perf_counter_ns() - called
            self.ended()
            if not isinstance(error, StopIteration):
                self.ring = None  # a script that goes on gets batches that its workers did not make in turn
            raise
        watcher.taking = None
        returned = time.perf_counter_ns()
        watcher.enter(seen, "step", returned)
        if 0 < self._batch < self._source.workers:
            seen.starts[-1].round_ns += returned - called
        num = self._samples_of(batch)
        self._rows.append([called, returned, -1, num, -1])
        seen.num_batches += 1
        seen.num_samples += num
        self._batch += 1
        if self._cpu_since is None:
            self._begin(watcher)
        return batch

    def _before(self, called: int) -> int:
        """The step before has ended where the script asks for a batch, and what else is to be done there. When next()
        was called."""
        watcher = self.watcher
        if watcher.active is not self:
            watcher.takes_over(self)
        if watcher.display is not None and called >= watcher.display_due_ns:
            watcher.show(watcher.display, called)
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
            len(self._rows) >= self._next_look or (self._ready_until is not None and called > self._ready_until)
        ):
            called = self._turn(called)
        if self._dose is not None:
            watcher.enter(self.seen, "held", called)
            called = watcher.doses.give(self._dose, called, device)
        return called

    def _begin(self, watcher: Watcher) -> None:
        """The readings of the open window's processors, once it is warm."""
        self._started = True
        extras = (watcher.display, watcher.device, watcher.shadow, self._dose, self._ready_until)
        self._only_stamps = all(one is None for one in extras)
        if len(self._rows) != self._warmup or self._arm is not Arm.REAL:
            return
        if watcher.look_for_device():
            self._rows.clear()
            self._first, self._number = self._batch, self.seen.num_batches
            return
        watcher.clock.begin()
        self._cpu_since = time.thread_time()
        if watcher.probes != "none" and watcher.device is None and self._told_ring is None:
            self._wait_cpu, self.seen.times_waits = 0.0, True

    def _handed_on(self, take: Callable[[Any], Any], iterator: Any) -> Any:
        """The next batch, of which nothing is stamped: it is within another's, or the watch has ended, or a thread that
        is not watched takes it."""
        if not self.watcher.is_closed and not self.watcher.is_on_its_thread:
            self.watcher.taken_elsewhere(self)
        return take(iterator)

    def _samples_of(self, batch: Any) -> int:
        """Of a DataLoader's batches the first array tells only if it told the batch size of the first one: its first
        dimension may be channels, or time. A batch of one may be a block that was made before."""
        found, size = self._first_dimension(batch), self._source.batch_size
        if size is None or size == 1 or self._source.kind != "DataLoader":
            return found or size or 1
        most = min(size, self._source.num_samples or size)
        if self._tells_size is None:
            self._tells_size = found == most
        return (found or most) if self._tells_size else most

    def _first_dimension(self, batch: Any) -> int | None:
        """As `samples_of`, of the part of it that told in an earlier batch: to look through all takes longer."""
        if self._size_at is not None:
            try:
                return int(batch[self._size_at].shape[0])
            except Exception:  # another kind of batch, or a class of the script's own
                self._size_at = None
        found = samples_of(batch)
        if found is not None and isinstance(batch, dict | list | tuple):
            parts = batch.items() if isinstance(batch, dict) else enumerate(batch)
            told = (at for at, part in islice(parts, MOST_PARTS) if samples_of(part, 0) == found)
            self._size_at = next(told, None)
        return found

    def _take_timed(self, take: Callable[[Any], Any], iterator: Any, called: int) -> Any:
        """The next batch, of workers that tell nothing: what this thread does meanwhile; now and then what all do."""
        if called >= self.seen.next_look_ns:
            self.seen.until_look -= 1
            if self.seen.until_look < 0:
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
        of = self.seen
        of.num_looks += 1
        later = 1 if of.num_looks < QUICK_LOOKS else LATER_LOOKS
        of.next_look_ns = now + later * max(round(LOOK_S * 1e9), LOOK_COSTS * cost_ns)
        # So many steps later than the clock says: time passes in long steps.
        of.until_look = self.watcher.look_after()
        return batch

    @property
    def num_batches(self) -> int:
        return self._batch

    def ended(self) -> None:
        """The iterator gave its last batch, or failed."""
        self._close()
        self.seen.count_by_worker(self.by)
        self.watcher.enter(self.seen, "after", time.perf_counter_ns())

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
            self._warmup = warmup_steps(workers)
            self._until_burst = self._next_look = num_steps(workers)
            return called
        open_ns = called - self._rows[first][0]
        due = not self._leads_to_delays and watcher.may_burst(self, called, open_ns)
        if due and len(self._rows) > self._until_burst and (until := watcher.steps_more(self.seen)):
            # Time passes in long steps: what comes behind the one in which it became time is no step at random.
            self._until_burst = self._next_look = len(self._rows) + until
            return called
        if not due:
            waits = watcher.can_burst(self.queue) or self._leads_to_delays
            is_long = not waits and open_ns >= WINDOW_S * 1e9
            if is_long or len(self._rows) >= WINDOW_STEPS or called >= watcher.closes_by_ns:
                self._close()
                self._warmup = 1  # nothing was disturbed
            else:
                self._next_look = watcher.next_look(len(self._rows), called - self._rows[0][0])
            return called
        queue, more = self.queue, self._steps_ready(self._rows[first:])
        assert queue is not None
        self._close()
        watcher.enter(self.seen, "held", called)
        if watcher.hold(self, queue) and (size := queue.size()):
            watcher.num_bursts += 1
            more = min(more, size - 1)
            if watcher.device is None:  # there the host's own waits are hidden
                watcher.clock.begin()
                self._cpu_since = time.thread_time()
            # The window begins where the pause ends. The first step behind it is none to count, where more follow with
            # their batches ready: caches are cold, and a device was left without work, so that launches show that else
            # are hidden. On the processors the second one is still a little slower.
            now, device = time.perf_counter_ns(), watcher.device
            cold = 0 if not more else 2 if device is None and more > 2 else 1
            self._arm, self._warmup = Arm.DEVICE, 1 + cold
            self._until_burst = self._next_look = 2 + more
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

    @property
    def _by(self) -> Sequence[int] | None:
        """The worker of each batch of this epoch; None where that is not known: each gives one in turn."""
        return self.by if len(self.by) == self._batch else None

    def _note_first(self) -> None:
        """How long the first batch took in its worker, and which worker gave how many."""
        if self.ring is None or not self._made or self._first_known or not self._batch:
            return
        worker = self.by[0] if self.by else 0
        self._first_known = True
        if worker < len(self._made):
            self.seen.starts[-1].first_made_s = self.ring.first_s(worker, self._made[worker])

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
        self._note_first()
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
        self._rows, self._arm, self._first, self._only_stamps = [], Arm.REAL, self._batch, False
        self._cpu_since, self._wait_cpu, self._looks = None, None, []
        self._warmup, self._number = self.seen.warmup, self.seen.num_batches
        self._until_burst = self._next_look = self.watcher.rows_until_turn(self.seen)
        if len(rows) <= warmup:
            return
        cpu = None if cpu_since is None else self.watcher.clock.end()
        consumer_s = None if cpu_since is None else time.thread_time() - cpu_since
        spans = None
        if arm is Arm.REAL:
            spans = None if self.ring is None else self.ring.table(self._made, first, len(rows), self._by)
            if spans is None and self.seen.has_spans:
                return  # batches that cannot be told from each other, at the end of shards of unlike lengths
            self.seen.has_spans |= spans is not None
        if self.ring is not None:
            self.seen.stores = self.ring.stores() or self.seen.stores
            self.seen.note_ring(self.ring)
        seen = self.seen  # a window of the run as it is, and the burst behind it, are one round
        seen.num_rounds = max(0, seen.num_rounds + (arm is Arm.REAL))
        on_device = self.watcher.device is not None
        make = partial(
            segment_of, arm, seen.num_rounds, warmup, rows, spans, cpu, consumer_s, on_device=on_device,
            first_batch=number - (arm is Arm.DEVICE),  # its first row is the pause
            wait_cpu_s=wait_cpu_s, looks=together(looks) if looks else None,
        )  # fmt: skip
        self.watcher.keep(Unsettled(seen, rows, dose, make, on_device=on_device))
        seen.by_worker_open = self.by
        pids = [] if self.queue is None else self.queue.pids()
        seen.surroundings.look(seen.num_batches, seen.num_iterators, pids)


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
