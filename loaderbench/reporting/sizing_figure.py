"""The figure of a sizing study: images/s and milliseconds an image against the batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from loaderbench.recording.model_size import Sizing
from loaderbench.reporting.figures import Figure, colour, errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing


class _Point(NamedTuple):
    """One batch."""

    batch_size: int
    images_per_s: float
    low_images_per_s: float | None
    high_images_per_s: float | None
    ms_per_image: float
    chosen: str


def sizing_figures(sizing: Sizing) -> list[Figure]:
    """The rates by batch, where there are any."""
    points = [
        _Point(
            row.batch_size, row.samples_per_s.value, row.samples_per_s.low, row.samples_per_s.high,
            row.s_per_sample * 1e3, "yes" if row.batch_size == sizing.chosen_batch else "no",
        )
        for row in sizing.batches
        if row.samples_per_s is not None and row.s_per_sample is not None
    ]  # fmt: skip
    if not points:
        return []
    rates = Figure(
        "batches",
        f"{sizing.model}, {sizing.mode}: images/s, and time per image, by batch",
        "Measured batches with their 95 % intervals; times of an emulated device are its profile's, and have none. The "
        "dashed line is the batch of the answer.",
        _Point._fields,
        points,
        2.6,
        partial(_draw, points=points),
    )
    return [rates]


def _draw(drawing: Drawing, points: Sequence[_Point]) -> None:
    left, right = drawing.subplots(1, 2)
    sizes = [float(point.batch_size) for point in points]
    rates = [point.images_per_s for point in points]
    reach = errors(rates, [point.low_images_per_s for point in points], [point.high_images_per_s for point in points])
    style: dict[str, Any] = {"color": colour("line0"), "markersize": 4, "linewidth": 1.4}
    left.errorbar(sizes, rates, yerr=reach, fmt="o-", capsize=2, **style)
    left.set_ylabel("images/s")
    right.plot(sizes, [point.ms_per_image for point in points], "s-", **{**style, "color": colour("line1")})
    right.set_ylabel("ms per image")
    for axes in (left, right):
        _batches(axes, points)


def _batches(axes: Axes, points: Sequence[_Point]) -> None:
    """An axis of doublings from zero upward, the chosen batch marked."""
    sizes = [point.batch_size for point in points]
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("batch")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    for point in points:
        if point.chosen == "yes":
            axes.axvline(point.batch_size, color=colour("soft"), linewidth=1, linestyle="--")
