"""The layers of a model as text: the most expensive calls, the types, the averages, and whether they can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loaderbench.recording.model_layers import LayerRow, LayersResult
from loaderbench.recording.record import Estimate
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import (
    make_console,
    plain_table,
    print_bullets,
    print_caveats,
    print_rows,
    styled,
)
from loaderbench.reporting.csv import csv_rows

if TYPE_CHECKING:
    from rich.console import Console

NUM_SHOWN = 10
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


# -- the terminal ------------------------------------------------------------------------------------------


def print_layers(result: LayersResult, console: Console | None = None, *, every: bool = False) -> None:
    """Print the calls (`every`: all in their order), the types, the averages and the caveats."""
    console, result = console or make_console(), fmt.cleaned(result)
    console.print(styled(" · ".join(settings(result)), "bold"))
    if result.failure is not None:
        print_bullets(console, "Not measured", [result.failure.message])
    if not result.rows:
        return
    calls = calls_of(result)
    shown = calls if every else sorted(calls, key=lambda one: -one.share)[:NUM_SHOWN]
    _print_calls(shown, result, console)
    if len(shown) < len(calls):
        console.print(styled(f"The {len(shown)} most expensive of {len(calls)} calls; --all shows every one.", "dim"))
    console.print()
    if every:
        _print_shapes(calls, result, console)
        console.print()
    _print_types(result, console)
    console.print()
    print_rows(console, summary(result))
    missing = [f"{name}: {reason}" for name, reason in result.missing.items()]
    print_bullets(console, "Not measured", missing)
    print_caveats(console, result.caveats)


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
    def waits(self) -> bool:
        return bool(self.forward.waits_for_host or (self.backward is not None and self.backward.waits_for_host))


def calls_of(result: LayersResult) -> list[Call]:
    """All calls in the order of the forward pass."""
    backward = {(row.name, row.call): row for row in result.rows if row.phase == "backward"}
    return [Call(row, backward.get((row.name, row.call))) for row in result.rows if row.phase == "forward"]


def _print_calls(calls: Sequence[Call], result: LayersResult, console: Console) -> None:
    """The times of calls."""
    trains, alone = result.mode == "train", result.alone_limit_s is not None
    table = plain_table()
    table.add_column("call", overflow="fold")
    table.add_column("type", no_wrap=True)
    for title in ("forward ms", "backward ms")[: 2 if trains else 1]:
        table.add_column(title, justify="right", no_wrap=True)
        if alone:
            table.add_column("alone", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for call in calls:
        cells = _times(call.forward, alone=alone)
        cells += _times(call.backward, alone=alone) if trains else []
        mark = "*" if call.waits else ""
        cells.append(fmt.percent(call.share, decimals=1))
        table.add_row(styled(call.name + mark), styled(call.forward.type), *(styled(cell) for cell in cells))
    console.print(table)


def _print_shapes(calls: Sequence[Call], result: LayersResult, console: Console) -> None:
    """What the calls make, and the memory required for data so far."""
    table = plain_table()
    table.add_column("call", overflow="fold")
    for title in ("output", "parameters", "GFLOP", "required", "so far"):
        table.add_column(title, justify="right", no_wrap=True)
    running = result.required_bytes - sum(call.forward.required_bytes or 0 for call in calls)
    table.add_row(styled("Input"), styled(shape_text((result.batch_size, *result.input_shape))), "", "", *[
        styled(fmt.size(running))
    ] * 2)  # fmt: skip
    for call in calls:
        row = call.forward
        running += row.required_bytes or 0
        cells = [
            shape_text(row.output_shape or ()), f"{row.parameters or 0:,}", _giga(call.flops),
            fmt.size(row.required_bytes), fmt.size(running),
        ]  # fmt: skip
        table.add_row(styled(call.name), *(styled(cell) for cell in cells))
    console.print(table)


def shape_text(shape: Sequence[int]) -> str:
    """`64×16×24×24`; a scalar is `1`."""
    return "×".join(map(str, shape)) or "1"


def _times(row: LayerRow | None, *, alone: bool) -> list[str]:
    cells = [fmt.MISSING if row is None else milliseconds(row.in_step_s)]
    return [*cells, fmt.MISSING if row is None else milliseconds(row.alone_s, spread=False)] if alone else cells


def milliseconds(estimate: Estimate | None, *, spread: bool = True) -> str:
    """`12.3 ±4%`"""
    if estimate is None:
        return fmt.MISSING
    text = fmt.number(estimate.value * 1e3)
    half = estimate.half_width
    if not spread or half is None or not estimate.value:
        return text
    fraction = half / estimate.value
    if fraction > 1 and estimate.low is not None and estimate.high is not None:
        return f"{text} ({fmt.number(estimate.low * 1e3)}–{fmt.number(estimate.high * 1e3)})"
    return f"{text} ±{fraction:.0%}"


def _giga(flops: int | None) -> str:
    return fmt.number(flops / 1e9) if flops else fmt.MISSING


def _print_types(result: LayersResult, console: Console) -> None:
    trains = result.mode == "train"
    table = plain_table()
    table.add_column("type", no_wrap=True)
    for title in ("calls", "forward ms", *(["backward ms"] if trains else []), "share", "GFLOP", "parameters"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in result.types:
        cells = [str(one.num_calls), fmt.number(one.forward_s * 1e3)]
        if trains:
            cells.append(fmt.MISSING if one.backward_s is None else fmt.number(one.backward_s * 1e3))
        cells += [fmt.percent(one.share_fraction, decimals=1), _giga(one.flops), f"{one.parameters:,}"]
        table.add_row(styled(one.type), *(styled(cell) for cell in cells))
    for row in result.rows:
        if row.phase in ("load", "copy_inputs", "copy_targets", "zero_grad", "update", "monitor", "rest"):
            time = fmt.MISSING if row.in_step_s is None else fmt.number(row.in_step_s.value * 1e3)
            cells = ["", time, *([""] if trains else []), fmt.percent(row.share_fraction, decimals=1), "", ""]
            table.add_row(styled(profile_name(result, row), "dim"), *(styled(cell, "dim") for cell in cells))
    console.print(table)


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
    for phase in ("set_up", "forward", "zero_grad", "backward"):
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
    "load", "copy_inputs", "copy_targets", "set_up", "forward", "zero_grad", "backward", "update", "monitor", "rest",
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
