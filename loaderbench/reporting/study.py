"""What a study says beyond its runs, and what tuning found, as text in 80 columns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loaderbench.analysis.study import UNRULED, conclusions
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
                ratio(faster),
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
    _bullets(console, "Gaps between kernels, by workers", gap_lines(rows))
    _bullets(console, "Knee in workers", [knee_line(one, rows) for one in study["knees"]])
    _bullets(console, "A run as short as its buffer", short_run_lines(rows))
    _bullets(console, "Where the bottleneck flips", [flip_line(one, rows) for one in study["flips"]])


LIMITS = {
    "storage": "the storage is the limit",
    "prep": "preparing images on the CPU is the limit",
    "transfer": "the copy to the device is the limit",
    "launch": "launching kernels is the limit",
    "compute": "the device itself is the limit",
    "mixed": "several stages are the limit together",
}


def study_sentence(study: Mapping[str, Any]) -> str:
    """The study in one sentence: what limits the fastest setting of each resolution, and what mending it would give.

    `With the fastest of 4 settings tried: at 256 the device itself is the limit; at 512 and 1024 preparing images on
    the CPU is the limit, and without it 1.27× and 2.10× would be possible.`
    """
    best = conclusions(study["rows"])
    if not best:
        return "No run of this study was measured."
    parts = []
    for word, group in itertools.groupby(best, key=lambda row: row["bottleneck"]):
        rows = list(group)
        names = [fmt.resolution(row) for row in rows]
        where = "" if names == ["stored"] else f"at {_listed(names)} "
        if word in UNRULED:
            parts.append(f"{where}the runs do not tell what the limit is")
            continue
        gains = [row["speedup_if_removed"] for row in rows]
        text = where + LIMITS.get(word, f"{fmt.clean(word)} is the limit")
        if word == "compute":
            text += ", so faster storage or more workers would buy nothing"
        elif all(gain is not None for gain in gains):
            what = "them" if word == "mixed" else "it"
            text += (
                f", and without {what} {_listed([fmt.number(gain['value']) + '×' for gain in gains])} would be possible"
            )
        parts.append(text)
    tried = len({fmt.row_label(row, study["rows"]) for row in study["rows"]})
    begin = f"With the fastest of {tried} settings tried: " if tried > 1 else ""
    text = begin + "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def ratio(estimate: Mapping[str, Any] | None) -> str:
    """`1.60× (1.44–1.76)`, its interval cut short where it is all but unknown."""
    if estimate is None:
        return MISSING
    unknown = estimate["high"] is not None and estimate["high"] > 10 * estimate["value"]
    return f"{estimate['value']:.2f}× (± over 100 %)" if unknown else fmt.speedup(estimate)


def _without_workers(case: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    return fmt.row_label({"case": {**case, "workers": 0}}, rows)


def gap_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """`256 multiprocess: 52 % of a step with 1 worker (data stall 48 %, 12 gaps), 8 % with 2 (…)`, where traced."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for _, group in fmt.by_resolution(rows):
        for row in sorted(group, key=lambda one: int(one["case"]["workers"])):
            if row["gap_fraction"] is not None:
                groups.setdefault(f"{fmt.resolution(row)} {_without_workers(row['case'], rows)}", []).append(row)
    return [
        f"{name}: " + ", ".join(_gaps_with(row, first=row is some[0]) for row in some)
        for name, some in groups.items()
        if len(some) > 1
    ]


def _gaps_with(row: Mapping[str, Any], *, first: bool) -> str:
    stall = (row["gap_fraction_by_class"] or {}).get("data_stall")
    inside = [
        f"data stall {fmt.percent(stall['fraction'])}" if stall else "",
        f"{fmt.number(row['gaps_per_step'], 2)} gaps" if row["gaps_per_step"] is not None else "",
        f"95 % of them below {fmt.duration(row['gap_p95_s'])}" if row["gap_p95_s"] is not None else "",
    ]
    text = f"{fmt.percent(row['gap_fraction'])}{' of a step' if first else ''} with {row['case']['workers']} workers"
    return f"{text} ({', '.join(one for one in inside if one)})"


def short_run_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """`512 multiprocess 2w buffer 1.0 of the run: 100 steps behind 100 ready batches show 1.58× of the steady rate`"""
    return [
        f"{fmt.resolution(row)} {fmt.row_label(row, rows)}: {short['num_steps']} steps behind "
        f"{short['buffer_batches']} ready batches show {ratio(short['flatters'])} of the steady rate"
        for _, group in fmt.by_resolution(rows)
        for row in sorted(group, key=lambda one: one["case"].get("buffer_ratio") or 0.0)
        if (short := row["short_run"]) is not None
    ]


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
