"""What the loaders and the storage of a watched script are called."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench.printable import clean
from loaderbench.recording.facts import WatchedFacts, WatchedLoader


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
