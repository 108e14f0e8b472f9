"""What must hold between the figures of a watched script's record. A figure that contradicts another is unknown then,
with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from loaderbench.recording.caveats import Caveat
from loaderbench.recording.record import Advice, RunRecord, Verdict

ROUNDING = 0.01
WAITS_MORE = 0.05
"""By which the wait for data may be more than the time in next(): both are means over other windows."""


@dataclass(frozen=True)
class Invariant:
    """One that holds in every record, and the record without the figure that breaks it."""

    holds: Callable[[RunRecord], bool]
    without: Callable[[RunRecord], RunRecord] | None = None
    """None: no figure is at fault, and only tests check it."""


def broken(record: RunRecord) -> list[str]:
    """The names of those that do not hold."""
    return [name for name, one in INVARIANTS.items() if not one.holds(record)]


def enforced(record: RunRecord) -> RunRecord:
    """The record without figures that contradict others; a caveat says which they were."""
    for name in broken(record):
        without = INVARIANTS[name].without
        if without is None:
            continue
        record = without(record)
        record = replace(record, caveats=(*record.caveats, Caveat("figures_contradict", {"which": name})))
    return record


def best_elsewhere(verdict: Verdict) -> float | None:
    """The largest gain that anything but the script's own step is worth: a cause, or one thing to try."""
    gains = [gain for cause, gain in verdict.speedup_if_removed.items() if cause != "compute"]
    gains += [one.predicted_speedup for one in verdict.advice if one.cause != "compute"]
    return max((gain.value for gain in gains if gain is not None), default=None)


def _shares_add_up(record: RunRecord) -> bool:
    if record.shares is None or None in record.shares.values():
        return record.shares is None or sum(one.value for one in record.shares.values() if one) <= 1 + ROUNDING
    return abs(sum(one.value for one in record.shares.values() if one) - 1) <= ROUNDING


def _lines_add_up(record: RunRecord) -> bool:
    if record.verdict is None:
        return True
    by_role: dict[str, float] = {}
    for one in record.verdict.where:
        if one.part != "gc":  # the collector runs at lines of the others
            by_role[one.role] = by_role.get(one.role, 0.0) + one.fraction
    return all(part <= 1 + ROUNDING for part in by_role.values())


def _delivery_fits(record: RunRecord) -> bool:
    step_s = None if record.step_time_s is None else record.step_time_s.mean
    notes = [one.details for one in record.notes if one.code == "taking_over"]
    return step_s is None or all(float(str(one["each_s"])) <= step_s * (1 + ROUNDING) for one in notes)


def _waits_in_next(record: RunRecord) -> bool:
    verdict, seen = record.verdict, record.watched
    if verdict is None or verdict.waiting_for_data is None or seen is None or seen.applied is not None:
        return True
    spent = seen.loaders[0].seconds
    whole = spent.wait + spent.step
    waits = verdict.waiting_for_data.by_timeline
    return not whole > 0 or (waits.low or 0.0) <= spent.wait / whole + WAITS_MORE


def _starts_fit(record: RunRecord) -> bool:
    seen = record.watched
    return seen is None or sum(one.seconds.total for one in seen.loaders) <= seen.wall_s * (1 + ROUNDING)


def _methods_exist(record: RunRecord) -> bool:
    seen = record.watched
    if record.verdict is None or seen is None or seen.settings is None or not seen.settings.iterable:
        return True
    return not any(_names_a_sample(one) for one in record.verdict.advice)


def _names_a_sample(advice: Advice) -> bool:
    return str(advice.details.get("name", "")).endswith("__getitem__")


def _bound_holds(record: RunRecord) -> bool:
    """ "Removing any other cause gives at most" what the best of them gives."""
    verdict = record.verdict
    if verdict is None or verdict.bottleneck != "compute":
        return True
    best = best_elsewhere(verdict)
    gains = [one.predicted_speedup.value for one in verdict.advice if one.predicted_speedup and one.cause != "compute"]
    return best is None or all(gain <= best + ROUNDING for gain in gains)


def _no_notes(record: RunRecord) -> RunRecord:
    return replace(record, notes=tuple(one for one in record.notes if one.code != "taking_over"))


def _no_advice(record: RunRecord) -> RunRecord:
    assert record.verdict is not None
    advice = tuple(one for one in record.verdict.advice if not _names_a_sample(one))
    return replace(record, verdict=replace(record.verdict, advice=advice))


def _no_lines(record: RunRecord) -> RunRecord:
    assert record.verdict is not None
    return replace(record, verdict=replace(record.verdict, where=()))


INVARIANTS: Mapping[str, Invariant] = {
    "shares": Invariant(_shares_add_up, lambda record: replace(record, shares=None)),
    "lines": Invariant(_lines_add_up, _no_lines),
    "delivery": Invariant(_delivery_fits, _no_notes),
    "waits": Invariant(_waits_in_next),
    "starts": Invariant(_starts_fit),
    "methods": Invariant(_methods_exist, _no_advice),
    "bound": Invariant(_bound_holds),
}
"""Name of what must hold → how it is checked."""
