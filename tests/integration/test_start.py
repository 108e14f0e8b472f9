"""What is said, and what is done, before a run's first window."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from commands import TINY


def test_what_will_be_measured_is_said_once_and_before_numpy_is_imported(small_set: Path, tmp_path: Path) -> None:
    assert TINY[-1] == "--quiet"
    # Given a run whose stderr is no terminal, and tells what is imported too
    command = ["run", str(small_set), "--res", "96", *TINY[:-1], "--results", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "loaderbench", *command],
        capture_output=True, text=True, env=environ, timeout=300, check=True,
    )  # fmt: skip
    # Then its title comes before numpy, and no second time
    lines = done.stderr.splitlines()
    (said,) = [number for number, line in enumerate(lines) if line.startswith("measuring ")]
    (imported,) = [number for number, line in enumerate(lines) if line.endswith(" numpy")]
    assert said < imported
    title = lines[said].removeprefix("measuring ").partition(" (about")[0]
    assert [line for line in lines if title in line and not line.startswith("import time")] == [lines[said]]
