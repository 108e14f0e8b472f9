"""Flags → cases. Pure planning: names are checked and contradictions refused before anything runs."""

from __future__ import annotations

import difflib
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from loaderbench.cases.arms import ARMS, parse_arms
from loaderbench.cases.case import (
    CACHE_STATES,
    DECODE_SCALES,
    DURATION_S,
    MODES,
    OUTPUTS,
    PRECISIONS,
    SHORT_RUN_STEPS,
    Case,
    Change,
    DecodeScale,
    Effort,
    Feed,
    FieldValue,
    Step,
    Subject,
)
from loaderbench.cases.options import GROUPS, LARGEST, NAMES, EffortOptions, StepOptions, is_count, read
from loaderbench.cases.toml import read_toml
from loaderbench.cases.traits import DecoderChoice, LoaderChoice
from loaderbench.errors import ConfigError
from loaderbench.plain import type_hints
from loaderbench.printable import short

T = TypeVar("T", bound=str)

PROMISED_S = 10.0
"""Most seconds beyond `--duration` from a command's start to its answer, unless it says before that it takes longer
(running/deadline.py)."""

MOST = 1e9
"""The largest number of anything: a run of so many steps of a millisecond takes eleven days."""
MOST_REPEATS = 1000
MOST_SIDE = 65_535
"""Pixels: what a JPEG file can hold."""
MOST_SEED = 2.0**63 - 1024
"""What PyTorch and numpy take, rounded down to a float."""
MOST_S = 30 * 86400.0
"""The longest time limit: nobody means more, and what was measured is stored once it ends."""

MOST_CASES = 10_000
"""Of a study: a week of 60 s each. Counted before they are made."""
MIN_WORKER_LIMIT, WORKERS_PER_CPU = 256, 16
"""More workers than the larger of MIN_WORKER_LIMIT and WORKERS_PER_CPU × CPUs are refused: no figure would mean
anything."""
SCALED_PRECISIONS = ("fp16", "pure-fp16", "amp-fp16")
"""Precisions that need a loss scale: small gradients underflow in fp16; bf16 has the range of fp32."""


@dataclass(frozen=True)
class Variant:
    """A data set's folder at one stored resolution."""

    path: str
    name: str
    resolution: int | None


@dataclass(frozen=True)
class Target:
    """What the batches are fed to."""

    model: str
    precision: str
    device: str
    """As the room `devices` resolved it."""
    computes: bool = True
    """False for a device on which nothing computes (an emulated one)."""


@dataclass(frozen=True)
class StudyRequest:
    """What the command line asks for; lists span a study."""

    variants: Sequence[Variant]
    loaders: Sequence[LoaderChoice]
    workers: Sequence[int] | None
    """None: as many as CPUs are usable."""
    targets: Sequence[Target]
    mode: str
    usable_cpus: int
    decoders: Sequence[DecoderChoice | None] = (None,)
    """None: the loader's own default."""
    output: str | None = None
    overlap: bool = True
    batch_sizes: Sequence[int] = (64,)
    prefetches: Sequence[int] = (2,)
    buffer_ratios: Sequence[float | None] = (None,)
    """Prefetch buffer ÷ iterations of short runs; each takes the place of `prefetches`. None: no short runs."""
    input_size: int | None = 224
    cache: str = "as-is"
    arms: Sequence[str] = ARMS
    """Names; with `real` among them."""
    warmup: int | None = None
    steps: int | None = None
    duration_s: float | None = None
    """None: DURATION_S; with `steps`, as long as they take."""
    ci_target: float = 0.03
    max_bytes: int | None = None
    repeats: int = 1
    kernels: bool = True
    loss_scale: str | None = None
    seed: int = 0
    max_failure_fraction: float = 0.01
    decode_scale: str | None = None
    """None: `off`, where the decoder can scale."""
    io_threads: int | None = None
    loader_options: Mapping[str, str] = field(default_factory=dict)
    decoder_options: Mapping[str, str] = field(default_factory=dict)
    scaling: Sequence[str] = ()
    """Decoders that can scale, loaders that read ahead, loaders that work in line: what the user is told to use."""
    reading_ahead: Sequence[str] = ()
    in_line: Sequence[str] = ()


def read_study(path: Path) -> dict[str, object]:
    """The options of `sweep` that the table [study] of a TOML file gives, as its flags would; `dataset` among them.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or holds an unknown option.
    """
    tables: Any = read_toml(path, "study")
    if not isinstance(tables.get("study"), dict):
        raise ConfigError(f"{path} has no table [study]; see docs/studies.md")
    given: dict[str, object] = {}
    for key, value in tables["study"].items():
        name = key.replace("-", "_")
        if name == "dataset":
            given[name] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        elif name in NAMES:
            try:
                given[name] = read(name, type_hints(GROUPS[NAMES[name]])[name], value)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from error
        else:
            close = difflib.get_close_matches(short(name), ("dataset", *NAMES), n=3)
            raise ConfigError(f"{path}: no option '{short(key)}'; close names: {', '.join(close) or 'none'}")
    return given


def plan(request: StudyRequest) -> list[Case]:
    """All cases of a study, repeats outermost so that each is spread over the whole time.

    The cases come in a random order, drawn by the seed anew for each repeat, so that a drift of the machine affects no
    setting more than others. The serial loader reduces the list of workers to one case; a loader that uses none of our
    decoders does so with the list of decoders.

    Raises:
        ConfigError: a value out of range, or a contradiction.
    """
    _check(request)
    check_number(
        request.repeats,
        *map(len, (request.variants, request.targets, request.decoders, request.batch_sizes, request.prefetches)),
        len(request.buffer_ratios),
        sum(len(_workers(request, loader)) for loader in request.loaders),
    )
    cases: list[Case] = []
    axes = (
        request.variants,
        request.targets,
        request.loaders,
        request.decoders,
        request.batch_sizes,
        request.prefetches,
        request.buffer_ratios,
    )
    for repeat in range(request.repeats):
        once = [
            _case(request, variant, target, loader, decoder, batch_size, prefetch, buffer_ratio, workers, repeat)
            for variant, target, loader, decoder, batch_size, prefetch, buffer_ratio in itertools.product(*axes)
            for workers in _workers(request, loader)
        ]
        _check_effect(request, once)
        unique = list({case.key: case for case in once}.values())
        random.Random(f"{request.seed} {repeat}").shuffle(unique)
        cases += unique
    return cases


def check_number(*lengths: int) -> None:
    """Raises ConfigError where a study of every combination of so many values would have more than MOST_CASES cases."""
    number = math.prod(lengths)
    if number > MOST_CASES:
        counted = f"{number:,}" if number <= LARGEST else f"more than {LARGEST:,}"
        raise ConfigError(f"that is {counted} cases, and a study has {MOST_CASES:,} at most: give shorter lists")


def _check_effect(request: StudyRequest, cases: Sequence[Case]) -> None:
    """Raises ConfigError for an option that changes no case."""
    if request.decode_scale is not None and not any(case.feed.decode_scale for case in cases):
        found = ", ".join(sorted({case.feed.decoder or f"{case.feed.loader} (decodes for itself)" for case in cases}))
        raise ConfigError(
            f"--decode-scale needs a decoder that can scale: {_or('decoder', request.scaling)}, not {found}"
        )
    if request.io_threads is not None and not any(loader.traits.reads_ahead for loader in request.loaders):
        found = ", ".join(loader.name for loader in request.loaders)
        raise ConfigError(f"--io-threads is for {_or('loader', request.reading_ahead)}, not {found}")


def _or(option: str, names: Sequence[str]) -> str:
    return " or ".join(f"--{option} {name}" for name in names)


def _check(request: StudyRequest) -> None:
    check_range("--batch-size", min(request.batch_sizes), 1)
    check_range("--prefetch", min(request.prefetches), 1)
    check_range("--input-size", request.input_size, 32, MOST_SIDE)
    check_range("--steps", request.steps, 2)
    check_range("--warmup", request.warmup, 0)
    check_range("--repeats", request.repeats, 1, MOST_REPEATS)
    check_range("--max-bytes", request.max_bytes, 1, math.inf)
    check_range("--seed", request.seed, 0, MOST_SEED)
    if request.duration_s is not None:
        check_seconds("--duration", request.duration_s)
    if not 0 < request.ci_target < 1:
        raise ConfigError(f"--ci-target is a fraction such as 0.03, not {request.ci_target:g}")
    if not 0 <= request.max_failure_fraction <= 1:
        raise ConfigError(f"--max-failures is a fraction from 0 to 1, not {request.max_failure_fraction:g}")
    check_range("--io-threads", request.io_threads, 0)
    check_choice("--decode-scale", request.decode_scale or "off", DECODE_SCALES)
    ratios = [ratio for ratio in request.buffer_ratios if ratio is not None]
    if any(not 0 < ratio <= 10 for ratio in ratios):
        raise ConfigError(
            f"--buffer-ratio takes numbers above 0 and up to 10, not {', '.join(map('{:g}'.format, ratios))}"
        )
    if ratios and request.max_bytes is not None:
        raise ConfigError("--buffer-ratio fills whole buffers, which --max-bytes would cut: leave one of them out")
    precisions = [target.precision for target in request.targets]
    check_loss_scale(request.loss_scale, precisions, request.mode, computes=request.targets[0].computes)
    parse_arms(request.arms)


def check_range(flag: str, value: float | None, least: float, most: float = MOST) -> None:
    """Raises ConfigError for a number below `least` or above `most`; None, which stands for a default, is neither."""
    if value is not None and value < least:
        given = f"{value:g}" if isinstance(value, float) else short(value)
        raise ConfigError(f"{flag} must be at least {least:g}, not {given}")
    if value is not None and value > most:
        raise ConfigError(f"{flag} must be at most {most:,.0f}")


def check_seconds(flag: str, seconds: float, least: float = 0.0) -> None:
    """Raises ConfigError for a time limit that is none."""
    if not (least <= seconds and 0 < seconds <= MOST_S):
        wanted = f"at least {least:g}" if least else "above 0"
        raise ConfigError(f"{flag} must be {wanted} seconds, and {MOST_S:.0f} (30 days) at most, not {seconds:g}")


def check_choice(flag: str, value: str, known: Sequence[T]) -> T:
    """`value`, if it is one of `known`. Raises ConfigError otherwise."""
    for one in known:
        if one == value:
            return one
    raise ConfigError(f"{flag} must be one of {', '.join(known)}, not '{short(value)}'")


def check_loss_scale(loss_scale: str | None, precisions: Sequence[str], mode: str, *, computes: bool) -> None:
    """Raises ConfigError for an invalid scale, or one that none of the precisions would use.

    `computes`: whether the device computes anything.
    """
    if loss_scale is None:
        return
    if loss_scale != "dynamic" and not (is_count(loss_scale) and int(loss_scale) >= 1):
        raise ConfigError(f"--loss-scale must be dynamic or a whole number of 1 or more, not '{short(loss_scale)}'")
    if mode != "train":
        raise ConfigError("--loss-scale is for training: leave it out, or give --mode train")
    if not computes:
        raise ConfigError("--loss-scale changes nothing on an emulated device, which computes nothing: leave it out")
    if not set(precisions) & set(SCALED_PRECISIONS):
        raise ConfigError(
            f"--loss-scale is for {', '.join(SCALED_PRECISIONS)}: {', '.join(precisions)} "
            f"{'keeps' if len(precisions) == 1 else 'keep'} fp32's range; leave it out"
        )


def _workers(request: StudyRequest, loader: LoaderChoice) -> list[int]:
    in_line = loader.traits.work == "in line"
    if request.workers is None:
        return [0 if in_line else request.usable_cpus]
    limit = max(MIN_WORKER_LIMIT, WORKERS_PER_CPU * request.usable_cpus)
    for workers in request.workers:
        if workers < 0:
            raise ConfigError(f"--workers must be 1 or more, not {workers}")
        if workers == 0 and not in_line:
            use = _or("loader", request.in_line)
            raise ConfigError(f"--workers 0 is for a loader in the main process: use {use}, not {loader.name}")
        if workers > limit:
            raise ConfigError(f"--workers {workers} is more than this machine can run: at most {limit} here")
    return [0] if in_line else list(request.workers)


def _case(
    request: StudyRequest,
    variant: Variant,
    target: Target,
    loader: LoaderChoice,
    decoder: DecoderChoice | None,
    batch_size: int,
    prefetch: int,
    buffer_ratio: float | None,
    workers: int,
    repeat: int,
) -> Case:
    if request.cache == "cold" and not loader.traits.can_be_cold:
        raise ConfigError(
            f"--cache cold cannot be kept or proven with the loader {loader.name}: use --cache as-is or warm"
        )
    return Case(
        Subject(variant.path, variant.name, variant.resolution, check_choice("--cache", request.cache, CACHE_STATES)),
        _feed(request, loader, decoder, workers, prefetch, buffer_ratio),
        Step(
            model=target.model,
            mode=check_choice("--mode", request.mode, MODES),
            precision=check_choice("--precision", target.precision, PRECISIONS),
            device=target.device,
            batch_size=batch_size,
            input_size=request.input_size,
            loss_scale=request.loss_scale if target.precision in SCALED_PRECISIONS else None,
            overlap=request.overlap,
        ),
        Effort(
            arms=parse_arms(request.arms),
            warmup=request.warmup,
            steps=request.steps,
            duration_s=DURATION_S if request.duration_s is None else request.duration_s,
            strict_duration=request.steps is not None and request.duration_s is not None,
            max_bytes=request.max_bytes,
            ci_target=request.ci_target,
            kernels=request.kernels,
            max_failure_fraction=request.max_failure_fraction,
            seed=request.seed,
            repeat=repeat,
        ),
    )


def _feed(
    request: StudyRequest,
    loader: LoaderChoice,
    decoder: DecoderChoice | None,
    workers: int,
    prefetch: int,
    buffer_ratio: float | None,
) -> Feed:
    if decoder is not None and all(one.traits.decodes != "ours" for one in request.loaders):
        does = "decodes for itself" if loader.traits.decodes == "own" else "decodes nothing"
        raise ConfigError(f"the loader {loader.name} {does}: leave --decoder out, or choose another --loader")
    chosen = None if loader.traits.decodes != "ours" else decoder or loader.decoder
    feed = Feed(
        loader=loader.name,
        decoder=None if chosen is None else chosen.name,
        workers=workers,
        prefetch=prefetch,
        output=check_choice("--output", request.output or loader.traits.output, OUTPUTS),
        decode_scale=_decode_scale(request, chosen),
        loader_options=_loader_options(request, loader),
        decoder_options=dict(request.decoder_options),
    )
    if buffer_ratio is None or workers == 0:  # without workers there is no buffer
        return feed
    num_batches = buffer_ratio * (request.steps or SHORT_RUN_STEPS)
    of_one = loader.traits.buffer_batches(replace(feed, prefetch=1))
    return replace(feed, buffer_ratio=buffer_ratio, prefetch=max(1, round(num_batches / of_one)))


def _decode_scale(request: StudyRequest, decoder: DecoderChoice | None) -> DecodeScale | None:
    if decoder is None or not decoder.traits.scales:
        return None
    if "scale" in request.decoder_options:
        if request.decode_scale is not None:
            raise ConfigError("give --decode-scale or --decoder-option scale, not both")
        return check_choice("--decoder-option scale", request.decoder_options["scale"], DECODE_SCALES)
    return check_choice("--decode-scale", request.decode_scale or "off", DECODE_SCALES)


def _loader_options(request: StudyRequest, loader: LoaderChoice) -> dict[str, str]:
    options = dict(request.loader_options)
    if request.io_threads is not None and loader.traits.reads_ahead:
        options["io_threads"] = str(request.io_threads)
    return options


def other_options(case: Case) -> Change:
    """What `run` is to be told of a case besides its feed, so that it measures it again: options without defaults of
    their own, and what differs from a default."""
    step, effort = case.step, case.effort
    given: dict[str, FieldValue] = {
        "model": step.model, "mode": step.mode, "batch_size": step.batch_size, "input_size": step.input_size or "full",
        "overlap": step.overlap, "seed": effort.seed, "max_failures": effort.max_failure_fraction,
    }  # fmt: skip
    usual = {**vars(StepOptions()), **vars(EffortOptions())}
    usual |= {name: one[0] for name, one in usual.items() if isinstance(one, tuple)}
    changed = {name: value for name, value in given.items() if value != usual[name]}
    return {"cache": case.subject.cache, "device": step.device, "precision": step.precision, **changed}


def expected_seconds(case: Case) -> float:
    """Most seconds that the case will take, unless its process says otherwise before: the measuring time and what is
    promised beyond it, and the measuring time again for short runs, the first of which is not cut. Steps that were
    asked for without a time are measured however long they take: then it is what is usual."""
    short = 1.0 if case.feed.buffer_ratio is not None else 0.0
    return case.effort.duration_s * (1.0 + short) + PROMISED_S
