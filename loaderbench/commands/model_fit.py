"""`loaderbench model fit`: the largest batch that fits into a device's memory."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loaderbench.cases.options import ModelOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import Memory, Model, OutputOptions, with_options


@with_options()
def fit(
    *,
    model: Model,
    memory: Memory = None,
    how: Annotated[
        str | None, typer.Option(help="How to enforce the limit on the CPU: ledger or rlimit  [default: ledger]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the last interrupted fit with these options")
    ] = False,
    options: ModelOptions,
    output: OutputOptions,
) -> None:
    """Find the largest batch that fits: predict it, then confirm it by trials of three steps in fresh processes."""
    from loaderbench.studies.fit_plan import plan_fit

    plan = plan_fit(model, options, memory, how)
    from loaderbench.studies.model_fit import FitStudy  # late: refusals come without it

    measure_kept(partial(FitStudy, plan, resume=resume), output)
