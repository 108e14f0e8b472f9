"""Facts about a plug-in that are known without loading it: planning, advice, tuning and the self-test use these traits
and never a plug-in's name.

The tables are in loaderbench/plugins.py; docs/plug-ins.md explains each trait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from loaderbench.cases.case import Feed, Output, Precision
from loaderbench.printable import listed

Format = Literal["jpeg", "png", "webp"]
"""A kind of image file."""
FORMATS: tuple[Format, ...] = get_args(Format)
FORMAT_NAMES: Mapping[str, str] = MappingProxyType({"jpeg": "JPEG", "png": "PNG", "webp": "WebP"})
Work = Literal["in line", "processes", "threads"]
Handover = Literal["private", "shared", "reused"]


def format_names(formats: Iterable[str]) -> str:
    """`JPEG`, `JPEG and PNG`, `JPEG, PNG and WebP`."""
    names = [FORMAT_NAMES[one] for one in FORMATS if one in set(formats)]
    return listed(names)


@dataclass(frozen=True)
class Needs:
    """What a plug-in needs installed."""

    packages: tuple[str, ...] = ()
    """Distributions, any one of which will do; `*` stands for anything."""
    install: str | None = None
    """The command that installs them."""
    check: str | None = None
    """`module:function`, torch-free: says why the plug-in cannot be used here, or None. If given, it alone decides."""
    prove: str | None = None
    """`module:function`: tries the plug-in's library and says what was found. For `doctor`, since it may take seconds.
    Raises UnavailableError."""


@dataclass(frozen=True)
class LoaderTraits:
    """A loader."""

    work: Work
    """Where batches are made: by the process that takes them (then there are no workers), its workers, or threads."""
    decodes: Literal["ours", "own", "nothing"] = "ours"
    """What decodes: the case's decoder, the loader itself, or nothing."""
    decoder: Literal["usual", "fastest"] = "usual"
    """Which of our decoders is its default."""
    output: Output = "float32"
    """What it hands over by default."""
    reads_files: bool = True
    """False for a loader that reads no files, or each only once."""
    format: str | None = None
    """What `dataset convert --to` makes of a tree so that it can be read; None: it reads the images' files."""
    can_be_cold: bool = True
    """Its reads can be made cold, and be counted."""
    shared_queue: bool = False
    """`--prefetch` counts the batches of all workers together, not of each."""
    handover: Handover | None = None
    """The memory that finished samples are written into, as running/prep_probe.py times it: fresh memory of the
    process, memory shared with a worker, or buffers that are used again. None: it cannot be told."""
    as_torchvision: bool = False
    """PIL images become batches as torchvision's users get them, unless its option `samples` is `direct`."""
    readers: int | None = None
    """Files that it reads at once, however many workers it has; None: one for each worker."""
    reads_ahead: bool = False
    """It takes `--io-threads`."""
    extra_work_in_line: bool = False
    """The extra work of its decode stage (`Slowdown`) is done for one image after another, whatever the workers."""
    self_tested: bool = False
    """The self-test uses it for runs with a built-in cause."""
    formats: tuple[Format, ...] = ("jpeg",)
    """Kinds of images that it reads, where it decodes for itself."""
    is_data_loader: bool = False
    """It is PyTorch's DataLoader over files, so that `tune` can print it as such."""
    needs_gpu: bool = False
    needs: Needs = Needs()

    def buffer_batches(self, feed: Feed) -> int:
        """Batches that are prepared ahead when the loader rests."""
        if feed.workers == 0:
            return 0
        return feed.prefetch * (1 if self.shared_queue else feed.workers)


@dataclass(frozen=True)
class DecoderTraits:
    """A decoder."""

    rank: int = 100
    """Its place by speed among those that are installed (docs/decoders.md); the least is the fastest."""
    formats: tuple[Format, ...] = ("jpeg",)
    """Kinds of images that it reads."""
    scales: bool = False
    """It takes `--decode-scale`."""
    gives_pil: bool = False
    """Its pixels are PIL images: a loader that is `as_torchvision` makes batches of them as torchvision's users get
    them."""
    example: str | None = None
    """How a training script uses it: Python that defines `decode(path)`."""
    prefix: str | None = None
    """The package that `loaderbench install` builds for it in a folder of its own. The decoder is used only where a
    case names it."""
    probed_as: str | None = None
    """A decoder of the same speed that costs less to import: where that one is probed, this one is probed only if its
    package is loaded anyway."""
    needs: Needs = Needs()


@dataclass(frozen=True)
class DeviceTraits:
    """A kind of device."""

    precision: Precision
    """The default."""
    form: str
    """How `--device` names it: `cuda[:N]`."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Precision → why no such device computes in it; what only the device itself tells is not here."""
    computes: bool = True
    """False: it has a model's times and computes nothing."""
    pins_memory: bool = False
    """Host memory can be pinned for it, so that copies do not make the host wait."""
    on_host_cpus: bool = False
    """It computes on the processors that the loader works on."""
    is_gpu: bool = False
    """What follows the colon is CUDA's number of a GPU, which NVML can sample."""
    workload: str | None = None
    """The workload that goes with it, whatever the model; None: the model decides."""
    times: str | None = None
    """`module:function`, torch-free: what follows the colon → the times of its steps (devices/base.py, `KnownTimes`),
    which are known without a measurement; None: they are measured."""
    choose: str | None = None
    """`module:function`, torch-free: completes what follows the colon (devices/select.py, `Asked` → `Choice`)."""


@dataclass(frozen=True)
class WorkloadTraits:
    """What a step does."""

    needs: Needs = Needs()
    channels: int | None = None
    """Of the images that it takes; None: any, or its model decides."""
    check: str | None = None
    """`module:function`, torch-free: takes what of the model's text is for the workload, and the Step. Raises
    ConfigError for what can be told to be wrong without building the model."""


@dataclass(frozen=True)
class DecoderChoice:
    """A decoder as planning takes it."""

    name: str
    traits: DecoderTraits


@dataclass(frozen=True)
class LoaderChoice:
    """A loader as planning takes it."""

    name: str
    traits: LoaderTraits
    decoder: DecoderChoice | None
    """Its default here; None where it uses none of ours."""
