"""`loaderbench attach`: list training processes, look at some from outside, and keep what was seen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import PriceOptions, option
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    from loaderbench.attach.find import Process

LEAST_S, MOST_S = 1.0, 86_400.0


@dataclass(frozen=True)
class AttachOptions:
    """Which jobs to look at, and for how long."""

    all_jobs: bool = option("Look at every training process of this machine at once", False, flag="--all")
    seconds: float = option("How long to look", 20.0)
    slurm: str | None = option("Look at a Slurm job's training processes on this node", metavar="JOB")
    container: str | None = option("Look at a container's training processes on this machine", metavar="ID")


@with_options()
def attach(
    *,
    pid: Annotated[
        int | None, typer.Argument(help="Process to look at: a training, a launcher of several, or a worker")
    ] = None,
    asked: AttachOptions,
    cost: PriceOptions,
    output: OutputOptions,
) -> None:
    """Say why a job that already runs is slow, from outside; without arguments list the training processes."""
    given = [pid is not None, asked.all_jobs, asked.slurm is not None, asked.container is not None]
    if sum(given) > 1:
        raise ConfigError("give one of PID, --all, --slurm and --container")
    if not LEAST_S <= asked.seconds <= MOST_S:
        raise ConfigError(f"--seconds must be {LEAST_S:g} to {MOST_S:,.0f}, not {asked.seconds:g}")
    from loaderbench.attach.find import all_processes, jobs_among

    processes = all_processes()
    if not any(given):
        _show_list(jobs_among(processes), output)
        return
    jobs, words = _chosen(pid, asked, processes)
    from loaderbench.attach.study import AttachStudy
    from loaderbench.commands.kept import measure_kept

    measure_kept(partial(AttachStudy, jobs, words, asked.seconds, cost.price), output)


def _chosen(pid: int | None, asked: AttachOptions, processes: dict[int, Process]) -> tuple[list[Process], str]:
    """(the jobs, what was asked for in words). Raises ConfigError where there are none."""
    from loaderbench.attach import find

    if pid is not None:
        return find.chosen(pid, processes), f"PID {pid}"
    if asked.slurm is not None:
        jobs, words = find.of_slurm(asked.slurm, processes), f"Slurm job {asked.slurm}"
    elif asked.container is not None:
        jobs, words = find.of_container(asked.container, processes), f"container {asked.container}"
    else:
        jobs, words = find.jobs_among(processes), "all jobs"
    if not jobs:
        raise ConfigError(
            f"no training process found ({words}): a Python with PyTorch, TensorFlow, JAX or DALI loaded, or with a "
            "loader's workers; `loaderbench attach PID` looks at any Python process"
        )
    return jobs, words


def _show_list(jobs: Sequence[Process], output: OutputOptions) -> None:
    from loaderbench.attach.find import rank_of, workers_of
    from loaderbench.attach.measure import gpu_numbers
    from loaderbench.commands.terminal import write_json
    from loaderbench.plain import JsonObject
    from loaderbench.reporting import format as fmt
    from loaderbench.reporting.console import make_console, print_result
    from loaderbench.reporting.result import Column, Result, Table

    rows, found = [], []
    for job in jobs:
        workers, gpus, (rank, _) = len(workers_of(job)), gpu_numbers(job.pid), rank_of(job.pid)
        command = shlex.join(job.words)
        rows.append((str(job.pid), fmt.duration(job.age_s), workers, ", ".join(map(str, gpus)) or None, command))
        one: JsonObject = {
            "pid": job.pid, "command": command, "age_s": job.age_s, "workers": workers, "gpus": [*gpus], "rank": rank,
        }  # fmt: skip
        found.append(one)
    if output.json_out is not None:
        write_json({"jobs": [*found]}, output.json_out)
    if output.quiet:
        return
    columns = (Column("PID"), Column("age"), Column("workers"), Column("GPUs"), Column("command", left=True))
    answer = f"{len(jobs)} training process{'es' * (len(jobs) != 1)}: `loaderbench attach PID` says what limits one."
    if not jobs:
        answer = "No training process found; `loaderbench attach PID` looks at any Python process."
    result = Result("Training processes of this machine", [], [answer], [Table("", columns, rows)] if rows else [])
    print_result(result, make_console(stderr=output.on_stderr))
