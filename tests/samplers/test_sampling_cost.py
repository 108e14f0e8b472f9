"""The benchmark of the samplers' cost runs and counts what it says it counts. Nothing is asserted about time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_benchmark_samples_the_whole_tree() -> None:
    command = [
        sys.executable,
        "benchmarks/sampling_cost.py",
        "--workers",
        "3",
        "--seconds",
        "0.5",
        "--mib",
        "1",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["num_processes"] == 4
    assert result["cpu_fraction_of_one_core"] > 0
    assert {"ProcessTreeSampler", "CpuSampler"} <= set(result["tick_us"])
