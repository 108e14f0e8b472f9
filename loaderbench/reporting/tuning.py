"""How the search for the fastest settings looks, and its JSON."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from loaderbench import plain
from loaderbench.cases.case import Case, Change, FieldValue
from loaderbench.cases.study import other_options
from loaderbench.plain import JsonObject
from loaderbench.printable import counted
from loaderbench.recording.record import Estimate
from loaderbench.recording.studies import Finalist, TuneFacts, Tuning
from loaderbench.reporting import format as fmt
from loaderbench.reporting.format import MISSING, NOT_MEASURED
from loaderbench.reporting.result import Column, Result, Table, names_and_values
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.snippet import snippet
from loaderbench.reporting.words import changed_pixels, flags

FINAL_COLUMNS = (
    Column("loader", left=True), Column("decoder", left=True, rank=1), Column("output", left=True, rank=4),
    Column("workers"), Column("prefetch", rank=3), Column("scale", left=True, rank=5),
    Column("options", left=True, rank=2), Column("images/s", show=fmt.plus_minus_percent), Column("default", left=True),
)  # fmt: skip


class ShownTuning(Shown[TuneFacts, Tuning]):
    """Shows a tuning study."""

    id_leads = True

    def about(self, facts: TuneFacts) -> str:
        return facts.default.subject.dataset_name

    def result(self, facts: TuneFacts, found: Tuning) -> Result:
        rows = [
            (*map(_cell, one.case.feed.setting.values()), one.rate, "default" if one.is_default else "")
            for one in found.finalists
        ]
        return Result(
            title=f"The fastest loading for {fmt.workload(facts.default)} from “{facts.default.subject.dataset_name}”",
            settings=[facts.default.title],
            answer=[winner_line(found, facts)],
            tables=[
                names_and_values("Against the others", _figures(found, facts)),
                Table("Finals", FINAL_COLUMNS, rows),
            ],
            sections=[
                ("Not tried", [f"{_counted(facts.untried)}; a larger --budget tries more"] if facts.untried else []),
                ("Not measured", _not_measured(found, facts)),
            ],
            code=[]
            if found.winner is None
            else [
                ("The same again", _again(found.winner)),
                ("In a training script", snippet(found.winner)),
            ],
            style="red" if found.winner is None else "green",
        )

    def sentence(self, facts: TuneFacts, found: Tuning) -> str:
        return "no setting was measured" if found.winner is None else flags(found.winner.feed.setting)

    def as_json(self, facts: TuneFacts, found: Tuning) -> JsonObject:
        """Settings by their names, without the cases."""
        trials = [{**one.case.feed.setting, "rates": one.rates, "failure": one.failure} for one in found.trials]
        finalists = [
            {**one.case.feed.setting, "rate": one.rate, "run_ids": one.run_ids, "is_default": one.is_default,
             "failure": one.failure}
            for one in found.finalists
        ]  # fmt: skip
        screened = [
            {**one.case.feed.setting, "rate": one.samples_per_s, "failure": one.failure} for one in facts.screens
        ]
        winner = found.winner
        return plain.to_object(
            {
                "winner": winner,
                "flags": None if winner is None else flags(winner.feed.setting),
                "rate": found.rate,
                "over_default": found.over_default,
                "over_second": found.over_second,
                "pixels": found.pixels,
                "no_pixels": found.no_pixels,
                "num_settings": facts.num_settings,
                "trials": trials,
                "finalists": finalists,
                "screened": screened,
                "not_tried": facts.untried,
                "num_rungs": facts.num_rungs,
                "budget_s": facts.budget_s,
                "spent_s": facts.spent_s,
                "snippet": None if winner is None else snippet(winner),
            }
        )


def _figures(tuning: Tuning, facts: TuneFacts) -> list[tuple[str, str]]:
    usual = next((finalist for finalist in tuning.finalists if finalist.is_default), None)
    without = NOT_MEASURED
    if usual is not None and usual.failure is not None:
        without = f"the default failed: {usual.failure}"
    elif usual is not None and usual.case == tuning.winner:
        without = "it is the default"
    alone = f", {len(facts.screens)} by the loader alone" if facts.screens else ""
    rungs = counted(facts.num_rungs, "rung")
    return [
        ("images/s", fmt.plus_minus(tuning.rate)),
        ("over default", _told_apart(tuning.over_default, without)),
        ("over second", _told_apart(tuning.over_second, "there was no second")),
        ("tried", f"{len(tuning.trials)} of {facts.num_settings} settings in {rungs}{alone}"),
        ("took", f"{fmt.duration(facts.spent_s)} of {fmt.duration(facts.budget_s)}"),
        *([("pixels", pixels_line(tuning))] if pixels_line(tuning) else []),
    ]


def _not_measured(tuning: Tuning, facts: TuneFacts) -> list[str]:
    failed = [(_brief(one.case), one.failure) for one in tuning.trials]
    failed += [(f"{_brief(one.case)}, alone", one.failure) for one in facts.screens]
    failed += [(_named(one), one.failure) for one in tuning.finalists]
    return list(dict.fromkeys(f"{name}: {failure}" for name, failure in failed if failure))


def _brief(case: Case) -> str:
    return " ".join(filter(None, (case.feed.loader, case.feed.decoder)))


def _again(winner: Case) -> str:
    asked = flags({**winner.feed.setting, **other_options(winner)})
    return f"loaderbench run {shlex.quote(winner.subject.dataset)} {asked}"


def _cell(value: FieldValue) -> str:
    if isinstance(value, Mapping):
        value = " ".join(f"{key}={one}" for key, one in value.items())
    return str(value or MISSING)


def pixels_line(tuning: Tuning) -> str:
    """What the winner's `--decode-scale auto` changes, and how to search without it; empty where it has none."""
    if tuning.pixels is None and tuning.no_pixels is None:
        return ""
    known = f"not compared: {tuning.no_pixels}" if tuning.pixels is None else changed_pixels(tuning.pixels)
    return f"--decode-scale auto {known}; --decode-scale off searches without it"


def winner_line(tuning: Tuning, facts: TuneFacts) -> str:
    """The winner, and among how many: nothing is said of settings that were not tried."""
    if tuning.winner is None:
        return "no finalist could be measured"
    num, of = len(tuning.trials), facts.num_settings
    among = f"all {of} settings" if num >= of else f"the {counted(num, 'setting')} tried, of {of}"
    over = tuning.over_second
    unsure = over is None or over.low is None or over.low <= 1
    word = "The fastest" if not unsure else "Among the fastest"
    return f"{word} of {among}: {flags(tuning.winner.feed.setting)}"


def _named(finalist: Finalist) -> str:
    return "the default" if finalist.is_default else flags(finalist.case.feed.setting)


def _counted(settings: Sequence[Change]) -> str:
    """`6 settings of dali, 1 setting of serial`, the most first."""
    names = Counter(str(one.get("loader")) for one in settings).most_common()
    return ", ".join(f"{counted(number, 'setting')} of {fmt.clean(name)}" for name, number in names)


def _told_apart(ratio: Estimate | None, otherwise: str) -> str:
    if ratio is None:
        return otherwise
    within = ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
    return fmt.speedup(ratio) + (": no significant difference" if within else "")
