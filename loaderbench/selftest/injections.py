"""Slow-downs of known size that need no special storage, put around the parts of a run.

Each adds work of one kind to one stage and leaves everything else as it is: the wrapped plug-in does its own
work and then the extra. The extra's cost in throughput is not derived from the figures below: it is measured,
by running with and without it. A run's record does not mention an injection.

An injection is a `Slowdown` (loaders/base.py). A process applies one to its case like this:

    device = open_device(...)
    slowed = injection.wrap_device(device)
    workload = injection.wrap_workload(build_workload(step, device, ...), slowed)
    context = LoaderContext(..., slowdown=injection, pin_memory=device.pins_memory and not injection.pageable)
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from loaderbench.decoders.base import (
    Decoder,
    Filled,
    FillingDecoder,
    Geometry,
    PilDecoder,
    Pixels,
    Recipe,
    SlotFiller,
)
from loaderbench.devices.base import Device
from loaderbench.devices.emulated import burn_cpu
from loaderbench.errors import ConfigError
from loaderbench.plain import JsonObject
from loaderbench.workloads.base import Workload

MOST_EXTRA_BYTES = 256 << 20
"""In one extra copy; more bytes are several copies of the same memory. The sides of a stopwatch whose copies take 75 ms
held 18 GB otherwise, and once all of a machine's 24 GB."""


@dataclass(frozen=True)
class Injection:
    """Extra work by stage; zero or False: none of that kind. Several kinds may be combined."""

    decode_burn_s: float = 0.0
    """CPU seconds per image, in the decode stage, with the GIL released, as decoders do. In DALI a separate operator
    before the decoder, which works on one image at a time, whatever the number of threads."""
    collate_burn_s: float = 0.0
    """CPU seconds per batch, in the worker. Neither this nor the sleep is possible in DALI."""
    collate_sleep_s: float = 0.0
    """Seconds asleep per batch, in the worker: a wait that no CPU counter shows."""
    transfer_extra_bytes: int = 0
    """Bytes copied to the device with each batch, from pinned memory."""
    float_transfer: bool = False
    """uint8 inputs take four bytes a value on the link, as float32 does."""
    pageable: bool = False
    """Batches are copied from pageable memory: the host waits for each copy, and with it for all work before it."""
    issue_delay_s: float = 0.0
    """CPU seconds per step, on the issuing thread, between the copy and the step's first kernel."""
    compute_extra_s: float = 0.0
    """Device seconds per step, issued at no cost to the host."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a negative amount."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 0:
                raise ConfigError(f"{field.name} of an injection must not be negative, and is {value}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the fields that are set, in the order of their definition."""
        return tuple(field.name for field in dataclasses.fields(self) if getattr(self, field.name))

    def to_json(self) -> JsonObject:
        """The fields that are set, in plain JSON types; `from_json` is the inverse."""
        return {name: getattr(self, name) for name in self.kinds}

    @classmethod
    def from_json(cls, record: Mapping[str, float]) -> Injection:
        """Raises ConfigError for an unknown kind."""
        unknown = set(record) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ConfigError(f"unknown injection '{sorted(unknown)[0]}'")
        values: dict[str, Any] = {**record}
        return cls(**values)

    def __add__(self, other: Injection) -> Injection:
        """Both together: amounts add up."""
        amounts = {}
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            amounts[field.name] = (mine or theirs) if isinstance(mine, bool) else mine + theirs
        return Injection(**amounts)

    # What a loader's context takes as `slowdown`.

    def wrap_decoder(self, decoder: Decoder) -> Decoder:
        """`decoder`, then the burn of one image."""
        if not self.decode_burn_s:
            return decoder
        if isinstance(decoder, FillingDecoder):
            return InjectingFillingDecoder(decoder, self.decode_burn_s)
        if isinstance(decoder, PilDecoder):
            return InjectingPilDecoder(decoder, self.decode_burn_s)
        return InjectingDecoder(decoder, self.decode_burn_s)

    def burn_image(self, encoded: Any) -> Any:
        """The burn of one image, then the image. DALI calls it for one image after another, on one thread."""
        burn_cpu(round(self.decode_burn_s * 1e9))
        return encoded

    def collate(self) -> None:
        """The burn, then the sleep of one batch."""
        burn_cpu(round(self.collate_burn_s * 1e9))
        if self.collate_sleep_s:
            time.sleep(self.collate_sleep_s)

    # Wrappers for the device and the workload that a measuring process has built.

    def wrap_device(self, device: Device) -> Device:
        """`device`, with the extra copies."""
        if self.transfer_extra_bytes or self.float_transfer or self.pageable:
            return cast(Device, InjectingDevice(device, self))
        return device

    def wrap_workload(self, workload: Workload, device: Device) -> Workload:
        """`workload`, with the extra issue time and compute on `device` (wrapped or not)."""
        if self.issue_delay_s or self.compute_extra_s:
            return cast(Workload, InjectingWorkload(workload, device, self))
        return workload


class InjectingDecoder:
    """A decoder whose images each cost `burn_s` more CPU seconds in `decode`."""

    def __init__(self, decoder: Decoder, burn_s: float) -> None:
        self._decoder = decoder
        self._burn_ns = round(burn_s * 1e9)
        self.name = decoder.name
        self.releases_gil = decoder.releases_gil

    def decode(self, encoded: bytes) -> Pixels:
        """The inner decoder's `decode`, then the burn; no burn for an image that it refuses."""
        pixels = self._decoder.decode(encoded)
        burn_cpu(self._burn_ns)
        return pixels

    def size(self, pixels: Pixels) -> tuple[int, int]:
        return self._decoder.size(pixels)

    def crop_resize(self, pixels: Pixels, geometry: Geometry, out: NDArray[np.uint8]) -> None:
        self._decoder.crop_resize(pixels, geometry, out)

    def to_array(self, pixels: Pixels) -> NDArray[np.uint8]:
        return self._decoder.to_array(pixels)

    def describe(self) -> JsonObject:
        return self._decoder.describe()


class InjectingFillingDecoder(InjectingDecoder):
    """`InjectingDecoder` for a decoder that makes whole samples."""

    def slot_filler(self, recipe: Recipe) -> SlotFiller:
        return _InjectingFiller(cast(FillingDecoder, self._decoder).slot_filler(recipe), self._burn_ns)


class InjectingPilDecoder(InjectingDecoder):
    """`InjectingDecoder` for a decoder of PIL images."""

    def load(self, file: BinaryIO) -> Pixels:
        """The inner decoder's `load`, then the burn; no burn for an image that it refuses."""
        pixels = cast(PilDecoder, self._decoder).load(file)
        burn_cpu(self._burn_ns)
        return pixels


class _InjectingFiller:
    def __init__(self, filler: SlotFiller, burn_ns: int) -> None:
        self._filler, self._burn_ns = filler, burn_ns

    def fill(
        self,
        files: Sequence[bytes],
        indices: NDArray[np.int64],
        epochs: NDArray[np.int64],
        slots: NDArray[np.uint8],
        *,
        in_memory: bool,
    ) -> Filled:
        """The inner filler's `fill`, then the burn of each sample that was made, counted as decode time."""
        filled = self._filler.fill(files, indices, epochs, slots, in_memory=in_memory)
        begun = time.perf_counter_ns()
        burn_cpu(filled.num_made * self._burn_ns)
        return filled._replace(decode_ns=filled.decode_ns + time.perf_counter_ns() - begun)


class InjectingDevice:
    """A device whose copies are larger, or made from pageable memory. Everything else is the inner device's."""

    def __init__(self, device: Device, injection: Injection) -> None:
        self._device = device
        self._injection = injection
        self._extra: dict[int, tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_device":  # pickle and copy ask for these before __init__ has run
            raise AttributeError(name)
        return getattr(self._device, name)

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """The extra bytes, then the batch, directly after each other in the queue."""
        pageable = self._injection.pageable
        num_bytes = self._injection.transfer_extra_bytes
        if self._injection.float_transfer and inputs.element_size() < 4:
            num_bytes += inputs.nelement() * (4 - inputs.element_size())
        whole, rest = divmod(num_bytes, MOST_EXTRA_BYTES)
        for size in (*[MOST_EXTRA_BYTES] * whole, *[rest] * (rest > 0)):
            self._device.copy_in(*self._extra_batch(size, pinned=not pageable))
        return (self._device.pageable if pageable else self._device.copy_in)(inputs, targets)

    def pin(self, tensor: Any) -> Any:
        """Returns the tensor unpinned where batches are to be pageable."""
        return tensor if self._injection.pageable else self._device.pin(tensor)

    def _extra_batch(self, num_bytes: int, *, pinned: bool) -> tuple[Any, Any]:
        """A host batch of `num_bytes`, made once."""
        if num_bytes not in self._extra:
            import torch

            filler, empty = torch.zeros(num_bytes, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
            self._extra[num_bytes] = (self._device.pin(filler) if pinned else filler, empty)
        return self._extra[num_bytes]


class InjectingWorkload:
    """A workload whose steps take longer to issue, or to compute. Everything else is the inner workload's."""

    def __init__(self, workload: Workload, device: Device, injection: Injection) -> None:
        self._workload = workload
        self._issue_ns = round(injection.issue_delay_s * 1e9)
        extra_s = injection.compute_extra_s
        self._compute = device.occupying(extra_s) if extra_s else _nothing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_workload":
            raise AttributeError(name)
        return getattr(self._workload, name)

    def step(self, inputs: Any, targets: Any) -> None:
        """The delay on this thread, the inner step, the extra compute."""
        burn_cpu(self._issue_ns)
        self._workload.step(inputs, targets)
        self._compute()


def _nothing() -> None:
    pass
