"""`loaderbench rm`: runs and studies leave the store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import echo
from loaderbench.errors import ConfigError
from loaderbench.printable import counted

if TYPE_CHECKING:
    from loaderbench.recording.selection import Removal


@with_options(without=("json_out",))
def remove(
    *,
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="Ids of runs or studies, unique prefixes of them, latest, or tags"),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking")] = False,
    output: OutputOptions,
) -> None:
    """Remove stored runs and studies. Removing a study removes its runs too, unless another study uses them."""
    from loaderbench.recording import selection
    from loaderbench.recording.store import Store

    store = Store(output.results)
    removal = selection.plan_removal(store, names)
    if not output.quiet or not yes:
        _tell(removal)
    what = f"{counted(len(removal.runs), 'run')}, {counted(len(removal.studies), 'study', 'studies')}"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"rm would remove {what} but cannot ask you without a terminal: give --yes")
        if not typer.confirm(f"Remove {what} from {output.results}?"):
            echo("no runs were removed")
            return
    selection.remove(store, removal)
    if not output.quiet:
        echo(f"removed {what} from {output.results}")


def _tell(removal: Removal) -> None:
    for study in removal.studies:
        echo(f"study {study.study_id}")
    for run in removal.runs:
        echo(f"run {run.run_id}: {run.title}, {run.status}")
    for run in removal.kept:
        echo(f"kept {run.run_id}: another study uses it")
    for study in removal.named_by:
        echo(f"{study.study_id} is kept but loses a run")
