"""A forecast as text, as a page of a report, and as a picture of where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from loaderbench import plain
from loaderbench.plain import JsonObject
from loaderbench.recording.forecast import (
    CheckedEpoch,
    EpochForecast,
    EpochState,
    Forecast,
    ForecastFacts,
    ForecastPart,
    LeftOut,
    StepOrigin,
    TrainingForecast,
)
from loaderbench.recording.record import Range
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, legend, name_axes, name_bars, stack, whisker
from loaderbench.reporting.result import Column, Result, Row, Table
from loaderbench.reporting.shown import Shown

PART_WORDS: Mapping[ForecastPart, str] = {
    "start_up": "start-up",
    "epoch_starts": "starts of epochs",
    "steps": "full steps",
    "short_batch": "short last batches",
    "validation": "validation",
    "checkpoints": "checkpoints",
}
LEFT_OUT_WORDS: Mapping[LeftOut, str] = {
    "start_up": "start-up",
    "epoch_starts": "starts of epochs",
    "cold": "an epoch from the storage",
    "warm": "an epoch from memory",
    "opens": "opening files whose pages are in memory",
    "loading": "loading",
    "validation": "validation",
    "checkpoints": "checkpoints",
    "change": "the change",
    "logging": "logging",
}
ALL_RESIDENT = 0.995
"""Fraction of the pages in memory from which on it is not spoken of."""


def settings(found: Forecast) -> list[str]:
    """What was asked, and of which run."""
    asked = found.asked
    lines = [found.setting, f"{asked.images:,} images", f"{asked.epochs:,} epoch" + "s" * (asked.epochs != 1)]
    if asked.val_images is not None:
        lines.append(f"{asked.val_images:,} to validate every {_nth(asked.val_every)}")
    if asked.checkpoint_every is not None:
        lines.append(f"a checkpoint every {_nth(asked.checkpoint_every)}")
    return [*lines, f"from {found.source_id}"]


def _nth(every: int) -> str:
    return "epoch" if every == 1 else f"{every:,} epochs"


def headline(found: Forecast) -> str:
    """Training 6.4 h (5.8 – 7.1): the first epoch 4.6 min from the storage, later ones 4.2 min from memory."""
    training, later = found.training, found.training.epoch_s.get("warm")
    texts = []
    if training.first is not None:
        texts.append(f"the first epoch {interval(training.first.s)}{_from(training.first, training)}")
    if later is not None and found.asked.epochs > 1:
        texts.append(f"later ones {interval(later.s)}{_from(later, training)}")
    if training.s is None:
        known = ", ".join(texts) or "its epochs are unknown"
        return f"The training's time is not known: {known}; see what was left out."
    if found.asked.epochs == 1 and not {"validation", "checkpoints"} & set(training.parts):
        return f"{texts[0][:1].upper()}{texts[0][1:]}; with its start {interval(training.s)}."
    return f"Training {interval(training.s)}: {', '.join(texts)}."


def _from(epoch: EpochForecast, training: TrainingForecast) -> str:
    if training.one_state:
        return ""
    hits = epoch.from_memory
    if hits.low == 1:
        return " from memory"
    if hits.high == 0:
        return " from the storage"
    return f", {fmt.percent(hits.low)} to {fmt.percent(hits.high)} of it from memory"


def long_time(seconds: float | None) -> str:
    """41.2 s · 12.3 min · 6.52 h · 3.40 days"""
    if seconds is None:
        return fmt.MISSING
    for scale, unit, least in ((86400.0, "days", 2.0), (3600.0, "h", 1.5), (60.0, "min", 2.0)):
        if seconds >= least * scale:
            return f"{fmt.number(seconds / scale)} {unit}"
    return fmt.duration(seconds)


def interval(one: Range) -> str:
    """6.52 h (5.90 – 7.21 h)"""
    return fmt.with_interval(one, long_time, " – ")


PART_COLUMNS = (
    Column("part", left=True), Column("first epoch", rank=3, show=long_time),
    Column("each later one", rank=2, show=long_time), Column("training", show=long_time),
    Column("share", "0.1 %", rank=1),
)  # fmt: skip
CHECK_COLUMNS = (
    Column("epoch", left=True), Column("images", rank=2), Column("predicted", show=interval),
    Column("measured", show=long_time), Column("error", "0.1 %"), Column("interval", rank=1),
)  # fmt: skip


def part_rows(training: TrainingForecast) -> list[Row]:
    """A row a part: in the first epoch, in each later one, in the whole training."""
    begun, warm = training.first, training.epoch_s.get("warm")
    whole = training.own.value if training.own is not None else 0.0
    rows: list[Row] = []
    for part, words in PART_WORDS.items():
        first, later = ((None if one is None else one.parts.get(part)) for one in (begun, warm))
        over_all = training.parts.get(part)
        if first is None and later is None and over_all is None:
            continue
        share = None if over_all is None or not whole else over_all.value / whole
        rows.append((words, *map(_value, (first, later, over_all)), share))
    sums = [None if one is None else one.own for one in (begun, warm)] + [training.own]
    rows.append(("together", *map(_value, sums), ""))
    return rows


def _value(one: Range | None) -> float | None:
    return None if one is None else one.value


def after_lines(found: Forecast) -> list[str]:
    """With --then: the same training after the change."""
    after, now = found.after, found.training
    if after is None:
        return []
    if after.s is None:
        return [f"{found.after_label}: not known, since an epoch of it is not"]
    lines = [f"{found.after_label}: training {interval(after.s)}"]
    if now.own is not None and after.own is not None:
        saved = now.own.value - after.own.value
        word = "less" if saved >= 0 else "more"
        lines.append(f"{long_time(abs(saved))} {word} ({fmt.number(now.own.value / after.own.value)}×)")
    return lines


def check_rows(found: Forecast) -> list[Row]:
    """A row for each epoch that was run, and one for all from the start of the process."""
    rows = [_check_row(one, found) for one in found.checked]
    if found.checked_training is not None:
        predicted, measured = found.checked_training
        rows.append(("all, with start-up", "", *_compared(predicted, measured)))
    return rows


def _check_name(one: CheckedEpoch, found: Forecast) -> str:
    kind = "validation" if one.kind == "validation" else "training"
    if found.training.one_state:
        return f"{'first' if one.state == 'cold' else 'later'} {kind} epoch"
    return f"{kind} {STATE_WORDS[one.state]}"


def _check_row(one: CheckedEpoch, found: Forecast) -> Row:
    name = _check_name(one, found)
    if one.predicted is None or one.not_scored is not None:
        predicted = None if one.predicted is None else one.predicted.s
        return (name, one.num_images, predicted, one.measured_s, "not scored", "")
    return (name, one.num_images, *_compared(one.predicted.s, one.measured_s))


def _compared(predicted: Range, measured: float) -> Row:
    held = predicted.low is not None and predicted.high is not None and predicted.low <= measured <= predicted.high
    return (predicted, measured, measured / predicted.value - 1, "held" if held else "missed")


def check_lines(found: Forecast) -> list[str]:
    """What the check could not tell."""
    lines = []
    for one in found.checked:
        if one.not_scored is not None:
            lines.append(f"{_check_name(one, found)}: {one.not_scored}")
        elif one.state == "warm" and one.resident_before is not None and one.resident_before < ALL_RESIDENT:
            resident = fmt.percent(one.resident_before, decimals=1)
            lines.append(f"{_check_name(one, found)}: {resident} of its files were in memory when it began")
    if found.check_failed is not None:
        lines.append(f"the check failed: {found.check_failed}")
    return lines


def basis_lines(found: Forecast) -> list[str]:
    """Where the times and the interval are from, and how good forecasts were here."""
    past = found.ledger
    lines = _sources(found.training)
    device = "an emulated device" if found.emulated else "a real device"
    if past.num:
        noun = "epoch was" if past.num == 1 else "epochs were"
        lines.append(
            f"{past.num} {noun} forecast and run on this machine with {device} before: the median error was "
            f"{fmt.percent(past.median_error_fraction, decimals=1)}, "
            f"the interval held {fmt.percent(past.coverage_fraction)}"
        )
    else:
        lines.append(f"no forecast with {device} was checked on this machine yet: --check runs an epoch and compares")
    if found.interval_by == "assumed":
        lines.append("the interval: the run's own spread, and 10 % that the machine is assumed to drift by")
    else:
        lines.append(
            f"the interval: the run's own spread and 1 %, × {fmt.number(found.factor)}, which held 95 % of these epochs"
        )
    if found.held is not None:
        lines.append(_held_line(found.held))
    return lines


ORIGIN_WORDS: Mapping[StepOrigin, str] = {
    "measured": "{run}",
    "memory_arm": "{run}, its arm `ram`",
    "other_run": "{run}",
    "no_files": "{run}, whose loader reads no files",
    "layers": "{run}, a profile of layers",
}


STATE_WORDS: Mapping[EpochState, str] = {"cold": "from the storage", "warm": "from memory"}


def _sources(training: TrainingForecast) -> list[str]:
    """Which run each step's time is from."""
    lines = []
    for noun, epochs in (("epoch", training.epoch_s), ("validation", training.validation_s)):
        for state, one in epochs.items():
            if one is None or (training.one_state and state == "warm"):
                continue
            where = "" if training.one_state else f" {STATE_WORDS[state]}"
            lines.append(f"steps of the {noun}{where}: {ORIGIN_WORDS[one.origin].format(run=one.run_id)}")
    return lines


def _held_line(held: Range) -> str:
    free = "this machine's free memory, of which the training itself will take a part,"
    if held.low == 1:
        return f"{free} holds all images, so later epochs read from there"
    return (
        f"{free} holds {fmt.percent(held.high)} of the images: from the second epoch on it "
        f"serves {fmt.percent(held.low)} (it drops the least recently used) to {fmt.percent(held.high)} of them"
    )


# -- the report ------------------------------------------------------------------------------------------


def figures(found: Forecast) -> list[Figure]:
    """The parts as bars, before and after a change."""
    trainings = [("unmodified", found.training)]
    if found.after is not None and found.after_label is not None:
        trainings.append(("after the change", found.after))
    parts = Figure(
        "parts",
        "Where the training's time goes",
        "Each part's sum over all epochs; the whisker is the interval of the whole.",
        [
            {"training": label, "part": PART_WORDS[part], "hours": value.value / 3600}
            for label, training in trainings
            for part, value in training.parts.items()
        ],
        0.9 + 0.7 * len(trainings),
        partial(_draw, trainings=trainings),
    )
    return [parts] if parts.data else []


UNITS = ((3600.0, "hours", 5400.0), (60.0, "minutes", 120.0), (1.0, "seconds", 0.0))
"""(seconds, name, the least time that is given in it)."""
COLOURS: Mapping[ForecastPart, str] = {part: f"line{number}" for number, part in enumerate(PART_WORDS)}


def _draw(drawing: Drawing, trainings: Sequence[tuple[str, TrainingForecast]]) -> None:
    (axes,) = drawing.axes()
    longest = max(training.own.value for _, training in trainings if training.own is not None)
    scale, unit = next((scale, unit) for scale, unit, least in UNITS if longest >= least)
    for row, (_, training) in enumerate(trainings):
        parts = [(COLOURS[part], training.parts[part].value / scale) for part in COLOURS if part in training.parts]
        end = stack(axes, row, parts, height=0.5)
        whisker(axes, (end, row), training.s, scale=1 / scale)
    name_bars(axes, [label for label, _ in trainings], [float(row) for row in range(len(trainings))])
    name_axes(axes, unit, from_zero="x")
    shown = [part for part in COLOURS if any(part in training.parts for _, training in trainings)]
    legend(drawing, [COLOURS[part] for part in shown], [PART_WORDS[part] for part in shown])


class ShownForecast(Shown[ForecastFacts, Forecast]):
    """Shows a forecast."""

    def about(self, facts: ForecastFacts) -> str:
        return f"{facts.source.model}, {facts.asked.epochs} epochs of {facts.asked.images:,} images"

    def result(self, facts: ForecastFacts, found: Forecast) -> Result:
        tables = [Table("Where the time goes", PART_COLUMNS, part_rows(found.training))]
        tables += [Table("Predicted and measured", CHECK_COLUMNS, check_rows(found))] if found.checked else []
        return Result(
            title=f"How long: {found.asked.epochs:,} epochs of {found.asked.images:,} images",
            settings=settings(found),
            answer=[headline(found)],
            tables=tables,
            sections=[
                ("After the change", after_lines(found)),
                ("Checked", check_lines(found)),
                ("What it rests on", basis_lines(found)),
                ("Left out", [f"{LEFT_OUT_WORDS[part]}: {why}" for part, why in found.left_out.items()]),
            ],
            draw=partial(figures, found),
        )

    def as_json(self, facts: ForecastFacts, found: Forecast) -> JsonObject:
        """The figures that scripts look for first, then all."""
        training = found.training
        epochs = {state: None if one is None else one.s for state, one in training.epoch_s.items()}
        leading = plain.to_object({"epoch_s": epochs, "training_s": training.s, "parts": training.parts})
        return {**leading, **super().as_json(facts, found)}
