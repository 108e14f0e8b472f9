"""The arms: the ways in which one case is measured, in one frozen table. Nothing else knows an arm by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from loaderbench.errors import ConfigError

Source = Literal["resident", "ready", "memory", "storage"]
"""What an arm's loop is fed from: one batch that stays on the device, decoded batches kept ready, the files in
memory, or the data set where it lies."""


class Arm(StrEnum):
    """One way of measuring a case; docs/method.md says what each one adds to the one before."""

    DEVICE = "device"
    HOST = "host"
    RAM = "ram"
    REAL = "real"
    FREE = "free"
    FETCH = "fetch"
    PREP = "prep"
    SHORT = "short"
    TRACED = "traced"
    UNTRACED = "untraced"
    DELAYED = "delayed"

    @property
    def source(self) -> Source:
        """What its loop is fed from."""
        return TABLE[self].source

    @property
    def is_fed(self) -> bool:
        """Whether a loader gives its batches."""
        return self.source in ("memory", "storage")

    @property
    def on_device(self) -> bool:
        """Whether its steps run on the device; else batches are taken and dropped."""
        return TABLE[self].on_device

    @property
    def decodes(self) -> bool:
        """Whether its loader decodes what it reads."""
        return TABLE[self].decodes

    @property
    def touches_storage(self) -> bool:
        """Whether it reads the data set where it lies."""
        return TABLE[self].source == "storage"

    @property
    def weight(self) -> float:
        """Length of its windows ÷ those of `real`: what varies less needs less time."""
        return TABLE[self].weight


@dataclass(frozen=True)
class ArmTraits:
    """One row of the table."""

    source: Source
    on_device: bool
    weight: float = 1.0
    decodes: bool = True
    asked_for: bool = False
    """Whether `--arms` may name it; the other arms are added where these need them."""


TABLE: Mapping[Arm, ArmTraits] = MappingProxyType(
    {
        Arm.DEVICE: ArmTraits("resident", on_device=True, weight=0.5, asked_for=True),
        Arm.HOST: ArmTraits("ready", on_device=True, weight=0.5, asked_for=True),
        Arm.RAM: ArmTraits("memory", on_device=True, asked_for=True),
        Arm.REAL: ArmTraits("storage", on_device=True, asked_for=True),
        Arm.FREE: ArmTraits("storage", on_device=False, asked_for=True),
        Arm.FETCH: ArmTraits("storage", on_device=False, weight=0.5, decodes=False, asked_for=True),
        # `free` on the files in memory, where `free` reads cold ones.
        Arm.PREP: ArmTraits("memory", on_device=False),
        # The loop of `real`, beginning with a full prefetch buffer: its first step ran before the buffer was filled.
        Arm.SHORT: ArmTraits("storage", on_device=True),
        # The loop of `real` with every kernel recorded, and the windows before and after it.
        Arm.TRACED: ArmTraits("storage", on_device=True),
        Arm.UNTRACED: ArmTraits("storage", on_device=True),
        # A watched script's own loop, each step of it longer by a known delay.
        Arm.DELAYED: ArmTraits("storage", on_device=True),
    }
)
ARMS: tuple[Arm, ...] = tuple(arm for arm, traits in TABLE.items() if traits.asked_for)
"""The arms that can be asked for, in the order in which a round runs them."""
CHAIN: tuple[Arm, ...] = (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL)
"""Each does what the one before does, and more: their step times can only grow."""
FED_ALIKE: tuple[Arm, ...] = (Arm.RAM, Arm.REAL, Arm.FREE, Arm.PREP)
"""The arms fed by the loader itself: the machine's state moves their step times alike."""


def parse_arms(names: Iterable[str]) -> tuple[Arm, ...]:
    """The arms of these names, or all, in the table's order.

    Raises:
        ConfigError: an unknown name, or `real` is not among them.
    """
    wanted = {name.strip() for name in names}
    if wanted == {"all"}:
        return ARMS
    if Arm.REAL not in wanted or wanted - set(ARMS):
        raise ConfigError(f"--arms must be all, or a list with {Arm.REAL} out of: {', '.join(ARMS)}")
    return tuple(arm for arm in ARMS if arm in wanted)
