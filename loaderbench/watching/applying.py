"""`--apply`: arguments of a DataLoader set where the script next asks it for an iterator.

The order of the samples stays what it is. What would change it is refused, with the reason: other workers over a data
set that has an order of its own or draws random numbers in the script's process, and a sampler that may draw them while
the training does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from loaderbench.cases.case import Change
from loaderbench.watching.seen import Seen, Source
from loaderbench.watching.transforms import data_sets
from loaderbench.watching.watcher import Watcher

KNOWN_SAMPLERS = ("torch.utils.data.", "accelerate.", "lightning.", "pytorch_lightning.", "transformers.")
"""Their samplers draw all their random numbers when they begin."""
MOST_TRIES = 3
"""Epochs behind which it is looked for something to apply."""
REDRAWS, STATE = "_loaderbench_redraws", "_loaderbench_state"
"""Of a loader: that its workers were made to stay; the data set as it was then."""


class Applier:
    """The first advice that can be applied, applied to the loader that the verdict is about, from its next iterator."""

    def __init__(self, advise: Callable[[Watcher], Sequence[Change]]) -> None:
        """`advise`: changes that are advised on what was seen so far, the best first."""
        self._advise, self._tries = advise, 0
        self.change: Change | None = None
        self.refused: list[str] = []
        """Why each change that was advised was not applied."""
        self.source: Source | None = None
        """The loader as it was before."""
        self.after: Source | None = None
        """The loader as it was changed."""
        self.epoch = 0
        """The first one with the change, from 1."""

    def prepare(self, watcher: Watcher, loader: Any, source_of: Callable[[Any], Source]) -> None:
        """The script asks `loader` for an iterator."""
        if not watcher.is_on_its_thread:
            return
        source = source_of(loader)
        if self.change is None and self._tries < MOST_TRIES:
            self._choose(watcher, loader, source)
        if self.change is not None and source == self.source:
            set_arguments(loader, self.change)
            self.after = source_of(loader)
        if REDRAWS in vars(loader):
            go_on(loader)

    def _choose(self, watcher: Watcher, loader: Any, source: Source) -> None:
        seen = watcher.seen.get(source)
        if seen is None or watcher.main is not seen or not seen.segments:
            return
        self._tries += 1
        watcher.enter(seen, "held", time.perf_counter_ns())
        self.refused = []
        try:
            advised = self._advise(watcher)
        except Exception as error:  # the script goes on; its record says so
            self.refused = [f"no advice could be made ({type(error).__name__}: {error})"]
            return
        for change in advised:
            refusal = why_not(loader, change, seen)
            if refusal is None:
                self.change, self.source, self.epoch = change, source, seen.num_iterators + 1
                watcher.judged = source
                return
            self.refused.append(refusal)

    @property
    def why_nothing(self) -> str:
        """Where nothing was applied."""
        if not self._tries:
            return "the script asked its loader for no second epoch"
        return "; ".join(dict.fromkeys(self.refused)) or "nothing was advised that --apply can set"


def why_not(loader: Any, change: Change, seen: Seen) -> str | None:
    """Why a change would not leave the samples' order as it is, or cannot be made; None where it can."""
    settings = seen.settings
    assert settings is not None
    what = " and ".join(("workers" if name == "workers" else "prefetch_factor") for name in change if name != OPTIONS)
    options = change.get(OPTIONS)
    persistent = isinstance(options, dict) and "persistent_workers" in options
    if settings.iterable and ("workers" in change or persistent):
        return "its data set has an order of its own, which other workers would change"
    drawn = any(times.draws_random is not False for times in seen.times)
    if not seen.source.workers and "workers" in change and drawn:
        return (
            "making its samples draws random numbers in the script's own process (or nobody could look): with workers "
            "later epochs would have another order"
        )
    if what and not settings.sampler.startswith(KNOWN_SAMPLERS):
        return f"its sampler {settings.sampler} may draw random numbers while the training does: {what} would move them"
    if persistent and loader.num_workers == 0:
        return "persistent_workers needs workers"
    return None


OPTIONS = "loader_options"


def set_arguments(loader: Any, change: Change) -> None:
    """On a DataLoader that may be in use: from its next iterator on."""
    workers = change.get("workers")
    if isinstance(workers, int):
        loader.num_workers = workers
        if not workers:
            loader.prefetch_factor = None
        elif loader.prefetch_factor is None:
            loader.prefetch_factor = 2  # PyTorch's default
    prefetch = change.get("prefetch")
    if isinstance(prefetch, int) and loader.num_workers:
        loader.prefetch_factor = prefetch
    options = change.get(OPTIONS)
    if isinstance(options, dict) and "pin_memory" in options:
        loader.pin_memory = True
    if isinstance(options, dict) and "persistent_workers" in options and not loader.persistent_workers:
        # PyTorch refuses to have it set on a loader; it is read when the next iterator is made.
        vars(loader)["persistent_workers"] = True
        vars(loader)[REDRAWS] = True
    if getattr(loader, "_iterator", None) is not None and ("workers" in change or "prefetch" in change):
        loader._iterator = None  # workers that stayed: the next iterator starts those that are wanted


def go_on(loader: Any) -> None:
    """Before an iterator of a loader whose workers were made to stay: they have the data set as it was when they were
    made. Where the script has changed it since (`data.epoch = epoch`), they are made anew, as they were without."""
    before, now = vars(loader).get(STATE), [dict(vars(one)) for one in data_sets(loader.dataset)]
    vars(loader)[STATE] = now
    if getattr(loader, "_iterator", None) is None:
        return
    if before is not None and len(before) == len(now) and all(map(is_as_before, before, now)):
        draw_seed(loader)
    else:
        loader._iterator = None


def is_as_before(before: dict[str, object], now: dict[str, object]) -> bool:
    """Whether a data set has the same attributes: equal plain values, and else the very same objects."""
    return before.keys() == now.keys() and all(
        one is now[name] or (isinstance(one, int | float | str) and one == now[name]) for name, one in before.items()
    )


def draw_seed(loader: Any) -> None:
    """What a new iterator draws from the script's random numbers, and one whose workers stay does not: without it, the
    next epoch's order would be another one."""
    import torch

    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
