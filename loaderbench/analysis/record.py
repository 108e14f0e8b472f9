"""Run → the record of cli.md (`schema` 1): figures, verdict, and a caveat for each figure that is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis import kernels, verdict
from loaderbench.analysis import storage as probed
from loaderbench.analysis.advice import advise
from loaderbench.analysis.attribution import CAUSES, SHARES, Attribution, attribute
from loaderbench.analysis.comparison import rate_of, ratio_of
from loaderbench.analysis.statistics import half_width_fraction, interval
from loaderbench.analysis.steps import ArmSteps, arm_steps
from loaderbench.cases.case import ARMS, Case
from loaderbench.recording.types import (
    SCHEMA,
    SHORT,
    SPAN_FIELDS,
    STEP_FIELDS,
    TRACED,
    UNTRACED,
    Caveat,
    Estimate,
    Recording,
    Run,
    Segment,
    Series,
)

Say = Callable[[str, str], None]

SPAN = {name: number for number, name in enumerate(SPAN_FIELDS)}
ALL_ARMS = (*ARMS, "prep")
STAGES = ("read", "decode", "augment", "collate")
STARVED = 0.10
"""Workers that wait for a processor more than this fraction of their time get the caveat `cpu_contention`."""
NO_INTERVAL = {"low": None, "high": None}
COLD_RANGE = (0.98, 1.05)
"""Bytes moved ÷ bytes expected within which a cold read counts as proven (measurement.md, `cold`)."""
STEADY_S, LAG_S = 5.0, 1.0
"""NVML and GPM are compared with a trace over windows of this length, their first second left out: GPM smears the edges
of 1 s windows by up to 8 points and is within about 1.5 over 5 s (measured on an H200)."""
WITNESSES_AGREE = 0.03
"""Busy fractions that differ by more have the caveat `busy_witnesses_disagree`."""
IDLE_FRACTION = 0.02
"""A storage that moved less than this part of the bytes that were asked for was idle: a shared disk is never quite."""
SERVED_BY_CACHE = 0.90
"""Where less than this part of the bytes moved, the page cache served a cold arm."""


def make_record(run_id: str, run: Run) -> dict[str, Any]:
    """The whole record of a run. Pure: the same facts give the same record."""
    caveats = list(run.caveats)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "run_id": run_id,
        "status": run.status,
        "failure": None if run.failure is None else {"kind": run.failure[0], "message": run.failure[1]},
        "case": run.case.to_json(),
        "environment": run.environment,
        "started_at": run.started_at,
        "wall_s": run.wall_s,
    }
    if run.recording is None:
        return {**record, **_nothing(), "caveats": [_plain(caveat) for caveat in caveats]}
    recording = run.recording
    caveats += recording.caveats
    arms = {
        arm: steps
        for stream, arm in enumerate(ALL_ARMS)
        if (steps := arm_steps(recording.segments, arm, stream, run.case.lanes)) is not None
    }
    if "real" not in arms:
        caveats.append(
            Caveat("real_not_measured", "the arm `real` has no complete step: give --duration or --steps more")
        )
        return {**record, **_nothing(), "caveats": [_plain(caveat) for caveat in caveats]}
    spans = _spans(recording.segments, "real")
    starved = _starved_fraction(spans)
    loader = recording.facts["loader"]
    storage = _storage(recording, loader.get("num_readers") or run.case.lanes)
    gap, why_no_gap = _kernel_gap(recording)
    found = attribute(
        arms,
        reads_files=loader["decodes"],
        owns_transfer=loader["owns_transfer"],
        synchronous=run.case.workers == 0,
        starved_fraction=starved,
        overlap=bool(recording.facts["device"].get("overlap")),
        storage_idle=_storage_idle(storage),
        doubts=_doubts(run, storage),
    )
    caveats += found.caveats
    figures = _figures(run, recording, arms, found, storage, spans, starved)
    if gap is not None:
        figures["device"]["kernel_gap"] = gap
        figures["device"]["busy_witnesses"] = _busy_witnesses(run, recording, gap)
        figures["verdict"]["evidence"] += kernels.evidence(gap, figures["device"]["busy_witnesses"])
    caveats += why_no_gap
    caveats += _caveats(run, recording, arms, found, starved, figures)
    return {**record, **figures, "caveats": [_plain(caveat) for caveat in caveats]}


def _plain(caveat: Caveat) -> dict[str, str]:
    return {"code": caveat.code, "message": caveat.message}


def _nothing() -> dict[str, Any]:
    """The figures of a run that measured nothing: all null."""
    names = (
        "throughput", "step_time_s", "time_to_first_batch_s", "loader_rate", "ingestion_rate",
        "accelerator_utilization_fraction", "shares", "verdict", "capacities", "storage", "transfer", "stages", "cpu",
        "device", "loader", "overhead_fraction",
    )  # fmt: skip
    return dict.fromkeys(names)


def _json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.to_json()


def _rate(arm: ArmSteps | None, quantity: str = "duration") -> Estimate | None:
    """Samples/s of an arm: samples a step ÷ mean seconds a step, the window's totals and not a mean of rates."""
    if arm is None or not arm.mean(quantity) > 0:
        return None
    per_step = arm.num_samples / arm.num_steps
    draws = per_step / np.maximum(arm.drawn(quantity), 1e-12)
    return interval(per_step / arm.mean(quantity), draws, "samples/s", arm.num_blocks)


def _figures(
    run: Run,
    recording: Recording,
    arms: dict[str, ArmSteps],
    found: Attribution,
    storage: dict[str, Any] | None,
    spans: NDArray[np.int64] | None,
    starved: float | None,
) -> dict[str, Any]:
    real = arms["real"]
    transfer = _transfer(recording, arms)
    durations = real.all("duration")
    p50, p95, p99 = np.percentile(durations, [50, 95, 99])
    capacities = _capacities(run, arms)
    contention = found.shares["contention"]
    says = {
        "bottleneck": found.bottleneck,
        "summary": verdict.summary(found),
        "speedup_if_removed": {cause: _json(found.speedup_if_removed.get(cause)) for cause in (*CAUSES, "compute")},
        "joint": list(found.joint),
        "joint_speedup": _json(found.joint_speedup),
        "evidence": verdict.evidence(found, capacities, storage, transfer),
        "advice": advise(
            run.case,
            found,
            arms,
            spans,
            recording.facts,
            consumer_cpu_s=_consumer_cpu_s(recording.segments),
            usable_cpus=int(run.environment.get("cpus_usable") or 1),
            contention=(starved or 0.0) > STARVED or (contention is not None and contention.value > 0.05),
        ),
    }
    return {
        "throughput": _json(_rate(real)),
        "step_time_s": {"mean": real.mean("duration"), "p50": p50, "p95": p95, "p99": p99},
        "total_time_s": real.seconds,
        "num_steps": real.num_steps,
        "time_to_first_batch_s": _first_batch_s(recording),
        "loader_rate": _json(_rate(arms.get("free"))),
        "ingestion_rate": _json(_rate(arms.get("device"))),
        "accelerator_utilization_fraction": None if found.utilization is None else found.utilization.value,
        "accelerator_utilization": _json(found.utilization),
        "shares": {name: _json(found.shares[name]) for name in SHARES},
        "verdict": says,
        "capacities": {name: _json(one) for name, one in capacities.items()},
        "storage": storage,
        "transfer": transfer,
        "stages": _stages(spans, real) if spans is not None else _operator_stages(run.case, recording.segments),
        "cpu": _cpu(run, recording, real),
        "device": _device(run, recording, arms),
        "loader": recording.facts["loader"].get("description"),
        "overhead_fraction": _overhead_fraction(run, recording, real),
        "overhead_measured_at": run.started_at,
        "num_failures": recording.facts["num_failures"],
        "failures": recording.facts["failures"],
        "sampling_cpu_fraction": run.sampling_cpu_s / run.wall_s if run.wall_s > 0 else None,
        "arms": {name: _arm(steps) for name, steps in arms.items()},
        "stopped_by": recording.facts["stopped_by"],
        **_short_run(run, recording, _json(_rate(real))),
    }


def _short_run(run: Run, recording: Recording, steady: dict[str, Any] | None) -> dict[str, Any]:
    """{short_run}: runs that begin with a full prefetch buffer against the steady rate (S-A4); empty: not asked for.

    The clock of a short run starts when it asks for its first batch and ends when its last step is done.
    """
    segments = [one for one in recording.segments if one.arm == SHORT]
    if not segments:
        return {}
    column = {name: number for number, name in enumerate(STEP_FIELDS)}
    rates = []
    for one in segments:
        steps = one.steps[one.num_warmup :]
        taken_s = (steps[-1, column["done_ns"]] - steps[0, column["called_ns"]]) / 1e9
        rates.append({"throughput": {"value": steps[:, column["num_samples"]].sum() / taken_s, "n": 1, **NO_INTERVAL}})
    rate = rate_of(rates)
    num_steps = len(segments[0].steps) - segments[0].num_warmup
    short = {
        "num_steps": num_steps,
        "buffer_batches": run.case.buffer_batches,
        "buffer_ratio": run.case.buffer_batches / num_steps,
        "buffer_full": all(one.steady for one in segments),
        "throughput": rate,
        "flatters": ratio_of([{"throughput": steady}], [{"throughput": rate}]),
    }
    return {"short_run": short}


def _overhead_fraction(run: Run, recording: Recording, real: ArmSteps) -> float:
    """What measuring takes of the step: the loop's own stamps, and the sampling's part of the processor."""
    sampling = run.sampling_cpu_s / run.wall_s / float(run.environment.get("cpus_usable") or 1) if run.wall_s else 0.0
    return float(recording.facts["loop_overhead_s"]) / real.mean("duration") + sampling


def _arm(steps: ArmSteps) -> dict[str, Any]:
    estimate = interval(steps.mean("duration"), steps.drawn("duration"), "s", steps.num_blocks)
    return {"step_s": estimate.to_json(), "num_steps": steps.num_steps, "seconds": steps.seconds}


def _capacities(run: Run, arms: dict[str, ArmSteps]) -> dict[str, Estimate | None]:
    device = arms.get("device")
    busy = None if device is None or not np.isfinite(device.mean("busy")) else _rate(device, "busy")
    # Where the files of `free` are in memory there is no storage in it: it is the preparation alone.
    prep = arms.get("prep") or (arms.get("free") if run.case.cache == "warm" else None)
    return {
        "storage": _rate(arms.get("fetch")),
        "prep": _rate(prep),
        "loader": _rate(arms.get("free")),
        "transfer": _rate(arms.get("host"), "copy"),
        "issue": _rate(device, "issue"),
        "device": busy or _rate(device),
    }


def _first_batch_s(recording: Recording) -> float | None:
    """Loader construction → first batch in hand, of the first time that the data set was read."""
    build = recording.facts.get("build_s_real")
    for segment in recording.segments:
        if segment.arm in ("real", "free") and build is not None:
            return float(build + segment.facts["first_batch_s"])
    return None


def _spans(segments: Sequence[Segment], arm: str) -> NDArray[np.int64] | None:
    """Spans of the arm's window batches (those delivered behind the warm-up)."""
    tables = []
    for segment in segments:
        if segment.arm == arm:
            if segment.spans is None:
                return None
            tables.append(segment.spans[segment.num_warmup : len(segment.steps)])
    return np.concatenate(tables) if tables and sum(len(table) for table in tables) else None


def _starved_fraction(spans: NDArray[np.int64] | None) -> float | None:
    """Share of the workers' time on a batch in which they were runnable but not running (schedstat)."""
    if spans is None or (spans[:, SPAN["runqueue_ns"]] < 0).any():
        return None
    wall = (spans[:, SPAN["ready_ns"]] - spans[:, SPAN["start_ns"]]).sum()
    threads = (spans[:, [SPAN[f"{stage}_ns"] for stage in STAGES]]).sum()
    return float(spans[:, SPAN["runqueue_ns"]].sum() / max(wall, threads, 1))


def _stages(spans: NDArray[np.int64], real: ArmSteps) -> dict[str, float]:
    """Wall seconds an image in each stage, inside the worker."""
    samples = len(spans) * real.num_samples / real.num_steps
    return {stage: float(spans[:, SPAN[f"{stage}_ns"]].sum()) / 1e9 / samples for stage in STAGES}


def _operator_stages(case: Case, segments: Sequence[Segment]) -> dict[str, float] | None:
    """Thread seconds an image in each stage of a loader that counts whole batches (DALI); None where it cannot.

    An operator has all threads to itself, so its wall time times their number is what an image takes of a thread, as
    in a worker process; reading has one thread.
    """
    counted = [one.facts.get("stage_times") for one in segments if one.arm == "real"]
    found = {}
    for stage in next((one for one in counted if one), {}):
        batches = sum(one[stage][0] for one in counted if one)
        ns = sum(one[stage][1] for one in counted if one)
        if batches:
            found[stage] = ns / 1e9 / batches / case.batch_size * (1 if stage == "read" else case.lanes)
    return found if "decode" in found else None


def _consumer_cpu_s(segments: Sequence[Segment]) -> float | None:
    """CPU seconds a step of the thread that takes batches and issues the work, in the arm `real`; None: unknown."""
    real = [one for one in segments if one.arm == "real" and "consumer_cpu_s" in one.facts]
    steps = sum(len(one.steps) - one.num_warmup for one in real)
    return sum(float(one.facts["consumer_cpu_s"]) for one in real) / steps if steps else None


def _windows(recording: Recording, arm: str) -> list[tuple[int, int]]:
    return [
        (int(segment.facts["opened_ns"]), int(segment.facts["closed_ns"]))
        for segment in recording.segments
        if segment.arm == arm
    ]


def _series(run: Run, name: str) -> Series | None:
    for series in run.series:
        if series.name == name and len(series.t_ns) > 1:
            return series
    return None


def counter_rate(series: Series | None, windows: Sequence[tuple[int, int]]) -> float | None:
    """Growth of a counter a second over the windows, interpolated between its readings; None where unknown."""
    if series is None or not windows:
        return None
    grown = seconds = 0.0
    for begin, end in windows:
        if begin < series.t_ns[0] or end > series.t_ns[-1]:
            continue
        first, last = np.interp([begin, end], series.t_ns, series.value)
        grown += float(last - first)
        seconds += (end - begin) / 1e9
    return grown / seconds if seconds > 0 else None


def gauge_mean(series: Series | None, windows: Sequence[tuple[int, int]]) -> float | None:
    """Mean of the readings that lie in the windows."""
    if series is None:
        return None
    inside = np.zeros(len(series.t_ns), dtype=bool)
    for begin, end in windows:
        inside |= (series.t_ns >= begin) & (series.t_ns <= end)
    return float(series.value[inside].mean()) if inside.any() else None


def _cpu(run: Run, recording: Recording, real: ArmSteps) -> dict[str, Any]:
    windows = _windows(recording, "real")
    user = counter_rate(_series(run, "process_cpu_user_s"), windows)
    system = counter_rate(_series(run, "process_cpu_system_s"), windows)
    cores = None if user is None or system is None else user + system
    rate = real.num_samples / real.num_steps / real.mean("duration")
    return {
        "busy_fraction": gauge_mean(_series(run, "cpu_busy_fraction"), windows),
        "cores_used": cores,
        "seconds_per_sample": None if cores is None else cores / rate,
        "workers_rss_bytes": gauge_mean(_series(run, "process_rss_bytes"), windows),
        "workers_pss_bytes": gauge_mean(_series(run, "process_pss_bytes"), windows),
    }


def _storage(recording: Recording, readers: int) -> dict[str, Any] | None:
    if not recording.facts["loader"]["decodes"]:
        return None
    cache = recording.facts["cache"]
    expected = seconds = 0.0
    known = True
    before, after = [], []
    operations: Counter[str] = Counter()
    for segment in recording.segments:
        if segment.arm != "real":
            continue
        moved = segment.facts["moved"]
        known = known and moved is not None
        operations.update(moved or {})
        expected += segment.facts["expected_bytes"]
        seconds += (segment.facts["closed_ns"] - segment.facts["opened_ns"]) / 1e9
        before.append(segment.facts["residency_before"])
        after.append(segment.facts["residency_after"])
    read = operations["read_bytes"]
    ratio = read / expected if known and expected else None
    ceiling = probed.describe(recording.facts.get("ceiling"), readers)
    nfs = probed.nfs_operations(operations, seconds) if seconds else None
    seen_empty = bool(before) and all(one is not None and one <= 0.02 for one in before)
    proven = cache["state"] == "cold" and ratio is not None and COLD_RANGE[0] <= ratio <= COLD_RANGE[1] and seen_empty
    return {
        "bytes_read": read if known else None,
        "expected_bytes": int(expected),
        "moved_fraction": ratio,
        "bandwidth_bytes_per_s": read / seconds if known and seconds else None,
        "reads_per_s": operations["reads"] / seconds if known and seconds else None,
        "mean_file_bytes": _mean_file_bytes(recording),
        "ceiling_bytes_per_s": None if ceiling is None else ceiling["bytes_per_s"]["value"],
        "ceiling": ceiling,
        "source": recording.facts["storage_source"],
        "cache_state": _cache_state(cache["state"], ratio, _mean(before)),
        "residency_fraction": {"before": _mean(before), "after": _mean(after)},
        "cold_proven": proven,
        **({"nfs": nfs} if nfs else {}),
    }


def _transfer(recording: Recording, arms: dict[str, ArmSteps]) -> dict[str, Any] | None:
    """The copy to the device: how long it takes, how much of that the step time shows, and at what rate.

    By the arm `host`, where data are always ready. None without it, and where nothing is copied.
    """
    facts, host, device = recording.facts, arms.get("host"), arms.get("device")
    if host is None or device is None or facts.get("link_bytes_per_s") is None or not host.mean("copy") > 0:
        return None
    copy_s, exposed_s = host.mean("copy"), max(0.0, host.mean("duration") - device.mean("duration"))
    return {
        "overlap": bool(facts["device"].get("overlap")),
        **({"pinned": facts["pinned"]} if "pinned" in facts else {}),
        "bytes_per_step": facts["batch_bytes"],
        "copy_s": copy_s,
        "exposed_s": exposed_s,
        "hidden_s": max(0.0, copy_s - exposed_s),
        "link_bytes_per_s": facts["batch_bytes"] / copy_s,
        "ceiling_bytes_per_s": facts["link_bytes_per_s"],
    }


def _mean_file_bytes(recording: Recording) -> float | None:
    num_images, image_bytes = recording.facts.get("num_images"), recording.facts.get("image_bytes")
    return image_bytes / num_images if num_images and image_bytes else None


def _cache_state(wanted: str, moved_fraction: float | None, resident: float | None) -> str:
    """What the arm `real` really found: `cold` only where the page cache did not serve it."""
    if wanted != "cold" or moved_fraction is None or moved_fraction >= SERVED_BY_CACHE:
        return wanted
    return "warm" if moved_fraction <= 1 - SERVED_BY_CACHE or (resident or 0.0) >= 0.99 else "as-is"


def _doubts(run: Run, storage: dict[str, Any] | None) -> list[str]:
    """Why the arms are not what they were to be."""
    if run.case.cache != "cold" or storage is None or storage["cache_state"] == "cold":
        return []
    return [
        f"of the bytes of a cold read {storage['moved_fraction']:.0%} came from the storage, the rest from the page "
        "cache: something else reads these files, or they cannot be evicted (loaderbench doctor)"
    ]


def _storage_idle(storage: dict[str, Any] | None) -> bool:
    """Everything was in memory, and the storage's counter agrees. False where no counter can tell."""
    moved = None if storage is None else storage["moved_fraction"]
    return storage is not None and moved is not None and storage["cache_state"] == "warm" and moved < IDLE_FRACTION


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _device(run: Run, recording: Recording, arms: dict[str, ArmSteps]) -> dict[str, Any]:
    real = arms["real"]
    facts = dict(recording.facts["device"])
    busy = real.mean("busy") / real.mean("duration")
    if not np.isfinite(busy) and "device" in arms:  # the same work, where only held steps tell
        busy = arms["device"].mean("busy") / real.mean("duration")
    windows = _windows(recording, "real")
    nvml = {
        series.name: gauge_mean(series, windows)
        if series.kind == "gauge"
        else counter_rate(series if len(series.t_ns) > 1 else None, windows)
        for series in run.series
        if series.name.startswith("gpu_")
    }
    issued = [ns for one in recording.segments for ns in one.facts.get("held_issue_ns") or ()]
    drifts = [one.facts.get("clock_drift_ns") for one in recording.segments if one.arm == "real"]
    return {
        **facts,
        "clock_drift_ns": max((one for one in drifts if one is not None), key=abs, default=None),
        **({"held_issue_s": float(np.median(issued)) / 1e9} if issued else {}),
        "busy_fraction": float(busy) if np.isfinite(busy) else None,
        "kernel_gap": None,
        "busy_witnesses": None,
        "memory_peak_bytes": recording.facts["peak_memory_bytes"],
        "nvml": nvml or None,
    }


def _kernel_gap(recording: Recording) -> tuple[dict[str, Any] | None, list[Caveat]]:
    """(`device.kernel_gap`, what there is to say about it)."""
    traced = next((one for one in recording.segments if one.arm == TRACED and one.kernels is not None), None)
    if traced is None:
        why = recording.facts.get("no_kernels") or "this run was stored by a version that traced none"
        return None, [Caveat("kernel_gap_not_measured", f"no kernel gaps: {why}")]
    if reasons := kernels.missing(traced):
        return None, [Caveat("trace_incomplete", f"no kernel gaps, for the trace is not whole: {'; '.join(reasons)}")]
    untraced = [one for one in recording.segments if one.arm == UNTRACED]
    notes = []
    if unsteady := [one.arm for one in (traced, *untraced) if not one.steady]:
        notes.append(
            Caveat(
                "trace_not_steady",
                f"the loader's queue was still moving in the {' and '.join(dict.fromkeys(unsteady))} window of the "
                "kernel trace: gaps for want of data, and what tracing cost, hold for that window alone",
            )
        )
    return kernels.summarize(traced, untraced), notes


def _busy_witnesses(run: Run, recording: Recording, gap: dict[str, Any]) -> dict[str, float | None]:
    """Part of the time in which the device was busy, by those who can tell; null: no steady window for it."""
    steady = [
        (begin + int(LAG_S * 1e9), end)
        for begin, end in _windows(recording, "real")
        if end - begin >= (STEADY_S + LAG_S) * 1e9
    ]
    return {
        "kernels": gap["kernel_fraction"],
        "nvml": gauge_mean(_series(run, "gpu_utilization_fraction"), steady),
        "gpm": gauge_mean(_series(run, "gpu_gpm_graphics_fraction"), steady),
        "events_at_most": gap["event_busy_fraction"],
    }


def _caveats(
    run: Run,
    recording: Recording,
    arms: dict[str, ArmSteps],
    found: Attribution,
    starved: float | None,
    figures: dict[str, Any],
) -> list[Caveat]:
    """One for each figure that is null or not to be taken at face value."""
    case, facts = run.case, recording.facts
    notes: list[Caveat] = []

    def say(code: str, message: str) -> None:
        notes.append(Caveat(code, message))

    kind = facts["device"]["kind"]
    if kind == "emulated":
        say(
            "emulated_device",
            f"no GPU was used: steps ran on {facts['device']['name']}, whose constants are in `device`",
        )
    missing = [arm for arm in ARMS if arm not in arms]
    if facts["loader"]["owns_transfer"]:
        say("loader_owns_transfer", "the loader delivers batches on the device: transfer is part of prep")
        missing = [arm for arm in missing if arm != "host"]
    if not facts["loader"]["decodes"]:
        say("no_files", "the loader reads no files: nothing of the step can be storage")
        missing = [arm for arm in missing if arm not in ("ram", "fetch")]
    if missing:
        why = "they were not asked for: --arms all" if set(case.arms) < set(ARMS) else _why_missing(facts)
        say("arms_not_measured", f"{', '.join(missing)}: {why}; figures that need them are null")
    if found.shares["launch"] is None and "device" in arms:
        say("launch_not_measured", "this device tells no busy time, so compute includes the launch gaps")
    if figures["transfer"] is None and "host" in arms:
        why = "on the CPU nothing is copied" if kind == "cpu" else "the batches' copy took no time"
        say("no_transfer", f"transfer is null: {why}")
    witnesses = figures["device"]["busy_witnesses"]
    if witnesses is not None and (apart := kernels.disagreement(witnesses, WITNESSES_AGREE)):
        say("busy_witnesses_disagree", apart)
    if witnesses is not None and kind == "cuda" and witnesses["nvml"] is None and witnesses["gpm"] is None:
        say("busy_not_cross_checked", f"no window of {STEADY_S + LAG_S:.0f} s to hold NVML against the kernels")
    storage = figures["storage"]
    if storage is not None:
        _storage_caveats(run, facts, storage, say)
    _steadiness_caveats(run, recording, arms, say)
    if starved is not None and starved > STARVED:
        say(
            "cpu_contention",
            f"workers were runnable but had no processor for {starved:.0%} of their time: the share contention",
        )
    if figures["stages"] is None:
        reason = facts["loader"].get("no_stage_times") or "this loader does not tell the time in read, decode, augment"
        say("stages_not_measured", f"no seconds an image by stage: {reason}")
    for name in ("busy_fraction", "seconds_per_sample", "workers_rss_bytes", "workers_pss_bytes"):
        if figures["cpu"][name] is None:
            say("cpu_not_measured", f"cpu.{name}: the windows were shorter than the sampling of its source")
    if figures["device"]["nvml"] is None and kind == "cuda":
        say("nvml_not_measured", "no reading of NVML fell into the windows")
    if figures["device"]["memory_peak_bytes"] is None:
        say("device_memory_not_measured", f"a device of kind {kind} does not tell its memory")
    if facts["num_failures"]:
        say(
            "images_failed",
            f"{facts['num_failures']} image reads failed and were replaced by the next image: see `failures`",
        )
    return notes


def _why_missing(facts: dict[str, Any]) -> str:
    if facts["cache"]["measured_once"]:
        return "the data set's own cache state can be measured only once, by `real`: --cache cold or warm measures all"
    return "the loader or the data set does not allow them"


def _storage_caveats(run: Run, facts: dict[str, Any], storage: dict[str, Any], say: Say) -> None:
    cache = facts["cache"]
    for code, message in cache["caveats"]:
        say(code, message)
    if storage["bytes_read"] is None:
        say("storage_bytes_unknown", facts["storage_reason"] or "the storage's byte counter could not be read")
    if cache["state"] == "cold" and not storage["cold_proven"]:
        moved = storage["moved_fraction"]
        seen = "bytes unknown" if moved is None else f"{moved:.0%} of the expected bytes moved"
        say(
            "cold_not_proven",
            f"{seen}, residency before each window {storage['residency_fraction']['before']}: "
            "do not take the cold figures for those of the storage",
        )
    ceiling = storage["ceiling"]
    if ceiling is None:
        say("ceiling_not_measured", f"the storage's ceiling was not measured: {_why_no_ceiling(run, facts)}")
    else:
        if ceiling["still_rising"]:
            say(
                "ceiling_still_rising",
                f"the storage was still getting faster at {ceiling['stages'][-1]['readers']} readers "
                f"(ended by {ceiling['stopped_by']}): its ceiling is at least what is given",
            )
        if ceiling["probe_limited"]:
            say("ceiling_probe_limited", "the storage probe kept a processor busy itself: the storage may give more")
    if facts["stopped_by"] == "max_bytes":
        say("max_bytes_reached", f"--max-bytes {run.case.max_bytes} ended the measuring before its target")
    if storage["residency_fraction"]["before"] is None:
        say("residency_unknown", "the page cache's content cannot be seen for these files: see `loaderbench doctor`")
    if facts.get("ram", {}).get("subset"):
        say(
            "ram_subset",
            f"`ram` ran on {facts['ram']['num_images']} of {facts['num_images']} images, chosen with the sizes of all",
        )


def _why_no_ceiling(run: Run, facts: dict[str, Any]) -> str:
    probe = facts.get("ceiling")
    if probe is None:
        return "that takes --cache cold and --arms all"
    if probe["stopped_by"] == "error":
        return str(probe["reason"])
    if probe["stages"]:
        return "the probe's stages were served by some cache, or read fewer than two files for each reader"
    return f"the probe was ended by {probe['stopped_by']}: give more --duration or --max-bytes"


def _steadiness_caveats(run: Run, recording: Recording, arms: dict[str, ArmSteps], say: Say) -> None:
    if any(one.arm == SHORT and not one.steady for one in recording.segments):
        say("buffer_not_full", "the loader did not come to rest before a short run: its buffer may not have been full")
    depth = run.case.buffer_batches
    real = arms["real"]
    if real.num_steps < 10 * depth and run.case.workers:
        say("short_run", f"{real.num_steps} steps are fewer than ten prefetch buffers ({depth} batches each)")
    unsteady = sorted({s.arm for s in recording.segments if not s.steady and s.arm in ("real", "ram")})
    if unsteady:
        say("queue_not_steady", f"{', '.join(unsteady)}: the loader's queue was still moving when the window opened")
    durations = [values["duration"] for values in real.quantities]
    half_width = half_width_fraction(durations, run.case.lanes)
    if half_width > run.case.ci_target:
        say(
            "ci_target_missed",
            f"the step time is known to ± {half_width:.1%}, target ± {run.case.ci_target:.1%} (stopped by "
            f"{recording.facts['stopped_by']}): give --duration or --steps more",
        )
