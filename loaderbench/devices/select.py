"""Which device a request means, decided without torch and without waking the driver."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderbench import plugins
from loaderbench.cases.case import MODES, PRECISIONS, Step
from loaderbench.cases.options import is_count
from loaderbench.cases.study import check_choice
from loaderbench.cases.traits import DeviceTraits
from loaderbench.devices.base import Asked, Chosen, Device, KnownTimes
from loaderbench.devices.profile import DEFAULT_MACHINE, NoProfile, named
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.machine import usable_cpus
from loaderbench.printable import short

GPU, STAND_IN = "cuda", "emulated"
"""What `--device auto` means with a GPU, and without one."""
INTEL = "0x8086"
"""PCI's number of the vendor."""


@dataclass(frozen=True)
class DeviceChoice:
    """What a `--device` text was resolved to."""

    device: str
    """For `Step.device`: `cpu`, `cpu:THREADS`, `cuda:N`, `xpu:N`, `emulated:PROFILE`, `emulated:PROFILExF`."""
    precision: str
    """For `Step.precision`."""
    traits: DeviceTraits
    note: str | None = None
    """A sentence for the user where loaderbench chose the device."""


def parse_device(
    text: str,
    *,
    model: str,
    mode: str,
    precision: str | None,
    batch_size: int,
    instead: Sequence[str] = ("emulated", "cpu"),
) -> DeviceChoice:
    """Resolve `--device`: `auto`, `cpu[:THREADS]`, `cuda[:N]`, `xpu[:N]`, `emulated[:MACHINE|:PROFILE|:FILE.toml][xF]`,
    or a plug-in's.

    `precision=None` takes the device's default. A profile fixes model, mode and precision. `instead`: devices that the
    caller takes too: where the machine lacks the one asked for, those that can run this are proposed.

    Raises:
        ConfigError: no such device or profile, more threads than CPUs, or the profile is for another model, mode or
            precision.
        UnavailableError: a GPU was asked for by name and the machine has no such one.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch-size must be 1 or more, not {batch_size}")
    kind, colon, detail = text.partition(":")
    note = None
    if text == "auto":
        kind = GPU if num_visible_gpus() else STAND_IN
        if kind == STAND_IN:
            note = f"No NVIDIA GPU here ({_why_no_gpu()}): steps run on an emulated {DEFAULT_MACHINE.upper()}."
    traits = _traits(kind)
    if traits is None or (colon and traits.choose is None):
        forms = ", ".join(device.form for device in plugins.DEVICES.known().values())
        raise ConfigError(f"unknown device '{short(text)}'; use auto, {forms}")
    chosen = Chosen(precision or traits.precision)
    if traits.choose is not None:
        try:
            chosen = plugins.function(traits.choose)(Asked(detail, model, mode, precision, traits.precision))
        except (UnavailableError, NoProfile) as error:
            use = [one for one in instead if one != kind and _can_run(one, model, mode, precision)]
            hint = f"; use {' or '.join(f'--device {one}' for one in use)}" if use else ""
            raise type(error)(f"{error}{hint}") from error
    return DeviceChoice(f"{kind}:{chosen.detail}" if chosen.detail else kind, chosen.precision, traits, note)


def _can_run(device: str, model: str, mode: str, precision: str | None) -> bool:
    """Whether the device is here, and there is such a model for it in that mode and precision."""
    try:
        choice = parse_device(device, model=model, mode=mode, precision=precision, batch_size=1, instead=())
        mode, known = check_choice("--mode", mode, MODES), check_choice("--precision", choice.precision, PRECISIONS)
        plugins.check_model(Step(model, mode, known, choice.device, 1, None), choice.traits)
    except (ConfigError, UnavailableError):
        return False
    return lacks(choice.device, known) is None


def lacks(device: str, precision: str) -> str | None:
    """Why a device of this kind does not compute in the precision, and what to use instead; None where it may."""
    kind = device.partition(":")[0]
    traits = _traits(kind)
    why = None if traits is None else traits.lacks.get(precision)
    if why is None or traits is None:
        return None
    others = ", ".join(one for one in PRECISIONS if one not in traits.lacks)
    return f"--device {kind} does not take --precision {precision} ({why}): use {others}"


def _traits(kind: str) -> DeviceTraits | None:
    return plugins.DEVICES.find(kind).traits if kind in plugins.DEVICES.names() else None


def traits_of(device: str) -> DeviceTraits:
    """Traits of the device that a text names, resolved or not. `auto`: traits of the device that it selects here.

    Raises ConfigError for an unknown one.
    """
    kind = device.partition(":")[0]
    if kind == "auto":
        kind = GPU if num_visible_gpus() else STAND_IN
    return plugins.DEVICES.find(kind).traits


def is_gpu(device: str) -> bool:
    """Whether `--device TEXT` means a GPU here."""
    return traits_of(device).is_gpu


def choose_cpu(asked: Asked) -> Chosen:
    """Traits' `choose` of `cpu`: as many threads as given, else PyTorch's own number. Raises ConfigError for more than
    the usable CPUs."""
    threads = asked.detail
    if threads:
        usable = usable_cpus()
        if not (is_count(threads) and 1 <= int(threads) <= usable):
            raise ConfigError(
                f"unknown device 'cpu:{short(threads)}': give 1 to {usable} threads, the usable CPUs here; or use "
                "cpu for PyTorch's default"
            )
        threads = str(int(threads))
    return Chosen(asked.precision or asked.default_precision, threads)


def choose_xpu(asked: Asked) -> Chosen:
    """Traits' `choose` of `xpu`: Intel GPU 0 where no number was given.

    Raises:
        ConfigError: what follows the colon is no number.
        UnavailableError: the kernel drives no Intel GPU.
    """
    if asked.detail and not is_count(asked.detail):
        raise ConfigError(f"unknown device 'xpu:{short(asked.detail)}'; use xpu or xpu:N with a number")
    if not has_intel_gpu():
        raise UnavailableError("no Intel GPU here (no /sys/class/drm/renderD* of vendor 0x8086)")
    return Chosen(asked.precision or asked.default_precision, str(int(asked.detail or 0)))


def has_intel_gpu(drm: str = "/sys/class/drm") -> bool:
    """Whether the kernel drives an Intel GPU (PCI vendor 0x8086). torch.xpu may still find none, or count others."""
    for vendor in Path(drm).glob("renderD*/device/vendor"):
        try:
            if vendor.read_text(encoding="ascii").strip() == INTEL:
                return True
        except OSError:
            continue
    return False


def choose_gpu(asked: Asked) -> Chosen:
    """Traits' `choose` of `cuda`: GPU 0 where no number was given. Raises as parse_device."""
    return Chosen(asked.precision or asked.default_precision, str(_gpu_number(asked.detail)))


def num_visible_gpus(dev: str = "/dev") -> int:
    """GPUs that the NVIDIA driver offers and CUDA_VISIBLE_DEVICES lets through.

    Counts the driver's device files (nvidia0 …; one for WSL's dxg), which takes microseconds. Whether CUDA
    really starts is found out when the device is opened.
    """
    num_gpus = _num_gpus(dev)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or num_gpus == 0:
        return num_gpus
    num_visible = 0
    for entry in visible.split(","):  # CUDA ignores everything from the first invalid entry on
        text = entry.strip()
        if not text or (text.lstrip("-").isdecimal() and not (is_count(text) and int(text) < num_gpus)):
            break
        num_visible += 1
    return num_visible


def _num_gpus(dev: str = "/dev") -> int:
    return len(list(Path(dev).glob("nvidia[0-9]*"))) or int(Path(dev, "dxg").exists())


def _why_no_gpu() -> str:
    if _num_gpus():
        return f"CUDA_VISIBLE_DEVICES is '{short(os.environ.get('CUDA_VISIBLE_DEVICES', ''))}'"
    return "no /dev/nvidia0"


def _gpu_number(detail: str) -> int:
    number = 0
    if detail:
        if not is_count(detail):
            raise ConfigError(f"unknown device 'cuda:{short(detail)}'; use cuda or cuda:N with a number")
        number = int(detail)
    num_gpus = num_visible_gpus()
    if num_gpus == 0:
        raise UnavailableError(f"no NVIDIA GPU here ({_why_no_gpu()})")
    if number >= num_gpus:
        raise UnavailableError(f"there is no GPU {number}: {num_gpus} found, counted from 0")
    return number


def known_times(device: str) -> KnownTimes | None:
    """Times of the steps of the device that a resolved text names, where they are known without a measurement.

    Raises:
        ConfigError: it has no such times.
    """
    kind, _, detail = device.partition(":")
    traits = _traits(kind)
    if traits is None or traits.times is None:
        return None
    times: KnownTimes = plugins.function(traits.times)(detail)
    return times


def profile_memory(device: str) -> tuple[int, str] | None:
    """(bytes, its source) of the memory of an emulated device, by its profile; None where the profile does not say.

    Raises ConfigError where there is no such profile.
    """
    constant = named(device.partition(":")[2]).memory_bytes
    return None if constant is None else (round(constant.value), f"{constant.label}: {constant.source}")


def profile_link(device: str) -> tuple[float, str]:
    """(bytes/s, its source) of the copies of an emulated device, either way, by its profile.

    Raises ConfigError where there is no such profile.
    """
    constant = named(device.partition(":")[2]).link_bytes_per_s
    return constant.value, f"{constant.label}: {constant.source}"


def nvml_ordinal(device: str) -> int | None:
    """CUDA's number of the GPU that a resolved device text names, for NVML; None where it is not a GPU."""
    kind, _, number = device.partition(":")
    traits = _traits(kind)  # a stored run may name a plug-in that is not installed here
    return int(number or 0) if traits is not None and traits.is_gpu else None


def of_local_rank(device: str, asked: str, local_rank: int) -> str:
    """The device of one of several ranks on a node: where GPUs were asked for without a number, each has its own; a
    launcher that shows each rank one GPU has chosen already."""
    kind = device.partition(":")[0]
    traits = _traits(kind)
    if traits is None or not traits.is_gpu or ":" in asked:
        return device
    return f"{kind}:{0 if num_visible_gpus() == 1 else local_rank}"


def open_device(step: Step, image_size: int | None) -> Device:
    """Start the case's device, importing what it needs now.

    `image_size`: side of the images that the model sees, the input size or else the stored resolution; None: unknown.

    Raises:
        ConfigError: the device text or the profile is wrong.
        UnavailableError: the device cannot be started here.
    """
    kind, _, detail = step.device.partition(":")
    device: Device = plugins.DEVICES.load(kind).build(detail, step, image_size)
    return device
