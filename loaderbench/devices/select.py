"""Which device a request means, decided without torch and without waking the driver."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from loaderbench.cases.case import Step
from loaderbench.devices import profile as profiles
from loaderbench.devices.base import Device
from loaderbench.errors import ConfigError, UnavailableError

DEFAULT_MACHINE = "h200"
"""What `--device emulated` stands in for."""
DEFAULT_PRECISION = {"cpu": "fp32", "cuda": "amp-bf16", "emulated": "amp-bf16"}


@dataclass(frozen=True)
class DeviceChoice:
    """What a `--device` text was resolved to."""

    device: str
    """For `Step.device`: `cpu`, `cuda:N` or `emulated:PROFILE`."""
    precision: str
    """For `Step.precision`."""
    note: str | None
    """A sentence for the user where the choice was made for them."""
    computes: bool = True
    """False: an emulated device has a model's times and computes nothing."""
    pins_memory: bool = False
    """Host memory can be pinned for it, so that copies do not make the host wait."""
    on_host_cpus: bool = False
    """It computes on the processors that the loader works on."""


def parse_device(text: str, *, model: str, mode: str, precision: str | None, batch_size: int) -> DeviceChoice:
    """Resolve `--device` (`auto`, `cpu`, `cuda[:N]`, `emulated[:MACHINE|:PROFILE|:FILE.toml]`).

    `precision=None` takes the device's default. A profile fixes model, mode and precision.

    Raises:
        ConfigError: no such device or profile, or the profile is for another model, mode or precision.
        UnavailableError: CUDA was asked for by name and the machine has no such GPU.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch-size must be 1 or more, not {batch_size}")
    kind, _, detail = text.partition(":")
    note = None
    if text == "auto":
        kind = "cuda" if num_visible_gpus() else "emulated"
        if kind == "emulated":
            note = f"No NVIDIA GPU here ({_why_no_gpu()}): steps run on an emulated {DEFAULT_MACHINE.upper()}."
    if kind == "cpu" and not detail:
        return DeviceChoice("cpu", precision or DEFAULT_PRECISION["cpu"], note, on_host_cpus=True)
    if kind == "cuda":
        chosen_precision = precision or DEFAULT_PRECISION["cuda"]
        return DeviceChoice(f"cuda:{_gpu_number(detail)}", chosen_precision, note, pins_memory=True)
    if kind == "emulated":
        chosen = _emulated(detail or DEFAULT_MACHINE, model=model, mode=mode, precision=precision)
        where = Path(detail).absolute() if detail.endswith(".toml") else chosen.name
        return DeviceChoice(f"emulated:{where}", chosen.precision, note, computes=False)
    raise ConfigError(f"unknown device '{text}'; use auto, cpu, cuda[:N] or emulated[:PROFILE]")


def computes(text: str) -> bool:
    """Whether the device that `--device TEXT` names would compute anything: an emulated one does not."""
    return text.partition(":")[0] != "emulated"


def _emulated(detail: str, *, model: str, mode: str, precision: str | None) -> profiles.Profile:
    """The profile that `detail` (a machine, a profile's name or a file) and the case's model lead to."""
    shipped = [profiles.named(name) for name in profiles.shipped_names()]
    if detail not in {profile.machine for profile in shipped}:
        chosen = profiles.named(detail)
        wanted = (model, mode, precision or chosen.precision)
        if wanted != (chosen.model, chosen.mode, chosen.precision):
            raise ConfigError(
                f"device profile '{chosen.name}' is for --model {chosen.model} --mode {chosen.mode} "
                f"--precision {chosen.precision}, not {' '.join(wanted)}"
            )
        return chosen
    wanted = (model, mode, precision or DEFAULT_PRECISION["emulated"])
    for profile in shipped:
        if (profile.machine, profile.model, profile.mode, profile.precision) == (detail, *wanted):
            return profile
    raise ConfigError(
        f"no emulated profile of {detail} for {' '.join(wanted)}; shipped: {', '.join(profiles.shipped_names())}; "
        "give --device cpu, or --device emulated:FILE.toml with your own times"
    )


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
        if not text or (text.lstrip("-").isdigit() and not 0 <= int(text) < num_gpus):
            break
        num_visible += 1
    return num_visible


def _num_gpus(dev: str = "/dev") -> int:
    return len(list(Path(dev).glob("nvidia[0-9]*"))) or int(Path(dev, "dxg").exists())


def _why_no_gpu() -> str:
    if _num_gpus():
        return f"CUDA_VISIBLE_DEVICES is '{os.environ.get('CUDA_VISIBLE_DEVICES', '')}'"
    return "no /dev/nvidia0"


def _gpu_number(detail: str) -> int:
    number = 0
    if detail:
        if not detail.isdecimal():
            raise ConfigError(f"unknown device 'cuda:{detail}'; use cuda or cuda:N with a number")
        number = int(detail)
    num_gpus = num_visible_gpus()
    if num_gpus == 0:
        raise UnavailableError(f"no NVIDIA GPU here ({_why_no_gpu()}): use --device emulated or --device cpu")
    if number >= num_gpus:
        raise UnavailableError(f"no GPU {number} here: {num_gpus} found, counted from 0; use a lower --device cuda:N")
    return number


def nvml_ordinal(device: str) -> int | None:
    """CUDA's number of the GPU that a resolved device text names, for NVML; None where it is no GPU."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def open_device(step: Step, image_size: int | None) -> Device:
    """Start the case's device, importing what it needs now.

    `image_size`: side of the images that the model sees, the input size or else the stored resolution; None: unknown.

    Raises:
        ConfigError: the device text or the profile is wrong.
        UnavailableError: the device cannot be started here.
    """
    kind, _, detail = step.device.partition(":")
    if kind == "emulated":
        from loaderbench.devices.emulated import EmulatedDevice

        return EmulatedDevice(profiles.named(detail), step.batch_size, image_size, overlap=step.overlap)
    if kind == "cpu":
        from loaderbench.devices.cpu import CpuDevice

        return CpuDevice()
    if kind == "cuda":
        from loaderbench.devices.cuda import CudaDevice

        return CudaDevice(int(detail or 0), overlap=step.overlap)
    raise ConfigError(f"unknown device '{step.device}'; use cpu, cuda:N or emulated:PROFILE")
