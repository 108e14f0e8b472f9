"""`loaderbench trace`: one stored run over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import echo
from loaderbench.errors import ConfigError


@with_options(without=("quiet", "json_out"))
def trace(
    *,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, a unique start of it, or latest")],
    out: Annotated[Path | None, typer.Option(help="File to write  [default: RUN.perfetto.json.gz]")] = None,
    output: OutputOptions,
) -> None:
    """Write one stored run over time, to be opened at ui.perfetto.dev or in chrome://tracing."""
    from loaderbench.recording.store import Store
    from loaderbench.reporting.perfetto import write_trace

    run = Store(output.results).load_run(run_id)
    if run.recording is None or not run.recording.segments:
        raise ConfigError(f"{run.run_id} measured nothing that could be drawn")
    target = out or Path(f"{run.run_id}.perfetto.json.gz")
    try:
        num_events = write_trace(target, run)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{run.run_id} cannot be drawn, its facts contradict each other: {error}") from error
    echo(f"{target}: {num_events:,} events, {target.stat().st_size / 1e6:,.1f} MB; open it at ui.perfetto.dev")
