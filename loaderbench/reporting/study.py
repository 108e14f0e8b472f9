"""What a study says beyond its runs, and what tuning found, as text in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loaderbench.reporting import format as fmt
from loaderbench.reporting.format import MISSING, NOT_MEASURED
from loaderbench.reporting.terminal import _bullets, _plain_table, _rows, _text, make_console

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("res", "loader", "time", "× serial", "batch", "read", "ceiling", "gaps")


def print_study(study: Mapping[str, Any], console: Console | None = None) -> None:
    """Total times, times over serial, bytes and gaps; then knees and flips. The form of analysis/study.py."""
    console = console or make_console()
    rows = study["rows"]
    if len(rows) < 2:
        return
    table = _plain_table()
    for number, title in enumerate(COLUMNS):
        table.add_column(title, justify="left" if number == 1 else "right", no_wrap=number != 1, overflow="fold")
    for name, group in fmt.by_resolution(rows):
        for row in sorted(group, key=lambda one: -one["total_s"]):
            faster = row["faster_than_serial"]
            cells = (
                name if row is max(group, key=lambda one: one["total_s"]) else "",
                fmt.row_label(row, rows),
                fmt.duration(row["total_s"]),
                _ratio(faster),
                fmt.size(row["batch_bytes"]),
                fmt.size(row["read_bytes_per_s"], "/s"),
                fmt.size(row["ceiling_bytes_per_s"], "/s"),
                fmt.percent(row["gap_fraction"]),
            )
            table.add_row(*(_text(cell) for cell in cells))
        table.add_section()
    console.print()
    console.print(table)
    note = (
        f"time of {study['num_steps']} steps; × serial: images/s over the serial run's, 95 %; batch: encoded bytes; "
        f"read: what the storage gave; gaps: of the step without a kernel; {MISSING} {NOT_MEASURED}"
    )
    console.print(_text(note, "dim"))
    _bullets(console, "Knee in workers", [knee_line(one, rows) for one in study["knees"]])
    _bullets(console, "Where the bottleneck flips", [flip_line(one, rows) for one in study["flips"]])


def _ratio(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None:
        return MISSING
    unknown = estimate["high"] is not None and estimate["high"] > 10 * estimate["value"]
    return f"{estimate['value']:.2f}× (± over 100 %)" if unknown else fmt.speedup(estimate)


def _without_workers(case: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    return fmt.row_label({"case": {**case, "workers": 0}}, rows)


def knee_line(knee: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """`256 multiprocess: 4 workers (tried 1, 2, 4, 8), 2.00 ms of CPU an image, 4.00 GB of memory`"""
    more = ", or more" if knee["is_last"] else ""
    tried = ", ".join(map(str, knee["tried"]))
    cost = [
        f"{fmt.duration(knee['seconds_per_sample'])} of CPU an image" if knee["seconds_per_sample"] is not None else "",
        f"{fmt.size(knee['workers_rss_bytes'])} of memory" if knee["workers_rss_bytes"] is not None else "",
    ]
    where = f"{fmt.resolution(knee)} {_without_workers(knee['case'], rows)}"
    text = f"{where}: {knee['workers']} workers{more} (tried {tried})"
    return ", ".join([text, *(part for part in cost if part)])


def flip_line(flip: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """`multiprocess 2w: compute at resolution 256, prep at 512`"""
    before, after = flip["at"]
    first, second = flip["bottlenecks"]
    if flip["along"] == "resolution":
        return f"{fmt.row_label(flip, rows)}: {first} at resolution {before}, {second} at {after}"
    where = f"{fmt.resolution(flip)} {_without_workers(flip['case'], rows)}"
    return f"{where}: {first} with {before} workers, {second} with {after}"


def print_tuning(found: Mapping[str, Any], snippet: str, console: Console | None = None) -> None:
    """The winner with its interval, what it was compared with, and how to use it. The form of studies/tune.py."""
    console = console or make_console()
    console.print(_text(f"fastest: {fmt.clean(found['flags'])}", "bold green"))
    _rows(
        console,
        [
            ("images/s", fmt.plus_minus(found["rate"])),
            ("over default", _told_apart(found["over_default"], "it is the default")),
            ("over second", _told_apart(found["over_second"], "there was no second")),
            ("tried", f"{len(found['trials'])} of {found['num_settings']} settings in {found['num_rungs']} rungs"),
            ("took", f"{fmt.duration(found['spent_s'])} of {fmt.duration(found['budget_s'])}"),
        ],
    )
    table = _plain_table()
    for title in ("loader", "decoder", "output", "workers", "prefetch", "images/s", ""):
        table.add_column(title, justify="right" if title in ("workers", "prefetch", "images/s") else "left")
    for one in found["finalists"]:
        rate = MISSING if one["rate"] is None else fmt.plus_minus_percent(one["rate"])
        names = (str(one[name] or MISSING) for name in ("loader", "decoder", "output", "workers", "prefetch"))
        table.add_row(*(_text(fmt.clean(text)) for text in (*names, rate, "default" if one["is_default"] else "")))
    console.print()
    console.print(table)
    failed = [one for one in found["trials"] if one["failure"]]
    _bullets(
        console, "Not measured", [fmt.clean(f"{one['loader']} {one['decoder']}: {one['failure']}") for one in failed]
    )
    console.print(_text("\nIn a training script:\n", "bold"))
    console.print(_text(snippet), soft_wrap=True)


def _told_apart(ratio: Mapping[str, Any] | None, otherwise: str) -> str:
    if ratio is None:
        return otherwise
    within = ratio["low"] is not None and ratio["low"] <= 1 <= ratio["high"]
    return fmt.speedup(ratio) + (": not told apart in this time" if within else "")
