"""`loaderbench report`: everything that is stored, as one page or in another form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import PriceOptions
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, echo, progress, say, write_out
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    from loaderbench.reporting.report import Report

FORMATS = ("html", "md", "csv", "png", "svg")


@with_options(without=("quiet", "json_out"))
def report(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN|STUDY]…", help="Ids of runs or studies, unique prefixes of them, latest, or tags"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File; for png and svg a folder  [default: RESULTS/report.FORMAT or RESULTS/figures]"),
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", help="html, md, csv (one row per run), png or svg (one file per figure)")
    ] = "html",
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Replace your names and texts; stderr lists the replacements")
    ] = False,
    cost: PriceOptions,
    output: OutputOptions,
) -> None:
    """Write a report of all stored runs and studies, or of those named: a page, Markdown, CSV or figures."""
    from loaderbench.cases.study import check_choice
    from loaderbench.recording.store import Store
    from loaderbench.reporting.anonymous import Anonymous
    from loaderbench.reporting.csv import csv_text
    from loaderbench.reporting.report import Content, read_report

    check_choice("--format", kind, FORMATS)
    if kind not in ("png", "svg"):
        check_json_target(out)
    store = Store(output.results)
    hidden = Anonymous() if anonymous else None
    if kind == "csv":  # a row a run: no study needs to be judged
        records = Content(store, names or (), hidden, cost.price).records
        _write(csv_text(records), f"{len(records)} runs", out, output.results / "report.csv")
    else:
        with progress("studies") as on_progress:
            content = read_report(store, on_progress, names or (), hidden, cost.price)
        if kind in ("png", "svg"):
            _write_figures(content, out or output.results / "figures", kind)
        else:
            _write(_rendered(content, kind), content.count, out, output.results / f"report.{kind}")
    for line in hidden.told() if hidden is not None else ():
        say(line)


def _write(text: str, count: str, out: Path | None, usual: Path) -> None:
    """Write to what the user named, else to the usual place."""
    data = text.encode()
    if write_out(data, out or usual, follow=out is not None):
        echo(f"{out or usual}: {count}, {len(data) / 1e6:.1f} MB")


def _rendered(content: Report, kind: str) -> str:
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
    echo(f"{target}: {len(content.figures)} figures of {content.count}")
