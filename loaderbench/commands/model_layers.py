"""`loaderbench model layers`: what each call of a model costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import ModelOptions
from loaderbench.commands.kept import run_study, write_study
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target

if TYPE_CHECKING:
    from loaderbench.studies.model_layers import LayersStudy


@with_options()
def layers(
    *,
    model: Annotated[str, typer.Argument(help="A torchvision model, lenet, or package.module:factory")],
    options: ModelOptions,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per step  [default: 64; 8 on the CPU, lenet 64]")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps to time, and as many without timing each call  [default: 50; 20 on the CPU, lenet 100]"
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
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.model_layers import LayersStudy

    store = Store(output.results)
    store.check_writable()
    study = LayersStudy(planned, store)
    ended = run_study(study, output)
    _show(study, output, csv, every=every)
    if ended is not None:
        kept = "the layers' times in the step are kept" if study.measured else "no block was finished"
        raise Interrupted(f"interrupted: {kept}", ended)
    if study.failed:
        raise typer.Exit(1)


def _show(study: LayersStudy, output: OutputOptions, csv: Path | None, *, every: bool) -> None:
    """Store, print and write what was measured."""
    from loaderbench.commands.terminal import write_out
    from loaderbench.recording.model_layers import LayersResult
    from loaderbench.recording.output import is_standard_output
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.model_layers import profile_csv
    from loaderbench.reporting.studies import print_findings

    stored = study.store()
    found = stored.findings
    assert isinstance(found, LayersResult)
    if not output.quiet:
        console = make_console(stderr=output.on_stderr or is_standard_output(csv))
        print_findings(stored.facts, found, console, whole=every)
    if csv is not None and study.measured:
        write_out(profile_csv(found).encode(), csv)
    write_study(stored, output)
