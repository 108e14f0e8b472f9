"""`loaderbench trace`: one stored run, the ranks of a launch, or the turns of a split, over time."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, echo, write_out
from loaderbench.errors import ConfigError


@with_options(without=("quiet", "json_out"))
def trace(
    *,
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Id of a run, a launch of ranks or a model split, a unique prefix of it, or latest",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="File to write  [default: RUN.perfetto.json.gz]")] = None,
    output: OutputOptions,
) -> None:
    """Write a stored run, launch of ranks or model split as a timeline for ui.perfetto.dev or chrome://tracing."""
    from loaderbench.recording.model_split import SplitFacts
    from loaderbench.recording.ranks import RanksFacts
    from loaderbench.recording.store import Store, StoredStudy, load_stored
    from loaderbench.reporting.perfetto import trace_of_ranks, trace_of_run, trace_of_split

    check_json_target(out)
    store = Store(output.results)
    stored = store.named(run_id)
    facts = stored.study.facts if isinstance(stored, StoredStudy) and stored.study is not None else None
    if isinstance(stored, StoredStudy) and isinstance(facts, SplitFacts):
        name, draw = stored.study_id, functools.partial(trace_of_split, facts)
    elif isinstance(stored, StoredStudy) and isinstance(facts, RanksFacts):
        name, draw = stored.study_id, functools.partial(trace_of_ranks, facts)
    else:
        run = load_stored(store.find(run_id) if isinstance(stored, StoredStudy) else stored)
        if run.recording is None or not run.recording.segments:
            raise ConfigError(f"{run.run_id} has no measured steps to draw")
        name, draw = run.run_id, functools.partial(trace_of_run, run)
    target = out or Path(f"{Path(name).name}.perfetto.json.gz")  # a stored run may call itself ../x
    try:
        drawn = draw()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be drawn: its facts contradict each other ({error})") from error
    data = drawn.to_bytes(zipped=target.suffix == ".gz")
    if write_out(data, target, follow=out is not None):
        echo(f"{target}: {len(drawn.events):,} events, {len(data) / 1e6:,.1f} MB; open it at ui.perfetto.dev")
