"""What a recorder of a device's work returns: each kernel and copy with the step that launched it, and counts to check
it against."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.facts import ROW, STEP, Segment, Table, TraceWitness


class Work(NamedTuple):
    """What a recorder saw, on the clock of perf_counter_ns."""

    rows: NDArray[np.int64]
    """[N, 5]: begin, end, stream, kind, time at which the host launched it (-1 where unknown)."""
    calls: NDArray[np.int64]
    """[M]: when the host launched a kernel, by CUDA's own calls; empty where there are none to see."""
    graphs: NDArray[np.int64]
    """[G]: when the host launched a CUDA graph."""
    names: dict[str, NDArray[np.int64]]
    """Operator → when each of its calls began, nested ones included; empty where operators are not recorded."""
    drift_ns: int
    """Drift of the recorder's clock against the host's over the window."""
    uncertainty_ns: int
    """Uncertainty of the mapping between the two clocks."""


class Recorder(Protocol):
    """Records all that the device runs within the context; `read` it afterwards."""

    source: str
    """Name of the source, for the record."""
    discards_first: bool
    """Whether the first window recorded in a process is slow, because the recorder starts up in it."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: object) -> None: ...
    def read(self) -> Work: ...

    def table(self, work: Work, steps: Table) -> Table:
        """Rows of KERNEL_FIELDS: each interval with the step that launched it, in order."""
        ...

    def witnesses(self, work: Work, traced: Segment, operators: Counter[str]) -> tuple[TraceWitness, ...]:
        """Counted kernels a step, and those expected.

        `operators`: how often one untraced step calls each operator; empty where nothing computes.
        """
        ...


def with_steps(work: Work, steps: Table) -> Table:
    """Rows of KERNEL_FIELDS: each interval with the step that launched it, in order.

    A step's launches lie between the delivery of its batch and that of the next. Where the launch is not known the
    interval belongs to the next step to complete.
    """
    rows = work.rows
    by_launch = np.searchsorted(steps[:, STEP["returned_ns"]], rows[:, 4], side="right") - 1
    by_completion = np.searchsorted(steps[:, STEP["done_ns"]], rows[:, 1], side="left")
    step = np.where(rows[:, 4] >= 0, by_launch, by_completion)
    table = np.column_stack([rows[:, :4], step])[(step >= 0) & (step < len(steps))]
    ordered: Table = table[np.argsort(table[:, ROW["begin_ns"]], kind="stable")]
    return ordered


def in_window(traced: Segment) -> Table:
    """The kernels and copies that the window's steps launched."""
    assert traced.kernels is not None, "not a traced segment"
    kernels: Table = traced.kernels[traced.kernels[:, ROW["step"]] >= traced.num_warmup]
    return kernels


def num_while_issuing(at_ns: NDArray[np.int64], traced: Segment) -> int:
    """How many of these host times fall within the issuing of a window step."""
    begun = np.searchsorted(traced.window[:, STEP["returned_ns"]], at_ns, side="right") - 1
    inside = (begun >= 0) & (at_ns <= traced.window[np.maximum(begun, 0), STEP["issued_ns"]])
    return int(inside.sum())
