"""Brings points and summaries to a tracker without the script waiting for it, whatever the tracker does.

A tracker runs in a process of its own: a library that takes seconds to import, hangs, or ends its process does nothing
to the script. Only a run that is an object of the script's process (W&B's) is called from a thread there.
"""

from __future__ import annotations

import functools
import json
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import psutil

from loaderbench import plain
from loaderbench.forks import wait_for
from loaderbench.neutral import environment
from loaderbench.originals import os, time
from loaderbench.plain import JsonObject
from loaderbench.trackers.messages import Caller, what_failed
from loaderbench.trackers.tracker import Point, Summary, Target, Tracker
from loaderbench.watching.kept import Kept
from loaderbench.watching.samples import ROOT, start_apart, takes_orphans

PATIENCE_S = 30.0
"""A tracker that does nothing for so long when the script has ended is given up."""
MOST_S = 120.0
"""So is one that is still at work then."""
MOST_WAITING = 1000
"""Messages that wait for a tracker; of more the oldest are dropped, which the summary's points make good."""
POLL_S = 0.02
CHUNK_BYTES = 1 << 16


class Delivery(Protocol):
    """The way to one tracker. None of its methods raises, and none but `finish` waits."""

    def point(self, point: Point) -> None: ...

    def summarize(self, summary: Summary) -> None: ...

    def finish(self, *, failed: bool) -> str | None:
        """End the run. What went wrong; None where nothing did."""
        ...


class ProcessDelivery:
    """To a tracker in a process of its own, which ends when the script's does."""

    def __init__(self, name: str, target: Target) -> None:
        """`name`: of the tracker."""
        self._waiting: deque[bytes] = deque(maxlen=MOST_WAITING)
        self._part = self._heard = b""
        self._owner = os.getpid()
        self._pid: int | None = None
        self._has_closed = self._is_gone = False
        self._problem: str | None = None
        self._asks: Kept | None = None
        self._hears: Kept | None = None
        self._has_started = False
        start = functools.partial(self._try_to_start, name, target)
        try:
            threading.Thread(target=start, name="loaderbench-tracker", daemon=True).start()
        except RuntimeError:  # Python ends: nothing is held up any more
            start()

    def _try_to_start(self, name: str, target: Target) -> None:
        try:
            self._start(name, target)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._problem, self._is_gone = f"its process cannot be started: {what_failed(error)}", True
        self._has_started = True

    def _start(self, name: str, target: Target) -> None:
        asked, asks = os.pipe()
        hears, said = os.pipe()
        program = f"import sys; sys.path.insert(0, {ROOT!r}); from loaderbench.trackers.process import main; main()"
        given = json.dumps({"name": name, "script": os.getpid(), "target": plain.to_json(target)})
        try:
            start_apart(["-P", "-c", program, given], asked, stdout=said, env=environment(os.environ))
        finally:
            os.close(asked)
            os.close(said)
        os.set_blocking(asks, False)
        os.set_blocking(hears, False)
        self._asks, self._hears = Kept(asks), Kept(hears)

    def point(self, point: Point) -> None:
        """Send it, or keep it until the tracker takes more."""
        self._send({"point": plain.to_json(point)})

    def summarize(self, summary: Summary) -> None:
        """Send it, or keep it until the tracker takes more."""
        self._send({"summary": plain.to_json(summary)})

    def finish(self, *, failed: bool) -> str | None:
        """Wait until the tracker has taken everything, at most PATIENCE_S after it last did something."""
        if os.getpid() != self._owner:
            return None
        self._send({"close": failed})
        begun = since = time.monotonic()
        used = 0.0
        while not (self._has_closed or self._is_gone):
            now = time.monotonic()
            before, used = used, self._cpu_s()
            if self._push() | self._hear() or used != before:
                since = now
            if now - since > PATIENCE_S:
                self._problem = self._problem or f"no answer for {now - since:.0f} s"
                break
            if now - begun > MOST_S:
                self._problem = self._problem or f"not done {now - begun:.0f} s after the script's end"
                break
            time.sleep(POLL_S)
        self._end()
        return self._problem

    def _cpu_s(self) -> float:
        """Processor time of its process, and of those that it started: at a low priority it may be slow without a
        hang."""
        if self._pid is None:
            return 0.0
        try:
            own = psutil.Process(self._pid)
            times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
        except psutil.Error:
            return 0.0
        return sum(one.user + one.system for one in times)

    def _end(self) -> None:
        for file in (self._asks, self._hears):
            if file is not None:
                file.close()
        if self._pid is None:
            return
        if not self._has_closed:
            with suppress(OSError):
                os.kill(self._pid, 9)
        if takes_orphans():
            wait_for(self._pid)

    def _send(self, message: JsonObject) -> None:
        if self._is_gone or self._has_closed or os.getpid() != self._owner:
            return
        self._waiting.append(json.dumps(message).encode() + b"\n")
        self._push()
        self._hear()

    def _push(self) -> bool:
        """Write what the tracker's process takes now. Whether it took something."""
        number = self._asks.number if self._asks is not None and self._has_started else None
        took = False
        while number is not None and (self._part or self._waiting):
            self._part = self._part or self._waiting.popleft()
            try:
                done = os.write(number, self._part)
            except BlockingIOError:
                break
            except OSError:  # it has ended, and said why
                self._waiting.clear()
                self._part = b""
                break
            self._part, took = self._part[done:], True
        return took

    def _hear(self) -> bool:
        """Read what it says. Whether it said something."""
        if not self._has_started:
            return False
        number = None if self._hears is None else self._hears.number
        if number is None:
            self._gone()
            return False
        heard = has_ended = False
        with suppress(BlockingIOError, OSError):
            while found := os.read(number, CHUNK_BYTES):
                self._heard, heard = self._heard + found, True
            has_ended = True
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._note(json.loads(line))
        if has_ended:
            self._gone()
        return heard

    def _note(self, said: JsonObject) -> None:
        match said:
            case {"pid": int(pid)}:
                self._pid = pid
            case {"problem": str(problem)}:
                self._problem = self._problem or problem
            case {"closed": True}:
                self._has_closed = True

    def _gone(self) -> None:
        if not self._has_closed and not self._is_gone:
            self._is_gone = True
            self._problem = self._problem or "its process ended"


class ThreadDelivery:
    """To a run that is an object of this process. A thread lives for as long as something waits for it."""

    def __init__(self, open_run: Callable[[], Tracker]) -> None:
        self._open = open_run
        self._calls: deque[Callable[[Caller], None]] = deque(maxlen=MOST_WAITING)
        self._lock, self._is_running = threading.Lock(), False
        self._owner, self._num_done = os.getpid(), 0
        self._problem: str | None = None
        self._caller: Caller | None = None

    def point(self, point: Point) -> None:
        """Log it soon."""
        self._call(lambda caller: caller.point(point))

    def summarize(self, summary: Summary) -> None:
        """Set it soon."""
        self._call(lambda caller: caller.summarize(summary))

    def finish(self, *, failed: bool) -> str | None:
        """Wait until the run has taken everything, at most PATIENCE_S after it last did. The run is the script's: it
        stays open."""
        done, since = self._num_done, time.monotonic()
        while self._is_running and os.getpid() == self._owner:
            if self._num_done != done:
                done, since = self._num_done, time.monotonic()
            elif time.monotonic() - since > PATIENCE_S:
                return self._problem or f"no answer for {PATIENCE_S:.0f} s"
            time.sleep(POLL_S)
        return self._problem or (None if self._caller is None else self._caller.problem)

    def _call(self, call: Callable[[Caller], None]) -> None:
        if os.getpid() != self._owner or self._problem is not None:
            return
        with self._lock:
            self._calls.append(call)
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._work, name="loaderbench-tracker", daemon=True).start()
        except RuntimeError as error:  # no thread more is allowed, or Python ends
            self._is_running, self._problem = False, what_failed(error)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._calls or self._problem is not None:
                    self._is_running = False
                    return
                call = self._calls.popleft()
            try:
                if self._caller is None:
                    self._caller = Caller(self._open())
                call(self._caller)
            except BaseException as error:  # of opening: whatever a library raises
                self._problem = what_failed(error)
            self._num_done += 1
