"""A training loop without a loader: the function that makes its batches is found by samples, and stamped like a loader.

Where a script iterates no loader, samples of its main thread show which of its own functions run. Those that look like
makers of batches are replaced, in their modules or classes, by ones that look at what they return: arrays that no
gradient belongs to. The one of them with most time is the loader; its calls are the loop's steps.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

from loaderbench.originals import os, time
from loaderbench.recording.thread_samples import ThreadSamples
from loaderbench.watching.iterator import Watched, samples_of
from loaderbench.watching.places import is_users
from loaderbench.watching.seen import Source
from loaderbench.watching.spans import Lane, SpanRing
from loaderbench.watching.tracebacks import unseen
from loaderbench.watching.watcher import Watcher

KIND = "function"
"""Of a loader that is one."""
FIRST_S, AGAIN_S, TIMES = 2.0, 1.0, 30
"""Until the first look for such functions, and between two; and how many looks."""
LEAST_PART, MOST_TRIED = 0.02, 24
"""Of the main thread's time, what a function must take; and how many are tried at once."""
CALLS = 3
"""That all must have returned batches."""


_no_forks = threading.Lock()
"""Held while the thread works: a process that was forked meanwhile would have its locks, but not the thread."""
os.register_at_fork(before=_no_forks.acquire, after_in_parent=_no_forks.release, after_in_child=_no_forks.release)


@dataclass
class _Tried:
    """A function of the script's that is looked at."""

    name: tuple[str, str]
    """Its file, and its own name."""
    function: Callable[..., Any]
    homes: list[tuple[Any, str]]
    """Modules and classes that have it, and its name there."""
    part: float
    num_calls: int = 0
    gives_batches: bool = True


class BatchFunction:
    """Looks for the function, in a thread of its own, until a loader is iterated."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher, self._owner = watcher, os.getpid()
        self._ended = threading.Event()
        self._tried: list[_Tried] = []
        self._chosen: _Tried | None = None
        self._watched: Watched | None = None
        self._lane: Lane | None = None
        self._thread = threading.Thread(target=self._look, name="loaderbench", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The script's functions are its own again."""
        if os.getpid() != self._owner:  # its thread is not here
            return
        self._ended.set()
        for tried in self._tried:
            _put(tried.homes, tried.function)

    def _look(self) -> None:
        try:
            self._search()
        except Exception as error:  # the script continues, and the record says why nothing was found
            assert self._watcher.sampling is not None
            self._watcher.sampling.problem = f"no function was looked for: {error!r}"

    def _search(self) -> None:
        wait_s = FIRST_S
        for _ in range(TIMES):
            if self._ended.wait(wait_s) or self._watcher.thread is not None:
                return
            wait_s = AGAIN_S
            with _no_forks:
                self._step()

    def _step(self) -> None:
        samples = None if self._watcher.sampling is None else self._watcher.sampling.samples(0)
        self._choose()
        if samples is not None and self._chosen is None:
            self._try(samples)

    def _try(self, samples: ThreadSamples) -> None:
        for part, *name in list(_functions(samples)):
            known = next((one for one in self._tried if one.name == tuple(name)), None)
            if known is not None:
                known.part = part
            elif len(self._tried) < MOST_TRIED and (found := _found(*name)) is not None:
                function, homes = found
                tried = _Tried((name[0], name[1]), function, homes, part)
                self._tried.append(tried)
                _put(homes, self._stand_in(tried))

    def _choose(self) -> None:
        fitting = [one for one in self._tried if one.gives_batches and one.num_calls >= CALLS]
        if fitting and self._watcher.thread is None:
            self._chosen = max(fitting, key=lambda one: one.part)

    def _stand_in(self, tried: _Tried) -> Callable[..., Any]:
        """What is in the function's place."""

        @wraps(tried.function)
        @unseen
        def called(*arguments: Any, **named: Any) -> Any:
            if self._chosen is tried and os.getpid() == self._owner:
                return self._stamped(lambda: tried.function(*arguments, **named))
            result = tried.function(*arguments, **named)
            if self._chosen is None:
                tried.num_calls += 1
                tried.gives_batches = tried.gives_batches and is_batch(result)
            return result

        return called

    def _stamped(self, make: Callable[[], Any]) -> Any:
        if self._lane is None:
            ring, name = SpanRing(1), getattr(self._chosen and self._chosen.function, "__qualname__", KIND)
            self._lane = Lane(ring, 0)
            source = Source(KIND, str(name), None, None, 0, 0, "")
            self._watched = self._watcher.opened(source, time.perf_counter_ns(), ring, ring.made(), None)
        if self._watched is None:
            return make()
        lane = self._lane
        return self._watched.step(lambda _: lane.fetch(make), None)


def is_batch(result: Any) -> bool:
    """Whether it holds arrays, and no tensor that a gradient belongs to."""
    if samples_of(result) is None:
        return False
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, list | tuple) else (result,)
    return not any(getattr(part, "requires_grad", False) for part in parts)


def _functions(samples: ThreadSamples) -> Iterator[tuple[float, str, str]]:
    """(part of the main thread's time, file, name) of the script's functions, the largest first."""
    threads = samples.threads_of("consumer")
    weights: dict[tuple[str, str], float] = {}
    whole = 0.0
    for thread, number, weight in zip(samples.thread, samples.place, samples.weight_s, strict=True):
        if thread not in threads or number < 0:
            continue
        place, whole = samples.places[number], whole + weight
        lines = {(place.file, place.function)} if place.owner == "user" else set()
        for caller in place.callers:
            line, _, function = caller.partition(" ")
            lines.add((line.rpartition(":")[0], function))
        for key in lines:
            weights[key] = weights.get(key, 0.0) + weight
    for (file, function), weight in sorted(weights.items(), key=lambda item: -item[1]):
        if weight >= LEAST_PART * whole and "<" not in function:
            yield weight / whole, file, function


def _found(file: str, qualname: str) -> tuple[Callable[..., Any], list[tuple[Any, str]]] | None:
    """The function of this name, and all that have it; None where it is none that could be replaced."""
    files = {name: getattr(one, "__file__", None) for name, one in list(sys.modules.items())}
    modules = [sys.modules[name] for name, path in files.items() if isinstance(path, str) and is_users(path)]
    home = next((one for one in modules if os.path.abspath(str(one.__file__)) == os.path.abspath(file)), None)
    *path, name = qualname.split(".")
    owner: Any = home
    for part in path:
        owner = getattr(owner, part, None)
    function = vars(owner).get(name) if owner is not None else None
    if not callable(function) or isinstance(function, staticmethod | classmethod | type):
        return None
    homes = [(owner, name)]
    if not path:
        homes += [(one, key) for one in modules if one is not home for key, value in list(vars(one).items())
                  if value is function]  # fmt: skip
    return function, homes


def _put(homes: list[tuple[Any, str]], function: Callable[..., Any]) -> None:
    for owner, name in homes:
        setattr(owner, name, function)
