"""`loaderbench model memory`: what a step needs in memory, predicted without the device and measured on it.

docs/model.md defines every figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loaderbench.analysis.memory import peak_bytes
from loaderbench.cases.case import Step
from loaderbench.devices.select import traits_of
from loaderbench.recording.model_memory import MemoryTrace
from loaderbench.running.jobs.table import TRACE_MEMORY, TraceRequest
from loaderbench.running.supervisor import Child
from loaderbench.studies.measure import quiet


def predict_traces(child: Child, step: Step, batch_sizes: Sequence[int], seed: int = 0) -> tuple[MemoryTrace, ...]:
    """The step's traces at these batch sizes, from the child process, or kept from an earlier time.

    Raises:
        JobFailed: as the job: the model is unknown, does not take the images, or cannot be traced.
    """
    steps = tuple(replace(step, batch_size=size) for size in batch_sizes)
    on_accelerator = not traits_of(step.device).on_host_cpus
    return child.ask(TRACE_MEMORY, TraceRequest(steps, seed, on_accelerator), quiet)


def predict_peak(child: Child, step: Step, seed: int = 0) -> int:
    """Predicted peak of the step's live memory in bytes, at its batch size. No device is used.

    `child`: any measuring process; it imports torch at the first job. Raises JobFailed as predict_traces.
    """
    return peak_bytes(predict_traces(child, step, [step.batch_size], seed)[0])
