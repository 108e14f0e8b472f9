"""One rank's emulated device in data-parallel training, where a step of one ends only with that of all.

A step of every rank ends with a collective (the gradients' all-reduce), which begins when the last rank reaches it and
takes no time here. All ranks have the same profile, so all devices are free again at one instant c. With e(r, k) the
earliest end of rank r's step k, that of a device that has been free all the time (`RankQueue.issue`):

    a(r, k) = max(c(k − 1) + step, e(r, k))      when the rank reaches the collective: the arrival
    c(k)    = max over r of a(r, k)              when all leave it

So the ranks need only the largest e(r, k) of each other, and may learn it while the device works: as with a real
device, the host issues steps ahead and does not stand at the collective itself.
"""

from __future__ import annotations

import time

from loaderbench.devices.emulated import burn_cpu
from loaderbench.devices.profile import Profile, named


class RankQueue:
    """The virtual device of one rank. Times are nanoseconds of `time.perf_counter_ns`."""

    def __init__(self, profile: Profile, batch_size: int, input_size: int | None) -> None:
        """`input_size`: side of the images that the model sees; None: the profile's."""
        self.step_ns = round(profile.duration_ms(batch_size, input_size).value * 1e6)
        """From a step's start to its end, the host ahead."""
        self._issue_ns = 0 if profile.issue_ms is None else round(profile.issue_ms.value * 1e6)
        self.period_ns = max(self.step_ns, self._issue_ns)
        """From the end of a step to that of the next one where batches are always ready: of AU 1."""
        self._tail_ns = round(profile.tail_ms.value * 1e6)
        self._ns_per_byte = 1e9 / profile.link_bytes_per_s.value
        self._copied_ns = 0

    def issue(self, num_bytes: int) -> int:
        """Enqueue the copy of a batch and its step; burns the issue time on this thread. Returns the earliest end."""
        self._copied_ns = max(time.perf_counter_ns(), self._copied_ns) + round(num_bytes * self._ns_per_byte)
        burn_cpu(self._issue_ns)
        return max(self._copied_ns + self.step_ns, time.perf_counter_ns() + self._tail_ns)


def rank_queue(device: str, batch_size: int, input_size: int | None) -> RankQueue:
    """Of a resolved text of an emulated device. Raises ConfigError where its profile is not there."""
    return RankQueue(named(device.partition(":")[2]), batch_size, input_size)
