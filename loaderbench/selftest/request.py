"""What a self-test is asked for. Imports nothing that computes, so that a refusal comes at once."""

from __future__ import annotations

from dataclasses import dataclass

from loaderbench.cases.case import PRECISIONS, Mode, Precision
from loaderbench.cases.study import check_choice
from loaderbench.devices.select import parse_device
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.selftest.scenarios import combinations, scenarios

MODEL = "resnet50"
FIRST_BATCH = 16
"""Batch size until the loader's own speed sets it."""


@dataclass(frozen=True)
class SelfTestRequest:
    quick: bool
    device: str
    """The device text as resolved by `devices`, for inference."""
    precision: Precision
    mode: Mode = "infer"
    resume: bool = False
    """Continue the newest interrupted self-test of the store."""
    beside: int = 0
    """Busy processes beside each case."""
    only: tuple[str, ...] = ()
    """Cases with one of these texts in their names; empty: all."""


def request_for(
    device: str, *, quick: bool, resume: bool = False, beside: int = 0, only: str | None = None
) -> SelfTestRequest:
    """What `--device` asks for; `only`: parts of cases' names, separated by commas.

    Raises ConfigError, where no case has such a name or there is no such GPU, too.
    """
    try:
        choice = parse_device(device, model=MODEL, mode="infer", precision=None, batch_size=FIRST_BATCH)
    except UnavailableError as error:
        raise ConfigError(str(error)) from error
    precision = check_choice("--precision", choice.precision, PRECISIONS)
    parts = () if only is None else tuple(sorted({part.strip() for part in only.split(",")}))
    names = [*(one.name for one in scenarios(quick=quick)), *(one.name for one in combinations(quick=quick))]
    for part in parts:
        if not part or not any(part in name for name in names):
            raise ConfigError(f"--only {only}: no case has {part!r} in its name; names are like {names[0]}")
    return SelfTestRequest(quick, choice.device, precision, resume=resume, beside=beside, only=parts)
