"""`loaderbench precision`: one model in every precision, side by side."""

from __future__ import annotations

import typer

from loaderbench.cases.options import PrecisionOptions
from loaderbench.commands.kept import run_study, show_study
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target, say


@with_options()
def precision(
    *,
    options: PrecisionOptions,
    output: OutputOptions,
) -> None:
    """Run a model in every precision: time, memory, and whether its numbers still agree with fp32."""
    from loaderbench.studies.precision_plan import plan_precision

    check_json_target(output.json_out)
    plan = plan_precision(options)
    if plan.note and not output.quiet:
        say(plan.note)
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.precision import PrecisionStudy

    store = Store(output.results)
    store.check_writable()
    study = PrecisionStudy(plan, store)
    ended = run_study(study, output)
    show_study(study, output)
    if ended is not None:
        num_done = sum(mode.status != "interrupted" for mode in study.modes)
        raise Interrupted(f"interrupted: {num_done} of {len(plan.steps)} precisions finished and are kept", ended)
    statuses = [one.status for one in study.modes]
    if "failed" in statuses or all(status == "skipped" for status in statuses):
        raise typer.Exit(1)
