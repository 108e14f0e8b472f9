"""Run a study that keeps its own facts until its end or an interrupt; show and write what a study found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import typer

from loaderbench.commands.options import OutputOptions
from loaderbench.commands.terminal import Interrupted, check_json_target, lines, write_json
from loaderbench.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from loaderbench.recording.store import Store
    from loaderbench.recording.studies import StudyRecord
    from loaderbench.studies.kept import KeptStudy

S = TypeVar("S", bound="KeptStudy")


def measure_kept(make: Callable[[Store], S], output: OutputOptions, *, whole: bool = False) -> S:
    """Run the study that `make` makes, show what is known however it ended, and end as it did. `whole`: as in
    print_study.

    Raises:
        Interrupted: it was; what was measured is kept.
        typer.Exit: it failed; what was measured says how.
    """
    study, ended = run_kept(make, output)
    if study.begun or study.keeps_empty:
        stored = study.store()
        if study.begun:
            print_study(stored, output, whole=whole)
        write_study(stored, output)
    end_kept(study, ended)
    return study


def run_kept(make: Callable[[Store], S], output: OutputOptions) -> tuple[S, BaseException | None]:
    """(the study, what ended it early, so that what was finished can be shown first). What is refused leaves no folder.

    Raises as `study.run`.
    """
    from loaderbench.recording.store import Store

    check_json_target(output.json_out)
    store = Store(output.results)
    store.check_writable()
    study = make(store)
    try:
        with lines(quiet=output.quiet) as tell:
            study.run(tell)
    except (KeyboardInterrupt, SystemExit) as stop:
        return study, stop
    except (ConfigError, UnavailableError):
        study.discard()
        raise
    return study, None


def end_kept(study: KeptStudy, ended: BaseException | None) -> None:
    """Raise what sets the exit code, unless that is 0."""
    if ended is not None:
        raise Interrupted(f"interrupted: {study.kept}", ended)
    if study.failed:
        raise typer.Exit(1)


def print_study(stored: StudyRecord, output: OutputOptions, *, whole: bool = False, on_stderr: bool = False) -> None:
    """Print what it found, unless --quiet. `whole`: every row of its tables; `on_stderr`: there, as with `--json -`."""
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.studies import print_findings

    if not output.quiet:
        console = make_console(stderr=output.on_stderr or on_stderr)
        print_findings(stored.facts, stored.findings, console, whole=whole, study_id=stored.study_id)


def write_study(stored: StudyRecord, output: OutputOptions) -> None:
    """Write `--json`, where it was asked for."""
    from loaderbench.reporting.studies import as_json

    if output.json_out is not None:
        write_json(as_json(stored.facts, stored.findings, stored.study_id), output.json_out)
