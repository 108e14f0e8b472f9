"""Iterators of other libraries: noticed when the script imports the library, and let go at the watch's end."""

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from loaderbench.watching.others import NOTICED, others_noticed
from loaderbench.watching.watcher import Watcher

NAME = "nvidia.dali.plugin.pytorch"
LIBRARY = """
class Base:
    def __init__(self):
        self.left = 4
    def __iter__(self):
        self.left = 4
        return self
    def __next__(self):
        raise NotImplementedError

class DALIGenericIterator(Base):
    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return [{"data": self.left}]

class DALIClassificationIterator(DALIGenericIterator):
    pass

class DALIRaggedIterator(Base):
    def __next__(self):
        self.left -= 2
        if self.left < 0:
            raise StopIteration
        return [{"data": self.left}]
"""
"""As DALI's plug-in is made: the classes that are iterated have `__next__` of their own, and inherit `__iter__`."""


class Old:
    """A finder as of Python 2: it finds nothing, by a method that Python asks no more."""

    def find_module(self, name: str, path: object = None) -> None:
        return None


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of DALI's name that can be imported, and is not yet."""
    (tmp_path / "pytorch.py").write_text(LIBRARY)
    package = NAME
    while package := package.rpartition(".")[0]:
        made = types.ModuleType(package)
        made.__path__ = [str(tmp_path)]
        monkeypatch.setitem(sys.modules, package, made)
    monkeypatch.setitem(sys.modules, NAME, types.ModuleType(NAME))  # is put back at the end
    del sys.modules[NAME]


def batches_seen(watcher: Watcher) -> dict[str, int]:
    return {source.kind: seen.num_batches for source, seen in watcher.seen.items()}


@pytest.mark.usefixtures("library")
@pytest.mark.filterwarnings("ignore::ImportWarning")
@pytest.mark.parametrize("before", [True, False])
def test_dali_s_iterators_are_noticed_whenever_it_is_imported(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [Old(), *sys.meta_path])
    finders, watcher = [*sys.meta_path], Watcher("none")
    watcher.follows_device = False
    dali: Any = importlib.import_module(NAME) if before else None
    with others_noticed(watcher, lambda kind: lambda: None):
        dali = importlib.import_module(NAME)
        taken = [
            [batch[0]["data"] for batch in kind()]
            for kind in (dali.DALIClassificationIterator, dali.DALIRaggedIterator, dali.DALIGenericIterator)
        ]
    assert taken == [[3, 2, 1, 0], [2, 0], [3, 2, 1, 0]]
    assert batches_seen(watcher) == {
        "DALIClassificationIterator": 4, "DALIRaggedIterator": 2, "DALIGenericIterator": 4,
    }  # fmt: skip
    # and behind it nothing is left of the watch
    assert sys.meta_path == finders
    assert len(list(dali.DALIGenericIterator())) == 4 and batches_seen(watcher)["DALIGenericIterator"] == 4
    assert "__iter__" not in vars(dali.DALIRaggedIterator)


def test_what_is_noticed_of_the_library_that_is_installed_is_there() -> None:
    dali: Any = pytest.importorskip(NAME)
    base = dali.DALIGenericIterator.__mro__[-2]
    own = {
        name
        for name, kind in vars(dali).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and "__next__" in vars(kind)
    }
    assert own == set(NOTICED[NAME])
