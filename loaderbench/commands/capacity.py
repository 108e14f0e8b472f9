"""`loaderbench capacity`: how many accelerators a storage feeds."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loaderbench import plugins
from loaderbench.cases.options import CapacityOptions, Numbers, Words
from loaderbench.cases.study import LEFT_OUT, StudyOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import Changed, OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target


@with_options(
    without=LEFT_OUT["capacity"],
    loader=Changed(default=Words((plugins.IN_LINE_LOADER,)), help="Each rank's loader: {loaders}"),
    workers=Changed(default=Numbers((1,)), help="Worker processes or threads of each rank"),
    device=Changed(default="emulated", help="Each rank's device: emulated:PROFILE[xF], F times as fast"),
)
def capacity(
    *,
    dataset: Annotated[str, typer.Argument(help="Folder of images on the storage, or a data set's name")],
    options: StudyOptions,
    asked: CapacityOptions,
    output: OutputOptions,
) -> None:
    """Measure how many accelerators this storage feeds from this machine, and what stops the next one."""
    from loaderbench.studies.capacity_plan import plan_capacity

    check_json_target(output.json_out)
    plan = plan_capacity(dataset, options, asked)
    from loaderbench.studies.capacity import CapacityStudy  # late: refusals come without it

    study = measure_kept(partial(CapacityStudy, plan), output)
    if study.error is not None:
        raise study.error
