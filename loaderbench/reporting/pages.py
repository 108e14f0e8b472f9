"""Studies that need no runs to be judged (of a model alone, forecasts, capacities): kind of findings → its page."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from loaderbench.recording.capacity import Capacity
from loaderbench.recording.forecast import Forecast
from loaderbench.recording.model_io import ModelIo
from loaderbench.recording.model_layers import LayersResult
from loaderbench.recording.model_memory import ModelFit, ModelMemory
from loaderbench.recording.model_size import Sizing
from loaderbench.recording.model_split import ModelSplit
from loaderbench.recording.offload_study import ModelOffload
from loaderbench.recording.ranks import Ranks
from loaderbench.recording.studies import KINDS, Findings, PagedFindings
from loaderbench.reporting import sizing as of_sizing
from loaderbench.reporting import words
from loaderbench.reporting.capacity import capacity_page
from loaderbench.reporting.forecast import forecast_page
from loaderbench.reporting.model_io import io_page
from loaderbench.reporting.model_layers import settings, summary
from loaderbench.reporting.model_layers_figures import CALL_COLUMNS, NUM_NAMES, call_cells, layers_figures, sentence
from loaderbench.reporting.model_memory import fit_page, memory_page
from loaderbench.reporting.model_memory_figures import memory_figures
from loaderbench.reporting.model_split import split_page
from loaderbench.reporting.offload import offload_page
from loaderbench.reporting.ranks import ranks_page
from loaderbench.reporting.sizing_figure import sizing_figure
from loaderbench.reporting.tables import Page, Table

PAGED = frozenset(kind for kind, types in KINDS.items() if types.findings in get_args(PagedFindings))
"""Kinds of study that have a page."""


def page_of(findings: Findings, name: str, *, drawn: bool) -> Page:
    """The page of a study of a kind in PAGED. `name`: prefix of its figures' names; `drawn`: whether it has any."""
    match findings:
        case LayersResult():
            return _layers_page(findings, name, drawn=drawn)
        case ModelMemory():
            return replace(memory_page(findings), figures=memory_figures(findings, name) if drawn else [])
        case ModelFit():
            return fit_page(findings)
        case ModelOffload():
            return offload_page(findings, name, drawn=drawn)
        case ModelSplit():
            return split_page(findings, name, drawn=drawn)
        case ModelIo():
            return io_page(findings, name, drawn=drawn)
        case Forecast():
            return forecast_page(findings, name, drawn=drawn)
        case Capacity():
            return capacity_page(findings, name, drawn=drawn)
        case Ranks():
            return ranks_page(findings, name, drawn=drawn)
        case Sizing():
            return _size_page(findings, name, drawn=drawn)
        case _:
            raise AssertionError(f"no page of {type(findings).__name__}")


def _layers_page(found: LayersResult, name: str, *, drawn: bool) -> Page:
    table = Table("Calls", tuple((title, "") for title in CALL_COLUMNS), call_cells(found), NUM_NAMES)
    lines = [
        ("Averages, and whether the rows can be trusted", [": ".join(row) for row in summary(found)]),
        ("Not measured", [": ".join(row) for row in found.missing.items()]),
        ("Caveats", [words.sentence(caveat) for caveat in found.caveats]),
    ]
    return Page(
        title=f"Layers of {found.model} on {found.device_name}",
        sentence=sentence(found),
        settings=settings(found),
        tables=[table] if table.rows else [],
        findings=[(heading, texts) for heading, texts in lines if texts],
        figures=layers_figures(found, name) if drawn else [],
    )


def _size_page(sizing: Sizing, name: str, *, drawn: bool) -> Page:
    columns, rows = of_sizing.batch_table(sizing)
    figure = sizing_figure(sizing, name) if drawn else None
    table = Table("Batches", tuple((title, "") for title in columns), rows, 1, " ".join(of_sizing.legend(sizing)))
    found = [
        ("Answer", of_sizing.answer_lines(sizing)),
        ("What loader and storage must deliver", of_sizing.demand_lines(sizing)),
        ("Not measured", of_sizing.missing_lines(sizing)),
    ]
    return Page(
        title=f"{sizing.model}, {sizing.mode}: devices needed",
        sentence=of_sizing.headline(sizing),
        settings=of_sizing.settings(sizing),
        tables=[table] if rows else [],
        findings=[(heading, lines) for heading, lines in found if lines],
        figures=[] if figure is None else [figure],
    )
