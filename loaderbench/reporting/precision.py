"""A precision study as text: time and memory of each mode, then how far its numbers stray from fp32's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from loaderbench.plain import JsonObject
from loaderbench.recording.facts import MemoryFacts
from loaderbench.recording.studies import (
    InferenceAgreement,
    ModeFigures,
    PrecisionFacts,
    PrecisionResult,
    TrainingAgreement,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import make_console, plain_table, print_bullets, print_caveats, styled
from loaderbench.reporting.shown import Shown

if TYPE_CHECKING:
    from rich.console import Console

MemoryColumn = tuple[str, Callable[[MemoryFacts], int | None]]
ON_CPU: tuple[MemoryColumn, ...] = (("RSS growth", lambda memory: memory.rss_growth_bytes),)
ON_DEVICE: tuple[MemoryColumn, ...] = (
    ("allocated", lambda memory: memory.allocated_bytes),
    ("reserved", lambda memory: memory.reserved_bytes),
    ("process", lambda memory: memory.process_bytes),
)
IN_TRAINING = ("1st norm", "loss", "max", "norm", "max", "overflows", "scale")
IN_INFERENCE = ("logits off", "same class", "not finite")
AGREES = {True: "yes", False: "NO", None: fmt.MISSING}
ENDED = "ended by the user or the system"


def print_precision(result: PrecisionResult, console: Console | None = None) -> None:
    """Print all modes; those that were not measured with the reason."""
    console, result = console or make_console(), fmt.cleaned(result)
    size = "full size" if result.input_size is None else f"{result.input_size}×{result.input_size}"
    asked = [result.model, result.mode, f"{result.num_steps} steps", f"batch {result.batch_size}", size]
    console.print(styled(" · ".join([*asked, result.device_name]), "bold"))
    _print_costs(result, console)
    console.print()
    _print_agreement(result, console)
    failed = [
        f"{mode.precision}, {mode.status}: {ENDED if mode.failure is None else mode.failure.message}"
        for mode in result.modes
        if mode.status != "ok"
    ]
    print_bullets(console, "Not measured", failed)
    print_caveats(console, result.caveats)


def _print_costs(result: PrecisionResult, console: Console) -> None:
    """Time and memory."""
    columns = ON_CPU if result.memory_of == "rss_growth_bytes" else ON_DEVICE
    table = plain_table()
    table.add_column("precision", no_wrap=True)
    for title in ("total", "images/s", "speed-up", *(title for title, _ in columns), "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for mode in result.modes:
        if mode.total_s is None:
            continue
        memory, ratio = mode.memory, mode.memory_ratio
        cells = [
            fmt.duration(mode.total_s),
            fmt.plus_minus_percent(mode.images_per_s),
            fmt.MISSING if mode.speedup is None else f"{mode.speedup.value:.2f}×",
            *(fmt.size(None if memory is None else of(memory)) for _, of in columns),
            fmt.MISSING if ratio is None else f"{ratio:.2f}×",
        ]
        table.add_row(styled(mode.precision), *(styled(cell) for cell in cells))
    console.print(table)


def _print_agreement(result: PrecisionResult, console: Console) -> None:
    """Deviations from fp32, and whether they are too large."""
    known = [(mode, mode.agreement) for mode in result.modes if mode.agreement is not None]
    if not known:
        return
    train = result.mode == "train"
    table = plain_table()
    table.add_column("against fp32", no_wrap=True)
    for title in (*(IN_TRAINING if train else IN_INFERENCE), "agrees"):
        table.add_column(title, justify="right", no_wrap=True)
    for mode, agreement in known:
        cells = _in_training(mode, agreement) if isinstance(agreement, TrainingAgreement) else _in_inference(agreement)
        name = f"{mode.precision} again" if mode.precision == "fp32" else mode.precision
        table.add_row(styled(name), *(styled(cell) for cell in (*cells, AGREES[agreement.agrees])))
    console.print(table)
    if train:
        legend = (
            "Loss and gradient norm: mean and largest deviation over the run; 1st norm: of the first step. "
            "fp32 again: the same training with other rounding, which shows how it amplifies the last bits."
        )
        console.print(styled(legend, "dim"))


def _in_training(mode: ModeFigures, agreement: TrainingAgreement) -> Sequence[str]:
    loss, norm, scale = agreement.loss_deviation, agreement.gradient_norm_deviation, mode.loss_scale
    return [
        *(_deviation(fraction) for fraction in (norm.first, loss.mean, loss.max, norm.mean, norm.max)),
        str(agreement.num_overflow_steps),
        fmt.MISSING if scale in (None, 1.0) else scale if isinstance(scale, str) else f"{scale:g}",
    ]


def _in_inference(agreement: InferenceAgreement) -> Sequence[str]:
    same_class = fmt.percent(agreement.top1_fraction, decimals=1)
    return [_deviation(agreement.output_deviation), same_class, str(agreement.num_nonfinite_images)]


def _deviation(fraction: float | None) -> str:
    """Two significant digits, whatever the magnitude: 0.034 %, 12 %."""
    if fraction is None:
        return fmt.MISSING
    return "<0.001 %" if 0 < fraction < 1e-5 else f"{fmt.number(fraction * 100, 2)} %"


class ShownPrecision(Shown[PrecisionFacts, PrecisionResult]):
    """Shows a precision study."""

    def about(self, facts: PrecisionFacts) -> str:
        return f"{facts.model}, {facts.mode}"

    def interrupted(self, facts: PrecisionFacts) -> bool:
        return not facts.modes or any(mode.status == "interrupted" for mode in facts.modes)

    def print_found(self, found: PrecisionResult, console: Console) -> None:
        print_precision(found, console)

    def sentence(self, found: PrecisionResult) -> str:
        gains = [f"{one.precision} {fmt.speedup(one.speedup)}" for one in found.modes if one.speedup is not None]
        return ", ".join(gains) or "no mode was measured"

    def as_json(self, facts: PrecisionFacts, found: PrecisionResult) -> JsonObject:
        return super().as_json(facts, replace(found, caveats=tuple(caveat.worded() for caveat in found.caveats)))
