"""`model io` as text: a table of batches, and what a copy is here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from loaderbench.recording.model_io import CopyFigures, IoFacts, IoRow, ModelIo
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import make_console, plain_table, print_bullets, styled
from loaderbench.reporting.figures import Figure, colour, errors
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.tables import Cells, Page, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure as Drawing
    from rich.console import Console

COLUMNS = ("batch", "in", "ms", "bytes/s", "out", "ms", "bytes/s")
NOTE = "In: the images to the device; out: the outputs to the host. Medians of the copies (95 % intervals)."
SAME_MEMORY = (
    "The device computes in the host's memory, where nothing has to be copied: these are copies from one part of the "
    "same RAM to another, by one thread, from and to memory that no cache holds."
)
PINNED = "From pinned memory that no cache holds, and back to such memory, each from an idle device to its end."


def print_io(result: ModelIo, console: Console | None = None) -> None:
    """Print every batch, and what a copy is here."""
    console, result = console or make_console(), fmt.cleaned(result)
    console.print(styled(" · ".join(settings(result)), "bold"))
    console.print(styled(io_sentence(result)))
    console.print()
    table = plain_table()
    for title in COLUMNS:
        table.add_column(title, justify="right", overflow="fold")
    for cells in io_rows(result):
        table.add_row(*(styled(cell) for cell in cells))
    console.print(table)
    print_bullets(console, "What it means", meaning(result))


def settings(result: ModelIo) -> list[str]:
    """What was asked for."""
    size = f"{result.channels}×{result.input_size}×{result.input_size}"
    return [result.model, result.precision, size, result.device_name]


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


def io_rows(result: ModelIo) -> Cells:
    """A row a batch."""
    return [[str(row.batch_size), *_cells(row.data_in), *_cells(row.data_out)] for row in result.batches]


def _cells(one: CopyFigures) -> list[str]:
    milliseconds = fmt.MISSING
    if one.s is not None:
        milliseconds = fmt.number(one.s.value * 1e3)
        if one.s.low is not None and one.s.high is not None:
            milliseconds += f" ({fmt.number(one.s.low * 1e3)}–{fmt.number(one.s.high * 1e3)})"
    rate = fmt.MISSING if one.bytes_per_s is None else fmt.size(one.bytes_per_s.value, "/s")
    return [fmt.size(one.num_bytes), milliseconds, rate]


def meaning(result: ModelIo) -> list[str]:
    """What the figures mean, and why some are missing."""
    lines = [NOTE]
    if result.known is not None:
        rate = fmt.size(result.known.bytes_per_s, "/s")
        lines = [
            "Nothing was measured here: an emulated device copies nothing. Both ways take their bytes ÷ the copy rate "
            f"of its profile, {rate} ({result.known.source}); outputs are taken as those of 1,000 classes."
        ]
    else:
        lines.append(SAME_MEMORY if result.same_memory else PINNED)
    lines += [f"batch {row.batch_size}: {row.why}" for row in result.batches if row.why is not None]
    if result.interrupted:
        lines.append("Not all batches were copied.")
    return lines


class _Point(NamedTuple):
    """One batch."""

    batch: int
    in_bytes: int | None
    in_ms: float | None
    in_low_ms: float | None
    in_high_ms: float | None
    out_bytes: int | None
    out_ms: float | None
    out_low_ms: float | None
    out_high_ms: float | None


def _point(row: IoRow) -> _Point:
    cells: list[Any] = [row.batch_size]
    for way in (row.data_in, row.data_out):
        times = (None, None, None) if way.s is None else (way.s.value, way.s.low, way.s.high)
        cells += [way.num_bytes, *(None if one is None else one * 1e3 for one in times)]
    return _Point(*cells)


def io_page(result: ModelIo, name: str, *, drawn: bool) -> Page:
    """The study in a report. `name`: prefix of its figure's name; `drawn`: whether it has any."""
    points = [_point(row) for row in result.batches if row.data_in.s is not None]
    figure = Figure(
        f"{name}-copies",
        f"Data in and out of {result.device_name}, by batch",
        "Time of the images' way in and of the outputs' way out, with 95 % intervals where they were measured.",
        _Point._fields,
        points,
        2.6,
        partial(_draw, points=points),
    )
    return Page(
        title=f"{result.model}: data in and out of {result.device_name}",
        sentence=io_sentence(result),
        settings=settings(result),
        tables=[Table("Copies", tuple((title, "") for title in COLUMNS), io_rows(result), 0, NOTE)],
        findings=[("What it means", meaning(result))],
        figures=[figure] if drawn and len(points) > 1 else [],
    )


def _draw(drawing: Drawing, points: Sequence[_Point]) -> None:
    for number, (axes, way) in enumerate(zip(drawing.subplots(1, 2), ("in", "out"), strict=True)):
        first = 2 + 4 * number
        batches: list[int] = []
        values: list[float] = []
        ends: list[tuple[Any, Any]] = []
        for point in points:
            value, low, high = point[first : first + 3]
            if value is not None:
                batches.append(point.batch)
                values.append(value)
                ends.append((low, high))
        reach = errors(values, [low for low, _ in ends], [high for _, high in ends])
        style: dict[str, Any] = {"color": colour(f"line{number}"), "markersize": 3.5, "linewidth": 1.2}
        axes.errorbar(batches, values, yerr=reach, fmt="o-", capsize=2, **style)
        axes.set_xlabel("batch")
        axes.set_ylabel(f"ms {way}")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.grid(axis="y")


class ShownIo(Shown[IoFacts, ModelIo]):
    """Shows a study of copies to a device."""

    is_paged = True

    def about(self, facts: IoFacts) -> str:
        return f"{facts.model}, {facts.device_name}"

    def interrupted(self, facts: IoFacts) -> bool:
        return len(facts.batches) < facts.num_batches and all(one.failure is None for one in facts.batches)

    def page(self, found: ModelIo, name: str, *, drawn: bool) -> Page:
        return io_page(found, name, drawn=drawn)

    def print_found(self, found: ModelIo, console: Console) -> None:
        print_io(found, console)
