"""The layers of a model as pictures: each call in its order, and the types; and as the tables of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from loaderbench.plain import JsonObject
from loaderbench.recording.model_layers import LayersFacts, LayersResult
from loaderbench.reporting import format as fmt
from loaderbench.reporting.figures import Figure, colour, errors, legend, name_bars
from loaderbench.reporting.model_layers import Call, calls_of, calls_table, settings, summary, types_table
from loaderbench.reporting.result import Result, names_and_values
from loaderbench.reporting.shown import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FORWARD, BACKWARD = "line0", "line1"
"""Names of the colours."""
NUM_NAMED = 6
"""Calls whose names stand beside their bars: the most expensive."""


class _Bar(NamedTuple):
    number: int
    call: str
    type: str
    forward_s: float
    forward_low_s: float | None
    forward_high_s: float | None
    backward_s: float | None
    backward_low_s: float | None
    backward_high_s: float | None
    forward_alone_s: float | None
    backward_alone_s: float | None
    share_fraction: float


class _Type(NamedTuple):
    type: str
    num_calls: int
    forward_s: float
    backward_s: float | None
    share_fraction: float


def layers_figures(result: LayersResult) -> list[Figure]:
    """None where nothing was measured."""
    bars = [_bar(number, call) for number, call in enumerate(calls_of(result), 1)]
    if not bars:
        return []
    types = [_Type(one.type, one.num_calls, one.forward_s, one.backward_s, one.share_fraction) for one in result.types]
    return [
        Figure(
            "calls",
            "Each call, in the order of the forward pass",
            "Forward and backward time in the running step, one on top of the other, with the 95 % interval of their "
            "sum's larger part; the most expensive are named.",
            _Bar._fields,
            bars,
            3.4,
            partial(_draw_calls, bars=bars),
        ),
        Figure(
            "types",
            "By type",
            "All calls of a type together.",
            _Type._fields,
            types,
            0.9 + 0.26 * len(types),
            partial(_draw_types, types=types),
        ),
    ]


def _bar(number: int, call: Call) -> _Bar:
    forward, back = call.forward.in_step_s, None if call.backward is None else call.backward.in_step_s
    assert forward is not None
    return _Bar(
        number, call.name, call.forward.type, forward.value, forward.low, forward.high,
        None if back is None else back.value, None if back is None else back.low, None if back is None else back.high,
        fmt.value_of(call.forward.alone_s), None if call.backward is None else fmt.value_of(call.backward.alone_s),
        call.share,
    )  # fmt: skip


def _draw_calls(drawing: Drawing, bars: Sequence[_Bar]) -> None:
    axes = drawing.subplots()
    at = [bar.number for bar in bars]
    forward = [bar.forward_s * 1e3 for bar in bars]
    backward = [(bar.backward_s or 0.0) * 1e3 for bar in bars]
    axes.bar(at, forward, width=0.85, color=colour(FORWARD))
    axes.bar(at, backward, width=0.85, bottom=forward, color=colour(BACKWARD))
    tops = [below + above for below, above in zip(forward, backward, strict=True)]
    larger = [_larger(bar) for bar in bars]
    reach = errors(*(list(column) for column in zip(*larger, strict=True))) * 1e3
    axes.errorbar(at, tops, yerr=reach, fmt="none", ecolor=colour("ink"), linewidth=0.7)
    for bar in sorted(bars, key=lambda one: -one.share_fraction)[:NUM_NAMED]:
        top = tops[bar.number - 1]
        axes.annotate(
            f"{bar.call} ({fmt.percent(bar.share_fraction)})", (bar.number, top), (2, 4), textcoords="offset points",
            fontsize=6, rotation=60, ha="left", va="bottom", annotation_clip=False,
        )  # fmt: skip
    axes.set_ylim(0, 1.5 * max(tops))
    axes.set_xlim(0.4, len(bars) + 0.6)
    axes.set_xlabel("call")
    axes.set_ylabel("ms")
    axes.grid(axis="y")
    _legend(drawing, trains=any(bar.backward_s is not None for bar in bars))


def _larger(bar: _Bar) -> tuple[float, float | None, float | None]:
    if bar.backward_s is not None and bar.backward_s > bar.forward_s:
        return bar.backward_s, bar.backward_low_s, bar.backward_high_s
    return bar.forward_s, bar.forward_low_s, bar.forward_high_s


def _draw_types(drawing: Drawing, types: Sequence[_Type]) -> None:
    axes = drawing.subplots()
    at = [float(number) for number in range(len(types))]
    forward = [one.forward_s * 1e3 for one in types]
    axes.barh(at, forward, height=0.7, color=colour(FORWARD))
    backward = [(one.backward_s or 0.0) * 1e3 for one in types]
    axes.barh(at, backward, height=0.7, left=forward, color=colour(BACKWARD))
    for one, place, low, high in zip(types, at, forward, backward, strict=True):
        axes.annotate(
            fmt.percent(one.share_fraction, decimals=1), (low + high, place), (4, 0), textcoords="offset points",
            va="center", fontsize=7,
        )  # fmt: skip
    name_bars(axes, [f"{one.type} ×{one.num_calls}" for one in types], at)
    axes.set_xlabel("ms in the running step")
    axes.grid(axis="x")
    _legend(drawing, trains=any(one.backward_s is not None for one in types))


def _legend(drawing: Drawing, *, trains: bool) -> None:
    if trains:
        legend(drawing, [FORWARD, BACKWARD], ["forward", "backward"])


def sentence(result: LayersResult) -> str:
    """The finding in one line."""
    if not result.types:
        return "No layers were measured." if result.failure is None else result.failure.message
    parts = " and ".join(f"{one.type} {fmt.percent(one.share_fraction)}" for one in result.types[:2])
    doubt = "; the rows are disturbed" if result.disturbed else ""
    return f"Of an iteration of {result.model}, {parts}{doubt}."


class ShownLayers(Shown[LayersFacts, LayersResult]):
    """Shows a study of a model's layers."""

    def about(self, facts: LayersFacts) -> str:
        return f"{facts.step.model}, {facts.step.mode}"

    def interrupted(self, facts: LayersFacts) -> bool:
        return facts.status == "interrupted"

    def result(self, facts: LayersFacts, found: LayersResult) -> Result:
        rests = names_and_values("Averages, and whether the rows can be trusted", summary(found))
        return Result(
            title=f"Layers of {found.model} on {found.device_name}",
            settings=settings(found),
            answer=[sentence(found)],
            tables=[calls_table(found), types_table(found), rests] if found.rows else [],
            sections=[
                ("Not measured", [": ".join(row) for row in found.missing.items()]),
                ("Caveats", [caveat.sentence() for caveat in found.caveats]),
            ],
            draw=partial(layers_figures, found),
        )

    def as_json(self, facts: LayersFacts, found: LayersResult) -> JsonObject:
        return super().as_json(facts, replace(found, caveats=tuple(caveat.worded() for caveat in found.caveats)))
