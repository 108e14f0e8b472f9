"""`loaderbench run`: one case, and what limits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loaderbench.cases.options import PriceOptions
from loaderbench.cases.study import LEFT_OUT, StudyOptions
from loaderbench.commands.measuring import measure
from loaderbench.commands.options import Dataset, OutputOptions, Tag, with_options


@with_options(without=LEFT_OUT["run"])
def run(
    *,
    dataset: Dataset = None,
    options: StudyOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the case and its expected time, and exit")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also run the advice, and compare its predicted with its measured speed-up")
    ] = False,
    tag: Tag = None,
    save_profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Save this GPU's step times to use with --device emulated:FILE.toml"),
    ] = None,
    cost: PriceOptions,
    output: OutputOptions,
) -> None:
    """Measure one case and say what limits it."""
    from loaderbench.studies.request import ONE_OF_EACH

    options.require_single("run", *ONE_OF_EACH)
    measure(
        options, dataset, output, dry_run=dry_run, verify=verify,
        tag=tag, save_profile=save_profile, price=cost.price,
    )  # fmt: skip
