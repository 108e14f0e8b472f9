"""What a loader is: a stream of batches, and the facts about how each was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loaderbench.decoders.base import Decoder
from loaderbench.errors import ConfigError
from loaderbench.images.index import ImageIndex
from loaderbench.images.shards import ShardSet
from loaderbench.loaders.read_log import ReadLog
from loaderbench.recording.facts import MAX_STEPS_IN_FLIGHT, SPAN_FIELDS

if TYPE_CHECKING:
    from loaderbench.devices.base import Device
    from loaderbench.workloads.base import Workload

__all__ = [
    "MAX_STEPS_IN_FLIGHT",
    "SPAN_FIELDS",
    "Batch",
    "Loader",
    "LoaderContext",
    "check_no_decoder",
    "check_workers",
    "fixed_input_size",
]


@dataclass(slots=True)
class Batch:
    """One mini-batch as a loader hands it over."""

    inputs: Any
    """torch tensor [N, 3, H, W], float32 (normalized) or uint8; None from a loader that only reads."""
    targets: Any
    """torch tensor int64 [N]; None from a loader that only reads."""
    num_samples: int
    encoded_bytes: int
    """Sum of the sizes of the files read for it (0 for synthetic and cached)."""
    indices: NDArray[np.int64] | None = None
    """Position of each sample in the ImageIndex, in batch order; None where there are no files."""
    spans: NDArray[np.int64] | None = None
    """int64 [len(SPAN_FIELDS)], None where the loader cannot tell."""
    failures: tuple[tuple[int, str], ...] = field(default=())
    """(index, reason) of images that could not be decoded; each was replaced by the next in index order."""
    arrived_ns: int = -1
    """When it had come from the process that made it (perf_counter_ns); -1: this one made it, or that is unknown."""
    on_device: bool = False
    """True where the inputs are already on the device (the loader owns the transfer)."""


class Loader(Protocol):
    """A source of batches for one case. Built once, iterated several times."""

    decodes: bool
    """False for loaders that hand over no freshly decoded pixels (synthetic, cached, fetch)."""
    owns_transfer: bool
    """True where batches arrive on the device."""
    evicts_own_reads: bool
    """True where `LoaderContext.evict_after_read` is honoured by the loader itself."""

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        """The sample stream from the start of `first_epoch`.

        `num_epochs=None` is endless and every batch is full: a batch may span two epochs, so a data
        set smaller than a batch works too. With `num_epochs` the stream ends after that many epochs
        and its last batch may be smaller (the last partial batch is delivered, not dropped).
        The order of an epoch is a permutation drawn from (seed, epoch).

        Closing the iterator (a generator's `close()`) cancels work not yet begun and returns only
        when nothing is in flight any more: no worker runs, the next call starts from an empty queue.
        Only one iterator may be open at a time.

        Raises CaseFailed where a worker died or more images than `max_failure_fraction` are broken.
        """
        ...

    def close(self) -> None:
        """End workers and free memory. May be called twice. No process or thread stays behind."""
        ...


class Slowdown(Protocol):
    """Work of known cost that is added to a stage: the only hook for extra work, used by the self-test.

    A loader applies it to what cannot be wrapped from outside: a decoder, a collate, DALI's graph. The measuring
    process applies it to the device and the workload. It is sent to that process, so it must be picklable. Nothing
    else in a run knows about it, and the record does not mention it.
    """

    @property
    def pageable(self) -> bool:
        """Whether batches are to be in pageable memory: then loaders pin nothing."""
        ...

    def wrap_decoder(self, decoder: Decoder) -> Decoder:
        """A decoder that does what `decoder` does and then the extra work of one image."""
        ...

    def burn_image(self, encoded: Any) -> Any:
        """Do the extra work of one image and return the image: for a loader whose decoder cannot be wrapped (DALI)."""
        ...

    def collate(self) -> None:
        """Do the extra work of one batch, in the worker; it counts as collate. Not called by DALI."""
        ...

    def wrap_device(self, device: Device) -> Device:
        """A device that does what `device` does and the extra copies."""
        ...

    def wrap_workload(self, workload: Workload, device: Device) -> Workload:
        """A workload that does what `workload` does and the extra work of a step on `device` (wrapped or not)."""
        ...


@dataclass(frozen=True)
class LoaderContext:
    """What the harness tells a loader, whatever its kind."""

    images: ImageIndex
    batch_size: int
    workers: int
    prefetch: int
    decoder: str | None
    input_size: int | None
    mode: str
    """`train`: random resized crop + flip; `infer`: resize + centre crop."""
    output: str
    """`float32` (ImageNet mean/std applied) or `uint8`."""
    seed: int
    gpu: int | None = None
    """CUDA device number that a loader may decode on; None: no GPU."""
    pin_memory: bool = False
    evict_after_read: bool = False
    """Drop each file's pages from the page cache right after reading it (cold arms)."""
    keep_evictable: bool = False
    """Map no file into memory: mapped pages cannot be dropped. The same in all arms of a case."""
    max_failure_fraction: float = 0.01
    decoder_options: Mapping[str, str] = field(default_factory=dict)
    slowdown: Slowdown | None = None
    """None in every real run."""
    shards: ShardSet | None = None
    """The containers that hold the images; None: each is a file of its own, `images.path(i)`."""
    reads: ReadLog = field(default_factory=ReadLog, compare=False, repr=False)
    """Receives when each file was read; samples.read_image tells it."""


def check_no_decoder(library: str, context: LoaderContext) -> None:
    """Raises ConfigError where a loader that decodes for itself is given a decoder."""
    if context.decoder is not None:
        raise ConfigError(f"{library} has its own decoder: leave --decoder {context.decoder} out")


def fixed_input_size(context: LoaderContext) -> int:
    """The input size, for loaders that read no image files. Raises ConfigError where it is `full`."""
    if context.input_size is None:
        raise ConfigError("--input-size full reads image files; give --input-size N, or --loader multiprocess")
    return context.input_size


def check_workers(loader: str, context: LoaderContext) -> None:
    """Raises ConfigError where a loader that has workers is given none, or nothing to prepare ahead."""
    if context.workers < 1:
        raise ConfigError(f"the {loader} loader needs --workers of at least 1; use --loader serial for none")
    if context.prefetch < 1:
        raise ConfigError(f"the {loader} loader needs --prefetch of at least 1")
