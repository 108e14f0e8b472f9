"""The launchers' variables, and clocks aligned over a real process group.

On one machine CLOCK_MONOTONIC is the same for all processes, so the true offset is what the test injects.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loaderbench.errors import ConfigError
from loaderbench.running.ranks import Rank, offset_of, rank_of

INJECTED_NS = 50_000_000
SCRIPT = """
import json, os, sys, time
from dataclasses import asdict
from pathlib import Path
from torch import distributed
from loaderbench.running.ranks import align_clock, rank_of

rank = rank_of(os.environ)
distributed.init_process_group("gloo")
late = int(sys.argv[2]) * rank.rank
aligned = align_clock(lambda: time.perf_counter_ns() - late)
Path(sys.argv[1], f"{rank.rank}.json").write_text(json.dumps({**asdict(rank), **asdict(aligned)}))
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_clocks_injected_50_ms_late_are_recovered_to_1_ms(tmp_path: Path) -> None:
    script = tmp_path / "align.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    root = str(Path(__file__).resolve().parents[2])
    subprocess.run(
        [*launch, str(script), str(tmp_path), str(INJECTED_NS)],
        check=True,
        timeout=120,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": root},
    )
    for rank in range(3):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (told["rank"], told["world_size"], told["local_rank"]) == (rank, 3, rank)
        error_s = abs(told["offset_s"] - rank * INJECTED_NS / 1e9)
        assert error_s <= 1e-3
        assert error_s <= told["uncertainty_s"]


def test_half_the_delay_bounds_the_error_where_only_one_way_is_slow() -> None:
    # The other clock is 7 ns ahead; the way there takes 100 ns, the way back none. A slower trip is passed over.
    aligned = offset_of([(0, 5000 + 7, 5010 + 7, 5010), (10000, 10107, 10107, 10100)])
    assert abs(aligned.offset_s - 7e-9) <= aligned.uncertainty_s + 1e-18
    assert aligned.uncertainty_s == pytest.approx(50e-9)


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Rank(3, 8, 1, "torchrun")),
        (
            {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_NTASKS": "9"},
            Rank(2, 4, 0, "Slurm"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_LOCALID": "0",
            },
            Rank(1, 2, 1, "Open MPI"),
        ),
        ({"RANK": "3"}, None),
        ({}, None),
    ],
)
def test_each_launchers_variables_are_read(variables: dict[str, str], rank: Rank | None) -> None:
    assert rank_of(variables) == rank


@pytest.mark.parametrize("rank", ["two", "4", "-1"])
def test_variables_that_name_no_rank_are_refused(rank: str) -> None:
    with pytest.raises(ConfigError, match=f"RANK={rank}"):
        rank_of({"RANK": rank, "WORLD_SIZE": "4", "LOCAL_RANK": "0"})
