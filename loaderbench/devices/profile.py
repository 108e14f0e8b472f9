"""Profiles, from which emulated devices take their times: TOML files in which every constant states its origin."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaderbench.cases.case import MODES
from loaderbench.cases.toml import check_keys, read_toml
from loaderbench.devices.base import Asked, Chosen
from loaderbench.errors import ConfigError
from loaderbench.plain import JsonObject
from loaderbench.printable import short
from loaderbench.recording.output import write_output

if TYPE_CHECKING:
    from loaderbench.recording.record import RunRecord

DEFAULT_MACHINE = "h200"
"""The machine that `--device emulated` emulates by default."""
SHIPPED = Path(__file__).parent / "profiles"
"""A file for each machine, with a table for each of its profiles: one file a profile makes the wheel 36 kB larger."""
LABELS = ("measured", "published", "assumed", "interpolated")
"""What a file may call a constant: `published` is another's figure, not measured by loaderbench. A time derived from a
file may also be `extrapolated`."""
NO_ISSUE = "its profile lacks the host's time to issue a step"
FIELDS = (
    "device_name", "machine", "model", "mode", "precision", "input_size", "steps", "issue_ms", "tail_ms",
    "link_bytes_per_s", "memory_bytes",
)  # fmt: skip
STEP_FIELDS = ("batch_size", "duration_ms", "busy_ms")
CONSTANT_FIELDS = ("value", "label", "source")
"""What a file may hold; any other entry is refused."""
MOST_SIDE, MOST_BATCH, DAY_MS = 100_000, 10**9, 86.4e6
BOUNDS = {
    "duration_ms": (1e-6, DAY_MS), "busy_ms": (1e-6, DAY_MS), "issue_ms": (0, DAY_MS), "tail_ms": (0, DAY_MS),
    "link_bytes_per_s": (1, 1e15), "memory_bytes": (1, 1e15),
}  # fmt: skip
"""Constant → its least and its most value: a nanosecond and a day, a byte and a petabyte."""
LEAST_FACTOR, MOST_FACTOR = 1e-3, 1e3
"""Of a device's speed (`emulated:PROFILExF`)."""


@dataclass(frozen=True)
class Constant:
    """A number with its origin. The unit is in the name of whatever holds it."""

    value: float
    label: str
    source: str

    def to_json(self) -> JsonObject:
        return {"value": self.value, "label": self.label, "source": self.source}


@dataclass(frozen=True)
class StepTime:
    """One batch size of a profile."""

    batch_size: int
    duration_ms: Constant
    """Time from the first kernel's start to the last one's end when the host is always ahead."""
    busy_ms: Constant
    """Time in which kernels run, without the small gaps between them."""


@dataclass(frozen=True)
class Profile:
    """One machine running one model in one mode and precision."""

    name: str
    device_name: str
    machine: str
    model: str
    mode: str
    precision: str
    input_size: int
    """Side of the square images that the times were taken with."""
    steps: tuple[StepTime, ...]
    """At least one, in order of increasing batch size."""
    issue_ms: Constant | None
    """CPU time that the host spends to enqueue one step; None where nobody told: launches cannot be judged then."""
    tail_ms: Constant
    """Time from the last kernel's issue to its end."""
    link_bytes_per_s: Constant
    """Copy rate from pinned host memory to the device."""
    memory_bytes: Constant | None = None
    """Memory of the device that a program can use; None where the file does not say."""
    speed: float = 1.0
    """By which its times in `steps` are divided (`scaled`)."""

    def duration_ms(self, num_samples: int, input_size: float | None = None) -> Constant:
        """Device time of a step of `num_samples` images of `input_size`² pixels, with its label."""
        return self._at([(step.batch_size, step.duration_ms) for step in self.steps], num_samples, input_size)

    def busy_ms(self, num_samples: int, input_size: float | None = None) -> Constant:
        """Time of `duration_ms` in which a kernel runs."""
        return self._at([(step.batch_size, step.busy_ms) for step in self.steps], num_samples, input_size)

    @property
    def origin(self) -> str:
        """Where its times are from, in words."""
        published = any(step.duration_ms.label == "published" for step in self.steps)
        return "published, not measured here" if published else "measured elsewhere, once"

    @property
    def largest_batch(self) -> int:
        return self.steps[-1].batch_size

    def period_ms(self, num_samples: int, input_size: float | None = None) -> Constant:
        """Time from the end of a step to that of the next, steps issued back to back: the device's, but never less
        than the host takes to issue one, where that is known."""
        device = self.duration_ms(num_samples, input_size)
        if self.issue_ms is None or device.value >= self.issue_ms.value:
            return device
        return replace(self.issue_ms, source=f"the host's time to issue a step: {self.issue_ms.source}")

    def _at(self, points: Sequence[tuple[int, Constant]], num_samples: int, input_size: float | None) -> Constant:
        constant = _divided(_at_batch_size(points, num_samples), self.speed)
        if input_size is None or input_size == self.input_size:
            return constant
        ratio = (input_size / self.input_size) ** 2
        source = f"{constant.source}; times the pixel count's ratio to {self.input_size}², {ratio:.3g}"
        return Constant(constant.value * ratio, "extrapolated", source)


def _at_batch_size(points: Sequence[tuple[int, Constant]], num_samples: int) -> Constant:
    """Linear in ms between the points, proportional above the last, by the line of the first two below the first.

    A single point, or a line that would fall to zero or less, is scaled in proportion. The issue time (the
    launch floor) bounds a step with a tiny batch; it does not shrink with the batch.
    """
    for size, constant in points:
        if size == num_samples:
            return constant
    first, last = points[0], points[-1]
    if num_samples > last[0]:
        return _scaled(last, num_samples)
    if num_samples < first[0]:
        if len(points) > 1:
            value = _line(first, points[1], num_samples)
            if value > 0:
                source = f"line through batch {first[0]} and {points[1][0]}"
                return Constant(value, "extrapolated", source)
        return _scaled(first, num_samples)
    low, high = next(pair for pair in itertools.pairwise(points) if pair[0][0] < num_samples < pair[1][0])
    return Constant(_line(low, high, num_samples), "interpolated", f"between batch {low[0]} and {high[0]}")


def _line(low: tuple[int, Constant], high: tuple[int, Constant], num_samples: int) -> float:
    slope = (high[1].value - low[1].value) / (high[0] - low[0])
    return low[1].value + slope * (num_samples - low[0])


def _scaled(point: tuple[int, Constant], num_samples: int) -> Constant:
    value = point[1].value * num_samples / point[0]
    return Constant(value, "extrapolated", f"in proportion to batch {point[0]}")


def load(path: Path) -> Profile:
    """Read a profile file.

    Raises:
        ConfigError: the file is missing, is not TOML, or lacks or misuses an entry; names the entry.
    """
    return _profile(read_toml(path, "device profile"), path.stem, f"device profile {path}")


def _profile(record: Any, name: str, where: str) -> Profile:
    """Read a profile's table. Raises ConfigError if it lacks or misuses an entry; names `where` and the entry."""
    check_keys(record, FIELDS, where)
    try:
        steps = [_step(entry, where) for entry in record["steps"]]
        profile = Profile(
            name=name,
            device_name=_text(record["device_name"], "device_name"),
            machine=_text(record["machine"], "machine"),
            model=_text(record["model"], "model"),
            mode=_text(record["mode"], "mode"),
            precision=_text(record["precision"], "precision"),
            input_size=_whole(record["input_size"], "input_size", MOST_SIDE),
            steps=tuple(sorted(steps, key=lambda step: step.batch_size)),
            issue_ms=_constant(record["issue_ms"], "issue_ms", where) if "issue_ms" in record else None,
            tail_ms=_constant(record["tail_ms"], "tail_ms", where),
            link_bytes_per_s=_constant(record["link_bytes_per_s"], "link_bytes_per_s", where),
            memory_bytes=_constant(record["memory_bytes"], "memory_bytes", where) if "memory_bytes" in record else None,
        )
        _check(profile)
    except KeyError as error:
        raise ConfigError(f"{where} lacks the entry {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return profile


def _step(entry: Mapping[str, Any], where: str) -> StepTime:
    """Busy throughout where the entry does not tell."""
    check_keys(entry, STEP_FIELDS, f"{where}, steps")
    duration = _constant(entry["duration_ms"], "steps.duration_ms", where)
    busy = Constant(duration.value, "assumed", "the whole step: its gaps are unknown")
    if "busy_ms" in entry:
        busy = _constant(entry["busy_ms"], "steps.busy_ms", where)
    return StepTime(_whole(entry["batch_size"], "batch_size", MOST_BATCH), duration, busy)


def _constant(entry: Mapping[str, Any], name: str, where: str) -> Constant:
    if not isinstance(entry, dict):
        raise TypeError(f"{name} must be a table {{ value = …, label = …, source = … }}")
    check_keys(entry, CONSTANT_FIELDS, f"{where}, {name}")
    if entry["label"] not in LABELS:
        raise ValueError(f"{name} has the label '{short(entry['label'])}'; use one of {', '.join(LABELS)}")
    value, (least, most) = entry["value"], BOUNDS[name.removeprefix("steps.")]
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}, not {short(value)}")
    return Constant(float(value), entry["label"], _text(entry["source"], f"{name}.source"))


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, not {short(value)}")
    return value


def _whole(value: object, name: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 1 to {most:,}, not {short(value)}")
    return value


def _check(profile: Profile) -> None:
    sizes = [step.batch_size for step in profile.steps]
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError("steps needs at least one entry, each with its own batch_size")
    for step in profile.steps:
        if not step.busy_ms.value <= step.duration_ms.value:
            raise ValueError(f"batch size {step.batch_size} needs 0 < busy_ms ≤ duration_ms")


def from_record(record: RunRecord, path: Path) -> Profile:
    """The profile that a measured run on a GPU gives, added to what the file at `path` already holds.

    Times: of steps held back until all their work was enqueued (devices/cuda.py, `held_ns`). Link: the fastest of large
    pinned copies.

    Raises:
        ConfigError: the run was not on a GPU, lacks the arms `device` and `host`, or the file is of another profile.
    """
    device, compute = record.device, (record.capacities or {}).get("device")
    if device is None or device.kind != "cuda":
        raise ConfigError("--save-profile needs a real GPU: use --device cuda")
    if compute is None or not device.held_issue_s or record.transfer is None:
        raise ConfigError("--save-profile needs the arms device and host: give --arms all and a loader on the host")
    asked, size = record.case.step, record.case.step.input_size or record.case.subject.resolution
    if size is None:
        raise ConfigError("--save-profile needs images of one known size: give --res N, or --input-size N")
    packages = {} if record.environment is None else record.environment.packages
    when = f"loaderbench {packages.get('loaderbench', 'of an unknown version')}, {record.started_at[:10]}"

    def measured(value: float, how: str) -> Constant:
        return Constant(value, "measured", f"{how}; {when}")

    duration = measured(1e3 * asked.batch_size / compute.value, "steps enqueued ahead, CUDA events")
    busy = replace(duration, source=f"{duration.source}; includes gaps of about 1 µs between queued kernels")
    step = StepTime(asked.batch_size, duration, busy)
    made = Profile(
        name=path.stem,
        device_name=device.name,
        machine=path.stem.partition("-")[0],
        model=asked.model,
        mode=asked.mode,
        precision=asked.precision,
        input_size=size,
        steps=(step,),
        issue_ms=measured(1e3 * device.held_issue_s, "median host time to enqueue a step that was held back"),
        tail_ms=Constant(0.0, "assumed", "not measured: a kernel takes microseconds"),
        link_bytes_per_s=measured(record.transfer.ceiling_bytes_per_s, "fastest of 8 pinned copies of 64 MiB"),
        memory_bytes=None if device.memory_bytes is None else measured(device.memory_bytes, "the driver's total"),
    )
    if not path.is_file():
        return made
    kept = load(path)
    same = ("device_name", "model", "mode", "precision", "input_size")
    if any(getattr(kept, name) != getattr(made, name) for name in same):
        raise ConfigError(f"{path} is the profile of {kept.device_name} {kept.model} {kept.mode} {kept.precision}")
    others = [step_time for step_time in kept.steps if step_time.batch_size != asked.batch_size]
    return replace(made, steps=tuple(sorted((*others, step), key=lambda step_time: step_time.batch_size)))


def save(profile: Profile, path: Path) -> None:
    """Write the profile as `load` reads it. Raises ConfigError where the file cannot be written."""

    def text(constant: Constant) -> str:
        label, source = json.dumps(constant.label), json.dumps(constant.source)
        return f"{{ value = {constant.value!r}, label = {label}, source = {source} }}"

    plain = ("machine", "device_name", "model", "mode", "precision", "input_size")
    lines = [f"{name} = {json.dumps(getattr(profile, name))}" for name in plain]
    constants = ("issue_ms", "tail_ms", "link_bytes_per_s", "memory_bytes")
    lines += [f"{name} = {text(known)}" for name in constants if (known := getattr(profile, name)) is not None]
    for step in profile.steps:
        lines += ["", "[[steps]]", f"batch_size = {step.batch_size}"]
        lines += [f"{name} = {text(getattr(step, name))}" for name in ("duration_ms", "busy_ms")]
    write_output(path, ("\n".join(lines) + "\n").encode())


@functools.cache
def _shipped() -> Mapping[str, Profile]:
    """Name → profile that comes with the package, in order of their names."""
    tables = [(path, read_toml(path, "device profile")) for path in SHIPPED.glob("*.toml")]
    found = {name: _profile(table, name, f"{path}, {name}") for path, file in tables for name, table in file.items()}
    return dict(sorted(found.items()))


def shipped_names() -> list[str]:
    """Return the names of the profiles that come with the package."""
    return [*_shipped()]


def shipped() -> list[Profile]:
    """Return the profiles that come with the package, in order of their names."""
    return [*_shipped().values()]


def named(detail: str) -> Profile:
    """A shipped profile by its name, or the one in the TOML file that `detail` is the path of; `xF` behind it makes the
    device F times as fast (`scaled`).

    Raises:
        ConfigError: neither, or no such factor.
    """
    name, factor = split_factor(detail, shipped_names())
    if name.endswith(".toml"):
        return scaled(load(Path(name)), factor)
    if name not in shipped_names():
        machines = ", ".join(sorted({profile.machine for profile in shipped()}))
        raise ConfigError(
            f"no device profile '{short(detail)}'; there are profiles of {machines} (`loaderbench doctor` lists them); "
            "or give the path of a .toml file"
        )
    return scaled(_shipped()[name], factor)


def split_factor(detail: str, names: Collection[str]) -> tuple[str, float]:
    """(what is named, factor of its speed, 1 where there is none) of `NAME`, `NAMExF` or `FILE.tomlxF`. A name of
    `names` may have an x and digits itself.

    Raises ConfigError where the factor is no number from LEAST_FACTOR to MOST_FACTOR.
    """
    base, x, text = detail.rpartition("x")
    if detail in names or detail.endswith(".toml") or not x or not (base in names or base.endswith(".toml")):
        return detail, 1.0
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not LEAST_FACTOR <= factor <= MOST_FACTOR:
        raise ConfigError(
            f"emulated:{short(detail)}: the number after the last x must be a speed factor from "
            f"{LEAST_FACTOR:g} to {MOST_FACTOR:g}: {base}x2 is twice as fast"
        )
    return base, factor


def scaled(profile: Profile, factor: float) -> Profile:
    """The profile of a device that is `factor` times as fast. Its times are divided by the factor; the host that issues
    its steps, its link and its memory stay what they are."""
    if factor == 1:
        return profile
    return replace(
        profile,
        name=f"{profile.name}x{factor:g}",
        device_name=f"{profile.device_name} at {factor:g} times its speed",
        tail_ms=_divided(profile.tail_ms, factor),
        speed=factor,
    )


def _divided(constant: Constant, factor: float) -> Constant:
    if factor == 1:
        return constant
    source = f"{constant.source} ({constant.label}); divided by the factor {factor:g} that --device gives"
    return Constant(constant.value / factor, "assumed", source)


def for_mode(device: str, mode: str) -> str:
    """The resolved device text for another mode: an emulated device's profile is for one mode; other texts stay."""
    for one in MODES:
        device = device.replace(f"-{one}-", f"-{mode}-")
    return device


def choose(asked: Asked) -> Chosen:
    """The profile for `asked.detail` (a machine, a profile's name or a file, each with or without the factor of its
    speed) and the case's model.

    Raises:
        ConfigError: there is none, or it is for another model, mode or precision.
    """
    detail = asked.detail or DEFAULT_MACHINE
    known = shipped()
    name, factor = split_factor(detail, {*(one.machine for one in known), *(one.name for one in known)})
    suffix = "" if factor == 1 else f"x{factor:g}"
    if name in {profile.machine for profile in known}:
        chosen = _of_machine(name, asked, known)
        return Chosen(chosen.precision, chosen.name + suffix)
    chosen = named(name)
    wanted = (asked.model, asked.mode, asked.precision or chosen.precision)
    if wanted != (chosen.model, chosen.mode, chosen.precision):
        raise ConfigError(
            f"device profile '{chosen.name}' is for --model {chosen.model} --mode {chosen.mode} "
            f"--precision {chosen.precision}, not {' '.join(wanted)}"
        )
    return Chosen(chosen.precision, (str(Path(name).absolute()) if name.endswith(".toml") else chosen.name) + suffix)


class NoProfile(ConfigError):
    """No machine has times of that model and mode; another device may run it."""


def _of_machine(machine: str, asked: Asked, known: Sequence[Profile]) -> Profile:
    """Raises ConfigError where the machine has none for the model, which names those of the machine and of the model.
    Where no precision was asked for and the usual one has none, the only one that there is, is taken."""
    theirs = [profile for profile in known if profile.machine == machine]
    of_model = [one for one in theirs if (one.model, one.mode) == (asked.model, asked.mode)]
    precision = asked.precision or asked.default_precision
    if asked.precision is None and len(of_model) == 1:
        precision = of_model[0].precision
    for profile in of_model:
        if profile.precision == precision:
            return profile
    missing = f"no emulated profile of {machine} for {asked.model} {asked.mode} {precision}"
    if of_model:
        there = ", ".join(one.precision for one in of_model)
        raise ConfigError(f"{missing}; it has {there}: use --precision {of_model[0].precision}")
    others = [f"{one.machine} {one.mode} {one.precision}" for one in known if one.model == asked.model]
    elsewhere = f"{asked.model} has {', '.join(others)}" if others else f"no machine has {asked.model}"
    raise NoProfile(
        f"{missing}; {machine} has {contents(theirs)}; {elsewhere}; use your own times with --device emulated:FILE.toml"
    )


def contents(profiles: Sequence[Profile]) -> str:
    """What profiles hold, in words: their models by mode and precision."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in profiles:
        groups.setdefault((one.mode, one.precision), []).append(one.model)
    return ", ".join(f"{mode} {precision} ({', '.join(models)})" for (mode, precision), models in groups.items())
