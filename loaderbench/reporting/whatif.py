"""What a run would take if something were another one, as text."""

from __future__ import annotations

from collections.abc import Mapping

from loaderbench.cases.case import FIELDS, Change, flags
from loaderbench.cases.options import Price
from loaderbench.pipeline.fit import EXPLAINED
from loaderbench.recording.record import Cost, Estimate, Range
from loaderbench.recording.whatif import Limit, Whatif, WhatifAsked, WhatifFacts
from loaderbench.reporting import format as fmt
from loaderbench.reporting.price import amount, interval, money
from loaderbench.reporting.result import Column, Result, Row, Section, Table
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.words import NAMES

PACE_COLUMNS = (Column("", left=True), Column("a step", "s"), Column("images/s"), Column("times as fast", "×"))
GAIN_COLUMNS = (Column("cause", left=True), Column("without it, times as fast", "×"))
PACE_NOTE = "In brackets: 95 % intervals, with the model's own error."
GAIN_NOTE = "Beyond the change: how many times as fast the changed run would be without the cause."
LIMITS: Mapping[str, str] = {**NAMES, "storage": "the storage", "compute": "the step on the device"}


def change_words(asked: WhatifAsked) -> str:
    """`8 workers and 4 batches ahead of each`"""
    parts = []
    if asked.workers is not None:
        parts.append(f"{asked.workers:,} worker{'s' * (asked.workers != 1)}")
    if asked.prefetch is not None:
        parts.append(f"{asked.prefetch:,} batch{'es' * (asked.prefetch != 1)} ahead of each worker")
    if asked.decoder is not None:
        parts.append(f"the decoder {asked.decoder}")
    if asked.device is not None:
        parts.append(f"a step of {asked.device}" if asked.device[:1].isdigit() else f"the device {asked.device}")
    if asked.storage is not None:
        parts.append(_storage_words(asked.storage))
    if asked.ranks is not None:
        parts.append(f"{asked.ranks:,} ranks in step")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _storage_words(text: str) -> str:
    if text.endswith("/s"):
        return f"a storage of {text}"
    return f"a storage {text} as fast" if text[-1:] in "x×" else f"the storage of {text}"


def headline(found: Whatif) -> str:
    """Return `With 8 workers this run would take 41.0 ms a step: 1,560 images/s, 1.90 times as fast (1.70 – 2.10); the
    storage would then limit it.`"""
    step, rate = fmt.duration(found.then.step_s.value), fmt.number(found.then.samples_per_s.value)
    first = f"With {change_words(found.asked)} this run would take {step} a step: {rate} images/s"
    if found.ranks is not None:
        waits = fmt.percent(found.ranks.waits_fraction.value)
        return (
            f"{first} of all ranks together, {_times(found.gain, 'as many as one')}; {waits} of a step is waiting for "
            "the slowest rank."
        )
    return f"{first}, {_times(found.gain, 'as fast')}; {limit_words(found.limit)}."


def _times(gain: Estimate, what: str) -> str:
    spread = "" if gain.low is None or gain.high is None else f" ({fmt.number(gain.low)} – {fmt.number(gain.high)})"
    return f"{fmt.number(gain.value)}× {what}{spread}"


def limit_words(limit: Limit) -> str:
    """Return `the storage would then limit it`."""
    if limit.bottleneck == "undetermined":
        return "what would then limit it is not clear"
    if limit.bottleneck == "mixed":
        return f"{' and '.join(LIMITS[one] for one in limit.joint)} would then limit it together"
    return f"{LIMITS[limit.bottleneck]} would then limit it"


def answer_lines(found: Whatif) -> list[str]:
    """The answer in sentences, the first of which says it all."""
    lines = [headline(found)]
    if found.ranks is not None:
        alone = fmt.duration(found.ranks.alone_s.value)
        lines.append(f"A rank that waits for no other would take {alone} a step; {limit_words(found.limit)}.")
    if found.price is not None:
        lines.append(saves_words(found.price, found.saves))
    if abs(found.residual) > EXPLAINED:
        lines.append(
            f"The model does not explain this run: it is off by {fmt.percent(abs(found.residual))} on the measured "
            "run. Take these figures as rough."
        )
    return lines


def saves_words(price: Price, saves: Cost | None) -> str:
    """What it saves of the machine's price, or costs beyond it."""
    hour = money(f"{price.per_hour:,.2f}", price)
    if saves is None:
        return f"At {hour} an hour for each rank, what all of them cost together is not compared with this run."
    is_less = saves.hour.value < 0
    each, month = (_magnitude(one) if is_less else one for one in (saves.hour, saves.month))
    verb, more = ("cost", " more") if is_less else ("save", "")
    told = f"{money(amount(each.value), price)}{interval(each)} an hour{more}"
    return f"At {hour} an hour, the same work would {verb} {told}, {money(amount(month.value), price)} a month."


def _magnitude(loss: Range) -> Range:
    low, high = (None if end is None else -end for end in (loss.high, loss.low))
    return Range(-loss.value, low, high)


def rests_on(found: Whatif) -> list[str]:
    """How well the model knows the run, and what was assumed."""
    of = " (on rounds that it was not fitted to)" if found.held_out else ""
    explains = f"the model explains this run to {fmt.percent(abs(found.residual), decimals=1)}{of}"
    return [*([explains] if abs(found.residual) <= EXPLAINED else []), *found.assumed]


def check_lines(found: Whatif, facts: WhatifFacts) -> list[str]:
    """How to measure it."""
    if found.wanted is None:
        return []
    was, wanted = facts.case, found.wanted
    differ: Change = {
        name: getattr(getattr(wanted, part), name)
        for name, part in FIELDS.items()
        if getattr(getattr(wanted, part), name) != getattr(getattr(was, part), name)
    }
    if not differ:
        return []
    return [
        f"run the same with `{flags(differ)}`; `loaderbench ledger` then compares this prediction with the measurement"
    ]


def pace_rows(found: Whatif) -> list[Row]:
    """The run as it was, and as it would be."""
    return [
        ("measured", found.now.step_s, found.now.samples_per_s, None),
        ("predicted", found.then.step_s, found.then.samples_per_s, found.gain),
    ]


def gain_rows(limit: Limit) -> list[Row]:
    """What removing each cause would give then, the best first."""
    ranked = sorted(limit.gains.items(), key=lambda one: -one[1].value)
    rows: list[Row] = [(NAMES[cause], gain) for cause, gain in ranked]
    if limit.joint_gain is not None:
        rows.append((" and ".join(NAMES[one] for one in limit.joint), limit.joint_gain))
    return rows


class ShownWhatif(Shown[WhatifFacts, Whatif]):
    """Shows a what-if."""

    def about(self, facts: WhatifFacts) -> str:
        return f"{fmt.short_name(facts.source_id)} with {change_words(facts.asked)}"

    def result(self, facts: WhatifFacts, found: Whatif) -> Result:
        sections: list[Section] = [
            ("What it rests on", rests_on(found)),
            ("To check it", check_lines(found, facts)),
            ("Missing figures", [f"{name}: {why}" for name, why in found.missing.items()]),
        ]
        tables = [Table("The measured run, and the predicted one", PACE_COLUMNS, pace_rows(found), PACE_NOTE)]
        if found.limit.gains:
            tables.append(Table("What would limit it then", GAIN_COLUMNS, gain_rows(found.limit), GAIN_NOTE))
        return Result(
            title=f"What if: {change_words(found.asked)}",
            settings=[found.source_id, facts.case.title],
            answer=answer_lines(found),
            tables=tables,
            sections=sections,
        )
