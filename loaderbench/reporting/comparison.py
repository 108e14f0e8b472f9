"""Two sides as text, in 80 columns: the outcome in words, the rates, then what each storage did.

The form is that of analysis/comparison.py, with `labels` {a, b}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loaderbench.reporting import format as fmt
from loaderbench.reporting.format import Record, part
from loaderbench.reporting.terminal import STYLES, _bullets, _plain_table, _text, make_console

if TYPE_CHECKING:
    from rich.console import Console

OUTCOME_STYLES = {"faster": "green", "slower": "bold red", "indistinguishable": "yellow"}
LABEL_WIDTH = 16
"""Longer names are cut in the tables' heads."""


def print_comparison(comparison: Record, console: Console | None = None) -> None:
    """The whole comparison: verdict first, rates, parity, each storage's figures, what else differs, caveats."""
    console = console or make_console()
    labels = {side: fmt.clean(name) for side, name in comparison["labels"].items()}
    console.print(_text(headline(comparison), f"bold {OUTCOME_STYLES.get(comparison['outcome'] or '', '')}"))
    records = {side: comparison[side] for side in ("a", "b") if comparison[side] is not None}
    for side, record in records.items():
        where = [record["case"]["dataset"], part(record, "storage", "source"), record["run_id"]]
        console.print(_text(f"{labels[side]}: {fmt.clean(' · '.join(text for text in where if text))}", "dim"))
    if records:
        both = list(records.values())
        asked = [fmt.resolution(both[0]), fmt.row_label(both[0], both[:1]), *fmt.common_settings(both)]
        console.print(_text(" · ".join(asked), "dim"))
    same = comparison.get("same_files")
    if same:
        text = (
            f"both hold the same {same['num_images']:,} images, {fmt.size(same['total_bytes'])}: names and sizes of "
            f"all, contents of {same['num_hashed']:,}"
        )
        console.print(_text(text, "dim"))
    console.print()
    _print_rates(comparison, labels, console)
    _bullets(console, "Parity", [line for one in comparison["parities"] for line in parity_lines(one, labels)])
    for pair in comparison["pairs"]:
        _print_pair(pair, labels, console)
    beside = f" beside {', '.join(comparison['factor'])}" if comparison["factor"] else ""
    _bullets(console, f"They differ{beside} in", difference_lines(comparison, labels))
    _bullets(console, "Not measured", [line for pair in comparison["pairs"] for line in failure_lines(pair, labels)])
    _bullets(console, "Notes", [fmt.clean(note) for note in comparison.get("notes") or []])
    _print_caveats(comparison, labels, console)


def headline(comparison: Record) -> str:
    """`nfs is slower than nvme: 0.33× (0.31–0.35), cold, 8 workers.`"""
    a, b = (fmt.clean(comparison["labels"][side]) for side in ("a", "b"))
    ratio, record = comparison["ratio"], comparison["a"]
    if ratio is None or record is None:
        return f"{b} and {a} cannot be compared: no configuration was measured on both."
    word = {"indistinguishable": "cannot be told from"}.get(comparison["outcome"], f"is {comparison['outcome']} than")
    unknown = "; its interval is not known: measure longer, or more rounds" if ratio["low"] is None else ""
    where = configuration(record["case"])
    return f"{b} {word} {a}: {fmt.speedup(ratio)} images/s, {where}{unknown}."


def configuration(case: Mapping[str, Any]) -> str:
    """`cold, 8 workers`"""
    return f"{case['cache']}, {_workers(case['workers'])}"


def _workers(number: int) -> str:
    return "no workers" if number == 0 else f"{number} worker{'s' * (number != 1)}"


def _print_rates(comparison: Record, labels: Mapping[str, str], console: Console) -> None:
    table = _plain_table()
    for name in ("cache", "workers", f"{labels['a'][:LABEL_WIDTH]} img/s", f"{labels['b'][:LABEL_WIDTH]} img/s"):
        table.add_column(name, justify="left" if name == "cache" else "right")
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for pair in comparison["pairs"]:
        word = pair["outcome"] or "not measured"
        ratio = "" if pair["ratio"] is None else fmt.speedup(pair["ratio"])
        rates = [_text(fmt.plus_minus_percent(pair[side]["throughput"])) for side in ("a", "b")]
        workers = _text(str(pair["workers"]))
        table.add_row(_text(pair["cache"]), workers, *rates, _text(ratio), _text(word, OUTCOME_STYLES.get(word, "")))
    console.print(table)
    console.print(_text(f"ratio: images/s of {labels['b']} ÷ {labels['a']}, with its 95 % interval", "dim"))


def parity_lines(parity: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """At how many workers b catches up with a, and what its storage would have to give."""
    a, b = labels["a"], labels["b"]
    target = f"{a}'s best, {fmt.number(parity['target_samples_per_s'])} images/s"
    goal = f"{target} ({_workers(parity['target_workers'])})"
    best = f"{fmt.number(parity['best_samples_per_s'])} at best, with {_workers(parity['best_workers'])}"
    if parity["basis"] == "measured":
        return [f"{parity['cache']}: {b} reaches {goal}, with {_workers(parity['workers'])} (measured)"]
    if parity["basis"] == "undetermined":
        perhaps = f"perhaps with {_workers(parity['workers'])}, the intervals overlap: measure longer, or more rounds"
        return [f"{parity['cache']}: {b} reaches {goal}, {perhaps}"]
    predicted = parity["predicted"]
    expected = ""
    if predicted is not None:
        rate = predicted["samples_per_s"]
        expected = (
            f"; predicted, not measured: {fmt.number(rate['value'])} ({fmt.number(rate['low'])}–"
            f"{fmt.number(rate['high'])}) with {_workers(predicted['workers'])}"
        )
    if parity["basis"] == "predicted":
        lines = [f"{parity['cache']}: {b} has not reached {goal}: {best}{expected}"]
    else:
        lines = [f"{parity['cache']}: {b} does not reach {goal}, not by {parity['not_by']}: {best}{expected}"]
    return lines + [f"{parity['cache']}: {line}" for line in _needs(parity["needs"], b)]


def _needs(needs: Mapping[str, Any], label: str) -> list[str]:
    lines = []
    if needs["bytes_per_s"] is not None:
        gives = "what it gives was not measured"
        if needs["gives_bytes_per_s"] is not None:
            bound = {"bandwidth": ", bandwidth-bound", "latency": ", latency-bound"}.get(needs["bound_by"] or "", "")
            least = "at least " if needs["gives_still_rising"] else ""
            gives = f"it gives {least}{fmt.size(needs['gives_bytes_per_s'], '/s')}{bound}"
        lines.append(f"for that {label} needs {fmt.size(needs['bytes_per_s'], '/s')}; {gives}")
    if needs["takes_file_read_s"] is not None:
        allowed = needs["file_read_s"]
        limit = f"at most {fmt.duration(allowed)}" if allowed is not None else "no time at all"
        takes = fmt.duration(needs["takes_file_read_s"])
        lines.append(f"with {_workers(needs['workers'])} reading a file may take {limit}; it takes {takes} in {label}")
    return lines


def _percentiles(seconds: Mapping[str, Any]) -> str:
    return " · ".join(fmt.duration(seconds[name]) for name in ("p50", "p95", "p99"))


Show = Callable[[Any], str]
_STORAGE_ROWS: tuple[tuple[str, tuple[str, ...], Show], ...] = (
    ("bytes read in all", ("storage", "bytes_read"), fmt.size),
    ("bandwidth", ("storage", "bandwidth_bytes_per_s"), lambda value: fmt.size(value, "/s")),
    ("storage gives", ("storage", "ceiling_bytes_per_s"), lambda value: fmt.size(value, "/s")),
    ("bound by", ("storage", "bound_by"), str),
    ("operations/s", ("storage", "operations_per_s"), fmt.number),
    ("file, p50 p95 p99", ("storage", "file_read_s"), _percentiles),
    ("  with readers", ("storage", "file_read_s", "readers"), str),
    ("read in a worker", ("stages", "read"), fmt.duration),
    ("NFS round trip", ("storage", "rtt_s"), fmt.duration),
    ("NFS client queue", ("storage", "queue_s"), fmt.duration),
    ("NFS in flight", ("storage", "in_flight"), fmt.number),
    ("retransmits", ("storage", "retransmits"), str),
    ("client cache hits", ("storage", "client_cache_hit_fraction"), fmt.percent),
    ("resident before", ("storage", "resident_before_fraction"), fmt.percent),
)


def pair_rows(pair: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what, of a, of b): rate, verdict and what each storage did; rows that neither side knows are left out."""
    sides = (pair["a"], pair["b"])

    def row(name: str, show: Callable[[Mapping[str, Any]], str]) -> tuple[str, str, str]:
        return (name, show(sides[0]), show(sides[1]))

    rows = [
        row("images/s", lambda side: fmt.plus_minus(side["throughput"])),
        row("verdict", lambda side: side["bottleneck"] or fmt.MISSING),
        row("device fed (AU)", lambda side: fmt.percent(side["accelerator_utilization_fraction"])),
    ]
    if pair["cache"] == "cold":
        proofs = {True: "yes", False: "no", None: fmt.MISSING}
        rows.append(row("cold proven", lambda side: proofs[part(side, "storage", "cold_proven")]))
    for name, path, show in _STORAGE_ROWS:
        values = [part(side, *path) for side in sides]
        if any(value is not None for value in values):
            a, b = (fmt.MISSING if value is None else show(value) for value in values)
            rows.append((name, a, b))
    return rows


def _print_pair(pair: Mapping[str, Any], labels: Mapping[str, str], console: Console) -> None:
    sides = (pair["a"], pair["b"])
    if all(side["throughput"] is None for side in sides):
        return
    console.print()
    table = _plain_table()
    table.add_column(configuration(pair), no_wrap=True, min_width=18)
    for side in ("a", "b"):
        table.add_column(labels[side][:LABEL_WIDTH], justify="right", min_width=28)
    for name, *texts in pair_rows(pair):
        table.add_row(name, *(_text(text, STYLES.get(text, "") if name == "verdict" else "") for text in texts))
    console.print(table)
    for side in ("a", "b"):
        if pair[side]["summary"]:
            console.print(_text(f"{labels[side]}: {fmt.clean(pair[side]['summary'])}"))


def difference_lines(comparison: Record, labels: Mapping[str, str]) -> list[str]:
    """What the two runs differ in beside the compared factor."""
    return [
        fmt.clean(f"{one['field']}: {fmt.clean(one['a'])} in {labels['a']}, {fmt.clean(one['b'])} in {labels['b']}")
        for one in comparison["differs"]
    ]


def failure_lines(pair: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """Runs of the pair that failed, with their reason."""
    return [
        fmt.clean(f"{labels[side]}, {configuration(pair)}, {one['status']}: {one['message'] or 'no reason recorded'}")
        for side in ("a", "b")
        for one in pair[side]["failures"]
    ]


def _print_caveats(comparison: Record, labels: Mapping[str, str], console: Console) -> None:
    """Those of the two leading runs; every run has its own."""
    said: dict[tuple[str, str], list[str]] = {}
    for side in ("a", "b"):
        for code, message, _ in fmt.grouped_caveats([comparison[side]] if comparison[side] else []):
            said.setdefault((code, message), []).append(labels[side])
    lines = [f"{code} ({', '.join(who)}): {message}" for (code, message), who in said.items()]
    _bullets(console, "Caveats of the leading pair (`loaderbench show RUN` for the others)", lines)


def print_regression(comparison: Record, console: Console | None = None) -> None:
    """One line for a log: whether the run is slower than its baseline by more than the threshold."""
    console = console or make_console()
    word, style = ("regression", "bold red") if comparison["regression"] else ("no regression", "green")
    limit = f"{comparison['threshold']:.0%}"
    ratio = comparison["ratio"]
    console.print(_text(f"{word}: {fmt.speedup(ratio)} of the baseline's images/s, threshold {limit} slower", style))
