"""Which saved storage goes to the host when, and comes back when: pure functions of a trace.

Two rules. Saved storages of at least `above_bytes` live on the host, once so many bytes are live on the device. And
before an allocation would pass the cap, the saved storage with the farthest next use goes there (Belady, A study of
replacement algorithms for a virtual-storage computer, IBM Systems Journal 5, 1966), in the backward pass too. Nothing
moves when the run fits and `above_bytes` is None. Bytes throughout.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.errors import DoesNotFit
from loaderbench.printable import memory_sizes
from loaderbench.recording.model_offload import NOT_SAVED, SAVED_EVENTS, SavedTrace

ALLOCATE, RELEASE, OPERATOR, HOLD, LET_GO, PACK, UNPACK, FORGET = range(len(SAVED_EVENTS))
"""Numbers of SavedEvent."""
NEVER = 1 << 62
LEAST_BUFFER = 4096
"""A page: smaller host buffers are not told apart."""


@dataclass(frozen=True)
class Plan:
    """What moves in a step. After a hook event first comes `evict`, then `release`, then `prefetch`."""

    sizes: tuple[int, ...]
    """Of each saved storage."""
    hooks: tuple[int, ...]
    """The saved storage, or NOT_SAVED, of each hook event: what a step is checked against."""
    evict: Mapping[int, tuple[int, ...]]
    """Hook event → saved storages whose copy to the host begins after it."""
    release: Mapping[int, tuple[int, ...]]
    """Hook event → saved storages that the hooks let go of on the device after it; the device's compute waits for a
    copy out that is under way."""
    prefetch: Mapping[int, tuple[int, ...]]
    """Hook event → saved storages that are allocated on the device after it, and whose copy back begins. One that is on
    the host at its unpack is allocated and copied there."""
    start_on_host: frozenset[int] = frozenset()
    """Parameters and buffers that are on the host when a step begins, and when it ends (inference)."""

    @property
    def moves_nothing(self) -> bool:
        return not (self.release or self.start_on_host)


@dataclass(frozen=True)
class Ledger:
    """What a step takes and moves by its plan."""

    peak_bytes: int
    """On the device, of everything in the trace."""
    peak_row: int
    """Row of the trace where it is first reached."""
    host_peak_bytes: int
    """Of the storages that are on the host."""
    host_reserved_bytes: int
    """Of the buffers that they need there, which are kept from step to step: powers of two."""
    out_bytes: int
    in_bytes: int
    num_out: int
    num_in: int
    live_bytes: NDArray[np.int64]
    """[rows]: the most on the device in each row and in what the plan does behind it."""

    @property
    def moved_bytes(self) -> int:
        """A step, both ways."""
        return self.out_bytes + self.in_bytes


def plan_for(
    trace: SavedTrace | Timeline,
    *,
    above_bytes: int | None = None,
    after_bytes: int = 0,
    cap_bytes: int | None = None,
) -> Plan:
    """The plan of the two rules; without a size and a cap, the one that moves nothing.

    Args:
        trace: `prepared` once where several plans are made of it, here and in `ledger`.
        above_bytes: saved storages of at least so many bytes live on the host; None: none for its size.
        after_bytes: only those that are packed while at least so many bytes are live on the device.
        cap_bytes: the device's memory; None: without end.

    Raises:
        DoesNotFit: not even everything on the host is enough.
    """
    timeline = prepared(trace)
    on_host: set[int] = set()
    while True:
        walk = _Walk(timeline, above_bytes, after_bytes, cap_bytes, on_host)
        walk.run()
        on_host = walk.starts
        if not walk.again:
            break
    evict, release = _by_event(walk.evict), _by_event(walk.release)
    plan = Plan(timeline.sizes, timeline.hooks, evict, release, {}, frozenset(on_host))
    return plan if plan.moves_nothing else replace(plan, prefetch=_prefetch(timeline, plan, cap_bytes))


def least_cap(trace: SavedTrace) -> int:
    """The smallest cap that a plan exists for: the peak with every saved storage on the host whenever nobody else holds
    it on the device."""
    return int(_bare(Timeline(trace)).max(initial=0))


def ledger(trace: SavedTrace | Timeline, plan: Plan) -> Ledger:
    """What the plan takes and moves, counted row by row."""
    return _Count(prepared(trace), plan).run()


def buffer_bytes(num_bytes: int) -> int:
    """Bytes of the host buffer for so many: the next power of two, a page at least."""
    return max(LEAST_BUFFER, 1 << (num_bytes - 1).bit_length())


# -- the trace, prepared ---------------------------------------------------------------------------------


class Timeline:
    """A trace's rows as lists, with what follows from them."""

    def __init__(self, trace: SavedTrace) -> None:
        self.trace = trace
        self.sizes: tuple[int, ...] = tuple(trace.saved[:, 0].tolist())
        self.clean: tuple[bool, ...] = tuple(trace.saved[:, 1].astype(bool).tolist())
        self.what: list[int] = trace.rows[:, 0].tolist()
        self.value: list[int] = trace.rows[:, 1].tolist()
        self.infers = trace.mode == "infer"
        self.uses: list[list[int]] = [[] for _ in self.sizes]
        """Saved storage → its rows of `unpack`."""
        self.event: list[int] = []
        """Row → the last hook event until then; -1 before the first."""
        self.operator: list[int] = []
        """Row → operators that ran before it."""
        self.row_of_event: list[int] = []
        num_operators = 0
        for row, (what, value) in enumerate(zip(self.what, self.value, strict=True)):
            if what in (PACK, UNPACK):
                self.row_of_event.append(row)
            if what == UNPACK and value != NOT_SAVED:
                self.uses[value].append(row)
            self.event.append(len(self.row_of_event) - 1)
            self.operator.append(num_operators)
            num_operators += what == OPERATOR
        self.hooks = tuple(self.value[row] for row in self.row_of_event)
        self.last_pack = max((row for row, what in enumerate(self.what) if what == PACK), default=-1)
        self.window = max(self.sizes, default=0)
        """Bytes that may be on the device still while they are copied out, and already while they are copied in: the
        copy of one storage beside the compute on another."""
        self.held_when_used = _held_when_used(self)

    def needs(self, row: int) -> str:
        """Which layer allocates in this row, in words."""
        _, _, _, operator, module = self.trace.rows[row].tolist()
        name, path = self.trace.operators[operator], self.trace.modules[module]
        return f"{path} ({name})" if path else name or "the memory in use before the step"


def prepared(trace: SavedTrace | Timeline) -> Timeline:
    """What plans are made of."""
    return trace if isinstance(trace, Timeline) else Timeline(trace)


def _held_when_used(timeline: Timeline) -> set[int]:
    """Rows of `unpack` at which others hold the storage still: nothing would be gained on the way there."""
    held, found = set(), set()
    for row, (what, value) in enumerate(zip(timeline.what, timeline.value, strict=True)):
        if what == UNPACK and value in held:
            found.add(row)
        if what in (HOLD, UNPACK) and value != NOT_SAVED:
            held.add(value)
        elif what == LET_GO:
            held.discard(value)
    return found


def _bare(timeline: Timeline) -> NDArray[np.int64]:
    """[rows]: live bytes without anything that the hooks hold."""
    changes, held = [], set()
    for what, value in zip(timeline.what, timeline.value, strict=True):
        change = 0
        if what in (ALLOCATE, RELEASE):
            change = value if what == ALLOCATE else -value
        elif what == HOLD and timeline.infers and timeline.clean[value]:
            pass  # stands before the step begins, and may be on the host then
        elif what in (HOLD, UNPACK) and value != NOT_SAVED and value not in held:
            held.add(value)
            change = timeline.sizes[value]
        elif what == LET_GO and value in held:
            held.remove(value)
            change = -timeline.sizes[value]
        changes.append(change)
    return np.cumsum(np.array(changes, dtype=np.int64))


def _by_event(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """(hook event, saved storage) pairs → the storages of each event, in the order of the pairs."""
    found: dict[int, list[int]] = {}
    for event, saved in pairs:
        found.setdefault(event, []).append(saved)
    return {event: tuple(found[event]) for event in sorted(found)}


# -- the two rules ---------------------------------------------------------------------------------------


class _Device:
    """What is on the device."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.live = 0
        self.held: set[int] = set()
        """Saved storages that others than the hooks hold there."""
        self.ours: set[int] = set()
        """Saved storages that the hooks hold there."""

    def has(self, saved: int) -> bool:
        return saved in self.held or saved in self.ours

    def add(self, saved: int, who: set[int]) -> None:
        if not self.has(saved):
            self.live += self.sizes[saved]
        who.add(saved)

    def drop(self, saved: int, who: set[int]) -> None:
        if saved in who:
            who.remove(saved)
            if not self.has(saved):
                self.live -= self.sizes[saved]


class _Walk:
    """One pass over the rows, in which the two rules decide. Storages come back at their unpack."""

    def __init__(
        self, timeline: Timeline, above: int | None, after: int, cap: int | None, starts: Iterable[int]
    ) -> None:
        self._timeline, self._above, self._after, self._cap = timeline, above, after, cap
        self._device = _Device(timeline.sizes)
        self.starts = set(starts)
        """Clean storages that are on the host from the step's start."""
        self.again = False
        """One was used before it was seen to be among them: another pass is needed."""
        self._on_host: set[int] = set()
        """Other saved storages that have a copy there."""
        self._packed: dict[int, int] = {}
        """Saved storage → hook event of its first pack."""
        self._done = [0] * len(timeline.sizes)
        """Saved storage → uses behind us."""
        self._going: deque[int] = deque()
        """Copied out for their size, and on the device still."""
        self.evict: list[tuple[int, int]] = []
        self.release: list[tuple[int, int]] = []

    def run(self) -> None:
        """Decide. Raises DoesNotFit."""
        timeline, device = self._timeline, self._device
        for row, (what, value) in enumerate(zip(timeline.what, timeline.value, strict=True)):
            if what == ALLOCATE:
                self._make_room(row, value)
                device.live += value
            elif what == RELEASE:
                device.live -= value
            elif value == NOT_SAVED or what == OPERATOR:
                continue
            elif what == FORGET:
                self._forget(value)
            elif what == LET_GO:
                device.drop(value, device.held)
                self._let_go(row, value)
            elif what == PACK:
                self._pack(row, value)
            elif what == UNPACK or value not in self.starts:
                self._come(row, value, used=what == UNPACK)

    def _come(self, row: int, saved: int, *, used: bool) -> None:
        """Others hold it on the device."""
        device = self._device
        if not device.has(saved):
            if not self._timeline.uses[saved] and self._timeline.clean[saved] and self._lacks(device.sizes[saved]) > 0:
                self.starts.add(saved)  # a parameter that the step does not use displaces nothing
                return
            self._make_room(row, device.sizes[saved])
        device.add(saved, device.held)
        if used:
            self._done[saved] += 1
            if saved in self._going:
                self._going.remove(saved)
            device.add(saved, device.ours)

    def _pack(self, row: int, saved: int) -> None:
        is_first = saved not in self._packed
        self._packed.setdefault(saved, self._timeline.event[row])
        if saved in self.starts or not is_first:
            return
        self._device.add(saved, self._device.ours)
        if self._timeline.infers or self._next_use(saved) in self._timeline.held_when_used:
            return
        if self._is_large(saved):
            self._send(row, saved)

    def _is_large(self, saved: int) -> bool:
        return (
            self._above is not None and self._timeline.sizes[saved] >= self._above and self._device.live >= self._after
        )

    def _let_go(self, row: int, saved: int) -> None:
        """Inference: an operator that read or made it has run."""
        if not self._timeline.infers or saved not in self._device.ours:
            return
        following = self._next_use(saved)
        is_next = following < NEVER and self._timeline.operator[following] <= self._timeline.operator[row]
        if saved in self.starts:
            if following == NEVER or (self._is_large(saved) and not is_next):
                self._give_up(row, saved)
        elif self._is_large(saved) and following < NEVER and not is_next:
            if self._timeline.clean[saved]:
                self._give_up(row, saved)
            else:
                self._send(row, saved)

    def _next_use(self, saved: int) -> int:
        uses, done = self._timeline.uses[saved], self._done[saved]
        return uses[done] if done < len(uses) else NEVER

    def _send(self, row: int, saved: int) -> None:
        """Its copy to the host is under way; the oldest leave the device when too many are."""
        self._going.append(saved)
        while sum(self._device.sizes[one] for one in self._going) > self._timeline.window:
            self._give_up(row, self._going.popleft())

    def _give_up(self, row: int, saved: int, *, before: bool = False) -> None:
        """It leaves the device, after the last hook event; `before`: the row is one, and needs the room."""
        self._device.drop(saved, self._device.ours)
        if self._timeline.clean[saved]:
            if saved not in self.starts:
                self.starts.add(saved)
                self.again |= self._done[saved] > 0
                return  # as if it had never been there
        elif saved not in self._on_host:
            self.evict.append((self._packed[saved], saved))
            self._on_host.add(saved)
        self.release.append((self._timeline.event[row] - before, saved))

    def _lacks(self, need: int) -> int:
        """Bytes above the cap, were so many more allocated."""
        return 0 if self._cap is None else self._device.live + need - self._cap

    def _make_room(self, row: int, need: int) -> None:
        """Let storages go until so many bytes more are below the cap."""
        device, cap = self._device, self._cap
        while self._lacks(need) > 0:
            free = [one for one in device.ours if one not in device.held]
            if not free:
                needs, step, limit = memory_sizes(device.live + need, int(_bare(self._timeline).max()), cap or 0)
                raise DoesNotFit(
                    f"cannot fit: even with all offloadable tensors on the host {self._timeline.needs(row)} needs "
                    f"{needs} of {limit}, and the whole step {step}: give a smaller --batch-size or more memory"
                )
            if any(one in self._going for one in free):  # those that need no further copy out
                free = [one for one in free if one in self._going or self._timeline.clean[one]]
            victim = max(free, key=lambda one: (self._distance(one), one))
            if victim in self._going:
                self._going.remove(victim)
            self._give_up(row, victim, before=self._timeline.what[row] == UNPACK)

    def _distance(self, saved: int) -> int:
        """Row of the next use; a parameter's is in the next step after its last."""
        use = self._next_use(saved)
        uses = self._timeline.uses[saved]
        if use == NEVER and self._timeline.clean[saved] and uses:
            return len(self._timeline.what) + uses[0]
        return use

    def _forget(self, saved: int) -> None:
        self._device.drop(saved, self._device.ours)
        if saved in self._going:
            self._going.remove(saved)


# -- coming back before it is used -----------------------------------------------------------------------


def _prefetch(timeline: Timeline, plan: Plan, cap: int | None) -> dict[int, tuple[int, ...]]:
    """Of a plan without: each reload as early as the cap allows, in the order of their uses, with at most the window's
    bytes ahead. In training they begin when the forward pass has ended."""
    reloads: list[tuple[int, int]] = []
    count = _Count(timeline, plan)
    within = count.run(reloads).live_bytes.copy()
    behind = np.array(count.left, dtype=np.int64)  # what the plan does in each row: where a prefetch begins
    ahead = np.zeros(len(within), dtype=np.int64)
    left: dict[int, list[int]] = {}
    for event, storages in plan.release.items():
        for saved in storages:
            left.setdefault(saved, []).append(timeline.row_of_event[event])
    earliest = 0 if timeline.infers else timeline.last_pack
    found = []
    for row, saved in reloads:
        size = timeline.sizes[saved]
        begin = max([earliest, *(one for one in left.get(saved, []) if one < row)])
        room = ahead[begin:row] + size <= timeline.window
        fits, fits_behind = room.copy(), room
        if cap is not None:
            fits &= within[begin:row] + size <= cap
            fits_behind &= behind[begin:row] + size <= cap
        too_full = np.flatnonzero(~fits)
        if len(too_full):
            last = int(too_full[-1])
            begin += last + (not fits_behind[last])
        event = timeline.event[begin] + (timeline.what[begin] not in (PACK, UNPACK))
        begin = timeline.row_of_event[event]
        if begin >= row:
            continue
        behind[begin:row] += size
        ahead[begin:row] += size
        within[begin] = max(within[begin], behind[begin])
        within[begin + 1 : row] += size
        earliest = begin
        found.append((event, saved))
    return _by_event(found)


@dataclass
class _Moves:
    out_bytes: int = 0
    in_bytes: int = 0
    num_out: int = 0
    num_in: int = 0
    host: int = 0
    host_peak: int = 0
    used: Counter[int] = field(default_factory=Counter)
    """Bytes of a host buffer → how many are in use."""
    most_used: Counter[int] = field(default_factory=Counter)
    on_host: set[int] = field(default_factory=set)


class _Count:
    """Walks the rows by a plan, and counts."""

    def __init__(self, timeline: Timeline, plan: Plan) -> None:
        self._timeline, self._plan = timeline, plan
        self._device, self._moves = _Device(timeline.sizes), _Moves()
        self.left: list[int] = []
        """Row → what is on the device behind it and the plan's actions."""
        for saved in plan.start_on_host:
            self._to_host(saved)

    def run(self, reloads: list[tuple[int, int]] | None = None) -> Ledger:
        """`reloads` gets the (row, saved storage) that come back at their unpack."""
        timeline, device, moves = self._timeline, self._device, self._moves
        live = []
        begun: set[int] = set()
        for row, (what, value) in enumerate(zip(timeline.what, timeline.value, strict=True)):
            if what in (ALLOCATE, RELEASE):
                device.live += value if what == ALLOCATE else -value
            elif what != OPERATOR and value != NOT_SAVED:
                stands_on_host = value in self._plan.start_on_host and value not in begun
                if what == UNPACK and not device.has(value):
                    self._come_back(value)
                    if reloads is not None:
                        reloads.append((row, value))
                if what in (HOLD, UNPACK) and not (what == HOLD and stands_on_host):
                    device.add(value, device.held)
                if what == UNPACK or (what == PACK and value not in begun and not stands_on_host):
                    device.add(value, device.ours)
                if what == PACK:
                    begun.add(value)
                elif what == LET_GO:
                    device.drop(value, device.held)
                elif what == FORGET:
                    self._forget(value)
            within = device.live
            if what in (PACK, UNPACK):
                self._act(timeline.event[row])
            live.append(max(within, device.live))
            self.left.append(device.live)
        table = np.array(live, dtype=np.int64)
        peak_row = int(np.argmax(table)) if len(table) else 0
        return Ledger(
            peak_bytes=int(table.max(initial=0)),
            peak_row=peak_row,
            host_peak_bytes=moves.host_peak,
            host_reserved_bytes=sum(size * number for size, number in moves.most_used.items()),
            out_bytes=moves.out_bytes,
            in_bytes=moves.in_bytes,
            num_out=moves.num_out,
            num_in=moves.num_in,
            live_bytes=table,
        )

    def _act(self, event: int) -> None:
        plan, device, moves = self._plan, self._device, self._moves
        for saved in plan.evict.get(event, ()):
            if saved not in moves.on_host:
                moves.out_bytes += device.sizes[saved]
                moves.num_out += 1
                self._to_host(saved)
        for saved in plan.release.get(event, ()):
            device.drop(saved, device.ours)
        for saved in plan.prefetch.get(event, ()):
            if not device.has(saved):
                self._come_back(saved)
            device.add(saved, device.ours)

    def _come_back(self, saved: int) -> None:
        self._moves.in_bytes += self._device.sizes[saved]
        self._moves.num_in += 1

    def _to_host(self, saved: int) -> None:
        moves = self._moves
        moves.on_host.add(saved)
        moves.host += self._device.sizes[saved]
        moves.host_peak = max(moves.host_peak, moves.host)
        buffer = buffer_bytes(self._device.sizes[saved])
        moves.used[buffer] += 1
        moves.most_used[buffer] = max(moves.most_used[buffer], moves.used[buffer])

    def _forget(self, saved: int) -> None:
        moves, size = self._moves, self._device.sizes[saved]
        self._device.drop(saved, self._device.ours)
        if saved in moves.on_host:
            moves.on_host.remove(saved)
            moves.host -= size
            moves.used[buffer_bytes(size)] -= 1
