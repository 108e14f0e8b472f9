"""What the storage did in a run: whether it was read at all, by whom, and the ceiling that the probe
(running/ceiling.py) found, with what sets it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import settled, surely
from loaderbench.plain import Json
from loaderbench.recording.facts import (
    CeilingProbe,
    CeilingStage,
    ColdRead,
    Counters,
    StorageFacts,
    StorageWindow,
    tells_idle,
)
from loaderbench.recording.record import Bound, Ceiling, CeilingStageFigures, ColdProof, Estimate, NfsOperations

PLATEAU = 0.90
"""Stages with at least this fraction of the fastest one's rate count as being at the ceiling."""
RISING = 1.05
"""If the last stage is faster than all before it by this factor, more readers might give still more."""
LATENCY_PER_DOUBLING, BANDWIDTH_PER_DOUBLING = 1.30, 1.15
"""Growth of the rate for each doubling of readers. A latency alone gives 2, a cap alone 1. Measured over NFS:
1.40 to 2.46 under added latency, 0.92 to 1.15 under a cap (tests/analysis/test_storage.py)."""
REALLY_MOVED = 0.90
"""If the storage's counter saw less than this fraction of a stage's bytes, some cache served the stage."""
COLD_RANGE = (0.98, 1.05)
"""Bytes moved ÷ bytes expected within which a cold read counts as proven (docs/method.md, `Bytes`)."""
EMPTY, DROPPED = 0.02, 0.10
"""Largest fractions of the pages that may be in the page cache before a cold window, and behind it: batches that were
read ahead stay where a loader does not evict its own reads."""
SLOW_READ = 5.0
"""An evicted file's first 64 KiB were not in memory if they take this many times what memory takes. Measured on ext4,
tmpfs and FUSE: 2 to 3 in the page cache, 15 to 74 evicted, from a virtual disk and from a daemon without a limit."""
SERVED_BY_CACHE = 0.90
"""If less than this fraction of the bytes moved, the page cache served a cold arm."""
OTHERS = 0.05
"""A disk that moved more by this fraction than the run's own processes read was read by others too."""
PROBE_BUSY = 0.80
"""Above this fraction of one processor the probe's own Python may have set the rate."""


def stages(probe: CeilingProbe | None) -> list[CeilingStage]:
    """The probe's stages that the storage itself served, ordered by readers."""
    kept = [stage for stage in (probe.stages if probe else ()) if stage.tells and not _from_cache(stage)]
    return sorted(kept, key=lambda stage: stage.readers)


def _from_cache(stage: CeilingStage) -> bool:
    return stage.moved is not None and stage.moved["read_bytes"] < REALLY_MOVED * stage.bytes


def _rates(stage: CeilingStage) -> NDArray[np.float64]:
    """Bytes/s in each slice of a stage behind its first burst, which a token bucket or a read-ahead window serves."""
    return settled(stage.slice_rates)


def rate(stage: CeilingStage) -> float:
    """Bytes/s of one stage, its first burst left out."""
    return float(_rates(stage).mean())


def _plateau(kept: Sequence[CeilingStage]) -> list[CeilingStage]:
    best = rate(max(kept, key=lambda stage: surely(_rates(stage))))
    return [stage for stage in kept if rate(stage) >= PLATEAU * best]


def ceiling(probe: CeilingProbe | None) -> Estimate | None:
    """Bytes/s that the storage gives to enough readers; None where no stage was served by the storage.

    Pooled over the stages near the fastest one, so as not to pick the luckiest of several equal ones. 95 %
    interval from their slices of time, by Student's t; n is the number of slices.
    """
    kept = stages(probe)
    if not kept:
        return None
    parts = [(_rates(stage), stage.slice_s) for stage in _plateau(kept)]
    value = sum(float(rates.sum()) * slice_s for rates, slice_s in parts)
    value /= sum(len(rates) * slice_s for rates, slice_s in parts)
    slices = np.concatenate([rates for rates, _ in parts])
    half = float(slices.mean()) - surely(slices)
    method = "storage probe: stages within 10 % of the fastest, slices of time, 95 %"
    return Estimate(value, max(0.0, value - half), value + half, "bytes/s", len(slices), method)


def readers_needed(probe: CeilingProbe | None) -> int | None:
    """The least number of readers that reaches the ceiling; None without a ceiling."""
    kept = stages(probe)
    return _plateau(kept)[0].readers if kept else None


def still_rising(probe: CeilingProbe | None) -> bool | None:
    """Whether the largest number of readers was faster than all smaller ones by RISING; None for fewer than two stages.

    The ceiling is then a lower bound.
    """
    rates = [rate(stage) for stage in stages(probe)]
    return rates[-1] > RISING * max(rates[:-1]) if len(rates) > 1 else None


def is_probe_limited(probe: CeilingProbe | None) -> bool:
    """Whether the fastest stage kept the probe's own Python busy: the storage may give more."""
    kept = stages(probe)
    if not kept:
        return False
    best = max(kept, key=rate)
    return best.user_cpu_s > PROBE_BUSY * best.seconds


def growth_per_doubling(probe: CeilingProbe | None, readers: int = 1) -> float | None:
    """Factor by which the rate grows for each doubling of readers, beginning at `readers`; None where unknown.

    Taken over two doublings where there are stages that far above, else over the last ones. A rate below that of fewer
    readers counts as theirs.
    """
    kept = stages(probe)
    if len(kept) < 2:
        return None
    below = [number for number, stage in enumerate(kept[:-1]) if stage.readers <= readers]
    first = kept[below[-1] if below else 0]
    last = [stage for stage in kept if first.readers < stage.readers]
    second = [stage for stage in last if stage.readers <= 4 * first.readers] or last[:1]
    doublings = np.log2(second[-1].readers / first.readers)
    below_rate, above_rate = (max(map(rate, kept[: kept.index(stage) + 1])) for stage in (first, second[-1]))
    return float((above_rate / below_rate) ** (1 / doublings))


def bound_by(probe: CeilingProbe | None, readers: int = 1) -> Bound | None:
    """`bandwidth` where more than `readers` readers are no faster, `latency` where they are; None: neither is clear.

    By how the rate scales with readers. Round-trip times grow under a cap too and are supporting evidence only.
    """
    growth = growth_per_doubling(probe, readers)
    if growth is None or BANDWIDTH_PER_DOUBLING < growth < LATENCY_PER_DOUBLING:
        return None
    return "latency" if growth >= LATENCY_PER_DOUBLING else "bandwidth"


def gain_with_readers(probe: CeilingProbe | None, before: int, after: int) -> float | None:
    """Rate with `after` readers ÷ with `before`; None where fewer than two numbers of readers were tried.

    Interpolated between stages in doublings, constant beyond the last one. Never below 1 for more readers: a rate
    below that of fewer readers is noise, or readers that hinder each other and need not all run.
    """
    kept = stages(probe)
    if len(kept) < 2:
        return None
    at = np.log2([stage.readers for stage in kept])
    rates = np.maximum.accumulate([rate(stage) for stage in kept])
    return float(np.interp(np.log2(after), at, rates) / np.interp(np.log2(before), at, rates))


def headroom(needed_bytes_per_s: float, probe: CeilingProbe | None) -> dict[str, Json]:
    """What a run needs from its storage, and what the storage gives (`gives`; None where that was not measured)."""
    found = ceiling(probe)
    return {
        "needs_bytes_per_s": needed_bytes_per_s,
        "gives_bytes_per_s": None if found is None else found.value,
        "gives_low": None if found is None else found.low,
        "gives_high": None if found is None else found.high,
        "readers": readers_needed(probe),
        "still_rising": bool(still_rising(probe)),
    }


@dataclass(frozen=True)
class Moved:
    """What the storage moved for the run in some windows. None: unknown."""

    read_bytes: int | None
    reads: int | None
    others_read_bytes: int | None
    """Read by other programs from the same disk."""
    counters: Counters
    """Growth of the storage's own counters, whoever read."""


def moved_by(storage: StorageFacts, windows: Sequence[StorageWindow], *, in_processes: bool) -> Moved:
    """The bytes of the run's own processes where the kernel counts these, else those of the disk or mount, which may
    hold those of other programs. `in_processes`: it is the run's own processes that read (not those of a cluster)."""
    counters: Counter[str] = Counter()
    for window in windows:
        counters.update(window.moved or {})
    counted = bool(windows) and all(window.moved is not None for window in windows)
    own = [window.process_read_bytes for window in windows]
    known = [each for each in own if each is not None]
    if storage.kind != "local" or not in_processes or not windows or len(known) < len(own):
        return Moved(
            counters["read_bytes"] if counted else None, counters["reads"] if counted else None, None, counters
        )
    read = sum(known)
    others = max(0, counters["read_bytes"] - read) if counted else None
    alone = others is not None and others <= OTHERS * read
    reads = 0 if not read else counters["reads"] if alone else None
    return Moved(read, reads, None if alone else others, counters)


def cold_read_ratio(reads: Sequence[ColdRead]) -> float | None:
    """Median over the files of the time to read an evicted one ÷ from memory; None where none was timed."""
    return float(np.median([one.storage_ns / max(one.memory_ns, 1) for one in reads])) if reads else None


def cold_proof(
    windows: Sequence[StorageWindow], moved_fraction: float | None, read_ratio: float | None
) -> ColdProof | None:
    """Why the windows' reads came from the storage; None: nothing proves it."""
    if not all(window.residency_before is not None and window.residency_before <= EMPTY for window in windows):
        return None
    if moved_fraction is not None:
        if COLD_RANGE[0] <= moved_fraction <= COLD_RANGE[1]:
            return "bytes"
        if moved_fraction < SERVED_BY_CACHE:
            return None
    dropped = all(window.residency_after is not None and window.residency_after <= DROPPED for window in windows)
    return "residency" if dropped and read_ratio is not None and read_ratio >= SLOW_READ else None


def is_idle(storage: StorageFacts, windows: Sequence[StorageWindow], *, in_processes: bool) -> bool:
    """Whether the windows provably took nothing from the storage: its share of the step is then 0."""
    return in_processes and tells_idle(storage.kind) and bool(windows) and all(window.untouched for window in windows)


def is_enough(headroom: Mapping[str, Json]) -> bool:
    """Whether the storage gives all that the run needs; False where either is not known."""
    needs, gives = headroom.get("needs_bytes_per_s"), headroom.get("gives_bytes_per_s")
    return isinstance(needs, float) and isinstance(gives, float) and gives >= needs


def nfs_operations(moved: Counters | None, seconds: float) -> NfsOperations | None:
    """What the NFS client's counters say about `seconds`; None on other storage and where there were no requests.

    Counters: /proc/self/mountstats, all operations (samplers/nfs.py).
    """
    if not moved or not moved.get("rpcs"):
        return None
    rpcs = moved["rpcs"]
    return NfsOperations(
        operations_per_s=rpcs / seconds,
        rtt_s=moved["rtt_ms"] / 1e3 / rpcs,
        queue_s=moved["queue_ms"] / 1e3 / rpcs,
        exe_s=moved["exe_ms"] / 1e3 / rpcs,
        retransmits=moved["retransmits"],
        in_flight=moved["exe_ms"] / 1e3 / seconds,
    )


def describe(probe: CeilingProbe | None, readers: int) -> Ceiling | None:
    """The probe for the record; None where it did not run or found nothing. `readers`: those of the run."""
    found, enough = ceiling(probe), readers_needed(probe)
    if probe is None or found is None or enough is None:
        return None
    return Ceiling(
        bytes_per_s=found,
        readers=enough,
        still_rising=still_rising(probe),
        bound_by=bound_by(probe, readers),
        growth_per_doubling=growth_per_doubling(probe, readers),
        probe_limited=is_probe_limited(probe),
        stopped_by=probe.stopped_by,
        stages=tuple(
            CeilingStageFigures(
                stage.readers, rate(stage), stage.file_s, stage.method, nfs_operations(stage.moved, stage.seconds)
            )
            for stage in stages(probe)
        ),
    )
