"""`loaderbench model fit`: the largest batch that fits into a device's memory."""

from __future__ import annotations

from typing import Annotated

import typer

from loaderbench.cases.options import ModelOptions
from loaderbench.commands.kept import run_study, show_study
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target, counted


@with_options()
def fit(
    *,
    model: Annotated[str, typer.Argument(help="A torchvision classification model, lenet, or package.module:factory")],
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of the device to assume: 16G (GiB)  [default: the device's own]"),
    ] = None,
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

    check_json_target(output.json_out)
    plan = plan_fit(model, options, memory, how)
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.model_fit import FitStudy

    store = Store(output.results)
    store.check_writable()
    study = FitStudy(plan, store, resume=resume)
    ended = run_study(study, output)
    show_study(study, output)
    if ended is not None:
        kept = counted(len(study.trials), "trial is", "trials are")
        raise Interrupted(f"interrupted: {kept} kept; --resume continues", ended)
    found = study.findings()
    if not found.largest_batch or not (found.confirmed or found.not_measured):
        raise typer.Exit(1)
