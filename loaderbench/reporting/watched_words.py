"""What the loaders and the storage of a watched script are called."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench.printable import clean
from loaderbench.recording.facts import WatchedFacts, WatchedLoader
from loaderbench.recording.record import Verdict, Where


def loader_names(loaders: Sequence[WatchedLoader]) -> list[str]:
    """What each is called: by its data set, and by more where that does not tell it from another."""
    names = [_name(one) for one in loaders]
    found = list(names)
    for name in {one for one in names if names.count(one) > 1}:
        alike = [k for k, one in enumerate(names) if one == name]
        for k, by in zip(alike, _what_tells_apart([loaders[k] for k in alike]), strict=True):
            found[k] = f"{name} ({by})"
    return found


def about(seen: WatchedFacts) -> str | None:
    """Name the loader that the verdict is about; None if its data set identifies it."""
    (name, *_), main = loader_names(seen.loaders), seen.loaders[0]
    return None if name == _name(main) else f"verdict and advice are about {name}; similar loaders count separately"


def of_stores(seen: WatchedFacts) -> str:
    """Name the servers of the storage, to follow its name; empty if none is known."""
    if not seen.stores:
        return ""
    first, *others = map(clean, seen.stores)
    return f" ({first}{f' and {len(others)} more' if others else ''})"


NAMED = {
    "sampler": "The sampler limits this run: {line} runs in the script's own process for {part} of its time.",
    "gil": "Another thread holds the GIL: {line} keeps it from the training thread.",
    "own_threads": "PyTorch's own threads limit this run: they are more than the CPUs, and the step waits for them at "
    "{line}.",
    "gc": "Garbage collection within the steps limits this run: {part} of the training thread's time, at {line}.",
    "checkpoint": "Checkpoints within the steps limit this run: {part} of the training thread's time, at {line}.",
    "validation": "Validation within the steps limits this run: {part} of the training thread's time, at {line}.",
    "logging": "Logging limits this run: {part} of the training thread's time, at {line}.",
    "compile": "Compilation within the steps limits this run: {part} of the training thread's time, at {line}.",
    "sync": "A synchronizing call limits this run: {part} of the training thread's time, at {line}.",
    "collective": "A collective limits this run: {part} of the training thread's time, at {line}.",
    "lock": "A lock in the data set's code limits this run: workers wait for it at {line} for {part} of their time.",
    "sleep": "A sleep in the data set's code limits this run: workers are at {line} for {part} of their time.",
    "no_loader": "The loop makes its batches itself, without a loader: {line} takes {part} of the time of making one.",
}
"""Detail of a cause → the sentence that names it, and its line."""


def by_name(verdict: Verdict) -> str | None:
    """Name what limits a watched script by its line; None if the cause has no name of its own, or no line."""
    words = NAMED.get(verdict.cause_detail or "")
    if words is None or not verdict.where:
        return None
    first = verdict.where[0]
    return words.format(line=_line(first), part=f"{first.fraction:.0%}")


def where_line(where: Where) -> str:
    """`62 % of worker time: transforms.py:41 ElasticTransform (running)`."""
    who = {"worker": "worker", "consumer": "training thread's", "other": "other threads'"}.get(where.role, where.role)
    return f"{where.fraction:.0%} of {who} time: {_line(where)} ({STATES.get(where.state, where.state)})"


def _line(where: Where) -> str:
    file = where.file.rpartition("/")[2]
    return clean(f"{file}:{where.line} {where.callee or where.function}")


STATES = {
    "runnable": "waits for a CPU", "file": "reads a file", "socket": "waits for a socket", "fault": "page fault",
    "lock": "waits for a lock", "sleep": "sleeps", "pipe": "waits for a pipe", "gpu": "waits for the GPU",
    "gil": "waits for the GIL", "other": "waits",
}  # fmt: skip


def _what_tells_apart(alike: Sequence[WatchedLoader]) -> list[str]:
    """Of loaders over like data sets: what a trainer does with each, else where the script first iterated it, by the
    innermost place at which they differ; and a number where that is not known, or the same."""
    phases = [one.phase for one in alike]
    if None not in phases and len(set(phases)) == len(alike):
        return [{"train": "in training", "evaluate": "in evaluation"}.get(one or "", str(one)) for one in phases]
    places = [one.iterated_at or () for one in alike]
    at = next((level for level in zip(*places, strict=False) if len(set(level)) == len(alike)), None)
    if at is not None:
        return [f"first iterated at {clean(one)}" for one in at]
    told = [f", first iterated at {clean(one[0])}" if one else "" for one in places]
    return [f"loader {k} of {len(alike)} such{where}" for k, where in enumerate(told, 1)]


def _name(one: WatchedLoader) -> str:
    data = clean(one.data)
    size = "" if one.num_samples is None else f" of {one.num_samples}"
    return f"{one.kind} over {data}{size}"
