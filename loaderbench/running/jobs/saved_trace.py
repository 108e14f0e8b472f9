"""The job of `model offload` that needs no device: what a step saves, and when it is used again."""

from __future__ import annotations

from contextlib import ExitStack

from loaderbench.devices.select import traits_of
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.jobs.table import SavedTraceRequest
from loaderbench.running.models import opened
from loaderbench.running.offload_trace import saved_trace


def trace_saved(request: SavedTraceRequest, report: Report) -> SavedTrace:
    """The step's trace by saved storages.

    Raises:
        ConfigError, UnavailableError: as saved_trace.
    """
    report(Phase(f"tracing batch {request.step.batch_size}"))
    traits, where = traits_of(request.step.device), "cpu"
    with ExitStack() as stack:
        if traits.computes and not traits.on_host_cpus:  # what autograd saves depends on the device
            where = str(opened(request.step, stack).torch_device)
        return saved_trace(request.step, request.seed, on_accelerator=request.on_accelerator, device=where)
