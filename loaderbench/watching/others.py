"""Iterators of other libraries, noticed when a script imports the library: DALI's for PyTorch, and the DataLoader of
torchdata, whose `__iter__` is its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from loaderbench.originals import os, time
from loaderbench.watching.data_loader import MARK
from loaderbench.watching.iterable import source_of_unknown
from loaderbench.watching.tracebacks import unseen
from loaderbench.watching.watcher import Watcher

LOADERS = "torchdata.stateful_dataloader.stateful_dataloader"
NOTICED = {
    "nvidia.dali.plugin.pytorch": ("DALIGenericIterator", "DALIRaggedIterator"), LOADERS: ("StatefulDataLoader",),
}  # fmt: skip
"""Module → its classes that are iterators of batches, which begin anew with each `iter()`; of LOADERS DataLoaders."""


@contextmanager
def others_noticed(watcher: Watcher, notice_loader: Callable[[Any], Callable[[], None]]) -> Iterator[None]:
    """For the block's time, also of modules that are imported meanwhile. `notice_loader`: of a class of DataLoaders."""
    undo: list[Callable[[], None]] = []

    def notice(module: ModuleType) -> None:
        for name in NOTICED[module.__name__]:
            kind = getattr(module, name, None)
            if kind is not None:
                is_loader = module.__name__ == LOADERS
                undo.append(notice_loader(kind) if is_loader else _stamped(kind, watcher))

    finder = _AfterImport(notice)
    sys.meta_path.insert(0, finder)
    for name in NOTICED:
        if name in sys.modules:
            notice(sys.modules[name])
    try:
        yield
    finally:
        if finder in sys.meta_path:  # the script may have another list by now
            sys.meta_path.remove(finder)
        for back in undo:
            back()


class _AfterImport(MetaPathFinder):
    """Calls `notice` with each module of NOTICED when it has been imported."""

    def __init__(self, notice: Callable[[ModuleType], None]) -> None:
        self._notice = notice

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in NOTICED:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)  # an old one may have none
            spec = None if find is None else find(fullname, path, target)
            if spec is not None and spec.loader is not None:
                setattr(spec.loader, "exec_module", self._then_noticed(spec.loader.exec_module))  # noqa: B010
                return cast(ModuleSpec, spec)
        return None

    def _then_noticed(self, load: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        @unseen
        def loaded(module: ModuleType) -> None:
            load(module)
            self._notice(module)

        return loaded


def _stamped(kind: Any, watcher: Watcher) -> Callable[[], None]:
    """Stamp a class's batches; what takes the stamps away again."""
    owner, old_iter, old_next = os.getpid(), kind.__iter__, kind.__next__
    inherited = [name for name in ("__iter__", "__next__") if name not in vars(kind)]

    @unseen
    def make(iterator: Any) -> Any:
        begun = time.perf_counter_ns()
        made = old_iter(iterator)
        if os.getpid() == owner:
            vars(made)[MARK] = watcher.opened(source_of_unknown(iterator), begun, None, (), None, iterator)
        return made

    @unseen
    def step(iterator: Any) -> Any:
        watched = vars(iterator).get(MARK)
        return old_next(iterator) if watched is None else watched.step(old_next, iterator)

    kind.__iter__, kind.__next__ = make, step

    def back() -> None:
        kind.__iter__, kind.__next__ = old_iter, old_next
        for name in inherited:
            delattr(kind, name)

    return back
