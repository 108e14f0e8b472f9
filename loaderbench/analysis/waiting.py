"""Whether a loader that tells nothing of itself computes, by the processors that all processes and threads of the
script had.

Over a window of length T in which the script waited for data for S, all its processes and threads ran for W seconds on
C processors. While it did not wait they ran for C · (T − S) at most, so for W − C · (T − S) at least while it waited.
At most

    1 − (W − C · (T − S)) ÷ (C · S)

of that time can have been waiting for what is read. Only a small part tells: a loader that uses no processor may wait
for its storage, or for something else. What they wanted and did not get counts for nothing: a step of many threads may
want more than C.
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
    waited_s = ran_s = there_s = whole_s = 0.0
    for one in windows:
        cpu, rows = one.cpu, one.window
        if cpu is None:
            return None
        waited_s += float((rows[:, STEP["returned_ns"]] - rows[:, STEP["called_ns"]]).sum()) / 1e9
        ran_s += cpu.own_s
        there_s += (cpu.cpus if cpu.quota_cpus is None else min(cpu.cpus, cpu.quota_cpus)) * cpu.wall_s
        whole_s += cpu.wall_s
    if waited_s == 0.0 or waited_s < LEAST_WAIT * whole_s:
        return None
    cpus = there_s / whole_s
    most = max(0.0, 1.0 - max(0.0, ran_s - cpus * (whole_s - waited_s)) / (cpus * waited_s))
    if most > MOST_WAITING:
        return None
    return Quantity(most / 2, np.random.default_rng(31).uniform(0.0, most, NUM_DRAWS), len(windows))
