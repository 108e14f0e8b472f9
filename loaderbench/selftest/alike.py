"""Do arms differ only in what they leave out? The CPU time of preparing an image, from memory and from the storage.

Two loaders of one kind, one over the data set and one over a copy in memory, take turns. What their workers spend on an
image besides reading it must be the same. The data set lies in the page cache: a worker that waited for a read needs 30
to 80 µs more for the next image, as after a sleep (benchmarks/after_waits.py), which is the storage's doing.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from loaderbench.cases.case import Case
from loaderbench.errors import UnavailableError
from loaderbench.loaders.base import Loader
from loaderbench.recording.facts import SPAN, Table
from loaderbench.recording.progress import Report
from loaderbench.recording.studies import AlikeFacts
from loaderbench.running.cache import RamCopy
from loaderbench.running.heap import keep_freed_memory
from loaderbench.running.rig import Rig
from loaderbench.running.streams import close
from loaderbench.selftest.jobs import AlikeRequest

TURNS = 6
"""Of each loader. The first warms it up and is left out."""
ROUNDS_A_TURN = 4
"""Batches of each worker in a turn, after those that were begun before it."""
COPY_BYTES = 1 << 30


def measure_alike(request: AlikeRequest, report: Report) -> AlikeFacts:
    """Take batches from both loaders in turns.

    Raises:
        UnavailableError: the loader does not record its CPU time, or the decoder is not installed.
    """
    keep_freed_memory()
    with ExitStack() as stack:
        rig = Rig(request.case, stack, report)
        copy = stack.enter_context(RamCopy(rig.data, 0, COPY_BYTES, evict_sources=False))
        loaders = [rig.build_loader(copy.data, evict=False), rig.build_loader(rig.data, evict=False)]
        rows = [[_turn(loader, request.case, number) for loader in loaders] for number in range(TURNS)]
    table = np.array(rows[1:])
    return AlikeFacts(request.name, prep_cpu_s=table[:, :, 0], minor_faults=table[:, :, 1])


def _turn(loader: Loader, case: Case, epoch: int) -> tuple[float, float]:
    """CPU seconds of preparing an image, and minor faults, in some rounds of the workers."""
    begun = case.feed.lanes * (case.feed.prefetch + 1)
    spans: list[Table] = []
    batches = loader.batches(epoch)
    for number in range(begun + case.feed.lanes * ROUNDS_A_TURN):
        span = next(batches).spans
        if span is None or span[SPAN["read_cpu_ns"]] < 0:
            raise UnavailableError(f"the loader {case.feed.loader} does not record its CPU time")
        if number >= begun:
            spans.append(span)
    close(batches)
    table = np.array(spans)
    num_images = len(table) * case.step.batch_size
    cpu_ns = (table[:, SPAN["cpu_ns"]] - table[:, SPAN["read_cpu_ns"]]).sum()
    return float(cpu_ns) / 1e9 / num_images, float(table[:, SPAN["minor_faults"]].sum()) / num_images
