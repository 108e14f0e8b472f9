"""`loaderbench model memory`: predicted and measured memory of a step, by kind and by layer."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loaderbench.cases.options import ModelOptions, Numbers, read
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import Model, OutputOptions, with_options


@with_options()
def memory(
    *,
    model: Model,
    batch_size: Annotated[str, typer.Option(help="Samples per step, comma separated")] = "1,8",
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Also measure on the device")] = True,
    every: Annotated[bool, typer.Option("--all/--no-all", "--layers", help="Print every layer")] = False,
    options: ModelOptions,
    output: OutputOptions,
) -> None:
    """Predict and measure the memory that a step of a model needs, by kind and by layer."""
    from loaderbench.studies.memory_plan import plan_memory

    plan = plan_memory(model, options, read("batch_size", Numbers, batch_size), measure=measure)
    from loaderbench.studies.memory import MemoryStudy  # late: refusals come without it

    measure_kept(partial(MemoryStudy, plan), output, whole=every)
