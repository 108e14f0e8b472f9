"""`loaderbench trace`: one stored run, the ranks of a launch, or the turns of a split, over time."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import echo
from loaderbench.errors import ConfigError


@with_options(without=("quiet", "json_out"))
def trace(
    *,
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Id of a run, of the study of ranks or of a model split, a unique prefix of one, or latest",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="File to write  [default: RUN.perfetto.json.gz]")] = None,
    output: OutputOptions,
) -> None:
    """Write a stored run, the ranks of a launch, or a model split, as a timeline for ui.perfetto.dev or chrome://tracing."""
    from loaderbench.recording.model_split import SplitFacts
    from loaderbench.recording.ranks import RanksFacts
    from loaderbench.recording.store import Store
    from loaderbench.reporting.perfetto import write_split_trace, write_trace
    from loaderbench.reporting.ranks_trace import write_ranks_trace

    store = Store(output.results)
    stored = store.find_study(run_id)
    if stored is not None and stored.study is not None and isinstance(stored.study.facts, SplitFacts):
        name, write = stored.study_id, functools.partial(write_split_trace, facts=stored.study.facts)
    elif stored is not None and stored.study is not None and isinstance(stored.study.facts, RanksFacts):
        name, write = stored.study_id, functools.partial(write_ranks_trace, facts=stored.study.facts)
    else:
        run = store.load_run(run_id)
        if run.recording is None or not run.recording.segments:
            raise ConfigError(f"{run.run_id} measured nothing that can be drawn")
        name, write = run.run_id, functools.partial(write_trace, run=run)
    target = out or Path(f"{name}.perfetto.json.gz")
    try:
        num_events = write(target)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be drawn, its facts contradict each other: {error}") from error
    echo(f"{target}: {num_events:,} events, {target.stat().st_size / 1e6:,.1f} MB; open it at ui.perfetto.dev")
