"""`loaderbench forecast`: how long a training takes, from a stored run."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loaderbench.cases.options import ForecastOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.lacking import require_run


@with_options()
def forecast(
    *,
    run: Annotated[
        str,
        typer.Argument(
            help="Stored run or profile of `model layers`: an id, a unique prefix of it, a folder, or latest"
        ),
    ],
    asked: ForecastOptions,
    output: OutputOptions,
) -> None:
    """Forecast how long an epoch and a whole training take, with an interval. --check runs it and compares."""
    if asked.check:
        require_run("loaderbench forecast --check")
    from loaderbench.recording.store import Store
    from loaderbench.studies.forecast import ForecastStudy, plan_forecast

    plan = plan_forecast(run, asked, Store(output.results))
    measure_kept(partial(ForecastStudy, plan), output)
