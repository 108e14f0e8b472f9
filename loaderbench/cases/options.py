"""How options are declared and read, for the command line, study files and Python alike.

An option is a field with its help. Those of a study are fields of a case (cases/case.py); those of one command are
fields of the groups at the end of this file. Lists are comma separated as flags, and any sequence in Python; a single
value is a list of one.
"""

from __future__ import annotations

import dataclasses
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_origin

from loaderbench.cases.inputs import Shapes
from loaderbench.errors import ConfigError
from loaderbench.plain import type_hints
from loaderbench.printable import short

G = TypeVar("G")

RESULTS = "results"
"""The default folder of stored runs."""
EVERY_S = 600.0
"""How often a watched script's run is stored while it goes on, where nothing else is asked for."""
TUNE_BUDGET_S = 300.0
"""Seconds that `tune` may take where nothing else is asked for."""
COMPARE_ROUNDS = 3
"""How often `compare` measures both sides: two rounds leave one degree of freedom, an interval of 12.7 standard
errors."""


LARGEST = 10**18 - 1
"""Of whole numbers: more fits into no counter of 64 bits, and becomes an error somewhere else."""


def whole_number(text: str) -> int:
    """The whole number that a text is, with a sign or without. Raises ValueError for anything else, digits of other
    scripts and numbers beyond LARGEST among them."""
    if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text, re.ASCII) is None:
        raise ValueError
    return int(text)


def is_count(text: str) -> bool:
    """Whether a text is a whole number without a sign, as `whole_number` reads it."""
    return re.fullmatch(r"\d{1,18}", text, re.ASCII) is not None


class NoOption(ValueError):
    """A part of the given value cannot be read; the message is that part."""


class Words(tuple[str, ...]):
    """Names: `serial,threaded`."""

    wants = "names separated by commas"

    @classmethod
    def parse(cls, given: object) -> Words:
        """Raises ValueError for what is none."""
        if isinstance(given, str):
            return cls(part.strip() for part in given.split(","))
        return cls(map(str, _items(given)))


class Numbers(tuple[int, ...]):
    """Whole numbers: `1,2,4`."""

    wants = "whole numbers separated by commas"

    @classmethod
    def parse(cls, given: object) -> Numbers:
        """Raises ValueError for what is none."""
        if isinstance(given, str):
            return cls(whole_number(part) for part in given.split(","))
        items = list(_items(given))
        if any(isinstance(item, bool) or not isinstance(item, int) or abs(item) > LARGEST for item in items):
            raise ValueError
        return cls(items)


class Ratios(tuple[float, ...]):
    """Numbers: `0.1,0.5`."""

    wants = "numbers separated by commas"

    @classmethod
    def parse(cls, given: object) -> Ratios:
        """Raises ValueError for what is none."""
        parts = given.split(",") if isinstance(given, str) else _items(given)
        try:
            return cls(float(part) for part in parts)
        except OverflowError:
            raise ValueError from None


class Side(int):
    """Side of a square, or `full` (0)."""

    wants = "a whole number, or full"

    @classmethod
    def parse(cls, given: object) -> Side:
        """Raises ValueError for what is none."""
        side = 0 if given == "full" else whole_number(short(given))
        if side == 0 and given != "full":
            raise ValueError
        return cls(side)


class Size(int):
    """Bytes of files: `500M`, `20G`, or a number; `20GiB` in binary units."""

    wants = "a size such as 500M or 20G"

    @classmethod
    def parse(cls, given: object) -> Size:
        """Raises ValueError for what is none."""
        return cls(_bytes_of(given, 1000))


class Memory(int):
    """Bytes of memory, in binary units as memory is sold: `16G` is 16 GiB."""

    wants = "a size such as 16G or 500M"

    @classmethod
    def parse(cls, given: object) -> Memory:
        """Raises ValueError for what is none, and for 0."""
        return cls(_above_zero(_bytes_of(given, 1024)))


def _bytes_of(given: object, unit: int) -> float:
    """`unit`: what K stands for where it is not written as KiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?", str(given).strip())
    if match is None:
        raise ValueError
    power = ("", "K", "M", "G", "T").index(match[2].upper())
    number = float(match[1]) * math.pow(1024 if match[3] else unit, power)
    if number > LARGEST:
        raise ValueError
    return number


class Rate(float):
    """Something a second: `5000/s`, `120k/min`, `2.5M/h`."""

    wants = "a rate such as 5000/s, 90k/min or 300k/h"

    @classmethod
    def parse(cls, given: object) -> Rate:
        """Raises ValueError for what is none, and for 0."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMG]?)/(s|min|h)", str(given).replace(" ", ""))
        if match is None:
            raise ValueError
        times = 1000.0 ** ("", "K", "M", "G").index(match[2].upper())
        return cls(_above_zero(float(match[1]) * times / {"s": 1, "min": 60, "h": 3600}[match[3]]))


class Time(float):
    """Seconds: `50ms`, `0.2s`, `800us`."""

    wants = "a time such as 50ms or 0.2s"

    @classmethod
    def parse(cls, given: object) -> Time:
        """Raises ValueError for what is none, and for 0."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|µs|ms|s|min)", str(given).replace(" ", ""))
        if match is None:
            raise ValueError
        number = float(match[1])
        return cls(_above_zero(number * 60 if match[2] == "min" else number / {"s": 1, "ms": 1e3}.get(match[2], 1e6)))


@dataclass(frozen=True)
class Price:
    """What one machine costs an hour: `2.50/h`, `2.50`, `$2.50/h`, `2.50 EUR/h`."""

    wants: ClassVar[str] = "what the machine costs an hour, above 0: 2.50/h, '$2.50/h' (quoted) or 2.50 EUR/h"

    per_hour: float
    currency: str = ""
    """As it was given: a sign or a code of three letters; empty where none was."""
    currency_first: bool = False
    """Whether it stands before the number."""

    @classmethod
    def parse(cls, given: object) -> Price:
        """Raises ValueError for what is none, and for 0. A number that begins with its point is none either: a shell
        makes `.50/h` of an unquoted `$2.50/h`."""
        match = re.fullmatch(
            r"(?P<before>[^\W\d_]{3}|[^\w\s.,+-])?\s*(?P<number>\d{1,18}(?:\.\d{1,18})?)\s*"
            r"(?P<after>[^\W\d_]{3}|[^\w\s.,+/-])?\s*(?:/\s*(?:h|hour))?",
            str(given).strip(),
            re.ASCII,
        )
        if match is None or (match["before"] and match["after"]):
            raise ValueError
        currency = match["before"] or match["after"] or ""
        if len(currency) == 1 and unicodedata.category(currency) != "Sc":
            raise ValueError
        return cls(_above_zero(float(match["number"])), currency.upper(), bool(match["before"]))


def _above_zero(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError
    return value


class Pairs(dict[str, str]):
    """`key=value`, given once for each."""

    wants = "KEY=VALUE"

    @classmethod
    def parse(cls, given: object) -> Pairs:
        """Raises ValueError for what is none."""
        if isinstance(given, Mapping):
            return cls({str(key): str(value) for key, value in given.items()})
        pairs = cls()
        for text in [given] if isinstance(given, str) else _items(given):
            key, separator, value = str(text).partition("=")
            if not separator or not key:
                raise NoOption(text)
            pairs[key] = value
        return pairs


def _items(given: object) -> Iterable[Any]:
    if isinstance(given, list | tuple | set | range):
        return given
    return [given]


PARSED: tuple[Any, ...] = (Words, Numbers, Ratios, Side, Size, Memory, Rate, Time, Price, Pairs, Shapes)
"""Types that read texts themselves."""


MANY: Mapping[Any, Any] = {int: Numbers, float: Ratios, str: Words}
"""Type of a value → type of a list of such values."""
UNSET: Any = object()


@dataclass(frozen=True)
class Option:
    """How an option is read and explained, whether it comes as a flag, in a study file or from Python."""

    help: str
    """May hold `{words}` that the tables of plug-ins fill in (commands/options.py)."""
    default: Any
    """None: it depends on the other options."""
    many: bool = False
    """It may be a list; each value gives cases of its own."""
    kind: Any = None
    """Type of its value; None stands for the field's own."""
    name: str = ""
    """Its name, if that is not the field's."""
    metavar: str | None = None
    flag: str | None = None
    """What it is called on the command line, if that is not `--name`."""
    field: str = ""
    """The field that declares it."""


def option(help_text: str, default: Any = None, **declared: Any) -> Any:
    """Declare a field of a command's group as an option. `declared`: fields of Option."""
    return case_option(help_text, default, **declared)


def case_option(help_text: str, stored: Any = MISSING, *, asked: Any = UNSET, **declared: Any) -> Any:
    """Declare a field of a case as an option.

    Args:
        stored: the field's own default, for records that lack it; left out, the field is required.
        asked: the option's default, if that is not `stored`.
        declared: fields of Option.
    """
    default = asked if asked is not UNSET else None if stored is MISSING else stored
    metadata = {"option": Option(help_text, default, **declared)}
    if isinstance(stored, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=stored, metadata=metadata)


def options_of(group: type[Any]) -> list[Option]:
    """The options among the fields of a dataclass, in their order, with name, kind and field filled in."""
    found = []
    for one in dataclasses.fields(group):
        declared: Option | None = one.metadata.get("option")
        if declared is None:
            continue
        kind: Any = declared.kind or base_type(type_hints(group)[one.name])
        kind = str if get_origin(kind) is Literal else kind
        kind = MANY[kind] if declared.many else kind
        default = kind.parse(declared.default) if kind in PARSED and declared.default is not None else declared.default
        kind = kind if default is not None else kind | None
        found.append(replace(declared, name=declared.name or one.name, kind=kind, default=default, field=one.name))
    return found


def flag_of(name: str) -> str:
    """`batch_size` → `--batch-size`."""
    return f"--{name.replace('_', '-')}"


def base_type(kind: Any) -> Any:
    """The type of an option without the None that stands for its default."""
    members = [member for member in getattr(kind, "__args__", ()) if member is not type(None)]
    return members[0] if type(None) in getattr(kind, "__args__", ()) and len(members) == 1 else kind


def read(name: str, kind: Any, given: object) -> Any:
    """The value of the option `name`, from a flag's text or from Python. None stays None.

    Raises:
        ConfigError: it is not of that kind.
    """
    wanted = base_type(kind)
    if given is None and wanted is not kind:
        return None
    if wanted in PARSED:
        try:
            found = given if isinstance(given, wanted) else wanted.parse(given)
        except (ValueError, TypeError) as error:
            part = error.args[0] if isinstance(error, NoOption) else given
            raise ConfigError(f"{flag_of(name)} takes {wanted.wants}, not {_quoted(part)}") from None
        if found == ():
            raise ConfigError(f"{flag_of(name)} is empty: give it a value, or leave it out")
        return found
    accepted = {float: (int, float), Path: (str, Path), str: (str, int)}.get(wanted, (wanted,))
    if not isinstance(given, accepted) or (isinstance(given, bool) and wanted is not bool):
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
        raise ConfigError(f"{flag_of(name)} takes {words[wanted]}, not {_quoted(given)}")
    if isinstance(given, int) and abs(given) > LARGEST:
        raise ConfigError(f"{flag_of(name)} takes a number of at most 18 digits, not {_quoted(given)}")
    return wanted(given)


def _quoted(given: object) -> str:
    return repr(short(given)) if isinstance(given, str) else short(given)


def group(kind: type[G], given: Mapping[str, object]) -> G:
    """One group of options out of `given`; those that are not there take their defaults.

    Raises:
        ConfigError: a value is of another kind.
    """
    return kind(
        **{one.name: read(one.name, one.kind, given[one.name]) for one in options_of(kind) if one.name in given}
    )


# -- options of one command -----------------------------------------------------------------------------------


SHAPE_HELP = (
    "Shape of a sample: 3,224,224, or 512 for tokens; several inputs: 3,64,64+16, or a=3,64,64+b=16 for keywords  "
    "[default: {}]"
)
DTYPE_HELP = "{dtypes}; one, or one for each input  [default: float32]"
LOSS_HELP = "Your own loss, package.module:function, called with outputs and targets  [default: by the outputs' shape]"
OPTIMIZER_HELP = "sgd (with momentum), adam or adamw; in training"


@dataclass(frozen=True)
class ModelOptions:
    """What the commands under `loaderbench model` share."""

    mode: str = option("train or infer", "train")
    input_size: int | None = option("Side of the square input of the model  [default: 224; lenet 28]")
    input_shape: Shapes | None = option(SHAPE_HELP.format("3 channels; lenet 1"))
    input_dtype: Words | None = option(DTYPE_HELP)
    loss: str | None = option(LOSS_HELP)
    precision: str | None = option("{precisions}  [default: amp-bf16; fp32 on the CPU]")
    optimizer: str = option(OPTIMIZER_HELP, "sgd")
    device: str = option("auto (cuda, else cpu), {devices}", "auto")
    seed: int = option("Seed for weights and batches", 0)


@dataclass(frozen=True)
class PrecisionOptions:
    """What `loaderbench precision` is asked; None: the device's default."""

    model: str = option("{models}", "resnet50")
    mode: str = option("train or infer", "train")
    precisions: Words | None = option("Precisions, comma separated; fp32 always runs  [default: all]")
    steps: int | None = option("Steps to time, and the same number to compare with fp32  [default: 100; 30 on the CPU]")
    batch_size: int | None = option("Samples per step  [default: 64; 8 on the CPU]")
    input_size: int | None = option("Side of the images  [default: 224; 64 on the CPU]")
    input_shape: Shapes | None = option(SHAPE_HELP.format("side of square images"))
    input_dtype: Words | None = option(DTYPE_HELP)
    loss: str | None = option(LOSS_HELP)
    optimizer: str = option(OPTIMIZER_HELP, "sgd")
    loss_scale: str | None = option(
        "Loss scale for training in fp16: dynamic, or a whole number  [default: 128; amp-fp16: dynamic]"
    )
    device: str = option("auto (cuda, else cpu), cpu[:THREADS], cuda[:N], xpu[:N]", "auto")
    seed: int = option("Seed for weights and batches", 0)


@dataclass(frozen=True)
class SizeOptions:
    """What `loaderbench model size` is asked."""

    target: Rate | None = option("Image rate to reach: 5000/s, 300k/h", metavar="RATE")
    latency: Time | None = option("Longest step time allowed: 50ms, 0.2s", metavar="TIME")
    percentile: float = option("Percentile of the step times that --latency limits", 99.0)
    batch_size: Numbers | None = option("Batches to measure: 1,2,4  [default: doubled until a limit is reached]")
    max_batch: int | None = option("Largest batch to double to  [default: no limit]")
    steps: int | None = option("Steps to time per batch size, over all rounds  [default: as the time allows]")
    duration: float = option("Time limit for all batches, in seconds", 120.0)
    run: str | None = option("Stored loader run to join with  [default: the newest of this machine and data set]")
    data: Path | None = option("Data set to take the mean file size and the stored run from")
    mean_file_bytes: Size | None = option(
        "Mean file size: 110k  [default: from --data, or from the run]", metavar="SIZE"
    )


@dataclass(frozen=True)
class ForecastOptions:
    """What `loaderbench forecast` is asked."""

    images: int | None = option("Images per epoch  [default: those of the run's data set]")
    epochs: int = option("Number of epochs", 1)
    val_images: int | None = option("Images per validation  [default: no validation]")
    val_every: int = option("Epochs between validations", 1)
    val_run: str | None = option(
        "Stored run with --mode infer that gives its speed  [default: the newest of this setting]"
    )
    checkpoint_every: int | None = option("Epochs between checkpoints  [default: no checkpoints]")
    checkpoint_to: Path | None = option(
        "Folder for a few checkpoints that are written to time them  [default: --results]"
    )
    then: str | None = option(
        "Also forecast a change: workers=16, or a stored run of the new setting", metavar="CHANGE|RUN"
    )
    check: bool = option("Then run the epochs of the run's data set, and compare", False, flag="--check")
    on_this_machine: bool = option(
        "Use another machine's run as if it were from this one", False, flag="--on-this-machine"
    )


@dataclass(frozen=True)
class PriceOptions:
    """At what price the waiting of a run is told."""

    price: Price | None = option(
        "What the machine costs an hour, to say what waiting costs: 2.50/h, '$2.50/h', 2.50 EUR/h", metavar="PRICE"
    )


@dataclass(frozen=True)
class CapacityOptions:
    """What `loaderbench capacity` is asked."""

    au: float = option("Accelerator utilization to keep: a fraction", 0.9)
    max_ranks: int = option("Maximum number of ranks to try", 32)
    barrier: str = option("step (all ranks end each step together, as data-parallel training does) or none", "step")
    duration: float = option("Seconds to measure each number of ranks", 15.0)
    steps: int = option("Minimum steps for each number of ranks; MLPerf Storage requires 500", 10)
    seed: int = option("Seed for order and augmentation", 0)


@dataclass(frozen=True)
class WhatifOptions:
    """What `loaderbench whatif` is asked: at least one of them."""

    workers: int | None = option("Workers that prepare batches")
    prefetch: int | None = option("Batches prepared ahead, per worker")
    decoder: str | None = option("{decoders}, as far as the run probed it")
    device: str | None = option("An emulated device, such as emulated:a100, or the time of a step: 12ms")
    storage: str | None = option(
        "What the storage gives: 500M/s, 1.2GB/s, a factor such as 2x, or a stored run whose storage it is",
        metavar="RATE|RUN",
    )
    ranks: int | None = option("Ranks that train together, each of them this run, in step with each other")
