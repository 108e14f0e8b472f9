"""Two sides as text, in 80 columns: the outcome in words, the rates, then what each storage did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from loaderbench import plain
from loaderbench.analysis.comparison import DATA_SET
from loaderbench.cases.case import CacheState
from loaderbench.findings.figures import is_wide
from loaderbench.plain import JsonObject
from loaderbench.recording.record import Range, RunRecord
from loaderbench.recording.studies import (
    CompareFacts,
    Comparison,
    Difference,
    FileReads,
    Needs,
    Pair,
    Parity,
    ReadFrom,
    Side,
    SideName,
    SideStorage,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import STYLES, make_console, plain_table, print_bullets, styled
from loaderbench.reporting.shown import Shown

if TYPE_CHECKING:
    from rich.console import Console

Labels = Mapping[SideName, str]
SIDES: tuple[SideName, ...] = ("a", "b")
OUTCOME_WORDS: Mapping[str, str] = {"from_memory": "from memory"}
OUTCOME_STYLES = {"faster": "green", "slower": "bold red", "indistinguishable": "yellow", "from_memory": "yellow"}
LABEL_WIDTH = 16
"""Longer names are cut in the table headings."""

T = TypeVar("T")


def print_comparison(facts: CompareFacts, comparison: Comparison, console: Console | None = None) -> None:
    """The whole comparison: verdict first, rates, parity, each storage's figures, what else differs, caveats."""
    console, facts, comparison = console or make_console(), fmt.cleaned(facts), fmt.cleaned(comparison)
    labels, pairs = facts.labels, comparison.pairs
    console.print(styled(headline(comparison, labels), f"bold {OUTCOME_STYLES.get(comparison.outcome or '', '')}"))
    _print_asked(comparison, labels, console)
    same = facts.same_files
    if same is not None:
        text = (
            f"both hold the same {same.num_images:,} images, {fmt.size(same.total_bytes)}: names and sizes of all, "
            f"contents of {same.num_hashed:,}"
        )
        console.print(styled(text, "dim"))
    console.print()
    _print_rates(comparison, labels, console)
    print_bullets(console, "Parity", [line for parity in comparison.parities for line in parity_lines(parity, labels)])
    for pair in pairs:
        _print_pair(pair, labels, console)
    besides = f" other than {', '.join(comparison.factor)}" if comparison.factor else ""
    print_bullets(console, f"Differences{besides}", difference_lines(comparison, labels))
    print_bullets(console, "Not measured", [line for pair in pairs for line in failure_lines(pair, labels)])
    print_bullets(console, "Notes", note_lines(facts))
    _print_caveats(comparison, labels, console)


def _print_asked(comparison: Comparison, labels: Labels, console: Console) -> None:
    """Where each side's leading run read, and what both were asked for."""
    leading = [(labels[name], record) for name in SIDES if (record := comparison.record(name)) is not None]
    for label, record in leading:
        where = [record.case.subject.dataset, record.storage.source if record.storage else None, record.run_id]
        console.print(styled(f"{label}: {' · '.join(text for text in where if text)}", "dim"))
    if leading:
        records = [record for _, record in leading]
        case = records[0].case
        asked = [fmt.resolution(case), fmt.loader_name(case), *fmt.common_settings(records)]
        console.print(styled(" · ".join(asked), "dim"))


def headline(comparison: Comparison, labels: Labels) -> str:
    """`nfs is slower than nvme: 0.33× (0.31–0.35), cold, 8 workers.`"""
    a, b = labels["a"], labels["b"]
    ratio, record, outcome = comparison.ratio, comparison.a, comparison.outcome
    if ratio is None or record is None:
        return f"{b} and {a} cannot be compared: no configuration was measured on both."
    pair = _leading(comparison)
    if outcome == "from_memory" and pair is not None:
        return _from_memory(comparison, pair, labels)
    word = "is indistinguishable from" if outcome == "indistinguishable" else f"is {outcome} than"
    unknown = "; its confidence interval is unknown: measure longer, or use more rounds" if ratio.low is None else ""
    where = configuration(record.case.subject.cache, record.case.feed.workers)
    unsure = [] if pair is None else [labels[name] for name in SIDES if _read_from(pair, name) == "unknown"]
    if unsure and set(comparison.factor) & set(DATA_SET):
        unknown += f"; it is not proven that the images came from the storage of {' and '.join(unsure)}"
    return f"{b} {word} {a}: {fmt.speedup(ratio)} images/s, {where}{unknown}."


def _leading(comparison: Comparison) -> Pair | None:
    """The pair that the comparison's ratio is of."""
    record = comparison.a
    wanted = None if record is None else (record.case.subject.cache, record.case.feed.workers)
    return next((pair for pair in comparison.pairs if (pair.cache, pair.workers) == wanted), None)


def _read_from(pair: Pair, name: SideName) -> ReadFrom | None:
    storage = pair.side(name).storage
    if storage is None:
        return None
    return "storage" if storage.cold_proven else storage.read_from


def _from_memory(comparison: Comparison, pair: Pair, labels: Labels) -> str:
    """Return `This does not compare the storages: nvme and nfs were read from memory (warm, 8 workers); …`"""
    sides = " and ".join(labels[name] for name in SIDES if _read_from(pair, name) == "memory")
    how = "measure with --cache cold"
    if pair.cache == "cold":
        how = "although the run is cold, pages stayed or came back: see its caveats and `loaderbench doctor`"
    where, ratio = configuration(pair.cache, pair.workers), fmt.speedup(comparison.ratio)
    return (
        f"This does not compare the storages: {sides} answered from memory ({where}); {how}. In these runs, "
        f"{labels['b']} gave {ratio} the images/s of {labels['a']}."
    )


def outcome_word(pair: Pair) -> str:
    """Which side is faster, in a word or two."""
    return fmt.NOT_MEASURED if pair.outcome is None else OUTCOME_WORDS.get(pair.outcome, pair.outcome)


def configuration(cache: CacheState, workers: int) -> str:
    """`cold, 8 workers`"""
    return f"{cache}, {_workers(workers)}"


def _workers(number: int) -> str:
    return "no workers" if number == 0 else f"{number} worker{'s' * (number != 1)}"


def _print_rates(comparison: Comparison, labels: Labels, console: Console) -> None:
    table = plain_table()
    heads = (f"{labels[name][:LABEL_WIDTH]} img/s" for name in SIDES)
    for title in ("cache", "workers", *heads):
        table.add_column(title, justify="left" if title == "cache" else "right")
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for pair in comparison.pairs:
        word = outcome_word(pair)
        ratio = "" if pair.ratio is None else fmt.speedup(pair.ratio)
        rates = [styled(fmt.plus_minus_percent(pair.side(name).throughput)) for name in SIDES]
        style = OUTCOME_STYLES.get(pair.outcome or "", "")
        table.add_row(styled(pair.cache), styled(str(pair.workers)), *rates, styled(ratio), styled(word, style))
    console.print(table)
    console.print(styled(f"ratio: images/s of {labels['b']} ÷ {labels['a']}, with its 95 % interval", "dim"))


# -- parity ------------------------------------------------------------------------------------------------


def parity_lines(parity: Parity, labels: Labels) -> list[str]:
    """At how many workers b catches up with a, and what its storage would have to give."""
    a, b, cache = labels["a"], labels["b"], parity.cache
    target = f"{a}'s best, {fmt.number(parity.target_samples_per_s)} images/s"
    goal = f"{target} ({_workers(parity.target_workers)})"
    best = f"{fmt.number(parity.best_samples_per_s)} at best, with {_workers(parity.best_workers)}"
    if parity.basis == "measured":
        return [f"{cache}: {b} reaches {goal}, with {_workers(parity.workers or 0)} (measured)"]
    if parity.basis == "undetermined":
        perhaps = f"perhaps with {_workers(parity.workers or 0)}"
        longer = "the intervals overlap: measure longer, or use more rounds"
        return [f"{cache}: {b} reaches {goal}, {perhaps}, but {longer}"]
    expected, predicted = "", parity.predicted
    if predicted is not None:
        rate = predicted.samples_per_s
        expected = (
            f"; predicted, not measured: {fmt.number(rate.value)} ({fmt.number(rate.low)}–{fmt.number(rate.high)}) "
            f"with {_workers(predicted.workers)}"
        )
    if parity.basis == "predicted":
        lines = [f"{cache}: {b} has not reached {goal}: {best}{expected}"]
    else:
        lines = [f"{cache}: {b} does not reach {goal}, not by {parity.not_by}: {best}{expected}"]
    needs = [] if parity.needs is None else _needs(parity.needs, b)
    return lines + [f"{cache}: {line}" for line in needs]


def _needs(needs: Needs, label: str) -> list[str]:
    lines = []
    enough = needs.bytes_per_s is not None and (needs.gives_bytes_per_s or 0.0) >= needs.bytes_per_s
    if needs.bytes_per_s is not None and not enough:  # else it lacks no rate
        gives = "what it delivers was not measured"
        if needs.gives_bytes_per_s is not None:
            bound = f", {needs.bound_by}-bound" if needs.bound_by else ""
            least = "at least " if needs.gives_still_rising else ""
            rate = needs.gives or Range(needs.gives_bytes_per_s, None, None)
            gives = f"it delivers {least}{fmt.bytes_rate(rate.value, rate.low, rate.high)}{bound}"
        lines.append(f"to get there, {label} needs {fmt.size(needs.bytes_per_s, '/s')}; {gives}")
    if needs.takes_file_read_s is not None:
        allowed = needs.file_read_s
        limit = f"at most {fmt.duration(allowed)}" if allowed is not None else "no time at all"
        takes = fmt.duration(needs.takes_file_read_s)
        lines.append(f"with {_workers(needs.workers)} reading a file may take {limit}; it takes {takes} in {label}")
    return lines


# -- the two sides beside each other -----------------------------------------------------------------------


def _percentiles(seconds: FileReads) -> str:
    return " · ".join(fmt.duration(value) for value in (seconds.p50, seconds.p95, seconds.p99))


def _shown(value: T | None, show: Callable[[T], str | None]) -> str | None:
    return None if value is None else show(value)


def _rate(value: float) -> str:
    return fmt.size(value, "/s")


def _wide_range(rate: Range) -> str | None:
    if rate.low is None or rate.high is None or not is_wide(rate.value, rate.low, rate.high):
        return None
    return f"{_rate(rate.low)} – {_rate(rate.high)}"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _storage_texts(side: Side, storage: SideStorage) -> dict[str, str | None]:
    """Name of the figure → its text; None where it is not known."""
    files = storage.file_read_s
    return {
        "bytes read in all": _shown(storage.bytes_read, fmt.size),
        "bandwidth": _shown(storage.bandwidth_bytes_per_s, _rate),
        "storage gives": _shown(storage.ceiling_bytes_per_s, _rate),
        "  at least, at most": _shown(storage.ceiling, _wide_range),
        "bound by": storage.bound_by,
        "operations/s": _shown(storage.operations_per_s, fmt.number),
        "file, p50 p95 p99": _shown(files, _percentiles),
        "  with readers": None if files is None else str(files.readers),
        "read in a worker": _shown((side.stages or {}).get("read"), fmt.duration),
        "NFS round trip": _shown(storage.rtt_s, fmt.duration),
        "NFS client queue": _shown(storage.queue_s, fmt.duration),
        "NFS in flight": _shown(storage.in_flight, fmt.number),
        "retransmits": _shown(storage.retransmits, _count),
        "client cache hits": _shown(storage.client_cache_hit_fraction, fmt.percent),
        "resident before": _shown(storage.resident_before_fraction, fmt.percent),
    }


def pair_rows(pair: Pair) -> list[tuple[str, str, str]]:
    """(name, text of a, text of b): rate, verdict and what each storage did; without rows unknown on both sides."""

    def row(name: str, show: Callable[[Side], str]) -> tuple[str, str, str]:
        return (name, show(pair.a), show(pair.b))

    def proven(side: Side) -> str:
        if side.storage is None:
            return fmt.MISSING
        if not side.storage.cold_proven:
            return "no"
        return "yes" if side.storage.cold_proof is None else f"by {side.storage.cold_proof}"

    rows = [
        row("images/s", lambda side: fmt.plus_minus(side.throughput)),
        row("verdict", lambda side: side.bottleneck or fmt.MISSING),
        row("device fed (AU)", lambda side: fmt.percent(side.accelerator_utilization_fraction)),
    ]
    if pair.cache == "cold":
        rows.append(row("cold proven", proven))
    of_a, of_b = ({} if side.storage is None else _storage_texts(side, side.storage) for side in (pair.a, pair.b))
    for name in of_a or of_b:
        a, b = of_a.get(name), of_b.get(name)
        if a is not None or b is not None:
            rows.append((name, a or fmt.MISSING, b or fmt.MISSING))
    return rows


def _print_pair(pair: Pair, labels: Labels, console: Console) -> None:
    if pair.a.throughput is None and pair.b.throughput is None:
        return
    console.print()
    table = plain_table()
    table.add_column(configuration(pair.cache, pair.workers), no_wrap=True, min_width=18)
    for name in SIDES:
        table.add_column(labels[name][:LABEL_WIDTH], justify="right", min_width=28)
    for what, *texts in pair_rows(pair):
        table.add_row(what, *(styled(text, STYLES.get(text, "") if what == "verdict" else "") for text in texts))
    console.print(table)
    for name in SIDES:
        if summary := pair.side(name).summary:
            console.print(styled(f"{labels[name]}: {summary}"))


# -- what else there is to know ----------------------------------------------------------------------------


def difference_lines(comparison: Comparison, labels: Labels) -> list[str]:
    """What the two runs differ in besides the compared factor."""
    return [
        f"{difference.field}: {fmt.clean(difference.a)} in {labels['a']}, {fmt.clean(difference.b)} in {labels['b']}"
        for difference in comparison.differs
    ]


def failure_lines(pair: Pair, labels: Labels) -> list[str]:
    """Runs of the pair that failed, with their reason."""
    where = configuration(pair.cache, pair.workers)
    return [
        f"{labels[name]}, {where}, {run.status}: {run.message or 'no reason recorded'}"
        for name in SIDES
        for run in pair.side(name).failures
    ]


def note_lines(facts: CompareFacts) -> list[str]:
    """What was left out, or done differently from the default."""
    return [fmt.clean(note.text()) for note in facts.notes]


def _print_caveats(comparison: Comparison, labels: Labels, console: Console) -> None:
    """Print the caveats of the two leading runs; every run has its own."""
    said: dict[tuple[str, str], list[str]] = {}
    for name in SIDES:
        record = comparison.record(name)
        for caveat in fmt.grouped_caveats([] if record is None else [record]):
            said.setdefault((caveat.code, caveat.text), []).append(labels[name])
    lines = [f"{code} ({', '.join(who)}): {text}" for (code, text), who in said.items()]
    print_bullets(console, "Caveats of the leading pair (`loaderbench show RUN` for the others)", lines)


def unlike_line(baseline: str, run: str, differs: Sequence[Difference]) -> str:
    """Why a run is not held against a baseline: `… did other work: resolution 256 there, 512 here …`"""
    fields = ", ".join(f"{one.field} {fmt.clean(one.a)} there, {fmt.clean(one.b)} here" for one in differs)
    return (
        f"the baseline {baseline} did different work from {run}: {fields}. Measure the same work (loader, workers and "
        "decoder may differ), or use --allow-different"
    )


def print_regression(
    comparison: Comparison, threshold: float, regression: bool, console: Console | None = None
) -> None:
    """One line for a log: whether the run is slower than its baseline by more than the threshold."""
    console = console or make_console()
    word, style = ("regression", "bold red") if regression else ("no regression", "green")
    text = f"{word}: {fmt.speedup(comparison.ratio)} of the baseline's images/s, threshold {threshold:.0%} slower"
    console.print(styled(text, style))


class ShownComparison(Shown[CompareFacts, Comparison]):
    """Shows a comparison."""

    id_key = "comparison_id"
    id_leads = True

    def about(self, facts: CompareFacts) -> str:
        return f"{facts.labels['a']} against {facts.labels['b']}"

    def print(
        self, facts: CompareFacts, found: Comparison, console: Console, runs: Sequence[RunRecord], *, whole: bool
    ) -> None:
        print_comparison(facts, found, console)

    def sentence(self, found: Comparison) -> str:
        ratio, outcome = found.ratio, (found.outcome or "").replace("_", " ")
        return "nothing to compare" if ratio is None else f"{outcome}: {fmt.speedup(ratio)} images/s"

    def as_json(self, facts: CompareFacts, found: Comparison) -> JsonObject:
        about = plain.to_json(facts)
        assert isinstance(about, dict)
        return {**about, "notes": [one.text() for one in facts.notes], **super().as_json(facts, found)}
