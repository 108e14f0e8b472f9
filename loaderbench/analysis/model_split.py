"""`model split`, judged from its stored facts: what was predicted, what was measured, and whether it is worth it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.sizing import order_statistics
from loaderbench.cases.case import Precision
from loaderbench.findings.table import words
from loaderbench.recording.model_split import (
    DeviceAlone,
    MemberFacts,
    ModelSplit,
    SplitFacts,
    SplitMember,
    SplitOutcome,
    SplitSearch,
)
from loaderbench.recording.record import Estimate
from loaderbench.recording.split_times import SplitTime

MEDIAN = "median, 95 % by its order statistics"
FEW = "median; fewer than 6 turns have no interval"
BEFORE = ("search", "choice", "turn", "outputs")
"""Steps of the study that may be missing."""
TOLERANCES: dict[str, float] = {"fp32": 1e-4, "tf32": 8e-3, "fp16": 8e-3, "bf16": 6e-2}
"""Largest ‖outputs − reference‖ ÷ ‖reference‖ of an image that is rounding: 16 unit roundoffs (2⁻¹¹ of tf32 and fp16,
2⁻⁸ of bf16: IEEE 754, and its 8-bit-exponent kin), since some 150 layers in a row round independently (√150 ≈ 12); in
fp32 1,700 (2⁻²⁴), since devices add up thousands of products in another order."""

MOST_LEFT_OUT = 0.25
"""Of the turns, that may be left out for a late member."""


def tolerance_of(precision: Precision) -> float:
    """For the outputs in a precision; `amp-` and `pure-` round as their type does."""
    return TOLERANCES[precision.rpartition("-")[2]]


def median_of(values: NDArray[np.float64], unit: str = "s") -> Estimate:
    """The median, with the interval that holds it with at least 95 % whatever the distribution (`order_statistics`);
    without one for fewer than 6 values."""
    value, ranks = float(np.median(values)), order_statistics(len(values), 50.0)
    if ranks is None:
        return Estimate(value, None, None, unit, len(values), FEW)
    ordered = np.sort(values)
    return Estimate(value, float(ordered[ranks[0] - 1]), float(ordered[ranks[1] - 1]), unit, len(values), MEDIAN)


def deviation_of(outputs: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float64]:
    """[images] ‖outputs − reference‖ ÷ ‖reference‖ of [images, classes] each."""
    one, other = outputs.astype(np.float64), reference.astype(np.float64)
    return np.asarray(np.linalg.norm(one - other, axis=1) / np.maximum(np.linalg.norm(other, axis=1), 1e-300))


# -- the whole -------------------------------------------------------------------------------------------


def split_of(facts: SplitFacts) -> ModelSplit:
    """The table and the answer. A pure function of the facts."""
    search = facts.searches[-1] if facts.searches else None
    greedy, exact = (None, None) if search is None else (search.greedy, search.exact)
    chosen, turns = facts.chosen, facts.turns
    measured, ratio = _finish(facts), _ratio(facts)
    middle = None if measured is None else measured.value
    check = facts.check
    return ModelSplit(
        model=facts.model,
        precision=facts.precision,
        input_size=facts.input_size,
        channels=facts.channels,
        inputs=facts.inputs,
        batch_size=facts.batch_size,
        members=tuple(_member(facts, number) for number in range(len(facts.members))),
        greedy_s=None if greedy is None else greedy.finish_s,
        greedy_sizes=None if greedy is None else greedy.sizes,
        exact_s=None if exact is None else exact.finish_s,
        exact_sizes=None if exact is None else exact.sizes,
        predicted_s=None if chosen is None else chosen.finish_s,
        measured_s=measured,
        measured_over_predicted=None if middle is None or chosen is None else middle / chosen.finish_s,
        fastest_alone=_fastest(facts),
        alone=tuple(_alone(facts, number) for number in range(len(facts.members))),
        maybe_fastest=_maybe_fastest(facts),
        ratio_to_fastest_alone=ratio,
        outcome=_outcome(facts, ratio),
        num_turns=0 if measured is None else measured.n,
        num_late=0 if turns is None else turns.num_late,
        num_left_out=facts.num_left_out,
        num_searches=len(facts.searches),
        times=facts.times,
        num_measured=facts.num_measured,
        table=facts.table,
        check=check,
        is_equal=None if check is None else check.deviation <= check.tolerance,
        moved=facts.moved,
        dropped=facts.dropped,
        stolen_profile_fraction=facts.stolen_profile_fraction,
        stolen_turns_fraction=facts.stolen_turns_fraction,
        assumptions=_assumptions(facts),
        failure=None if facts.failure is None else facts.failure.message,
        interrupted=facts.interrupted,
        missing=_missing(facts, measured, ratio),
    )


def _assumptions(facts: SplitFacts) -> tuple[str, ...]:
    """Of the emulated members that have a part, or are the fastest alone; of all before the parts are known."""
    given = [facts.chosen, *(search.alone for search in facts.searches[-1:])]
    used = {number for split in given if split is not None for number in split.members}
    members = [one for number, one in enumerate(facts.members) if number in used or not used]
    return tuple(dict.fromkeys(_assumption(one) for one in members if one.known is not None))


def _assumption(member: MemberFacts) -> str:
    assert member.known is not None
    rate = f"{member.known.link_bytes_per_s / 1e9:.4g} GB/s"
    return f"{member.device}: {member.known.label} ({member.known.source}), after a copy of the images at {rate}"


def _missing(facts: SplitFacts, measured: Estimate | None, ratio: Estimate | None) -> dict[str, str]:
    """Name of a figure → why it is unknown."""
    missing: dict[str, str] = {}
    search = facts.searches[-1] if facts.searches else None
    how = "interrupted" if facts.failure is None else "failed"
    ended = {step: words("study_ended_before", {"how": how, "step": step}) for step in BEFORE}
    is_alone = facts.chosen is not None and len(facts.chosen.members) == 1
    if search is None:
        missing["greedy_s"] = missing["exact_s"] = ended["search"]
    elif search.greedy is None:
        missing["greedy_s"] = words("greedy_has_no_start", {})
    if search is not None and search.exact is None:
        missing["exact_s"] = words("no_split_fits", {})
    if facts.chosen is None:
        missing["predicted_s"] = ended["choice"]
    if measured is None:
        missing["measured_s"] = missing["measured_over_predicted"] = ended["turn"]
    if is_alone:
        missing["ratio_to_fastest_alone"] = words("fastest_alone_wins", {})
    elif search is not None and search.alone is None:
        missing["ratio_to_fastest_alone"] = missing["fastest_alone"] = missing["outcome"] = words(
            "whole_batch_does_not_fit", {}
        )
    elif ratio is None:
        missing["ratio_to_fastest_alone"] = missing["outcome"] = ended["turn"]
    elif ratio.low is None:
        missing["outcome"] = words("few_turns", {})
    elif _is_selected(facts):
        num_taken = _pairs(facts) + facts.num_left_out
        missing["outcome"] = words("turns_left_out", {"num": facts.num_left_out, "of": num_taken})
    if search is None:
        missing["fastest_alone"] = ended["search"]
    if facts.check is None:
        missing["check"] = facts.no_check or ended["outputs"]
    return missing


# -- times -----------------------------------------------------------------------------------------------


def _pairs(facts: SplitFacts) -> int:
    """Turns of both, finished."""
    turns = facts.turns
    return 0 if turns is None else min(len(turns.split_start_ns), len(turns.alone_start_ns))


def _split_seconds(facts: SplitFacts) -> NDArray[np.float64]:
    """[num_turns] from the common start to the end of the last member."""
    turns = facts.turns
    if turns is None or not len(turns.split_start_ns):
        return np.empty(0)
    return np.asarray((turns.split_ns[:, :, 1].max(axis=1) - turns.split_start_ns) / 1e9)


def _alone_seconds(facts: SplitFacts) -> NDArray[np.float64]:
    turns = facts.turns
    if turns is None or not len(turns.alone_start_ns):
        return np.empty(0)
    return np.asarray((turns.alone_ns[:, 1] - turns.alone_start_ns) / 1e9)


def _finish(facts: SplitFacts) -> Estimate | None:
    """Of what was run."""
    if facts.chosen is None:
        return None
    seconds = _split_seconds(facts) if len(facts.chosen.members) > 1 else _alone_seconds(facts)
    return median_of(seconds) if len(seconds) else None


def _ratio(facts: SplitFacts) -> Estimate | None:
    """Median of the ratios of neighbouring turns, which the machine's state meets alike."""
    num = _pairs(facts)
    if not num:
        return None
    return median_of(_split_seconds(facts)[:num] / _alone_seconds(facts)[:num], "ratio")


def _outcome(facts: SplitFacts, ratio: Estimate | None) -> SplitOutcome | None:
    if facts.chosen is not None and len(facts.chosen.members) == 1:
        return "alone"
    if ratio is None or ratio.low is None or ratio.high is None or _is_selected(facts):
        return None
    return "faster" if ratio.high < 1 else "slower" if ratio.low > 1 else "indistinguishable"


def _is_selected(facts: SplitFacts) -> bool:
    """Whether so many turns were left out that the rest are the machine's better moments."""
    return facts.num_left_out > MOST_LEFT_OUT * (_pairs(facts) + facts.num_left_out)


# -- members ---------------------------------------------------------------------------------------------


def _member(facts: SplitFacts, number: int) -> SplitMember:
    member, chosen = facts.members[number], facts.chosen
    size = 0 if chosen is None else chosen.sizes[number]
    search = facts.searches[-1] if facts.searches else None
    is_searched = search is not None and search.to_run is not None and chosen == search.to_run
    threads = None if member.facts is None else member.facts.details.get("num_threads")
    return SplitMember(
        device=member.device,
        name=None if member.facts is None else member.facts.name,
        batch_size=size,
        predicted_s=_predicted(facts, number, size),
        measured_s=_part(facts, number),
        interpolated=is_searched and search is not None and number in search.interpolated,
        num_threads=threads if isinstance(threads, int) else None,
        emulated=member.known is not None,
    )


def _predicted(facts: SplitFacts, number: int, size: int) -> float | None:
    if not size or facts.chosen is None:
        return None
    if len(facts.chosen.members) == 1:
        return facts.chosen.finish_s
    return facts.searches[-1].parts_s[number]


def _part(facts: SplitFacts, number: int) -> Estimate | None:
    turns = facts.turns
    if turns is None or facts.chosen is None or not facts.chosen.sizes[number]:
        return None
    if len(facts.chosen.members) == 1:
        return _finish(facts)
    if not len(turns.split_start_ns):
        return None
    return median_of((turns.split_ns[:, number, 1] - turns.split_start_ns) / 1e9)


def _whole(facts: SplitFacts, device: str) -> SplitTime | None:
    """The table's time of a device with the whole batch."""
    key = device, (), facts.batch_size
    return next((one for one in facts.times if (one.device, one.beside, one.batch_size) == key), None)


def _maybe_fastest(facts: SplitFacts) -> tuple[str, ...]:
    if not facts.searches or facts.searches[-1].alone is None:
        return ()
    search, devices = facts.searches[-1], [one.device for one in facts.members]
    fastest = facts.searches[-1].alone.members[0]
    most, found = _bounds(facts, search, fastest)[1], list[str]()
    for number, device in enumerate(devices):
        if device not in (devices[fastest], *found) and _bounds(facts, search, number)[0] <= most:
            found.append(device)
    return tuple(found)


def _bounds(facts: SplitFacts, search: SplitSearch, number: int) -> tuple[float, float]:
    """Of a device's time with the whole batch; infinite where it does not fit."""
    entry = _whole(facts, facts.members[number].device)
    if entry is not None and entry.low is not None and entry.high is not None:
        return entry.low, entry.high
    seconds = search.alone_s[number]
    return (math.inf, math.inf) if seconds is None else (seconds, seconds)


def _alone(facts: SplitFacts, number: int) -> DeviceAlone:
    """A device with the whole batch, by the table."""
    device = facts.members[number].device
    entry = _whole(facts, device)
    return DeviceAlone(
        device=device,
        predicted_s=facts.searches[-1].alone_s[number] if facts.searches else None,
        s=None,
        why=None if entry is None or entry.seconds is not None else f"does not fit: {entry.message}",
    )


def _fastest(facts: SplitFacts) -> DeviceAlone | None:
    if not facts.searches or facts.searches[-1].alone is None:
        return None
    alone, seconds = facts.searches[-1].alone, _alone_seconds(facts)
    number = alone.members[0]
    return DeviceAlone(
        device=facts.members[number].device,
        predicted_s=alone.finish_s,
        s=median_of(seconds) if len(seconds) else None,
        why=None if len(seconds) else "it did not run",
    )
