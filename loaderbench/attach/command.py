"""`loaderbench attach`: list training processes, look at some from outside, and keep what was seen."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import PriceOptions, option
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.printable import counted

if TYPE_CHECKING:
    from loaderbench.attach.facts import Attach
    from loaderbench.attach.find import Process

LEAST_S, MOST_S = 1.0, 86_400.0


@dataclass(frozen=True)
class AttachOptions:
    """Which jobs to look at, and for how long."""

    all_jobs: bool = option("Look at every training process of this machine at once", False, flag="--all")
    seconds: float = option("How long to look", 20.0)
    slurm: str | None = option("Look at a Slurm job's training processes on this node", metavar="JOB")
    container: str | None = option("Look at a container's training processes on this machine", metavar="ID")
    metrics: str | None = option("Write Prometheus' text format to FILE, for the node exporter", metavar="FILE")
    otel: bool = option("Send the same metrics by OpenTelemetry's SDK", False, flag="--otel")


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
    from loaderbench.attach.facts import Attach
    from loaderbench.attach.find import all_processes, jobs_among
    from loaderbench.attach.judge import judge

    is_measured = asked.metrics is not None or asked.otel
    if is_measured and not any(given):
        raise ConfigError("--metrics and --otel need a job to look at: add --all, or a PID")
    _check_targets(asked)
    processes = all_processes()
    if not any(given):
        _show_list(jobs_among(processes), output)
        return
    jobs, words = _chosen(pid, asked, processes)
    if not jobs:
        _write_metrics(asked, Attach((), None, (), None), output)
        return
    from loaderbench.attach.study import AttachStudy
    from loaderbench.commands.kept import measure_kept

    study = measure_kept(partial(AttachStudy, jobs, words, asked.seconds, cost.price), output)
    if is_measured:
        _write_metrics(asked, judge(study.facts()), output)


def _check_targets(asked: AttachOptions) -> None:
    """Raises ConfigError, before anything is looked at, if the metrics can go nowhere."""
    from loaderbench.commands.terminal import check_json_target

    check_json_target(asked.metrics)
    if asked.otel:
        from loaderbench.attach.metrics import check_opentelemetry

        check_opentelemetry()


def _write_metrics(asked: AttachOptions, found: Attach, output: OutputOptions) -> None:
    """Write and send the metrics. Raises CaseFailed if no collector took them."""
    from loaderbench.attach.metrics import gauges, prometheus_text, send
    from loaderbench.commands.terminal import echo, write_out

    metrics = gauges(found, time.time())
    if asked.metrics is not None and write_out(prometheus_text(metrics).encode(), asked.metrics) and not output.quiet:
        echo(f"{asked.metrics}: metrics of {counted(len(found.jobs), 'job')}", err=output.on_stderr)
    if asked.otel and not send(metrics):
        raise CaseFailed("no OpenTelemetry collector took the metrics: see OTEL_EXPORTER_OTLP_ENDPOINT")


def _chosen(pid: int | None, asked: AttachOptions, processes: dict[int, Process]) -> tuple[list[Process], str]:
    """(the jobs, what was asked for in words). Raises ConfigError where there are none, which metrics of all tell."""
    from loaderbench.attach import find

    if pid is not None:
        return find.chosen(pid, processes), f"PID {pid}"
    if asked.slurm is not None:
        jobs, words = find.of_slurm(asked.slurm, processes), f"Slurm job {asked.slurm}"
    elif asked.container is not None:
        jobs, words = find.of_container(asked.container, processes), f"container {asked.container}"
    else:
        jobs, words = find.jobs_among(processes), "all jobs"
    if not jobs and not (asked.all_jobs and (asked.metrics is not None or asked.otel)):
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
