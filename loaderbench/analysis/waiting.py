"""Whether a loader that tells nothing of itself computes, by the processors that all processes and threads of the
script wanted.

Over a window of length T in which the script waited for data for S, all its processes and threads wanted W seconds of
C processors. While it waited they wanted at least W − C · (T − S) of them, so that at most

    1 − (W − C · (T − S)) ÷ (C · S)

of that time can have been waiting for what is read. Only a small part tells: a loader that wants no processor may wait
for its storage, or for something else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.statistics import NUM_DRAWS
from loaderbench.recording.facts import STEP, Segment

LEAST_WAIT = 0.1
"""Of a window, that the script must wait for data."""
MOST_WAITING = 0.4
"""Of that time; the verdict stays joint where more of it may be no computing."""


def waiting_part(windows: Sequence[Segment]) -> Quantity | None:
    """Of the loader's time, the part in which it may wait for what it reads: draws from 0 to the bound. `windows`: of
    `real`. None where the kernel does not tell, or the bound says little."""
    waited_s = wanted_s = there_s = whole_s = 0.0
    for one in windows:
        cpu, rows = one.cpu, one.window
        if cpu is None or cpu.own_queued_s is None:
            return None
        waited_s += float((rows[:, STEP["returned_ns"]] - rows[:, STEP["called_ns"]]).sum()) / 1e9
        wanted_s += cpu.own_s + cpu.own_queued_s
        there_s += (cpu.cpus if cpu.quota_cpus is None else min(cpu.cpus, cpu.quota_cpus)) * cpu.wall_s
        whole_s += cpu.wall_s
    if waited_s == 0.0 or waited_s < LEAST_WAIT * whole_s:
        return None
    cpus = there_s / whole_s
    most = max(0.0, 1.0 - max(0.0, wanted_s - cpus * (whole_s - waited_s)) / (cpus * waited_s))
    if most > MOST_WAITING:
        return None
    return Quantity(most / 2, np.random.default_rng(31).uniform(0.0, most, NUM_DRAWS), len(windows))
