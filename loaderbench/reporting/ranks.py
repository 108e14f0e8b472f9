"""What many ranks did: as text, and as a page of a report with a strip a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from loaderbench.printable import counted
from loaderbench.recording.ranks import Imbalance, ImbalancePart, LateBy, RankedFigures, Ranks, RanksFacts, StripBar
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, legend, spans
from loaderbench.reporting.result import Column, Result, Section, Table
from loaderbench.reporting.shown import Shown

LATE_WORDS: Mapping[LateBy, str] = {
    "reading": "reading its files",
    "preparing": "preparing its batches",
    "processors": "waiting for CPUs that others use",
    "data": "its batches",
    "device": "its device (copying, issuing or computing)",
}
SCRIPT_COLUMNS = (
    Column("rank"), Column("node", left=True, rank=5), Column("samples/s"), Column("data", "s", rank=4),
    Column("late by"), Column("last", "%", rank=3), Column("AU", "%", rank=2), Column("limited by", left=True, rank=1),
)  # fmt: skip
SCRIPT_NOTE = (
    "Data: how long a rank waits for its own batches. Late by: compared with the mean of the ranks. Last: share of "
    "the steps in which its batch clearly came last. The compute time of each rank before a collective is unknown: a "
    "rank that computes longer slows the steps of all ranks, and is not named."
)
COLUMNS = (
    Column("rank"), Column("node", left=True, rank=5), Column("images/s"), Column("step", "s", rank=6),
    Column("data", "s", rank=4), Column("late by"), Column("last", "%", rank=3), Column("AU", "%", rank=2),
    Column("limited by", left=True, rank=1), Column("clock", rank=7),
)  # fmt: skip
NOTE = (
    "Images/s: of the rank alone. Step: from its start until the rank itself arrives. Data: the part in which its "
    "device waits for the batch. Late by: compared with the mean of the ranks. Last: share of the steps in which it "
    "arrives last. Clock: offset to rank 0's clock, with its uncertainty."
)
MOST_ROWS = 64
"""Ranks of which a row is printed; of more, those that are late most."""
BAR_LOOKS = {"data": "prep", "step": "compute", "others": "rest"}
BAR_WORDS = {"data": "waits for its batch", "step": "copy and compute", "others": "waits for the others"}
MOST_STRIPS = 32


def late_one(part: ImbalancePart) -> str:
    """Return `Rank 1 (node a) is late. The delay comes from reading its files.`"""
    by = LATE_WORDS[part.late_by]
    if part.pattern == "rotating":
        return f"The ranks are late in turn. The delay comes from {by}."
    if part.pattern == "node":
        return f"All ranks of node {part.node} are late, rank {part.rank} most. The delay comes from {by}."
    return f"Rank {part.rank} (node {part.node}) is late. The delay comes from {by}."


def headline(case: RankedFigures) -> str:
    """What limits all ranks together, in a sentence or two."""
    verdict, imbalance = case.verdict, case.imbalance
    cost = "" if imbalance is None else fmt.percent(imbalance.fraction.value, decimals=1)
    if case.watched:
        return _headline_of_script(case, cost)
    if verdict.limited_by == "imbalance" and verdict.part is not None and imbalance is not None:
        would = "" if imbalance.joint else " would"
        return f"The ranks{would} wait for each other {cost} of a step. {late_one(verdict.part)}"
    even = f"The ranks are balanced (imbalance {cost} of a step)" if cost else "The imbalance was not measured"
    if verdict.limited_by is None:
        return f"{even}; what limits them is unknown."
    return f"{even}; {verdict.limited_by} limits {verdict.agree} of {len(case.ranks)}."


def _headline_of_script(case: RankedFigures, cost: str) -> str:
    verdict = case.verdict
    if verdict.limited_by == "imbalance" and verdict.part is not None:
        return f"The ranks wait for each other's batches {cost} of a step. {late_one(verdict.part)}"
    even = f"The ranks' batches arrive evenly ({cost} of a step)" if cost else "Which batches arrive late is unknown"
    if verdict.limited_by is None:
        return f"{even}; what limits the ranks is unknown."
    what = {"compute": "the training step", "undetermined": "an undetermined cause"}.get(
        verdict.limited_by, verdict.limited_by
    )
    return f"{even}; {what} limits {verdict.agree} of {len(case.ranks)}."


def answer_lines(found: Ranks) -> list[str]:
    """A line for each case, and how it ended."""
    lines = [f"{case.title}: {headline(case)}" if len(found.cases) > 1 else headline(case) for case in found.cases]
    if found.ended is not None:
        whose = "" if found.ended.rank is None else f"rank {found.ended.rank} on {found.ended.node}: "
        lines.append(f"It ended early: {whose}{found.ended.what}.")
    return lines or ["No case was finished."]


def settings(found: Ranks) -> list[str]:
    nodes = counted(len(found.nodes), "node")
    of = f"{len(found.cases)} of {found.num_cases} cases" if found.num_cases != 1 else ""
    title = found.cases[0].title if len(found.cases) == 1 else ""
    return [part for part in (f"{found.ranks} ranks", nodes, found.launcher, of, title) if part]


def figure_lines(case: RankedFigures) -> list[str]:
    """All ranks together."""
    lines = []
    if case.watched:
        return _lines_of_script(case)
    if case.samples_per_s is not None:
        flow = "" if case.bytes_per_s is None else f", {fmt.size(case.bytes_per_s, '/s')} of files"
        lines.append(f"all ranks, each alone: {fmt.number(case.samples_per_s)} images/s{flow}")
    imbalance = case.imbalance
    if imbalance is not None and case.together_samples_per_s is not None:
        how = "measured with an all-reduce in each step" if imbalance.joint else "if each step ended with a collective"
        lines.append(f"together, {how}: {fmt.number(case.together_samples_per_s)} images/s")
        lines.append(
            f"the last rank arrives after {fmt.duration(imbalance.step_s)} of a step, the mean rank after "
            f"{fmt.duration(imbalance.mean_s)}; E[max] − mean is {_fraction_of(imbalance)} of a step"
            f" ({imbalance.num_steps:,} steps)"
        )
    return lines


def _fraction_of(imbalance: Imbalance) -> str:
    """With its interval, where it has one."""
    low, high = imbalance.fraction.low, imbalance.fraction.high
    spread = "" if low is None or high is None else f" [{fmt.percent(low, '', 1)}, {fmt.percent(high, '', 1)}]"
    return f"{fmt.percent(imbalance.fraction.value, decimals=1)}{spread}"


def _lines_of_script(case: RankedFigures) -> list[str]:
    lines, imbalance = [], case.imbalance
    if case.samples_per_s is not None:
        lines.append(f"all ranks together: {fmt.number(case.samples_per_s)} samples/s")
    if imbalance is not None:
        lines.append(
            f"a step takes {fmt.duration(imbalance.step_s)}. If every rank waited as long as the mean rank, it would "
            f"take {fmt.duration(imbalance.mean_s)}: {_fraction_of(imbalance)} less "
            f"({imbalance.num_steps:,} steps)"
        )
    if case.ready_step_s is not None:
        lines.append(f"with the batches of all ranks ready, a step took {fmt.duration(case.ready_step_s)}")
    return lines


def part_lines(case: RankedFigures) -> list[str]:
    """Where E[max] − mean comes from."""
    imbalance = case.imbalance
    if imbalance is None:
        return []
    return [
        f"{fmt.percent(part.seconds / imbalance.step_s, decimals=1)} of a step: {late_one(part)}"
        for part in imbalance.parts
        if part.seconds > 0.005 * imbalance.step_s
    ]


def rank_table(case: RankedFigures) -> Table:
    """A row for each rank."""
    ranks = case.ranks
    if len(ranks) > MOST_ROWS:
        latest = sorted(ranks, key=lambda one: -(one.lateness_s or 0.0))[:MOST_ROWS]
        ranks = tuple(sorted(latest, key=lambda one: one.place.rank))
    rows = []
    for one in ranks:
        clock = None
        if one.clock_offset_s is not None:
            clock = f"{1e3 * one.clock_offset_s:+.2f} ± {1e3 * (one.clock_uncertainty_s or 0.0):.2f} ms"
        begin = (str(one.place.rank), one.place.node, one.samples_per_s)
        end = (one.data_s, _signed(one.lateness_s), one.last_fraction, one.utilization_fraction, one.bottleneck)
        rows.append((*begin, *end) if case.watched else (*begin, one.own_step_s, *end, clock))
    return Table(case.title, SCRIPT_COLUMNS if case.watched else COLUMNS, rows, SCRIPT_NOTE if case.watched else NOTE)


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return fmt.MISSING
    return f"{'+' if seconds >= 0 else '−'}{fmt.duration(abs(seconds))}"


def sections(case: RankedFigures) -> list[Section]:
    """(heading, lines) of one case."""
    return [
        ("All ranks", figure_lines(case)),
        ("What the imbalance is made of", part_lines(case)),
        ("Missing figures", [f"{name}: {why}" for name, why in case.missing.items()]),
    ]


# -- the report ------------------------------------------------------------------------------------------


def figures(found: Ranks) -> list[Figure]:
    """A strip a rank, of each case that has them."""
    many = len(found.cases) > 1
    return [
        _strips(case, f"strips{number}", f": {case.title}" if many else "")
        for number, case in enumerate(found.cases, 1)
        if case.strip
    ]


def _strips(case: RankedFigures, name: str, called: str) -> Figure:
    bars = [bar for bar in case.strip if bar.rank < MOST_STRIPS]
    ranks = sorted({bar.rank for bar in bars})
    joint = case.imbalance is not None and case.imbalance.joint
    how = "with an all-reduce in each step" if joint else "each rank by itself"
    if case.watched:
        how = "what a rank does with a batch being one with its waiting for the others"
    return Figure(
        name,
        f"A few steps of every rank, over time{called}",
        f"One strip a rank, {how}, on rank 0's clock. A rank that waits for the others has arrived before them.",
        list(map(vars, bars)),
        0.9 + 0.32 * len(ranks),
        partial(_draw, bars=bars, ranks=ranks),
    )


def _draw(drawing: Drawing, bars: Sequence[StripBar], ranks: Sequence[int]) -> None:
    (axes,) = drawing.axes()
    at = {rank: number for number, rank in enumerate(ranks)}
    lanes = [f"rank {rank}" for rank in ranks]
    spans(axes, lanes, ((at[bar.rank], BAR_LOOKS[bar.what], bar.begin_ms, bar.end_ms) for bar in bars))
    axes.x.low, axes.x.label = 0, "ms"
    shown = [what for what in BAR_LOOKS if any(bar.what == what for bar in bars)]
    legend(drawing, [BAR_LOOKS[what] for what in shown], [BAR_WORDS[what] for what in shown])


class ShownRanks(Shown[RanksFacts, Ranks]):
    """Shows a study of several ranks."""

    def about(self, facts: RanksFacts) -> str:
        return f"{facts.ranks} ranks, {len(facts.cases)} of {facts.num_cases} cases"

    def result(self, facts: RanksFacts, found: Ranks) -> Result:
        many = len(found.cases) > 1
        return Result(
            title=f"{found.ranks} ranks on {counted(len(found.nodes), 'node')}",
            settings=settings(found),
            answer=answer_lines(found),
            tables=[rank_table(case) for case in found.cases],
            sections=[
                (f"{heading}: {case.title}" if many else heading, lines)
                for case in found.cases
                for heading, lines in sections(case)
            ],
            draw=partial(figures, found),
        )
