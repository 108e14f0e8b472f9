"""Memory studies of a model as text: predicted beside measured, the peak's kinds and place, layers, and trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loaderbench import printable
from loaderbench.recording.model_memory import BatchMemory, LayerMemory, ModelFit, ModelFitFacts, ModelMemory, PeakPlace
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import make_console, plain_table, print_bullets, styled
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.tables import Page, Table

if TYPE_CHECKING:
    from rich.console import Console

MOST_LAYERS = 10
"""Layers that are printed where not all are asked for: those with the largest outputs."""
BATCH_COLUMNS = ("batch", "predicted", "measured", "error", "reserved", "process")
PREDICTED_RESERVED = "reserved, predicted"
"""A column of its own before `reserved`, where it was predicted."""
LAYER_COLUMNS = ("type", "output", "bytes", "all so far", "live")
LAYERS_NOTE = (
    "All so far: the outputs' running sum, which is no peak. Live: all that is in memory when the layer has run. "
    "(`model layers` has Caffe's memory required for data.)"
)
TRIAL_COLUMNS = ("trial", "batch", "ended", "live peak", "predicted", "took")
DATA_TITLE = "data growth"
"""In place of the live peak where the kernel's limit counts the process's data."""
KIND_COLUMNS = ("parameters", "gradients", "optimizer", "activations", "temporary")
PHASES = {"standing": "before the step", "forward": "the forward pass", "backward": "the backward pass",
          "update": "the optimizer's update"}  # fmt: skip
OUTCOMES = {"fits": "fits", "out_of_memory": "out of memory", "killed": "killed by the kernel", "unknown": "unknown"}


def memory_size(num_bytes: float | None) -> str:
    """As `printable.memory_size`; a sign where it is unknown."""
    return fmt.MISSING if num_bytes is None or not math.isfinite(num_bytes) else printable.memory_size(num_bytes)


def print_memory(result: ModelMemory, console: Console | None = None, *, every: bool = False) -> None:
    """Print all batches. `every`: all layers, not only those with the largest outputs."""
    console, result = console or make_console(), fmt.cleaned(result)
    console.print(styled(" · ".join([*_asked(result), result.device_name]), "bold"))
    _print_batches(result, console)
    predicted = [one for one in result.batches if one.predicted is not None]
    if predicted:
        console.print()
        _print_kinds(predicted, console)
        console.print()
        _print_layers(predicted[-1], console, every=every)
    print_bullets(console, "Without a figure", [*_failures(result), *_reasons(result)])
    print_bullets(console, "Beware", _unchecked(result))


def _unchecked(result: ModelMemory | ModelFit) -> list[str]:
    if result.unchecked_on is None:
        return []
    return [
        "the rules for what the CPU's large operators allocate inside were checked on processors with AVX-512; this "
        f"one has {result.unchecked_on}, where predictions by the rules alone were seen to be off by a quarter"
    ]


def _asked(result: ModelMemory | ModelFit) -> list[str]:
    size = f"{result.channels}×{result.input_size}×{result.input_size}"
    optimizer = [] if result.optimizer is None else [result.optimizer]
    return [result.model, result.mode, result.precision, *optimizer, size]


def _print_batches(result: ModelMemory, console: Console) -> None:
    table = plain_table()
    for title in _batch_columns(result):
        table.add_column(title, justify="right", overflow="fold")
    for cells in _batch_cells(result):
        table.add_row(*(styled(cell) for cell in cells))
    console.print(table)


def _reserve_predicted(result: ModelMemory) -> bool:
    return any(one.predicted_reserved_bytes is not None for one in result.batches)


def _batch_columns(result: ModelMemory) -> tuple[str, ...]:
    *live, reserved, process = BATCH_COLUMNS
    return (*live, *([PREDICTED_RESERVED] if _reserve_predicted(result) else []), reserved, process)


def _batch_cells(result: ModelMemory) -> list[list[str]]:
    rows, with_reserve = [], _reserve_predicted(result)
    for one in result.batches:
        measured = one.measured
        rows.append([
            str(one.batch_size),
            memory_size(None if one.predicted is None else one.predicted.peak_live_bytes),
            memory_size(None if measured is None else measured.peak_live_bytes),
            fmt.MISSING if one.error_fraction is None else f"{one.error_fraction * 100:+.1f} %".replace("-0.0", "0.0"),
            *([memory_size(one.predicted_reserved_bytes)] if with_reserve else []),
            memory_size(None if measured is None else measured.peak_reserved_bytes),
            memory_size(None if measured is None else measured.peak_process_bytes),
        ])  # fmt: skip
    return rows


def _print_kinds(batches: Sequence[BatchMemory], console: Console) -> None:
    """What the predicted peak consists of, and where it is."""
    table = plain_table()
    table.add_column("at the peak", justify="right", no_wrap=True)
    for title in KIND_COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for cells in _kind_cells(batches):
        table.add_row(*(styled(cell) for cell in cells))
    console.print(table)
    for one in batches:
        if one.peak is not None:
            console.print(styled(f"Batch {one.batch_size} peaks in {place_words(one.peak)}."))


def _kind_cells(batches: Sequence[BatchMemory]) -> list[list[str]]:
    rows = []
    for one in batches:
        memory = one.predicted
        if memory is None:
            continue
        sizes = (memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes, memory.activations_bytes,
                 memory.temporary_bytes)  # fmt: skip
        rows.append([f"batch {one.batch_size}", *map(memory_size, sizes)])
    return rows


def place_words(place: PeakPlace) -> str:
    """the backward pass, at layer4.2.conv2 (convolution_backward)"""
    operator = place.operator.removeprefix("aten.").partition(".")[0]
    where = f", at {place.module}" if place.module else ""
    return f"{PHASES[place.phase]}{where} ({operator})" if operator else f"{PHASES[place.phase]}{where}"


def _print_layers(batch: BatchMemory, console: Console, *, every: bool) -> None:
    """Outputs, their running sum, and what is live behind each layer."""
    if not batch.layers:
        return
    rows: Sequence[LayerMemory] = batch.layers
    if not every:
        largest = sorted(rows, key=lambda row: row.output_bytes, reverse=True)[:MOST_LAYERS]
        rows = [row for row in rows if row in largest][:MOST_LAYERS]
    table = plain_table()
    table.add_column(f"layer, batch {batch.batch_size}", overflow="fold")
    for title in LAYER_COLUMNS:
        table.add_column(title, justify="left" if title == "type" else "right", no_wrap=True)
    for cells in map(_layer_cells, rows):
        table.add_row(*(styled(cell) for cell in cells))
    console.print(table)
    left = len(batch.layers) - len(rows)
    more = f"The {len(rows)} largest of {len(batch.layers)} outputs; --all prints them all. " if left else ""
    console.print(styled(f"{more}All outputs together: {memory_size(batch.outputs_bytes)}. {LAYERS_NOTE}", "dim"))


def _layer_cells(row: LayerMemory) -> list[str]:
    return [row.name, row.type, "×".join(map(str, row.shape)), memory_size(row.output_bytes),
            memory_size(row.outputs_bytes), memory_size(row.live_bytes)]  # fmt: skip


def _failures(result: ModelMemory) -> list[str]:
    """Batches that were not measured, or not predicted, and why."""
    lines = [f"batch {one.batch_size}: {one.failure.message}" for one in result.batches if one.failure is not None]
    return lines + [
        f"batch {one.batch_size}, prediction: {one.trace_failure.message}"
        for one in result.batches
        if one.trace_failure is not None and one.failure is None
    ]


def memory_page(result: ModelMemory) -> Page:
    """The study in a report: all its tables, every layer of the largest predicted batch."""
    predicted = [one for one in result.batches if one.predicted is not None]
    tables = [_table("Predicted and measured peaks", _batch_columns(result), _batch_cells(result), 1)]
    if predicted:
        last = predicted[-1]
        tables.append(_table("At the predicted peak", ("batch", *KIND_COLUMNS), _kind_cells(predicted), 1))
        title = f"Layers, batch {last.batch_size}"
        tables.append(_table(title, ("layer", *LAYER_COLUMNS), [*map(_layer_cells, last.layers)], 2, LAYERS_NOTE))
    lines = [*_failures(result), *_reasons(result)]
    places = [f"batch {one.batch_size}: {place_words(one.peak)}" for one in predicted if one.peak is not None]
    found = [("Where the peak is", places), ("Without a figure", lines), ("Beware", _unchecked(result))]
    return Page(
        f"Memory of {result.model}",
        memory_sentence(result),
        [*_asked(result), result.device_name],
        tables,
        [(heading, lines) for heading, lines in found if lines],
    )


def memory_sentence(result: ModelMemory) -> str:
    """The largest batch's peak in one sentence."""
    known = [one for one in result.batches if one.predicted is not None]
    if not known or known[-1].predicted is None:
        return "No batch was predicted yet." if result.interrupted else "Nothing could be predicted."
    last = known[-1]
    assert last.predicted is not None
    error = "" if last.error_fraction is None else f", {abs(last.error_fraction) * 100:.1f} % from the measured peak"
    return f"Batch {last.batch_size} needs {memory_size(last.predicted.peak_live_bytes)}, predicted{error}."


def _table(title: str, columns: Sequence[str], rows: list[list[str]], num_left: int, note: str = "") -> Table:
    return Table(title, tuple((heading.capitalize(), "") for heading in columns), rows, num_left, note)


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


# -- model fit -------------------------------------------------------------------------------------------


def print_fit(result: ModelFit, console: Console | None = None) -> None:
    """Print the answer, the prediction beside it, and every trial."""
    console, result = console or make_console(), fmt.cleaned(result)
    console.print(styled(" · ".join([*_asked(result), result.device_name]), "bold"))
    for line in fit_lines(result):
        console.print(styled(line))
    if result.trials:
        console.print()
        _print_trials(result, console)
    missing = [] if result.not_measured is None else [f"trials: {result.not_measured}"]
    if result.trace_failure is not None:
        missing.append(f"prediction: {result.trace_failure.message}")
    print_bullets(console, "Without a figure", missing)


def fit_lines(result: ModelFit) -> list[str]:
    """The answer in sentences."""
    limit = f"{memory_size(result.memory_bytes)} ({result.memory_source})"
    lines = [_answer(result, limit)]
    if result.predicted_batch is not None and result.not_measured is None:
        lines.append(f"Predicted before any trial: batch {result.predicted_batch}.")
    peaks = [f"{one.batch_size}: {memory_size(one.peak_live_bytes)}" for one in result.predicted]
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
        needs = "" if result.needs_bytes is None else f": needs about {memory_size(result.needs_bytes)} of {limit}"
        if result.needs_bytes is not None and result.needs_bytes <= result.memory_bytes:
            needs = (
                f" within {limit}, though its tensors need about {memory_size(result.needs_bytes)} only: "
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


def _print_trials(result: ModelFit, console: Console) -> None:
    table = plain_table()
    for title in _trial_columns(result):
        table.add_column(title, justify="left" if title == "ended" else "right", no_wrap=True)
    for cells in _trial_cells(result):
        table.add_row(*(styled(cell) for cell in cells))
    console.print(table)
    print_bullets(console, "How they failed", _trial_failures(result))


def _trial_columns(result: ModelFit) -> list[str]:
    return [DATA_TITLE if title == "live peak" and result.how == "rlimit" else title for title in TRIAL_COLUMNS]


def _trial_cells(result: ModelFit) -> list[list[str]]:
    return [
        [str(number), str(one.batch_size), OUTCOMES[one.outcome],
         memory_size(one.peak_data_bytes if result.how == "rlimit" else one.peak_live_bytes),
         memory_size(one.predicted_bytes), fmt.duration(one.wall_s)]
        for number, one in enumerate(result.trials, 1)
    ]  # fmt: skip


def _trial_failures(result: ModelFit) -> list[str]:
    known = {why: one.batch_size for one in result.trials if (why := one.why) is not None}
    return [f"batch {size}: {why}" for why, size in known.items()]


def fit_page(result: ModelFit) -> Page:
    """The study in a report: the answer, and every trial."""
    sentence, *lines = fit_lines(result)
    tables = [_table("Trials", _trial_columns(result), _trial_cells(result), 3)] if result.trials else []
    missing = [] if result.not_measured is None else [f"trials: {result.not_measured}"]
    found = [("The prediction", lines), ("How trials failed", _trial_failures(result)), ("Without a figure", missing)]
    return Page(
        f"Largest batch of {result.model}",
        sentence,
        [*_asked(result), result.device_name],
        tables,
        [(heading, lines) for heading, lines in found if lines],
    )


class ShownFit(Shown[ModelFitFacts, ModelFit]):
    """Shows a search for the largest batch."""

    is_paged = True

    def about(self, facts: ModelFitFacts) -> str:
        return f"{facts.step.model}, {facts.step.mode}"

    def interrupted(self, facts: ModelFitFacts) -> bool:
        return facts.interrupted

    def page(self, found: ModelFit, name: str, *, drawn: bool) -> Page:
        return fit_page(found)

    def print_found(self, found: ModelFit, console: Console) -> None:
        print_fit(found, console)
