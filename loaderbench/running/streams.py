"""A loader's stream of batches over several windows: it goes on in the next window of the same loader, and rests with a
full queue while arms without it are measured. A new stream has to be filled anew for each window.

docs/method.md, `Streams that go on`, has the rules and why they change nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.loaders.base import Batch, Loader
from loaderbench.recording.facts import SPAN, STEP, Segment, Table
from loaderbench.running.loop import StepLoop
from loaderbench.samplers.process_io import threads_of_tree

Pace = Literal["starved", "full"]
"""How a loader fed an arm: its queue was steadily empty, or steadily full."""
WAITED, STARVED_ROUNDS = 0.1, 0.9
"""A loader is behind where the device waited for this part of a round of the workers, in this part of the rounds."""
READY = 0.02
"""It is ahead where the device waited for no more than this part of any round."""
FEWEST_ROUNDS = 2
LOOK_S, LOOKS, AT_REST = 0.02, 2, 0.05
"""Workers rest if, in so many looks one after the other, they used less than this part of a processor."""


@dataclass
class Stream:
    """Batches of a loader, and the windows that they fed."""

    batches: Iterator[Batch]
    loader: Loader | None = None
    """None: no loader makes them."""
    resumed_ns: int | None = None
    """When the last window began to take batches, where others came before it; what is ready then is a head start."""
    windows: list[Segment] = field(default_factory=list)
    pace: Pace | None = None
    """In the last window of an arm with a device, or of one without where there was none."""

    def fed(self, segment: Segment, pace: Pace | None) -> None:
        """Keep a window that was fed, while the stream goes on."""
        self.windows.append(segment)
        if segment.arm.on_device or self.pace is None:
            self.pace = pace

    def close(self) -> Table | None:
        """End the stream, and complete its windows. Returns the spans of batches that were not delivered; None where
        the loader does not tell."""
        close(self.batches)
        drained = drained_spans(self.loader)
        complete(self.windows, drained)
        self.windows = []
        return drained


def close(batches: Iterator[Batch]) -> None:
    """End a stream; a stream that no loader makes has nothing to end."""
    end = getattr(batches, "close", None)
    if end is not None:
        end()


def drained_spans(loader: Loader | None) -> Table | None:
    """Spans of batches that were finished or begun but not delivered; None where the loader does not tell."""
    drained = getattr(loader, "drained_spans", None)
    spans: Table | None = None if drained is None else drained()
    return spans


def complete(windows: list[Segment], drained: Table | None) -> None:
    """Give each window of a stream the spans of the batches that were begun in it and delivered later, or never."""
    later = drained
    for segment in reversed(windows):
        own = segment.spans
        if own is None or later is None:
            return  # the loader gives none
        begun = later[later[:, SPAN["start_ns"]] < segment.closed_ns]
        segment.spans, segment.num_drained = np.concatenate([own, begun]), len(begun)
        later = np.concatenate([own, later])


def pace_of(segment: Segment, lanes: int) -> Pace | None:
    """How the loader fed a window, by its rounds; None where it was neither, or is not known."""
    waits, lengths = _rounds(_stamps(segment.arm, segment.window), lanes)
    if not segment.steady or len(waits) < FEWEST_ROUNDS:
        return None
    parts = waits / np.maximum(lengths, 1)
    if float((parts >= WAITED).mean()) >= STARVED_ROUNDS:
        return "starved"
    return "full" if segment.arm.on_device and bool((parts <= READY).all()) else None


def _stamps(arm: Arm, rows: Table) -> Table:
    """[N, 3] of steps: since when it waited for its batch, when it had it, when it ended. On a device all but the
    first: a host that is ahead of it may wait for a batch, and cost nothing."""
    called, returned, done = (rows[:, STEP[name]] for name in ("called_ns", "returned_ns", "done_ns"))
    if not arm.on_device:
        return np.stack([called, np.maximum(called, returned), returned], axis=1)
    since = np.maximum(called[1:], done[:-1])
    return np.stack([since, np.maximum(since, returned[1:]), done[1:]], axis=1)


def _rounds(stamps: Table, lanes: int) -> tuple[Table, Table]:
    """(ns waited for batches, ns in all) of each whole round: from when a step began to wait for its batch, when it had
    it, and when it ended."""
    num = len(stamps) // lanes
    since, had, ended = (stamps[: num * lanes, column].reshape(num, lanes) for column in range(3))
    return (had - since).sum(axis=1), ended[:, -1] - since[:, 0]


def is_as_before(loop: StepLoop, pace: Pace, resumed_ns: int | None, lanes: int) -> bool:
    """Whether the last round of a window's warm-up shows the pace that the arm had, with nothing left of a head start.

    Where a loader tells when it made its batches, those of the round must be newer than the stream's going on.
    """
    stamps = np.array([(row[0], row[1], row[3]) for row in loop.host[-lanes:]], dtype=np.int64)
    waits, lengths = _rounds(stamps, lanes)
    if pace == "starved" and waits[0] < WAITED * lengths[0]:
        return False
    spans = [span for span in loop.spans[-lanes:] if span is not None]
    if resumed_ns is None or len(spans) < lanes:
        return pace == "starved"
    # A worker that never rests was within a batch at that time; one that rested had begun none.
    made = SPAN["ready_ns" if pace == "starved" else "start_ns"]
    return min(int(span[made]) for span in spans) >= resumed_ns


def goes_straight_on(stream: Stream, arm: Arm) -> bool:
    """Whether a window of `arm` opens within a step behind the last one of its stream, and finds the loader at the same
    work: for the same arm, or for one without a device where it was behind. It made one batch more meanwhile at most,
    and the step that begins late takes that."""
    if stream.resumed_ns is None or not stream.windows:
        return False
    last = stream.windows[-1]
    first = max(last.num_warmup, 1)
    stamps = _stamps(last.arm, last.steps[first - last.arm.on_device :])
    if not len(stamps):
        return False
    since, had, ended = stamps.T
    length_ns = int(ended[-1] - since[0])
    away_ns = stream.resumed_ns - int(last.steps[-1, STEP["returned_ns"]])
    if away_ns * len(stamps) > length_ns:
        return False
    behind = int((had - since).sum()) >= WAITED * length_ns
    return arm is last.arm or (behind and not arm.on_device)


def come_to_rest(most_s: float) -> bool:
    """Wait until no thread of this process and its workers works, but the one that calls; False where they still do
    after `most_s`, or where the kernel does not count their time."""
    limit, quiet, before = time.perf_counter() + most_s, 0, _worked_ns()
    seen = time.perf_counter_ns()
    while before is not None and time.perf_counter() < limit:
        time.sleep(LOOK_S)
        now, at = _worked_ns(), time.perf_counter_ns()
        if now is None:
            return False
        quiet = quiet + 1 if now - before < AT_REST * (at - seen) else 0
        if quiet == LOOKS:
            return True
        before, seen = now, at
    return False


def _worked_ns() -> int | None:
    """ns on a processor, or waiting for one, of all threads but the calling one; None where they are not counted."""
    own = os.getpid(), threading.get_native_id()
    threads = threads_of_tree(own[0])
    if not any(ran for ran, _ in threads.values()):
        return None
    return sum(ran + queued for thread, (ran, queued) in threads.items() if thread != own)
