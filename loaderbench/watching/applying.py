"""`--apply`: arguments of a DataLoader set where the script next asks it for an iterator.

The order of the samples stays what it is. What would change it is refused, with the reason: other workers over a data
set that has an order of its own, draws random numbers in the script's process, or holds what processes cannot share,
and a sampler that may draw random numbers while the training does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loaderbench.cases.case import Change
from loaderbench.originals import time
from loaderbench.watching.seen import Seen, Source
from loaderbench.watching.transforms import data_sets
from loaderbench.watching.watcher import Watcher
from loaderbench.watching.within import (
    Picture,
    is_handle,
    is_random,
    is_same,
    looked_at,
    own_classes,
    picture_of,
    uses_device,
)

KNOWN_SAMPLERS = ("torch.utils.data.", "accelerate.", "lightning.", "pytorch_lightning.", "transformers.")
"""Their samplers draw all their random numbers when they begin."""
LISTS = ("builtins.list", "builtins.tuple", "builtins.range")
"""In place of a sampler: they draw none."""
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
        if (
            self.change is not None
            and source == self.source
            and why_not(loader, self.change, watcher.seen[source]) is None
        ):
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
            self.refused = [f"computing advice failed ({type(error).__name__}: {error})"]
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
            return "the script read only one epoch"
        return "; ".join(dict.fromkeys(self.refused)) or "no advice was one that --apply can set"


def why_not(loader: Any, change: Change, seen: Seen) -> str | None:
    """Why a change would not leave the samples' order as it is, or cannot be made; None where it can."""
    settings = seen.settings
    assert settings is not None
    what = " and ".join(("workers" if name == "workers" else "prefetch_factor") for name in change if name != OPTIONS)
    options = change.get(OPTIONS)
    persistent = isinstance(options, dict) and "persistent_workers" in options
    if settings.iterable and ("workers" in change or persistent):
        return "its data set has its own order, which a new number of workers would change"
    drawn = any(times.draws_random is not False for times in seen.times)
    if not seen.source.workers and "workers" in change and drawn:
        return (
            "its samples draw random numbers in the script's process, or that is unknown: with workers later "
            "epochs would have another order"
        )
    for sampler in samplers_of(loader) if what else ():
        if not sampler.startswith(KNOWN_SAMPLERS) and sampler not in LISTS:
            return f"its sampler {sampler} may draw random numbers during training: {what} would shift them"
    if persistent and loader.num_workers == 0:
        return "persistent_workers needs workers"
    return _why_not_with(loader, seen, workers="workers" in change, persistent=persistent)


def _why_not_with(loader: Any, seen: Seen, *, workers: bool, persistent: bool) -> str | None:
    """Why what makes the samples holds something that does not bear other workers, or workers that stay."""
    if not workers and not persistent:
        return None
    try:
        things = looked_at(makers_of(loader))
        own, handle = next(filter(is_random, things), None), next(filter(is_handle, things), None)
        on_device = any(times.on_device for times in seen.times) or any(map(uses_device, things))
    except Exception as error:  # an object of the script's own
        return f"its data set cannot be inspected ({type(error).__name__})"
    if own is not None:
        return (
            f"its samples may come from their own random generator ({named(own)}), which each worker copies: "
            "the samples would change"
        )
    if workers and handle is not None:
        return f"its data set holds an open file or connection ({named(handle)}), which workers cannot share"
    if workers and not seen.source.workers and on_device:
        return "its samples are made with CUDA, which forked workers cannot use"
    if persistent and _picture(loader) is None:
        return (
            "its data set is too large to see whether the script changes it between epochs; persistent "
            "workers would miss that"
        )
    return None


def samplers_of(loader: Any) -> list[str]:
    """Classes of what gives the order of its samples, and of samplers within these."""
    pending, found = [loader.batch_sampler, loader.sampler], dict[int, Any]()
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            pending += [getattr(one, name, None) for name in ("sampler", "batch_sampler")]
    return [f"{type(one).__module__}.{type(one).__qualname__}" for one in found.values()]


def makers_of(loader: Any) -> list[Any]:
    """What makes its batches: the data sets within each other with their classes, and the collate function."""
    sets = list(data_sets(loader.dataset))
    return [loader.dataset, loader.collate_fn, *sets, *(kind for one in sets for kind in own_classes(one))]


def named(one: object) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}".removeprefix("builtins.")


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
    made. Where the script has changed it since (`data.epoch = epoch`), or nobody can tell, they are made anew, as they
    were without."""
    before, now = vars(loader).get(STATE), _picture(loader)
    vars(loader)[STATE] = now
    if getattr(loader, "_iterator", None) is None:
        return
    if is_same(before, now):
        draw_seed(loader)
    else:
        loader._iterator = None


def _picture(loader: Any) -> Picture | None:
    try:
        return picture_of(makers_of(loader))
    except Exception:  # an object of the script's own that cannot be looked at
        return None


def draw_seed(loader: Any) -> None:
    """What a new iterator draws from the script's random numbers, and one whose workers stay does not: without it, the
    next epoch's order would be another one."""
    import torch

    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
