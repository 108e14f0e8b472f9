"""A forecast from its stored facts: epochs, the whole training, and what the check found. docs/forecast.md has the
formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from loaderbench.recording.forecast import (
    After,
    Asked,
    CheckedEpoch,
    EpochForecast,
    EpochRun,
    EpochState,
    Forecast,
    ForecastFacts,
    ForecastPart,
    Memory,
    Past,
    PastFigures,
    SourceFacts,
    StateSteps,
    TrainingForecast,
)
from loaderbench.recording.record import Range

DRIFT = 0.10
"""By how much a machine is taken to be faster or slower later, while too few epochs were forecast and run on it: shared
machines drifted by about this much from one minute to the next (docs/forecast.md, `How good it is`)."""
LEAST_PAST = 10
"""Epochs that were forecast and run here from which on the interval is theirs."""
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
    held = held_fraction(facts.memory, facts.asked.images, facts.source.image_bytes)
    return Forecast(
        asked=facts.asked,
        source_id=facts.source.source_id,
        setting=setting_of(facts.source),
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
    """How far the ends lie from the value, as fractions of it."""
    low, high = _ends(own)
    return max(0.0, own.value - low) / own.value, max(0.0, high - own.value) / own.value


# -- the past ----------------------------------------------------------------------------------------------


def calibrated(past: Past) -> float | None:
    """By what the run's own half widths are multiplied, so that COVERAGE of the epochs that were forecast and run here
    would have been held: the ⌈(n + 1) · COVERAGE⌉-th smallest score, the largest where there are too few (split
    conformal prediction with normalized scores: Lei et al., JASA 113 (2018), section 5.2). None below LEAST_PAST."""
    scores = sorted(past.scores)
    if len(scores) < LEAST_PAST:
        return None
    return scores[min(math.ceil((len(scores) + 1) * COVERAGE), len(scores)) - 1]


def score_of(own: Range, measured: float) -> float | None:
    """|ln(measured ÷ predicted)| ÷ (own half width on that side + SPREAD_FLOOR); None where one is not above 0."""
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


def epoch_of(
    images: int, source: SourceFacts, step: Range, from_memory: Range, factor: float | None, *, first: bool
) -> EpochForecast:
    """One epoch of `images` with steps of `step` seconds. `first`: of the process."""
    batch = source.batch_size
    num_steps, rest = divmod(images, batch)
    parts: Parts = {"steps": times(step, num_steps)}
    if source.starts is not None:
        parts["epoch_starts"] = _starts(source, first=first)
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
        from_memory=from_memory,
    )


def _starts(source: SourceFacts, *, first: bool) -> Range:
    """A new stream: at most the wait for its first batch. Steps that take longer behind it, while the queue fills on
    the processors that the device computes on, do work that the epoch's last steps are spared. `first`: of the process;
    the run's first window started the workers too, and the device's first steps are longer."""
    starts = source.starts
    assert starts is not None
    extra = np.asarray(starts.extra_s)
    costs = np.clip(np.minimum(extra, starts.first_batch_s), 0.0, None)
    chosen = slice(0, 1) if first or len(costs) == 1 else slice(1, None)
    value = float(costs[chosen].mean()) + (source.first_steps_s or 0.0 if first else 0.0)
    return Range(value, min(value, float(costs.min())), max(value, float(extra[chosen].mean())))


def _step(steps: StateSteps) -> Range:
    half = steps.half_fraction or 0.0
    return Range(steps.step_s, steps.step_s * (1 - half), steps.step_s * (1 + half))


def _in_memory(source: SourceFacts) -> Range | None:
    """A step whose images all come from memory."""
    if source.warm is None:
        return None
    step = _step(source.warm)
    if source.cold is not None and source.cold.step_s < step.value and source.warm.origin == "memory_arm":
        # The storage cost nothing that could be told from chance: no step from memory is slower than one from it.
        low, high = _ends(step)
        step = Range(source.cold.step_s, min(low, source.cold.step_s), high)
    if source.opens_unknown and source.cold is not None:
        low, high = _ends(step)
        return Range(step.value, low, max(high, _ends(_step(source.cold))[1]))
    return step


def _later(source: SourceFacts, held: float | None) -> tuple[Range, Range] | None:
    """(step, part from memory) of the epochs after the first; None where that is not known."""
    warm, cold = _in_memory(source), None if source.cold is None else _step(source.cold)
    if warm is None:
        return (cold, exactly(0.0)) if cold is not None and held == 0 else None
    if source.image_bytes is None or (held is not None and held >= 1):
        return warm, exactly(1.0)
    if held is None or cold is None:
        return None
    served = Range(*hits(held))
    slower = max(cold.value - warm.value, 0.0)
    # Reading may overlap with the rest: then only the storage's part shortens, and no step is faster than a warm one.
    value = warm.value + (1 - served.value) * slower
    least = max(_ends(warm)[0], (1 - _ends(served)[1]) * _ends(cold)[0])
    most = _ends(warm)[1] + (1 - _ends(served)[0]) * max(_ends(cold)[1] - _ends(warm)[1], 0.0)
    return Range(value, min(least, value), max(most, value)), served


def epochs_of(
    images: int, source: SourceFacts, held: float | None, factor: float | None
) -> dict[EpochState, EpochForecast | None]:
    """The first epoch and the later ones; None where the run does not tell."""
    later = _later(source, held)
    return {
        "cold": None
        if source.cold is None
        else epoch_of(images, source, _step(source.cold), exactly(0.0), factor, first=True),
        "warm": None if later is None else epoch_of(images, source, *later, factor, first=source.cold is None),
    }


# -- the training ------------------------------------------------------------------------------------------


def training_of(asked: Asked, source: SourceFacts, facts: ForecastFacts, factor: float | None) -> TrainingForecast:
    """All epochs, validations and checkpoints. `source`: the run, or that of another setting."""
    validation = facts.validation if asked.val_images else None
    val_images = asked.val_images or 0
    together = asked.images * (source.image_bytes or 0.0)
    if validation is not None:
        together += val_images * (validation.image_bytes or 0.0)
    known = facts.memory.bytes is not None and together > 0
    held = min(1.0, (facts.memory.bytes or 0) / together) if known else None
    epochs = epochs_of(asked.images, source, held, factor)
    validations: Mapping[EpochState, EpochForecast | None] = {}
    if validation is not None:
        validations = epochs_of(val_images, validation, held, factor)
    parts = _parts(asked, source, facts, epochs, validations)
    own = None if parts is None else total(parts.values())
    return TrainingForecast(
        epoch_s=epochs,
        validation_s=validations,
        s=None if own is None else widened(own, factor),
        own=own,
        parts=parts or {},
    )


def _series(epochs: Mapping[EpochState, EpochForecast | None], num: int) -> list[tuple[EpochForecast, int]] | None:
    """(epoch, how many of it): the first cold, where that is known, the others warm. None where one is not known."""
    cold, warm = epochs.get("cold"), epochs.get("warm")
    first = cold or warm
    if num == 0:
        return []
    if first is None or (num > 1 and warm is None):
        return None
    return [(first, 1), *([(warm, num - 1)] if warm is not None and num > 1 else [])]


def _parts(
    asked: Asked,
    source: SourceFacts,
    facts: ForecastFacts,
    epochs: Mapping[EpochState, EpochForecast | None],
    validations: Mapping[EpochState, EpochForecast | None],
) -> Parts | None:
    """Part → seconds over the whole training; None where an epoch is not known."""
    series = _series(epochs, asked.epochs)
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
    if validations:
        done = _series(validations, asked.epochs // asked.val_every)
        if done is None:
            return None
        parts["validation"] = total(times(epoch.own, num) for epoch, num in done)
    if facts.checkpoints is not None and asked.checkpoint_every is not None:
        seconds, num = facts.checkpoints.seconds, asked.epochs // asked.checkpoint_every
        parts["checkpoints"] = Range(num * float(np.mean(seconds)), num * min(seconds), num * max(seconds))
    return parts


def start_up_s(source: SourceFacts) -> float | None:
    """From the start of the process to asking for the first batch; None where the run did not store it."""
    if source.process_s is None or source.open_s is None:
        return None
    return source.process_s + source.open_s + (source.build_s or 0.0)


def _after(facts: ForecastFacts, after: After, factor: float | None) -> TrainingForecast:
    """The training with the change."""
    if after.source is not None:
        return training_of(facts.asked, after.source, facts, factor)
    assert after.speedup is not None and after.state is not None
    gain, source = after.speedup, facts.source

    def faster(steps: StateSteps | None, state: EpochState) -> StateSteps | None:
        if steps is None:
            return None
        low, high = gain.low or gain.value, gain.high or gain.value
        half = math.hypot(steps.half_fraction or 0.0, max(gain.value / low - 1, 1 - gain.value / high, 0.0))
        if state == after.state or steps.origin == "no_files":
            return replace(steps, step_s=steps.step_s / gain.value, half_fraction=half)
        return steps

    cold, warm = faster(source.cold, "cold"), faster(source.warm, "warm")
    if after.state == "cold" and cold is not None and warm is not None and warm.step_s > cold.step_s:
        warm = replace(cold, origin=warm.origin)  # what is faster from the storage is no slower from memory
    return training_of(facts.asked, replace(source, cold=cold, warm=warm), facts, factor)


# -- the check ---------------------------------------------------------------------------------------------


def _checked(facts: ForecastFacts, factor: float | None) -> Iterable[CheckedEpoch]:
    check = facts.check
    if check is None:
        return
    predictions = check_predictions(facts, factor)
    for run in check.epochs:
        epoch = predictions[run.kind].get(run.wanted)
        problem = _not_scored(run, epoch)
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


def check_predictions(
    facts: ForecastFacts, factor: float | None
) -> dict[str, Mapping[EpochState, EpochForecast | None]]:
    """What the same rules say of the data sets as they are: `train` and `validation` → state → epoch."""
    check = facts.check
    assert check is not None
    found: dict[str, Mapping[EpochState, EpochForecast | None]] = {"train": {}, "validation": {}}
    if check.num_images:
        held = held_fraction(facts.memory, check.num_images, facts.source.image_bytes)
        found["train"] = epochs_of(check.num_images, facts.source, held, factor)
    if check.val_images and facts.validation is not None:
        held = held_fraction(facts.memory, check.val_images, facts.validation.image_bytes)
        found["validation"] = epochs_of(check.val_images, facts.validation, held, factor)
    return found


def _not_scored(run: EpochRun, epoch: EpochForecast | None) -> str | None:
    resident = run.resident_before
    if epoch is None:
        return "the run does not tell of such an epoch"
    if run.wanted == "cold" and resident is not None and resident > EMPTY:
        return f"{resident:.0%} of its files were in memory, which could not be emptied"
    return None


def _checked_training(facts: ForecastFacts, factor: float | None) -> tuple[Range, float] | None:
    check = facts.check
    if check is None or check.training_s is None or check.failure is not None:
        return None
    begun, checked = start_up_s(facts.source), list(_checked(facts, factor))
    trained = [one for one in checked if one.kind == "train"]
    if begun is None or not trained or any(one.predicted is None or one.not_scored for one in trained):
        return None
    own = total([exactly(begun), *(one.predicted.own for one in trained if one.predicted is not None)])
    return widened(own, factor), check.training_s
