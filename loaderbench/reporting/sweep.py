"""How a sweep looks: its runs, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loaderbench import plain
from loaderbench.findings.row import VERDICT
from loaderbench.plain import JsonObject
from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import Sweep, SweepFacts
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import codes_line
from loaderbench.reporting.result import Result
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.study import sweep_result


class ShownSweep(Shown[SweepFacts, Sweep]):
    """Shows a sweep. In a report its runs stand with all others of their settings."""

    is_paged = False
    is_priced = True

    def about(self, facts: SweepFacts) -> str:
        return f"{facts.num_cases} cases"

    def with_runs(self, facts: SweepFacts, found: Sweep, runs: Sequence[RunRecord]) -> Result:
        title = f"{facts.num_cases} cases"
        if not runs:
            return Result(title, [], ["Its runs are not in this store any more."])
        result = sweep_result(runs, found)
        more = [("Not measured", fmt.failure_lines(runs, fmt.RowLabels(runs))), ("Caveats", _caveats(runs))]
        return replace(result, title=title, sections=[*result.sections, *more])

    def sentence(self, facts: SweepFacts, found: Sweep) -> str:
        return f"{len(found.rows)} settings measured"

    def as_json(self, facts: SweepFacts, found: Sweep) -> JsonObject:
        value = plain.to_json(found)
        assert isinstance(value, dict)
        return value


def _caveats(records: Sequence[RunRecord]) -> list[str]:
    """Those that change a verdict, each once; of the others a line of codes."""
    grouped = fmt.grouped_caveats(records)
    worded = [caveat for caveat in grouped if caveat.severity == VERDICT]
    lines = [f"{one.code}: {one.text} ({one.num_runs} of {len(records)} runs)" for one in worded]
    return [*lines, *codes_line([one.code for one in grouped if one not in worded])]
