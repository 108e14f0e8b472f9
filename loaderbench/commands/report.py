"""`loaderbench report`: everything that is stored, as one page or in another form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import echo, progress, write_text
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    from loaderbench.reporting.report import Report

FORMATS = ("html", "md", "csv", "png", "svg")


@with_options(without=("quiet", "json_out"))
def report(
    *,
    out: Annotated[
        Path | None, typer.Option(help="File, or folder for png and svg  [default: RESULTS/report.FORMAT or /figures]")
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", help="html, md, csv (a row a run), png or svg (a file a figure)")
    ] = "html",
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Leave out paths and names of the machine: folders, hosts, users, disks")
    ] = False,
    output: OutputOptions,
) -> None:
    """Write all stored runs and comparisons as one page, or in another form."""
    from loaderbench.cases.study import check_choice
    from loaderbench.recording.files import write_atomic
    from loaderbench.recording.store import Store
    from loaderbench.reporting.anonymous import Anonymous, names_of_this_machine
    from loaderbench.reporting.report import read_report

    check_choice("--format", kind, FORMATS)
    with progress("studies") as on_progress:
        content = read_report(
            Store(output.results), on_progress, Anonymous(names_of_this_machine()) if anonymous else None
        )
    if kind in ("png", "svg"):
        _write_figures(content, out or output.results / "figures", kind)
        return
    text = _rendered(content, kind)
    if out == Path("-"):
        write_text(text)
        return
    target = out or output.results / f"report.{kind}"
    try:
        write_atomic(target, text.encode())
    except OSError as error:
        reason = f"cannot write the report {target}: {error.strerror}"
        raise ConfigError(f"{reason}; name another file with --out") from error
    echo(f"{target}: {len(content.records)} runs, {len(text.encode()) / 1e6:.1f} MB")


def _rendered(content: Report, kind: str) -> str:
    if kind == "csv":
        from loaderbench.reporting.csv import csv_text

        return csv_text(content.records)
    if kind == "html":
        from loaderbench.reporting.html import render_html

        return render_html(content)
    from loaderbench.reporting.markdown import render_markdown

    return render_markdown(content)


def _write_figures(content: Report, target: Path, kind: str) -> None:
    from loaderbench.reporting import figures

    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the figures to {target}: {error.strerror}; name another --out") from error
    for figure in content.figures:
        figures.save(figure, target / f"{figure.name}.{kind}")
    echo(f"{target}: {len(content.figures)} figures of {len(content.records)} runs")
