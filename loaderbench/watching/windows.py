"""A window of a watched loader's steps, from the stamps of the host to a segment of the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SCRIPT_LANE, STEP, STEP_FIELDS, CpuWindow, Segment, WaitLooks
from loaderbench.watching.doses import Dose
from loaderbench.watching.seen import Seen

EMPTY_NS = 50_000
"""Steps that are shorter in the mean only take batches."""
MOST_ROWS = 200_000
"""Steps that are kept; the oldest windows are dropped."""


@dataclass
class Unsettled:
    """A window that has ended on the host."""

    seen: Seen
    rows: list[list[int]]
    dose: Dose | None
    make: Callable[[], Segment]
    on_device: bool

    @property
    def works(self) -> bool:
        """Whether the script worked on its batches; one that was resumed may skip those that it had before."""
        return sum(row[2] - row[1] for row in self.rows) > EMPTY_NS * len(self.rows)

    @property
    def is_done(self) -> bool:
        return not self.on_device or self.rows[-1][4] != -1

    @property
    def _is_sure_of_work(self) -> bool:
        """Whether the script is now seen to work on its batches: in its first window, or in a second one. One alone
        behind others does not tell: a step that only takes a batch is long, too, where the machine stands still in it.
        """
        seen = self.seen
        if seen.works or not self.works:
            return False
        begun, seen.began_to_work = seen.began_to_work, True
        return begun or not seen.segments

    def become_segment(self) -> None:
        if self.on_device and min(row[4] for row in self.rows) < 0:
            return
        segment = self.make()
        if self.dose is not None:
            segment.delay = self.dose.facts()
            if segment.delay is None:
                return
        kept = self.seen.segments
        if self._is_sure_of_work:
            self.seen.works = True
            kept.clear()  # the one before this may have begun before the work did
        kept.append(segment)
        while sum(len(one.steps) for one in kept) > MOST_ROWS and len(kept) > 2:
            kept.pop(0)


def segment_of(
    arm: Arm, number: int, warmup: int, rows: list[list[int]], spans: Any, cpu: CpuWindow | None,
    consumer_s: float | None, *, on_device: bool, first_batch: int, wait_cpu_s: float | None, looks: WaitLooks | None,
) -> Segment:  # fmt: skip
    """A step ends where the script asks for the next batch: a script that computes on the processors waits for its
    work. On a device it ends when that has done what was enqueued by then. Nothing is known of copies. Files are not
    seen, so that their bytes are unknown."""
    stamps = np.asarray(rows, dtype=np.int64)
    table = np.full((len(rows), len(STEP_FIELDS)), -1, dtype=np.int64)
    called, returned, issued = stamps[:, 0], stamps[:, 1], stamps[:, 2]
    done = np.maximum(stamps[:, 4], issued if arm is Arm.DEVICE else 0) if on_device else issued
    for name, values in (
        ("called_ns", called), ("returned_ns", returned), ("issued_ns", issued), ("waited_ns", issued),
        ("copy_begin_ns", returned), ("copy_end_ns", returned), ("done_ns", done), ("num_samples", stamps[:, 3]),
    ):  # fmt: skip
        table[:, STEP[name]] = values
    return Segment(
        arm=arm, round=number, num_warmup=warmup, steady=True, steps=table, spans=spans, opened_ns=int(called[0]),
        closed_ns=int(done[-1]), lane=SCRIPT_LANE, wall_s=(int(done[-1]) - int(called[0])) / 1e9, cpu=cpu,
        consumer_cpu_s=consumer_s, wait_cpu_s=wait_cpu_s, wait_looks=looks, first_batch=first_batch,
    )  # fmt: skip


def together(looks: Sequence[WaitLooks]) -> WaitLooks:
    return WaitLooks(sum(one.num for one in looks), sum(one.wall_s for one in looks), sum(one.busy_s for one in looks))
