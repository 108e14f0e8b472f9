"""Run records as text: a single one in full, several as a table, all of a store as a list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from loaderbench.findings.row import VERDICT
from loaderbench.recording.record import SHARES, Advice, Ceiling, Estimate, Removable, RunRecord, StorageFigures
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import (
    STYLES,
    Console,
    codes_line,
    make_console,
    plain_table,
    print_bullets,
    print_caveats,
    print_rows,
    print_table_of,
    styled,
)
from loaderbench.reporting.evidence import leading_evidence
from loaderbench.reporting.format import NOT_MEASURED, short_name
from loaderbench.reporting.price import TITLE, price_lines, price_tables
from loaderbench.reporting.result import Column, Result, Table, names_and_values
from loaderbench.reporting.screen import SCREEN_COLUMNS, room_on
from loaderbench.reporting.watched import note_lines, time_lines
from loaderbench.reporting.words import explained

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

"""What a run's first screen takes at most; `show RUN --all` has the rest."""
SHARES_AT = "Evidence"
"""The section that follows the table of shares."""
LEAST_SHARE = 0.005
"""The first screen has no line for a smaller share whose removal would gain nothing."""
TOLD_FROM_S = 0.05
"""From which on a part of a run's start is shown."""
BAR_WIDTH = 12
"""Characters of a bar that is the whole step."""
OF_OUR_LOOP = ("launch", "transfer", "unexplained")
"""Shares that a watched script's own step never shows; they take no line there."""

# -- one run ---------------------------------------------------------------------------------------------


def print_run(record: RunRecord, console: Console | None = None, *, whole: bool = False) -> None:
    """Print one run: the verdict, where a step's time goes, what to try, and what fits on a first screen of the rest.
    `whole`: all evidence, figures, advice and caveats, in words."""
    console, record = console or make_console(), fmt.cleaned(record)
    any_figure = record.throughput is not None or record.step_time_s is not None
    top = [*_headline(record), _settings(record, console, whole=whole)]
    if any_figure and not whole:
        top.append(styled(_in_a_line(record)))
    for line in top:
        console.print(line)
    shares = [_shares(record, console, whole=whole)] if any_figure else []
    if not whole:
        _print_what_fits(record, console, shares, sum(map(partial(_height, console), top)))
        return
    if record.verdict is not None:
        print_bullets(console, "Evidence", record.verdict.evidence)
    _print_advice(record, console)
    print_bullets(console, TITLE, price_lines(record, whole=True))
    for table in shares:
        console.print()
        console.print(table)
    if record.watched is not None:
        print_bullets(console, "Where the script's time went", time_lines(record.watched))
        print_bullets(console, "Also seen", note_lines(record))
    if any_figure:
        console.print()
        print_rows(console, [*_figures(record), *_stages_and_capacities(record)])
    print_caveats(console, record.caveats)
    console.print()
    print_rows(console, _last_rows(record))


def _headline(record: RunRecord) -> list[Text]:
    word, sentence = fmt.headline(record)
    style = f"bold {STYLES.get(fmt.outcome(record), '')}"
    return [styled(word, style).append(sentence, style="bold" if word else style)]


def _settings(record: RunRecord, console: Console, *, whole: bool) -> Text:
    """What was run. The first screen has the begin of it, without what is in parentheses."""
    case = record.case
    asked = [fmt.resolution(case), fmt.loader_name(case), *fmt.common_settings([record])]
    if record.watched is not None:
        asked = [fmt.clean(record.watched.script), fmt.loader_name(case), f"batch {case.step.batch_size}", "watched"]
    if whole:
        return styled(" · ".join(asked))
    if record.watched is None:  # which card, and whether it is emulated, is not to be cut off
        asked = [*asked[:2], asked[-1], *asked[2:-1]]
    line = styled(" · ".join(one.partition(" (")[0] for one in asked))
    if console.width >= SCREEN_COLUMNS:  # in one line
        line.truncate(console.width, overflow="ellipsis")
    return line


def _last_rows(record: RunRecord, *, more: bool = False) -> list[tuple[str, str]]:
    """The plug-ins' options, the run's id, and how to see all of it."""
    if more:
        return [("run", record.run_id), ("more", f"loaderbench show {short_name(record.run_id)} --all")]
    given = (record.case.feed.loader_options, record.case.feed.decoder_options)
    options = [f"{key}={value}" for one in given for key, value in one.items()]
    return [("options", " ".join(options))] * bool(options) + [("run", record.run_id)]


# -- the first screen ------------------------------------------------------------------------------------

Lines = Sequence[tuple[int, str]]
"""(rank, text): rank 0 is always shown; of the others those of a low rank first, while there is room."""


def _height(console: Console, shown: RenderableType) -> int:
    return len(console.render_lines(shown, console.options, pad=False))


def _print_what_fits(record: RunRecord, console: Console, shares: Sequence[RenderableType], used: int) -> None:
    """Print sections and the table of shares on what the screen has left."""
    from rich.padding import Padding

    sections = _sections(record)
    room = room_on(console) - used
    room -= len(_last_rows(record, more=bool(shares)))
    room -= sum(_height(console, table) + 1 for table in shares)
    heights = {
        (title, number): _height(console, Padding(styled(text), (0, 0, 0, 2)))
        for title, lines in sections.items()
        for number, (_, text) in enumerate(lines)
    }
    taken: dict[str, int] = {}
    """Title → how many of its lines are shown."""
    ranked = sorted(heights, key=lambda one: sections[one[0]][one[1]][0])
    for title, number in ranked:
        cost = heights[title, number] + (0 if taken.get(title) else 2)
        is_next = number == taken.get(title, 0)
        if is_next and (not sections[title][number][0] or cost <= room):
            taken[title] = number + 1
            room -= cost
    for title, lines in sections.items():
        if title == SHARES_AT:
            for table in shares:
                console.print()
                console.print(table)
        print_bullets(console, title, [text for _, text in lines[: taken.get(title, 0)]])
    if room > 0:
        console.print()
    print_rows(console, _last_rows(record, more=bool(shares)))


def _sections(record: RunRecord) -> dict[str, Lines]:
    """What a first screen can show around the shares, in the order from top to bottom."""
    advice = () if record.verdict is None else record.verdict.advice
    tried = [f"{number}. {fmt.advice(entry)}{_verified(entry)}" for number, entry in enumerate(advice, 1)]
    residual = [] if record.residual is None else [explained(record.residual)]
    worded = [fmt.clean(one.sentence()) for one in record.caveats if one.severity == VERDICT]
    others = [one.code for one in record.caveats if one.severity == VERDICT][1:]
    serious = [f"these change the verdict too: {', '.join(others)}"] if others else []
    codes = [one.code for one in record.caveats if one.severity != VERDICT]
    seen = record.watched
    applied = seen is not None and (seen.applied is not None or seen.not_applied is not None)
    is_of_a_thread = seen is not None and seen.thread is not None  # then the first note says so
    return {
        "What to try next": _first_of(tried, 0, 2),
        TITLE: [(0, line) for line in price_lines(record)],
        SHARES_AT: _first_of([*leading_evidence(record), *residual], 1, 3),
        "Where the script's time went": [] if seen is None else _first_of(time_lines(seen), 1 if applied else 0, 4),
        "Also seen": _first_of(note_lines(record), 0 if applied or is_of_a_thread else 3, 3),
        "Caveats": [*((0, line) for line in [*worded[:1], *serious]), *((2, line) for line in codes_line(codes))],
    }


def _first_of(lines: Sequence[str], first: int, later: int) -> Lines:
    """The lines with the rank of the first, and of all others."""
    return [(later if number else first, line) for number, line in enumerate(lines)]


def _in_a_line(record: RunRecord) -> str:
    """`914 ± 18 images/s · 70.0 ms/step (p95 79.8 ms) · AU 46 % · first batch 1.84 s`"""
    step, first, fed = record.step_time_s, record.time_to_first_batch_s, record.accelerator_utilization_fraction
    parts = [
        f"{fmt.plus_minus(record.throughput)} {'images' if record.watched is None else 'samples'}/s"
        if record.throughput is not None
        else "rate not measured",
        "step not measured" if step is None else f"{fmt.duration(step.mean)}/step (p95 {fmt.duration(step.p95)})",
        "AU not measured" if fed is None else f"AU {fmt.percent(fed)}",
        "first batch not measured" if first is None else f"first batch {fmt.duration(first)}",
    ]
    return " · ".join(parts)


def _print_advice(record: RunRecord, console: Console) -> None:
    advice = () if record.verdict is None else record.verdict.advice
    lines = [f"{number}. {fmt.advice(entry)}" for number, entry in enumerate(advice, 1)]
    print_bullets(console, "What to try next", lines)
    _print_verification(advice, console)


def _verified(entry: Advice) -> str:
    """What the advice gave when it was run, to follow what was predicted."""
    if not entry.verified:
        return ""
    if entry.not_verified:
        return f", not run: {entry.not_verified}"
    off = _error_of(entry)
    return f", measured: {fmt.speedup(entry.measured_speedup)}{f' (error {off})' if off else ''}"


VERIFIED_COLUMNS = (
    Column("Advice, measured", left=True), Column("predicted"), Column("measured"), Column("error", rank=1),
)  # fmt: skip


def _error_of(entry: Advice) -> str:
    """`+8%`: what was predicted beyond what was measured; empty where one of them is unknown."""
    predicted, measured = fmt.value_of(entry.predicted_speedup), fmt.value_of(entry.measured_speedup)
    return "" if predicted is None or measured is None else f"{predicted / measured - 1:+.0%}"


def _print_verification(advice: Sequence[Advice], console: Console) -> None:
    """Print predictions beside what `--verify` measured; nothing where it was not asked for."""
    verified = [(number, entry) for number, entry in enumerate(advice, 1) if entry.verified]
    if not verified:
        return
    rows = []
    for number, entry in verified:
        change = (entry.change or {}).items()
        fields = " ".join(f"{name}={fmt.clean(value)}" for name, value in change if value not in ({}, None))
        speedups = (fmt.speedup(entry.predicted_speedup), fmt.speedup(entry.measured_speedup))
        rows.append((f"{number}. {fields}", *speedups, _error_of(entry)))
    not_run = [f"{number}. not run: {entry.not_verified}" for number, entry in verified if entry.not_verified]
    console.print()
    print_table_of(Table("Advice, measured", VERIFIED_COLUMNS, rows, " ".join(not_run)), console)


def _or_not_measured(value: float | None, shown: str) -> str:
    return NOT_MEASURED if value is None else shown


def _figures(record: RunRecord) -> list[tuple[str, str]]:
    step, first = record.step_time_s, record.time_to_first_batch_s
    utilization = record.accelerator_utilization_fraction
    unit = "" if record.throughput is None else " images/s"
    step_text = NOT_MEASURED
    if step is not None:
        quantiles = (("p50", step.p50), ("p95", step.p95), ("p99", step.p99))
        shown = " · ".join(f"{name} {fmt.duration(seconds)}" for name, seconds in quantiles)
        step_text = f"{fmt.duration(step.mean)} ({shown})"
    return [
        ("throughput", fmt.plus_minus(record.throughput) + unit),
        ("step", step_text),
        ("AU", _or_not_measured(utilization, fmt.percent(utilization))),
        ("first batch", _or_not_measured(first, fmt.duration(first))),
        *([("start", _start(record.start_s))] if record.start_s else []),
    ]


def _start(start_s: Mapping[str, float]) -> str:
    """`imports 2.1 s · device 9.0 s`: what came before the first round, but for what took no time to speak of."""
    told = [(name.replace("_", " "), seconds) for name, seconds in start_s.items() if seconds >= TOLD_FROM_S]
    return " · ".join(f"{name} {fmt.duration(seconds)}" for name, seconds in told) or f"below {TOLD_FROM_S:g} s each"


def _shares(record: RunRecord, console: Console, *, whole: bool) -> RenderableType:
    """The step's time by cause with a bar each, and what removing the cause would give."""
    if record.shares is None:
        return styled("Where a step's time goes", "bold").append(f"\n  {NOT_MEASURED}", style="not bold")
    from rich.console import Group

    block = "█" if console.encoding.lower().startswith("utf") else "#"
    mean_s = None if record.step_time_s is None else record.step_time_s.mean
    gains = {} if record.verdict is None else record.verdict.speedup_if_removed
    table = plain_table()
    table.padding = (0, 1, 0, 0)
    table.add_column("Where a step's time goes", no_wrap=True)
    for title in ("share", "95 %", "a step"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("faster without it", no_wrap=True)
    unknown: list[str] = []
    small: list[str] = []
    for cause in SHARES:
        estimate, gain = record.shares.get(cause), gains.get(cast(Removable, cause))
        faster = styled(fmt.speedup(gain)) if gain is not None else styled("")
        if estimate is None and record.watched is not None and cause in OF_OUR_LOOP:
            continue
        if not whole and (estimate is None or estimate.value < LEAST_SHARE) and not _gains(gain):
            (unknown if estimate is None else small).append(cause)
            continue
        if estimate is None:
            table.add_row(styled(f"  {cause}"), "", styled(NOT_MEASURED, "dim"), "", faster)
            continue
        spread = fmt.percent_interval(estimate)
        if cause == "storage" and record.storage is not None and record.storage.idle_proof is not None:
            spread = "proven"
        bar = styled(f"  {cause:<12}").append(block * _bar(estimate.value), style=STYLES.get(cause, ""))
        table.add_row(
            bar,
            styled(fmt.percent(estimate.value, decimals=1)),
            styled(spread, "dim"),
            styled("" if mean_s is None else fmt.duration(estimate.value * mean_s)),
            faster,
        )
    left = [f"below {LEAST_SHARE:.1%}: {', '.join(small)}"] if small else []
    left += [f"{NOT_MEASURED}: {', '.join(unknown)}"] if unknown else []
    return Group(table, styled(f"  {'; '.join(left)}", "dim")) if left else table


def _gains(gain: Estimate | None) -> bool:
    """Whether removing a cause may gain anything."""
    return gain is not None and (gain.high or gain.value) >= 1 + LEAST_SHARE


def _bar(share: float) -> int:
    """Characters of a share's bar; a share that is not finite has none."""
    return round(min(max(share, 0.0), 1.0) * BAR_WIDTH) if math.isfinite(share) else 0


def _stages_and_capacities(record: RunRecord) -> list[tuple[str, str]]:
    capacities = (record.capacities or {}).items()
    stages = (record.stages or {}).items()
    alone = " · ".join(f"{name} {fmt.number(fmt.value_of(rate))}" for name, rate in capacities)
    overhead = record.overhead_fraction
    return [
        ("alone", f"{alone} images/s" if alone else NOT_MEASURED),
        ("per image", " · ".join(f"{name} {fmt.duration(seconds)}" for name, seconds in stages) or NOT_MEASURED),
        ("storage", NOT_MEASURED if record.storage is None else _storage(record.storage)),
        ("CPU", _cpu(record)),
        ("kernel gaps", _kernel_gaps(record)),
        ("overhead", NOT_MEASURED if overhead is None else f"{overhead * 100:.1f} % of a step"),
    ]


def _storage(storage: StorageFigures) -> str:
    proof = "idle, proven" if storage.idle_proof is not None else ""
    if storage.cache_state == "cold":
        by = "" if storage.cold_proof is None else f" by {storage.cold_proof}"
        proof = f"cold proven{by}" if storage.cold_proven else "cold not proven"
    moved = f"bytes read {NOT_MEASURED}" if storage.bytes_read is None else f"{fmt.size(storage.bytes_read)} read"
    if storage.expected_bytes is not None:
        moved += f" of {fmt.size(storage.expected_bytes)} requested"
    bandwidth, ceiling = storage.bandwidth_bytes_per_s, storage.ceiling
    before, after = storage.residency_fraction.before, storage.residency_fraction.after
    unseen = before is None and after is None
    parts = [
        storage.cache_state or "",
        proof,
        moved,
        "" if bandwidth is None else fmt.size(bandwidth, "/s"),
        "" if ceiling is None else _ceiling(ceiling),
        "" if unseen else f"resident {fmt.percent(before)} → {fmt.percent(after)}",
        storage.source or "",
    ]
    return " · ".join(part for part in parts if part)


def _ceiling(found: Ceiling) -> str:
    readers = f" at {found.readers} readers" if found.readers else ""
    return f"ceiling {fmt.bytes_rate(found.bytes_per_s)}{readers}{', still rising' if found.still_rising else ''}"


def _cpu(record: RunRecord) -> str:
    cpu = record.cpu
    if cpu is None:
        return NOT_MEASURED
    parts = [
        f"{fmt.percent(cpu.busy_fraction)} busy" if cpu.busy_fraction is not None else "",
        f"{fmt.duration(cpu.seconds_per_sample)} per image" if cpu.seconds_per_sample is not None else "",
        f"workers use {fmt.size(cpu.workers_pss_bytes)}" if cpu.workers_pss_bytes is not None else "",
    ]
    return " · ".join(part for part in parts if part) or NOT_MEASURED


def _kernel_gaps(record: RunRecord) -> str:
    gap = None if record.device is None else record.device.kernel_gap
    if gap is None:
        return NOT_MEASURED
    by_class = [
        f"{name} {fmt.percent(share.fraction, decimals=1)}"
        for name, share in gap.by_class.items()
        if share.count_per_step
    ]
    parts = [
        f"{fmt.percent(gap.total_fraction, decimals=1)} of the step in {gap.count_per_step:.0f} gaps",
        *by_class,
        f"half of them below {fmt.duration(gap.p50_s)}" if gap.p50_s is not None else "",
    ]
    return " · ".join(part for part in parts if part)


# -- the same as a result --------------------------------------------------------------------------------

SHARE_COLUMNS = (
    Column("Where a step's time goes", left=True), Column("share", "0.1 %"), Column("95 %"), Column("a step", "s"),
    Column("faster without it", show=fmt.speedup),
)  # fmt: skip


def run_result(record: RunRecord) -> Result:
    """One run, for every form but a terminal's, whose screen has bars and fits a window (`print_run`)."""
    verdict, shares = record.verdict, record.shares or {}
    mean_s = None if record.step_time_s is None else record.step_time_s.mean
    gains = {} if verdict is None else verdict.speedup_if_removed
    rows = [
        (
            cause, share.value, fmt.percent_interval(share), None if mean_s is None else share.value * mean_s,
            gains.get(cast(Removable, cause)) or "",
        )
        for cause in SHARES
        if (share := shares.get(cause)) is not None
    ]  # fmt: skip
    figures = [*_figures(record), *_stages_and_capacities(record)]
    advice = [] if verdict is None else [f"{fmt.advice(one)}{_verified(one)}" for one in verdict.advice]
    seen = record.watched
    return Result(
        title=record.case.title,
        settings=fmt.common_settings([record]),
        answer=["".join(fmt.headline(record))],
        tables=[
            *([Table("Shares", SHARE_COLUMNS, rows)] if rows else []),
            *price_tables(record),
            names_and_values("Figures", figures),
        ],
        sections=[
            ("Evidence", [] if verdict is None else verdict.evidence),
            ("What to try next", advice),
            (TITLE, price_lines(record)),
            ("Where the script's time went", [] if seen is None else time_lines(seen)),
            ("Also seen", note_lines(record)),
            ("Caveats", [caveat.sentence() for caveat in record.caveats]),
        ],
        style=STYLES.get(fmt.outcome(record), ""),
    )


# -- caveats ---------------------------------------------------------------------------------------------


def print_caveats_of(records: Sequence[RunRecord], console: Console | None = None) -> None:
    """All caveats of these runs in words, those that change a verdict first."""
    console, records = console or make_console(), fmt.cleaned(list(records))
    groups = fmt.by_severity(fmt.grouped_caveats(records))
    if not groups:
        console.print(styled("no caveats"))
    for severity, caveats in groups:
        of = [f" ({one.num_runs} of {len(records)} runs)" if len(records) > 1 else "" for one in caveats]
        lines = [f"{one.code}: {one.text}{runs}" for one, runs in zip(caveats, of, strict=True)]
        print_bullets(console, severity.capitalize(), lines)
