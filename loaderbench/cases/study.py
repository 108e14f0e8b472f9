"""The options of a study: their values, from the command line, a study file or Python, and the checks of them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from loaderbench.cases.case import OPTIONS, Case, Change, FieldValue
from loaderbench.cases.options import LARGEST, WhatifOptions, flag_of, is_count, options_of, read
from loaderbench.cases.toml import read_toml
from loaderbench.errors import ConfigError
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

LIMITS: Sequence[tuple[str, float, float]] = (
    ("batch_size", 1, MOST), ("prefetch", 1, MOST), ("steps", 2, MOST),
    ("warmup", 0, MOST), ("repeats", 1, MOST_REPEATS), ("max_bytes", 1, math.inf), ("seed", 0, MOST_SEED),
    ("io_threads", 0, MOST),
)  # fmt: skip
"""Option, and its smallest and largest value."""
MOST_CASES = 10_000
"""Of a study: a week of 60 s each. Counted before they are made."""
MIN_WORKER_LIMIT, WORKERS_PER_CPU = 256, 16
"""More workers than the larger of MIN_WORKER_LIMIT and WORKERS_PER_CPU × CPUs are refused: no figure would mean
anything."""
MOST_RANKS, MOST_PREFETCH = 4096, 1000
"""Of a what-if, which replays each rank: 4096 of them take 1 GB at most."""
SCALED_PRECISIONS = ("fp16", "pure-fp16", "amp-fp16")
"""Precisions that need a loss scale: small gradients underflow in fp16; bf16 has the range of fp32."""


LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "run": ("buffer_ratio",),
    "tune": (
        "arms", "steps", "duration", "ci_target", "max_bytes", "warmup", "repeats", "kernels", "io_threads",
        "buffer_ratio", "loader_option", "decoder_option", "loss_scale", "all_reduce",
    ),
    "compare": ("decode_scale", "io_threads", "buffer_ratio", "repeats", "all_reduce"),
    "capacity": (
        "arms", "ci_target", "max_bytes", "warmup", "repeats", "kernels", "max_failures", "buffer_ratio", "input_shape",
        "loss_scale", "overlap", "all_reduce",
    ),
}  # fmt: skip
"""Command → the options that it sets itself or has no use for."""


class StudyOptions(SimpleNamespace):
    """The value of each option of a study, by its name: a list if the option may be one, None if the default depends
    on the other options."""

    def changed(self, **changes: object) -> StudyOptions:
        """These values with some of them replaced.

        Raises:
            ConfigError: an unknown option, or a value of another kind.
        """
        return StudyOptions(**{**vars(self), **{name: vars(read_options(changes))[name] for name in changes}})

    def require_single(self, command: str, *names: str) -> None:
        """Raises ConfigError if one of these options is a list of several values."""
        for name in names:
            if len(vars(self)[name] or ()) > 1:
                raise ConfigError(f"{command} takes one {flag_of(name)}: use `loaderbench sweep` for a list")

    def require_one_process(self) -> None:
        """Raises ConfigError for an option that only several ranks can have."""
        if self.all_reduce is not None:
            raise ConfigError("--all-reduce needs several ranks: torchrun --nproc-per-node 2 -m loaderbench …")


def read_options(given: Mapping[str, object], *, of: str | None = None) -> StudyOptions:
    """The options of a study out of `given`; those that are not there take their defaults.

    `of`: the command that they are for, if it leaves some out.

    Raises:
        ConfigError: an unknown option, or a value of another kind.
    """
    known = [name for name in OPTIONS if of is None or name not in LEFT_OUT[of]]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigError(f"no option '{unknown[0]}'{f' of {of}' if of else ''}; there are: {', '.join(known)}")
    return StudyOptions(**{
        name: read(name, one.kind, given[name]) if name in given else one.default for name, one in OPTIONS.items()
    })  # fmt: skip


def read_study(path: Path) -> dict[str, object]:
    """The options of `sweep` that the table [study] of a TOML file gives, as its flags would; `dataset` among them.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or holds an unknown option.
    """
    tables: Any = read_toml(path, "study")
    if not isinstance(tables.get("study"), dict):
        raise ConfigError(f"{path} has no table [study], which has options of sweep: workers = [1, 2, 4]")
    given: dict[str, object] = {}
    for key, value in tables["study"].items():
        name = key.replace("-", "_")
        if name == "dataset":
            given[name] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        elif name in OPTIONS:
            try:
                given[name] = read(name, OPTIONS[name].kind, value)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from error
        else:
            close = difflib.get_close_matches(short(name), ("dataset", *OPTIONS), n=3)
            raise ConfigError(f"{path}: no option '{short(key)}'; close names: {', '.join(close) or 'none'}")
    return given


def check_number(*lengths: int) -> None:
    """Raises ConfigError if a study of every combination of these values has more than MOST_CASES cases."""
    number = math.prod(lengths)
    if number > MOST_CASES:
        counted = f"{number:,}" if number <= LARGEST else f"more than {LARGEST:,}"
        raise ConfigError(f"that is {counted} cases, and a study has {MOST_CASES:,} at most: give shorter lists")


def check_values(options: StudyOptions) -> None:
    """Raises ConfigError for a value out of range."""
    for name, least, most in LIMITS:
        value = vars(options)[name]
        check_range(flag_of(name), min(value) if isinstance(value, tuple) else value, least, most)
    if options.duration is not None:
        check_seconds("--duration", options.duration)
    if options.ci_target is not None and not 0 < options.ci_target < 1:
        raise ConfigError(f"--ci-target is a fraction such as 0.03, not {options.ci_target:g}")
    if not 0 <= options.max_failures <= 1:
        raise ConfigError(f"--max-failures is a fraction from 0 to 1, not {options.max_failures:g}")
    ratios = options.buffer_ratio or ()
    if any(not 0 < ratio <= 10 for ratio in ratios):
        raise ConfigError(
            f"--buffer-ratio takes numbers above 0 and up to 10, not {', '.join(map('{:g}'.format, ratios))}"
        )
    if ratios and options.max_bytes is not None:
        raise ConfigError("--buffer-ratio fills whole buffers, which --max-bytes would cut: leave one of them out")


def check_range(flag: str, value: float | None, least: float, most: float = MOST) -> None:
    """Raises ConfigError for a number below `least` or above `most`; None, which stands for a default, is neither."""
    if value is not None and value < least:
        given = f"{value:g}" if isinstance(value, float) else short(value)
        raise ConfigError(f"{flag} must be at least {least:g}, not {given}")
    if value is not None and value > most:
        raise ConfigError(f"{flag} must be at most {most:,.0f}")


def check_whatif(options: WhatifOptions) -> None:
    """Raises ConfigError where nothing is to change, or a number is out of range."""
    if options == WhatifOptions():
        *others, last = (flag_of(one.name) for one in options_of(WhatifOptions))
        raise ConfigError(f"say what to change: {', '.join(others)} or {last}")
    check_range("--workers", options.workers, 0)
    check_range("--prefetch", options.prefetch, 1, MOST_PREFETCH)
    check_range("--ranks", options.ranks, 2, MOST_RANKS)


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
        raise ConfigError("--loss-scale has no effect on an emulated device: leave it out")
    if not set(precisions) & set(SCALED_PRECISIONS):
        raise ConfigError(
            f"--loss-scale is for {', '.join(SCALED_PRECISIONS)}: {', '.join(precisions)} "
            f"{'keeps' if len(precisions) == 1 else 'keep'} fp32's range; leave it out"
        )


def other_options(case: Case) -> Change:
    """The options with which `run` measures a case again, without those of its feed: options whose default depends on
    others, and those that differ from their defaults."""
    step, effort = case.step, case.effort
    given: dict[str, FieldValue] = {
        "model": step.model, "mode": step.mode, "batch_size": step.batch_size, "input_size": step.input_size or "full",
        "overlap": step.overlap, "seed": effort.seed, "max_failures": effort.max_failure_fraction,
    }  # fmt: skip
    usual = {name: one.default[0] if one.many else one.default for name, one in OPTIONS.items() if name in given}
    changed = {name: value for name, value in given.items() if value != usual[name]}
    return {"cache": case.subject.cache, "device": step.device, "precision": step.precision, **changed}


def expected_seconds(case: Case) -> float:
    """Most seconds that the case will take, unless its process says otherwise before: the measuring time and what is
    promised beyond it, and the measuring time again for short runs, the first of which is not cut. Steps that were
    asked for without a time are measured however long they take: then it is what is usual."""
    short = 1.0 if case.feed.buffer_ratio is not None else 0.0
    return case.effort.duration_s * (1.0 + short) + PROMISED_S
