"""`loaderbench rm`: runs and studies leave the store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import echo
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    from loaderbench.recording.selection import Removal


@with_options(without=("json_out",))
def remove(
    *,
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="Ids of runs or studies, unique starts of them, latest, or tags"),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    output: OutputOptions,
) -> None:
    """Remove stored runs and studies. A study goes with its runs, unless another study names them too."""
    from loaderbench.recording import selection
    from loaderbench.recording.store import Store

    store = Store(output.results)
    removal = selection.plan_removal(store, names)
    if not output.quiet or not yes:
        _tell(removal)
    what = f"{_count(len(removal.runs), 'run')}, {_count(len(removal.studies), 'study', 'studies')}"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"{what}: nothing was removed: without a terminal nobody can be asked; give --yes")
        if not typer.confirm(f"Remove {what} from {output.results}?"):
            echo("nothing was removed")
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
        echo(f"kept, since another study names it: {run.run_id}")
    for study in removal.named_by:
        echo(f"{study.study_id} stays, and will lack a run")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
