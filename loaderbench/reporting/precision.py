"""A precision study as text: time and memory of each mode, then how far its numbers stray from fp32's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loaderbench.cases.inputs import words_of
from loaderbench.recording.facts import MemoryFacts
from loaderbench.recording.studies import (
    InferenceAgreement,
    ModeFigures,
    PrecisionFacts,
    PrecisionResult,
    TrainingAgreement,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting.result import Column, Result, Table
from loaderbench.reporting.shown import Shown

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
TRAINING_NOTE = (
    "Loss and gradient norm: mean and largest deviation over the run; 1st norm: of the first step. "
    "fp32 again: the same training with other rounding, which shows how it amplifies the last bits."
)


def settings(result: PrecisionResult) -> list[str]:
    """What was asked for."""
    size = "full size" if result.input_size is None else f"{result.input_size}×{result.input_size}"
    size = size if result.inputs is None else words_of(result.inputs)
    asked = [result.model, result.mode, f"{result.num_steps} steps", f"batch {result.batch_size}", size]
    return [*asked, result.device_name]


def answer(result: PrecisionResult) -> str:
    """`amp-bf16 1.60× (1.44–1.76)`, for each mode."""
    gains = [f"{mode.precision} {fmt.speedup(mode.speedup)}" for mode in result.modes if mode.speedup is not None]
    return ", ".join(gains) or "No mode was measured."


def _costs(result: PrecisionResult) -> Table:
    """Time and memory."""
    memory = ON_CPU if result.memory_of == "rss_growth_bytes" else ON_DEVICE
    columns = (
        Column("precision", left=True), Column("total", "s", rank=2), Column("images/s", show=fmt.plus_minus_percent),
        Column("speed-up", "×"), *(Column(title, "bytes", rank=3) for title, _ in memory),
        Column("memory", "×", rank=1),
    )  # fmt: skip
    rows = [
        (
            mode.precision, mode.total_s, mode.images_per_s, fmt.value_of(mode.speedup),
            *(None if mode.memory is None else of(mode.memory) for _, of in memory), mode.memory_ratio,
        )
        for mode in result.modes
        if mode.total_s is not None
    ]  # fmt: skip
    return Table("Time and memory", columns, rows)


def _agreement(result: PrecisionResult) -> Table | None:
    """Deviations from fp32, and whether they are too large."""
    known = [(mode, mode.agreement) for mode in result.modes if mode.agreement is not None]
    if not known:
        return None
    train = isinstance(known[0][1], TrainingAgreement)
    titles = IN_TRAINING if train else IN_INFERENCE
    columns = (
        Column("against fp32", left=True), *(Column(title, rank=rank) for rank, title in enumerate(titles, 1)),
        Column("agrees"),
    )  # fmt: skip
    rows = []
    for mode, found in known:
        cells = _in_training(mode, found) if isinstance(found, TrainingAgreement) else _in_inference(found)
        name = f"{mode.precision} again" if mode.precision == "fp32" else mode.precision
        rows.append((name, *cells, AGREES[found.agrees]))
    return Table("Agreement with fp32", columns, rows, TRAINING_NOTE if train else "")


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

    def interrupted(self, facts: PrecisionFacts) -> bool:
        return not facts.modes or any(mode.status == "interrupted" for mode in facts.modes)

    def result(self, facts: PrecisionFacts, found: PrecisionResult) -> Result:
        failed = [
            f"{mode.precision}, {mode.status}: {ENDED if mode.failure is None else mode.failure.message}"
            for mode in found.modes
            if mode.status != "ok"
        ]
        return Result(
            title=f"{found.model}, {found.mode}: precisions",
            settings=settings(found),
            answer=[answer(found)],
            tables=[table for table in (_costs(found), _agreement(found)) if table is not None],
            sections=[("Not measured", failed), ("Caveats", [caveat.sentence() for caveat in found.caveats])],
        )
