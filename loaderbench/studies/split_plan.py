"""What `loaderbench model split` asks for: the members with their devices, and the table of their times."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from loaderbench.cases.case import Precision, Step
from loaderbench.cases.inputs import image_side, sample_bytes, table_shape
from loaderbench.cases.options import ModelOptions, Time, is_count
from loaderbench.cases.study import check_range
from loaderbench.devices.base import KnownTimes
from loaderbench.devices.select import known_times, profile_link, traits_of
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.machine import environment, usable_cpus
from loaderbench.printable import short
from loaderbench.recording.split_times import SplitTime, TableSubject
from loaderbench.splitting.table import TimesTable, drop, extend, machine_of, path_of, read
from loaderbench.studies.model import ModelPlan, plan_model

if TYPE_CHECKING:
    from loaderbench.recording.facts import Environment

LEAST_TURNS, TURNS = 1, 10
EXAMPLES = ("cpu,cuda:0", "cpu:1,cpu:1", "cpu:1,emulated")
"""Devices that errors propose, where they are here."""
FLOAT_BYTES, LABEL_BYTES = 4, 8
"""Of a value of an image, and of its label, which travel to the device."""


@dataclass(frozen=True)
class MemberPlan:
    """One device with its own process."""

    step: Step
    """Of the whole batch."""
    on_host_cpus: bool
    computes: bool
    times: KnownTimes | None
    """None: they are measured."""
    link_bytes_per_s: float = 0.0
    """Where the times are known."""

    @property
    def device(self) -> str:
        """As the table names it."""
        return self.step.device

    def known_seconds(self, size: int) -> float:
        """Time of a part of this size by the profile: the copy of the images, then the step. Only where it is known."""
        assert self.times is not None
        image_bytes = sample_bytes(self.step) + LABEL_BYTES
        copy_s = size * image_bytes / self.link_bytes_per_s
        return copy_s + self.times.period_ms(size, image_side(self.step)).value / 1e3


@dataclass(frozen=True)
class SplitPlan:
    """What is to be split, and over what."""

    model: str
    precision: Precision
    input_size: int | None
    channels: int
    inputs: str | None
    batch_size: int
    seed: int
    num_turns: int
    """At least."""
    may_go_on: bool
    """Whether more turns may follow while they are short."""
    remeasure: bool
    members: tuple[MemberPlan, ...]
    environment: Environment
    subject: TableSubject
    table: Path

    @property
    def devices(self) -> tuple[str, ...]:
        """Of the members, in their order."""
        return tuple(member.device for member in self.members)

    def beside(self, member: int, active: Sequence[int]) -> tuple[str, ...]:
        """The devices beside a member, where these members work: as the table names a company."""
        return tuple(sorted(self.devices[one] for one in active if one != member))


def plan_split(
    model: str,
    options: ModelOptions,
    batch_size: int,
    results: Path,
    *,
    turns: int | None = None,
    remeasure: bool = False,
    least_members: int = 2,
) -> SplitPlan:
    """What the options ask for: inference of the model on a batch over the devices of `--device A,B,…`.

    Raises:
        ConfigError: no such device, one twice, more threads than CPUs, a batch smaller than the members, a value out
            of range, or a contradiction.
    """
    texts = _named(options.device)
    if len(texts) < least_members or "auto" in texts:
        raise ConfigError(f"--device needs at least two devices, each by its name{_such_as(model, options)}")
    check_range("--turns", turns, LEAST_TURNS)
    check_range("--batch-size", batch_size, 0)
    if batch_size < len(texts):
        raise ConfigError(
            f"--batch-size {batch_size} is less than the number of devices, {len(texts)}: give at least one "
            "image for each"
        )
    try:
        planned = _planned(model, options, texts)
    except ConfigError as error:
        if not isinstance(error.__cause__, UnavailableError):
            raise
        raise ConfigError(f"{error}: use other devices{_such_as(model, options)}") from error
    step = planned[0].step
    found = environment()
    subject = TableSubject(model, "infer", step.precision, table_shape(step), machine_of(found))
    return SplitPlan(
        model=model,
        precision=step.precision,
        input_size=step.input_size,
        channels=step.channels,
        inputs=step.inputs,
        batch_size=batch_size,
        seed=planned[0].seed,
        num_turns=TURNS if turns is None else turns,
        may_go_on=turns is None,
        remeasure=remeasure,
        members=tuple(_member(one, batch_size) for one in planned),
        environment=found,
        subject=subject,
        table=path_of(results, subject),
    )


def _planned(model: str, options: ModelOptions, texts: Sequence[str]) -> list[ModelPlan]:
    """The members' steps, of batch 1. Raises ConfigError as plan_split."""
    texts = _with_threads(texts)
    asked = replace(options, mode="infer", precision=options.precision or _precision(texts))
    planned = [plan_model(model, replace(asked, device=text), instead=()) for text in texts]
    _check_twice([one.step.device for one in planned])
    return planned


def _such_as(model: str, options: ModelOptions) -> str:
    """Devices here that the model could be split over, as the end of a sentence; nothing where there are none."""
    for devices in EXAMPLES:
        with contextlib.suppress(ConfigError):
            _planned(model, options, _named(devices))
            return f", such as --device {devices}"
    return ""


def _named(devices: str) -> list[str]:
    """The texts of `--device A,B,…`."""
    return [text.strip() for text in devices.split(",") if text.strip()]


def _member(planned: ModelPlan, batch_size: int) -> MemberPlan:
    step = replace(planned.step, batch_size=batch_size)
    times = known_times(step.device)
    link = 0.0 if times is None else profile_link(step.device)[0]
    return MemberPlan(step, planned.device.on_host_cpus, planned.device.computes, times, link)


def _precision(texts: Sequence[str]) -> str:
    """The default of all members: that of the host's processors, where one is them, else that of the first."""
    traits = [traits_of(text) for text in texts]
    return next((one for one in traits if one.on_host_cpus), traits[0]).precision


def _with_threads(texts: Sequence[str]) -> list[str]:
    """The devices, each of the host's processors with its threads: one without gets all that the others leave. A device
    with processors of its own has a thread on the host that feeds it.

    Raises:
        ConfigError: more threads than CPUs.
    """
    usable = usable_cpus()
    on_host = [text for text in texts if traits_of(text).on_host_cpus]
    given = [text for text in on_host if text.partition(":")[2]]
    bare = [text for text in on_host if not text.partition(":")[2]]
    if len(bare) > 1:
        raise ConfigError(f"--device names {bare[0]} twice: give each its threads, e.g. {bare[0]}:1,{bare[0]}:1")
    needed = sum(int(text.partition(":")[2]) for text in given if is_count(text.partition(":")[2]))
    if needed + len(bare) > usable:
        asked = ",".join(on_host)
        raise ConfigError(f"--device {asked} needs {needed + len(bare)} CPUs, and {usable} are usable here: use fewer")
    left = max(1, usable - needed - (len(texts) - len(on_host)))
    return [f"{text}:{left}" if text in bare else text for text in texts]


def _check_twice(devices: Sequence[str]) -> None:
    """Raises ConfigError for a device that is named twice; the host's processors may be, with threads of their own."""
    for device, number in Counter(devices).items():
        if number > 1 and not traits_of(device).on_host_cpus:
            raise ConfigError(f"--device names {device} twice: give each device once")


# -- the table by hand -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SetTime:
    """An entry that the user gives."""

    device: str
    batch_size: int
    seconds: float


def edit_table(
    model: str, options: ModelOptions, results: Path, to_set: Sequence[str], to_drop: Sequence[str]
) -> TimesTable:
    """The table of the model's times, with these set (`read_set`) and these dropped (`read_place`).

    A time that is set is that beside the other devices of `--device`; alone, where none is given.

    Raises:
        ConfigError: no such place, device or model, or the table cannot be read or written.
    """
    given = [read_set(text) for text in to_set]
    dropped = [read_place(text) for text in to_drop]
    if options.device in ("", ModelOptions.device):
        options = replace(options, device="cpu:1")
    texts = _named(options.device)
    plan = plan_split(model, options, len(texts), results, least_members=1)
    named = {**dict(zip(texts, plan.devices, strict=True)), **{one: one for one in plan.devices}}
    table = read(plan.table, plan.subject)
    for device, batch_size in dropped:
        table = drop(plan.table, plan.subject, named.get(device, device), batch_size)
    entries = []
    for one in given:
        device = named.get(one.device, one.device)
        if traits_of(device).times is not None:
            raise ConfigError(
                f"--set {one.device}: an emulated device takes its times from its profile, not from the table"
            )
        beside = list(plan.devices)
        if device in beside:
            beside.remove(device)
        elif len(beside) > 1:
            raise ConfigError(f"--set {one.device} is not in --device {options.device}")
        else:
            beside = []
            device = _alone(model, replace(options, precision=plan.precision), device, results)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        entries.append(
            SplitTime(device, one.batch_size, one.seconds, beside=tuple(beside), origin="set by hand", date=date)
        )
    return extend(plan.table, plan.subject, entries, over=True) if entries else table


def _alone(model: str, options: ModelOptions, device: str, results: Path) -> str:
    """The device that `--set` names without the others, as the table names it.

    Raises:
        ConfigError: there is none, or it is the host's processors without their threads.
    """
    if traits_of(device).on_host_cpus and not device.partition(":")[2]:
        raise ConfigError(f"--set {device} needs a number of threads, e.g. {device}:1")
    return plan_split(model, replace(options, device=device), 1, results, least_members=1).devices[0]


def read_set(text: str) -> SetTime:
    """`cuda:0,64=12.1ms`; a plain number is in milliseconds. Raises ConfigError for anything else."""
    place, _, time = text.rpartition("=")
    device, batch_size = read_place(place)
    try:
        seconds = Time.parse(time if time.strip()[-1:].isalpha() else f"{time.strip()}ms")
    except ValueError:
        seconds = None
    if seconds is None or batch_size is None or not device:
        raise ConfigError(f"--set needs DEVICE,BATCH=MS, e.g. cuda:0,64=12.1, not {short(text)!r}")
    return SetTime(device, batch_size, float(seconds))


def read_place(text: str) -> tuple[str, int | None]:
    """(device, batch size) of `cuda:0,64`, or of `cuda:0` alone. Raises ConfigError for a batch that is none."""
    device, comma, number = text.strip().partition(",")
    if comma and not (is_count(number.strip()) and int(number) > 0):
        raise ConfigError(f"{short(text)!r} has no batch size: give DEVICE,BATCH, e.g. cuda:0,64")
    return device.strip(), int(number) if comma else None
