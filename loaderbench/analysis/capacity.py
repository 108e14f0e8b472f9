"""How many ranks a storage feeds: AU by ranks, the number that follows, a prediction, and what stops the next one.

docs/capacity.md defines every figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.processors import available
from loaderbench.analysis.statistics import t_quantile
from loaderbench.analysis.storage import bound_by, ceiling
from loaderbench.findings.table import words
from loaderbench.plain import Json
from loaderbench.recording.capacity import (
    CALLED,
    END,
    RETURNED,
    Barrier,
    Capacity,
    CapacityFacts,
    CapacityPoint,
    Look,
    MlperfAu,
    RankBound,
    Stop,
)
from loaderbench.recording.record import Estimate

WARMUP = 0.2
"""Part of a look's steps that is left out, at its start."""
WINDOWS = 8
"""Into which the rest of a look is divided, for the interval."""
USED_UP = 0.85
"""A resource of which at least this part is used counts as what stops the next rank. A storage that is asked for more
than it gives is not read all the time: ranks that are ahead wait for the last one."""
EMPTY = 0.02
"""Most of the pages that may be in the page cache before a cold look."""
OWN, OTHERS = 0.5, 0.2
"""Used part of the processors: from which on the ranks' own use can be what fills them; by other programs, from which
on it is said."""
READING = 0.5
"""Part of the loading time from which on reading, not computing, makes a rank late."""
MLPERF_STEPS = 500
"""`num_steps_per_epoch is a minimum of 500`: MLPerf Storage, Submission_guidelines, `Minimum dataset size`."""


def step_ends(ends: NDArray[np.int64], step_ns: int, barrier: Barrier) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(arrivals, ends) [ranks, steps] of the steps, from their earliest ends [ranks, steps] (devices/rank_queue.py)."""
    arrivals, done = np.empty_like(ends), np.empty_like(ends)
    free = np.full(len(ends), np.iinfo(np.int64).min // 2, dtype=np.int64)
    for step in range(ends.shape[1]):
        arrivals[:, step] = np.maximum(free + step_ns, ends[:, step])
        free = arrivals[:, step] if barrier == "none" else np.full(len(ends), arrivals[:, step].max())
        done[:, step] = free
    return arrivals, done


class _Steps:
    """The steps of a look behind its warm-up."""

    def __init__(self, look: Look, facts: CapacityFacts) -> None:
        assert facts.step_ns is not None and facts.period_ns is not None
        self.period_ns = facts.period_ns
        self.num = min(len(part.steps) for part in look.parts)
        self.table = np.stack([part.steps[: self.num] for part in look.parts])
        self.arrivals, self.ends = step_ends(self.table[:, :, END], facts.step_ns, facts.barrier)
        self.first = min(max(1, math.ceil(WARMUP * self.num)), self.num - 2)

    @property
    def mean_step_ns(self) -> NDArray[np.float64]:
        """[ranks]"""
        return np.asarray((self.ends[:, -1] - self.ends[:, self.first]) / (self.num - 1 - self.first))

    def window_step_ns(self) -> NDArray[np.float64]:
        """[windows] the mean step of each; over the ranks the harmonic mean, whose AU and rate are the mean rank's."""
        last = self.num - 1
        edges = np.unique(np.linspace(self.first, last, min(WINDOWS, last - self.first) + 1).astype(int))
        spans = np.diff(self.ends[:, edges], axis=1) / np.diff(edges)
        return np.asarray(1.0 / (1.0 / spans).mean(axis=0))

    def waits(self) -> tuple[float, float]:
        """Mean seconds a step (for data, at the barrier) of a device."""
        rows = slice(self.first + 1, None)
        at_barrier = float((self.ends - self.arrivals)[:, rows].mean())
        started = self.arrivals[:, rows] - self.ends[:, self.first : -1]
        for_data = float(started.mean()) - self.period_ns
        return max(for_data, 0.0) / 1e9, at_barrier / 1e9

    def mlperf_au(self) -> float:
        """total_compute_time ÷ total_benchmark_running_time, the first step excluded."""
        seconds = self.ends[:, -1] - self.ends[:, 0]
        return float((self.period_ns * (self.num - 1) / seconds).mean())


def point_of(looks: Sequence[Look], facts: CapacityFacts) -> CapacityPoint:
    """All looks at one number of ranks, joined."""
    steps = [_Steps(look, facts) for look in looks]
    ranks, batch = looks[0].ranks, facts.case.step.batch_size
    windows = np.concatenate([one.window_step_ns() for one in steps])
    mean_ns = float(windows.mean())
    half_ns = (
        t_quantile(len(windows) - 1) * float(windows.std(ddof=1)) / len(windows) ** 0.5 if len(windows) > 1 else 0.0
    )
    slowest_ns, fastest_ns = mean_ns + half_ns, max(mean_ns - half_ns, 1.0)
    method = "windows of steps, 95 %"

    def estimate(per_step: float, unit: str, most: float) -> Estimate:
        known = len(windows) > 1
        low, high = (per_step / slowest_ns, min(per_step / fastest_ns, most)) if known else (None, None)
        return Estimate(min(per_step / mean_ns, most), low, high, unit, len(windows), method)

    au = estimate(float(steps[0].period_ns), "fraction", 1.0)
    rate = estimate(ranks * batch * 1e9, "samples/s", math.inf)
    least = min(float((one.period_ns / one.mean_step_ns).min()) for one in steps)
    for_data, at_barrier = (float(np.mean(values)) for values in zip(*(one.waits() for one in steps), strict=True))
    found = ceiling(facts.probe)
    bytes_per_s = rate.value * facts.image_bytes / facts.num_images
    mlperf = float(np.mean([one.mlperf_au() for one in steps]))
    num_steps = min(one.num for one in steps)
    without_ns = max(mean_ns - at_barrier * 1e9, float(steps[0].period_ns))
    read_fraction, mean_read_s = _reading(looks)
    cpu_use, cpu_own = _cpu_use(looks)
    return CapacityPoint(
        ranks=ranks,
        au_fraction=au.value,
        au=au,
        au_least_fraction=min(least, 1.0),
        is_clear=au.low is not None and au.high is not None and not au.low <= facts.au_target <= au.high,
        samples_per_s=rate,
        bytes_per_s=bytes_per_s,
        storage_use_fraction=None if found is None or facts.in_memory else bytes_per_s / found.value,
        cpu_use_fraction=cpu_use,
        cpu_own_fraction=cpu_own,
        cpu_s_per_sample=_cpu_per_sample(looks, batch),
        waits_for_data_fraction=for_data * 1e9 / mean_ns,
        waits_at_barrier_fraction=at_barrier * 1e9 / mean_ns,
        au_without_barrier_fraction=steps[0].period_ns / without_ns,
        read_fraction=read_fraction,
        mean_read_s=mean_read_s,
        num_steps=num_steps,
        num_looks=len(looks),
        epochs=max(len(part.steps) * batch / part.num_images for look in looks for part in look.parts),
        resident_before=max((one.resident_before for one in looks if one.resident_before is not None), default=None),
        mlperf=MlperfAu(mlperf, num_steps, num_steps >= MLPERF_STEPS, mlperf >= facts.au_target),
    )


def cpus_of(look: Look) -> float | None:
    """Processors that the ranks may use, by affinity and quota; None where the kernel does not tell."""
    return min((available(part.cpu) for part in look.parts if part.cpu is not None), default=None)


def _cpu_use(looks: Sequence[Look]) -> tuple[float | None, float | None]:
    """Used part of the usable processors (by whoever used them, by the ranks). The hypervisor's other guests count as
    busy. A quota holds for the ranks alone."""
    used: list[tuple[float, float]] = []
    for look in looks:
        cpus, known = cpus_of(look), [part.cpu for part in look.parts if part.cpu is not None]
        if cpus is None or len(known) < look.ranks:
            return None, None
        first = known[0]
        own = sum(cpu.own_s / cpu.wall_s for cpu in known) / cpus
        busy = None if first.machine_busy_s is None else first.machine_busy_s + (first.stolen_s or 0.0)
        whole = 0.0 if busy is None else busy / first.wall_s / first.cpus
        used.append((max(own, whole), own))
    whole, own = np.mean(used, axis=0).tolist()
    return whole, own


def _cpu_per_sample(looks: Sequence[Look], batch_size: int) -> float | None:
    parts = [part for look in looks for part in look.parts]
    if any(part.cpu is None for part in parts):
        return None
    used = sum(part.cpu.own_s for part in parts if part.cpu is not None)
    return used / (batch_size * sum(len(part.steps) for part in parts))


def _reading(looks: Sequence[Look]) -> tuple[float | None, float | None]:
    """(part of the loading time in which files are read, mean seconds of a file); None where the loader tells none.

    The loading time is what the rank spends in `next()`. Workers read meanwhile as well: then the part is 1 at most.
    """
    parts = [part for look in looks for part in look.parts]
    num, read_s = sum(part.num_reads for part in parts), sum(part.read_s for part in parts)
    if not num:
        return None, None
    loading_ns = sum(float((part.steps[:, RETURNED] - part.steps[:, CALLED]).sum()) for part in parts)
    return min(1.0, read_s * 1e9 / loading_ns) if loading_ns > 0 else 1.0, read_s / num


# -- the number ------------------------------------------------------------------------------------------


def curve_of(facts: CapacityFacts) -> tuple[CapacityPoint, ...]:
    """A point for each number of ranks, in order."""
    by_ranks: dict[int, list[Look]] = {}
    for look in facts.looks:
        by_ranks.setdefault(look.ranks, []).append(look)
    return tuple(point_of(by_ranks[ranks], facts) for ranks in sorted(by_ranks))


def edge_of(curve: Sequence[CapacityPoint], target: float) -> tuple[CapacityPoint | None, CapacityPoint | None]:
    """(the most ranks that reach the target, below the least that miss it; those); None where there are none."""
    misses = next((point for point in curve if point.au_fraction < target), None)
    reaches = [point for point in curve if point.au_fraction >= target and (not misses or point.ranks < misses.ranks)]
    return (reaches[-1] if reaches else None), misses


def capacity_of(facts: CapacityFacts) -> Capacity:
    """All figures and conclusions of a study."""
    curve, missing = curve_of(facts), dict[str, str]()
    reaches, misses = edge_of(curve, facts.au_target)
    found = _found(reaches, misses, facts, missing) if curve else None
    if not curve:
        missing["found_ranks"] = words("no_ranks_measured", {})
    stops = _stops(misses, facts.au_target) if misses is not None and found is not None else []
    if found is not None and misses is None:
        missing["next_is_stopped_by"] = words("all_ranks_reach", {"max_ranks": facts.max_ranks})
    bounds = bounds_of(facts, curve)
    known = [one.ranks for one in bounds if one.ranks is not None]
    if not known:
        missing["predicted_ranks"] = words("no_bound_known", {})
    feed, step = facts.case.feed, facts.case.step
    rate = ceiling(facts.probe)
    per_image = facts.image_bytes / facts.num_images
    of_storage = None
    if rate is not None and not facts.in_memory:
        low, high = (None if end is None else end / per_image for end in (rate.low, rate.high))
        of_storage = Estimate(rate.value / per_image, low, high, "samples/s", rate.n, rate.method)
    edge = [point for point in (reaches, misses) if point is not None]
    return Capacity(
        predicted_ranks=min(known) if known else None,
        found_ranks=found,
        au_target_fraction=facts.au_target,
        curve=curve,
        next_is_stopped_by=stops[0] if stops else None,
        next_ranks=misses.ranks if misses is not None else None,
        also_near_its_limit=stops[1] if len(stops) > 1 else None,
        is_open=any(not point.is_clear for point in edge),
        bounds=bounds,
        device_name=facts.case.step.device if facts.device is None else facts.device.name,
        dataset_name=facts.case.subject.dataset_name,
        loader=f"{feed.loader}{f' {feed.workers}w' if feed.workers else ''}",
        batch_size=step.batch_size,
        barrier=facts.barrier,
        max_ranks=facts.max_ranks,
        demand_samples_per_s=None if facts.period_ns is None else step.batch_size * 1e9 / facts.period_ns,
        storage_samples_per_s=of_storage,
        storage_bound_by=bound_by(facts.probe),
        cpus=_cpus(facts),
        cache=facts.case.subject.cache,
        cold_is_proven=_is_cold(facts, curve),
        caveats=_caveats(facts, curve),
        failure=None if facts.failure is None else facts.failure.message,
        interrupted=facts.interrupted,
        missing=missing,
    )


def _found(
    reaches: CapacityPoint | None, misses: CapacityPoint | None, facts: CapacityFacts, missing: dict[str, str]
) -> int | None:
    number = 0 if reaches is None else reaches.ranks
    if misses is None and number < facts.max_ranks:
        missing["found_ranks"] = words("ended_while_reaching", {"ranks": number})
        return None
    if misses is not None and misses.ranks - number > 1:
        missing["found_ranks"] = words("ended_between", {"reach": number, "miss": misses.ranks})
        return None
    return number


def _cpus(facts: CapacityFacts) -> float:
    known = next((cpus for look in facts.looks if (cpus := cpus_of(look)) is not None), None)
    return float(facts.environment.cpus_usable) if known is None else known


def _is_cold(facts: CapacityFacts, curve: Sequence[CapacityPoint]) -> bool:
    if facts.case.subject.cache != "cold" or facts.in_memory or not curve:
        return False
    return all(point.resident_before is not None and point.resident_before <= EMPTY for point in curve)


def _caveats(facts: CapacityFacts, curve: Sequence[CapacityPoint]) -> tuple[str, ...]:
    """What the figures do not show by themselves, in sentences."""
    found = []
    if facts.in_memory:
        found.append(words("files_in_memory", {"file_system": facts.file_system}))
    elif facts.case.subject.cache != "cold":
        found.append(words("cache_left_unmodified", {}))
    elif curve and not _is_cold(facts, curve):
        most = max((one.resident_before for one in curve if one.resident_before is not None), default=None)
        found.append(words("storage_not_proven", {"resident": most}))
    again = [point for point in curve if point.epochs > 1]
    if again:
        found.append(words("files_read_again", {"times": max(point.epochs for point in again)}))
    if facts.probe is not None and facts.probe.reason is not None:
        found.append(words("ceiling_cut_short", {"reason": facts.probe.reason}))
    others = max((_by_others(point) for point in curve), default=0.0)
    if others > OTHERS:
        found.append(words("cpus_used_by_others", {"part": others}))
    few: list[Json] = [point.ranks for point in curve if point.num_steps < 2 * WINDOWS]
    if few:
        found.append(words("few_steps_of_ranks", {"ranks": few}))
    return tuple(found)


def _by_others(point: CapacityPoint) -> float:
    """Part of the processors that others used."""
    if point.cpu_use_fraction is None or point.cpu_own_fraction is None:
        return 0.0
    return max(0.0, point.cpu_use_fraction - point.cpu_own_fraction)


# -- the prediction --------------------------------------------------------------------------------------


def bounds_of(facts: CapacityFacts, curve: Sequence[CapacityPoint]) -> tuple[RankBound, ...]:
    """What each resource alone would allow, by the storage's ceiling and the points of one and two ranks."""
    if facts.period_ns is None:
        return ()
    demand = facts.au_target * facts.case.step.batch_size * 1e9 / facts.period_ns
    first = next((point for point in curve if point.ranks == 1), None)
    few = [point for point in curve if point.ranks <= 2]
    return (_storage_bound(facts, demand), _latency_bound(facts, first), _cpu_bound(facts, few, demand))


def _storage_bound(facts: CapacityFacts, demand: float) -> RankBound:
    found = ceiling(facts.probe)
    if facts.in_memory:
        return RankBound("storage_bandwidth", None, "the files are in memory")
    if found is None:
        return RankBound("storage_bandwidth", None, "the storage's ceiling is unknown")
    rate = found.value * facts.num_images / facts.image_bytes
    return RankBound("storage_bandwidth", int(rate / demand), f"{rate:,.0f} images/s ÷ {demand:,.1f} per rank")


def _latency_bound(facts: CapacityFacts, first: CapacityPoint | None) -> RankBound:
    if first is None:
        return RankBound("storage_latency", None, "one rank alone was not measured")
    if first.au_fraction >= facts.au_target or (first.read_fraction or 0.0) < READING:
        why = "one rank alone waits little for reads, and each rank adds readers"
        return RankBound("storage_latency", None, why)
    read = "" if first.mean_read_s is None else f" ({first.mean_read_s * 1e3:.1f} ms per file)"
    return RankBound("storage_latency", 0, f"one rank alone waits for its reads{read}")


def _cpu_bound(facts: CapacityFacts, few: Sequence[CapacityPoint], demand: float) -> RankBound:
    known = [point.cpu_s_per_sample for point in few if point.cpu_s_per_sample is not None]
    if not known:
        return RankBound("client_cpu", None, "the ranks' CPU time is unknown")
    cpus = _cpus(facts)
    first = few[0]
    if first.ranks == 1 and first.au_fraction < facts.au_target and (first.read_fraction or 0.0) < READING:
        return RankBound("client_cpu", 0, "one rank alone prepares its batches too slowly")
    used = known[-1]  # two ranks hold what they take from each other
    return RankBound("client_cpu", int(cpus / (used * demand)), f"{cpus:g} CPUs ÷ {used * 1e3:.2f} ms per image")


# -- what stops the next one -----------------------------------------------------------------------------


def _stops(misses: CapacityPoint, target: float) -> list[Stop]:
    """What stops this number of ranks; then another resource that is used up as well."""
    reads = (misses.read_fraction or 0.0) >= READING
    full: list[Stop] = []
    if (misses.storage_use_fraction or 0.0) >= USED_UP:
        full.append("storage_bandwidth")
    # Ranks that wait for reads while others keep the processors busy do not lack processors.
    by_others = reads and (misses.cpu_own_fraction or 0.0) < OWN
    if (misses.cpu_use_fraction or 0.0) >= USED_UP and not by_others:
        full.append("client_cpu")
    if full:
        return full if reads else full[::-1]
    if misses.au_without_barrier_fraction >= target:
        return ["barrier"]
    if misses.read_fraction is None and misses.cpu_use_fraction is None:
        return []
    return ["storage_latency" if reads else "client_cpu"]
