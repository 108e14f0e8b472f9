"""A report as one HTML file that needs nothing else: no font, no network. Its script only hides and shows."""

from __future__ import annotations

import base64
from functools import cache
from typing import TYPE_CHECKING

from loaderbench import __version__
from loaderbench.reporting import format as fmt
from loaderbench.reporting.csv import csv_rows
from loaderbench.reporting.figures import COLOURS, Figure, svg
from loaderbench.reporting.price import TITLE, price_lines
from loaderbench.reporting.report import Report

if TYPE_CHECKING:
    from jinja2 import Template

MOST_DETAILS = 200
"""The page has evidence, advice and figures of this many newest runs; `loaderbench show` prints the others."""


@cache
def _template() -> Template:
    """The page, compiled, which takes a tenth of a second."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("loaderbench.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def render_html(report: Report) -> str:
    """The report's HTML text."""
    from markupsafe import Markup

    return _template().render(
        report=report,
        detailed=report.records[:MOST_DETAILS],
        drawings={figure.name: Markup(svg(figure)) for figure in report.figures},
        narrow={
            figure.name: Markup(svg(figure, narrow=True))
            for figure in report.figures
            if figure.narrow_height_in is not None
        },
        csv_url=csv_url,
        cell=cell,
        price_title=TITLE,
        price_lines=price_lines,
        colours=COLOURS,
        version=__version__,
        fmt=fmt,
    )


def csv_url(figure: Figure) -> str:
    """The figure's rows as a file to download: a data URL of CSV."""
    text = csv_rows(figure.columns, figure.rows)
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(text.encode()).decode()


def cell(value: object) -> str:
    """A figure's value in its table."""
    if value is None:
        return fmt.MISSING
    return f"{value:.6g}" if isinstance(value, float) else str(value)
