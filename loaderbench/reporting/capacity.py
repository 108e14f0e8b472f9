"""How many ranks a storage feeds: as text, as a page of a report, and as a picture of AU and images/s by ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from loaderbench.recording.capacity import Capacity, CapacityFacts, CapacityPoint, Stop
from loaderbench.recording.record import Estimate, Range
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, cells, line, name_axes
from loaderbench.reporting.result import Column, Result, Row, Section, Table
from loaderbench.reporting.shown import Shown

STOP_WORDS: Mapping[Stop, str] = {
    "storage_bandwidth": "the storage's bandwidth",
    "storage_latency": "the storage's latency",
    "client_cpu": "this machine's CPUs",
    "barrier": "the barrier",
}
COLUMNS = (
    Column("ranks"), Column("AU", "0.1 %"), Column("95 %", rank=4), Column("least", "0.1 %", rank=7),
    Column("images/s"), Column("storage", "%", rank=3), Column("CPUs", "%", rank=2), Column("data", "0.1 %", rank=5),
    Column("barrier", "0.1 %", rank=6), Column("MLPerf", "0.1 %", rank=8),
)  # fmt: skip
NOTE = (
    "AU: time that the devices need for their steps ÷ elapsed time, mean over the ranks. Least: AU of the lowest rank. "
    "Storage, CPUs: the used share of the storage's ceiling and of the CPUs. Data, barrier: the share of the time in "
    "which a device waits for its own batch, and in which it waits at the collective for the last rank."
)
MLPERF = (
    "MLPerf: total compute time ÷ total running time by the rule of MLPerf Storage. It counts every step except the "
    "first and so includes filling the pipeline, which our AU leaves out. It is one figure without an interval."
)
MLPERF_FEW = (
    "Its rules want at least 500 steps an epoch and a data set of 5 times the memory: these figures are no results of "
    "that benchmark (--steps 500 gives the steps)."
)
MLPERF_MANY = "Its rules want a data set of 5 times the memory as well: these figures are no results of that benchmark."
PROVEN_COLD = "before each measurement the files were evicted from the page cache, and none of a sample was in it"


def settings(found: Capacity) -> list[str]:
    """What was asked."""
    barrier = "a barrier at each step" if found.barrier == "step" else "no barrier"
    return [
        found.dataset_name, found.device_name, f"batch {found.batch_size}", found.loader, f"cache {found.cache}",
        barrier, f"AU ≥ {fmt.percent(found.au_target_fraction)}",
    ]  # fmt: skip


def headline(found: Capacity) -> str:
    """Return `It feeds 10 accelerators at AU ≥ 90 %; for one more, the limit is the storage's bandwidth.`"""
    target = fmt.percent(found.au_target_fraction)
    if found.found_ranks is None:
        return f"How many accelerators it feeds is unknown: {found.missing['found_ranks']}."
    if not found.found_ranks:
        what = f"It does not feed one accelerator at AU ≥ {target}"
    else:
        noun = "accelerator" if found.found_ranks == 1 else "accelerators"
        what = f"It feeds {found.found_ranks} {noun} at AU ≥ {target}"
    if found.next_ranks is None:
        return f"{what}; more were not tried."
    if found.next_is_stopped_by is None:
        return f"{what}; what limits the next is unknown."
    next_one = "for one more, " if found.found_ranks else ""
    return f"{what}; {next_one}the limit is {STOP_WORDS[found.next_is_stopped_by]}."


def answer_lines(found: Capacity) -> list[str]:
    """The answer in sentences, the first of which says it all."""
    lines = [headline(found)]
    if found.is_open:
        lines.append(
            "The target lies within the confidence interval at the edge, so the number may be one higher or lower."
        )
    if found.predicted_ranks is not None:
        by = min((one for one in found.bounds if one.ranks is not None), key=lambda one: one.ranks or 0)
        lines.append(f"Predicted from one and two ranks: {found.predicted_ranks}, limited by {STOP_WORDS[by.by]}.")
    lines += _evidence(found)
    if found.failure is not None:
        lines.append(f"It ended early: {found.failure.rstrip('.')}.")
    elif found.interrupted:
        lines.append("It was interrupted: the finished measurements are kept.")
    return lines


def _evidence(found: Capacity) -> list[str]:
    """Why the next rank is said to be stopped by that."""
    point = next((one for one in found.curve if one.ranks == found.next_ranks), None)
    if point is None or found.next_is_stopped_by is None:
        return []
    parts = [f"AU {fmt.percent(point.au_fraction, decimals=1)}"]
    if point.storage_use_fraction is not None:
        parts.append(f"{fmt.percent(point.storage_use_fraction)} of the storage's ceiling is used")
    if point.cpu_use_fraction is not None:
        own = fmt.percent(point.cpu_own_fraction)
        parts.append(f"{fmt.percent(point.cpu_use_fraction)} of the CPU time ({own} by the ranks)")
    if point.read_fraction is not None and point.mean_read_s is not None:
        reading = f"loading is {fmt.percent(point.read_fraction)} reading ({fmt.duration(point.mean_read_s)} a file)"
        parts.append(reading)
    parts.append(f"without the barrier's waits AU {fmt.percent(point.au_without_barrier_fraction, decimals=1)}")
    lines = [f"With {point.ranks}: {', '.join(parts)}."]
    if found.also_near_its_limit is not None:
        lines.append(f"Also near its limit: {STOP_WORDS[found.also_near_its_limit]}.")
    return lines


def point_row(point: CapacityPoint) -> Row:
    """One number of ranks."""
    return (
        point.ranks, point.au_fraction, _interval(point.au), point.au_least_fraction, point.samples_per_s.value,
        point.storage_use_fraction, point.cpu_use_fraction, point.waits_for_data_fraction,
        point.waits_at_barrier_fraction, point.mlperf.au_fraction,
    )  # fmt: skip


def _interval(au: Estimate) -> str:
    if au.low is None or au.high is None:
        return fmt.MISSING
    return f"{fmt.number(100 * au.low)}–{fmt.number(100 * au.high)}"


def sections(found: Capacity) -> list[Section]:
    """(heading, lines): the prediction, what the figures mean, and what is missing."""
    rests = []
    if found.demand_samples_per_s is not None:
        rests.append(f"one rank at AU 100 % takes {fmt.number(found.demand_samples_per_s)} images/s")
    if found.storage_samples_per_s is not None:
        bound = "" if found.storage_bound_by is None else f", {found.storage_bound_by}-bound"
        rests.append(f"the storage delivers {fmt.plus_minus(found.storage_samples_per_s)} images/s of this size{bound}")
    if found.cold_is_proven:
        rests.append(PROVEN_COLD)
    bounds = [
        f"{STOP_WORDS[one.by]}: {'no bound' if one.ranks is None else f'{one.ranks} ranks'} ({one.why})"
        for one in found.bounds
    ]
    means = []
    if found.curve:
        enough = all(point.mlperf.enough_steps for point in found.curve)
        few = f"{min(point.num_steps for point in found.curve):,} to {max(point.num_steps for point in found.curve):,}"
        means = [MLPERF, f"{MLPERF_MANY if enough else MLPERF_FEW} Steps of a rank here: {few}."]
    by_rule = [point.ranks for point in found.curve if point.mlperf.reaches_target]
    if found.found_ranks is not None and by_rule and max(by_rule) != found.found_ranks:
        means.append(f"By that rule it feeds {max(by_rule)}, because that rule counts the steps at the start.")
    return [
        ("Predicted from one and two ranks", bounds),
        ("What it rests on", rests),
        ("What it means", means),
        ("Caveats", [*found.caveats]),
        ("Missing figures", [f"{name}: {why}" for name, why in found.missing.items()]),
    ]


# -- the report ------------------------------------------------------------------------------------------


def figures(found: Capacity) -> list[Figure]:
    """The curve, where it has more than one point."""
    curve = Figure(
        "ranks",
        "Accelerator utilization and images/s by ranks",
        "AU with its 95 % interval (left; dashed: the target) and the images/s of all ranks (right; dotted: what the "
        "storage gives, dash-dotted: what the ranks would take at AU 100 %).",
        [
            {
                "ranks": point.ranks,
                **cells(_au(point), "au_percent", "low_percent", "high_percent", scale=100),
                "images_per_s": point.samples_per_s.value,
            }
            for point in found.curve
        ],
        2.8,
        partial(_draw, found=found),
    )
    return [curve] if len(found.curve) > 1 else []


def _au(point: CapacityPoint) -> Range:
    return Range(point.au_fraction, point.au.low, point.au.high)


def _draw(drawing: Drawing, found: Capacity) -> None:
    left, right = drawing.axes(2, columns=2)
    ranks, rates = [point.ranks for point in found.curve], [point.samples_per_s.value for point in found.curve]
    line(left, ranks, [_au(point) for point in found.curve], "line0", scale=100)
    left.level(y=100 * found.au_target_fraction)
    line(right, ranks, rates, "line1", "s")
    if found.storage_samples_per_s is not None and found.storage_samples_per_s.value < 3 * rates[-1]:
        right.level(y=found.storage_samples_per_s.value, dashes=":")
    if found.demand_samples_per_s is not None:
        right.line([(number, found.demand_samples_per_s * number) for number in ranks], "soft", 1, "-.")
    name_axes(left, "ranks", "AU, %", from_zero="x")
    left.y.low, left.y.high = 0, 105
    left.x.is_whole = right.x.is_whole = True
    name_axes(right, "ranks", "images/s", from_zero="xy")


class ShownCapacity(Shown[CapacityFacts, Capacity]):
    """Shows a capacity study."""

    def about(self, facts: CapacityFacts) -> str:
        return f"{facts.case.subject.dataset_name}, up to {facts.max_ranks} ranks"

    def result(self, facts: CapacityFacts, found: Capacity) -> Result:
        return Result(
            title=f"How many accelerators {found.dataset_name} feeds",
            settings=settings(found),
            answer=answer_lines(found),
            tables=[Table("Ranks", COLUMNS, [point_row(point) for point in found.curve], NOTE)] if found.curve else [],
            sections=sections(found),
            draw=partial(figures, found),
        )
