"""Two sides: the outcome in words, the rates, then what each storage did; the rates as a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from loaderbench import plain
from loaderbench.analysis.comparison import DATA_SET
from loaderbench.cases.case import CacheState
from loaderbench.findings.figures import is_wide
from loaderbench.plain import JsonObject
from loaderbench.printable import counted
from loaderbench.recording.record import Range
from loaderbench.recording.studies import (
    SIDE_NAMES,
    CompareFacts,
    Comparison,
    Difference,
    Labels,
    Needs,
    Pair,
    Parity,
    ReadFrom,
    Side,
    SideName,
    SideStorage,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import Console, make_console, styled
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, cells, legend, name_axes, name_bars, stack, whisker
from loaderbench.reporting.result import Column, Result, Table
from loaderbench.reporting.shown import Shown

OUTCOME_WORDS: Mapping[str, str] = {"from_memory": "from memory"}
OUTCOME_STYLES = {"faster": "green", "slower": "bold red", "indistinguishable": "yellow", "from_memory": "yellow"}
SIDE_COLOURS = ("line0", "prep")
"""The second has a hatch too."""
LABEL_WIDTH = 16
"""Longer names are cut in the table headings."""


def _where_read(comparison: Comparison, labels: Labels) -> list[str]:
    """Where each side's leading run read."""
    lines = []
    for name in SIDE_NAMES:
        record = comparison.record(name)
        if record is not None:
            where = [record.case.subject.dataset, record.storage.source if record.storage else None, record.run_id]
            lines.append(f"{labels[name]}: {' · '.join(text for text in where if text)}")
    return lines


def _same_files(facts: CompareFacts) -> list[str]:
    same = facts.same_files
    if same is None:
        return []
    return [
        f"both hold the same {same.num_images:,} images, {fmt.size(same.total_bytes)}: names and sizes of all, "
        f"contents of {same.num_hashed:,}"
    ]


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
    unsure = [] if pair is None else [labels[name] for name in SIDE_NAMES if _read_from(pair, name) == "unknown"]
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
    sides = " and ".join(labels[name] for name in SIDE_NAMES if _read_from(pair, name) == "memory")
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
    return "no workers" if number == 0 else counted(number, "worker")


def _rates(comparison: Comparison, labels: Labels) -> Table:
    heads = [f"{labels[name][:LABEL_WIDTH]} img/s" for name in SIDE_NAMES]
    columns = (
        Column("cache", left=True, definition="cache"), Column("workers"),
        *(Column(head, rank=2, show=fmt.plus_minus_percent, definition="throughput") for head in heads),
        Column("ratio", show=fmt.speedup, definition="ratio"), Column("outcome", left=True, rank=1, definition="ratio"),
    )  # fmt: skip
    rows = [
        (pair.cache, pair.workers, pair.a.throughput, pair.b.throughput, pair.ratio, outcome_word(pair))
        for pair in comparison.pairs
    ]
    note = f"ratio: images/s of {labels['b']} ÷ {labels['a']}, with its 95 % interval."
    return Table("Rates", columns, rows, note)


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
            f"; predicted, not measured: {fmt.with_interval(rate, fmt.number)} with {_workers(predicted.workers)}"
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
            gives = f"it delivers {least}{fmt.bytes_rate(rate)}{bound}"
        lines.append(f"to get there, {label} needs {fmt.size(needs.bytes_per_s, '/s')}; {gives}")
    if needs.takes_file_read_s is not None:
        allowed = needs.file_read_s
        limit = f"at most {fmt.duration(allowed)}" if allowed is not None else "no time at all"
        takes = fmt.duration(needs.takes_file_read_s)
        lines.append(f"with {_workers(needs.workers)} reading a file may take {limit}; it takes {takes} in {label}")
    return lines


# -- the two sides beside each other -----------------------------------------------------------------------


def _wide_range(rate: Range | None) -> str | None:
    if rate is None or rate.low is None or rate.high is None or not is_wide(rate.value, rate.low, rate.high):
        return None
    return f"{fmt.size(rate.low, '/s')} – {fmt.size(rate.high, '/s')}"


def _storage_texts(side: Side, storage: SideStorage) -> dict[str, str | None]:
    """Name of the figure → its text; None where it is not known."""
    files, seconds = storage.file_read_s, (side.stages or {}).get("read")
    in_files = () if files is None else (files.p50, files.p95, files.p99)
    figures: dict[str, tuple[str, float | str | None]] = {
        "bytes read in all": ("bytes", storage.bytes_read),
        "bandwidth": ("bytes/s", storage.bandwidth_bytes_per_s),
        "storage gives": ("bytes/s", storage.ceiling_bytes_per_s),
        "  at least, at most": ("", _wide_range(storage.ceiling)),
        "bound by": ("", storage.bound_by),
        "operations/s": ("", storage.operations_per_s),
        "file, p50 p95 p99": ("", " · ".join(map(fmt.duration, in_files)) or None),
        "  with readers": ("", None if files is None else str(files.readers)),
        "read in a worker": ("s", seconds),
        "NFS round trip": ("s", storage.rtt_s),
        "NFS client queue": ("s", storage.queue_s),
        "NFS in flight": ("", storage.in_flight),
        "retransmits": ("", None if storage.retransmits is None else f"{storage.retransmits:.0f}"),
        "client cache hits": ("%", storage.client_cache_hit_fraction),
        "resident before": ("%", storage.resident_before_fraction),
    }
    return {name: None if one is None else Column("", unit).shown(one) for name, (unit, one) in figures.items()}


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


def _pair_table(pair: Pair, labels: Labels) -> Table | None:
    if pair.a.throughput is None and pair.b.throughput is None:
        return None
    name = configuration(pair.cache, pair.workers)
    return Table(
        name, (Column(name, left=True), *(Column(labels[side][:LABEL_WIDTH]) for side in SIDE_NAMES)), pair_rows(pair)
    )


def verdict_lines(pairs: Sequence[Pair], labels: Labels) -> list[str]:
    """What limits each side."""
    return [
        f"{configuration(pair.cache, pair.workers)}, {labels[side]}: {summary}"
        for pair in pairs
        for side in SIDE_NAMES
        if (summary := pair.side(side).summary)
    ]


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
        for name in SIDE_NAMES
        for run in pair.side(name).failures
    ]


def note_lines(facts: CompareFacts) -> list[str]:
    """What was left out, or done differently from the default."""
    return [fmt.clean(note.text()) for note in facts.notes]


def caveat_lines(comparison: Comparison, labels: Labels) -> list[str]:
    """The caveats of the two leading runs; every run has its own."""
    said: dict[tuple[str, str], list[str]] = {}
    for name in SIDE_NAMES:
        record = comparison.record(name)
        for caveat in fmt.grouped_caveats([] if record is None else [record]):
            said.setdefault((caveat.code, caveat.text), []).append(labels[name])
    return [f"{code} ({', '.join(who)}): {text}" for (code, text), who in said.items()]


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


# -- the figure ------------------------------------------------------------------------------------------


def comparison_figures(comparison: Comparison, labels: Labels) -> list[Figure]:
    """Both sides' rates, a group for each cache state and number of workers, where any was measured."""
    pairs = [pair for pair in comparison.pairs if pair.a.throughput is not None or pair.b.throughput is not None]
    figure = Figure(
        "rates",
        f"{labels['a']} and {labels['b']}: images/s",
        "Both sides measured in turns, for each state of the page cache and number of workers.",
        [
            {
                "cache": pair.cache,
                "workers": pair.workers,
                "side": labels[name],
                **cells(pair.side(name).throughput, "images_per_s", "low", "high"),
                "verdict": pair.side(name).bottleneck,
            }
            for pair in pairs
            for name in SIDE_NAMES
            if pair.side(name).throughput is not None
        ],
        1.0 + 0.5 * len(pairs),
        partial(_draw, pairs=pairs, labels=labels),
        1.2 + 0.9 * len(pairs),
    )
    return [figure] if pairs else []


def _draw(drawing: Drawing, pairs: Sequence[Pair], labels: Labels) -> None:
    (axes,) = drawing.axes()
    for number, name in enumerate(SIDE_NAMES):
        for at, side in enumerate(pair.side(name) for pair in pairs):
            place = at + (number - 0.5) * 0.38
            if side.throughput is not None:
                stack(axes, place, [(SIDE_COLOURS[number], side.throughput.value)], height=0.34)
                whisker(axes, (side.throughput.value, place), side.throughput)
                axes.note(side.bottleneck or "", (0, place), has_halo=True)
    names = [f"{pair.cache}, {counted(pair.workers, 'worker')}" for pair in pairs]
    name_bars(axes, names, [float(number) for number in range(len(pairs))])
    name_axes(axes, "images/s, with 95 % interval; on each bar its verdict")
    legend(drawing, SIDE_COLOURS, [labels[name] for name in SIDE_NAMES])


class ShownComparison(Shown[CompareFacts, Comparison]):
    """Shows a comparison."""

    id_key = "comparison_id"
    id_leads = True

    def about(self, facts: CompareFacts) -> str:
        return f"{facts.labels['a']} against {facts.labels['b']}"

    def result(self, facts: CompareFacts, found: Comparison) -> Result:
        """The verdict first, rates, each storage's figures, parity, what else differs, caveats."""
        labels, pairs = facts.labels, found.pairs
        leading = [record for name in SIDE_NAMES if (record := found.record(name)) is not None]
        settings = []
        if leading:
            settings = [
                fmt.resolution(leading[0].case),
                fmt.loader_name(leading[0].case),
                *fmt.common_settings(leading),
            ]
        besides = f" other than {', '.join(found.factor)}" if found.factor else ""
        return Result(
            title=f"{labels['a']} against {labels['b']}",
            settings=settings,
            answer=[headline(found, labels), *_where_read(found, labels), *_same_files(facts)],
            tables=[_rates(found, labels), *filter(None, (_pair_table(pair, labels) for pair in pairs))],
            sections=[
                ("Verdicts", verdict_lines(pairs, labels)),
                ("Parity", [line for parity in found.parities for line in parity_lines(parity, labels)]),
                (f"Differences{besides}", difference_lines(found, labels)),
                ("Not measured", [line for pair in pairs for line in failure_lines(pair, labels)]),
                ("Notes", note_lines(facts)),
                ("Caveats of the leading pair (`loaderbench show RUN` for the others)", caveat_lines(found, labels)),
            ],
            draw=partial(comparison_figures, found, labels),
            style=OUTCOME_STYLES.get(found.outcome or "", ""),
        )

    def sentence(self, facts: CompareFacts, found: Comparison) -> str:
        ratio, outcome = found.ratio, (found.outcome or "").replace("_", " ")
        return "no pair to compare" if ratio is None else f"{outcome}: {fmt.speedup(ratio)} images/s"

    def as_json(self, facts: CompareFacts, found: Comparison) -> JsonObject:
        return {**plain.to_object(facts), "notes": [one.text() for one in facts.notes], **super().as_json(facts, found)}
