"""What stands around a watched script's steps, as facts: its settings, epochs, memory, and what `--apply` changed."""

from __future__ import annotations

import sys
from dataclasses import replace

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.machine import available_memory_bytes
from loaderbench.recording.facts import (
    Facts,
    Failure,
    Recording,
    Trial,
    WatchedApplied,
    WatchedFacts,
    WatchedLoader,
    WatchedSeconds,
    WatchedSettings,
    WatchedTransform,
)
from loaderbench.running.heap import page_seconds
from loaderbench.watching.applying import Applier
from loaderbench.watching.seen import KINDS, Seen
from loaderbench.watching.transforms import THREADS, TORCH_THREADS
from loaderbench.watching.watcher import Watcher


def ended_early(watcher: Watcher, failed: str, *, is_judged: bool) -> str:
    """What to say of a script that an error ended. `failed`: the error's class. `is_judged`: a verdict follows."""
    num = sum(one.num_batches for one in watcher.seen.values())
    taken = f"the script failed ({failed}) after {num} batch{'es' * (num != 1)}"
    if is_judged:
        return f"{taken}; the result covers those"
    if any(one.num_iterators for one in watcher.seen.values()):
        return f"{taken}, too few for a verdict"
    return f"the script failed ({failed}) before it iterated a watched loader"


def nothing_seen(watcher: Watcher, *, started_processes: bool = False) -> str:
    """What to say where no step was seen, and what to do about it. `started_processes`: the script started some, which
    may have trained."""
    if any(one.num_batches for one in watcher.seen.values()):
        num = sum(one.num_batches for one in watcher.seen.values())
        if watcher.num_broken > num / 2:
            return (
                f"each step takes batches from several loaders ({num} batches in all), so no step belongs to one "
                "loader. Put loaderbench.watch(…) around the iterable that joins them, such as zip(…)"
            )
        if sum(one.num_iterators for one in watcher.seen.values()) > max(2, num / 2):
            return (
                f"the script makes a new iterator for each batch ({num} batches in all), so its loader starts "
                "anew each time. Keep one iterator, such as `batches = iter(loader)`, and call next(batches)"
            )
        main = watcher.main
        if main is not None and main.is_one_round:
            return (
                f"its epochs have {max(main.recent)} batches for {main.source.workers} workers. The loader "
                "requests them all when an epoch begins, so no step is typical of a longer run. Use fewer "
                "workers, or more batches per epoch"
            )
        return f"too short: the script took {num} batch{'es' * (num != 1)}; a verdict needs more"
    if watcher.elsewhere is not None:
        return (
            f"the thread {watcher.elsewhere!r} takes the batches, but another thread made the iterator, and "
            "only that one is watched. Put loaderbench.watch(…) around the iterable of the training loop"
        )
    if started_processes:
        return (
            "the script's process iterated no loader, and the processes that it started are not watched. If "
            "they train, put loaderbench.watch(…) around the iterable of their loop, or give the trainer the "
            "callback. A launcher goes first: torchrun … -m loaderbench watch SCRIPT"
        )
    return "the script took no batch from a torch DataLoader. Put loaderbench.watch(…) around the iterable of its loop"


def surrounded(facts: WatchedFacts, main: Seen, watcher: Watcher, applier: Applier | None) -> WatchedFacts:
    """The facts with what is known of a loader besides its steps."""
    torch, around = sys.modules.get("torch"), main.surroundings
    memory, _ = available_memory_bytes()
    applied = None if applier is None else _applied(applier, watcher)
    changed = None if applied is None else applied.loader
    return replace(
        facts,
        loaders=tuple(one for one in facts.loaders if one != changed),
        settings=None if main.settings is None else _told(main, main.settings),
        epochs=main.epochs(),
        memory=tuple(around.readings),
        shared=around.shared,
        torch_threads=None if torch is None else torch.get_num_threads(),
        available_memory_bytes=memory,
        page_s=page_seconds(),
        optimizer_steps=watcher.optimizer_steps,
        applied=applied,
        not_applied=applier.why_nothing if applier is not None and applied is None else None,
    )


def loader_of(one: Seen) -> WatchedLoader:
    """What was seen of it."""
    source = one.source
    return WatchedLoader(
        source.kind, source.data, source.num_samples, source.batch_size, source.workers, source.prefetch,
        one.num_iterators, one.num_batches,
        WatchedSeconds(**{kind: one.times_ns[kind] / 1e9 for kind in KINDS}), one.phase,
        one.iterated_at, one.index_ns / 1e9 / one.num_indexed if one.num_indexed else None,
    )  # fmt: skip


def _told(main: Seen, settings: WatchedSettings) -> WatchedSettings:
    """The settings with what the workers told."""
    times = [one for one in main.times if one.num_batches]
    if not times:
        return settings
    sums: dict[str, tuple[float, int]] = {}
    for transform in (transform for one in times for transform in one.transforms()):
        seconds, num = sums.get(transform.name, (0.0, 0))
        sums[transform.name] = seconds + transform.seconds, num + transform.num_calls
    looks = [one.draws_random for one in times if one.draws_random is not None]
    return replace(
        settings,
        transforms=tuple(WatchedTransform(name, seconds, num) for name, (seconds, num) in sums.items()),
        num_timed=sum(one.num_batches for one in times),
        timed_s=sum(one.seconds for one in times),
        worker_torch_threads=max(one.most(TORCH_THREADS) or 0 for one in times) or None,
        worker_threads=max(one.most(THREADS) or 0 for one in times) or None,
        draws_random=any(looks) if looks else None,
    )


def _after(applier: Applier, watcher: Watcher) -> Seen | None:
    """The loader as it was changed; None where nothing was, or no batch followed."""
    return None if applier.after is None else watcher.seen.get(applier.after)


def _applied(applier: Applier, watcher: Watcher) -> WatchedApplied | None:
    if applier.change is None:
        return None
    after = _after(applier, watcher)
    if after is None:
        return WatchedApplied(applier.change, applier.epoch, ())
    return WatchedApplied(applier.change, applier.epoch, after.epochs(), loader_of(after))


def trials_of(case: Case, facts: Facts, watcher: Watcher, applier: Applier | None) -> list[Trial]:
    """What followed the change, as a trial of it; the case itself is the run's own recording."""
    if applier is None or applier.change is None:
        return []
    after = _after(applier, watcher)
    segments = [] if after is None else [one for one in after.segments if one.arm is Arm.REAL]
    failure = None if segments else Failure("TooShort", "too few batches followed the change")
    changed = case.changed(**applier.change)
    recording = Recording(segments, replace(facts, watched=None)) if segments else None
    return [Trial(applier.change, changed, 0, recording, failure)]
