"""The memory of a model's step as pictures: peaks by kind beside the measured ones, and the course of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from loaderbench.recording.model_memory import MEMORY_KINDS, BatchMemory, ModelMemory, ModelMemoryFacts
from loaderbench.reporting import format as fmt
from loaderbench.reporting.figures import Figure, colour, legend, name_bars
from loaderbench.reporting.model_memory import PHASES, memory_result, place_words
from loaderbench.reporting.result import Result
from loaderbench.reporting.shown import Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

COLOURS = dict(zip(MEMORY_KINDS, ("line0", "line1", "line2", "line3", "line4"), strict=True))
MEASURED = "rest"
"""Name of the measured bars' colour."""
SHORT_PHASES = {**PHASES, "forward": "forward", "backward": "backward", "update": "update"}
LEAST_PHASE_FRACTION = 0.04
"""Of the step: a shorter phase has no name in the picture."""


class _Peak(NamedTuple):
    batch_size: int
    predicted_bytes: int
    measured_bytes: int | None
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    temporary_bytes: int


class _Moment(NamedTuple):
    event: int
    phase: str
    live_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    temporary_bytes: int


def memory_figures(result: ModelMemory) -> list[Figure]:
    """None where nothing was predicted."""
    batches = [one for one in result.batches if one.predicted is not None]
    if not batches:
        return []
    peaks = [_peak(one) for one in batches]
    drawn = [
        Figure(
            "peaks",
            "Peak memory by kind, and the measured peak",
            "The predicted peak of live memory, by kind from left to right in the order of the legend; below it the "
            "measured one, where there is one.",
            _Peak._fields,
            peaks,
            0.9 + 0.55 * len(peaks),
            partial(_draw_peaks, peaks=peaks),
        )
    ]
    last = batches[-1]
    moments = _moments(last)
    if last.peak is not None and moments:
        place = f"The peak is in {place_words(last.peak)}."
        drawn.append(
            Figure(
                "course",
                f"Memory over the step, batch {last.batch_size}",
                f"What is live after each allocation and release of the predicted step, in their order, not in time. "
                f"{place}",
                _Moment._fields,
                moments,
                3.0,
                partial(_draw_course, moments=moments, place=last.peak.module),
            )
        )
    return drawn


def _peak(batch: BatchMemory) -> _Peak:
    memory = batch.predicted
    assert memory is not None
    return _Peak(
        batch.batch_size, memory.peak_live_bytes, None if batch.measured is None else batch.measured.peak_live_bytes,
        memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes, memory.activations_bytes,
        memory.temporary_bytes,
    )  # fmt: skip


def _moments(batch: BatchMemory) -> list[_Moment]:
    course = batch.course
    if course is None:
        return []
    kinds = [course.bytes_by_kind[kind] for kind in MEMORY_KINDS]
    return [
        _Moment(event, phase, sum(sizes), *sizes)
        for event, phase, *sizes in zip(course.events, course.phases, *kinds, strict=True)
    ]


def _draw_peaks(drawing: Drawing, peaks: Sequence[_Peak]) -> None:
    axes = drawing.subplots()
    unit, scale = _unit(max(max(one.predicted_bytes, one.measured_bytes or 0) for one in peaks))
    at = [float(number) for number in range(len(peaks))]
    left = [0.0] * len(peaks)
    for kind in MEMORY_KINDS:
        sizes = [getattr(one, f"{kind}_bytes") / scale for one in peaks]
        axes.barh([place - 0.19 for place in at], sizes, height=0.36, left=left, color=colour(COLOURS[kind]))
        left = [begin + size for begin, size in zip(left, sizes, strict=True)]
    measured = [(one.measured_bytes or 0) / scale for one in peaks]
    axes.barh([place + 0.19 for place in at], measured, height=0.36, color=colour(MEASURED))
    for one, place in zip(peaks, at, strict=True):
        _write_size(axes, one.predicted_bytes, scale, place - 0.19)
        if one.measured_bytes is not None:
            _write_size(axes, one.measured_bytes, scale, place + 0.19)
    name_bars(axes, [f"batch {one.batch_size}" for one in peaks], at)
    axes.set_xlim(0, 1.12 * max(*left, *measured))
    axes.set_xlabel(unit)
    axes.grid(axis="x")
    named = any(one.measured_bytes is not None for one in peaks)
    legend(
        drawing,
        [*COLOURS.values(), *([MEASURED] if named else [])],
        [*MEMORY_KINDS, *(["measured"] if named else [])],
    )


def _write_size(axes: Axes, num_bytes: int, scale: float, place: float) -> None:
    axes.annotate(
        fmt.memory(num_bytes), (num_bytes / scale, place), (3, 0), textcoords="offset points", va="center", fontsize=7
    )


def _draw_course(drawing: Drawing, moments: Sequence[_Moment], place: str) -> None:
    axes = drawing.subplots()
    unit, scale = _unit(max(one.live_bytes for one in moments))
    at = [one.event for one in moments]
    sizes = [[getattr(one, f"{kind}_bytes") / scale for one in moments] for kind in MEMORY_KINDS]
    axes.stackplot(at, *sizes, colors=[colour(COLOURS[kind]) for kind in MEMORY_KINDS], linewidth=0, step="post")
    peak = max(moments, key=lambda one: one.live_bytes)
    top = peak.live_bytes / scale
    axes.plot([peak.event], [top], "o", color=colour("ink"), markersize=4)
    on_the_right = peak.event > (at[0] + at[-1]) / 2
    axes.annotate(
        f"{fmt.memory(peak.live_bytes)}{f', {place}' if place else ''}", (peak.event, top),
        (-5 if on_the_right else 5, 4), textcoords="offset points", fontsize=7, va="bottom",
        ha="right" if on_the_right else "left",
    )  # fmt: skip
    axes.set_ylim(0, 1.25 * top)
    axes.set_xlim(at[0], at[-1])
    begins = [moments[0], *(now for last, now in pairwise(moments) if now.phase != last.phase)]
    for number, begin in enumerate(begins):
        end = begins[number + 1].event if number + 1 < len(begins) else at[-1]
        if number:
            axes.axvline(begin.event, color=colour("soft"), linewidth=0.8, linestyle="--")
        if end - begin.event >= LEAST_PHASE_FRACTION * (at[-1] - at[0]):
            axes.annotate(
                SHORT_PHASES[begin.phase], (begin.event, 1.25 * top), (3, -2), textcoords="offset points", fontsize=7,
                va="top", color=colour("soft"),
            )  # fmt: skip
    axes.set_xlabel("allocations and releases")
    axes.set_ylabel(unit)
    axes.grid(axis="y")
    legend(drawing, [*COLOURS.values()], [*MEMORY_KINDS])


def _unit(most_bytes: int) -> tuple[str, float]:
    """The unit in which the largest figure has few digits, and its bytes."""
    return (
        ("GiB", 2.0**30) if most_bytes >= 10 * 2**30 else ("MiB", 2.0**20) if most_bytes >= 2**20 else ("KiB", 2.0**10)
    )


class ShownMemory(Shown[ModelMemoryFacts, ModelMemory]):
    """Shows a study of a model's memory."""

    def about(self, facts: ModelMemoryFacts) -> str:
        return f"{facts.step.model}, {facts.step.mode}"

    def interrupted(self, facts: ModelMemoryFacts) -> bool:
        return facts.interrupted

    def result(self, facts: ModelMemoryFacts, found: ModelMemory) -> Result:
        return replace(memory_result(found), draw=partial(memory_figures, found))
