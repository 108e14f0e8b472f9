"""What to run. A Case holds everything that may change a number, and nothing else, in four parts.

An option of a study is declared as the field that it sets: `case_option` gives its help, its default and whether it may
be a list. The command line, study files and Python read it from there, and studies/request.py makes cases of the lists.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from loaderbench import plain
from loaderbench.cases.arms import ARMS, Arm
from loaderbench.cases.options import (
    Numbers,
    Option,
    Pairs,
    Side,
    Size,
    Words,
    case_option,
    flag_of,
    option,
    options_of,
)
from loaderbench.plain import Json, JsonObject

CacheState = Literal["cold", "warm", "as-is"]
Mode = Literal["train", "infer", "unknown"]
"""`unknown`, as of precision: of a script that was only watched."""
Output = Literal["float32", "uint8"]
DecodeScale = Literal["auto", "off"]
Optimizer = Literal["sgd", "adam", "adamw"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "pure-bf16", "pure-fp16", "amp-bf16", "amp-fp16", "unknown"]
"""What each stores and computes in: docs/precision.md, `The modes`."""

CACHE_STATES: tuple[CacheState, ...] = get_args(CacheState)
MODES: tuple[Mode, ...] = get_args(Mode)[:-1]
OUTPUTS: tuple[Output, ...] = get_args(Output)
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
DECODE_SCALES: tuple[DecodeScale, ...] = get_args(DecodeScale)
SCALED: DecodeScale = "auto"
"""Large crops are decoded smaller."""
SAMPLES, DIRECT = "samples", "direct"
"""The loader option that says how PIL images become batches, and its value for straight into them."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)[:-1]
REFERENCE: Precision = "fp32"
"""With which `precision` compares the others."""
DURATION_S = 60.0
"""Of measuring a case, where nothing else is asked for."""
SHORT_RUN_STEPS = 100
"""Iterations of a short run and of a study's total times, unless `steps` gives them. From the study that this tool
follows (the 2019 slide deck on ResNet-50 and ImageNet: 100 iterations of each loader)."""

FieldValue = bool | int | float | str | None | Mapping[str, str]
Change = Mapping[str, FieldValue]
"""Fields of a case, whichever part they belong to → their new values."""


def flags(change: Change) -> str:
    """The change as options of the command line."""
    parts = []
    for name, value in change.items():
        flag = FLAGS.get(name, flag_of(name))
        if isinstance(value, Mapping):  # --loader-option KEY=VALUE, once for each
            parts += [f"{flag} {key}={one}" for key, one in value.items()]
        elif isinstance(value, bool):
            parts.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif value is not None:
            parts.append(f"{flag} {value}")
    return " ".join(parts)


LOADER_ARGUMENTS = {"workers": "num_workers", "prefetch": "prefetch_factor"}
"""Field of a case → what PyTorch's DataLoader calls it."""


def loader_arguments(change: Change) -> str:
    """The change as arguments of a DataLoader: `num_workers=4, prefetch_factor=8`."""
    parts = []
    for name, value in change.items():
        if isinstance(value, Mapping):
            parts += [f"{key}={one}" for key, one in value.items()]
        else:
            parts.append(f"{LOADER_ARGUMENTS.get(name, name)}={value}")
    return ", ".join(parts)


@dataclass(frozen=True)
class Subject:
    """What is read."""

    dataset: str
    """Absolute path of the image tree that is read (the variant's folder, not the set's)."""
    dataset_name: str
    """What the user called it."""
    resolution: int | None = case_option("Stored resolution: the data set's variant N", name="res", many=True)
    """Stored resolution (`--res`), None for a tree without variants."""
    cache: CacheState = case_option(
        "cold, warm or as-is  [default: cold where eviction can be proven, else as-is]", "as-is", asked=None, many=True
    )
    """State of the page cache that the files are read in."""
    shard: str | None = None
    """`2/4`: of the files, those with the numbers 2, 6, 10 …, counted from 0; None: all."""


@dataclass(frozen=True)
class Feed:
    """What turns files into batches."""

    loader: str = case_option(
        "{loaders}; `loaderbench doctor` lists those installed  [default: {default_loader}]", many=True
    )
    decoder: str | None = case_option("{decoders}  [default: {default_decoder}]", many=True)
    """None for a loader that decodes for itself or does not decode."""
    workers: int = case_option("Processes or threads  [default: usable CPUs]", many=True)
    """Processes or threads that prepare batches; 0 for the serial loader."""
    prefetch: int = case_option("Batches prepared ahead, per worker", 2, many=True)
    """Batches prepared ahead, per worker."""
    output: Output = case_option(
        "Pixels that the loader delivers: float32 or uint8  [default: {default_output}]", "float32", asked=None
    )
    """Pixel type that the loader delivers: float32 (normalized) or uint8 (normalized on the device)."""
    buffer_ratio: float | None = case_option(
        "Also measure short runs that start with a full buffer: its size ÷ their iterations, e.g. 0.1,0.5,1.0",
        None,
        many=True,
    )
    """Prefetch buffer ÷ iterations of short runs, which are then measured beside the arms; None: no short runs."""
    decode_scale: DecodeScale | None = case_option(
        "auto: decode large crops at 1/2, 1/4 or 1/8; for --decoder {scaling_decoders}  [default: off]", None
    )
    """`auto`: large crops are decoded at 1/2, 1/4 or 1/8, never below the sample's size; `off`: at full size. None:
    the decoder cannot scale."""
    loader_options: Mapping[str, str] = case_option(
        "KEY=VALUE for the loader; may be repeated", {}, asked=None, kind=Pairs, name="loader_option"
    )
    decoder_options: Mapping[str, str] = case_option(
        "KEY=VALUE for the decoder; may be repeated", {}, asked=None, kind=Pairs, name="decoder_option"
    )

    @property
    def setting(self) -> Change:
        """What tuning searches."""
        return {
            "loader": self.loader,
            "decoder": self.decoder,
            "output": self.output,
            "workers": self.workers,
            "prefetch": self.prefetch,
            "decode_scale": self.decode_scale,
            "loader_options": self.loader_options,
        }

    @property
    def all_decoder_options(self) -> Mapping[str, str]:
        """What the decoder is given, the scale too."""
        scale = {} if self.decode_scale is None else {"scale": self.decode_scale}
        return {**self.decoder_options, **scale}

    @property
    def lanes(self) -> int:
        """Batches that are prepared at once: one for each worker, one without workers."""
        return max(self.workers, 1)


@dataclass(frozen=True)
class Step:
    """What is done with a batch, and on what."""

    model: str = case_option("{models}", asked="resnet50", many=True)
    mode: Mode = case_option("train or infer", asked="train")
    precision: Precision = case_option("{precisions}  [default: amp-bf16; fp32 on the CPU]", many=True)
    device: str = case_option("auto, {devices}", asked="auto")
    """As `--device` was resolved; the room `devices` alone reads it."""
    batch_size: int = case_option("Samples per step", asked=64, many=True)
    input_size: int | None = case_option("Side of the square input of the model, or full", asked=224, kind=Side)
    """Side of the square the model sees; None (`full`) is the stored image uncropped."""
    loss_scale: str | None = case_option(
        "dynamic, or a whole number; training in fp16  [default: 128; amp-fp16: dynamic]", None
    )
    """`dynamic`, or a whole number by which the loss is multiplied; None: the precision's default."""
    overlap: bool = case_option("Copy batches on a separate stream while earlier steps compute", True)
    """Copies to the device run beside the compute of earlier steps, on a stream of their own."""
    optimizer: Optimizer = "sgd"
    """Of training: SGD with momentum keeps one value for each parameter, Adam and AdamW two."""
    channels: int = 3
    """Of the images that the model takes; loaders deliver 3."""
    inputs: str | None = None
    """What the model takes, where that is not one square float32 image (cases/inputs.py); None: `channels` and
    `input_size` say it."""
    loss: str | None = None
    """`package.module:function` of the user's own loss; None: workloads/objective.py chooses one."""
    all_reduce_bytes: int | None = case_option(
        "Under torchrun: also measure steps that end with an all-reduce of this size: 100M",
        None, kind=Size, name="all_reduce", metavar="SIZE",
    )  # fmt: skip
    """Several ranks also run windows whose every step ends with an all-reduce of so many bytes; None: they do not."""


@dataclass(frozen=True)
class Effort:
    """How long and how thoroughly to measure."""

    arms: tuple[Arm, ...] = case_option(
        "all, real, or a comma list of device,host,ram,real,free,fetch", ARMS, asked="all", kind=Words
    )
    warmup: int | None = case_option("Warm-up steps of each window  [default: until steady]", None)
    """Warm-up steps of each window; None: until the loader's queue is steady."""
    steps: int | None = case_option("Steps to measure in each arm; all of them unless --duration is given too", None)
    """Measured steps of each arm, whatever time they take; None: until `ci_target` or `duration_s`."""
    duration_s: float = case_option(
        "Measure a case for so many seconds at most  [default: a single case until its cause is decided, several until "
        "--ci-target; 60 s at most; with --steps no limit]",
        DURATION_S, asked=None, name="duration",
    )  # fmt: skip
    """Most seconds of measuring, all arms together. With `steps`, unless `strict_duration`, only what is usual."""
    strict_duration: bool = False
    """`duration_s` was asked for beside `steps`: it ends the run even where it leaves some of them."""
    max_bytes: int | None = case_option(
        "Read at most this much from the data set's storage: 500M, 20G …  [default: no limit]",
        None, kind=Size, metavar="SIZE",
    )  # fmt: skip
    """Limit on the bytes read from the data set's storage; None: no limit."""
    ci_target: float = case_option(
        "Measure until every step time is known to this 95 % half-width, a fraction of it  [default: 0.03]",
        0.03, asked=None,
    )  # fmt: skip
    """Stop when the 95 % half-width of every arm's step time is at most this fraction."""
    until_decided: bool = False
    """Stop as soon as the cause and the order of advice are decided (analysis/decided.py)."""
    kernels: bool = case_option("Trace a few steps after the arms, to find gaps between the device's kernels", True)
    """Trace a short window of steps after the arms, for the kernel gaps."""
    max_failure_fraction: float = case_option(
        "Fail a case if more than this fraction of its images cannot be decoded", 0.01, name="max_failures"
    )
    """More undecodable images than this fraction of those read fail the case."""
    seed: int = case_option("Seed for order and augmentation", 0)
    repeat: int = case_option(
        "Processes that measure each case; with several, the interval is over processes", 0, asked=1, name="repeats"
    )
    """Which of `--repeats` processes this is."""

    @property
    def is_limited(self) -> bool:
        """Whether `duration_s` ends the run. Steps that were asked for without it are all measured."""
        return self.steps is None or self.strict_duration


@dataclass(frozen=True)
class Case:
    """One configuration to measure. Its JSON form is flat, for scripts: field names are unique over the four parts."""

    subject: Subject
    feed: Feed
    step: Step
    effort: Effort = field(default_factory=Effort)

    @property
    def key(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON form."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """Short text for tables and progress lines."""
        subject, feed, step = self.subject, self.feed, self.step
        where = f"{subject.dataset_name}/{subject.resolution}" if subject.resolution else subject.dataset_name
        decoder = f"+{feed.decoder}" if feed.decoder else ""
        shard = f" shard {subject.shard}" if subject.shard else ""
        return f"{where} {feed.loader}{decoder} w{feed.workers} b{step.batch_size} {step.device}{shard}"

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> Case:
        """The case with these fields, whichever part they belong to."""
        return cls(**{
            name: kind(**{one: value for one, value in fields.items() if FIELDS[one] == name})
            for name, kind in PARTS.items()
        })  # fmt: skip

    def changed(self, **fields: Any) -> Case:
        """The case with these fields changed, whichever part they belong to.

        Raises:
            TypeError: no part has such a field.
        """
        if unknown := set(fields) - set(FIELDS):
            raise TypeError(f"a case has no field '{sorted(unknown)[0]}'")
        parts = {}
        for name in PARTS:
            mine = {key: value for key, value in fields.items() if FIELDS[key] == name}
            if mine:
                parts[name] = dataclasses.replace(getattr(self, name), **mine)
        return dataclasses.replace(self, **parts)

    def to_json(self) -> JsonObject:
        """Plain JSON types, all fields side by side; `from_json` is the inverse."""
        found: JsonObject = {}
        for name in PARTS:
            found |= plain.to_object(getattr(self, name))
        return found

    @classmethod
    def from_json(cls, value: JsonObject) -> Case:
        """The case of `to_json`'s form. Fields that this version does not know are dropped.

        Raises:
            PlainError: a field is missing or of another type.
        """
        return cls(**{name: plain.from_json(kind, value) for name, kind in PARTS.items()})

    @classmethod
    def json_schema(cls, definitions: JsonObject) -> JsonObject:
        """JSON Schema of `to_json`'s form."""
        properties: JsonObject = {}
        required: list[Json] = []
        for kind in PARTS.values():
            part = plain.schema_of(kind, definitions)
            properties |= part["properties"]  # type: ignore[arg-type]
            required += part.get("required", [])  # type: ignore[arg-type]
        description = "Everything asked for that may change a number."
        return {"type": "object", "description": description, "properties": properties, "required": required}


PARTS: Mapping[str, type[Any]] = {"subject": Subject, "feed": Feed, "step": Step, "effort": Effort}
FIELDS: Mapping[str, str] = {one.name: part for part, kind in PARTS.items() for one in dataclasses.fields(kind)}
"""Field → the part that holds it."""
assert len(FIELDS) == sum(len(dataclasses.fields(kind)) for kind in PARTS.values()), "the JSON form is flat"


@dataclass(frozen=True)
class Shorthand:
    """Options that are part of another field of the case."""

    io_threads: int | None = option(
        "Threads that only read, ahead of the workers; for --loader {ahead_loaders}  [default: 0]"
    )
    """One of the `loader_options`."""
    input_shape: Numbers | None = option("Input shape of your own model: 3,224,224  [default: of square images]")
    """Gives the `input_size`."""


OPTIONS: Mapping[str, Option] = {
    one.name: one for group in (Subject, Feed, Step, Shorthand, Effort) for one in options_of(group)
}
"""Name → option of a study; names are unique."""
FLAGS: Mapping[str, str] = {one.field: flag_of(name) for name, one in OPTIONS.items()}
"""Field → its flag."""
