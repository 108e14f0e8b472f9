"""A plan replayed over an emulated card: one queue of compute, a memory, and a queue of copies each way.

The card computes nothing. A step's time, which its profile gives, is spread over the trace's operators by their FLOPs
(an assumption: an operator without a formula takes no time), and each copy takes bytes ÷ the link's rate. So what comes
out is how a plan's copies and waits fall on each other, not how fast a device is.

- A copy out begins at its eviction, behind the copies before it. The compute waits for its end where the memory is
  given up.
- A copy in begins where its memory is allocated, behind the copies before it and behind its own copy out. The compute
  waits for its end where the tensor is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from loaderbench.offloading.plan import ALLOCATE, FORGET, HOLD, LET_GO, OPERATOR, RELEASE, UNPACK, Plan
from loaderbench.recording.model_offload import NOT_SAVED, SavedTrace
from loaderbench.recording.offload_study import OffloadReplay

BYTES, CLEAN = 0, 1
"""Columns of SavedTrace.saved."""


class Act(IntEnum):
    """What a plan does with a saved storage, as far as it takes time."""

    OUT = 0
    """Its copy to the host begins."""
    EMPTIED = 1
    """The compute waits until it is out."""
    IN = 2
    """Its copy back begins."""
    USED = 3
    """The compute waits until it is back."""


@dataclass(frozen=True)
class Schedule:
    """What takes time in a step under a plan, in order; how fast compute and copies are is left open."""

    acts: tuple[tuple[int, Act, int, int], ...]
    """(FLOPs before it, what, saved storage, bytes)."""
    flops: int
    """Of the whole step."""
    peak_live_bytes: int


def schedule(trace: SavedTrace, plan: Plan) -> Schedule:
    """The plan's acts over the trace."""
    card = _Card(trace, plan)
    for what, value in trace.rows[:, :2].tolist():
        card.row(what, value)
    return Schedule(tuple(card.acts), card.flops, card.peak)


def timed(found: Schedule, *, step_s: float, link_bytes_per_s: float) -> OffloadReplay:
    """The step's time.

    Args:
        step_s: seconds of the step without any copy.
        link_bytes_per_s: of copies of either way; they do not slow each other down.
    """
    per_flop = step_s / found.flops if found.flops else 0.0
    out_end: dict[int, float] = {}
    in_end: dict[int, float] = {}
    out_free = in_free = waited = copied = 0.0
    for flops, act, saved, size in found.acts:
        now, seconds = flops * per_flop + waited, size / link_bytes_per_s
        if act is Act.OUT:
            out_free = out_end[saved] = max(now, out_free) + seconds
            copied += seconds
        elif act is Act.IN:
            in_free = in_end[saved] = max(now, in_free, out_end.get(saved, 0.0)) + seconds
            copied += seconds
        else:
            end = (out_end if act is Act.EMPTIED else in_end).pop(saved, now)
            waited += max(end - now, 0.0)
    return OffloadReplay(step_s + waited, step_s, waited, copied, found.peak_live_bytes)


def replay(trace: SavedTrace, plan: Plan, *, step_s: float, link_bytes_per_s: float) -> OffloadReplay:
    """The step under the plan; arguments as of `timed`."""
    return timed(schedule(trace, plan), step_s=step_s, link_bytes_per_s=link_bytes_per_s)


class _Card:
    """What is on the card while a step goes by."""

    def __init__(self, trace: SavedTrace, plan: Plan) -> None:
        self._plan = plan
        self._sizes: list[int] = trace.saved[:, BYTES].tolist()
        clean: list[int] = trace.saved[:, CLEAN].tolist()
        self._on_host = {number for number, flag in enumerate(clean) if flag}
        """Saved storages of which the host has a copy."""
        self._held: set[int] = set()
        """Those that others than the hooks hold."""
        self._kept: set[int] = set()
        """Those that the hooks hold on the device."""
        self._begun: set[int] = set()
        """Those that were packed."""
        self._hook = 0
        self._live = 0
        self.flops = 0
        self.peak = 0
        self.acts: list[tuple[int, Act, int, int]] = []

    def row(self, what: int, value: int) -> None:
        """One row of the trace."""
        if what == ALLOCATE:
            self._grow(value)
        elif what == RELEASE:
            self._live -= value
        elif what == OPERATOR:
            self.flops += value
        elif what == HOLD:
            if not self._stands_on_host(value):
                self._take(value, self._held)
        elif what == LET_GO:
            self._drop(value, self._held)
        elif what == FORGET:
            self._drop(value, self._kept)
            self._on_host.discard(value)
        else:
            if value != NOT_SAVED:
                self._use(value, unpacked=what == UNPACK)
            self._after_hook()

    def _act(self, act: Act, saved: int) -> None:
        self.acts.append((self.flops, act, saved, self._sizes[saved]))

    # -- memory

    def _stands_on_host(self, saved: int) -> bool:
        """It is there when the step begins, and nobody has asked for it yet."""
        return saved in self._plan.start_on_host and saved not in self._begun

    def _is_here(self, saved: int) -> bool:
        return saved in self._held or saved in self._kept

    def _grow(self, size: int) -> None:
        self._live += size
        self.peak = max(self.peak, self._live)

    def _take(self, saved: int, holders: set[int]) -> None:
        if not self._is_here(saved):
            self._grow(self._sizes[saved])
        holders.add(saved)

    def _drop(self, saved: int, holders: set[int]) -> None:
        was_here = self._is_here(saved)
        holders.discard(saved)
        if was_here and not self._is_here(saved):
            self._live -= self._sizes[saved]

    # -- hooks

    def _use(self, saved: int, *, unpacked: bool) -> None:
        """A saved storage is packed, or wanted back."""
        if unpacked:
            if not self._is_here(saved):
                self._act(Act.IN, saved)
            self._act(Act.USED, saved)
            self._take(saved, self._held)
            self._take(saved, self._kept)
        elif saved not in self._begun and saved not in self._plan.start_on_host:
            self._take(saved, self._kept)  # a second pack does not bring back what has left
        self._begun.add(saved)

    def _after_hook(self) -> None:
        """What the plan does after a hook event: evictions, then releases, then prefetches."""
        number, self._hook = self._hook, self._hook + 1
        for saved in self._plan.evict.get(number, ()):
            if saved not in self._on_host:
                self._on_host.add(saved)
                self._act(Act.OUT, saved)
        for saved in self._plan.release.get(number, ()):
            self._release(saved)
        for saved in self._plan.prefetch.get(number, ()):
            if not self._is_here(saved):
                self._act(Act.IN, saved)
            self._take(saved, self._kept)

    def _release(self, saved: int) -> None:
        self._act(Act.EMPTIED, saved)
        self._drop(saved, self._kept)
