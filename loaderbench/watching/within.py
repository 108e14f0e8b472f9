"""What a data set is made of, as far as it can be looked through: whether workers may have copies of it, and whether
the script has changed it since they were made."""

from __future__ import annotations

import functools
import io
import operator
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from loaderbench.originals import os

STANDARD_LIBRARY = str(Path(os.__file__).parent)
METHODS = ("__getitem__", "__getitems__", "__iter__", "__call__")
PLAIN: frozenset[type] = frozenset({int, float, complex, str, bytes, bool, type(None)})
FEW = 64
"""Parts of one thing that are looked at, where not all need be."""
MOST_LOOKED_AT = 20_000
"""Things; of one that holds more it is not known whether it has changed."""
MOST_ARRAY_BYTES = 1 << 20
"""Of an array whose content is compared; a larger one counts as what it was while it is the same array."""
HANDLES = {
    "h5py": ("File", "Group", "Dataset"), "sqlite3": ("Connection", "Cursor"), "socket": ("socket",),
    "lmdb": ("Environment", "Transaction", "Cursor"), "builtins": ("Environment", "Transaction"),  # lmdb's own name
    "netCDF4": ("Dataset", "Variable"), "tables": ("File", "Node"), "rasterio": ("DatasetBase",),
    "cv2": ("VideoCapture",), "decord": ("VideoReader",), "av": ("Container",), "pymongo": ("MongoClient",),
    "psycopg2": ("connection",), "psycopg": ("Connection",), "redis": ("Redis",),
}  # fmt: skip
"""Package → its classes whose objects hold a file or a connection that processes must not share."""

Parts = tuple[object, Sequence[Any]]
"""Names of what a thing is made of, and what these are."""
Picture = list[tuple[object, object, Sequence[Any]]]
"""Things, and their parts as they were."""


def parts_of(one: Any) -> Parts | None:
    """None where it is not looked into: classes, modules, loggers, arrays, objects of C, functions of libraries."""
    if isinstance(one, type | types.ModuleType) or type(one).__module__.startswith("logging") or is_array(one):
        return None
    if isinstance(one, dict):
        return list(dict.keys(one)), list(dict.values(one))
    if isinstance(one, list | tuple | set | frozenset | deque):
        return len(one), list(one)
    if isinstance(one, types.MethodType):
        return "method", [one.__self__, one.__func__]
    if isinstance(one, functools.partial):
        return "partial", [one.func, one.args, one.keywords]
    if isinstance(one, types.FunctionType):
        return _of_function(one) if is_own(one.__code__.co_filename) else None
    return _of_object(one)


def is_array(one: object) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (torch is not None and isinstance(one, torch.Tensor)) or (
        numpy is not None and isinstance(one, numpy.ndarray)
    )


def is_own(path: str | None) -> bool:
    """Whether a file is the script's, not a library's."""
    return path is None or not (path.startswith(STANDARD_LIBRARY) or "site-packages" in path or "dist-packages" in path)


def _of_function(one: types.FunctionType) -> Parts:
    """What it takes from around it."""
    cells = [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
    names = [name for code in _codes(one.__code__) for name in code.co_names if name in one.__globals__]
    named = {name: one.__globals__[name] for name in names}
    return (len(cells), list(named)), [*cells, *named.values(), *(one.__defaults__ or ())]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's, and those of functions and comprehensions within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _of_object(one: Any) -> Parts | None:
    held = dict(getattr(one, "__dict__", None) or {})
    for kind in type(one).__mro__:
        slots = {name: slot for name, slot in vars(kind).items() if isinstance(slot, types.MemberDescriptorType)}
        for name, slot in slots.items():
            try:
                held[name] = slot.__get__(one)
            except AttributeError:  # not set
                continue
    return (list(held), list(held.values())) if held else None


def own_classes(one: object) -> list[type]:
    """The script's, of an object: their methods may name what is around them."""
    kinds = [kind for kind in type(one).__mro__ if kind.__module__ != "builtins"]
    return [kind for kind in kinds if is_own(getattr(sys.modules.get(kind.__module__), "__file__", None))]


def _of_class(one: type) -> Parts:
    held = {name: part for name, part in vars(one).items() if name in METHODS or not name.startswith("__")}
    return list(held), list(held.values())


def walked(roots: Sequence[Any], few: int | None = None) -> Iterator[tuple[Any, Parts | None]]:
    """What `roots` are made of, each thing once, the nearest first; of classes only those among them. `few`: parts that
    are looked at of one thing."""
    classes = {id(one) for one in roots if isinstance(one, type)}
    seen: set[int] = set()
    pending, kept = deque(roots), []
    while pending:
        one = pending.popleft()
        if type(one) in PLAIN or id(one) in seen:
            continue
        seen.add(id(one))
        kept.append(one)  # so that no other thing gets its number
        parts = _of_class(one) if id(one) in classes else parts_of(one)
        yield one, parts
        if parts is not None and not _are_plain(parts[1]):
            pending.extend(parts[1] if few is None else islice(parts[1], few))


def _are_plain(values: Sequence[Any]) -> bool:
    """Without a look at each in Python: a list may hold millions of paths, or of pairs of a path and a number."""
    kinds = set(map(type, values))
    return kinds <= PLAIN or (kinds == {tuple} and set(map(type, chain.from_iterable(values))) <= PLAIN)


# -- may other processes have it? --------------------------------------------------------------------------


def looked_at(roots: Sequence[Any]) -> list[Any]:
    """Things within, some of each list."""
    return [one for one, _ in islice(walked(roots, FEW), MOST_LOOKED_AT)]


def is_handle(one: Any) -> bool:
    """Whether it holds an open file that is read, or a connection: forked processes would share its position."""
    if isinstance(one, io.IOBase):
        try:
            return not one.closed and one.readable() and one.fileno() > 2
        except (OSError, ValueError):  # no file of the system's
            return False
    return any(kind.__name__ in HANDLES.get(kind.__module__.partition(".")[0], ()) for kind in type(one).__mro__)


def is_random(one: Any) -> bool:
    """Whether it is a random generator other than those that a library shares."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds: list[type] = [random.Random]
    shared: list[object] = [getattr(random, "_inst", None)]
    if numpy is not None:
        kinds += [numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator]
        shared.append(getattr(numpy.random.mtrand, "_rand", None))
    if torch is not None:
        kinds.append(torch.Generator)
        shared.append(torch.default_generator)
    return isinstance(one, tuple(kinds)) and not any(one is other for other in shared)


def uses_device(one: Any) -> bool:
    """Whether it is on a CUDA device, or code that names CUDA: a process that is forked cannot use it."""
    if isinstance(one, types.FunctionType):
        if not is_own(one.__code__.co_filename):
            return False
        texts = [text for code in _codes(one.__code__) for text in (*code.co_names, *code.co_consts)]
        return any(isinstance(text, str) and (text == "cuda" or text.startswith("cuda:")) for text in texts)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(one, torch.device):
        return bool(one.type == "cuda")
    return getattr(type(one), "is_cuda", None) is not None and bool(one.is_cuda)


# -- has it changed? ---------------------------------------------------------------------------------------


def picture_of(roots: Sequence[Any]) -> Picture | None:
    """What `roots` are made of now; None where that is too much."""
    things = islice(walked(roots), MOST_LOOKED_AT + 1)
    found = [(one, *(parts or _content_of(one) or ("", ()))) for one, parts in things]
    return found if len(found) <= MOST_LOOKED_AT else None


def _content_of(one: Any) -> Parts | None:
    """Of an array."""
    if not is_array(one):
        return None
    if hasattr(one, "is_inference"):
        return "tensor", [None if one.is_inference() else one._version]
    if one.nbytes > MOST_ARRAY_BYTES or one.dtype.hasobject:
        return None
    return one.shape, [one.tobytes()]


def is_same(before: Picture | None, now: Picture | None) -> bool:
    """Whether nothing has changed: the very same things, of equal plain values."""
    if before is None or now is None or len(before) != len(now):
        return False
    return all(
        one is other and names == others and _same_values(values, other_values)
        for (one, names, values), (other, others, other_values) in zip(before, now, strict=True)
    )


def _same_values(before: Sequence[Any], now: Sequence[Any]) -> bool:
    if len(before) != len(now):
        return False
    return all(map(operator.is_, before, now)) or all(
        one is other or (type(one) is type(other) and type(one) in PLAIN and one == other)
        for one, other in zip(before, now, strict=True)
    )
