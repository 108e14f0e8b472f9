"""What a script does with its loaders, from stamps at their iterators' borders.

One thread takes batches. Between two of its stamps it does one thing: it waits for a batch, works on one, makes an
iterator, or is busy with something else; so the times of all kinds sum to the whole.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from loaderbench.devices.step_events import StepEvents, step_events
from loaderbench.findings.table import words
from loaderbench.originals import time
from loaderbench.samplers.connections import connections, stores_of
from loaderbench.samplers.cpu_window import CpuClock
from loaderbench.watching.collections import Collector
from loaderbench.watching.doses import Dose, Doses
from loaderbench.watching.in_step import QUICK_BURSTS, InStep, Others, drawn_steps, least_steps
from loaderbench.watching.iterator import AGAIN_S, LOOK_STEPS, WINDOW_STEPS, Watched
from loaderbench.watching.samples import Sampling
from loaderbench.watching.seen import Kind, Queue, Seen, Source, Sources, places
from loaderbench.watching.shadow import Shadow
from loaderbench.watching.spans import SpanRing
from loaderbench.watching.windows import Unsettled

Probes = str
"""`none`, or some of PROBES with commas between them."""
PROBES = ("burst", "delay", "shadow")
LEAST_S, LATER_S = 0.5, 30.0
"""Between two bursts; later ones, behind QUICK_BURSTS, keep the longer distance."""
PATIENCE_S, MOST_FAILED = 5.0, 3
"""A queue that is not full by then is left as it is; after so many of these in a row no burst is tried any more."""
POLL_S = 0.0005
DISPLAY_S = 1.0
"""Between two looks of a person who looks on."""
END_S = 2.0
"""For which a device is asked for its last steps when the script has ended."""


class Watcher:
    """All loaders of one script, on the thread that first takes a batch."""

    # What others set, where it is wanted.
    follows_device = True
    display: Callable[[Watcher], None] | None = None
    """Shows a person how far it is: called now and then, where a batch is asked for, and when it is closed."""
    closes_by_ns = sys.maxsize
    """Windows that are longer end there."""
    judged: Source | None = None
    """The loader that the verdict is about, where `--apply` changed it."""
    before_first: Callable[[], None] | None = None
    """Called once an iterator was made, before its first batch."""
    phase: Callable[[], str] | None = None
    """What a trainer's callback tells: `train` or `evaluate`."""
    optimizer_steps: int | None = None
    sampling: Sampling | None = None
    """What samples the threads, where that is wanted."""
    collector: Collector | None = None

    def __init__(
        self, probes: Probes = "burst", tell: Callable[[Watcher], None] | None = None, others: Others | None = None
    ) -> None:
        """`others`: of several ranks, which are all held at the same steps."""
        self.probes, self._tell = probes, tell
        self._in_step = None if others is None else InStep(others)
        self._wanted = frozenset(probes.split(","))
        self.doses = Doses()
        self.device: StepEvents | None = None
        """Tells when the device's part of a step is done; None while the script uses none."""
        self.shadow: Shadow | None = None
        self.shadow_of: Source | None = None
        self.no_shadow: str | None = None
        """Why there is none, where one was wanted."""
        self._unsettled: deque[Unsettled] = deque()
        self.begun_ns = self._since = time.perf_counter_ns()
        self.before_ns = 0
        """Until the first iterator was made."""
        self._doing: Seen | None = None
        self._kind: Kind = "after"
        self.seen: dict[Source, Seen] = {}
        self._sources = Sources()
        self.stamps_itself: dict[type, bool] = {}
        """Of classes of DataLoaders that a script put loaderbench.watch around: whether they are noticed without."""
        self.thread: int | None = None
        """The one that is watched."""
        self.thread_name: str | None = None
        """Where it is not the script's main thread."""
        self.elsewhere: str | None = None
        """Another thread, which takes batches of an iterator that this one made."""
        self.taking: Watched | None = None
        """The iterator whose next batch the thread waits for: one within it is a part of it."""
        self.active: Watched | None = None
        """The iterator that gave the last batch."""
        self.num_broken = 0
        """Windows that another loader's batch ended."""
        self.paused_ns = self.rested_ns = self.num_bursts = 0
        self._last_burst_ns = self.begun_ns
        self._first_burst = 0
        """Those before it met no work of the script's."""
        self.no_burst: str | None = None
        """Why there are none, where some were wanted."""
        self.windows_ns = 0
        """Spent at the ends of windows."""
        self.display_due_ns = self.begun_ns
        self.display_ns = 0
        """Spent on that."""
        self.judging_s = 0.0
        """Processor time of the thread that judges for it."""
        self.is_closed = False
        self._failed = 0
        self._random = random.Random(0)
        self.clock = CpuClock(counts_reads=True)

    # -- what the thread does --------------------------------------------------------------------------------

    def enter(self, seen: Seen | None, kind: Kind, now: int) -> None:
        """From `now` on it does this with that loader."""
        if self._doing is None:
            self.before_ns += now - self._since
        else:
            self._doing.times_ns[self._kind] += now - self._since
        self._doing, self._kind, self._since = seen, kind, now

    def told_apart(self, source: Source, data: object, loader: object) -> Source:
        """Which of the loaders that look like this one it is. `data`: its data set."""
        return self._sources.of(source, data, loader, None if self.phase is None else self.phase())

    def opened(
        self, source: Source, begun: int, ring: SpanRing | None, made: Sequence[int], queue: Queue | None,
        data: object = None, loader: object = None,
    ) -> Watched | None:  # fmt: skip
        """An iterator was made, from `begun` until now; `made`: what each worker had made before; `data`: what tells
        its loader from one that looks alike. None on another thread than that of the first iterator, whose times would
        overlap, and for one within another's."""
        if self.thread is None:
            self.thread, current = threading.get_ident(), threading.current_thread()
            self.thread_name = None if current is threading.main_thread() else current.name
            if self.before_first is not None:
                self.before_first()
            if self.sampling is not None:
                self.sampling.consumer(threading.get_native_id())
        if threading.get_ident() != self.thread or self.taking is not None:
            return None
        source = self.told_apart(source, data, loader)
        if source not in self.seen:
            self.seen[source] = Seen(source, places())
        seen = self.seen[source]
        seen.num_iterators += 1
        self.enter(seen, "opening", begun)
        seen.mark()
        if self.phase is not None:
            seen.phase = self.phase()
        return Watched(self, seen, ring, made, queue)

    @property
    def num_batches(self) -> int:
        """Of all loaders."""
        return sum(one.num_batches for one in self.seen.values())

    @property
    def is_on_its_thread(self) -> bool:
        """Whether this is the thread that it watches."""
        return self.thread is None or threading.get_ident() == self.thread

    def taken_elsewhere(self, watched: Watched) -> None:
        """Another thread takes a batch of an iterator that this one made: what this one does is no waiting for it."""
        if self.elsewhere is None:
            self.elsewhere = threading.current_thread().name
        if self._doing is watched.seen and self._kind == "opening":
            self._kind = "after"

    def takes_over(self, watched: Watched) -> None:
        """Another iterator takes a batch: whatever step was under way is not one step any more."""
        if self.active is not None:
            self.num_broken += self.active.seen is not watched.seen
            self.active.broken()
        self.active = watched

    def show(self, display: Callable[[Watcher], None], now: int) -> None:
        """Draw what a terminal shows while the script goes on, DISPLAY_S apart."""
        display(self)
        ended = time.perf_counter_ns()
        self.display_ns += ended - now
        self.display_due_ns = ended + round(DISPLAY_S * 1e9)

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
            one = self._unsettled.popleft()
            worked = one.seen.works
            one.become_segment()
            if one.seen.works and not worked:
                self._first_burst = self.num_bursts

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

    @property
    def main(self) -> Seen | None:
        """The loader that most of the time went to: the training's."""
        if self.judged is not None:
            return self.seen.get(self.judged)
        trains = [one for one in self.seen.values() if one.phase != "evaluate"] or list(self.seen.values())
        return max(trains, key=lambda one: one.spent_ns, default=None)

    def stores(self, seen: Seen) -> tuple[str, ...]:
        """Who sends what a loader reads, by its workers; where these are unknown, by the script's process."""
        if seen.has_spans or self.probes == "none":
            return tuple(seen.stores)
        asked = sum(one.cpu.asked_bytes or 0 for one in seen.segments if one.cpu is not None)
        return tuple(stores_of(connections().by_peer, asked))

    def sample(self) -> None:
        """Begin to sample the threads of this process."""
        if self.probes != "none":
            self.sampling, self.collector = Sampling(), Collector()

    def has_workers(self, seen: Seen, pids: Sequence[int]) -> None:
        """A loader's iterator has started these processes."""
        if self.sampling is not None:
            self.sampling.workers(pids, self.number_of(seen.source))

    def number_of(self, source: Source) -> int:
        """Of a loader that was seen."""
        return list(self.seen).index(source)

    def close(self) -> None:
        """The script has ended, or the watch of it. An iterator that goes on is no longer seen."""
        self.is_closed = True
        if self.sampling is not None:
            self.sampling.close()
        if self.collector is not None:
            self.collector.close()
        self.enter(self._doing, self._kind, time.perf_counter_ns())
        if self.active is not None:
            if not self.is_on_its_thread:
                self.active.forget_processors()  # they were read by another thread, which alone can end that
            self.active.broken()
        self._wait_for_device()
        if self.shadow is not None:
            self.shadow.close()
        if self.display is not None:
            self.display(self)

    def so_far(self) -> Watcher:
        """A copy of what was seen, up to the window that ended last, for another thread. It costs some microseconds."""
        taken = copy.copy(self)
        taken.active = taken.display = taken.sampling = taken.collector = None
        taken._unsettled, taken.device, taken.shadow = deque(), None, None
        taken.seen = {
            source: replace(one, segments=[*one.segments], times_ns={**one.times_ns})
            for source, one in self.seen.items()
        }
        taken._doing = taken._doing and taken.seen[taken._doing.source]
        taken.close()
        taken.device, taken.shadow = self.device, self.shadow
        taken.sampling, taken.collector = self.sampling, self.collector
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
        is_time = self.num_bursts < self._first_burst + QUICK_BURSTS or now - self._last_burst_ns >= LATER_S * 1e9
        return is_time and open_ns >= LEAST_S * 1e9 and self.main is watched.seen

    def next_burst_s(self) -> float | None:
        """Until it is time for the next burst, as far as that is known; None where none is to come."""
        main = self.main
        if main is None or not main.source.depth or not self.wants("burst") or self.no_burst is not None:
            return None
        if self._in_step is not None:
            return self._in_step.steps_left(main) * main.spent_ns / 1e9 / max(1, main.num_batches)
        distance_s = LEAST_S if self.num_bursts < QUICK_BURSTS else LATER_S
        return max(0.0, distance_s - (time.perf_counter_ns() - self._last_burst_ns) / 1e9)

    def rows_until_turn(self, seen: Seen) -> int:
        """Steps of a window that begins now, before it may end."""
        until = drawn_steps(seen.source.depth, self._random)
        return until if self._in_step is None else min(until, self._in_step.steps_left(seen))

    def next_look(self, num: int, open_ns: int) -> int:
        """Steps of the open window before the next look whether it may end. It has `num` by now. All ranks look at the
        same steps, at each."""
        if self._in_step is not None:
            return num + 1
        return min(WINDOW_STEPS, num + max(1, int(AGAIN_S * 1e9 * num / max(open_ns, 1))))

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
            self.no_burst = words("queue_not_readable", {"error": str(error)})
            full = False
        self._failed = 0 if full else self._failed + 1
        if self._failed >= MOST_FAILED and self.no_burst is None:
            self.no_burst = words("queue_never_full", {"patience_s": PATIENCE_S})
        return full

    def told(self) -> None:
        """A window has ended."""
        if self._tell is not None:
            self._tell(self)
