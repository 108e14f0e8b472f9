"""What one stored run, or one profile of layers, tells of an epoch. docs/forecast.md, `What is taken from the run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loaderbench.analysis.samples import channel
from loaderbench.analysis.statistics import t_quantile
from loaderbench.analysis.steps import window_quantities
from loaderbench.cases.arms import Arm
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import STEP, Recording, Run, Segment
from loaderbench.recording.forecast import EpochState, SourceFacts, Starts, StateSteps, StepOrigin
from loaderbench.recording.model_layers import LayersFacts, LayersResult
from loaderbench.recording.others import OtherPrograms
from loaderbench.recording.record import Estimate, Range, RunRecord

TOO_SHORT = 0.25
"""Half width of the step time's interval, as a fraction, above which a run tells too little of hours."""
RESIDENT, EMPTY = 0.99, 0.01
"""Fractions of the pages in memory from which a data set as it is counts as warm, and up to which as cold."""
HEAT_MASK = 0x20 | 0x40 | 0x8
"""nvmlClocksEventReasonSwThermalSlowdown, …HwThermalSlowdown and …HwSlowdown (nvml.h)."""
MOST_HEAT = 0.05
"""Fraction of the readings with one of them up to which a run counts as not throttled."""


def source_of(run: Run, record: RunRecord) -> SourceFacts:
    """What the run tells.

    Raises:
        ConfigError: it tells nothing reliable; the message says why and what to do.
    """
    name, case = run.run_id, run.case
    recording = run.recording
    if run.status != "ok" or recording is None or not record.measured or not record.arms:
        why = "" if run.failure is None else f": {run.failure.message}"
        raise ConfigError(f"{name} ended as {run.status}{why}; a forecast needs a run that finished")
    if run.environment is None:
        raise ConfigError(f"{name} does not record its machine; run it again")
    _check_heat(run, recording)
    if Arm.REAL not in record.arms:
        raise ConfigError(f"{name} has no arm `real` (the loader on the real storage); run it again with that arm")
    half = _half_fraction(record.arms[Arm.REAL].step_s)
    if half is None or half > TOO_SHORT:
        raise ConfigError(
            f"{name} is too short for a forecast: {_uncertain('step', half)}; "
            f"run it again with --duration {2 * case.effort.duration_s:.0f} or more"
        )
    states = _states(record, recording)
    startup = recording.facts.startup
    return SourceFacts(
        kind="run",
        source_id=name,
        case=case,
        model=case.step.model,
        mode=case.step.mode,
        batch_size=case.step.batch_size,
        device=recording.facts.device.name,
        emulated=recording.facts.device.emulated,
        environment=run.environment,
        cold=states.get("cold"),
        warm=states.get("warm"),
        bottleneck=None if record.verdict is None else record.verdict.bottleneck,
        process_s=startup.process_s,
        open_s=startup.open_s,
        build_s=startup.build_s.get(Arm.REAL),
        first_steps_s=first_steps_of(recording),
        num_images=recording.facts.storage.num_images or None,
        image_bytes=None if record.storage is None else record.storage.mean_file_bytes,
        storage_kind=None if record.storage is None else recording.facts.storage.kind,
        others=_others(record),
    )


def _others(record: RunRecord) -> OtherPrograms | None:
    """Who else used the processors while the run measured; None where that is not known."""
    seen, real = record.contention, (record.arms or {}).get(Arm.REAL)
    if seen is None or seen.neighbours is None or real is None:
        return None
    stolen = (seen.stolen or 0.0) / seen.cpus
    return OtherPrograms(seen.neighbours, seen.cpus, real.step_s.value * real.step_s.n, stolen)


def _uncertain(what: str, half: float | None) -> str:
    """Why an interval of this half width, a fraction, is too wide; None: there is none."""
    if half is None:
        return f"its {what} time was measured in one block, which gives no confidence interval"
    return f"its {what} time is known to ± {half:.0%}, a forecast needs ± {TOO_SHORT:.0%}"


def _check_heat(run: Run, recording: Recording) -> None:
    reasons = channel(run.series, "gpu_clocks_event_reasons")
    if reasons is None:
        return
    begin, end = recording.segments[0].opened_ns, recording.segments[-1].closed_ns
    seen = reasons.value[(reasons.t_ns >= begin) & (reasons.t_ns <= end)].astype(np.int64)
    hot = float(((seen & HEAT_MASK) != 0).mean()) if len(seen) else 0.0
    if hot > MOST_HEAT:
        raise ConfigError(
            f"{run.run_id} ran on a throttled GPU: heat or hardware slowed it in {hot:.0%} of the readings; "
            "cool the machine and run it again"
        )


# -- states of the page cache ------------------------------------------------------------------------------


def _states(record: RunRecord, recording: Recording) -> dict[EpochState, StateSteps]:
    """A step in each state that the run tells of. Raises ConfigError where it is not known which state it found."""
    real = _steps(record, recording, Arm.REAL, "measured")
    storage = record.storage
    if storage is None:  # no files
        same = replace(real, origin="no_files")
        return {"cold": same, "warm": same}
    state = _found(record)
    if state == "warm":
        return {"warm": real}
    states: dict[EpochState, StateSteps] = {"cold": real}
    ram = (record.arms or {}).get(Arm.RAM)
    half = None if ram is None else _half_fraction(ram.step_s)
    if half is not None and half <= TOO_SHORT:
        states["warm"] = _steps(record, recording, Arm.RAM, "memory_arm")
    return states


def _found(record: RunRecord) -> EpochState:
    storage, name = record.storage, record.run_id
    assert storage is not None
    before, wanted = storage.residency_fraction.before, record.case.subject.cache
    doubts = {reason.code for reason in (record.verdict.reasons if record.verdict else ())}
    unknown, again = f"the cache state of {name} is unknown", "run it again with --cache cold or --cache warm"
    if wanted == "cold":
        if storage.cache_state != "cold" or doubts & {"served_by_page_cache", "read_as_fast_as_memory"}:
            raise ConfigError(f"{unknown}: it was to run cold, but reads came from memory; {again}")
        return "cold"
    if before is None:
        raise ConfigError(f"{unknown}: the run could not see how many of its files were cached; {again}")
    if before >= RESIDENT:
        return "warm"
    if wanted == "as-is" and before <= EMPTY:
        return "cold"
    raise ConfigError(f"{unknown}: {before:.0%} of its files were in memory; {again}")


def _steps(record: RunRecord, recording: Recording, arm: Arm, origin: StepOrigin) -> StateSteps:
    assert record.arms is not None
    step = record.arms[arm].step_s
    return StateSteps(Range(step.value, step.low, step.high), origin, record.run_id, starts_of(recording, arm))


def _half_fraction(step: Estimate) -> float | None:
    """Half width of the interval as a fraction; None where one block tells nothing of it."""
    half = step.half_width
    return None if half is None or step.n < 2 else half / step.value


# -- starts ----------------------------------------------------------------------------------------------


def starts_of(recording: Recording, arm: Arm) -> Starts | None:
    """What each new stream of batches of the arm cost beyond its steps; None where no window tells.

    A window begins with a new stream: empty queues, workers that are started or awake. From asking for the batches to
    the end of the warm-up, minus as many steps at the window's own mean.
    """
    extra: list[float] = []
    first: list[float] = []
    for segment in recording.of(arm):
        values = window_quantities(segment)
        done = _done_ns(segment)
        if values is None or segment.num_warmup < 1 or segment.first_batch_s is None:
            continue
        step_s = float(values["duration"].mean())
        first.append(segment.first_batch_s)
        extra.append((int(done[segment.num_warmup - 1]) - segment.opened_ns) / 1e9 - segment.num_warmup * step_s)
    if not extra:
        return None
    return Starts(tuple(extra), tuple(first))


def _done_ns(segment: Segment) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    column = "done_ns" if segment.steps[-1, STEP["done_ns"]] >= 0 else "returned_ns"
    return segment.steps[:, STEP[column]]


def first_steps_of(recording: Recording) -> float | None:
    """By how much the first steps that the process ran on its device were longer than later ones; None where the first
    window also waited for a loader, so that it cannot tell."""
    first = next((one for one in recording.segments if one.arm.on_device), None)
    if first is None or first.arm not in (Arm.DEVICE, Arm.HOST) or first.num_warmup < 1:
        return None
    values = window_quantities(first)
    if values is None:
        return None
    took_s = (int(_done_ns(first)[first.num_warmup - 1]) - int(first.steps[0, STEP["called_ns"]])) / 1e9
    return max(0.0, took_s - first.num_warmup * float(values["duration"].mean()))


# -- a profile of layers ---------------------------------------------------------------------------------


def layers_source(facts: LayersFacts, found: LayersResult, study_id: str) -> SourceFacts:
    """What a profile of layers tells: its iteration, with the wait for the batch where a data set fed it, whose files
    were in whatever state of the page cache they were in.

    Raises:
        ConfigError: it did not end well, or its iteration's time is not known well enough.
    """
    if facts.status != "ok" or facts.times is None:
        raise ConfigError(f"{study_id} ended as {facts.status}; a forecast needs a profile that finished")
    rounds = facts.times.plain_s.mean(axis=1)
    if facts.case is not None:
        rounds = rounds + facts.times.load_s.mean(axis=1)
    step_s, num = float(rounds.mean()), len(rounds)
    half = t_quantile(num - 1) * float(rounds.std(ddof=1)) / num**0.5 / step_s if num > 1 else None
    if half is None or half > TOO_SHORT:
        raise ConfigError(
            f"{study_id} is too short for a forecast: {_uncertain('iteration', half)}; repeat the profile "
            "with more --steps"
        )
    steps = StateSteps(Range(step_s, step_s * (1 - half), step_s * (1 + half)), "layers", study_id)
    return SourceFacts(
        kind="layers",
        source_id=study_id,
        case=None,
        model=found.model,
        mode=found.mode,
        batch_size=found.batch_size,
        device=found.device_name,
        emulated=facts.device is not None and facts.device.emulated,
        environment=facts.environment,
        cold=steps,
        warm=steps,
        data_set=None if facts.case is None else facts.case.subject.dataset_name,
        others=facts.others,
    )


def joined(source: SourceFacts, others: Sequence[SourceFacts]) -> SourceFacts:
    """The source with what its run lacks of the other cache state from the newest of `others`, runs of the same
    setting; and an epoch from memory, where the arm `ram` does not see what the storage costs then."""
    for other in reversed(others):
        for state in ("cold", "warm"):
            mine, theirs = getattr(source, state), getattr(other, state)
            lacks = mine is None or (state == "warm" and source.opens_unknown)
            if lacks and theirs is not None and theirs.origin == "measured":
                source = replace(source, **{state: replace(theirs, origin="other_run")})
    return source
