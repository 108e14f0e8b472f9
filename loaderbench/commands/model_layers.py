"""`loaderbench model layers`: what each call of a model costs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from loaderbench.cases.options import ModelOptions
from loaderbench.commands.kept import end_kept, print_study, run_kept, write_study
from loaderbench.commands.options import Model, OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, write_out


@with_options()
def layers(
    *,
    model: Model,
    options: ModelOptions,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per step  [default: 64; 8 on the CPU, lenet 64]")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps to time, and as many without timing each call  [default: 50; 20 on the CPU; more "
            "if they end within 5 s]"
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATASET", help="Folder of images or a data set's name, to include loading")
    ] = None,
    res: Annotated[int | None, typer.Option(help="Stored resolution: variant N of --data")] = None,
    loader: Annotated[str | None, typer.Option(help="Loader of --data  [default: as in `run`]")] = None,
    workers: Annotated[int | None, typer.Option(help="Workers of the loader  [default: usable CPUs]")] = None,
    alone: Annotated[bool, typer.Option("--alone/--no-alone", help="Also time each call alone")] = True,
    every: Annotated[bool, typer.Option("--all", help="Show all calls, not only the most expensive")] = False,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the iteration as a CSV profile in the format of 2019, one row per function"
        ),
    ] = None,
    output: OutputOptions,
) -> None:
    """Time each call of a model, forward and backward, in the running step and alone."""
    from loaderbench.studies.layers_plan import DataOptions, plan_layers

    check_json_target(output.json_out, csv)
    feed = DataOptions(data, res, loader, workers)
    planned = plan_layers(model, options, batch_size, steps, alone=alone, data=feed)
    from loaderbench.recording.output import is_standard_output  # late: refusals come without it
    from loaderbench.reporting.model_layers import profile_csv
    from loaderbench.studies.model_layers import LayersStudy

    study, ended = run_kept(partial(LayersStudy, planned), output)
    stored = study.store()
    print_study(stored, output, whole=every, on_stderr=is_standard_output(csv))
    if csv is not None and study.measured:
        assert stored.findings is not None
        write_out(profile_csv(stored.findings).encode(), csv)
    write_study(stored, output)
    end_kept(study, ended)
