"""What a watched script spent its time on, in lines."""

from __future__ import annotations

from loaderbench.cases.case import loader_arguments
from loaderbench.printable import counted
from loaderbench.recording.facts import WatchedApplied, WatchedFacts, WatchedLoader, WatchedSeconds
from loaderbench.recording.record import DoseFigures, RunRecord
from loaderbench.reporting import format as fmt
from loaderbench.reporting.watched_words import about, loader_names, where_line

MOST_LINES = 2
"""Of code, on the screen; the record has more."""
WORTH_A_LINE = 0.01
"""Part of the script's time from which on it is told."""


def evidence_lines(record: RunRecord) -> list[str]:
    """What the verdict on a watched script rests on."""
    rates, seen = record.capacities or {}, record.watched
    wait = None if record.verdict is None else record.verdict.waiting_for_data
    step, loader = rates.get("device"), rates.get("loader")
    lines = []
    if seen is not None and (whose := about(seen)) is not None:
        lines.append(whose)
    if step is not None and loader is not None:
        gives, takes = fmt.number(loader.value), fmt.number(step.value)
        lines.append(f"its loader delivers {gives} samples/s; its steps take {takes} when the batch is ready")
    if record.stages is not None:
        of = {name: fmt.duration(record.stages.get(name) or 0.0) for name in ("read", "decode", "collate")}
        lines.append(
            f"per sample a worker spends {of['decode']} working in the data set, {of['read']} waiting for "
            f"reads there, and {of['collate']} in collate"
        )
    by_reader, read = record.storage_by_shadow, None if seen is None else seen.shadow
    if by_reader is not None and read is not None:
        cold_s = sum(one.cold_ns for one in read.reads) / len(read.reads) / 1e9
        warm_s = sum(one.warm_ns for one in read.reads) / len(read.reads) / 1e9
        ends = "" if by_reader.low is None else f" ({by_reader.low:.0%} to {by_reader.high:.0%})"
        lines.append(
            f"a shadow reader took {fmt.duration(cold_s)} to read a new sample and {fmt.duration(warm_s)} to "
            f"read it again: {by_reader.value:.0%}{ends} of the first is storage"
        )
    waits, cpu = record.storage_by_processors, record.contention
    if waits is not None and cpu is not None and waits.high is not None:
        lines.append(
            f"its processes and threads use {cpu.own:.2f} of {cpu.cpus} CPUs: its loader waits for reads for "
            f"{waits.low or 0.0:.0%} to {waits.high:.0%} of its time"
        )
    if record.verdict is not None:
        lines += [where_line(one) for one in record.verdict.where[:MOST_LINES]]
    if wait is not None:
        lines.append(f"the script waits for data for {fmt.percent(wait.by_timeline.value)} of its steps' time")
    lines += [
        _dose_line(one, workers=record.case.feed.workers, on_device=seen is not None and seen.uses_cuda)
        for one in record.doses
    ]
    if seen is not None and seen.consumer_cpu_s is not None and record.step_time_s is not None:
        own, whole = fmt.duration(seen.consumer_cpu_s), fmt.duration(record.step_time_s.mean)
        lines.append(f"the thread that takes the batches runs on a CPU for {own} of a step's {whole}")
    return lines


NEAR_ONE, NEAR_ZERO = 0.7, 0.3
"""Ends of the interval of dT/dδ that let it be called near 1 or near 0."""


def _dose_line(one: DoseFigures, *, workers: int, on_device: bool) -> str:
    """By how much known delays lengthened the steps, and what that means."""
    response, where = one.response, "" if one.place == "host" else " on the device"
    low, high = response.low, response.high
    delay = fmt.duration(one.delay_s)
    grew = f"a known delay of {delay} in each step{where} lengthened the step by {response.value:.0%} of the delay"
    if low is None or high is None:
        return grew
    grew += f" ({low:.0%} to {high:.0%})"
    if low >= NEAR_ONE:
        paces = "the step paces the run" if workers else "the step and its loader take turns"
        paces = "issuing the steps paces the run" if on_device else paces
        return f"{grew}: {paces if one.place == 'host' else 'the device paces the run'}"
    if high <= NEAR_ZERO:
        return f"{grew}: {'the loader' if one.place == 'host' else 'something else'} paces the run"
    return grew


def time_lines(seen: WatchedFacts) -> list[str]:
    """Its whole time, by what the thread did that takes the batches, the largest part first."""
    main, *others = seen.loaders
    name, *other_names = loader_names(seen.loaders)
    changed = None if seen.applied is None else seen.applied.loader
    as_it_was_and_is = [main] if changed is None else [main, changed]
    in_steps = sum(one.seconds.wait + one.seconds.step for one in as_it_was_and_is)
    change = sum(one.seconds.opening + one.seconds.first for one in as_it_was_and_is)
    num = sum(one.num_iterators for one in as_it_was_and_is)
    epochs = counted(num, "epoch")
    parts = [
        (in_steps, _steps(name, main, changed)),
        (change, f"until the first batch of each of {epochs}: {fmt.duration(change / max(1, num))} each"),
        (seen.before_s, "before the first loader was asked for a batch"),
    ]
    parts += [
        (one.seconds.total, f"{of_one}: {one.num_batches} batches")
        for of_one, one in zip(other_names, others, strict=True)
    ]
    left = seen.wall_s - sum(part for part, _ in parts)
    parts.append((left, "between loaders and after the last one"))
    told = [(part, text) for part, text in parts if part >= WORTH_A_LINE * seen.wall_s]
    lines = [f"{fmt.percent(part / seen.wall_s)}  {text}" for part, text in sorted(told, reverse=True)]
    if seen.so_far_s is not None:
        lines.append(
            f"the script was still running when this was written, {fmt.duration(seen.so_far_s)} after its start"
        )
    if seen.num_bursts:
        held = f"paused {seen.num_bursts} times until the queue was full, {fmt.duration(seen.paused_s)} in total"
        rested = f", then rested for {fmt.duration(seen.rested_s)}" if seen.rested_s else ""
        lines.append(f"the run was {held}; its workers kept working{rested}")
    return [*lines, *cost_lines(seen)]


def _steps(name: str, main: WatchedLoader, changed: WatchedLoader | None) -> str:
    """`300 steps of DataLoader over Photos, 40 % of it in next()`; with `--apply` before and behind the change."""
    waits = f"{fmt.percent(_part(main.seconds))} of it in next()"
    if changed is None:
        return f"{main.num_batches} steps of {name}, {waits}"
    return (
        f"{main.num_batches + changed.num_batches} steps of {name}: {main.num_batches} before --apply, "
        f"{waits}, and {changed.num_batches} after it, {fmt.percent(_part(changed.seconds))} of it in next()"
    )


def cost_lines(seen: WatchedFacts) -> list[str]:
    """What the watch itself took; empty where that was not stored."""
    cost, own_s = seen.cost, seen.own_s
    if cost is None or own_s is None or not seen.wall_s > 0:
        return []
    parts = [f"{fmt.duration(cost.stamp_s)} a batch"]
    if cost.events_s:
        parts.append(f"{fmt.duration(cost.events_s)} of events on the device")
    if cost.windows_s:
        parts.append(f"{fmt.duration(cost.windows_s)} of readings")
    if seen.paused_s:
        parts.append(f"{fmt.duration(seen.paused_s)} of pauses")
    if seen.rested_s:
        parts.append(f"{fmt.duration(seen.rested_s)} of workers' rest")
    if cost.delays_s:
        parts.append(f"{fmt.duration(cost.delays_s)} of delays")
    if cost.num_writes:
        times = counted(cost.num_writes, "time")
        parts.append(f"{fmt.duration(cost.writes_cpu_s)} of saving it {times}")
    if cost.line_s:
        parts.append(f"{fmt.duration(cost.line_s)} of the status line")
    return [f"watching took at most {fmt.percent(own_s / seen.wall_s)} of this: {', '.join(parts)}"]


def note_lines(record: RunRecord) -> list[str]:
    """What else it showed; what `--apply` did."""
    seen = record.watched
    lines = [one.text() for one in record.notes]
    if seen is None:
        return lines
    if seen.applied is not None:
        lines.insert(0, _applied(record, seen, seen.applied))
    elif seen.not_applied is not None:
        lines.insert(0, f"--apply made no change: {seen.not_applied}")
    return lines


def _applied(record: RunRecord, seen: WatchedFacts, applied: WatchedApplied) -> str:
    """`--apply set DataLoader(num_workers=2) from epoch 2 on: predicted 1.8× …, measured 1.7× …`"""
    done = next((one for one in record.verdict.advice if one.verified), None) if record.verdict is not None else None
    told = f"--apply set DataLoader({loader_arguments(applied.change)}) from epoch {applied.epoch} on"
    if done is not None:
        measured = done.not_verified or fmt.speedup(done.measured_speedup)
        told += f": predicted {fmt.speedup(done.predicted_speedup)}, measured {measured}"
    told += "; the figures above are from before the change"
    settings = seen.settings
    if settings is not None and "workers" in applied.change and settings.draws_random is not False:
        told += (
            "; its samples draw random numbers (augmentation), and a new number of workers draws different "
            "ones: losses differ slightly, the order of samples does not"
        )
    return told


def _part(spent: WatchedSeconds) -> float:
    whole = spent.wait + spent.step
    return spent.wait / whole if whole > 0 else 0.0
