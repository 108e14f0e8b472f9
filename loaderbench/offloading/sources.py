"""What tells the engine which saved storages go to the host, and when: a plan, or a size alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from loaderbench.errors import PlanMismatch
from loaderbench.offloading.plan import Plan
from loaderbench.recording.model_offload import NOT_SAVED

MOST_ROUNDING = 512
"""Bytes up to which an allocator may round a size up: the trace has rounded ones."""
SMALL = 64 * 1024
NUM_GOING, NUM_AHEAD = 1, 1
"""Without a trace: storages that may be on the device still while they are copied out, and already while they are
copied in."""


@dataclass(frozen=True)
class Actions:
    """What is to be done after a hook event, in this order: numbers of saved storages."""

    evict: Iterable[int] = ()
    release: Iterable[int] = ()
    prefetch: Iterable[int] = ()


NOTHING = Actions()


class Source(Protocol):
    def begin_step(self) -> None: ...

    def end_step(self) -> None:
        """Raises PlanMismatch where the step was shorter than the plan's."""
        ...

    def keeps_next(self) -> bool:
        """Whether the next hook event is on a tensor that is kept as it is."""
        ...

    def check(self, saved: int, num_bytes: int) -> None:
        """Before a hook event on this saved storage of so many bytes. Raises PlanMismatch."""
        ...

    def after(self, saved: int, num_bytes: int, *, is_pack: bool) -> Actions: ...

    def forget(self, saved: int) -> None:
        """The saved storage is not needed any more."""
        ...


class PlanSource:
    """A plan, whose steps must be as the traced one."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._event = plan, 0

    def begin_step(self) -> None:
        self._event = 0

    def end_step(self) -> None:
        if self._event != len(self._plan.hooks):
            raise PlanMismatch(
                f"the step has {self._event:,} hook events and its plan has {len(self._plan.hooks):,}: the plan was "
                "made for another model, batch, device or precision"
            )

    def keeps_next(self) -> bool:
        hooks = self._plan.hooks
        return self._event < len(hooks) and hooks[self._event] == NOT_SAVED

    def check(self, saved: int, num_bytes: int) -> None:
        plan, event = self._plan, self._event
        if event >= len(plan.hooks):
            raise PlanMismatch(
                f"the step has more hook events than its plan, which has {len(plan.hooks):,}: call begin_step before "
                "each step, or make a plan for this model, batch, device and precision"
            )
        expected = plan.hooks[event]
        if expected == NOT_SAVED:
            return
        size = plan.sizes[expected]
        if saved != expected or not is_alike(num_bytes, size):
            raise PlanMismatch(
                f"at hook event {event:,} the plan has saved storage {expected} of {size:,} bytes, the step "
                f"{'none' if saved == NOT_SAVED else saved} of {num_bytes:,}: the plan was made for another model, "
                "batch, device or precision"
            )

    def after(self, saved: int, num_bytes: int, *, is_pack: bool) -> Actions:
        event, self._event = self._event, self._event + 1
        plan = self._plan
        return Actions(plan.evict.get(event, ()), plan.release.get(event, ()), plan.prefetch.get(event, ()))

    def forget(self, saved: int) -> None:
        """The plan knows."""


def is_alike(num_bytes: int, traced: int) -> bool:
    """Whether a storage of so many bytes is the traced one: by the allocator's rounding; of a small one half or twice
    as many are too, for fake batch norm tells its statistics in the images' type where the CPU's has fp32."""
    tried = (num_bytes,) if traced > SMALL else (num_bytes, 2 * num_bytes, num_bytes // 2)
    return any(traced - MOST_ROUNDING < one <= traced for one in tried)


class SizeSource:
    """The first rule alone, without a trace: storages of at least `above_bytes` go as soon as they are saved, once so
    many bytes as `after_bytes` are live; they come back in reverse order, one ahead."""

    def __init__(self, above_bytes: int, after_bytes: int) -> None:
        self._above, self._after = above_bytes, after_bytes
        self.live_bytes: Callable[[], Callable[[], int] | None] = lambda: None
        """Gives what tells the bytes that are live; a weak reference to it, for the engine has this."""
        self._going: list[int] = []
        """Copied out, and on the device still."""
        self._gone: dict[int, None] = {}
        """Left the device, in this order, and not asked for since."""
        self._known: set[int] = set()

    def begin_step(self) -> None:
        """A step is as another."""

    def end_step(self) -> None:
        """It needs nothing to be complete."""

    def keeps_next(self) -> bool:
        return False

    def check(self, saved: int, num_bytes: int) -> None:
        """There is nothing to compare with."""

    def after(self, saved: int, num_bytes: int, *, is_pack: bool) -> Actions:
        if saved == NOT_SAVED:
            return NOTHING
        if not is_pack:
            self._come_back(saved)
            return Actions(prefetch=self._next())
        if saved in self._known or num_bytes < self._above or not self._has_begun():
            self._known.add(saved)
            return NOTHING
        self._known.add(saved)
        self._going.append(saved)
        leave, self._going = self._going[:-NUM_GOING], self._going[-NUM_GOING:]
        self._gone.update(dict.fromkeys(leave))
        return Actions(evict=(saved,), release=leave)

    def _has_begun(self) -> bool:
        live = self.live_bytes()
        return not self._after or (live is not None and live() >= self._after)

    def forget(self, saved: int) -> None:
        self._come_back(saved)
        self._known.discard(saved)

    def _come_back(self, saved: int) -> None:
        if saved in self._going:
            self._going.remove(saved)
        self._gone.pop(saved, None)

    def _next(self) -> list[int]:
        ahead = [*self._gone][: -NUM_AHEAD - 1 : -1]
        for saved in ahead:
            del self._gone[saved]
        return ahead
