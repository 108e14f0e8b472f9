"""Memory studies of a model: predicted beside measured, the peak's kinds and place, layers, pictures; and trials."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from loaderbench.recording.model_memory import (
    MEMORY_KINDS,
    BatchMemory,
    MemoryCourse,
    MemoryKind,
    ModelFit,
    ModelFitFacts,
    ModelMemory,
    ModelMemoryFacts,
    PeakPlace,
    PredictedMemory,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, legend, name_axes, name_bars, stack, steps_of
from loaderbench.reporting.result import Column, Result, Row, Table
from loaderbench.reporting.shown import Shown

MOST_LAYERS = 10
"""Layers that are printed where not all are asked for: those with the largest outputs."""
LAYER_COLUMNS = (
    Column("layer", left=True), Column("type", left=True, rank=3), Column("output", rank=4), Column("bytes", "memory"),
    Column("all so far", "memory", rank=2), Column("live", "memory", rank=1),
)  # fmt: skip
LAYERS_NOTE = (
    "All so far: the outputs' running sum, which is no peak. Live: all that is in memory when the layer has run. "
    "(`model layers` has Caffe's memory required for data.)"
)
PHASES = {"standing": "before the step", "forward": "the forward pass", "backward": "the backward pass",
          "update": "the optimizer's update"}  # fmt: skip
OUTCOMES = {"fits": "fits", "out_of_memory": "out of memory", "killed": "killed by the kernel", "unknown": "unknown"}


def _unchecked(result: ModelMemory | ModelFit) -> list[str]:
    if result.unchecked_on is None:
        return []
    return [
        "the rules for what the CPU's large operators allocate inside were checked on processors with AVX-512; this "
        f"one has {result.unchecked_on}, where predictions by the rules alone were seen to be off by a quarter"
    ]


def _error(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %".replace("-0.0", "0.0")


def batches_table(result: ModelMemory) -> Table:
    """A row a batch."""
    with_reserve = any(one.predicted_reserved_bytes is not None for one in result.batches)
    columns = [
        Column("batch"), Column("predicted", "memory"), Column("measured", "memory"),
        Column("error", show=_error), *([Column("reserved, predicted", "memory", rank=3)] if with_reserve else []),
        Column("reserved", "memory", rank=2), Column("process", "memory", rank=1),
    ]  # fmt: skip
    rows = []
    for one in result.batches:
        measured = one.measured
        rows.append((
            one.batch_size, None if one.predicted is None else one.predicted.peak_live_bytes,
            None if measured is None else measured.peak_live_bytes,
            one.error_fraction,
            *([one.predicted_reserved_bytes] if with_reserve else []),
            *((None, None) if measured is None else (measured.peak_reserved_bytes, measured.peak_process_bytes)),
        ))  # fmt: skip
    return Table("Predicted and measured peaks", columns, rows, _which_decides(result))


def _which_decides(result: ModelMemory) -> str:
    """Which figure tells whether a run fits."""
    measured = [one.measured for one in result.batches if one.measured is not None]
    if any(one.peak_reserved_bytes is not None for one in measured):
        return (
            "Whether a run fits is decided by *process*, all that it takes of the device. *Reserved* is what PyTorch "
            "holds of it, *predicted* and *measured* what is in use."
        )
    if any(one.peak_process_bytes is not None for one in measured):
        return (
            "Whether a run fits is decided by *process*: all memory that it grew by, libraries, heap and "
            "this measurement's profiler included. *Predicted* and *measured* are the tensors and workspaces alone."
        )
    return "Whether a run fits is decided by what its process takes, which is more than *predicted*: its tensors alone."


def kinds_table(batches: Sequence[BatchMemory]) -> Table:
    """What each predicted peak consists of."""
    columns = [Column("at the peak", left=True)]
    columns += [Column(title, "memory", rank=rank) for rank, title in enumerate(MEMORY_KINDS, 1)]
    rows: list[Row] = [
        (f"batch {one.batch_size}", *by_kind(one.predicted).values()) for one in batches if one.predicted is not None
    ]
    return Table("At the predicted peak", columns, rows)


def place_words(place: PeakPlace) -> str:
    """the backward pass, at layer4.2.conv2 (convolution_backward)"""
    operator = place.operator.removeprefix("aten.").partition(".")[0]
    where = f", at {place.module}" if place.module else ""
    return f"{PHASES[place.phase]}{where} ({operator})" if operator else f"{PHASES[place.phase]}{where}"


def layers_table(batch: BatchMemory) -> Table:
    """Outputs, their running sum, and what is live after each layer; the largest outputs in brief."""
    layers = batch.layers
    largest = sorted(range(len(layers)), key=lambda number: -layers[number].output_bytes)[:MOST_LAYERS]
    rows = [
        (row.name, row.type, "×".join(map(str, row.shape)), row.output_bytes, row.outputs_bytes, row.live_bytes)
        for row in layers
    ]
    return Table(
        f"Layers, batch {batch.batch_size}",
        LAYER_COLUMNS,
        rows,
        f"All outputs together: {fmt.memory(batch.outputs_bytes)}. {LAYERS_NOTE}",
        brief=sorted(largest) if len(largest) < len(layers) else None,
        brief_note=f"The {len(largest)} largest of {len(layers)} outputs; --all prints them all.",
    )


def _failures(result: ModelMemory) -> list[str]:
    """Batches that were not measured, or not predicted, and why."""
    lines = [f"batch {one.batch_size}: {one.failure.message}" for one in result.batches if one.failure is not None]
    return lines + [
        f"batch {one.batch_size}, prediction: {one.trace_failure.message}"
        for one in result.batches
        if one.trace_failure is not None and one.failure is None
    ]


def memory_sentence(result: ModelMemory) -> str:
    """The largest batch's peak in one sentence: measured if it was, else predicted."""
    for one in reversed(result.batches):
        predicted = None if one.predicted is None else one.predicted.peak_live_bytes
        measured = None if one.measured is None else one.measured.peak_live_bytes
        if measured is not None:
            by = "not predicted" if predicted is None else f"predicted {fmt.memory(predicted)}"
            error = "" if one.error_fraction is None else f" ({_error(one.error_fraction)})"
            return f"Batch {one.batch_size} needs {fmt.memory(measured)}, measured; {by}{error}."
        if predicted is not None:
            return f"Batch {one.batch_size} needs {fmt.memory(predicted)}, predicted."
    return "No batch was predicted yet." if result.interrupted else "Nothing could be predicted or measured."


def _reasons(result: ModelMemory) -> list[str]:
    """Why a column is empty, each reason once."""
    lines = [] if result.not_measured is None else [f"measured: {result.not_measured}"]
    if result.interrupted:
        lines.append("not all batches are done: it was interrupted")
    names = {"peak_live_bytes": "live", "peak_reserved_bytes": "reserved", "peak_process_bytes": "process"}
    found = {
        names.get(name, name): reason
        for one in result.batches
        if one.measured is not None
        for name, reason in one.measured.missing.items()
    }
    return [*lines, *(f"{name}: {reason}" for name, reason in found.items())]


# -- figures ---------------------------------------------------------------------------------------------

COLOURS = dict(zip(MEMORY_KINDS, ("line0", "line1", "line2", "line3", "line4"), strict=True))
MEASURED = "rest"
"""Name of the measured bars' colour."""
SHORT_PHASES = {**PHASES, "forward": "forward", "backward": "backward", "update": "update"}
LEAST_PHASE_FRACTION = 0.04
"""Of the step: a shorter phase has no name in the picture."""


def memory_figures(result: ModelMemory) -> list[Figure]:
    """Peaks by kind beside the measured ones, and the course of the last batch's step; none where nothing was
    predicted."""
    batches = [(one, one.predicted) for one in result.batches if one.predicted is not None]
    if not batches:
        return []
    peaks = Figure(
        "peaks",
        "Peak memory by kind, and the measured peak",
        "The predicted peak of live memory, by kind from left to right in the order of the legend; below it the "
        "measured one, where there is one.",
        [
            {
                "batch_size": one.batch_size,
                "predicted_bytes": memory.peak_live_bytes,
                "measured_bytes": None if one.measured is None else one.measured.peak_live_bytes,
                **{f"{kind}_bytes": size for kind, size in by_kind(memory).items()},
            }
            for one, memory in batches
        ],
        0.9 + 0.55 * len(batches),
        partial(_draw_peaks, batches=batches),
    )
    last, _ = batches[-1]
    if last.peak is None or last.course is None or not last.course.events:
        return [peaks]
    course, sizes = last.course, _sizes(last.course)
    moments = [
        {
            "event": event,
            "phase": phase,
            "live_bytes": sum(of_moment),
            **{f"{kind}_bytes": size for kind, size in zip(MEMORY_KINDS, of_moment, strict=True)},
        }
        for event, phase, of_moment in zip(course.events, course.phases, sizes, strict=True)
    ]
    over_time = Figure(
        "course",
        f"Memory over the step, batch {last.batch_size}",
        f"What is live after each allocation and release of the predicted step, in their order, not in time. The peak "
        f"is in {place_words(last.peak)}.",
        moments,
        3.0,
        partial(_draw_course, course=course, place=last.peak.module),
    )
    return [peaks, over_time]


def by_kind(memory: PredictedMemory) -> dict[MemoryKind, int]:
    """Kind → its bytes at the peak."""
    return {kind: getattr(memory, f"{kind}_bytes") for kind in MEMORY_KINDS}


def _sizes(course: MemoryCourse) -> list[tuple[int, ...]]:
    """Of each moment the live bytes of each kind."""
    return list(zip(*(course.bytes_by_kind[kind] for kind in MEMORY_KINDS), strict=True))


def _draw_peaks(drawing: Drawing, batches: Sequence[tuple[BatchMemory, PredictedMemory]]) -> None:
    (axes,) = drawing.axes()
    measured = [0 if one.measured is None else one.measured.peak_live_bytes or 0 for one, _ in batches]
    most = max(*(memory.peak_live_bytes for _, memory in batches), *measured)
    unit, scale = _unit(most)
    for at, ((_, memory), size) in enumerate(zip(batches, measured, strict=True)):
        stack(axes, at - 0.19, [(COLOURS[kind], part / scale) for kind, part in by_kind(memory).items()], height=0.36)
        axes.note(fmt.memory(memory.peak_live_bytes), (memory.peak_live_bytes / scale, at - 0.19), (3, 0))
        if size:
            stack(axes, at + 0.19, [(MEASURED, size / scale)], height=0.36)
            axes.note(fmt.memory(size), (size / scale, at + 0.19), (3, 0))
    name_bars(axes, [f"batch {one.batch_size}" for one, _ in batches], [float(at) for at in range(len(batches))])
    axes.x.low, axes.x.high = 0, 1.12 * most / scale
    name_axes(axes, unit)
    named = {MEASURED: "measured"} if any(measured) else {}
    legend(drawing, [*COLOURS.values(), *named], [*MEMORY_KINDS, *named.values()])


def _draw_course(drawing: Drawing, course: MemoryCourse, place: str) -> None:
    (axes,) = drawing.axes()
    at, live = course.events, [sum(sizes) for sizes in _sizes(course)]
    unit, scale = _unit(max(live))
    below = [0.0] * len(at)
    for kind in MEMORY_KINDS:
        above = [low + size / scale for low, size in zip(below, course.bytes_by_kind[kind], strict=True)]
        axes.area([*steps_of(at, above), *reversed(steps_of(at, below))], COLOURS[kind])
        below = above
    peak, top = at[live.index(max(live))], max(live) / scale
    axes.mark((peak, top), "o", "ink", 2)
    is_late = peak > (at[0] + at[-1]) / 2
    text = f"{fmt.memory(max(live))}{f', {place}' if place else ''}"
    axes.note(text, (peak, top), (-5 if is_late else 5, 4), rise=0, anchor="end" if is_late else "start")
    axes.y.low, axes.y.high = 0, 1.25 * top
    axes.x.low, axes.x.high = at[0], at[-1]
    numbers = range(1, len(at))
    begins = [(at[0], course.phases[0])]
    begins += [(at[now], course.phases[now]) for now in numbers if course.phases[now] != course.phases[now - 1]]
    for (begin, phase), (end, _) in pairwise([*begins, (at[-1], "")]):
        if begin > at[0]:
            axes.level(x=begin)
        if end - begin >= LEAST_PHASE_FRACTION * (at[-1] - at[0]):
            axes.note(SHORT_PHASES[phase], (begin, 1.25 * top), (3, -2), rise=1, colour="soft")
    name_axes(axes, "allocations and releases", unit)
    legend(drawing, [*COLOURS.values()], [*MEMORY_KINDS])


def _unit(most_bytes: int) -> tuple[str, float]:
    """The unit in which the largest figure has few digits, and its bytes."""
    return (
        ("GiB", 2.0**30) if most_bytes >= 10 * 2**30 else ("MiB", 2.0**20) if most_bytes >= 2**20 else ("KiB", 2.0**10)
    )


class ShownMemory(Shown[ModelMemoryFacts, ModelMemory]):
    """Shows a study of a model's memory."""

    def result(self, facts: ModelMemoryFacts, found: ModelMemory) -> Result:
        predicted = [one for one in found.batches if one.predicted is not None]
        tables = [batches_table(found)]
        if predicted:
            tables.append(kinds_table(predicted))
            tables += [layers_table(predicted[-1])] if predicted[-1].layers else []
        places = [f"Batch {one.batch_size}: {place_words(one.peak)}." for one in predicted if one.peak is not None]
        return Result(
            title=f"Memory of {found.model}",
            settings=[*fmt.of_model(found), found.device_name],
            answer=[memory_sentence(found)],
            tables=tables,
            sections=[
                ("Where the peak is", places),
                ("Without a figure", [*_failures(found), *_reasons(found)]),
                ("Beware", [*(caveat.sentence() for caveat in found.caveats), *_unchecked(found)]),
            ],
            draw=partial(memory_figures, found),
        )


# -- model fit -------------------------------------------------------------------------------------------


def fit_lines(result: ModelFit) -> list[str]:
    """The answer in sentences."""
    limit = f"{fmt.memory(result.memory_bytes)} ({result.memory_source})"
    lines = [_answer(result, limit)]
    if result.predicted_batch is not None and result.not_measured is None:
        lines.append(f"Predicted before any trial: batch {result.predicted_batch}.")
    peaks = [f"{one.batch_size}: {fmt.memory(one.peak_live_bytes)}" for one in result.predicted]
    if peaks:
        lines.append(f"Predicted peaks by batch: {', '.join(peaks)}.")
    lines += _unchecked(result)
    if result.line_holds is False:
        lines.append("The allocations do not follow one line over the batch: the prediction is not to be trusted.")
    if result.not_monotone:
        lines.append("A smaller batch failed where a larger one fitted: fits are not monotone here.")
    if result.interrupted:
        lines.append("Interrupted: --resume continues.")
    return lines


def _answer(result: ModelFit, limit: str) -> str:
    if result.largest_batch is None:
        return f"The largest batch within {limit} is not known."
    if result.largest_batch == 0:
        needs = "" if result.needs_bytes is None else f": needs about {fmt.memory(result.needs_bytes)} of {limit}"
        if result.needs_bytes is not None and result.needs_bytes <= result.memory_bytes:
            needs = (
                f" within {limit}, though its tensors need about {fmt.memory(result.needs_bytes)} only: "
                "see below how it failed"
            )
        return f"Batch 1 does not fit{needs}."
    if result.at_most:
        return f"Batch {result.largest_batch} fits within {limit}; no larger one is tried."
    if result.not_measured is not None:
        return f"The largest batch within {limit} is {result.largest_batch}, by the prediction."
    if result.confirmed:
        return (
            f"The largest batch within {limit} is {result.largest_batch}: it fitted twice, "
            f"{result.largest_batch + 1} failed twice."
        )
    return f"Batch {result.largest_batch} fits within {limit}; that it is the largest is not confirmed."


def trials_table(result: ModelFit) -> Table:
    """A row a trial."""
    by_data = result.how == "rlimit"  # the kernel's limit counts the process's data
    columns = (
        Column("trial", rank=3), Column("batch"), Column("ended", left=True),
        Column("data growth" if by_data else "live peak", "memory"), Column("predicted", "memory", rank=1),
        Column("took", "s", rank=2),
    )  # fmt: skip
    rows = [
        (number, one.batch_size, OUTCOMES[one.outcome], one.peak_data_bytes if by_data else one.peak_live_bytes,
         one.predicted_bytes, one.wall_s)
        for number, one in enumerate(result.trials, 1)
    ]  # fmt: skip
    return Table("Trials", columns, rows)


def _trial_failures(result: ModelFit) -> list[str]:
    known = {why: one.batch_size for one in result.trials if (why := one.why) is not None}
    return [f"batch {size}: {why}" for why, size in known.items()]


class ShownFit(Shown[ModelFitFacts, ModelFit]):
    """Shows a search for the largest batch."""

    def result(self, facts: ModelFitFacts, found: ModelFit) -> Result:
        missing = [] if found.not_measured is None else [f"trials: {found.not_measured}"]
        if found.trace_failure is not None:
            missing.append(f"prediction: {found.trace_failure.message}")
        return Result(
            title=f"Largest batch of {found.model}",
            settings=[*fmt.of_model(found), found.device_name],
            answer=fit_lines(found),
            tables=[trials_table(found)] if found.trials else [],
            sections=[("How trials failed", _trial_failures(found)), ("Without a figure", missing)],
        )
