"""The layers of a model: its calls and types as tables and pictures, the averages, and whether they can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loaderbench.recording.model_layers import LayerRow, LayersFacts, LayersResult, TypeRow
from loaderbench.recording.record import Estimate
from loaderbench.reporting import format as fmt
from loaderbench.reporting.csv import csv_rows
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, cells, ends, legend, name_axes, name_bars, stack
from loaderbench.reporting.figures import Row as FigureRow
from loaderbench.reporting.result import Column, Result, Row, Table, names_and_values
from loaderbench.reporting.shown import Shown

NUM_SHOWN = 10
NUM_OTHERS = 8
"""Columns of the calls that hold no times."""
FUNCTIONS = {
    "Conv2d": "Convolution",
    "MaxPool2d": "MaxPooling",
    "AvgPool2d": "AveragePooling",
    "AdaptiveAvgPool2d": "AveragePooling",
    "Linear": "Affine",
    "BatchNorm2d": "BatchNormalization",
    "add": "Add2",
    "cat": "Concatenate",
    "LogSoftmax": "Softmax",
    "NLLLoss": "CategoricalCrossEntropy",
}
"""Type → nnabla's name for the function, for the profile; others keep theirs."""


# -- tables ----------------------------------------------------------------------------------------------


def settings(result: LayersResult) -> list[str]:
    """What was asked for, in a few words each."""
    asked = [result.model, result.mode, result.precision, f"batch {result.batch_size}", shape_text(result.input_shape)]
    return [*asked, *([result.optimizer] if result.optimizer else []), result.device_name]


class Call:
    """A call's rows, side by side."""

    def __init__(self, forward: LayerRow, backward: LayerRow | None) -> None:
        self.forward, self.backward = forward, backward
        self.share = (forward.share_fraction or 0.0) + (0.0 if backward is None else backward.share_fraction or 0.0)

    @property
    def name(self) -> str:
        return self.forward.name if self.forward.call == 1 else f"{self.forward.name} #{self.forward.call}"

    @property
    def flops(self) -> int:
        return (self.forward.flops or 0) + (0 if self.backward is None else self.backward.flops or 0)

    @property
    def parts(self) -> list[Estimate]:
        """Times in the step: forward, and backward where that is known."""
        known = (None if row is None else row.in_step_s for row in (self.forward, self.backward))
        return [one for one in known if one is not None]

    @property
    def waits(self) -> bool:
        return bool(self.forward.waits_for_host or (self.backward is not None and self.backward.waits_for_host))


def calls_of(result: LayersResult) -> list[Call]:
    """All calls in the order of the forward pass."""
    backward = {(row.name, row.call): row for row in result.rows if row.phase == "backward"}
    return [Call(row, backward.get((row.name, row.call))) for row in result.rows if row.phase == "forward"]


def calls_table(result: LayersResult) -> Table:
    """The input and a row a call, in the order of the forward pass; the most expensive calls in brief."""
    calls, trains, alone = calls_of(result), result.mode == "train", result.alone_limit_s is not None
    backward = [Column("backward ms", "ms", show=milliseconds)] if trains else []
    columns = [
        Column("call", left=True), Column("type", left=True, rank=2), Column("output", rank=7),
        Column("forward ms", "ms", show=milliseconds), *([Column("alone", "ms", rank=3)] if alone else []),
        *backward, *([Column("alone", "ms", rank=4)] if alone and trains else []), Column("share", "0.1 %"),
        Column("parameters", rank=9), Column("GFLOP", "GFLOP", rank=8), Column("required", "bytes", rank=5),
        Column("so far", "bytes", rank=6),
    ]  # fmt: skip
    running = result.required_bytes - sum(call.forward.required_bytes or 0 for call in calls)
    times = [""] * (len(columns) - NUM_OTHERS)
    shape = shape_text((result.batch_size, *result.input_shape))
    rows: list[Row] = [("Input", "", shape, *times, "", "", "", running, running)]
    again = {(row.name, row.call): row for row in result.rows if row.phase == "recompute"}
    shares = list[float]()
    for call in calls:
        running += call.forward.required_bytes or 0
        shares.append(call.share)
        rows.append((
            f"{call.name}{'*' if call.waits else ''}", call.forward.type, shape_text(call.forward.output_shape or ()),
            *_times(call.forward, alone=alone), *(_times(call.backward, alone=alone) if trains else ()),
            call.share, call.forward.parameters or 0, call.flops or None, call.forward.required_bytes, running,
        ))  # fmt: skip
        if (row := again.get((call.forward.name, call.forward.call))) is not None:
            shares.append(row.share_fraction or 0.0)
            nothing = ("",) * (len(columns) - NUM_OTHERS - (2 if alone else 1))
            rows.append((
                f"{call.name} (recomputed)", row.type, shape_text(row.output_shape or ()), *_times(row, alone=alone),
                *nothing, row.share_fraction, "", row.flops or None, "", running,
            ))  # fmt: skip
    dearest = sorted(range(1, len(rows)), key=lambda number: -shares[number - 1])[:NUM_SHOWN]
    brief_note = f"The {len(dearest)} most expensive of {len(rows) - 1} calls; --all shows every one."
    return Table("Calls", columns, rows, brief=dearest if len(dearest) < len(calls) else None, brief_note=brief_note)


def shape_text(shape: Sequence[int]) -> str:
    """`64×16×24×24`; a scalar is `1`."""
    return "×".join(map(str, shape)) or "1"


def _times(row: LayerRow | None, *, alone: bool) -> Row:
    cells = (None if row is None else row.in_step_s,)
    return (*cells, None if row is None else fmt.value_of(row.alone_s)) if alone else cells


def milliseconds(estimate: Estimate) -> str:
    """`12.3 ±4%`"""
    text = fmt.number(estimate.value * 1e3)
    half = estimate.half_width
    if half is None or not estimate.value:
        return text
    fraction = half / estimate.value
    if fraction > 1 and estimate.low is not None and estimate.high is not None:
        return f"{text} ({fmt.number(estimate.low * 1e3)}–{fmt.number(estimate.high * 1e3)})"
    return f"{text} ±{fraction:.0%}"


def types_table(result: LayersResult) -> Table:
    """A row a type."""
    trains = result.mode == "train"
    columns = [
        Column("type", left=True), Column("calls", rank=2), Column("forward ms", "ms"),
        *([Column("backward ms", "ms")] if trains else []), Column("share", "0.1 %"),
        Column("GFLOP", "GFLOP", rank=1), Column("parameters", rank=3),
    ]  # fmt: skip
    rows: list[Row] = [
        (
            one.type, one.num_calls, one.forward_s, *((one.backward_s,) if trains else ()), one.share_fraction,
            one.flops or None, one.parameters,
        )
        for one in result.types
    ]  # fmt: skip
    return Table("Types", columns, rows)


def around_table(result: LayersResult) -> Table:
    """A row for each part of the iteration that is no call, and one for the calls that the backward pass repeats."""
    columns = [Column("around the calls", left=True), Column("ms", "ms"), Column("share", "0.1 %")]
    rows: list[Row] = [
        (profile_name(result, row), fmt.value_of(row.in_step_s), row.share_fraction)
        for row in result.rows
        if row.phase in ("load", "copy_inputs", "copy_targets", "zero_grad", "update", "monitor", "rest")
    ]
    again = [row for row in result.rows if row.phase == "recompute"]
    if again:
        share = sum(row.share_fraction or 0.0 for row in again)
        rows.insert(-1, ("recomputation in the backward pass", _seconds(again), share))
    return Table("Around the calls", columns, rows)


def _seconds(rows: Sequence[LayerRow]) -> float:
    return sum(fmt.value_of(row.in_step_s) or 0.0 for row in rows)


def summary(result: LayersResult) -> list[tuple[str, str]]:
    """Name and value of the figures of the whole."""
    averages = [
        ("average forward", result.forward_s),
        ("average backward", result.backward_s),
        ("average forward-backward", result.forward_backward_s if result.backward_s is not None else None),
        ("whole iteration", result.step_s),
        ("the device's part of it", result.device_s),
    ]
    uncalled = result.num_uncalled_parameters
    rows = [(name, f"{fmt.plus_minus(_in_ms(one))} ms") for name, one in averages if one is not None]
    rows += [
        ("rows ÷ whole", fmt.ratio(result.layers_over_whole)),
        ("with ÷ without stopwatch", fmt.ratio(result.timed_over_untimed)),
        ("memory required for data", f"{result.required_bytes:,} bytes, as Caffe counts it (no peak)"),
        ("parameters", f"{result.num_parameters:,}" + (f", and {uncalled:,} that no call uses" if uncalled else "")),
        ("FLOPs", f"{fmt.number(result.flops / 1e9)} G an iteration, a multiply-add is two"),
        ("steps", f"{result.num_steps} with the stopwatch and as many without, {result.num_rounds} rounds in turns"),
    ]
    if result.alone_limit_s is not None and result.alone_num_calls is not None:
        fewest, most = result.alone_num_calls
        times = f"{fewest} to {most}" if fewest < most else str(most)
        rows.append(("alone", f"each call {times} times: 100, or {fmt.duration(result.alone_limit_s)}"))
    return rows


def _in_ms(one: Estimate) -> Estimate:
    low, high = (None if end is None else end * 1e3 for end in (one.low, one.high))
    return Estimate(one.value * 1e3, low, high, "ms", one.n, one.method)


# -- figures ---------------------------------------------------------------------------------------------

FORWARD, BACKWARD = "line0", "line1"
"""Names of the colours."""
NUM_NAMED = 6
"""Calls whose names stand beside their bars: the most expensive."""


def layers_figures(result: LayersResult) -> list[Figure]:
    """None where nothing was measured."""
    calls = calls_of(result)
    drawn = [
        Figure(
            "calls",
            "Each call, in the order of the forward pass",
            "Forward and backward time in the running step, one on top of the other, with the 95 % interval of their "
            "sum's larger part; the most expensive are named.",
            [_call_data(number, call) for number, call in enumerate(calls, 1)],
            3.4,
            partial(_draw_calls, calls=calls),
        ),
        Figure(
            "types",
            "By type",
            "All calls of a type together.",
            [
                {
                    "type": one.type,
                    "num_calls": one.num_calls,
                    "forward_s": one.forward_s,
                    "backward_s": one.backward_s,
                    "share_fraction": one.share_fraction,
                }
                for one in result.types
            ],
            0.9 + 0.26 * len(result.types),
            partial(_draw_types, types=result.types),
        ),
    ]
    return drawn if calls else []


def _call_data(number: int, call: Call) -> FigureRow:
    back = call.backward
    return {
        "number": number,
        "call": call.name,
        "type": call.forward.type,
        **cells(call.forward.in_step_s, "forward_s", "forward_low_s", "forward_high_s"),
        **cells(None if back is None else back.in_step_s, "backward_s", "backward_low_s", "backward_high_s"),
        "forward_alone_s": fmt.value_of(call.forward.alone_s),
        "backward_alone_s": None if back is None else fmt.value_of(back.alone_s),
        "share_fraction": call.share,
    }


def _draw_calls(drawing: Drawing, calls: Sequence[Call]) -> None:
    (axes,) = drawing.axes()
    at = list(range(1, len(calls) + 1))
    below, above = (
        [1e3 * (fmt.value_of(None if row is None else row.in_step_s) or 0.0) for row in rows]
        for rows in ([call.forward for call in calls], [call.backward for call in calls])
    )
    for number, forward, backward in zip(at, below, above, strict=True):
        axes.bar(number - 0.42, number + 0.42, 0, forward, FORWARD, 0)
        axes.bar(number - 0.42, number + 0.42, forward, forward + backward, BACKWARD, 0)
    tops = [low + high for low, high in zip(below, above, strict=True)]
    for number, top, call in zip(at, tops, calls, strict=True):
        value, low, high = ends(max(call.parts, key=lambda one: one.value), 1e3)
        if value is not None and low is not None and high is not None:
            axes.whisker((number, top), top - value + low, top - value + high, "ink", upright=True, cap=0)
    for number in sorted(at, key=lambda number: -calls[number - 1].share)[:NUM_NAMED]:
        text = f"{calls[number - 1].name} ({fmt.percent(calls[number - 1].share)})"
        axes.note(text, (number, tops[number - 1]), (2, 4), size=6, angle=60, rise=0)
    axes.y.low, axes.y.high = 0, 1.5 * max(tops)
    axes.x.low, axes.x.high, axes.x.is_whole = 0.4, len(calls) + 0.6, True
    name_axes(axes, "call", "ms")
    _legend(drawing, trains=any(above))


def _draw_types(drawing: Drawing, types: Sequence[TypeRow]) -> None:
    (axes,) = drawing.axes()
    for place, one in enumerate(types):
        end = stack(axes, place, [(FORWARD, one.forward_s * 1e3), (BACKWARD, (one.backward_s or 0.0) * 1e3)])
        axes.note(fmt.percent(one.share_fraction, decimals=1), (end, place))
    name_bars(axes, [f"{one.type} ×{one.num_calls}" for one in types], [float(place) for place in range(len(types))])
    name_axes(axes, "ms in the running step")
    _legend(drawing, trains=any(one.backward_s is not None for one in types))


def _legend(drawing: Drawing, *, trains: bool) -> None:
    if trains:
        legend(drawing, [FORWARD, BACKWARD], ["forward", "backward"])


# -- the profile of 2019 -----------------------------------------------------------------------------------


def profile_csv(result: LayersResult) -> str:
    """The iteration as CSV, with the rows, names and order of Neural Network Console's profile; times in ms.

    Calls that only arrange values anew (flatten) are no functions there: their time is in the function that follows.
    """
    columns = ("time in ms", "in the running step", "alone")
    return csv_rows(columns, [(name, _ms(step), _ms(alone)) for name, step, alone in profile(result)])


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)


ProfileRow = tuple[str, float | None, float | None]
"""(name, seconds in the step, seconds alone); None: not measured."""


def profile(result: LayersResult) -> list[ProfileRow]:
    """The rows of the profile."""
    by_phase = {phase: [row for row in result.rows if row.phase == phase] for phase in PHASES}
    begin = [row for phase in ("load", "copy_inputs", "copy_targets") for row in by_phase[phase]]
    rows: list[ProfileRow] = [_profile_row(profile_name(result, row), [row]) for row in begin]
    names = _function_names(by_phase["forward"])
    for phase in ("set_up", "forward", "zero_grad", "backward", "recompute"):
        if phase == "zero_grad":
            rows += [_profile_row("prepare_backward", [row]) for row in by_phase[phase]]
            continue
        word = phase.replace("set_up", "setup")
        rows += [_profile_row(f"{word}_function ({name})", one) for name, one in _functions(by_phase[phase], names)]
    rows.append(("forward_all", fmt.value_of(result.forward_s), _alone_part(result, "forward")))
    if result.backward_s is not None:
        zero = by_phase["zero_grad"][0].in_step_s
        alone = _alone_part(result, "backward")
        rows.append(("backward_all", result.backward_s.value + (0.0 if zero is None else zero.value), None))
        rows.append(("backward_all(wo param zero_grad)", result.backward_s.value, alone))
    end = [row for phase in ("update", "monitor") for row in by_phase[phase]]
    return [*rows, *(_profile_row(profile_name(result, row), [row]) for row in end)]


PHASES = (
    "load", "copy_inputs", "copy_targets", "set_up", "forward", "zero_grad", "backward", "recompute", "update",
    "monitor", "rest",
)  # fmt: skip


def _alone_part(result: LayersResult, name: str) -> float | None:
    return fmt.value_of(result.forward_alone_s if name == "forward" else result.backward_alone_s)


def profile_name(result: LayersResult, row: LayerRow) -> str:
    """A part's name in the profile."""
    return f"update ({result.optimizer})" if row.phase == "update" else row.name


def _profile_row(name: str, rows: Sequence[LayerRow]) -> ProfileRow:
    return name, _sum([row.in_step_s for row in rows]), _sum([row.alone_s for row in rows])


def _sum(estimates: Sequence[Estimate | None]) -> float | None:
    """None where one of them is unknown."""
    known = [one.value for one in estimates if one is not None]
    return sum(known) if known and len(known) == len(estimates) else None


def _function_names(forward: Sequence[LayerRow]) -> dict[tuple[str, int], str]:
    """Call → `Convolution_2 : Convolution`."""
    counts: dict[str, int] = {}
    names = {}
    for row in forward:
        if row.reshapes:
            continue
        kind = FUNCTIONS.get(row.type, row.type)
        counts[kind] = counts.get(kind, 0) + 1
        number = f"_{counts[kind]}" if counts[kind] > 1 else ""
        names[row.name, row.call] = f"{kind}{number} : {kind}"
    return names


def _functions(rows: Sequence[LayerRow], names: dict[tuple[str, int], str]) -> list[tuple[str, list[LayerRow]]]:
    """Each function's rows in their order, with those of a reshape beside it: the one before it in the forward pass,
    so behind it in the backward pass."""
    backward = bool(rows) and rows[0].phase == "backward"
    found: list[tuple[str, list[LayerRow]]] = []
    pending: list[LayerRow] = []
    for row in rows:
        if not row.reshapes:
            found.append((names[row.name, row.call], [*pending, row]))
            pending = []
        elif backward and found:
            found[-1][1].append(row)
        else:
            pending.append(row)
    return found


def sentence(result: LayersResult) -> str:
    """The finding in one line."""
    if not result.types:
        return "No layers were measured." if result.failure is None else result.failure.message
    parts = " and ".join(f"{one.type} {fmt.percent(one.share_fraction)}" for one in result.types[:2])
    doubt = "; the rows are disturbed" if result.disturbed else ""
    return f"Of an iteration of {result.model}, {parts}{doubt}."


class ShownLayers(Shown[LayersFacts, LayersResult]):
    """Shows a study of a model's layers."""

    def interrupted(self, facts: LayersFacts) -> bool:
        return facts.status == "interrupted"

    def result(self, facts: LayersFacts, found: LayersResult) -> Result:
        rests = names_and_values("Averages, and whether the rows can be trusted", summary(found))
        return Result(
            title=f"Layers of {found.model} on {found.device_name}",
            settings=settings(found),
            answer=[sentence(found)],
            tables=[calls_table(found), types_table(found), around_table(found), rests] if found.rows else [],
            sections=[
                ("Not measured", [": ".join(row) for row in found.missing.items()]),
                ("Caveats", [caveat.sentence() for caveat in found.caveats]),
            ],
            draw=partial(layers_figures, found),
        )
