"""`loaderbench sweep`: every combination of lists, or of a study in a file, judged together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loaderbench import plugins
from loaderbench.cases.options import Words
from loaderbench.cases.study import StudyOptions, read_study
from loaderbench.commands.measuring import measure
from loaderbench.commands.options import Changed, DryRun, OutputOptions, Tag, given_on_command_line, with_options

LOADERS = Words(plugins.predictable_loaders())


@with_options(
    res=Changed(help="Stored resolutions, comma separated"),
    loader=Changed(LOADERS),
    batch_size=Changed(help="Samples per step, comma separated"),
    prefetch=Changed(help="Batches to prepare ahead, per worker, comma separated"),
    model=Changed(help="torchvision classification models, comma separated"),
)
def sweep(
    *,
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Argument(help="STUDY.toml, or data sets, comma separated. Default: a generated set, which is kept."),
    ] = None,
    options: StudyOptions,
    dry_run: DryRun = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Measure only the cases that the results folder lacks")
    ] = False,
    tag: Tag = None,
    output: OutputOptions,
) -> None:
    """Measure all combinations of the comma-separated lists (10,000 at most), and print a table."""
    from loaderbench.studies.request import DEFAULT_RESOLUTIONS

    if dataset is not None and dataset.endswith(".toml"):
        options, dataset = _from_file(Path(dataset), options, given_on_command_line(context))
    sets = None if dataset is None else dataset.split(",")
    measure(options, sets, output, generated=DEFAULT_RESOLUTIONS, dry_run=dry_run, resume=resume, tag=tag)


def _from_file(path: Path, options: StudyOptions, given: set[str]) -> tuple[StudyOptions, str | None]:
    """(the options of a study file, overridden by those given as flags; its data sets)"""
    study = read_study(path)
    dataset = study.pop("dataset", None)
    changes = {name: value for name, value in study.items() if name not in given}
    return options.changed(**changes), None if dataset is None else str(dataset)
