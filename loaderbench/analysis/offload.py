"""`model offload`, judged from its stored facts: what each setting costs and needs, and which one is the fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.model_memory import KILLED, NO_MEMORY, of_model
from loaderbench.analysis.sizing import blocks_of_steps
from loaderbench.analysis.statistics import draws_of_mean, interval
from loaderbench.findings.table import words
from loaderbench.printable import memory_sizes
from loaderbench.recording.facts import Failure
from loaderbench.recording.offload_study import (
    ModelOffload,
    OffloadFacts,
    OffloadOutcome,
    OffloadRow,
    ResultCheck,
    SettingFacts,
)
from loaderbench.recording.record import Estimate

HOST_MEMORY = "HostMemory"
"""Kind of the failure of a setting for which the host has too little memory."""
NO_MEMORY_KINDS = ("OutOfMemory", "DoesNotFit")
REPLAYED = "a replay of the model's trace over an emulated card, assumed"
MATTERS = 1.05
"""Seconds of one setting ÷ those of another, from which on it matters which is taken."""
UNTRIED = "it was interrupted before"
NOISE = 4
"""Results may differ by this many times what two steps without offloading differ by, as each figure is of one pair."""


def offload_of(facts: OffloadFacts) -> ModelOffload:
    """The table and the answer. A pure function of the facts."""
    step = facts.step
    one = None if facts.batch_one is None else _row(facts, facts.batch_one)
    without = None if facts.without is None else _row(facts, facts.without)
    rows = tuple(sorted((_row(facts, given) for given in facts.settings), key=_place))
    timed = [row for row in rows if row.outcome == "fits" and row.s_per_image is not None]
    best = min(timed, key=_seconds, default=None) if facts.is_study else None
    everything = next((row for row in rows if (row.above_bytes, row.after_fraction) == (0, 0.0)), None)
    return ModelOffload(
        *of_model(step, facts.device),
        inputs=step.inputs,
        batch_size=step.batch_size,
        is_study=facts.is_study,
        on_host=facts.on_host,
        memory_bytes=facts.memory_bytes,
        memory_source=facts.memory_source,
        planned_bytes=facts.planned_bytes,
        host_free_bytes=facts.host_free_bytes,
        not_measured=facts.not_measured,
        assumptions=facts.assumptions,
        batch_one_s_per_image=None if one is None or one.s_per_image is None else one.s_per_image.value,
        batch_one=one,
        without=without,
        everything=everything,
        thresholds=rows,
        best_above_bytes=None if best is None else best.above_bytes,
        best_after_fraction=None if best is None else best.after_fraction,
        best=best,
        as_fast=() if best is None else tuple(row for row in timed if row is not best and _may_be_faster(row, best)),
        best_to_everything=_gain(facts, best, everything),
        num_settings=facts.num_settings,
        num_searched=facts.num_searched,
        num_rounds=facts.num_rounds,
        unhooked=facts.unhooked,
        interrupted=facts.interrupted,
        not_compared=facts.not_compared,
    )


def _may_be_faster(row: OffloadRow, best: OffloadRow) -> bool:
    """Whether by the intervals it may be faster than the best, by so much that it matters. A replay's times have
    none."""
    one, other = row.s_per_image, best.s_per_image
    if one is None or other is None or one.low is None or other.high is None:
        return False
    return one.low <= other.high and other.high > MATTERS * max(one.low, 0.0)


def _place(row: OffloadRow) -> tuple[float, float]:
    """By threshold, those without one last; then by when it sets in."""
    return math.inf if row.above_bytes is None else row.above_bytes, row.after_fraction or 0.0


def _seconds(row: OffloadRow) -> float:
    assert row.s_per_image is not None
    return row.s_per_image.value


# -- one setting -----------------------------------------------------------------------------------------


def outcome_of(facts: OffloadFacts, given: SettingFacts) -> tuple[OffloadOutcome, str | None]:
    """(how it ended, why). What says nothing about memory is `failed`."""
    failure, peak = given.failure, _peak(given)
    if failure is not None:
        return _outcome_of_failure(failure), failure.message
    if not given.turns and given.replay is None:
        return "not_tried", UNTRIED
    if given.check is not None and is_wrong(given.check):
        return "failed", _wrong(facts, given.check)
    if peak is not None and peak > facts.memory_bytes:
        seen, limit = memory_sizes(peak, facts.memory_bytes)
        return "out_of_memory", f"its peak of {seen} exceeds the memory of {limit}"
    return "fits", None


def is_wrong(check: ResultCheck) -> bool:
    """Whether offloading changes what a step gives by more than chance does."""
    return not check.difference <= NOISE * (check.plain_difference or 0.0)


def _wrong(facts: OffloadFacts, check: ResultCheck) -> str:
    what = "gradients" if facts.step.mode == "train" else "outputs"
    far = "" if math.isnan(check.difference) else f" by up to {check.difference:.2g} of their largest value"
    plain = check.plain_difference or 0.0
    alike = "are equal" if plain == 0 else f"differ by {plain:.2g}"
    return (
        f"its {what} differ from those without offloading{far} (batch {check.batch_size}; two steps "
        f"without it {alike}). Look for a saved tensor that the model then changes without PyTorch "
        "noticing, e.g. through .data"
    )


def _outcome_of_failure(failure: Failure) -> OffloadOutcome:
    if failure.kind == HOST_MEMORY:
        return "no_host_memory"
    for_memory = any(text in failure.message for text in (*NO_MEMORY, *KILLED))
    return "out_of_memory" if failure.kind in NO_MEMORY_KINDS or for_memory else "failed"


def _row(facts: OffloadFacts, given: SettingFacts) -> OffloadRow:
    outcome, why = outcome_of(facts, given)
    ledger, replay, turn = given.ledger, given.replay, given.turns[0] if given.turns else None
    wrong = given.check is not None and is_wrong(given.check)
    step = None if wrong else _step(given)
    planned_bytes = (None, None, None) if ledger is None else (ledger.host_bytes, ledger.out_bytes, ledger.in_bytes)
    host, out, back = planned_bytes if turn is None else (turn.host_bytes, turn.out_bytes, turn.in_bytes)
    hidden, exposed = _copies(given)
    missing = {} if hidden is not None or exposed is None else {"hidden_s": words("no_copy_times", {})}
    return OffloadRow(
        batch_size=given.batch_size,
        above_bytes=None if given.setting is None else given.setting.above_bytes,
        after_fraction=None if given.setting is None else given.setting.after_fraction,
        outcome=outcome,
        label="measured" if replay is None else "assumed",
        step_s=step,
        s_per_image=None if step is None else _scaled(step, 1 / given.batch_size),
        to_batch_one=None if facts.batch_one is None or wrong else _ratio(given, facts.batch_one),
        peak_live_bytes=_peak(given),
        predicted_peak_bytes=None if ledger is None else ledger.peak_live_bytes,
        host_bytes=host,
        out_bytes=out,
        in_bytes=back,
        moved_bytes_per_step=None if out is None or back is None else out + back,
        num_copies=None if turn is None else turn.num_copies,
        hidden_s=hidden,
        exposed_s=exposed,
        num_steps=sum(len(one.step_s) for one in given.turns),
        why=why,
        missing=missing,
        check=given.check,
    )


def _peak(given: SettingFacts) -> int | None:
    """The largest that was seen: by the device's allocator, in a pass of its own, or in the replay."""
    seen = [given.peak_live_bytes, None if given.replay is None else given.replay.peak_live_bytes]
    known = [peak for peak in (*seen, *(turn.peak_live_bytes for turn in given.turns)) if peak is not None]
    return max(known, default=None)


def _step(given: SettingFacts) -> Estimate | None:
    """Seconds of a step, with the interval over blocks of steps and over rounds."""
    if given.replay is not None:
        return Estimate(given.replay.step_s, None, None, "s", 0, REPLAYED)
    draws = _draws(given)
    if draws is None:
        return None
    mean, drawn, num_blocks = draws
    if num_blocks < 2:
        return Estimate(mean, None, None, "s", 1, "one block of steps, which gives no interval")
    return interval(mean, drawn, "s", num_blocks)


def _draws(given: SettingFacts) -> tuple[float, NDArray[np.float64], int] | None:
    """(mean, draws of it, blocks) of the seconds of a step."""
    blocks = blocks_of_steps([turn.step_s for turn in given.turns])
    if blocks is None:
        return None
    return float(blocks.means()[0]), draws_of_mean(blocks, _stream(given))[:, 0], len(blocks)


def _stream(given: SettingFacts) -> int:
    """A number of its own for the draws of each setting."""
    if given.setting is None:
        return given.batch_size
    return 1_000_000 + (given.setting.above_bytes or 0) % 1_000_000_007 + round(1e6 * given.setting.after_fraction)


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    low, high = (None if end is None else end * factor for end in (estimate.low, estimate.high))
    return Estimate(estimate.value * factor, low, high, estimate.unit, estimate.n, estimate.method)


def _ratio(given: SettingFacts, other: SettingFacts) -> Estimate | None:
    """Seconds per image of the one ÷ those of the other."""
    if given.replay is not None and other.replay is not None:
        ratio = given.replay.step_s / given.batch_size / (other.replay.step_s / other.batch_size)
        return Estimate(ratio, None, None, "1", 0, REPLAYED)
    one, two = _draws(given), _draws(other)
    if one is None or two is None:
        return None
    per_image = other.batch_size / given.batch_size
    value = one[0] / two[0] * per_image
    is_itself = (given.batch_size, given.setting) == (other.batch_size, other.setting)
    if min(one[2], two[2]) < 2 or is_itself:
        return Estimate(value, None, None, "1", 1, "one block of steps, which gives no interval")
    return interval(value, one[1] / two[1] * per_image, "1", min(one[2], two[2]))


def _gain(facts: OffloadFacts, best: OffloadRow | None, everything: OffloadRow | None) -> Estimate | None:
    """Images/s of the best ÷ those of everything offloaded."""
    if best is None or everything is None or best is everything or everything.s_per_image is None:
        return None
    given = [_facts_of(facts.settings, row) for row in (everything, best)]
    return _ratio(given[0], given[1])


def _facts_of(settings: Sequence[SettingFacts], row: OffloadRow) -> SettingFacts:
    asked = (row.above_bytes, row.after_fraction)
    return next(
        one
        for one in settings
        if one.setting is not None and (one.setting.above_bytes, one.setting.after_fraction) == asked
    )


def _copies(given: SettingFacts) -> tuple[float | None, float | None]:
    """(seconds of copies behind the compute, seconds that it waited for them) in a step."""
    if given.replay is not None:
        exposed = given.replay.exposed_s
        return max(given.replay.copy_s - exposed, 0.0), exposed
    waited = [turn.exposed_s for turn in given.turns if turn.exposed_s is not None]
    copied = [turn.copy_s for turn in given.turns if turn.copy_s is not None]
    exposed_s = float(np.concatenate(waited).mean()) if waited else None
    if exposed_s is None or len(copied) < len(waited):
        return None, exposed_s
    return max(float(np.concatenate(copied).mean()) - exposed_s, 0.0), exposed_s
