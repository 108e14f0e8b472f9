"""`loaderbench model size`: the devices that a rate or a latency needs, from measured batches."""

from __future__ import annotations

from functools import partial

from loaderbench.cases.options import ModelOptions, SizeOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import Model, OutputOptions, with_options


@with_options()
def size(
    *,
    model: Model,
    options: ModelOptions,
    asked: SizeOptions,
    output: OutputOptions,
) -> None:
    """Find how many devices a rate or a latency needs, at which batch, and what the loader and storage must deliver."""
    from loaderbench.studies.size_plan import plan_size

    plan = plan_size(model, options, asked, output.results)
    from loaderbench.studies.model_size import SizeStudy  # late: refusals come without it

    measure_kept(partial(SizeStudy, plan), output)
