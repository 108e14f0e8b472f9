"""How the search for the fastest settings looks, and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loaderbench import plain
from loaderbench.plain import Json, JsonObject
from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import TuneFacts, Tuning
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.snippet import snippet
from loaderbench.reporting.study import print_tuning
from loaderbench.reporting.words import flags

if TYPE_CHECKING:
    from rich.console import Console


class ShownTuning(Shown[TuneFacts, Tuning]):
    """Shows a tuning study."""

    id_leads = True

    def about(self, facts: TuneFacts) -> str:
        return facts.default.subject.dataset_name

    def print(
        self, facts: TuneFacts, found: Tuning, console: Console, runs: Sequence[RunRecord], *, whole: bool
    ) -> None:
        print_tuning(found, facts, "" if found.winner is None else snippet(found.winner), console)

    def sentence(self, found: Tuning) -> str:
        return "nothing was measured" if found.winner is None else flags(found.winner.feed.setting)

    def as_json(self, facts: TuneFacts, found: Tuning) -> JsonObject:
        return tuning_json(facts, found)


def tuning_json(facts: TuneFacts, tuning: Tuning) -> JsonObject:
    """What `tune --json` gives: settings by their names, without the cases."""

    def setting_of(found: Json) -> JsonObject:
        assert isinstance(found, dict)
        return found

    trials: list[Json] = [
        {**setting_of(plain.to_json(one.case.feed.setting)), "rates": list(one.rates), "failure": one.failure}
        for one in tuning.trials
    ]
    finalists: list[Json] = [
        {
            **setting_of(plain.to_json(one.case.feed.setting)),
            "rate": plain.to_json(one.rate),
            "run_ids": list(one.run_ids),
            "is_default": one.is_default,
            "failure": one.failure,
        }
        for one in tuning.finalists
    ]
    winner = tuning.winner
    return {
        "winner": plain.to_json(winner),
        "flags": None if winner is None else flags(winner.feed.setting),
        "rate": plain.to_json(tuning.rate),
        "over_default": plain.to_json(tuning.over_default),
        "over_second": plain.to_json(tuning.over_second),
        "pixels": plain.to_json(tuning.pixels),
        "no_pixels": tuning.no_pixels,
        "num_settings": facts.num_settings,
        "trials": trials,
        "finalists": finalists,
        "screened": [
            {**setting_of(plain.to_json(one.case.feed.setting)), "rate": one.samples_per_s, "failure": one.failure}
            for one in facts.screens
        ],
        "not_tried": [setting_of(plain.to_json(one)) for one in facts.untried],
        "num_rungs": facts.num_rungs,
        "budget_s": facts.budget_s,
        "spent_s": facts.spent_s,
        "snippet": None if winner is None else snippet(winner),
    }
