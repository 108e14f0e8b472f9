"""`model io` as text: a table of batches, and what a copy is here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from loaderbench.recording.model_io import CopyFigures, IoFacts, IoRow, ModelIo
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, cells, line, name_axes
from loaderbench.reporting.result import Column, Result, Row, Table
from loaderbench.reporting.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Sequence


COLUMNS = (
    Column("batch"), Column("in", "bytes", rank=2), Column("ms", "ms"), Column("bytes/s", "bytes/s", rank=1),
    Column("out", "bytes", rank=2), Column("ms", "ms"), Column("bytes/s", "bytes/s", rank=1),
)  # fmt: skip
NOTE = "In: the images to the device; out: the outputs to the host. Medians of the copies (95 % intervals)."
SAME_MEMORY = (
    "The device computes in the host's memory, where no copy is needed: these are copies from one part of the "
    "same RAM to another, by one thread, from and to memory that no cache holds."
)
PINNED = "From pinned memory that no cache holds, and back to such memory, each from an idle device to its end."


def settings(result: ModelIo) -> list[str]:
    """What was asked for."""
    return [result.model, result.precision, fmt.image_shape(result), result.device_name]


def io_sentence(result: ModelIo) -> str:
    """Batch 128: 77.1 MB in 6.2 ms (12.4 GB/s), outputs back in 0.1 ms."""
    known = [row for row in result.batches if row.data_in.s is not None and row.data_out.s is not None]
    if not known:
        return "No batch was copied."
    row = known[-1]
    assert row.data_in.s is not None and row.data_out.s is not None
    rate = "" if row.data_in.bytes_per_s is None else f" ({fmt.size(row.data_in.bytes_per_s.value, '/s')})"
    return (
        f"Batch {row.batch_size}: {fmt.size(row.data_in.num_bytes)} in {fmt.duration(row.data_in.s.value)}{rate}, "
        f"{fmt.size(row.data_out.num_bytes)} of outputs back in {fmt.duration(row.data_out.s.value)}."
    )


def _way(one: CopyFigures) -> Row:
    return (one.num_bytes, one.s, None if one.bytes_per_s is None else one.bytes_per_s.value)


def meaning(result: ModelIo) -> list[str]:
    """What the figures mean, and why some are missing."""
    lines = [SAME_MEMORY if result.same_memory else PINNED]
    if result.known is not None:
        rate = fmt.size(result.known.bytes_per_s, "/s")
        lines = [
            "Not measured: an emulated device makes no copies. Both ways take their bytes ÷ the copy rate "
            f"of its profile, {rate} ({result.known.source}); outputs are taken as those of 1,000 classes."
        ]
    lines += [f"batch {row.batch_size}: {row.why}" for row in result.batches if row.why is not None]
    if result.interrupted:
        lines.append("Not all batches were copied.")
    return lines


def figures(result: ModelIo) -> list[Figure]:
    """The copies' times by batch, where there are several."""
    rows = [row for row in result.batches if row.data_in.s is not None]
    copies = Figure(
        "copies",
        f"Data in and out of {result.device_name}, by batch",
        "Time of the images' way in and of the outputs' way out, with 95 % intervals where they were measured.",
        [
            {
                "batch": row.batch_size,
                "in_bytes": row.data_in.num_bytes,
                **cells(row.data_in.s, "in_ms", "in_low_ms", "in_high_ms", scale=1e3),
                "out_bytes": row.data_out.num_bytes,
                **cells(row.data_out.s, "out_ms", "out_low_ms", "out_high_ms", scale=1e3),
            }
            for row in rows
        ],
        2.6,
        partial(_draw, rows=rows),
    )
    return [copies] if len(rows) > 1 else []


def _draw(drawing: Drawing, rows: Sequence[IoRow]) -> None:
    left, right = drawing.axes(2, columns=2)
    batches = [row.batch_size for row in rows]
    line(left, batches, [row.data_in.s for row in rows], "line0", scale=1e3)
    line(right, batches, [row.data_out.s for row in rows], "line1", scale=1e3)
    name_axes(left, "batch", "ms in", from_zero="xy")
    name_axes(right, "batch", "ms out", from_zero="xy")


class ShownIo(Shown[IoFacts, ModelIo]):
    """Shows a study of copies to a device."""

    def about(self, facts: IoFacts) -> str:
        return f"{facts.model}, {facts.device_name}"

    def interrupted(self, facts: IoFacts) -> bool:
        return len(facts.batches) < facts.num_batches and all(one.failure is None for one in facts.batches)

    def result(self, facts: IoFacts, found: ModelIo) -> Result:
        rows = [(row.batch_size, *_way(row.data_in), *_way(row.data_out)) for row in found.batches]
        return Result(
            title=f"{found.model}: data in and out of {found.device_name}",
            settings=settings(found),
            answer=[io_sentence(found)],
            tables=[Table("Copies", COLUMNS, rows, NOTE if found.known is None else "")],
            sections=[("What it means", meaning(found))],
            draw=partial(figures, found),
        )
