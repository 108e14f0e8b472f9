"""What a data set's transforms take, by name: timed in the process that makes batches, in every EVERY-th of them.

In such a batch each transform is replaced by one that notes its time, and put back behind it; between them nothing is
changed. They are looked for in attributes where torchvision's data sets, and those like them, keep them.
"""

from __future__ import annotations

import copy
import mmap
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.originals import time
from loaderbench.recording.facts import WatchedTransform
from loaderbench.watching.within import uses_device, walked

EVERY, FIRST = 8, 1
"""Batches of a worker from one that is timed to the next, and the first of them: its very first one starts up."""
MOST_NAMES = 64
OF_DATA_SETS = ("transform", "transforms", "target_transform", "joint_transform")
"""Attributes of a data set that hold a transform."""
INSIDE = ("dataset", "datasets")
"""Attributes of a data set that hold another one: Subset, ConcatDataset, and wrappers like them."""
MOST_INSIDE = 256
"""Parts of a list there that are looked at: it may hold all of the samples."""
UNLIKE_A_FUNCTION = ("__getitem__", "__len__", "__iter__", "__contains__", "__enter__", "__next__")
"""A transform that is more than something to call is left as it is."""
NUM_LOOKED_AT, FEW_PARTS = 3, 8
"""Timed batches of which the random state is compared, and parts of what is in them that are looked at."""
BATCHES, NS, TORCH_THREADS, THREADS, RANDOM, CUDA, HEAD = 0, 1, 2, 3, 4, 5, 8
UNKNOWN, DRAWS_NONE, DRAWS = 0, 1, 2


@dataclass(frozen=True)
class Place:
    """Where a transform is kept."""

    name: str
    call: Callable[..., Any]
    get: Callable[[], Any]
    """What is there now."""
    put: Callable[[Any], None]
    """Put another one there."""


def places_of(data: object) -> list[Place]:
    """The transforms of a data set, in an order that is the same in each process."""
    found: list[Place] = []
    for owner in data_sets(data):
        for name in OF_DATA_SETS:
            held = vars(owner).get(name)
            if callable(held):
                found += _places_in(held, *_attribute(owner, name))
            inner = getattr(held, "__dict__", {}).get("transform")  # torchvision's StandardTransform
            if name == "transforms" and callable(inner):
                found = [place for place in found if place.call is not held]
                found += _places_in(inner, *_attribute(held, "transform"))
    number: dict[str, int] = {}
    named = []
    for place in _once(found)[:MOST_NAMES]:
        number[place.name] = number.get(place.name, 0) + 1
        same = number[place.name]
        named.append(place if same == 1 else replace(place, name=f"{place.name} ({same})"))
    return named


def _once(found: list[Place]) -> list[Place]:
    """One place for a transform that is kept in several."""
    same: dict[int, list[Place]] = {}
    for place in found:
        same.setdefault(id(place.call), []).append(place)

    def everywhere(places: list[Place]) -> Callable[[Any], None]:
        def put(one: Any) -> None:
            for place in places:
                if is_timed(one) is not is_timed(place.get()):  # else the script has put another one there meanwhile
                    place.put(one)

        return put

    return [replace(places[0], put=everywhere(places)) for places in same.values()]


def data_sets(data: object) -> Iterator[object]:
    """It, and those within it."""
    seen: set[int] = set()
    pending = deque([data])
    while pending:
        one = pending.popleft()
        if id(one) in seen or not hasattr(one, "__dict__"):
            continue
        seen.add(id(one))
        yield one
        for name in INSIDE:
            held = vars(one).get(name)
            parts = held if isinstance(held, list | tuple) else [] if held is None else [held]
            pending.extend(islice(parts, MOST_INSIDE))


Kept = tuple[Callable[[], Any], Callable[[Any], None]]
"""How to get what is kept somewhere, and how to put another one there."""


def _attribute(owner: Any, name: str) -> Kept:
    return lambda: vars(owner).get(name), lambda one: setattr(owner, name, one)


def _item(owner: Any, key: Any) -> Kept:
    def get() -> Any:
        with suppress(LookupError):  # the script has changed its list
            return owner[key]
        return None

    def put(one: Any) -> None:
        owner[key] = one

    return get, put


def _places_in(held: Any, get: Callable[[], Any], put: Callable[[Any], None]) -> list[Place]:
    """Of a Compose and of torch's Sequential each part, else the transform itself."""
    kind = type(held).__name__
    parts: Any = None
    if "Compose" in kind and isinstance(getattr(held, "transforms", None), list):
        parts = list(enumerate(held.transforms))
        owner: Any = held.transforms
    elif kind == "Sequential" and isinstance(getattr(held, "_modules", None), dict):
        owner, parts = held._modules, list(held._modules.items())
    if not parts:
        is_plain = not any(hasattr(type(held), name) for name in UNLIKE_A_FUNCTION)
        return [Place(name_of(held), held, get, put)] if is_plain else []
    return [place for key, part in parts for place in _places_in(part, *_item(owner, key))]


def name_of(call: object) -> str:
    """A function's name; the class of any other object."""
    named = getattr(call, "func", call)  # functools.partial
    name = getattr(named, "__qualname__", None) or type(call).__name__
    return str(name).replace("<locals>.", "")


class _Timed:
    """A transform that notes its time, and looks like what it stands for."""

    def __init__(self, call: Callable[..., Any], add: Callable[[int], None]) -> None:
        object.__setattr__(self, "_Timed__call", call)
        object.__setattr__(self, "_Timed__add", add)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter_ns()
        try:
            return self.__call(*arguments, **named)
        finally:
            self.__add(time.perf_counter_ns() - begun)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__call, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__call, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__call, name)

    def __copy__(self) -> Any:
        return copy.copy(self.__call)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__call, memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _itself, (self.__call,)

    def __eq__(self, other: object) -> bool:
        return bool(self.__call == other)

    def __hash__(self) -> int:
        return hash(self.__call)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__call)


def _itself(call: Any) -> Any:
    """What another process gets in place of one that is timed here."""
    return call


def is_timed(one: object) -> bool:
    """Whether it is a stand-in, which `isinstance` does not tell."""
    return type(one) is _Timed


class Times:
    """Of each worker of one iterator: what its timed batches and each transform took, in memory that they share."""

    def __init__(self, workers: int, names: list[str]) -> None:
        self.names = names
        shape = (max(1, workers), HEAD + 2 * len(names))
        memory = np.frombuffer(mmap.mmap(-1, shape[0] * shape[1] * 8), dtype=np.int64)
        self.rows: NDArray[np.int64] = memory.reshape(shape)

    def transforms(self) -> list[WatchedTransform]:
        told = self.rows[:, HEAD:].sum(axis=0).reshape(-1, 2)
        return [WatchedTransform(name, ns / 1e9, int(num)) for name, (ns, num) in zip(self.names, told, strict=True)]

    @property
    def num_batches(self) -> int:
        return int(self.rows[:, BATCHES].sum())

    @property
    def seconds(self) -> float:
        """What the timed batches took in their workers."""
        return float(self.rows[:, NS].sum()) / 1e9

    def most(self, column: int) -> int | None:
        """Over the workers; None where none told."""
        return int(self.rows[:, column].max()) or None

    @property
    def draws_random(self) -> bool | None:
        """Whether making a batch moved a random state of its process; None where nobody looked."""
        most = self.most(RANDOM)
        return None if most is None else most == DRAWS

    @property
    def on_device(self) -> bool:
        """Whether batches were made on a CUDA device, before they were handed over."""
        return self.most(CUDA) is not None


def times_for(loader: Any) -> Times:
    """For the iterator that a DataLoader is about to make."""
    return Times(loader.num_workers, [place.name for place in places_of(loader.dataset)])


class Sampling:
    """In the process that makes batches: times some of them."""

    def __init__(self, times: Times, worker: int, data: object) -> None:
        self._row, self._names, self._data = times.rows[worker], times.names, data
        self._replaces = True
        self._number, self._looked_at = -1, 0

    def take(self, make: Callable[[], Any]) -> Any:
        """What `make` gives."""
        self._number += 1
        if self._number % EVERY != FIRST:
            return make()
        looks = self._looked_at < NUM_LOOKED_AT and self._row[RANDOM] != DRAWS
        state = random_state() if looks else None
        with self._timed():
            begun = time.perf_counter_ns()
            batch = make()
            self._row[NS] += time.perf_counter_ns() - begun
            self._row[BATCHES] += 1
        self._look(state)
        if looks:
            self._row[CUDA] = any(uses_device(one) for one, _ in islice(walked([batch], FEW_PARTS), MOST_NAMES))
        return batch

    def _look(self, state: tuple[object, ...] | None) -> None:
        if state is None:
            return
        self._looked_at += 1
        self._row[RANDOM] = DRAWS_NONE if random_state() == state else DRAWS
        torch = sys.modules.get("torch")
        self._row[TORCH_THREADS] = 0 if torch is None else torch.get_num_threads()
        self._row[THREADS] = num_threads()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        put: list[Place] = []
        try:
            for number, place in enumerate(self._places()):
                place.put(_Timed(place.call, self._adder(HEAD + 2 * number)))
                put.append(place)
        except (AttributeError, TypeError):  # a data set that refuses to have it replaced
            self._replaces = False
        try:
            yield
        finally:
            for place in put:
                place.put(place.call)

    def _places(self) -> list[Place]:
        """Looked for anew each time, since a script may change them; none where it has, or these cannot be replaced."""
        found = places_of(self._data) if self._replaces else []
        return found if [place.name for place in found] == self._names else []

    def _adder(self, column: int) -> Callable[[int], None]:
        row = self._row

        def add(ns: int) -> None:
            row[column] += ns
            row[column + 1] += 1

        return add


def num_threads() -> int:
    """Of this process."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 0


def random_state() -> tuple[object, ...]:
    """Of Python's, NumPy's and PyTorch's own generators, those that are imported."""
    found: list[object] = [random.getstate()]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        _, keys, *rest = numpy.random.get_state()
        found.append((keys.tobytes(), *rest))
    if torch is not None:
        found.append(torch.get_rng_state().numpy().tobytes())
    return tuple(found)
