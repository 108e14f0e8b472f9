"""The other ranks of a launch, as a measuring process sees them: it agrees with them between windows, never in one.

A process by itself agrees with itself at no cost, so that there is one course of measuring for both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from loaderbench.errors import CaseFailed
from loaderbench.recording.rank_place import RankClock, RankPlace

T = TypeVar("T")

MEET_S = 900.0
"""Seconds that a rank waits for the others. The supervisors end it long before where one of them is gone."""


class PeerGone(CaseFailed):
    """Another rank is gone, for which this one waited. Its failure is the cause."""


@dataclass(frozen=True)
class Seat:
    """A rank's place, and where the measuring processes of all ranks meet. It crosses a pipe."""

    place: RankPlace
    host: str
    port: int
    prefix: str
    """Of the keys of this meeting in the launch's key-value store."""
    num_local: int
    """Ranks on this node."""


class Peers(Protocol):
    """All calls are made by all ranks, in the same order. Each raises PeerGone where another rank is gone."""

    rank: int
    ranks: int
    num_local: int
    """Of them on this node."""

    def lead(self, value: T) -> T:
        """Rank 0's value."""
        ...

    def every(self, yes: bool) -> bool:
        """Whether it is so on every rank."""
        ...

    def meet(self) -> None:
        """Wait until all are here."""
        ...


class Alone:
    """A process without others."""

    rank, ranks, num_local = 0, 1, 1

    def lead(self, value: T) -> T:
        return value

    def every(self, yes: bool) -> bool:
        return yes

    def meet(self) -> None:
        """Nobody to wait for."""


ALONE: Peers = Alone()


class Together:
    """The ranks of a launch, over torch.distributed's default process group."""

    def __init__(self, seat: Seat) -> None:
        self.rank, self.ranks, self.num_local = seat.place.rank, seat.place.ranks, seat.num_local

    def lead(self, value: T) -> T:
        from torch import distributed

        held: list[Any] = [value]
        with _peers_needed():
            distributed.broadcast_object_list(held, src=0)
        led: T = held[0]
        return led

    def every(self, yes: bool) -> bool:
        import torch
        from torch import distributed

        least = torch.tensor([int(yes)])
        with _peers_needed():
            distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
        return bool(least[0])

    def meet(self) -> None:
        self.every(True)

    def align(self, clock: Callable[[], int] = time.perf_counter_ns) -> RankClock:
        """How far this rank's clock stands from rank 0's."""
        from loaderbench.running.ranks import align_clock

        with _peers_needed():
            return align_clock(clock)


@contextmanager
def _peers_needed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what gloo and the store raise
        said = (str(error).strip().splitlines() or ["no message"])[0]
        raise PeerGone(f"this rank waited for another one, which is gone ({said[:200]})") from error


@contextmanager
def joined(seat: Seat, *, gpu: int | None) -> Iterator[Together]:
    """All ranks of the launch in a process group for the block: gloo, and nccl besides where the device is a GPU."""
    from torch import distributed

    if seat.num_local == seat.place.ranks:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # of one machine, whatever its name resolves to
    if gpu is not None:
        import torch

        torch.cuda.set_device(gpu)
    with _peers_needed():
        store: Any = distributed.TCPStore(  # type: ignore[attr-defined]
            seat.host, seat.port, is_master=False, timeout=timedelta(seconds=MEET_S)
        )
        distributed.init_process_group(
            "gloo" if gpu is None else "cpu:gloo,cuda:nccl",
            store=distributed.PrefixStore(seat.prefix, store),  # type: ignore[attr-defined]
            rank=seat.place.rank,
            world_size=seat.place.ranks,
            timeout=timedelta(seconds=MEET_S),
        )
    try:
        yield Together(seat)
    finally:
        distributed.destroy_process_group()
