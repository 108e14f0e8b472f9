"""`loaderbench model io`: data in and out of a device alone, over a range of batches."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loaderbench.cases.options import ModelOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import Model, OutputOptions, with_options


@with_options(without=("mode", "optimizer"))
def io(
    *,
    model: Model,
    batch_size: Annotated[int, typer.Option(help="First batch size")] = 1,
    max_batch: Annotated[int, typer.Option(help="Largest batch size")] = 128,
    inc: Annotated[int, typer.Option(help="Step from one batch size to the next")] = 8,
    options: ModelOptions,
    output: OutputOptions,
) -> None:
    """Time the copy of a batch to the device and the copy of its outputs back, without the step in between."""
    from loaderbench.studies.io_plan import plan_io

    plan = plan_io(model, options, batch_size, max_batch, inc)
    from loaderbench.studies.model_io import IoStudy  # late: refusals come without it

    measure_kept(partial(IoStudy, plan), output)
