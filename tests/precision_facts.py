"""Made-up times and numbers of precisions."""

from __future__ import annotations

import numpy as np

from loaderbench.recording.facts import MemoryFacts, OptimizerFacts, WorkloadFacts
from loaderbench.recording.studies import NumberFacts, TimingFacts

MODEL = "shufflenet_v2_x0_5"


def timing(*, step_s: float, num_bytes: int) -> TimingFacts:
    memory = MemoryFacts(num_bytes, num_bytes, None, num_bytes, {})
    optimizer = OptimizerFacts("SGD", 0.1, 0.9, 1e-4, fused=False, loss_scale=1.0)
    workload = WorkloadFacts(MODEL, "train", "made up", optimizer=optimizer)
    return TimingFacts(np.array([step_s, step_s]), memory, workload)


def numbers(loss: list[float], gradient_norm: list[float]) -> NumberFacts:
    return NumberFacts(np.array(loss), np.array(gradient_norm))
