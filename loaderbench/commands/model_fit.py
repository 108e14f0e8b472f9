"""`loaderbench model fit`: the largest batch that fits into a device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import ModelOptions
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target, lines, write_json

if TYPE_CHECKING:
    from loaderbench.studies.model_fit import FitStudy


@with_options()
def fit(
    *,
    model: Annotated[str, typer.Argument(help="A torchvision classification model, lenet, or package.module:factory")],
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="16G (GiB), as of a smaller device  [default: what is there]")
    ] = None,
    how: Annotated[
        str | None, typer.Option(help="What holds the limit on the CPU: ledger or rlimit  [default: ledger]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the last interrupted fit of this request")] = False,
    options: ModelOptions,
    output: OutputOptions,
) -> None:
    """The largest batch that fits: predicted, then confirmed by trials in fresh processes, each of three steps."""
    from loaderbench.recording.store import Store
    from loaderbench.studies.model_fit import FitStudy, plan_fit

    check_json_target(output.json_out)
    plan = plan_fit(model, options, memory, how)
    store = Store(output.results)
    store.check_writable()
    study = FitStudy(plan, store, resume=resume)
    ended: BaseException | None = None
    try:
        with lines(quiet=output.quiet) as tell:
            study.run(tell)
    except (KeyboardInterrupt, SystemExit) as stop:
        ended = stop
    _show(study, output)
    if ended is not None:
        kept = f"interrupted: {len(study.trials)} trials are kept; --resume continues"
        raise Interrupted(kept, ended)
    found = study.findings()
    if not found.largest_batch or not (found.confirmed or found.not_measured):
        raise typer.Exit(1)


def _show(study: FitStudy, output: OutputOptions) -> None:
    """Store, print and write what is known."""
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.studies import as_json, print_findings

    stored = study.store()
    assert stored.findings is not None
    if not output.quiet:
        print_findings(stored.facts, stored.findings, make_console(stderr=output.on_stderr))
    if output.json_out is not None:
        write_json(as_json(stored.facts, stored.findings, stored.study_id), output.json_out)
