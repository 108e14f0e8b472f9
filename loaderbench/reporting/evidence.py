"""The three figures that support a run's verdict most, each in a line of a terminal; `words.evidence` has them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loaderbench.printable import counted
from loaderbench.recording.record import RunRecord
from loaderbench.reporting import format as fmt
from loaderbench.reporting.watched import evidence_lines
from loaderbench.reporting.words import of_single_files, others_of

MOST = 3
"""Lines of evidence on a run's screen."""
ALONE = {
    "storage": "the storage alone",
    "prep": "CPU preparation alone",
    "loader": "the loader alone",
    "transfer": "the copy alone",
    "issue": "launching alone",
}


def leading_evidence(record: RunRecord) -> list[str]:
    """At most MOST lines, those of the verdict's cause first."""
    verdict = record.verdict
    if verdict is None:
        return []
    if record.watched is not None:
        return evidence_lines(record)
    makers = [_kind, *LEADING.get(verdict.bottleneck, ()), _alone, _waits, _fed, _per_image]
    lines = [line for maker in dict.fromkeys(makers) if (line := maker(record)) is not None]
    return lines[:MOST]


def _kind(record: RunRecord) -> str | None:
    """Which files are slow, or when, where the verdict blames the storage and single files tell."""
    verdict, storage = record.verdict, record.storage
    if verdict is None or storage is None or "storage" not in (verdict.bottleneck, *verdict.joint):
        return None
    told = of_single_files(storage) if storage.kind in ("stalls", "tail", "latency") else []
    return told[0] if told else None


def _alone(record: RunRecord) -> str | None:
    """Compare the slowest stage, when it works alone, with what the device takes."""
    known = {name: rate.value for name, rate in (record.capacities or {}).items() if rate is not None}
    device = known.pop("device", None)
    if not known or device is None:
        return None
    slowest = min(known, key=lambda name: known[name])
    gives, takes = fmt.number(known[slowest]), fmt.number(device)
    return f"{ALONE.get(slowest, slowest)} delivers {gives} images/s, the device takes {takes}"


def _waits(record: RunRecord) -> str | None:
    wait = None if record.verdict is None else record.verdict.waiting_for_data
    if wait is None:
        return None
    arms, timeline = fmt.percent(wait.by_arms.value), fmt.percent(wait.by_timeline.value)
    return f"the device waits for data for {arms} of a step by the arms, {timeline} by the timeline"


def _fed(record: RunRecord) -> str | None:
    fed = record.accelerator_utilization_fraction
    return None if fed is None else f"with data always ready, a step would take {fmt.percent(fed)} of its time"


def _per_image(record: RunRecord) -> str | None:
    stages = {name: seconds for name, seconds in (record.stages or {}).items() if seconds}
    if not stages:
        return None
    return "per image: " + ", ".join(f"{name} {fmt.duration(seconds)}" for name, seconds in stages.items())


def _processors(record: RunRecord) -> str | None:
    seen = record.contention
    if seen is not None:
        others = [f"{name} use {fmt.number(cores, 2)}" for name, cores in others_of(seen).items()]
        own = f"the run uses {fmt.number(seen.own, 2)} of {seen.cpus} CPUs"
        return "; ".join([f"{own}; {seen.queued:.2f} threads wait in the run queue", *others])
    waited = next((one.details.get("fraction") for one in record.caveats if one.code == "cpu_contention"), None)
    busy = None if record.cpu is None else record.cpu.busy_fraction
    if not isinstance(waited, float):
        return None if busy is None else f"the CPUs are {fmt.percent(busy)} busy"
    busy_too = "" if busy is None else f"; the CPUs are {fmt.percent(busy)} busy"
    return f"workers were runnable but waited for a CPU {fmt.percent(waited)} of their time{busy_too}"


def _storage(record: RunRecord) -> str | None:
    storage = record.storage
    if storage is None or storage.ceiling is None:
        return None
    found, needs = storage.ceiling, storage.bandwidth_bytes_per_s
    gives = f"the storage delivers {fmt.bytes_rate(found.bytes_per_s)} to {counted(found.readers, 'reader')}"
    return gives if needs is None else f"{gives}; this run read {fmt.size(needs, '/s')}"


def _copy(record: RunRecord) -> str | None:
    copy = record.transfer
    if copy is None:
        return None
    exposed, whole = fmt.duration(copy.exposed_s), fmt.duration(copy.copy_s)
    return (
        f"the copy takes {whole} and lengthens a step by {exposed}: {fmt.size(copy.bytes_per_step)} at "
        f"{fmt.size(copy.link_bytes_per_s, '/s')}"
    )


def _gaps(record: RunRecord) -> str | None:
    gap = None if record.device is None else record.device.kernel_gap
    if gap is None:
        return None
    launch = gap.by_class.get("launch")
    part = "" if launch is None else f", {fmt.percent(launch.fraction)} of it waiting for launches"
    return f"the device runs no kernel for {fmt.percent(gap.total_fraction)} of a step{part}"


LEADING: Mapping[str, tuple[Callable[[RunRecord], str | None], ...]] = {
    "storage": (_storage, _alone, _waits),
    "prep": (_alone, _per_image, _waits),
    "contention": (_processors, _alone, _waits),
    "transfer": (_copy, _alone, _fed),
    "launch": (_gaps, _alone, _fed),
    "compute": (_fed, _alone, _waits),
}
"""Verdict → its own lines, the most telling first."""
