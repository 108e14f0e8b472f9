"""Commands share this on the terminal: progress of long work, JSON files, plans, and how a measuring command ends."""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from loaderbench import plain
from loaderbench.errors import LoaderbenchError
from loaderbench.printable import clean, clean_lines, counted

if TYPE_CHECKING:
    from loaderbench.cases.case import Case
    from loaderbench.plain import Json
    from loaderbench.recording.record import RunRecord
    from loaderbench.reporting.live import Progress


class Interrupted(LoaderbenchError):
    """Ctrl-C or a signal, with a message for the user."""

    def __init__(self, message: str, stop: BaseException) -> None:
        super().__init__(message)
        code: Any = stop.code if isinstance(stop, SystemExit) else 130
        self.exit_code = code


def echo(line: object, *, err: bool = False) -> None:
    """One line of text on standard output, or on stderr, without anything that a terminal would obey.

    What commands print goes through here, through a console of `reporting`, or is a whole file (`write_out`).
    """
    typer.echo(clean(line), err=err)


def say(line: str) -> None:
    """A line on stderr."""
    echo(line, err=True)


def show_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected error as Python does, cleaned, because it may name files."""
    typer.echo(clean_lines("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def _print_bytes(data: bytes) -> None:
    """Print the bytes unmodified, whatever the encoding of standard output: the caller has cleaned them."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # a test's, or none
        typer.echo(data.decode(), nl=False)
        return
    sys.stdout.flush()
    binary.write(data)
    binary.flush()


def check_json_target(*targets: str | Path | None) -> None:
    """Raises ConfigError, before anything is measured, where one of the targets cannot be written."""
    from loaderbench.recording.output import check_output

    for target in targets:
        check_output(target)


def write_json(value: object, target: str) -> None:
    """The value as JSON in a file, or on standard output for `-`. Raises ConfigError where it cannot be written."""
    found: Json = plain.to_json(value)
    write_out((json.dumps(found, indent=1, allow_nan=False) + "\n").encode(), target)


def write_out(data: bytes, target: str | Path, *, follow: bool = True) -> bool:
    """Write a whole file, or print it for `-`. Returns whether it went into a file, and not to a program or a device.

    Raises:
        ConfigError: as `recording.output.write_output`, whose `follow` this is.
    """
    from loaderbench.recording.output import STANDARD_OUTPUT, write_output

    if str(target) == STANDARD_OUTPUT:
        _print_bytes(data)
        return False
    return write_output(target, data, follow=follow)


def show_plan(cases: Sequence[Case], title: Callable[[Case], str] = attrgetter("title")) -> None:
    """Print the cases to measure and their expected time."""
    from loaderbench.cases.study import expected_seconds

    for case in cases:
        echo(title(case))
    seconds = sum(expected_seconds(case) for case in cases)
    longer = "" if all(case.effort.is_limited for case in cases) else ", longer if --steps take longer"
    sooner = ", less where its cause is decided sooner" if any(case.effort.until_decided for case in cases) else ""
    echo(f"{counted(len(cases), 'case')}, at most {seconds / 60:.1f} minutes{longer}{sooner}")


def view_of(
    cases: Sequence[Case],
    *,
    quiet: bool,
    title: Callable[[Case], str] = attrgetter("title"),
    named: Case | None = None,
) -> Progress:
    """The view of cases that will be measured, once what is to be said before is said. `named`: as in Progress."""
    from loaderbench.cases.study import expected_seconds
    from loaderbench.reporting.live import Progress
    from loaderbench.running.deadline import told_before

    for line in () if quiet else told_before(cases):
        say(line)
    return Progress(len(cases), quiet=quiet, expected_s=list(map(expected_seconds, cases)), title=title, named=named)


def end(records: Sequence[RunRecord], num_cases: int, ended: BaseException | None, go_on: str = "") -> None:
    """End a command that measured cases: raises the error that sets the exit code, unless that is 0. `go_on`: how an
    interrupted one is continued."""
    if isinstance(ended, LoaderbenchError):
        raise ended
    if ended is not None:
        parts = [record.run_id for record in records if record.status == "interrupted"]
        kept = f"{len(records) - len(parts)} of {num_cases} cases finished and are kept"
        if parts:
            kept = f"the part measured so far is kept: {parts[0]}"
        if elsewhere := getattr(ended, "__notes__", []):
            kept = "; ".join(elsewhere)
        raise Interrupted(f"interrupted: {kept}{f'; {go_on}' if go_on else ''}", ended)
    kinds = {record.failure.kind for record in records if record.status == "failed" and record.failure is not None}
    if kinds == {"ConfigError"} and len(records) == 1:
        raise typer.Exit(2)
    if kinds or all(record.status == "skipped" for record in records):
        raise typer.Exit(1)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows done of total on stderr: rewritten on a terminal, else one line at the start."""
    shown = False
    live = sys.stderr.isatty()

    def on_progress(done: int, total: int) -> None:
        nonlocal shown
        if live:
            typer.echo(f"\r\033[K{clean(what)}: {done:,} of {total:,}", err=True, nl=False)
        elif not shown:
            say(f"{what}: {total:,}")
        shown = True

    yield on_progress
    if shown and live:
        typer.echo("\r\033[K", err=True, nl=False)


@contextlib.contextmanager
def lines(*, quiet: bool) -> Iterator[Callable[[str, bool], None]]:
    """Lines on stderr. One that need not stay is replaced by the next on a terminal, and left out elsewhere."""
    live = sys.stderr.isatty()

    def on_line(line: str, keep: bool) -> None:
        if quiet or not (live or keep):
            return
        line = clean(line)
        typer.echo(f"\r\033[K{line if keep else line[:118]}" if live else line, err=True, nl=keep)

    yield on_line
    if live and not quiet:
        typer.echo("\r\033[K", err=True, nl=False)
