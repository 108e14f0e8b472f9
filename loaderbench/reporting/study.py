"""What a study says beyond its runs, and what tuning found, as text of 80 columns."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaderbench.analysis.study import fastest, summarize, told_apart
from loaderbench.cases.case import Change, FieldValue
from loaderbench.cases.study import other_options
from loaderbench.recording.record import Estimate, RunRecord
from loaderbench.recording.studies import Finalist, Flip, Knee, Row, Sweep, TuneFacts, Tuning
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import make_console, plain_table, print_bullets, print_rows, styled
from loaderbench.reporting.format import MISSING, NOT_MEASURED
from loaderbench.reporting.words import changed_pixels, flags

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("res", "loader", "time", "× serial", "batch", "read", "ceiling", "gaps")


def print_study(study: Sweep, console: Console | None = None) -> None:
    """Print total times, speed-ups over serial, bytes and gaps; then knees and flips."""
    console, study = console or make_console(), fmt.cleaned(study)
    rows, labels = study.rows, fmt.RowLabels(study.rows)
    if len(rows) < 2:
        return
    table = plain_table()
    for number, title in enumerate(COLUMNS):
        table.add_column(title, justify="left" if number == 1 else "right", no_wrap=number != 1, overflow="fold")
    for name, group in fmt.by_resolution(rows):
        ordered = sorted(group, key=lambda row: -row.total_s)
        for row in ordered:
            cells = (
                name if row is ordered[0] else "",
                labels.of(row.case),
                fmt.duration(row.total_s),
                fmt.ratio(row.faster_than_serial),
                fmt.size(row.batch_bytes),
                fmt.size(row.read_bytes_per_s, "/s"),
                fmt.size(row.ceiling_bytes_per_s, "/s"),
                fmt.percent(row.gap_fraction),
            )
            table.add_row(*(styled(cell) for cell in cells))
        table.add_section()
    console.print()
    console.print(table)
    note = (
        f"time of {study.num_steps} steps; × serial: images/s over the serial run's, 95 %; batch: encoded bytes; "
        f"read: what the storage gave; gaps: of the step without a kernel; {MISSING} {NOT_MEASURED}"
    )
    console.print(styled(note, "dim"))
    print_bullets(console, "Gaps between kernels, by workers", gap_lines(rows))
    print_bullets(console, "Knee in workers", [knee_line(knee, labels) for knee in study.knees])
    print_bullets(console, "A run as short as its buffer", short_run_lines(rows))
    print_bullets(console, "Where the bottleneck flips", [flip_line(flip, labels) for flip in study.flips])


@dataclass(frozen=True)
class Finding:
    """What a study found at one resolution."""

    resolution: str
    text: str
    """The fastest setting with its rate, and what limits it."""
    todo: str = ""
    """What to do first, with what it gives; empty where nothing is advised."""


def finding_lines(records: Sequence[RunRecord]) -> list[str]:
    """What a study found, a line for each resolution, small ones first: the fastest setting with its rate, what limits
    it and what to do. The terminal and the report both say it in these words.

    `512: fastest of 4 settings is threaded 2w, 1,365 ±16% images/s. CPU preparation (…) limits this run: without it
    1.47× (1.34 – 1.65) faster. Try: …`
    """
    return [f"{one.resolution}: {one.text}{f' Try: {one.todo}.' if one.todo else ''}" for one in findings(records)]


def findings(records: Sequence[RunRecord]) -> list[Finding]:
    """The same in parts."""
    by_id, labels = {record.run_id: record for record in records}, fmt.RowLabels(records)
    found = []
    measured = dict(fmt.by_resolution(summarize(records).rows))
    for name, _ in fmt.by_resolution(records):
        rows = fastest(measured.get(name, ()))
        found.append(_finding(name, rows, by_id, labels) if rows else Finding(name, NOT_MEASURED))
    return found


def _finding(name: str, rows: Sequence[Row], by_id: Mapping[str, RunRecord], labels: fmt.RowLabels) -> Finding:
    """`rows`: those of one resolution, the fastest first."""
    winner = rows[0]
    begin = f"fastest of {len(rows)} settings is " if len(rows) > 1 else ""
    close = [labels.of(row.case) for row in rows[1:] if not told_apart(winner, row)]
    unsure = f" (not told apart from {_listed(close)})" if close else ""
    runs = [by_id[run] for run in winner.run_ids]
    verdicts = dict.fromkeys(fmt.outcome(record) for record in runs)
    sentence = fmt.sentence(runs[-1])
    if len(verdicts) > 1:
        sentence = f"Its {len(runs)} repeats do not agree on what limits it: {', '.join(verdicts)}."
    advice = runs[-1].verdict.advice if runs[-1].verdict is not None and len(verdicts) == 1 else ()
    rate = fmt.plus_minus_percent(winner.rate)
    text = f"{begin}{labels.of(winner.case)}, {rate} images/s{unsure}. {sentence}"
    return Finding(name, text, fmt.advice(advice[0]) if advice else "")


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def gap_lines(rows: Sequence[Row]) -> list[str]:
    """`256 multiprocess: 52 % of a step with 1 worker (data stall 48 %, 12 gaps), 8 % with 2 (…)`, where traced."""
    groups: dict[str, list[Row]] = {}
    labels = fmt.RowLabels(rows)
    for resolution, group in fmt.by_resolution(rows):
        for row in sorted(group, key=lambda row: row.case.feed.workers):
            if row.gap_fraction is not None:
                groups.setdefault(f"{resolution} {labels.without_workers(row.case)}", []).append(row)
    return [
        f"{name}: " + ", ".join(_gaps_with(row, first=row is group[0]) for row in group)
        for name, group in groups.items()
        if len(group) > 1
    ]


def _gaps_with(row: Row, *, first: bool) -> str:
    stall = (row.gap_fraction_by_class or {}).get("data_stall")
    inside = [
        f"data stall {fmt.percent(stall.fraction)}" if stall else "",
        f"{fmt.number(row.gaps_per_step, 2)} gaps" if row.gaps_per_step is not None else "",
        f"95 % of them below {fmt.duration(row.gap_p95_s)}" if row.gap_p95_s is not None else "",
    ]
    text = f"{fmt.percent(row.gap_fraction)}{' of a step' if first else ''} with {row.case.feed.workers} workers"
    return f"{text} ({', '.join(part for part in inside if part)})"


def short_run_lines(rows: Sequence[Row]) -> list[str]:
    """`512 multiprocess 2w: 100 steps with 100 batches ready at the start show 1.58× of the steady rate`"""
    labels = fmt.RowLabels(rows)
    return [
        f"{resolution} {labels.of(row.case)}: {short.num_steps} steps with {short.buffer_batches} batches "
        f"ready at the start show {fmt.ratio(short.flatters)} of the steady rate"
        for resolution, group in fmt.by_resolution(rows)
        for row in sorted(group, key=lambda row: row.case.feed.buffer_ratio or 0.0)
        if (short := row.short_run) is not None
    ]


def knee_line(knee: Knee, labels: fmt.RowLabels) -> str:
    """`256 multiprocess: 4 workers (tried 1, 2, 4, 8), 2.00 ms of CPU an image, 4.00 GB of memory`"""
    more = ", or more" if knee.is_last else ""
    tried = ", ".join(map(str, knee.tried))
    cost = [
        f"{fmt.duration(knee.seconds_per_sample)} of CPU an image" if knee.seconds_per_sample is not None else "",
        f"{fmt.size(knee.workers_pss_bytes)} of memory" if knee.workers_pss_bytes is not None else "",
    ]
    where = f"{fmt.resolution(knee.case)} {labels.without_workers(knee.case)}"
    text = f"{where}: {knee.workers} workers{more} (tried {tried})"
    return ", ".join([text, *(part for part in cost if part)])


def flip_line(flip: Flip, labels: fmt.RowLabels) -> str:
    """`multiprocess 2w: compute at resolution 256, prep at 512`"""
    before, after = flip.at
    first, second = flip.bottlenecks
    if flip.along == "resolution":
        return f"{labels.of(flip.case)}: {first} at resolution {before}, {second} at {after}"
    where = f"{fmt.resolution(flip.case)} {labels.without_workers(flip.case)}"
    return f"{where}: {first} with {before} workers, {second} with {after}"


# -- tuning ----------------------------------------------------------------------------------------------


def print_tuning(tuning: Tuning, facts: TuneFacts, code: str, console: Console | None = None) -> None:
    """Print the winner with its interval, what it was compared with, and how to use it (`code`)."""
    console, tuning = console or make_console(), fmt.cleaned(tuning)
    if tuning.winner is None:
        console.print(styled("no finalist could be measured", "bold red"))
    else:
        console.print(styled(winner_line(tuning, facts), "bold green"))
    usual = next((finalist for finalist in tuning.finalists if finalist.is_default), None)
    without = NOT_MEASURED
    if usual is not None and usual.failure is not None:
        without = f"the default failed: {usual.failure}"
    elif usual is not None and usual.case == tuning.winner:
        without = "it is the default"
    alone = f", {len(facts.screens)} by the loader alone" if facts.screens else ""
    rungs = f"{facts.num_rungs} rung{'s' * (facts.num_rungs != 1)}"
    print_rows(
        console,
        [
            ("images/s", fmt.plus_minus(tuning.rate)),
            ("over default", _told_apart(tuning.over_default, without)),
            ("over second", _told_apart(tuning.over_second, "there was no second")),
            (
                "tried",
                f"{len(tuning.trials)} of {facts.num_settings} settings in {rungs}{alone}",
            ),
            ("took", f"{fmt.duration(facts.spent_s)} of {fmt.duration(facts.budget_s)}"),
            *([("pixels", pixels_line(tuning))] if pixels_line(tuning) else []),
        ],
    )
    table = plain_table()
    for title in ("loader", "decoder", "output", "workers", "prefetch", "scale", "options", "images/s", ""):
        table.add_column(title, justify="right" if title in ("workers", "prefetch", "images/s") else "left")
    for finalist in tuning.finalists:
        values = (_cell(value) for value in finalist.case.feed.setting.values())
        default = "default" if finalist.is_default else ""
        table.add_row(*(styled(cell) for cell in (*values, fmt.plus_minus_percent(finalist.rate), default)))
    console.print()
    console.print(table)
    failed = [
        f"{' '.join(filter(None, (trial.case.feed.loader, trial.case.feed.decoder)))}: {trial.failure}"
        for trial in tuning.trials
        if trial.failure
    ]
    if facts.untried:
        console.print(styled(f"\nNot tried: {', '.join(_counted(facts.untried))}; a larger --budget tries more"))
    failed += [
        f"{' '.join(filter(None, (one.case.feed.loader, one.case.feed.decoder)))}, alone: {one.failure}"
        for one in facts.screens
        if one.failure
    ]
    failed += [f"{_named(one)}: {one.failure}" for one in tuning.finalists if one.failure]
    print_bullets(console, "Not measured", list(dict.fromkeys(map(fmt.clean, failed))))
    if code and tuning.winner is not None:
        asked = flags({**tuning.winner.feed.setting, **other_options(tuning.winner)})
        again = f"loaderbench run {shlex.quote(tuning.winner.subject.dataset)} {asked}"
        console.print(styled("\nThe same again:\n", "bold"))
        console.print(styled(again), soft_wrap=True)
        console.print(styled("\nIn a training script:\n", "bold"))
        console.print(styled(code), soft_wrap=True)


def _cell(value: FieldValue) -> str:
    if isinstance(value, Mapping):
        value = " ".join(f"{key}={one}" for key, one in value.items())
    return str(value or MISSING)


def pixels_line(tuning: Tuning) -> str:
    """What the winner's `--decode-scale auto` changes, and how to search without it; empty where it has none."""
    if tuning.pixels is None and tuning.no_pixels is None:
        return ""
    known = f"not compared: {tuning.no_pixels}" if tuning.pixels is None else changed_pixels(tuning.pixels)
    return f"--decode-scale auto {known}; --decode-scale off searches without it"


def winner_line(tuning: Tuning, facts: TuneFacts) -> str:
    """The winner, and among how many: nothing is said of settings that were not tried."""
    assert tuning.winner is not None
    num, of = len(tuning.trials), facts.num_settings
    among = f"all {of} settings" if num >= of else f"the {num} setting{'s' * (num != 1)} tried, of {of}"
    over = tuning.over_second
    unsure = over is None or over.low is None or over.low <= 1
    word = "The fastest" if not unsure else "Among the fastest"
    return f"{word} of {among}: {flags(tuning.winner.feed.setting)}"


def _named(finalist: Finalist) -> str:
    return "the default" if finalist.is_default else flags(finalist.case.feed.setting)


def _counted(settings: Sequence[Change]) -> list[str]:
    """`6 settings of dali`, for each loader, the most first."""
    names = Counter(str(one.get("loader")) for one in settings).most_common()
    return [f"{number} setting{'s' * (number != 1)} of {fmt.clean(name)}" for name, number in names]


def _told_apart(ratio: Estimate | None, otherwise: str) -> str:
    if ratio is None:
        return otherwise
    within = ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
    return fmt.speedup(ratio) + (": not told apart in this time" if within else "")
