"""A package that is not there, one that does not load, and a limit of memory are told apart."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import resource
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import TINY, call, run

import loaderbench
from loaderbench import lacking
from loaderbench.errors import UnavailableError

PACKAGE = Path(loaderbench.__file__).parent
NO_ROOM = ImportError("libx.so: failed to map segment from shared object")
USERS = {
    "loaders.dali": "nvidia.dali", "loaders.ffcv": "ffcv.loader", "loaders.grain": "grain.python",
    "loaders.hf_datasets": "datasets.arrow_dataset", "loaders.litdata": "litdata", "loaders.ray": "ray",
    "loaders.spdl": "spdl.io", "loaders.tf_data": "tensorflow", "loaders.torchdata": "torchdata.nodes",
    "loaders.webdataset": "webdataset", "decoders.opencv": "cv2",
}  # fmt: skip
"""Module of ours → what it imports that may be missing."""


class Refuses:
    """A finder of modules, before all others."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self.error = name, error

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name == self.name.partition(".")[0]:
            raise self.error
        return None


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`limits(RLIMIT_AS=BYTES)`: as if these were set, and no others."""

    def set_to(**given: int) -> None:
        by_number = {getattr(resource, name): most for name, most in given.items()}
        unlimited = resource.RLIM_INFINITY
        fake = SimpleNamespace(getrlimit=lambda one: (by_number.get(one, unlimited),) * 2, RLIM_INFINITY=unlimited)
        monkeypatch.setattr(lacking, "resource", fake)

    set_to()
    return set_to


def said(ours: str, package: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> str:
    """What importing a module of ours anew says where the package raises this."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Refuses(package, error), *sys.meta_path])
    found = importlib.util.find_spec(f"loaderbench.{ours}")
    assert found is not None and found.loader is not None
    with pytest.raises(UnavailableError) as caught:
        found.loader.exec_module(importlib.util.module_from_spec(found))
    return str(caught.value)


@pytest.mark.parametrize(("ours", "package"), USERS.items(), ids=USERS)
def test_what_does_not_load_is_not_called_missing(
    ours: str, package: str, monkeypatch: pytest.MonkeyPatch, limits: Callable[..., None]
) -> None:
    import_module("loaderbench.loaders.samples")  # with torch, which is there
    limits(RLIMIT_AS=3_500_000 << 10)
    there = said(ours, package, NO_ROOM, monkeypatch)
    assert "is installed but cannot be loaded (libx.so: failed to map segment" in there
    assert there.endswith("`ulimit -v` allows 3,418 MiB of address space, which may be too little: raise it")
    missing = said(ours, package, ModuleNotFoundError(f"No module named '{package}'"), monkeypatch)
    assert f"is not installed (No module named '{package}'); " in missing and "install" in missing.partition(";")[2]
    assert "ulimit" not in missing


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, ""),
        ({"RLIMIT_DATA": 700 << 20}, ": `ulimit -d` allows 700 MiB of data, which may be too little: raise it"),
        ({"RLIMIT_STACK": 1 << 20}, ": `ulimit -s` allows 1 MiB of stack, which may be too little: raise it"),
        ({"RLIMIT_STACK": 8 << 20}, ""),  # as everywhere
    ],
)
def test_what_is_limited_is_named(given: dict[str, int], says: str, limits: Callable[..., None]) -> None:
    limits(**given)
    assert lacking.memory() == says


@pytest.mark.parametrize(
    ("error", "is_of_memory"),
    [
        (MemoryError(), True),
        (NO_ROOM, True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("can't start new thread"), True),
        (ModuleNotFoundError("No module named 'x'"), False),
        (OSError(2, "No such file or directory"), False),
        (RuntimeError("sizes differ"), False),
        (ValueError("x"), False),
    ],
)
def test_a_limit_is_named_for_errors_that_it_gives(
    error: Exception, is_of_memory: bool, limits: Callable[..., None]
) -> None:
    limits(RLIMIT_AS=1 << 30)
    assert bool(lacking.memory_for(error)) == is_of_memory


def test_the_command_itself_names_a_limit_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Callable[..., None]
) -> None:
    def no_room(*_: object) -> None:
        raise NO_ROOM

    monkeypatch.setattr("loaderbench.recording.store.Store.__init__", no_room)
    limits(RLIMIT_AS=200 << 20)
    done = call("list", "--results", tmp_path)
    assert done.code == 1 and done.err.count("\n") == 1
    assert done.err.startswith("loaderbench: libx.so: failed to map segment") and "`ulimit -v` allows 200" in done.err
    limits()
    with pytest.raises(ImportError):  # a fault of ours, or of the installation
        call("list", "--results", tmp_path)


def test_no_other_module_calls_something_not_installed_for_an_error() -> None:
    callers = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and "not installed" in ast.unparse(node):
                callers.append(str(path.relative_to(PACKAGE)))
    assert callers == []


def test_a_process_that_dies_below_a_limit_names_it(image_tree: Path, tmp_path: Path) -> None:
    limit = ["bash", "-c", 'ulimit -d 200000; exec "$@"', "sh"]
    done = run("run", image_tree, *TINY, "--results", tmp_path / "results", wrapper=limit, timeout_s=170)
    assert done.code == 1 and "`ulimit -d` allows 195 MiB of data" in done.err.replace("\n", " "), done.err
