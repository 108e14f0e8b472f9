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

from loaderbench.offloading.plan import Plan
from loaderbench.recording.model_offload import NOT_SAVED, SAVED_EVENTS, SavedTrace
from loaderbench.recording.offload_study import OffloadReplay

ALLOCATE, RELEASE, OPERATOR, HOLD, LET_GO, PACK, UNPACK, FORGET = range(len(SAVED_EVENTS))
WHAT, VALUE = 0, 1
"""Columns of SavedTrace.rows."""
BYTES, CLEAN = 0, 1
"""Columns of SavedTrace.saved."""


def replay(trace: SavedTrace, plan: Plan, *, step_s: float, link_bytes_per_s: float) -> OffloadReplay:
    """The step under the plan.

    Args:
        step_s: seconds of the step without any copy.
        link_bytes_per_s: of copies of either way; they do not slow each other down.
    """
    card = _Card(trace, plan, link_bytes_per_s)
    flops = trace.rows[trace.rows[:, WHAT] == OPERATOR, VALUE].sum()
    seconds_per_flop = step_s / int(flops) if flops else 0.0
    for what, value in trace.rows[:, :2].tolist():
        card.row(what, value, seconds_per_flop)
    if not flops:
        card.now += step_s
    return OffloadReplay(
        step_s=step_s + card.waited,
        compute_s=step_s,
        exposed_s=card.waited,
        copy_s=card.copied,
        peak_live_bytes=card.peak,
    )


class _Card:
    """The card's state while a step goes by."""

    def __init__(self, trace: SavedTrace, plan: Plan, link_bytes_per_s: float) -> None:
        self._plan, self._rate = plan, link_bytes_per_s
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
        self._out_end: dict[int, float] = {}
        self._in_end: dict[int, float] = {}
        self._out_free = self._in_free = 0.0
        """When the queues of copies are empty."""
        self._hook = 0
        self._live = 0
        self.now = self.waited = self.copied = 0.0
        self.peak = 0

    def row(self, what: int, value: int, seconds_per_flop: float) -> None:
        """One row of the trace."""
        if what == ALLOCATE:
            self._grow(value)
        elif what == RELEASE:
            self._live -= value
        elif what == OPERATOR:
            self.now += value * seconds_per_flop
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
                self._begin_in(saved)
            self._wait(self._in_end.pop(saved, self.now))
            self._take(saved, self._held)
            self._take(saved, self._kept)
        elif not self._stands_on_host(saved):
            self._take(saved, self._kept)
        self._begun.add(saved)

    def _after_hook(self) -> None:
        """What the plan does after a hook event: evictions, then releases, then prefetches."""
        number, self._hook = self._hook, self._hook + 1
        for saved in self._plan.evict.get(number, ()):
            self._begin_out(saved)
        for saved in self._plan.release.get(number, ()):
            self._release(saved)
        for saved in self._plan.prefetch.get(number, ()):
            self._begin_in(saved)
            self._take(saved, self._kept)

    def _release(self, saved: int) -> None:
        self._wait(self._out_end.pop(saved, self.now))
        self._drop(saved, self._kept)

    # -- copies

    def _begin_out(self, saved: int) -> None:
        if saved in self._on_host:
            return
        seconds = self._sizes[saved] / self._rate
        self._out_free = self._out_end[saved] = max(self.now, self._out_free) + seconds
        self._on_host.add(saved)
        self.copied += seconds

    def _begin_in(self, saved: int) -> None:
        seconds = self._sizes[saved] / self._rate
        begin = max(self.now, self._in_free, self._out_end.get(saved, 0.0))
        self._in_free = self._in_end[saved] = begin + seconds
        self.copied += seconds

    def _wait(self, end: float) -> None:
        """The compute goes on no earlier than that."""
        if end > self.now:
            self.waited += end - self.now
            self.now = end
