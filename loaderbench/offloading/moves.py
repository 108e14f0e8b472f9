"""What both engines have in common: a plan's actions are carried out in order, and every copy is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from loaderbench.offloading.copies import Copier, HostCopy
from loaderbench.offloading.sources import Actions

T = TypeVar("T")


@dataclass
class OffloadStatistics:
    """Of one step. Bytes are the storages' own."""

    num_saved: int = 0
    """Storages that autograd saved, parameters' and buffers' not counted."""
    saved_bytes: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    num_out: int = 0
    num_in: int = 0
    host_peak_bytes: int = 0
    host_reserved_bytes: int = 0
    """Of all host buffers, in use or not: powers of two, pinned on CUDA."""
    copy_s: float = 0.0
    """What the copies took, both ways."""
    exposed_s: float = 0.0
    """Of which the device's work waited; on the CPU as the device all of it."""


class Moves:
    """Copies of storages to the host and back, counted over a step."""

    def __init__(self, copier: Copier) -> None:
        self.copier = copier
        self.host_bytes = 0
        """On the host now."""
        self._statistics = OffloadStatistics()

    def begin_step(self) -> None:
        self._statistics = OffloadStatistics(host_peak_bytes=self.host_bytes)
        self.copier.begin_times()

    def begin_peak(self) -> None:
        """The host's peak counts from now on."""
        self._statistics.host_peak_bytes = self.host_bytes

    def end_step(self) -> OffloadStatistics:
        """What was counted since `begin_step`. Waits for the device."""
        times, statistics = self.copier.times(), self._statistics
        statistics.copy_s, statistics.exposed_s = times.copy_s, times.exposed_s
        statistics.host_reserved_bytes = self.copier.pool.reserved_bytes
        return replace(statistics)

    def saved(self, num_bytes: int) -> None:
        """A storage of so many bytes was saved."""
        self._statistics.num_saved += 1
        self._statistics.saved_bytes += num_bytes

    def keep(self, storage: torch.UntypedStorage) -> HostCopy:
        """Begin a copy to the host that stays there from step to step: no move of this step."""
        copy = self.copier.out(storage)
        self.host_bytes += copy.num_bytes
        self._statistics.host_peak_bytes = max(self._statistics.host_peak_bytes, self.host_bytes)
        return copy

    def out(self, storage: torch.UntypedStorage) -> HostCopy:
        """Begin a copy to the host."""
        copy = self.keep(storage)
        self._statistics.out_bytes += copy.num_bytes
        self._statistics.num_out += 1
        return copy

    def back(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        """Begin a copy to the device."""
        self.copier.back(copy, storage)
        self._statistics.in_bytes += copy.num_bytes
        self._statistics.num_in += 1

    def give_back(self, copy: HostCopy) -> None:
        """The host's bytes are not needed any more."""
        self.copier.give_back(copy)
        self.host_bytes -= copy.num_bytes


def act(
    actions: Actions,
    known: Mapping[int, T],
    evict: Callable[[T], None],
    release: Callable[[T], None],
    bring: Callable[[T], None],
) -> None:
    """Carry out what is to be done with the storages of these numbers; one that nobody knows any more is left out."""
    for numbers, move in ((actions.evict, evict), (actions.release, release), (actions.prefetch, bring)):
        for number in numbers:
            if number in known:
                move(known[number])
