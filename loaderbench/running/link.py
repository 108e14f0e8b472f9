"""The ceiling of the copy to the device: what the link gives to large copies from pinned memory."""

from __future__ import annotations

import torch

from loaderbench.devices.base import Device

COPY_BYTES = 64 * 2**20
"""Takes 1 ms on PCIe 5.0 ×16: long compared with the start of a copy."""
NUM_COPIES = 8


def link_bytes_per_s(device: Device) -> float | None:
    """Bytes/s of the fastest of NUM_COPIES copies, by the device's own events; None where nothing is copied.

    The fastest, because whatever else uses the link can only slow a copy down.
    """
    if not device.copies:
        return None
    source, empty = device.pin(torch.zeros(COPY_BYTES, dtype=torch.uint8)), torch.empty(0, dtype=torch.int64)
    device.synchronize()
    events = [device.record_copy()]
    for _ in range(NUM_COPIES):
        device.copy_in(source, empty)
        events.append(device.record_copy())
    times = device.times_ns(events)
    return COPY_BYTES * 1e9 / float((times[1:] - times[:-1]).min())
