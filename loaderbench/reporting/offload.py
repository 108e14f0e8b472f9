"""`model offload`: the sentence, the table of settings, what the figures mean, and the curve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loaderbench.analysis.offload import is_wrong
from loaderbench.printable import counted
from loaderbench.recording.offload_study import ModelOffload, OffloadFacts, OffloadOutcome, OffloadRow
from loaderbench.recording.record import Estimate
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Axes, Drawing
from loaderbench.reporting.figures import Figure, Value, cells, ends, line, line_legend, name_axes
from loaderbench.reporting.result import SHOW, Cell, Column, Result, Row, Section, Table
from loaderbench.reporting.shown import Shown

MIB = 2**20
FAR = 1.5
"""Times the end of a figure's axis."""
BEST = "→ "
WIDE = 20
"""An interval whose ends are more than so many times apart says nothing."""
OUTCOMES: dict[OffloadOutcome, str] = {
    "fits": "",
    "out_of_memory": "does not fit",
    "no_host_memory": "no host memory",
    "failed": "failed",
    "not_tried": "not tried",
}
RATIO_NOTE = "Ratio: to the time per image of the smallest batch. "
COLUMN_NOTE = (
    "Peak: in device memory; host: on the host at once; moved: to the host and back in a step, all in MiB. Hidden, "
    "exposed: milliseconds of a step's copies that overlap the compute, and that the compute waits for."
)
TRAIN_MEANS = (
    "What the forward pass keeps for the backward pass goes to the host and is back before it is used; weights, "
    "gradients and the optimizer's state stay on the device."
)
INFER_MEANS = (
    "Inference has no backward pass to keep tensors for: parameters, inputs and the activations that are still to be "
    "used are what lives on the host; parameters have their copy there and are dropped, not copied out."
)
ASSUMED = "all times are those of a replay, assumed"
UNTRACED = "workspaces and fragmentation, which no trace shows"
ON_HOST = (
    "The device's memory is this machine's own: what is offloaded goes to a second part of the same RAM, so bytes are "
    "real and times do not hold for another device."
)


# -- the answer ------------------------------------------------------------------------------------------


def answer_lines(result: ModelOffload) -> list[str]:
    """The answer in sentences, the first of which says it all."""
    refused = [row for row in result.thresholds if row.check is not None and is_wrong(row.check)]
    lines = [f"Refused, {what_moves(row)} on the host: {row.why}." for row in refused]
    return [offload_sentence(result), *lines, *_gain_lines(result)]


def offload_sentence(result: ModelOffload) -> str:
    """Batch 10 does not fit in 16.0 GiB (it needs 18.2 GiB); everything offloaded takes 1.10× the time per image of
    batch 1; the best, tensors from 64 MiB, 0.58×."""
    parts = [_fit(result)]
    if result.is_study:
        parts += _study_parts(result)
    else:
        parts += _run_parts(result)
    if result.not_measured is not None:
        parts.append(ASSUMED)
    return "; ".join(part for part in parts if part) + "."


def _fit(result: ModelOffload) -> str:
    limit, row = fmt.memory(result.memory_bytes), result.without
    if row is None or row.outcome == "not_tried":
        return f"Whether batch {result.batch_size} fits in {limit} was not tried"
    peak = row.peak_bytes
    needs = f" (it needs {fmt.memory(peak)})" if peak is not None and peak > result.memory_bytes else ""
    if row.outcome == "fits":
        ratio = "" if row.to_batch_one is None or row == result.batch_one else f", at {times(row.to_batch_one)}"
        of = (
            ""
            if not ratio or result.batch_one is None
            else f" the time per image of batch {result.batch_one.batch_size}"
        )
        return f"Batch {result.batch_size} fits in {limit} without offloading{ratio}{of}"
    if row.outcome == "out_of_memory":
        one = result.batch_one
        nor = (
            f", nor does batch {one.batch_size}"
            if one is not None and one != row and one.outcome == row.outcome
            else ""
        )
        return f"Batch {result.batch_size} does not fit in {limit}{needs}{nor}"
    return f"Batch {result.batch_size} without offloading {OUTCOMES[row.outcome]}"


def _study_parts(result: ModelOffload) -> list[str]:
    parts = []
    one = "" if result.batch_one is None else f"the time per image of batch {result.batch_one.batch_size}"
    everything, best = result.everything, result.best
    if everything is not None and everything.to_batch_one is not None:
        parts.append(f"everything offloaded takes {times(everything.to_batch_one)} {one}")
    elif everything is not None and everything.outcome == "fits":
        parts.append(f"everything offloaded takes {_ms(everything)} ms per image")
    elif everything is not None:
        parts.append(f"everything offloaded: {OUTCOMES[everything.outcome]}")
    if best is None:
        return [*parts, "no setting was timed"]
    what = f"the best, {what_moves(best)}"
    if best.moved_bytes_per_step == 0:
        what = "the best moves no tensor"
    if best.to_batch_one is None:
        return [*parts, f"{what}: {_ms(best)} ms per image"]
    return [
        *parts,
        f"{what}, {times(best.to_batch_one)}" if parts else f"{what} takes {times(best.to_batch_one)} {one}",
    ]


def _run_parts(result: ModelOffload) -> list[str]:
    if not result.thresholds:
        return []
    row = result.thresholds[0]
    what = f"with {what_moves(row)} on the host"
    if row.moved_bytes_per_step == 0:
        what = "with this setting no tensor moves, and"
    if row.s_per_image is None:
        return [f"{what} it {OUTCOMES[row.outcome] or 'has no time'}"]
    ratio = ""
    if result.batch_one is not None and row.to_batch_one is not None:
        ratio = f", {times(row.to_batch_one)} the time per image of batch {result.batch_one.batch_size}"
    peak = row.peak_bytes
    known = result.without is not None and result.without.outcome == row.outcome == "fits"
    needs = fmt.memory(peak) if known else f"{OUTCOMES[row.outcome] or 'fits'} ({fmt.memory(peak)})"
    verb = "needs " if known else ""
    return [f"{what} it {verb}{needs} and takes {_ms(row)} ms per image{ratio}"]


def _gain_lines(result: ModelOffload) -> list[str]:
    lines = []
    if result.best_to_everything is not None:
        low = result.best_to_everything.low
        doubt = ", which its interval leaves open" if low is not None and low < 1 else ""
        gain = times(result.best_to_everything)
        lines.append(f"The best does {gain} the images/s of everything offloaded{doubt}.")
    if result.is_study and result.best is not None and result.as_fast:
        others = counted(len(result.as_fast), "other setting")
        lines.append(f"Not decided which is the best: {others} may be faster, by the intervals. Raise --steps.")
    elif result.is_study and result.best is not None:
        lines.append(f"To run it: {flags(result.best)}.")
    if result.is_study and result.num_settings:
        more = sum(row.outcome != "not_tried" for row in result.thresholds) - result.num_searched
        curve = f"; the curve has {more} more" if more > 0 else ""
        lines.append(f"The search tried {result.num_searched} of {result.num_settings} settings{curve}.")
    if result.interrupted:
        lines.append("Interrupted: not all settings were timed.")
    return lines


def flags(row: OffloadRow) -> str:
    """--offload-above 8192 --offload-after 0.4"""
    above = "" if row.above_bytes is None else f"--offload-above {row.above_bytes / 1024:g}"
    after = f" --offload-after {row.after_fraction:g}" if row.after_fraction and above else ""
    return above + after if above else "neither --offload-above nor --offload-after"


def what_moves(row: OffloadRow) -> str:
    """What a setting puts on the host."""
    if row.after_fraction is None:
        return "nothing"
    if row.above_bytes is None:
        return "only what would not fit"
    what = "everything" if row.above_bytes == 0 else f"tensors from {threshold_text(row.above_bytes)}"
    return what if not row.after_fraction else f"{what} once {fmt.percent(row.after_fraction)} is in use"


def times(ratio: Estimate) -> str:
    """1.10× (1.05–1.14)"""
    if ratio.low is None or ratio.high is None:
        return f"{_ratio(ratio.value)}×"
    if ratio.high > WIDE * ratio.low:
        return f"{_ratio(ratio.value)}× (too few steps: raise --steps)"
    return f"{_ratio(ratio.value)}× ({_ratio(ratio.low)}–{_ratio(ratio.high)})"


def _ratio(value: float) -> str:
    """1.10; 0.026"""
    return f"{value:.2f}" if value >= 0.0995 else fmt.number(value, 2)


def _ms(row: OffloadRow) -> str:
    if row.s_per_image is None:
        return fmt.MISSING
    width = row.s_per_image.half_width
    spread = "" if width is None else f" ± {fmt.number(width * 1e3, 2)}"
    return f"{fmt.number(row.s_per_image.value * 1e3)}{spread}"


# -- the table -------------------------------------------------------------------------------------------


def table_of(result: ModelOffload) -> Table:
    """A row a setting: the smallest batch and the batch without offloading first. Without the ratio where there is
    nothing to compare with."""
    ratio = [] if result.batch_one is None else [Column("ratio", show=_ratio)]
    columns = (
        Column("On the host", left=True), Column("ms/image"), *ratio, Column("peak", "MiB"),
        Column("host", "MiB", rank=1), Column("moved", "MiB", rank=2), Column("hidden", "ms", rank=4),
        Column("exposed", "ms", rank=3),
    )  # fmt: skip
    rows = []
    if result.batch_one is not None:
        rows.append(_cells(f"no tensor, batch {result.batch_one.batch_size}", result.batch_one, result))
    if result.without is not None:
        rows.append(_cells("nothing", result.without, result))
    rows += [_cells(_name(row), row, result) for row in result.thresholds]
    return Table("Settings", columns, rows, _column_note(result))


def _column_note(result: ModelOffload) -> str:
    best = "" if result.best is None else f"{BEST}the best. "
    return best + ("" if result.batch_one is None else RATIO_NOTE) + COLUMN_NOTE


def _name(row: OffloadRow) -> str:
    if row.above_bytes is None:
        return "what would not fit"
    what = "everything" if row.above_bytes == 0 else f"from {threshold_text(row.above_bytes)}"
    return f"{what} after {fmt.percent(row.after_fraction)}" if row.after_fraction else what


def _cells(name: str, row: OffloadRow, result: ModelOffload) -> Row:
    peak: Cell = row.peak_bytes
    if row.peak_bytes is not None and row.peak_live_bytes is None:
        peak = f"{SHOW['MiB'](row.peak_bytes)}*"
    return (
        f"{BEST if row == result.best else ''}{name}", OUTCOMES[row.outcome] or _ms(row),
        *([] if result.batch_one is None else [fmt.value_of(row.to_batch_one)]),
        peak, row.host_bytes, row.moved_bytes_per_step, row.hidden_s, row.exposed_s,
    )  # fmt: skip


def sections(result: ModelOffload) -> list[Section]:
    """(heading, lines): what the figures mean, and why some are missing."""
    means = [TRAIN_MEANS if result.mode == "train" else INFER_MEANS]
    means += [ON_HOST] if result.on_host else []
    if result.planned_bytes < result.memory_bytes:
        below, limit = fmt.memory(result.planned_bytes), fmt.memory(result.memory_bytes)
        means.append(f"Plans keep below {below} of {limit}: the rest is left for {UNTRACED}.")
    means += _check_lines(result)
    every = [row for row in (result.batch_one, result.without, *result.thresholds) if row is not None]
    if any(row.peak_live_bytes is None and row.predicted_peak_bytes is not None for row in every):
        means.append("*: predicted from the trace; it was not run, or its peak was not measured.")
    missing = [] if result.not_measured is None else [f"not measured: {result.not_measured}"]
    missing += dict.fromkeys(
        f"{_what(row, result)}: {row.why}"
        for row in every
        if row.why is not None and row.outcome != "not_tried" and row.check is None  # else it is in the answer
    )
    missing += dict.fromkeys(reason for row in every for reason in row.missing.values())
    return [
        ("What it means", means),
        ("Assumed", result.assumptions),
        ("Without a figure", missing),
        ("Not offloaded", result.unhooked),
    ]


def _check_lines(result: ModelOffload) -> list[str]:
    """Whether the answer's results were compared with those without offloading."""
    what = "gradients" if result.mode == "train" else "outputs"
    if result.not_compared is not None:
        return [f"The {what} were not compared with those of a step without offloading: {result.not_compared}."]
    answer = result.best if result.is_study else next(iter(result.thresholds), None)
    if answer is None or answer.check is None or is_wrong(answer.check):
        return []
    check = answer.check
    small = "" if check.batch_size == result.batch_size else f" (batch {check.batch_size}, with everything on the host)"
    alike = "to the bit"
    if check.difference:
        far, plain = check.difference, check.plain_difference
        alike = f"within {far:.2g} of their largest value; two steps without offloading differ by {plain:.2g}"
    return [f"The {what} of a step{small} were compared with those without offloading: equal {alike}."]


def _what(row: OffloadRow, result: ModelOffload) -> str:
    if row == result.batch_one:
        return f"batch {row.batch_size}"
    return f"batch {row.batch_size} without offloading" if row == result.without else what_moves(row)


# -- the figure ------------------------------------------------------------------------------------------


def offload_figures(result: ModelOffload) -> list[Figure]:
    """Time per image, and device and host memory, against the threshold, where there is a curve."""
    assumed = any(row.label == "assumed" for row in result.thresholds)
    whose = "Times are those of a replay over an emulated card, assumed." if assumed else "Bars: 95 % intervals."
    curve = Figure(
        "thresholds",
        f"{result.model}, {result.mode}, batch {result.batch_size}: time per image and memory, by threshold",
        f"{whose} A threshold is the size from which tensors go to the host, from all of them to none, where only what "
        "would not fit goes. Hollow: thresholds that apply once the percentage shown is in use. The vertical line is "
        "the best setting.",
        [
            {
                "threshold": _threshold(row),
                "above_bytes": row.above_bytes,
                "after_fraction": row.after_fraction or 0.0,
                **cells(_timed(row), "ms_per_image", "low_ms_per_image", "high_ms_per_image", scale=1e3),
                "device_mib": ends(row.peak_bytes, 1 / MIB)[0],
                "host_mib": ends(row.host_bytes, 1 / MIB)[0],
                "chosen": "yes" if row == result.best else "no",
            }
            for row in result.thresholds
        ],
        2.9,
        partial(_draw, result=result),
    )
    return [curve] if len(result.thresholds) > 1 else []


def _threshold(row: OffloadRow) -> str:
    return "none" if row.above_bytes is None else "all" if not row.above_bytes else threshold_text(row.above_bytes)


def threshold_text(num_bytes: int) -> str:
    """64 KiB, not 64.0 KiB"""
    return fmt.memory(num_bytes).replace(".0 ", " ")


def _timed(row: OffloadRow) -> Estimate | None:
    return row.s_per_image if row.outcome == "fits" else None


def _draw(drawing: Drawing, result: ModelOffload) -> None:
    left, right = drawing.axes(2, columns=2)
    rows, one = result.thresholds, result.batch_one_s_per_image
    names = list(dict.fromkeys(map(_threshold, rows)))
    _curve(left, rows, [_timed(row) for row in rows], "line0", "o", 1e3)
    if one is not None and result.batch_one is not None:
        _level(left, one * 1e3, f"batch {result.batch_one.batch_size}", "ms")
    _curve(right, rows, [row.peak_bytes for row in rows], "line0", "o", 1 / MIB, "device")
    _curve(right, rows, [row.host_bytes for row in rows], "line1", "s", 1 / MIB, "host")
    line_legend(drawing, right)
    _level(right, result.memory_bytes / MIB, "the device's memory", "MiB")
    for axes, values in ((left, "ms per image"), (right, "MiB at the peak")):
        axes.x.ticks, axes.x.angle, axes.x.tick_size = list(enumerate(names)), 40, 7
        name_axes(axes, "on the host: tensors from", values, from_zero="y")
        axes.x.low, axes.x.high = -0.4, len(names) - 0.6
        if result.best is not None and result.best in rows:
            axes.level(x=names.index(_threshold(result.best)))


def _curve(
    axes: Axes,
    rows: Sequence[OffloadRow],
    values: Sequence[Value],
    name: str,
    marker: str,
    scale: float,
    label: str = "",
) -> None:
    """The settings that apply at once as a line; hollow those that set in later, each with the part of the device's
    memory that is in use then."""
    names = list(dict.fromkeys(map(_threshold, rows)))
    at = [names.index(_threshold(row)) for row in rows]
    now = [number for number, row in enumerate(rows) if not row.after_fraction]
    line(
        axes, [at[number] for number in now], [values[number] for number in now], name, marker, scale=scale, label=label
    )
    for place, row, one in zip(at, rows, values, strict=True):
        value, _, _ = ends(one, scale)
        if row.after_fraction and value is not None:
            axes.mark((place, value), marker, name, 1.8, hollow=True)
            axes.note(fmt.percent(row.after_fraction), (place, value), (3, 0), size=5, colour=name)


def _level(axes: Axes, value: float, name: str, unit: str) -> None:
    """A dotted level with its name; one that is far above all else is only told."""
    highest = axes.y.bounds()[1]
    if value > FAR * highest:
        text, value = f"{name}: {fmt.number(value)} {unit}", highest
    else:
        text = name
        axes.level(y=value, dashes=":")
    axes.note(text, (0.01, value), (0, 2), size=6.5, colour="soft", rise=0, of_axes=True)


class ShownOffload(Shown[OffloadFacts, ModelOffload]):
    """Shows an offload study."""

    def result(self, facts: OffloadFacts, found: ModelOffload) -> Result:
        table = table_of(found)
        return Result(
            title=f"{found.model}, {found.mode}: offloading",
            settings=[*fmt.of_model(found), f"batch {found.batch_size}", found.device_name],
            answer=answer_lines(found),
            tables=[table] if table.rows else [],
            sections=sections(found),
            draw=partial(offload_figures, found),
        )
