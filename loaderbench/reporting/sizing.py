"""A sizing study: the batch table, the devices needed, what bounds them, who can feed them, and the rates by batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loaderbench.cases.inputs import words_of
from loaderbench.plain import JsonObject
from loaderbench.printable import counted, listed
from loaderbench.recording.model_size import BatchFigures, FeedFacts, SizeBound, SizeFacts, Sizing, StoppedBy, Supply
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, cells, doublings, line, name_axes
from loaderbench.reporting.result import Column, Result, Table
from loaderbench.reporting.shown import Shown

CHOSEN = "←"
STAGES = {
    "storage": "Your storage feeds",
    "prep": "Your CPUs, with the files in memory, feed",
    "loader": "Your loader feeds",
}
BOUNDS: dict[SizeBound, str] = {
    "compute": "The bound is compute",
    "memory": "The bound is memory",
    "latency": "The bound is latency",
}
NO_FILE_SIZE = "MB/s are unknown: give --mean-file-bytes, --data or --run."


def settings(sizing: Sizing) -> list[str]:
    """What was sized, in a few words each."""
    size = fmt.image_shape(sizing)
    optimizer = [sizing.optimizer] if sizing.mode == "train" else []
    return [sizing.model, sizing.mode, *optimizer, sizing.precision, size, sizing.device_name]


def is_known(sizing: Sizing) -> bool:
    """Whether the times are an emulated device's constants, and nothing was measured."""
    return any(row.source is not None for row in sizing.batches)


# -- the table -------------------------------------------------------------------------------------------


def batch_table(sizing: Sizing) -> Table:
    """Every batch that has a time; `missing_lines` say why the others have none."""
    measured = [row for row in sizing.batches if row.samples_per_s is not None]
    known, of_rss = is_known(sizing), sizing.memory_of == "rss_growth_bytes"
    percents = [] if known else [one.percent for one in measured[0].percentiles] if measured else []
    predicted = any(row.predicted_peak_bytes is not None for row in measured)
    columns = [
        Column("batch"), Column("ms/image", "ms"), Column("images/s", show=fmt.plus_minus_percent), Column("step", "s"),
        *(Column(f"p{percent:g}", "s", rank=3) for percent in percents),
        Column("its profile's") if known else Column("RSS growth" if of_rss else "peak memory", "memory", rank=1),
        *([Column("predicted memory", "memory", rank=2)] if predicted else []), Column("answer"),
    ]  # fmt: skip
    rows = []
    for row in measured:
        peak = row.rss_growth_bytes if of_rss else row.peak_live_bytes
        rows.append((
            row.batch_size, row.s_per_sample, row.samples_per_s, fmt.value_of(row.step_s),
            *(_percentile(row, percent) for percent in percents), row.label if known else peak,
            *([row.predicted_peak_bytes] if predicted else []), CHOSEN if row.batch_size == sizing.chosen_batch else "",
        ))  # fmt: skip
    return Table("Batches", columns, rows, " ".join(legend(sizing)))


def _percentile(row: BatchFigures, percent: float) -> float | None:
    """Of the times of single steps; None where it is not known."""
    return next((one.value for one in row.percentiles if one.percent == percent), None)


def legend(sizing: Sizing) -> list[str]:
    """What the table's figures are, and why some are missing."""
    measured = [row for row in sizing.batches if row.samples_per_s is not None]
    if not measured:
        return []
    lines = []
    if is_known(sizing):
        lines.append(
            "These times were not measured: they are the constants of the emulated device's profile. They have no "
            "spread, so no percentiles and no intervals. No model is built, so memory is predicted, not measured."
        )
        for label, source in dict.fromkeys((row.label, row.source) for row in measured):
            sizes = [str(row.batch_size) for row in measured if (row.label, row.source) == (label, source)]
            lines.append(f"Batch {listed(sizes)}, {label}: {source}.")
        return lines
    if sizing.memory_of == "rss_growth_bytes":
        lines.append("RSS growth: growth of the process's resident memory on the host, not a device's memory.")
    too_few = [one for row in measured for one in row.percentiles if one.unknown == "too_few_steps"]
    if too_few:
        needed = {one.percent: one.steps_needed for one in sorted(too_few, key=lambda one: one.percent)}
        each = ", ".join(f"p{percent:g} needs {steps:,}" for percent, steps in needed.items())
        timed = [one.num_steps for one in too_few]
        steps = f"{min(timed):,}" if min(timed) == max(timed) else f"{min(timed):,} to {max(timed):,}"
        lines.append(
            f"{fmt.MISSING} too few steps: {each}; {steps} were timed. Give --steps {max(needed.values())}, and the "
            "time for it with --duration."
        )
    return lines


# -- the answer ------------------------------------------------------------------------------------------


def headline(sizing: Sizing) -> str:
    """The answer in a sentence."""
    which = "by the profile's step, whose percentiles are not known" if is_known(sizing) else f"p{sizing.percentile:g}"
    limit = "" if sizing.latency_s is None else f" within {fmt.duration(sizing.latency_s)} ({which})"
    if sizing.no_answer is not None:
        return _no_answer(sizing)
    chosen = chosen_row(sizing)
    if chosen is None or chosen.samples_per_s is None:
        return "Nothing was measured."
    one = f"one does {fmt.plus_minus(chosen.samples_per_s)} images/s at batch {chosen.batch_size}"
    if sizing.target_per_s is None:
        took = _within(sizing, chosen)
        return (
            f"Batch {chosen.batch_size} gives the most{limit}: {fmt.plus_minus(chosen.samples_per_s)} images/s{took}."
        )
    count = sizing.devices_needed
    spread = ""
    found = sizing.devices_needed_interval
    if found is not None and found.low is not None and found.high is not None and found.low != found.high:
        spread = f" ({found.low} to {found.high} by its interval)"
    if sizing.is_decided is False and found is not None:
        spread = f"{found.low or 1:,} to {'any number of' if found.high is None else f'{found.high:,}'}"
        return (
            f"Not decided: {spread} devices for {fmt.number(sizing.target_per_s)} images/s{limit}, by the interval: "
            f"{one}. Measure longer (--duration), on an idle machine."
        )
    devices = fmt.MISSING if count is None else counted(count, "device")
    return f"{devices}{spread} for {fmt.number(sizing.target_per_s)} images/s{limit}: {one}."


def _within(sizing: Sizing, row: BatchFigures) -> str:
    value = _percentile(row, sizing.percentile)
    if value is None:
        return "" if row.step_s is None else f", {fmt.duration(row.step_s.value)} a step"
    return f", p{sizing.percentile:g} {fmt.duration(value)}"


def _no_answer(sizing: Sizing) -> str:
    measured = [row for row in sizing.batches if row.step_s is not None]
    if sizing.no_answer == "nothing_measured" or not measured:
        return "No answer: no batch was measured."
    least, limit = measured[0], fmt.duration(sizing.latency_s)
    if sizing.no_answer == "latency_below_all":
        assert least.step_s is not None
        value = _percentile(least, sizing.percentile)
        percentile = "" if value is None else f", p{sizing.percentile:g} {fmt.duration(value)}"
        takes = f"{fmt.duration(least.step_s.value)} a step{percentile}"
        return f"{limit} cannot be met: batch {least.batch_size} takes {takes}."
    first = next((row for row in measured if row.within_latency is None), least)
    asked = next((one for one in first.percentiles if one.percent == sizing.percentile), None)
    if asked is None:
        return "No answer: the percentile was not measured."
    return (
        f"No answer: whether p{sizing.percentile:g} is within {limit} is not known. It needs {asked.steps_needed} "
        f"steps, and of batch {first.batch_size} {asked.num_steps} were timed: give --steps {asked.steps_needed} and "
        "the time for it with --duration, or a lower --percentile."
    )


def chosen_row(sizing: Sizing) -> BatchFigures | None:
    """The batch of the answer."""
    return next((row for row in sizing.batches if row.batch_size == sizing.chosen_batch), None)


def answer_lines(sizing: Sizing) -> list[str]:
    """The answer, what bounds it, and why no larger batch was tried."""
    lines = [headline(sizing)]
    chosen = chosen_row(sizing)
    if chosen is not None and sizing.bound is not None:
        lines.append(f"{BOUNDS[sizing.bound]}: {_why(sizing, chosen)}")
    tried = [row for row in sizing.batches if row.samples_per_s is not None]
    if tried:
        taken = "taken" if sizing.stopped_by == "known" else "measured"
        lines.append(f"No batch above {tried[-1].batch_size} was {taken}: {_stop(sizing)}.")
    return lines


def _why(sizing: Sizing, chosen: BatchFigures) -> str:
    if sizing.bound == "latency":
        beyond = [
            (row.samples_per_s.value, row)
            for row in sizing.batches
            if row.within_latency is False and row.samples_per_s is not None
        ]
        _, better = max(beyond, key=lambda one: one[0], default=(0.0, chosen))
        rate = fmt.plus_minus(better.samples_per_s)
        return f"batch {better.batch_size} would do {rate} images/s{_within(sizing, better)}, beyond the limit."
    if sizing.bound == "memory":
        return "images/s still grew up to this batch, and the next does not fit."
    perhaps = [
        row.batch_size
        for row in sizing.batches
        if row.within_latency is False and row.samples_per_s is not None and chosen.samples_per_s is not None
        and row.samples_per_s.value > chosen.samples_per_s.value
    ]  # fmt: skip
    if perhaps:
        return f"batch {perhaps[0]}, beyond the limit, may do more images/s, but not beyond the intervals."
    others = [row for row in sizing.batches if row is not chosen and row.samples_per_s is not None]
    others = [row for row in others if row.within_latency is not False]
    last = next((row for row in reversed(sizing.batches) if row.samples_per_s is not None), None)
    if last is chosen and sizing.stopped_by in ("duration", "max_batch", "list", "known", "interrupted"):
        grew = "images/s still grew at this batch" if sizing.still_grows else "this is the largest batch that was tried"
        return f"{grew}, and a larger one may do more."
    unknown = [row.batch_size for row in others if row.within_latency is None and sizing.latency_s is not None]
    if unknown:
        return f"whether batch {listed(list(map(str, unknown)))} is within the limit is not known; no other does more."
    alike = [str(row.batch_size) for row in others if _may_do_as_many(row, chosen)]
    if alike:
        return f"batch {listed(alike)} may do as many images/s, by the intervals; no other does."
    return "no other batch that was measured does as many images/s."


def _may_do_as_many(row: BatchFigures, chosen: BatchFigures) -> bool:
    rate, best = row.samples_per_s, chosen.samples_per_s
    if rate is None or best is None or rate.high is None or best.low is None:
        return False
    return rate.high >= best.low


STOPS: dict[StoppedBy, str] = {
    "list": "it is the largest one requested",
    "max_batch": "--max-batch ends there",
    "memory": "the next does not fit",
    "no_gain": "over two doublings, images/s did not grow beyond their intervals",
    "latency": "its steps already take longer than the limit",
    "duration": "the time ran out",
    "known": "the emulated device's profile ends there",
    "failed": "the next failed",
    "interrupted": "it was interrupted",
}


def _stop(sizing: Sizing) -> str:
    allowed = f" (--duration {sizing.duration_s:g})" if sizing.stopped_by == "duration" else ""
    return STOPS[sizing.stopped_by] + allowed


# -- who feeds them --------------------------------------------------------------------------------------


def demand_lines(sizing: Sizing) -> list[str]:
    """What must be delivered, and how many of these devices a stored run's stages feed."""
    demand, feed = sizing.demand, sizing.feed
    if demand is None:
        return []
    of = "for the target" if demand.of_target else "for one device"
    lines = [f"{fmt.number(demand.samples_per_s)} images/s {of}."]
    if demand.bytes_per_s is None:
        lines.append(NO_FILE_SIZE)
    else:
        source = {"given": "as given", "data": "of the data set", "run": "of the stored run"}
        where = source.get(sizing.mean_file_source or "", "")
        lines.append(f"{fmt.size(demand.bytes_per_s, '/s')} at {fmt.size(sizing.mean_file_bytes)} a file, {where}.")
    if feed is None:
        return [
            *lines,
            f"The rates of loader and storage are unknown: {sizing.no_feed or 'the study used no stored run'}.",
        ]
    if demand.cpus is None:
        lines.append(f"CPUs are unknown: {feed.no_cpu_s}.")
    else:
        assert feed.cpu_s_per_sample is not None
        each = fmt.duration(feed.cpu_s_per_sample)
        lines.append(f"{fmt.number(demand.cpus)} CPUs of this machine's kind, at {each} of CPU an image.")
    return [*lines, _joined(sizing, feed), *(_supply(one, feed) for one in sizing.supplies)]


def _joined(sizing: Sizing, feed: FeedFacts) -> str:
    subject = f"{feed.dataset_name}/{feed.resolution}" if feed.resolution else feed.dataset_name
    how = "" if feed.named else ", the newest of this machine"
    workers = f" with {feed.workers} workers" if feed.workers else ""
    name = "-".join(feed.run_id.split("-")[:3])  # up to the time, as `list` shows it
    line = f"Joined with the stored run {name}{how}: {feed.loader}{workers} on {subject}."
    if sizing.inputs is not None:
        line += f" It prepared images, not {words_of(sizing.inputs)}."
    elif feed.input_size != sizing.input_size:
        size = "uncropped images" if feed.input_size is None else f"images of {feed.input_size}×{feed.input_size}"
        line += f" It prepared {size}, not {sizing.input_size}×{sizing.input_size}."
    return line


def _supply(supply: Supply, feed: FeedFacts) -> str:
    who = STAGES[supply.stage]
    if supply.stage == "loader" and feed.workers:
        who = f"Your {counted(feed.workers, 'worker feeds', 'workers feed')}"
    if supply.capacity is None:
        return f"The stage {supply.stage} is unknown: that run did not measure it alone."
    rate = f"{fmt.plus_minus(supply.capacity)} images/s"
    if supply.devices is None:
        return f"The stage {supply.stage} does {rate}."
    devices = fmt.with_interval(supply.devices, lambda value: fmt.number(value, 2))
    return f"{who} {devices} of these devices ({rate})."


def missing_lines(sizing: Sizing) -> list[str]:
    """Batches without a time, and why."""
    ended = "ended by the user or the system"
    return [
        f"batch {row.batch_size}, {row.status}: {row.failure.message if row.failure else ended}"
        for row in sizing.batches
        if row.status != "ok"
    ]


# -- the figure ------------------------------------------------------------------------------------------


def sizing_figures(sizing: Sizing) -> list[Figure]:
    """The rates by batch, where there are any."""
    rows = [row for row in sizing.batches if row.samples_per_s is not None and row.s_per_sample is not None]
    rates = Figure(
        "batches",
        f"{sizing.model}, {sizing.mode}: images/s, and time per image, by batch",
        "Measured batches with their 95 % intervals; times of an emulated device are its profile's, and have none. The "
        "dashed line is the batch of the answer.",
        [
            {
                "batch_size": row.batch_size,
                **cells(row.samples_per_s, "images_per_s", "low_images_per_s", "high_images_per_s"),
                "ms_per_image": None if row.s_per_sample is None else row.s_per_sample * 1e3,
                "chosen": "yes" if row.batch_size == sizing.chosen_batch else "no",
            }
            for row in rows
        ],
        2.6,
        partial(_draw, rows=rows, chosen=sizing.chosen_batch),
    )
    return [rates] if rows else []


def _draw(drawing: Drawing, rows: Sequence[BatchFigures], chosen: int | None) -> None:
    left, right = drawing.axes(2, columns=2)
    sizes = [row.batch_size for row in rows]
    line(left, sizes, [row.samples_per_s for row in rows], "line0")
    line(right, sizes, [row.s_per_sample for row in rows], "line1", "s", scale=1e3)
    for axes, values in ((left, "images/s"), (right, "ms per image")):
        doublings(axes, sizes)
        name_axes(axes, "batch", values, from_zero="y")
        if chosen is not None and chosen in sizes:
            axes.level(x=chosen)


class ShownSizing(Shown[SizeFacts, Sizing]):
    """Shows a sizing study."""

    def interrupted(self, facts: SizeFacts) -> bool:
        return facts.stopped_by == "interrupted"

    def result(self, facts: SizeFacts, found: Sizing) -> Result:
        table = batch_table(found)
        return Result(
            title=f"{found.model}, {found.mode}: devices needed",
            settings=settings(found),
            answer=answer_lines(found),
            tables=[table] if table.rows else [],
            sections=[
                ("What loader and storage must deliver", demand_lines(found)),
                ("Not measured", missing_lines(found)),
            ],
            draw=partial(sizing_figures, found),
        )

    def as_json(self, facts: SizeFacts, found: Sizing) -> JsonObject:
        return {**super().as_json(facts, found), "answer": [*answer_lines(found), *demand_lines(found)]}
