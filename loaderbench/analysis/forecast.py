"""A forecast from its stored facts: epochs, the whole training, and what the check found. docs/forecast.md has the
formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from loaderbench.recording.forecast import (
    After,
    Asked,
    CheckedEpoch,
    EpochForecast,
    EpochKind,
    EpochRun,
    EpochState,
    Forecast,
    ForecastFacts,
    ForecastPart,
    Memory,
    Past,
    PastFigures,
    SourceFacts,
    Starts,
    StateSteps,
    TrainingForecast,
)
from loaderbench.recording.record import Range

DRIFT = 0.10
"""By how much a machine is taken to be faster or slower later, while too few epochs were forecast and run on it: shared
machines drifted by about this much from one minute to the next (docs/forecast.md, `How good it is`)."""
LEAST_PAST = 19
"""Epochs that were forecast and run here from which on the interval is theirs: with fewer, none of their scores is as
large as COVERAGE of them asks."""
SPREAD_FLOOR = 0.01
"""Added to a run's own half width, as a fraction: a run that hardly varies in seconds still drifts in hours."""
COVERAGE = 0.95
EMPTY = 0.01
"""Fraction of an epoch's pages in memory up to which it was cold."""

Parts = dict[ForecastPart, Range]


def forecast_of(facts: ForecastFacts) -> Forecast:
    """The whole forecast. A pure function of the facts."""
    factor = calibrated(facts.past)
    training = training_of(facts.asked, facts.source, facts, factor)
    held = held_part(facts, facts.source)
    return Forecast(
        asked=facts.asked,
        source_id=facts.source.source_id,
        setting=setting_of(facts.source),
        emulated=facts.source.emulated,
        training=training,
        held=None if held is None else Range(*hits(held)),
        after_label=None if facts.after is None else facts.after.label,
        after=None if facts.after is None else _after(facts, facts.after, factor),
        left_out=facts.left_out,
        interval_by="assumed" if factor is None else "ledger",
        factor=factor,
        ledger=past_figures(facts.past),
        checked=tuple(_checked(facts, factor)),
        checked_training=_checked_training(facts, factor),
        check_failed=None if facts.check is None or facts.check.failure is None else facts.check.failure.message,
    )


def setting_of(source: SourceFacts) -> str:
    """The setting in a few words."""
    if source.case is None:
        return f"{source.model}, {source.mode}, batch {source.batch_size}, {source.device}"
    return source.case.title


# -- arithmetic of ranges ----------------------------------------------------------------------------------


def exactly(value: float) -> Range:
    return Range(value, value, value)


def _ends(one: Range) -> tuple[float, float]:
    assert one.low is not None and one.high is not None
    return one.low, one.high


def total(ranges: Iterable[Range]) -> Range:
    """Their sum. Ends are added too: what makes one part slow makes the others slow."""
    value = low = high = 0.0
    for one in ranges:
        ends = _ends(one)
        value, low, high = value + one.value, low + ends[0], high + ends[1]
    return Range(value, low, high)


def times(one: Range, factor: float) -> Range:
    low, high = _ends(one)
    return Range(one.value * factor, low * factor, high * factor)


def widened(own: Range, factor: float | None) -> Range:
    """The run's own interval with what the machine may drift. `factor`: None while the drift is assumed."""
    if own.value <= 0:
        return own
    below, above = spread(own)
    if factor is None:
        below, above = math.hypot(below, DRIFT), math.hypot(above, DRIFT)
    else:
        below, above = factor * (below + SPREAD_FLOOR), factor * (above + SPREAD_FLOOR)
    return Range(own.value, own.value * math.exp(-below), own.value * math.exp(above))


def spread(own: Range) -> tuple[float, float]:
    """How far the ends lie from the value: ln(value ÷ low), ln(high ÷ value); for narrow ones their fractions of it."""
    low, high = _ends(own)
    return max(0.0, math.log(own.value / low)), max(0.0, math.log(high / own.value))


# -- the past ----------------------------------------------------------------------------------------------


def calibrated(past: Past) -> float | None:
    """By what the run's own half widths are multiplied, so that COVERAGE of the epochs that were forecast and run here
    would have been held: the ⌈(n + 1) · COVERAGE⌉-th smallest score (split conformal prediction with normalized scores:
    Lei et al., JASA 113 (2018), section 5.2). None below LEAST_PAST."""
    scores = sorted(past.scores)
    if len(scores) < LEAST_PAST:
        return None
    return scores[math.ceil((len(scores) + 1) * COVERAGE) - 1]


def score_of(own: Range, measured: float) -> float | None:
    """|ln(measured ÷ predicted)| ÷ (own half width on that side, in logarithms, + SPREAD_FLOOR); None where one is not
    above 0."""
    if own.value <= 0 or measured <= 0:
        return None
    off = math.log(measured / own.value)
    below, above = spread(own)
    return abs(off) / ((above if off > 0 else below) + SPREAD_FLOOR)


def past_figures(past: Past) -> PastFigures:
    num = len(past.errors)
    if not num:
        return PastFigures(0, None, None)
    return PastFigures(num, float(np.median(np.abs(past.errors))), sum(past.held) / len(past.held))


# -- memory ------------------------------------------------------------------------------------------------


def held_fraction(memory: Memory, images: int, image_bytes: float | None) -> float | None:
    """Part of the images that memory can hold; None where that is not known."""
    if memory.bytes is None or image_bytes is None:
        return None
    return min(1.0, memory.bytes / (images * image_bytes))


def held_part(facts: ForecastFacts, source: SourceFacts) -> float | None:
    """Part of all images, `source`'s and the validation's, that memory can hold; None where that is not known, and
    without files."""
    wanted = 0.0
    for images, one in ((facts.asked.images, source), (facts.asked.val_images or 0, facts.validation)):
        if one is None or one.one_state:
            continue
        if one.image_bytes is None:
            return None
        wanted += images * one.image_bytes
    return held_fraction(facts.memory, 1, wanted) if wanted else None


def hits(held: float) -> tuple[float, float, float]:
    """(value, low, high): part of the reads that memory serves from the second epoch on, where it holds a part `held`
    of the set.

    At most `held`, by a cache that keeps what it has. Under LRU an image is still there if fewer different ones than
    fit were read since. Each epoch reads all in a new random order, so an image at x of one epoch and y of the next
    (both uniform) has seen 1 − x(1 − y) of the set in between; that is below `held` with probability
    held + (1 − held) · ln(1 − held).
    """
    least = 1.0 if held >= 1 else held + (1 - held) * math.log1p(-held)
    return (held + least) / 2, least, held


# -- epochs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """An epoch of one kind."""

    steps: StateSteps
    step: Range
    from_memory: Range


def epoch_of(images: int, source: SourceFacts, kind: _Kind, factor: float | None, *, first: bool) -> EpochForecast:
    """One epoch of `images`. `first`: of the process."""
    batch, step = source.batch_size, kind.step
    num_steps, rest = divmod(images, batch)
    parts: Parts = {"steps": times(step, num_steps)}
    if kind.steps.starts is not None:
        parts["epoch_starts"] = _starts(kind.steps.starts, source.first_steps_s, first=first)
    if rest:
        low, high = _ends(step)
        parts["short_batch"] = Range(step.value * rest / batch, low * rest / batch, high)
    own = total(parts.values())
    return EpochForecast(
        s=widened(own, factor),
        own=own,
        parts=parts,
        num_steps=num_steps,
        images_per_s=images / own.value,
        from_memory=kind.from_memory,
        origin=kind.steps.origin,
        run_id=kind.steps.run_id,
    )


def _starts(starts: Starts, first_steps_s: float | None, *, first: bool) -> Range:
    """A new stream: at most the wait for its first batch. Steps that take longer behind it, while the queue fills on
    the processors that the device computes on, do work that the epoch's last steps are spared. `first`: of the process;
    the first window may have started the workers too, so where it is the only one a later epoch may cost nothing. The
    device's first steps are longer: where they are not known, all that the first window took longer is theirs."""
    extra = np.asarray(starts.extra_s)
    costs = np.clip(np.minimum(extra, starts.first_batch_s), 0.0, None)
    chosen = slice(0, 1) if first or len(costs) == 1 else slice(1, None)
    value, least = float(costs[chosen].mean()), float(costs.min())
    if first:
        value = max(value, float(extra[0])) if first_steps_s is None else value + first_steps_s
    elif len(costs) == 1:
        least = 0.0
    return Range(value, min(value, least), max(value, float(extra[chosen].mean())))


def _in_memory(source: SourceFacts) -> Range | None:
    """A step whose images all come from memory."""
    if source.warm is None:
        return None
    step = source.warm.step_s
    if source.cold is None or source.warm.origin != "memory_arm":
        return step
    from_storage, (low, high) = source.cold.step_s, _ends(step)
    if from_storage.value < step.value:
        # The storage cost nothing that could be told from chance: no step from memory is slower than one from it.
        step = Range(from_storage.value, min(low, from_storage.value), high)
    return replace(step, high=max(high, _ends(from_storage)[1])) if source.opens_unknown else step


def _first(source: SourceFacts) -> _Kind | None:
    """An epoch from the storage; None where the run does not tell of one."""
    return None if source.cold is None else _Kind(source.cold, source.cold.step_s, exactly(0.0))


def _later(source: SourceFacts, held: float | None) -> _Kind | None:
    """The epochs after the first; None where that is not known."""
    warm, cold = _in_memory(source), None if source.cold is None else source.cold.step_s
    if warm is None or source.warm is None:
        return _first(source) if held == 0 else None
    if source.one_state or (held is not None and held >= 1):
        return _Kind(source.warm, warm, exactly(1.0))
    if held is None or cold is None:
        return None
    served = Range(*hits(held))
    slower = max(cold.value - warm.value, 0.0)
    # Reading may overlap with the rest: then only the storage's part shortens, and no step is faster than a warm one.
    value = warm.value + (1 - served.value) * slower
    least = max(_ends(warm)[0], (1 - _ends(served)[1]) * _ends(cold)[0])
    most = _ends(warm)[1] + (1 - _ends(served)[0]) * max(_ends(cold)[1] - _ends(warm)[1], 0.0)
    return _Kind(source.warm, Range(value, min(least, value), max(most, value)), served)


@dataclass(frozen=True)
class Epochs:
    """The epochs of one kind; None where the run does not tell."""

    first: EpochForecast | None
    later: EpochForecast | None
    starts_cold: bool
    """Whether the first one is from the storage."""

    @property
    def by_state(self) -> dict[EpochState, EpochForecast | None]:
        return {"cold": self.first if self.starts_cold else None, "warm": self.later}

    def series(self, num: int) -> list[tuple[EpochForecast, int]] | None:
        """(epoch, how many of it); None where one is not known."""
        if num == 0:
            return []
        if self.first is None or (num > 1 and self.later is None):
            return None
        return [(self.first, 1), *([(self.later, num - 1)] if self.later is not None and num > 1 else [])]


def epochs_of(
    images: int, source: SourceFacts, held: float | None, factor: float | None, *, first_as_later: bool = False
) -> Epochs:
    """The first epoch, from the storage where the run tells of that, and each later one."""
    cold, later = None if first_as_later else _first(source), _later(source, held)
    first = cold or later
    return Epochs(
        first=None if first is None else epoch_of(images, source, first, factor, first=True),
        later=None if later is None else epoch_of(images, source, later, factor, first=False),
        starts_cold=cold is not None,
    )


# -- the training ------------------------------------------------------------------------------------------


def training_of(
    asked: Asked, source: SourceFacts, facts: ForecastFacts, factor: float | None, *, first_as_later: bool = False
) -> TrainingForecast:
    """All epochs, validations and checkpoints. `source`: the run, or that of another setting."""
    held = held_part(facts, source)
    epochs = epochs_of(asked.images, source, held, factor, first_as_later=first_as_later)
    validations = None
    if facts.validation is not None and asked.val_images:
        validations = epochs_of(asked.val_images, facts.validation, held, factor)
    parts = _parts(asked, source, facts, epochs, validations)
    own = None if parts is None else total(parts.values())
    return TrainingForecast(
        first=epochs.first,
        epoch_s=epochs.by_state,
        validation_s={} if validations is None else validations.by_state,
        s=None if own is None else widened(own, factor),
        own=own,
        parts=parts or {},
        one_state=source.one_state,
    )


def _parts(
    asked: Asked, source: SourceFacts, facts: ForecastFacts, epochs: Epochs, validations: Epochs | None
) -> Parts | None:
    """Part → seconds over the whole training; None where an epoch is not known."""
    series = epochs.series(asked.epochs)
    if series is None:
        return None
    parts: Parts = {}
    begun = start_up_s(source)
    if begun is not None:
        parts["start_up"] = exactly(begun)
    names: tuple[ForecastPart, ...] = ("epoch_starts", "steps", "short_batch")
    for name in names:
        told = [times(epoch.parts[name], num) for epoch, num in series if name in epoch.parts]
        if told:
            parts[name] = total(told)
    if validations is not None:
        done = validations.series(asked.epochs // asked.val_every)
        if done is None:
            return None
        parts["validation"] = total(times(epoch.own, num) for epoch, num in done)
    if facts.checkpoints is not None and asked.checkpoint_every is not None:
        seconds, num = facts.checkpoints.seconds, asked.epochs // asked.checkpoint_every
        parts["checkpoints"] = Range(num * float(np.mean(seconds)), num * min(seconds), num * max(seconds))
    return parts


def start_up_s(source: SourceFacts) -> float | None:
    """From the start of the process to asking for the first batch; None where the run did not record it."""
    if source.process_s is None or source.open_s is None:
        return None
    return source.process_s + source.open_s + (source.build_s or 0.0)


def _after(facts: ForecastFacts, after: After, factor: float | None) -> TrainingForecast:
    """The training with the change."""
    if after.source is not None:
        # Where no run tells of the first epoch before the change, it was taken as a later one, and is so here too.
        first_as_later = facts.source.cold is None and not after.source.one_state
        return training_of(facts.asked, after.source, facts, factor, first_as_later=first_as_later)
    assert after.speedup is not None and after.state is not None
    gain, source = after.speedup.value, facts.source
    slowest, fastest = after.speedup.low, after.speedup.high
    assert slowest is not None and fastest is not None

    def faster(steps: StateSteps | None, state: EpochState) -> StateSteps | None:
        if steps is None:
            return None
        now, (low, high) = steps.step_s.value, _ends(steps.step_s)
        if state == after.state or source.one_state:
            return replace(steps, step_s=Range(now / gain, low / fastest, high / slowest))
        middle = now * (1 + 1 / gain) / 2
        return replace(steps, step_s=Range(middle, low * min(1.0, 1 / fastest), high * max(1.0, 1 / slowest)))

    cold, warm = faster(source.cold, "cold"), faster(source.warm, "warm")
    if after.state == "cold" and cold is not None and warm is not None and warm.step_s.value > cold.step_s.value:
        warm = replace(cold, origin=warm.origin)  # what is faster from the storage is no slower from memory
    return training_of(facts.asked, replace(source, cold=cold, warm=warm), facts, factor)


# -- the check ---------------------------------------------------------------------------------------------


def _checked(facts: ForecastFacts, factor: float | None) -> Iterable[CheckedEpoch]:
    check = facts.check
    if check is None:
        return
    for number, run in enumerate(check.epochs):
        first = all(before.kind != run.kind for before in check.epochs[:number])
        epoch = predicted_epoch(facts, factor, run.kind, run.wanted, run.num_images, first=first)
        problem = _not_scored(run, epoch, facts)
        score = None if problem is not None or epoch is None else score_of(epoch.own, run.seconds)
        yield CheckedEpoch(
            kind=run.kind,
            state=run.wanted,
            num_images=run.num_images,
            predicted=epoch,
            measured_s=run.seconds,
            resident_before=run.resident_before,
            not_scored=problem,
            score=score,
        )


def predicted_epoch(
    facts: ForecastFacts,
    factor: float | None,
    kind: EpochKind,
    state: EpochState,
    num_images: int,
    *,
    first: bool,
) -> EpochForecast | None:
    """What the same rules say of one epoch of so many images; None where the run does not tell. `first`: of its
    process."""
    source = facts.source if kind == "train" else facts.validation
    if source is None or not num_images:
        return None
    epochs = epochs_of(num_images, source, held_fraction(facts.memory, num_images, source.image_bytes), factor)
    if first:
        return epochs.first if epochs.starts_cold == (state == "cold") else None
    return epochs.by_state[state]


def _not_scored(run: EpochRun, epoch: EpochForecast | None, facts: ForecastFacts) -> str | None:
    resident, source = run.resident_before, facts.source if run.kind == "train" else facts.validation
    if epoch is None or source is None:
        return "the run has no times for such an epoch"
    if run.wanted == "warm" or source.one_state:
        return None
    if resident is None:
        return "it is unknown whether the page cache was empty"
    if resident > EMPTY:
        return f"the page cache still held {resident:.0%} of its files"
    return None


def _checked_training(facts: ForecastFacts, factor: float | None) -> tuple[Range, float] | None:
    check = facts.check
    if check is None or check.training_s is None:
        return None
    begun, checked = start_up_s(facts.source), list(_checked(facts, factor))
    trained = [one for one in checked if one.kind == "train"]
    if begun is None or not trained or any(one.predicted is None or one.not_scored for one in trained):
        return None
    own = total([exactly(begun), *(one.predicted.own for one in trained if one.predicted is not None)])
    return widened(own, factor), check.training_s
