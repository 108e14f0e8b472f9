"""Which setting is the fastest, from the rungs of a search and from its finals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loaderbench.analysis.comparison import rate_of_runs, rates, ratio_of
from loaderbench.analysis.pixels import pixel_difference
from loaderbench.cases.case import SCALED
from loaderbench.findings.table import words
from loaderbench.recording.record import Estimate, RunRecord
from loaderbench.recording.studies import Final, Finalist, TrialRates, TuneFacts, Tuning

Records = Mapping[str, RunRecord]
"""Run id → record."""


def tuned(facts: TuneFacts, records: Records) -> Tuning:
    """The winner of the finals, and its gain over the default and the second."""
    ranked = sorted(
        ((final, rate) for final in facts.finals if (rate := rate_of_runs(rates(_runs(final, records)))) is not None),
        key=lambda known: -known[1].value,
    )
    winner, rate = ranked[0] if ranked else (None, None)
    default = next((final for final in facts.finals if final.is_default), None)
    second = ranked[1][0] if len(ranked) > 1 else None
    scaled = winner is not None and winner.case.feed.decode_scale == SCALED
    scales = facts.scales.get(winner.case.feed.decoder or "") if winner is not None and scaled else None
    pixels = None if scales is None else pixel_difference(scales)
    return Tuning(
        winner=None if winner is None else winner.case,
        rate=rate,
        over_default=None if winner is None or default is winner else _over(default, winner, records),
        over_second=None if winner is None else _over(second, winner, records),
        trials=tuple(
            TrialRates(
                trial.case,
                tuple(one.throughput.value for one in _known(trial.runs, records) if one.throughput is not None),
                trial.failure,
            )
            for trial in facts.trials
        ),
        finalists=tuple(
            Finalist(
                final.case,
                rate_of_runs(rates(_runs(final, records))),
                final.runs,
                final.is_default,
                _failure(_runs(final, records)),
            )
            for final in facts.finals
        ),
        pixels=pixels,
        no_pixels=facts.no_scales or words("no_samples_compared", {}) if scaled and pixels is None else None,
    )


def _over(other: Final | None, winner: Final, records: Records) -> Estimate | None:
    """The winner's rate ÷ the other's, round by round."""
    if other is None:
        return None
    before, after = _runs(other, records), _runs(winner, records)
    num_rounds = min(len(before), len(after))  # an interrupted last round lacks some
    return ratio_of(rates(before[:num_rounds]), rates(after[:num_rounds]))


def _runs(final: Final, records: Records) -> list[RunRecord | None]:
    return [records.get(run) for run in final.runs]


def _failure(runs: Sequence[RunRecord | None]) -> str | None:
    """Why the first run that failed did."""
    return next((run.failure.message for run in runs if run is not None and run.failure is not None), None)


def _known(runs: Sequence[str], records: Records) -> list[RunRecord]:
    return [records[run] for run in runs if run in records]
