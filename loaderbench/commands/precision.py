"""`loaderbench precision`: one model in every precision, side by side."""

from __future__ import annotations

from functools import partial

from loaderbench.cases.options import PrecisionOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import say


@with_options()
def precision(
    *,
    options: PrecisionOptions,
    output: OutputOptions,
) -> None:
    """Run a model in every precision: time, memory, and whether its numbers still agree with fp32."""
    from loaderbench.studies.precision_plan import plan_precision

    plan = plan_precision(options)
    if plan.note and not output.quiet:
        say(plan.note)
    from loaderbench.studies.precision import PrecisionStudy  # late: refusals come without it

    measure_kept(partial(PrecisionStudy, plan), output)
