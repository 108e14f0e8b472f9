"""What a shadow reader's samples say: the part of a sample that is its storage's. Pure functions of recorded facts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.statistics import NUM_DRAWS
from loaderbench.recording.facts import ShadowRead

LEAST_READS = 8
DIFFERS = 0.25
"""By so much more than their intervals, the reader's part and that of the workers' own stamps differ."""


def storage_part(reads: Sequence[ShadowRead]) -> Quantity | None:
    """Σ (first − work) ÷ Σ first, the samples drawn anew for its interval; None for fewer than LEAST_READS.

    Work is the second time; of a sample that reads, its processor time alone: where it waits though its files are in
    memory, it waits for a storage that serves each open or read itself (FUSE, NFS, an object store).
    """
    if len(reads) < LEAST_READS:
        return None
    times = np.array([(one.cold_ns, _work_ns(one)) for one in reads], dtype=np.float64)
    drawn = np.random.default_rng([20191, 11]).integers(0, len(times), (NUM_DRAWS, len(times)))
    sums = times[drawn].sum(axis=1)
    draws = np.clip(1.0 - sums[:, 1] / np.maximum(sums[:, 0], 1.0), 0.0, 1.0)
    cold, work = times.sum(axis=0)
    return Quantity(float(np.clip(1.0 - work / max(cold, 1.0), 0.0, 1.0)), draws, len(reads))


def _work_ns(one: ShadowRead) -> int:
    return min(one.warm_ns, one.warm_cpu_ns) if one.read_bytes else one.warm_ns


def differ(shadow: Quantity, spans: Quantity) -> bool:
    """Whether the reader and the workers' own stamps cannot both be true."""
    return shadow.low > spans.high + DIFFERS or shadow.high < spans.low - DIFFERS
