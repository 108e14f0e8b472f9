"""Which caveats a record has: one for each figure that is null or not to be taken at face value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from loaderbench.analysis import kernels
from loaderbench.analysis.alike import differences
from loaderbench.analysis.shadow import differ
from loaderbench.cases.arms import ARMS, Arm
from loaderbench.plain import Json
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import WatchedFacts
from loaderbench.recording.record import RunRecord, StorageFigures

if TYPE_CHECKING:
    from loaderbench.analysis.record import Judged

STARVED = 0.10
"""Workers that wait for a processor more than this fraction of their time get the caveat `cpu_contention`."""
MANY_BYTES = 1_000_000
"""Reads of other programs from the same disk are told from here on, or where they leave a figure unknown."""
WITNESSES_AGREE = 0.03
"""Busy fractions that differ by more than this get the caveat `busy_witnesses_disagree`."""


BEHIND_THE_ROUNDS = (
    "kernel_gap_not_measured", "ceiling_not_measured", "device_memory_not_measured", "worker_memory_not_measured",
    "overhead_not_measured",
)  # fmt: skip
"""Of what is looked at once, behind the rounds: a run that was ended before has `ended_early` for all of it."""


def caveats_of(judged: Judged, record: RunRecord) -> list[Caveat]:
    """The caveats that follow from the facts, besides those that were recorded with them."""
    if judged.facts.watched is not None:
        return [*_of_the_verdict(record), *_of_a_watched_script(judged.facts.watched), *_of_the_shadow(judged)]
    found = [
        *_of_the_verdict(record),
        *_of_the_trace(judged),
        *_of_the_arms(judged, record),
        *_of_the_device(judged, record),
        *(() if record.storage is None else _of_the_storage(judged, record.storage)),
        *_of_steadiness(judged),
        *_of_figures(judged, record),
    ]
    return [one for one in found if not (judged.ended_early and one.code in BEHIND_THE_ROUNDS)]


def _of_the_verdict(record: RunRecord) -> Iterator[Caveat]:
    for reason in record.verdict.reasons if record.verdict else ():
        if reason.code == "witnesses_disagree":
            yield Caveat("witnesses_disagree", reason.details)


def _of_the_trace(judged: Judged) -> Iterator[Caveat]:
    traced = judged.traced
    recorded = {caveat.code for caveat in judged.recording.caveats}
    if traced is None:
        if "kernel_gap_not_measured" not in recorded:
            yield Caveat("kernel_gap_not_measured", {"why": "older_version"})
        return
    if faults := kernels.missing(traced):
        told: list[Json] = [{"code": fault.code, "details": dict(fault.details)} for fault in faults]
        yield Caveat("trace_incomplete", {"faults": told})
        return
    unsteady = [one.arm.value for one in (traced, *judged.recording.of(Arm.UNTRACED)) if not one.steady]
    if unsteady:
        arms: list[Json] = [*dict.fromkeys(unsteady)]
        yield Caveat("trace_not_steady", {"arms": arms})


def _of_the_arms(judged: Judged, record: RunRecord) -> Iterator[Caveat]:
    loader = judged.facts.loader
    missing = [arm for arm in ARMS if arm not in judged.arms]
    if loader.owns_transfer:
        yield Caveat("loader_owns_transfer")
        missing = [arm for arm in missing if arm is not Arm.HOST]
    if not loader.decodes:
        yield Caveat("no_files")
        missing = [arm for arm in missing if arm not in (Arm.RAM, Arm.FETCH)]
    if record.storage is not None and record.storage.idle_proof is not None:
        missing = [arm for arm in missing if arm is not Arm.RAM]  # it would do the same as `real`
    if missing:
        why = "not_allowed"
        if set(judged.case.effort.arms) < set(ARMS):
            why = "not_asked"
        elif judged.facts.cache.measured_once:
            why = "measured_once"
        elif judged.ended_early:
            why = "interrupted"
        elif judged.facts.rounds.stopped_by == "decided":
            why = "decided"
        elif judged.facts.rounds.stopped_by == "duration" or Arm.FREE in missing:  # no loader forbids it: it was spared
            why = "no_time"
        names: list[Json] = [arm.value for arm in missing]
        yield Caveat("arms_not_measured", {"arms": names, "why": why})
    if record.shares is not None and record.shares["launch"] is None and Arm.DEVICE in judged.arms:
        yield Caveat("launch_not_measured")
    if record.transfer is None and Arm.HOST in judged.arms:
        yield Caveat("no_transfer", {"why": "took_no_time" if judged.facts.device.copies else "nothing_copied"})


def _of_the_device(judged: Judged, record: RunRecord) -> Iterator[Caveat]:
    facts, device = judged.facts.device, record.device
    assert device is not None
    if facts.emulated:
        yield Caveat("emulated_device", {"name": facts.name})
        if not _tells_issuing(facts.details):
            yield Caveat("issue_unknown")
    seen = device.busy_witnesses
    if seen is not None:
        if apart := kernels.disagreeing(seen, WITNESSES_AGREE):
            yield Caveat("busy_witnesses_disagree", {"kernels": seen.kernels, "others": apart})
        if facts.has_counters and seen.nvml is None and seen.gpm is None:
            yield Caveat("busy_not_cross_checked")
    if device.nvml is None and facts.has_counters:
        yield Caveat("nvml_not_measured")
    if device.memory_peak_bytes is None:
        yield Caveat("device_memory_not_measured", {"kind": facts.kind})


def _tells_issuing(details: Mapping[str, Json]) -> bool:
    """Whether an emulated device spends on issuing what its profile tells; not where the profile does not tell."""
    constants = details.get("constants")
    issue = constants.get("issue_ms") if isinstance(constants, dict) else None
    return not (isinstance(issue, dict) and issue.get("value") is None)


def _of_the_storage(judged: Judged, storage: StorageFigures) -> Iterator[Caveat]:
    facts = judged.facts
    if storage.bytes_read is None:
        yield Caveat("storage_bytes_unknown", {"reason": facts.storage.reason})
    if facts.cache.state == "cold" and not storage.cold_proven:
        details: dict[str, Json] = {"moved_fraction": storage.moved_fraction}
        yield Caveat("cold_not_proven", {**details, "resident_before": storage.residency_fraction.before})
    if storage.cold_proof == "residency":
        yield Caveat("cold_by_residency", {"read_ratio": storage.cold_read_ratio})
    others = storage.others_read_bytes
    if others is not None and (storage.reads_per_s is None or others >= MANY_BYTES):
        yield Caveat("disk_shared", {"bytes": others})
    if storage.reads is None:
        yield Caveat("reads_not_timed")
    if storage.fetch_saw is False:
        yield Caveat("fetch_missed")
    if storage.ceiling is None:
        yield Caveat("ceiling_not_measured", _why_no_ceiling(judged))
    else:
        if storage.ceiling.still_rising:
            readers, stopped_by = storage.ceiling.stages[-1].readers, storage.ceiling.stopped_by
            yield Caveat("ceiling_still_rising", {"readers": readers, "stopped_by": stopped_by})
        if storage.ceiling.probe_limited:
            yield Caveat("ceiling_probe_limited")
    if facts.rounds.stopped_by == "max_bytes":
        yield Caveat("max_bytes_reached", {"max_bytes": judged.case.effort.max_bytes})
    recorded = {caveat.code for caveat in judged.recording.caveats}
    if storage.residency_fraction.before is None and "residency_unknown" not in recorded:
        yield Caveat("residency_unknown", {"reason": None})
    copy = facts.storage.ram_copy
    if copy is not None and copy.subset:
        yield Caveat("ram_subset", {"num": copy.num_images, "of": facts.storage.num_images})


def _why_no_ceiling(judged: Judged) -> dict[str, Json]:
    probe = judged.facts.storage.ceiling
    if probe is None:
        return {"why": "not_asked"}
    if probe.stopped_by == "error":
        return {"why": "error", "reason": probe.reason}
    return {"why": "from_cache"} if probe.stages else {"why": "ended", "stopped_by": probe.stopped_by}


def _of_steadiness(judged: Judged) -> Iterator[Caveat]:
    recording, feed = judged.recording, judged.case.feed
    if judged.ended_early:
        yield Caveat("ended_early", {"rounds": judged.facts.rounds.num_rounds})
    if any(not segment.steady for segment in recording.of(Arm.SHORT)):
        yield Caveat("buffer_not_full")
    depth, real = judged.facts.loader.traits.buffer_batches(feed), judged.real
    if real.num_steps < 10 * depth and feed.workers:
        yield Caveat("short_run", {"steps": real.num_steps, "buffer_batches": depth})
    unsteady = {one.arm.value for arm in (Arm.RAM, Arm.REAL) for one in recording.of(arm) if not one.steady}
    if unsteady:
        names: list[Json] = [*sorted(unsteady)]
        yield Caveat("queue_not_steady", {"arms": names})
    for found in differences(recording):
        yield Caveat(
            "preparation_differs",
            {
                "arm": found.arm.value,
                "other": found.other.value,
                "ratio": found.ratio.value,
                "low": found.ratio.low,
                "high": found.ratio.high,
                "more_faults": found.more_faults,
            },
        )
    half_width = real.width.whole
    target = judged.case.effort.ci_target
    if half_width > target and judged.facts.rounds.stopped_by != "decided":  # then it was not asked for
        known = half_width if half_width < float("inf") else None
        stopped_by = judged.facts.rounds.stopped_by
        yield Caveat("ci_target_missed", {"half_width": known, "target": target, "stopped_by": stopped_by})


def _of_a_watched_script(seen: WatchedFacts) -> Iterator[Caveat]:
    yield Caveat("watched_script")
    if seen.so_far_s is not None:
        yield Caveat("watched_so_far", {"seconds": seen.so_far_s})
    if seen.cost is not None and seen.cost.write_problem is not None:
        yield Caveat("not_written_so_far", {"reason": seen.cost.write_problem})
    if seen.no_burst is not None:
        yield Caveat("no_bursts", {"reason": seen.no_burst})
    if seen.no_shadow is not None:
        yield Caveat("no_shadow", {"reason": seen.no_shadow})
    if seen.no_doses is not None:
        yield Caveat("no_delays", {"reason": seen.no_doses})
    if seen.no_spans is not None:
        yield Caveat("spans_unknown", {"reason": seen.no_spans})


def _of_the_shadow(judged: Judged) -> Iterator[Caveat]:
    by_reader, seen = judged.shadow_part, judged.model.watched
    if by_reader is None or seen is None or seen.off_processor is None or seen.off_processor is by_reader:
        return
    if differ(by_reader, seen.off_processor):
        yield Caveat("shadow_differs", {"shadow": by_reader.value, "spans": seen.off_processor.value})


def _of_figures(judged: Judged, record: RunRecord) -> Iterator[Caveat]:
    starved = judged.starved_fraction
    if starved is not None and starved > STARVED:
        yield Caveat("cpu_contention", {"fraction": starved})
    if record.contention is None:
        yield Caveat("contention_not_measured")
    if record.stages is None:
        yield Caveat("stages_not_measured", {"reason": judged.facts.loader.no_stage_times})
    cpu = record.cpu
    assert cpu is not None
    names = ("busy_fraction", "seconds_per_sample", "workers_rss_bytes")
    unknown: list[Json] = [name for name in names if getattr(cpu, name) is None]
    if unknown:
        yield Caveat("cpu_not_measured", {"names": unknown})
    if cpu.workers_pss_bytes is None:
        yield Caveat("worker_memory_not_measured", {"reason": judged.facts.loader.no_workers_pss})
    if record.overhead_fraction is None:
        yield Caveat("overhead_not_measured")
    if record.time_to_first_batch_s is None:
        yield Caveat("first_batch_not_measured")
    if judged.facts.failures.num_reads:
        yield Caveat("images_failed", {"num": judged.facts.failures.num_reads})
