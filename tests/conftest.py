"""Small real image trees, shared by every test folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import write_tree

from tests.warm import warm

pytest.register_assert_rewrite("tests.studies.kept")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several processes test at once. Threads of OpenMP that spin while they wait take the others' processors.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _measuring_processes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a test starts itself: from a warm process (tests/warm.py), where that gives the same."""

    def begin(command: list[str], **options: Any) -> Any:
        forked_from = warm()
        return (subprocess.Popen if forked_from is None else forked_from.begin)(command, **options)

    only = SimpleNamespace(Popen=begin, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("loaderbench.running.supervisor.subprocess", only)


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
