"""How what was found of jobs looks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from loaderbench.attach.facts import Attach, AttachFacts, JobFound, Where
from loaderbench.recording.estimate import Estimate
from loaderbench.recording.record import Range, Removable
from loaderbench.recording.thread_samples import State
from loaderbench.reporting import format as fmt
from loaderbench.reporting.price import amount, interval, money
from loaderbench.reporting.result import Column, Result, Row, Section, Table
from loaderbench.reporting.shown import Shown

CAUSES: Mapping[Removable, str] = {
    "storage": "storage", "prep": "CPU preparation", "contention": "missing processors", "transfer": "the copy",
    "launch": "kernel launches", "compute": "the training step",
}  # fmt: skip
STATES: Mapping[State, str] = {
    "running": "runs", "runnable": "waits for a processor", "file": "reads a file", "socket": "waits for a connection",
    "fault": "page fault", "lock": "waits for a lock", "sleep": "sleeps", "pipe": "waits for a queue",
    "gpu": "in the GPU's driver", "other": "other", "gil": "waits for the GIL",
}  # fmt: skip
ROLES = {"consumer": "main thread", "worker": "workers"}
DETAILS = {"index": "indices from the main process", "tcp": "TCP", "unix": "local socket", "private": "own process",
           "shared": "between processes"}  # fmt: skip
GAIN_COLUMNS = (Column("without", left=True), Column("at least", "×"), Column("at most", "×"))
WHERE_COLUMNS = (
    Column("who", left=True), Column("state", left=True), Column("time", "%"), Column("where", left=True),
)  # fmt: skip
JOB_COLUMNS = (
    Column("PID"), Column("rank", rank=3), Column("waits for data", "%"), Column("limited by", left=True),
    Column("at least", "×"), Column("at most", "×"), Column("steps/s", rank=2), Column("workers", rank=2),
    Column("command", left=True, rank=4),
)  # fmt: skip
GAIN_NOTE = "How many times as fast without it: bounds. With more --seconds they are narrower."


def gain_words(gain: Estimate | None) -> str:
    """Return `at least 1.80×, at most 3.10× as fast without it`."""
    if gain is None or gain.low is None:
        return ""
    if gain.high is None:
        return f"at least {gain.low:.2f}× as fast without it"
    return f"at least {gain.low:.2f}×, at most {gain.high:.2f}× as fast without it"


def headline(job: JobFound) -> str:
    """The answer in one sentence."""
    said = job.verdict.summary
    if job.verdict.bottleneck == "undetermined":
        return f"Undetermined: {said}." if job.phase == "training" else f"{job.phase.capitalize()}: {said}."
    gain = "" if job.verdict.bottleneck == "compute" else gain_words(job.verdict.gain)
    return f"{said[0].upper()}{said[1:]}{f': {gain}' if gain else ''}."


def place_words(where: Where) -> str:
    """Return `Samples.read (dataset.py:41)`, and what the file system, lock or connection is."""
    parts = []
    if where.file:
        parts.append(f"{where.function} ({PurePath(where.file).name}:{where.line})")
    if where.what:
        parts.append(DETAILS.get(where.what, where.what))
    return "; ".join(parts)


def job_lines(job: JobFound, found: Attach) -> list[str]:
    """The answer about one job."""
    lines = [headline(job)]
    if job.steps_per_s is not None:
        rate = job.steps_per_s
        lines.append(
            f"{fmt.number(rate.value)} steps/s ({fmt.number(rate.low or 0.0)} – {fmt.number(rate.high or 0.0)})."
        )
    elif job.no_rate is not None:
        lines.append(f"Steps/s are unknown: {job.no_rate}.")
    if job.gpu_busy_fraction is not None:
        lines.append(f"Its GPUs were busy {fmt.percent(job.gpu_busy_fraction)} of the time (NVML).")
    if found.price is not None and job.cost is not None:
        cost: Range = job.cost.hour
        hour = money(f"{found.price.per_hour:,.2f}", found.price)
        lines.append(
            f"At {hour} an hour, what limits it costs {money(amount(cost.value), found.price)}{interval(cost)} an hour."
        )
    return lines


def job_row(job: JobFound) -> Row:
    """One line of several jobs."""
    gain = job.verdict.gain if job.verdict.bottleneck not in ("compute", "undetermined") else None
    waits = None if job.waits_for_data is None else job.waits_for_data.value
    rate = None if job.steps_per_s is None else job.steps_per_s.value
    named = job.verdict.bottleneck if job.phase == "training" else job.phase
    detail = f" ({job.verdict.cause_detail.replace('_', ' ')})" if job.verdict.cause_detail else ""
    return (
        str(job.pid), None if job.rank is None else str(job.rank), waits, f"{named}{detail}",
        None if gain is None else gain.low, None if gain is None else gain.high, rate, job.workers, job.command,
    )  # fmt: skip


def job_tables(job: JobFound) -> list[Table]:
    """Bounds of each cause, and where the time goes."""
    ranked = sorted(job.verdict.speedup_if_removed.items(), key=lambda item: -item[1].value)
    gains: list[Row] = [(CAUSES[cause], gain.low, gain.high) for cause, gain in ranked]
    places: list[Row] = [
        (ROLES.get(where.role, where.role), STATES[where.state], where.fraction, place_words(where))
        for where in job.verdict.where
    ]
    tables = [Table("What removing a cause would give", GAIN_COLUMNS, gains, GAIN_NOTE)] if gains else []
    return [*tables, *([Table("Where the time goes", WHERE_COLUMNS, places)] if places else [])]


class ShownAttach(Shown[AttachFacts, Attach]):
    """Shows what was seen of jobs."""

    def about(self, facts: AttachFacts) -> str:
        return facts.asked

    def result(self, facts: AttachFacts, found: Attach) -> Result:
        """One job whole, several in a line each."""
        cost = found.cores_used_fraction
        settings = [f"{facts.looked_s:.0f} s from outside"]
        if cost is not None:
            settings.append(f"looking took {fmt.percent(cost, decimals=1)} of one processor")
        refused: Section = ("Not seen", [*found.refused])
        if len(found.jobs) == 1:
            job = found.jobs[0]
            sections: list[Section] = [
                ("What was seen", [*job.verdict.evidence]), ("What to do", [*job.verdict.advice]), refused,
            ]  # fmt: skip
            title = f"PID {job.pid}: {job.command}"
            return Result(title, settings, job_lines(job, found), job_tables(job), sections)
        waits = [job for job in found.jobs if job.verdict.bottleneck not in ("compute", "undetermined")]
        answer = [f"{len(waits)} of {len(found.jobs)} jobs are limited by something else than their training step."]
        costs = [job.cost.hour.value for job in waits if job.cost is not None]
        if found.price is not None and costs:
            total = money(amount(sum(costs)), found.price)
            answer.append(f"What limits them costs {total} an hour, if each has a machine at that price.")
        late = _late(found)
        rows = [job_row(job) for job in found.jobs]
        table = Table("Jobs", JOB_COLUMNS, rows, GAIN_NOTE)
        return Result(f"Attach: {facts.asked}", settings, [*answer, *late], [table], [refused])


def _late(found: Attach) -> list[str]:
    """Which rank of a launch the others wait for: the one that waits for data most."""
    ranks = [job for job in found.jobs if job.rank is not None and job.waits_for_data is not None]
    if len(ranks) < 2:
        return []
    ranked = sorted(ranks, key=lambda job: -(job.waits_for_data.value if job.waits_for_data else 0.0))
    first, second = ranked[0].waits_for_data, ranked[1].waits_for_data
    if first is None or second is None or (first.low or 0.0) <= (second.high or 1.0):
        return []
    return [f"Rank {ranked[0].rank} (PID {ranked[0].pid}) waits for data most: the others wait for it."]
