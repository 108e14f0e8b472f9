"""`loaderbench model offload`: a model with a part of its tensors on the host, where a device has too little memory."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loaderbench.cases.options import ModelOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import Memory, Model, OutputOptions, with_options


@with_options()
def offload(
    *,
    model: Model,
    batch_size: Annotated[int, typer.Option(help="Samples per step")] = 10,
    offload_above: Annotated[
        float | None,
        typer.Option(metavar="KB", help="Offload tensors of at least this many KB (1,024 bytes)  [default: none]"),
    ] = None,
    offload_after: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Offload only when more than this fraction of the device's memory is in use  [default: 0]",
        ),
    ] = None,
    memory: Memory = None,
    study: Annotated[
        bool,
        typer.Option(
            "--study",
            help="Find the best setting: compares batch 1, no offloading, full offloading and thresholds between",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps to time for each setting, over all rounds  [default: 30; 12 on the CPU]"),
    ] = None,
    options: ModelOptions,
    output: OutputOptions,
) -> None:
    """Run a model with some of its saved tensors in host memory, so that a larger batch fits."""
    from loaderbench.studies.offload_plan import plan_offload

    plan = plan_offload(
        model, options, batch_size, above_kb=offload_above, after=offload_after, memory=memory, steps=steps, study=study
    )
    from loaderbench.studies.model_offload import OffloadStudy  # late: refusals come without it

    measure_kept(partial(OffloadStudy, plan), output)
