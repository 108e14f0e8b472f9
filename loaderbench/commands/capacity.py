"""`loaderbench capacity`: how many accelerators a storage feeds."""

from __future__ import annotations

from typing import Annotated

import typer

from loaderbench import plugins
from loaderbench.cases.options import CapacityOptions, Numbers, Words
from loaderbench.cases.study import LEFT_OUT, StudyOptions
from loaderbench.commands.kept import run_study, show_study
from loaderbench.commands.options import Changed, OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target


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
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.capacity import CapacityStudy

    store = Store(output.results)
    store.check_writable()
    study = CapacityStudy(plan, store)
    ended = run_study(study, output)
    if study.begun:
        show_study(study, output)
    if ended is not None:
        raise Interrupted(f"interrupted: {study.num_looks} measurements finished and are kept", ended)
    if study.error is not None:
        raise study.error
