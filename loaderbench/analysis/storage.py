"""What the storage probe's facts (running/ceiling.py) say: the ceiling, and what sets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loaderbench.analysis.statistics import t_quantile
from loaderbench.recording.types import Estimate

PLATEAU = 0.90
"""Stages with this part of the fastest one's rate count as being at the ceiling."""
RISING = 1.05
"""The last stage is faster than all before it by this factor: more readers might give more still."""
LATENCY_PER_DOUBLING, BANDWIDTH_PER_DOUBLING = 1.30, 1.15
"""Growth of the rate for each doubling of readers. A latency alone gives 2, a cap alone 1. Measured over NFS:
1.40 to 2.46 under added latency, 0.92 to 1.15 under a cap (tests/analysis/test_storage.py)."""
REALLY_MOVED = 0.90
"""A stage of which the storage's counter saw less than this part came out of some cache."""
FILES_A_READER = 2
"""A stage with fewer whole files a reader (`--max-bytes`, seconds a file) says nothing of so many readers."""
PROBE_BUSY = 0.80
"""From this part of one processor on, the probe's own Python may have set the rate."""

Facts = Mapping[str, Any]


def stages(facts: Facts | None) -> list[Facts]:
    """The probe's stages that the storage really served, by readers."""
    kept = [one for one in (facts or {}).get("stages", ()) if _tells(one) and not _from_cache(one)]
    return sorted(kept, key=lambda one: int(one["readers"]))


def _tells(stage: Facts) -> bool:
    """Each reader had a few files, so that what one of them had left at the end does not count."""
    return bool(stage["seconds"] > 0 and stage["files"] >= FILES_A_READER * stage["readers"])


def _from_cache(stage: Facts) -> bool:
    moved = stage["moved"]
    return moved is not None and moved["read_bytes"] < REALLY_MOVED * stage["bytes"]


def rate(stage: Facts) -> float:
    """Bytes/s of one stage."""
    return float(stage["bytes"] / stage["seconds"])


def _plateau(kept: Sequence[Facts]) -> list[Facts]:
    best = max(map(rate, kept))
    return [one for one in kept if rate(one) >= PLATEAU * best]


def ceiling(facts: Facts | None) -> Estimate | None:
    """Bytes/s that the storage gives to enough readers; None where no stage was served by the storage.

    Pooled over the stages near the fastest one, so that it is not the luckiest of several equal ones. 95 %
    interval from their slices of time, by Student's t; n is the number of slices.
    """
    kept = stages(facts)
    if not kept:
        return None
    chosen = _plateau(kept)
    value = sum(one["bytes"] for one in chosen) / sum(one["seconds"] for one in chosen)
    slices = np.concatenate([np.asarray(one["slices_bytes"]) / one["slice_s"] for one in chosen])
    n = len(slices)
    half = t_quantile(n - 1) * float(slices.std(ddof=1)) / n**0.5 if n > 1 else 0.0
    method = "storage probe: stages within 10 % of the fastest, slices of time, 95 %"
    return Estimate(value, max(0.0, value - half), value + half, "bytes/s", n, method)


def readers_needed(facts: Facts | None) -> int | None:
    """The least number of readers that is at the ceiling; None without one."""
    kept = stages(facts)
    return int(_plateau(kept)[0]["readers"]) if kept else None


def still_rising(facts: Facts | None) -> bool | None:
    """Whether the most readers tried were faster than all fewer ones by RISING; None where fewer than two were tried.

    The ceiling is then a lower bound.
    """
    rates = [rate(one) for one in stages(facts)]
    return rates[-1] > RISING * max(rates[:-1]) if len(rates) > 1 else None


def is_probe_limited(facts: Facts | None) -> bool:
    """Whether the fastest stage kept the probe's own Python busy: the storage may give more."""
    kept = stages(facts)
    if not kept:
        return False
    best = max(kept, key=rate)
    return bool(best["user_cpu_s"] > PROBE_BUSY * best["seconds"])


def growth_per_doubling(facts: Facts | None, readers: int = 1) -> float | None:
    """Factor by which the rate grows for each doubling of readers, beginning at `readers`; None where unknown.

    Taken over two doublings where so many stages lie above, over the last ones where none does.
    """
    kept = stages(facts)
    if len(kept) < 2:
        return None
    below = [number for number, one in enumerate(kept[:-1]) if one["readers"] <= readers]
    first = kept[below[-1] if below else 0]
    last = [one for one in kept if first["readers"] < one["readers"]]
    second = [one for one in last if one["readers"] <= 4 * first["readers"]] or last[:1]
    doublings = np.log2(second[-1]["readers"] / first["readers"])
    return float((rate(second[-1]) / rate(first)) ** (1 / doublings))


def bound_by(facts: Facts | None, readers: int = 1) -> str | None:
    """`bandwidth` where more than `readers` readers get no more, `latency` where they do; None: neither is clear.

    By how the rate scales with readers. Round-trip times grow under a cap too and are supporting evidence only.
    """
    growth = growth_per_doubling(facts, readers)
    if growth is None or BANDWIDTH_PER_DOUBLING < growth < LATENCY_PER_DOUBLING:
        return None
    return "latency" if growth >= LATENCY_PER_DOUBLING else "bandwidth"


def gain_with_readers(facts: Facts | None, before: int, after: int) -> float | None:
    """Rate with `after` readers ÷ with `before`; None where fewer than two numbers of readers were tried.

    Between stages in proportion to the doublings, beyond the last one as there. Never below 1 for more readers:
    a rate that falls behind an earlier one is noise, or readers in each other's way that need not all run.
    """
    kept = stages(facts)
    if len(kept) < 2:
        return None
    at = np.log2([one["readers"] for one in kept])
    rates = np.maximum.accumulate([rate(one) for one in kept])
    return float(np.interp(np.log2(after), at, rates) / np.interp(np.log2(before), at, rates))


def headroom(needed_bytes_per_s: float, facts: Facts | None) -> str:
    """What a run needs of its storage against what that gives, in words.

    >>> stage = {"readers": 32, "bytes": 118_000_000, "seconds": 1.0, "moved": None, "slices_bytes": [], "slice_s": 1.0}
    >>> headroom(310e6, {"stages": [stage]})
    'needs 310 MB/s; this storage gives 118 MB/s at 32 readers'
    """
    found, readers = ceiling(facts), readers_needed(facts)
    needs = f"needs {_megabytes(needed_bytes_per_s)}"
    if found is None:
        return f"{needs}; what this storage gives was not measured"
    gives = f"this storage gives {_megabytes(found.value)} at {readers} reader{'s' * (readers != 1)}"
    return f"{needs}; {gives}{' and was still rising' if still_rising(facts) else ''}"


def _megabytes(bytes_per_s: float) -> str:
    megabytes = bytes_per_s / 1e6
    return f"{megabytes:,.0f} MB/s" if megabytes >= 10 else f"{megabytes:.1f} MB/s"


def nfs_operations(moved: Mapping[str, int] | None, seconds: float) -> dict[str, float] | None:
    """What the NFS client's counters say of `seconds`; None on other storage and where nothing was asked of it.

    {"operations_per_s", "rtt_s" on the wire and in the server, "queue_s" in the client before, "exe_s" both and
    the rest, all a mean operation's; "retransmits" of all; "in_flight": operations under way on average, Σ exe ÷
    wall}. Counters: /proc/self/mountstats, all operations (testbeds.md, `Counters`).
    """
    if not moved or not moved.get("rpcs"):
        return None
    rpcs = moved["rpcs"]
    each = {f"{name}_s": moved[f"{name}_ms"] / 1e3 / rpcs for name in ("rtt", "queue", "exe")}
    return {
        "operations_per_s": rpcs / seconds,
        **each,
        "retransmits": moved["retransmits"],
        "in_flight": moved["exe_ms"] / 1e3 / seconds,
    }


def describe(facts: Facts | None, readers: int) -> dict[str, Any] | None:
    """The probe for the record; None where it did not run or found nothing. `readers`: those of the run."""
    found = ceiling(facts)
    if facts is None or found is None:
        return None
    return {
        "bytes_per_s": found.to_json(),
        "readers": readers_needed(facts),
        "still_rising": still_rising(facts),
        "bound_by": bound_by(facts, readers),
        "growth_per_doubling": growth_per_doubling(facts, readers),
        "probe_limited": is_probe_limited(facts),
        "stopped_by": facts["stopped_by"],
        "stages": [
            {
                "readers": one["readers"],
                "bytes_per_s": rate(one),
                "file_s": one["file_s"],
                "method": one["method"],
                "nfs": nfs_operations(one["moved"], one["seconds"]),
            }
            for one in stages(facts)
        ],
    }
