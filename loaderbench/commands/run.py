"""`loaderbench run`: one case, and what limits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loaderbench.cases.study import LEFT_OUT, StudyOptions
from loaderbench.commands.measuring import measure
from loaderbench.commands.options import Dataset, OutputOptions, with_options


@with_options(without=LEFT_OUT["run"])
def run(
    *,
    dataset: Dataset = None,
    options: StudyOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cases and the time they will take")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Then run the advice, and print predicted against measured speed-up")
    ] = False,
    tag: Annotated[
        str | None, typer.Option(metavar="NAME", help="A name to find the run by: list, report NAME")
    ] = None,
    save_profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Save this GPU's step times for --device emulated:FILE.toml"),
    ] = None,
    output: OutputOptions,
) -> None:
    """Measure one case and say what limits it."""
    from loaderbench.studies.request import ONE_OF_EACH

    options.require_single("run", *ONE_OF_EACH)
    measure(
        options, dataset, output, dry_run=dry_run, verify=verify,
        tag=tag, save_profile=save_profile,
    )  # fmt: skip
