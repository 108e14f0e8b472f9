"""Small real image trees, shared by every test folder."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import write_tree

from loaderbench.recording.others import NOTED
from loaderbench.samplers.cpu import Others
from tests.warm import warm

pytest.register_assert_rewrite("tests.studies.kept")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore Ctrl-C, and so would every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several processes test at once. Threads of OpenMP that spin while they wait take the others' processors.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Tests are those of a machine without a GPU, also where there is one, but for `-m gpu`, which asks for it."""
    asked = config.getoption("markexpr") or ""
    if "gpu" not in asked or "not gpu" in asked:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A module of the folder `benchmarks`, by its name; its modules import each other as scripts do."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module


@pytest.fixture(scope="session")
def stored_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results that were measured: 14 runs, a sweep and a comparison, for tests that only read them."""
    from tests.convert_schema1 import convert

    out = tmp_path_factory.mktemp("stored") / "results"
    assert convert(Path(__file__).parent / "data" / "schema1", out) == []
    return out


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A test that measures, and fails once more at its last try, is skipped where others took the processors."""
    if item.get_closest_marker("alone") is None:
        return (yield)
    others = Others()
    try:
        return (yield)
    except AssertionError as error:
        seen = others.seen()
        last = getattr(item, "execution_count", 1) > (item.config.getoption("reruns", 0) or 0)
        if not last or seen is None or seen.fraction <= NOTED:
            raise
        why = f"others took {seen.fraction:.0%} of the processors' time while this was measured, and it failed"
        raise pytest.skip.Exception(f"{why}: {str(error).splitlines()[0]}") from error


@pytest.fixture(autouse=True)
def _measuring_processes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a test starts itself: from a warm process (tests/warm.py), where that gives the same."""

    def begin(command: list[str], **options: Any) -> Any:
        forked_from = warm()
        return (subprocess.Popen if forked_from is None else forked_from.begin)(command, **options)

    only = SimpleNamespace(Popen=begin, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("loaderbench.running.process.subprocess", only)


@pytest.fixture(scope="session")
def photographs() -> list[NDArray[np.uint8]]:
    """Real photographs that scikit-image and scikit-learn bring along: uint8 [H, W, 3]."""
    data = pytest.importorskip("skimage.data")
    datasets = pytest.importorskip("sklearn.datasets")
    return [data.astronaut(), data.chelsea(), *datasets.load_sample_images().images]


@pytest.fixture(scope="session")
def image_tree(tmp_path_factory: pytest.TempPathFactory, photographs: list[NDArray[np.uint8]]) -> Path:
    """24 JPEGs of 64 to 299 pixels a side, baseline and progressive. Read only."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(1)
    sizes = [(int(width), int(height)) for width, height in random.integers(64, 300, (24, 2))]
    write_tree(root, photographs, sizes)
    return root


@pytest.fixture
def own_tree(tmp_path: Path, photographs: list[NDArray[np.uint8]]) -> Path:
    """24 JPEGs of 96×80 pixels that the test may spoil."""
    root = tmp_path / "images"
    write_tree(root, photographs, [(96, 80)] * 24)
    return root


@pytest.fixture(scope="session")
def small_set(tmp_path_factory: pytest.TempPathFactory, photographs: list[NDArray[np.uint8]]) -> Path:
    """A data set with the variants 96 and 128: 48 JPEGs each. Read only."""
    root = tmp_path_factory.mktemp("small_set")
    for side in (96, 128):
        write_tree(root / str(side), photographs, [(side, side)] * 48)
    return root


@pytest.fixture(scope="session")
def set_copy(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `small_set`, as on another storage. Read only."""
    return Path(shutil.copytree(small_set, tmp_path_factory.mktemp("set_copy") / "set"))


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache folder for the tests of models: what one has traced, the next finds."""
    return tmp_path_factory.mktemp("cache")
