"""Words for a watched script: what to try with its DataLoader, what each is called, and what else it showed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from loaderbench.cases.case import Change, loader_arguments
from loaderbench.plain import Json
from loaderbench.printable import clean
from loaderbench.recording.caveats import Reason
from loaderbench.recording.facts import WatchedFacts, WatchedLoader
from loaderbench.running.heap import VARIABLES

Details = Mapping[str, Json]


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


def _figure(details: Details, name: str) -> float:
    return float(cast(float, details.get(name) or 0.0))


def _percent(part: float) -> str:
    return f"{part:.0%}".replace("%", " %")


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def _size(num_bytes: float) -> str:
    """`40 MB`"""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def _part(details: Details) -> str:
    return _percent(_figure(details, "part"))


def _workers(change: Change, d: Details) -> str:
    now, cpus = d.get("now"), d.get("cpus")
    processors = f"{cpus} CPU{'s' * (cpus != 1)}"
    if not change:
        return f"try more workers: DataLoader(num_workers=…), up to {processors} (now {now})"
    told = f"DataLoader({loader_arguments(change)}) (now {now}"
    workers = change.get("workers")
    if isinstance(workers, int) and isinstance(now, int) and workers < now:
        return (
            f"use fewer workers: {told} on {processors}; extra workers only wait for each other, and each uses memory)"
        )
    return f"use more workers: {told}; more than these give < 3 %)"


ACTIONS: Mapping[str, Callable[[Change, Details], str]] = {
    "num_workers": _workers,
    "prefetch_factor": lambda c, d: (
        f"prefetch more batches, because some take much longer than others: DataLoader({loader_arguments(c)}) (now "
        f"{d['now']}; uses memory)"
    ),
    "persistent_workers": lambda c, d: (
        f"keep the workers between epochs: DataLoader({loader_arguments(c)}). Each start takes "
        f"{_duration(_figure(d, 'start_s'))} of an epoch's {_duration(_figure(d, 'epoch_s'))}"
    ),
    "keep_loader": lambda c, d: (
        "create the DataLoader once, before the loop over epochs, with persistent_workers=True. Each start takes "
        f"{_duration(_figure(d, 'start_s'))} of an epoch's {_duration(_figure(d, 'epoch_s'))}"
    ),
    "pin_memory": lambda c, d: (
        f"use DataLoader({loader_arguments(c)}), so that the copy to the GPU needs no host time (gain unknown: copies "
        "are not timed)"
    ),
    "worker_threads": lambda c, d: (
        f"use one thread per worker: torch.set_num_threads(1) in worker_init_fn, or OMP_NUM_THREADS=1 ({d['workers']} "
        f"workers use {d['threads']} threads each on {d['cpus']} CPUs)"
    ),
    "cheaper_transform": lambda c, d: (
        f"make the transform {d['name']} cheaper: it takes {_part(d)} of a worker's time; gain without it"
    ),
    "cheaper_collate": lambda c, d: (
        f"make the collate function cheaper: {d['name']} takes {_part(d)} of a worker's time; gain without it"
    ),
    "cheaper_samples": lambda c, d: (
        f"make samples cheaper: {d['name']} computes for {_part(d)} of a worker's time, so store its results, smaller "
        "or already decoded; gain without that work"
    ),
    "keep_memory": lambda c, d: (
        f"keep freed memory: put {' '.join(f'{name}={value}' for name, value in VARIABLES.items())} before python. A "
        f"worker spends {_part(d)} of its CPU time on memory that glibc returns to the system and allocates again"
    ),
    "cache_in_memory": lambda c, d: (
        f"keep the data set in memory: it needs about {_size(_figure(d, 'bytes'))}, and "
        f"{_size(_figure(d, 'available'))} are free"
    ),
    "fewer_reads": lambda c, d: (
        "make fewer, larger reads: pack samples"
        + (f" of {_size(_figure(d, 'bytes'))}" if "bytes" in d else "")
        + " into shards (WebDataset, LitData), or use faster storage"
    ),
}


def _grows(d: Details) -> str:
    grows = f"grows by {_size(_figure(d, 'bytes'))} per 1,000 batches"
    if d["of"] == "script":
        return f"the memory of the script {grows}"
    why = "Python objects of the data set that each worker touches, or a cache"
    return f"the memory of all its workers together {grows} within an epoch ({why})"


def _threads(d: Details) -> str:
    theirs = f"{d['workers']} worker{'s' * (d['workers'] != 1)} with {d['each']} thread{'s' * (d['each'] != 1)} each"
    own = f" and {d['own']} thread{'s' * (d['own'] != 1)} of the script" if d.get("own") else ""
    waits = (
        "" if d.get("starved") is None else f"; a worker waits for a CPU {_percent(_figure(d, 'starved'))} of its time"
    )
    return f"CPUs are oversubscribed: {theirs}{own} share {d['cpus']}{waits}"


def _first_epoch(d: Details) -> str:
    first, later = _figure(d, "first_s"), _figure(d, "later_s")
    why = "the first one reads and starts what later ones reuse" if first > later else "later epochs are slower"
    return f"a batch takes {_duration(first)} in the first epoch and {_duration(later)} in later epochs: {why}"


NOTES: Mapping[str, Callable[[Details], str]] = {
    "memory_grows": _grows,
    "in_turn": lambda d: (
        f"the script waits {_duration(_figure(d, 'wait_s'))} for one batch in {d['workers']}: the {d['workers']} "
        "workers finish together and deliver in turn. Only the mean matters"
    ),
    "taking_over": lambda d: (
        f"dequeuing a batch that is ready takes {_duration(_figure(d, 'each_s'))} of a step's "
        f"{_duration(_figure(d, 'step_s'))} in the script's own thread, because each array is passed separately. "
        "Fewer, larger arrays per batch (padded or joined) take less"
    ),
    "threads": _threads,
    "of_a_thread": lambda d: (
        f"all figures are about the script's thread {d['thread']!r}, which dequeues the batches. If it passes them on "
        "to another thread, its steps last until that thread has room for more"
    ),
    "of_many_ranks": lambda d: (
        f"this is rank {d['rank']} of {d['ranks']}: its own steps include waiting for the other ranks, in collectives. "
        "Other ranks on its node count as other users of the CPUs"
    ),
    "shared_memory": lambda d: (
        f"/dev/shm was nearly full, with {_size(_figure(d, 'free_bytes'))} of {_size(_figure(d, 'size'))} free. "
        "Workers deliver batches through it: raise its size (docker run --shm-size)"
    ),
    "first_epoch": _first_epoch,
}


def note(one: Reason) -> str:
    told = NOTES.get(one.code)
    return one.code if told is None else told(one.details)  # a newer version's note
