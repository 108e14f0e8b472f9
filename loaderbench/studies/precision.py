"""`loaderbench precision`: one model in every precision, side by side: time, memory, and how far it strays from fp32.

Each mode has a process of its own, in which steps are timed first and the numbers followed after that
(running/precision.py). docs/precision.md defines every figure.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.agreement import inference_agreement, training_agreement
from loaderbench.analysis.statistics import Blocks, blocks_of, draws_of_mean, interval
from loaderbench.cases.case import PRECISIONS, Case
from loaderbench.cases.study import (
    SCALED_PRECISIONS,
    StudyRequest,
    Target,
    Variant,
    check_choice,
    check_loss_scale,
    plan,
)
from loaderbench.devices.select import num_visible_gpus, parse_device
from loaderbench.errors import CaseFailed, ConfigError, UnavailableError
from loaderbench.machine import environment
from loaderbench.recording.types import Caveat, Estimate
from loaderbench.running.supervisor import Child, JobFailed

REFERENCE = "fp32"
NUM_STEPS, BATCH_SIZE, INPUT_SIZE = 100, 64, 224
CPU_NUM_STEPS, CPU_BATCH_SIZE, CPU_INPUT_SIZE = 30, 8, 64
"""Defaults on the CPU, where a step of the GPU's size would take a minute."""
OTHER_ROUNDING = "1000"
"""A loss scale under which fp32's weights move as without, but for the last bits: it is no power of two."""
NUM_BLOCKS = 10
"""Blocks of consecutive steps that the intervals rest on."""

Say = Callable[[str, bool], None]
"""Takes a line, and whether it is to stay (or is replaced by the next)."""


def plan_precision(
    *,
    model: str,
    mode: str,
    device: str,
    precisions: Sequence[str],
    num_steps: int | None,
    batch_size: int | None,
    input_size: int | None,
    loss_scale: str | None,
    seed: int,
) -> tuple[list[Case], str | None]:
    """The cases, fp32's first (it is added where it was not asked for), and a sentence for the user or None.

    Raises:
        ConfigError: a value out of range, a contradiction, or a device that does not compute.
        UnavailableError: CUDA was asked for by name, and there is none.
    """
    if device.partition(":")[0] == "emulated":
        raise ConfigError(
            "an emulated device computes nothing, so precisions cannot be compared: use --device cuda or cpu"
        )
    if device.partition(":")[0] == "cuda" and not num_visible_gpus():
        raise UnavailableError("no NVIDIA GPU here: use --device cpu")
    for name in precisions:
        check_choice("--precisions", name, PRECISIONS)
    on_cpu = device == "cpu" or (device == "auto" and not num_visible_gpus())
    num_steps = num_steps if num_steps is not None else CPU_NUM_STEPS if on_cpu else NUM_STEPS
    batch_size = batch_size if batch_size is not None else CPU_BATCH_SIZE if on_cpu else BATCH_SIZE
    input_size = input_size if input_size is not None else CPU_INPUT_SIZE if on_cpu else INPUT_SIZE
    choice = parse_device(
        "cpu" if on_cpu else "cuda" if device == "auto" else device,
        model=model,
        mode=mode,
        precision=REFERENCE,
        batch_size=batch_size,
    )
    check_loss_scale(loss_scale, precisions, mode, choice.device)
    (template,) = plan(
        StudyRequest(
            variants=[Variant("", "random batches", None)], loaders=["synthetic"], workers=[1], usable_cpus=1,
            targets=[Target(model, REFERENCE, choice.device)], mode=mode, batch_sizes=[batch_size],
            input_size=input_size, steps=num_steps, seed=seed,
        )
    )  # fmt: skip
    note = None
    if on_cpu:
        found = "" if device == "cpu" else "No NVIDIA GPU here: "
        note = (
            f"{found}{num_steps} steps run on the CPU, {batch_size} images of {input_size}×{input_size} each; "
            "how long it takes is told once the first steps are done."
        )
    return [
        replace(template, precision=name, loss_scale=loss_scale if name in SCALED_PRECISIONS else None)
        for name in dict.fromkeys((REFERENCE, *precisions))
    ], note


@dataclass
class Mode:
    """What came of one precision."""

    case: Case
    status: str = "interrupted"
    """`ok`, `failed` or `skipped` once it is over."""
    failure: tuple[str, str] | None = None
    """(kind, message)"""
    timing: dict[str, Any] | None = None
    """What running.precision.time_steps returned."""
    numbers: dict[str, Any] | None = None
    """What running.precision.follow_steps returned."""


@dataclass
class PrecisionStudy:
    """All modes of one model. What is finished stays, whatever ends `run`."""

    cases: Sequence[Case]
    modes: list[Mode] = field(default_factory=list)
    device: dict[str, Any] | None = None
    repeat: dict[str, Any] | None = None
    """fp32's numbers a second time, rounded otherwise: how far training carries a difference of the last bits."""
    caveats: list[Caveat] = field(default_factory=list)

    def run(self, say: Say) -> None:
        """Run every case in turn. A mode that the device lacks, or that fails, is kept with its reason.

        Raises:
            ConfigError: the model, or its images, cannot be run in any mode.
            UnavailableError, CaseFailed: the device does not start.
        """
        with tempfile.TemporaryDirectory(prefix="loaderbench-precision-") as folder:
            log = Path(folder, "worker.log")
            precisions = [case.precision for case in self.cases]
            lacking = self._examine(precisions, log)
            progress = _Progress(say, [name for name in precisions if name not in lacking])
            for case in self.cases:
                mode = Mode(case)
                self.modes.append(mode)
                reason = lacking.get(case.precision)
                if reason is not None:
                    mode.status, mode.failure = "skipped", ("UnavailableError", reason)
                    continue
                self._measure(mode, log, progress)
                if mode.case.precision == REFERENCE and mode.status == "ok":
                    self._repeat(case, log, progress)
                progress.finish(mode)

    def _examine(self, precisions: Sequence[str], log: Path) -> dict[str, str]:
        """The precisions that the device lacks, and why."""
        try:
            with Child(log) as child:
                facts = child.ask("examine_device", self.cases[0], _ignore, precisions=precisions)
        except JobFailed as error:
            kinds = {"ConfigError": ConfigError, "UnavailableError": UnavailableError}
            raise kinds.get(error.kind, CaseFailed)(error.message) from error
        self.device = facts["device"]
        return dict(facts["unavailable"])

    def _measure(self, mode: Mode, log: Path, progress: _Progress) -> None:
        num_steps = mode.case.steps
        try:
            with Child(log) as child:
                progress.begin(mode.case, "timing", 0.0)
                mode.timing = child.ask("time_steps", mode.case, progress.message, num_steps=num_steps)
                progress.begin(mode.case, "following the numbers", 0.5)
                mode.numbers = child.ask("follow_steps", mode.case, progress.message, num_steps=num_steps)
            mode.status = "ok"
        except JobFailed as error:
            if error.kind == "ConfigError":  # the request is wrong in every mode
                raise ConfigError(error.message) from error
            mode.status = "skipped" if error.kind == "UnavailableError" else "failed"
            mode.failure = (error.kind, error.message)

    def _repeat(self, case: Case, log: Path, progress: _Progress) -> None:
        progress.begin(case, "following the numbers once more", 0.5)
        try:
            with Child(log) as child:
                again = replace(case, loss_scale=OTHER_ROUNDING)
                self.repeat = child.ask("follow_steps", again, progress.message, num_steps=case.steps)
        except JobFailed as error:
            message = f"fp32 could not be followed a second time ({error.message}): its own spread is unknown"
            self.caveats.append(Caveat("fp32_repeat_not_measured", message))

    def to_json(self) -> dict[str, Any]:
        """The whole result: the figures of docs/precision.md with the raw values that they come from."""
        case = self.cases[0]
        fp32 = self.modes[0] if self.modes else None
        caveats = list(self.caveats)
        if fp32 is None or fp32.timing is None:
            caveats.append(Caveat("fp32_not_measured", "fp32 did not run, so nothing can be compared with it"))
        on_cpu = case.device == "cpu"
        if on_cpu:
            message = "memory is the growth of the process's peak resident set: the CPU has none of its own"
            caveats.append(Caveat("memory_is_rss", message))
        unknown = {mode.timing["memory"]["missing"].get("process_bytes") for mode in self.modes if mode.timing}
        caveats += [Caveat("process_memory_not_measured", reason) for reason in unknown - {None} if not on_cpu]
        result: dict[str, Any] = _finite(
            {
                "model": case.model,
                "mode": case.mode,
                "device": self.device or {"name": case.device},
                "num_steps": case.steps,
                "batch_size": case.batch_size,
                "input_size": case.input_size,
                "seed": case.seed,
                "environment": environment(),
                "memory_of": "rss_growth_bytes" if on_cpu else "allocated_bytes",
                "modes": [{**_measured(mode, fp32), "agreement": self._agreement(mode)} for mode in self.modes],
                "caveats": [{"code": one.code, "message": one.message} for one in caveats],
            }
        )
        return result

    def _agreement(self, mode: Mode) -> dict[str, Any] | None:
        """A mode's numbers held against fp32's, its own being those rounded otherwise. None where either is missing."""
        fp32 = self.modes[0]
        mine = self.repeat if mode is fp32 else mode.numbers
        if fp32.numbers is None or mine is None:
            return None
        if mode.case.mode == "infer":
            return inference_agreement(mine["outputs"], fp32.numbers["outputs"])
        if mode is fp32:
            return {**training_agreement(mine, fp32.numbers), "agrees": None}  # it is the yardstick
        own = None if self.repeat is None else training_agreement(self.repeat, fp32.numbers)["loss_deviation"]["mean"]
        return training_agreement(mine, fp32.numbers, own or 0.0)


class _Progress:
    """Lines with the time left, from the part of all work that is done (a mode: half timing, half following)."""

    def __init__(self, say: Say, precisions: Sequence[str]) -> None:
        self._say, self._num_modes = say, len(precisions)
        self._begun = time.monotonic()
        self._num_done, self._before, self._line = 0, 0.0, ""
        self._told = False

    def begin(self, case: Case, what: str, before: float) -> None:
        """`before`: the part of the mode that is done already."""
        self._before = before
        self._line = f"[{self._num_done + 1}/{self._num_modes}] {case.precision}: {what}"
        self._say(self._line + self._left(before), True)

    def message(self, kind: str, payload: Any) -> None:
        """What the measuring process reports."""
        if kind != "steps":
            return
        done, num_steps = payload
        part = self._before + 0.5 * done / num_steps
        # The first estimate that means something stays on screen or in the log: how long it will take.
        first = not self._told and done >= num_steps / 10
        self._told = self._told or first
        self._say(f"{self._line}, step {done} of {num_steps}{self._left(part) if self._told else ''}", first)

    def finish(self, mode: Mode) -> None:
        self._num_done += 1
        if mode.failure is not None:
            self._say(f"{mode.case.precision}: {mode.status}: {mode.failure[1]}", True)

    def _left(self, part: float) -> str:
        done = self._num_done + part
        if not done:
            return ""
        seconds = (time.monotonic() - self._begun) / done * (self._num_modes - done)
        return f" (about {seconds / 60:.0f} min left)" if seconds >= 90 else f" (about {math.ceil(seconds)} s left)"


def _ignore(kind: str, payload: Any) -> None:
    """Examining the device reports nothing."""


def _measured(mode: Mode, fp32: Mode | None) -> dict[str, Any]:
    """Time and memory, and their ratios to fp32's."""
    timing, base = mode.timing, None if fp32 is None else fp32.timing
    record: dict[str, Any] = {
        "precision": mode.case.precision,
        "status": mode.status,
        "failure": None if mode.failure is None else {"kind": mode.failure[0], "message": mode.failure[1]},
        "loss_scale": None,
        **dict.fromkeys(("total_s", "images_per_s", "speedup", "memory", "memory_ratio", "workload")),
        "raw": {
            "step_s": None if timing is None else timing["step_s"],
            "loss": None if mode.numbers is None else mode.numbers.get("loss"),
            "gradient_norm": None if mode.numbers is None else mode.numbers.get("gradient_norm"),
        },
    }
    if timing is not None:
        blocks = _blocks(timing["step_s"])
        optimizer = timing["workload"]["optimizer"]
        record |= {
            "loss_scale": None if optimizer is None else optimizer["loss_scale"],
            "total_s": math.fsum(timing["step_s"]),
            "images_per_s": _ratio(mode.case.batch_size, blocks).to_json(),
            "memory": timing["memory"],
            "workload": timing["workload"],
        }
        if base is not None:
            itself = Estimate(1.0, 1.0, 1.0, "ratio", len(blocks), "fp32 is what the others are compared with")
            record["speedup"] = (itself if mode is fp32 else _ratio(_blocks(base["step_s"]), blocks)).to_json()
            name = "rss_growth_bytes" if mode.case.device == "cpu" else "allocated_bytes"
            mine, theirs = timing["memory"][name], base["memory"][name]
            record["memory_ratio"] = mine / theirs if mine is not None and theirs else None
    return record


def _blocks(step_s: Sequence[float]) -> Blocks:
    return blocks_of([[np.asarray(step_s, dtype=np.float64)]], blocks_per_segment=NUM_BLOCKS)


def _ratio(over: Blocks | float, under: Blocks) -> Estimate:
    """`over` (a number, or another mode's step time) ÷ the step time, with the interval within these processes."""
    top: NDArray[np.float64] | float
    if isinstance(over, Blocks):
        value, top, unit, n = float(over.means()[0]), draws_of_mean(over, 0), "ratio", min(len(over), len(under))
    else:
        value, top, unit, n = float(over), float(over), "samples/s", len(under)
    draws = np.asarray(top / draws_of_mean(under, 1))
    return interval(value / float(under.means()[0]), draws, unit, n)


def _finite(value: Any) -> Any:
    """A JSON value in which NaN and infinities are null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
