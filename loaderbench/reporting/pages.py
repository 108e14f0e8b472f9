"""Studies without runs of their own, as pages of a report: kind of findings → page."""

from __future__ import annotations

from loaderbench.recording.model_memory import ModelFit, ModelMemory
from loaderbench.recording.studies import Findings
from loaderbench.reporting.model_memory import fit_page, memory_page
from loaderbench.reporting.tables import Page


def page_of(findings: Findings | None) -> Page | None:
    """The study's page; None for kinds that have none."""
    match findings:
        case ModelMemory():
            return memory_page(findings)
        case ModelFit():
            return fit_page(findings)
        case _:
            return None
