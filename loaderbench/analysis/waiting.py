"""What part of its time a loader that tells nothing of itself waits for what it reads, by the processors that all
processes and threads of the script wanted.

Over a window of length T in which the script waited for data for S, its own thread wanted a processor for M seconds,
all others together for O, of C processors. A loader that works in the script's thread does so within S, and wants a
processor for at most M of it; one that works beside it for at most O of T. So it waits for at least

    1 − M ÷ S − O ÷ T

of its time. And while the script waited, the processors were wanted for at least M + O − C · (T − S) seconds, so that
at most

    1 − (M + O − C · (T − S)) ÷ (C · S)

of what it waited for was no computing. Where the two are far apart, nothing is told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.statistics import NUM_DRAWS
from loaderbench.recording.facts import STEP, Segment

LEAST_WAIT = 0.1
"""Of a window, that the script must wait for data."""
WIDEST = 0.4
"""Between the bounds; the verdict stays joint where they are further apart."""


def waiting_part(windows: Sequence[Segment]) -> Quantity | None:
    """Of the loader's time, the part in which it computed nothing; draws between the bounds. `windows`: of `real`. None
    where the kernel does not tell, or the bounds are far apart."""
    waited_s = own_s = all_s = most_s = whole_s = 0.0
    for one in windows:
        cpu, rows = one.cpu, one.window
        if cpu is None or cpu.own_queued_s is None or cpu.consumer_queued_s is None or one.consumer_cpu_s is None:
            return None
        waited_s += float((rows[:, STEP["returned_ns"]] - rows[:, STEP["called_ns"]]).sum()) / 1e9
        own_s += one.consumer_cpu_s + cpu.consumer_queued_s
        all_s += cpu.own_s + cpu.own_queued_s
        cpus = cpu.cpus if cpu.quota_cpus is None else min(cpu.cpus, cpu.quota_cpus)
        most_s, whole_s = most_s + cpus * cpu.wall_s, whole_s + cpu.wall_s
    if waited_s < LEAST_WAIT * whole_s or waited_s == 0.0:
        return None
    cpus = most_s / whole_s
    least = max(0.0, 1.0 - own_s / waited_s - max(0.0, all_s - own_s) / whole_s)
    most = max(0.0, 1.0 - max(0.0, all_s - cpus * (whole_s - waited_s)) / (cpus * waited_s))
    if least > most or most - least > WIDEST:
        return None
    draws = np.random.default_rng(31).uniform(least, most, NUM_DRAWS)
    return Quantity((least + most) / 2, draws, len(windows))
