"""A small tree to serve, and what happens where a bed cannot be made."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loaderbench.errors import UnavailableError


@pytest.fixture(scope="session")
def served_tree(tmp_path_factory):
    """48 files of 60 to 130 KB in two classes, 4.6 MB: what matters to a bed is their bytes."""
    root = tmp_path_factory.mktemp("served")
    random = np.random.default_rng(0)
    for number in range(48):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:03}.jpg").write_bytes(random.bytes(int(random.integers(60_000, 130_000))))
    return root


@pytest.fixture(scope="session")
def tree_bytes(served_tree):
    return sum(path.stat().st_size for path in served_tree.rglob("*.jpg"))


@pytest.fixture(scope="session")
def require_bed():
    """Skips with the bed's own reason; `make test-beds` sets LOADERBENCH_REQUIRE_BEDS, and the reason is a failure."""

    def require(check_available):
        try:
            check_available()
        except UnavailableError as reason:
            if os.environ.get("LOADERBENCH_REQUIRE_BEDS"):
                pytest.fail(f"this bed has to be here: {reason}")
            pytest.skip(str(reason))

    return require


@pytest.fixture
def start_owner():
    """Starts a process that enters a bed, prints a line and sleeps inside; returns it and the words of that line."""
    owners = []

    def start(source, *arguments):
        owner = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        owners.append(owner)
        return owner, owner.stdout.readline().split()

    yield start
    for owner in owners:
        owner.kill()
        owner.wait()
        owner.stdout.close()
