"""How a sweep looks: the table of its runs, then what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import Sweep, SweepFacts
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.study import print_study
from loaderbench.reporting.terminal import print_table

if TYPE_CHECKING:
    from rich.console import Console


class ShownSweep(Shown[SweepFacts, Sweep]):
    """Shows a sweep."""

    def about(self, facts: SweepFacts) -> str:
        return f"{facts.num_cases} cases"

    def print(
        self, facts: SweepFacts, found: Sweep, console: Console, runs: Sequence[RunRecord], *, whole: bool
    ) -> None:
        print_table(runs, console, whole=whole)
        print_study(found, console)

    def sentence(self, found: Sweep) -> str:
        return f"{len(found.rows)} settings measured"
