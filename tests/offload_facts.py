"""Made-up facts of an offload study."""

from __future__ import annotations

from typing import Any

import numpy as np
from made import make_device, make_environment

from loaderbench.cases.case import Step
from loaderbench.recording.facts import Failure
from loaderbench.recording.offload_study import (
    OffloadFacts,
    OffloadLedger,
    OffloadReplay,
    OffloadSetting,
    OffloadTurn,
    SettingFacts,
)

MIB = 2**20
STEP = Step("resnet18", "train", "fp32", "cpu", 10, 64)


def turn(
    step_s: float, *, exposed_s: float = 0.0, copy_s: float | None = 0.0, steps: int = 8, **known: Any
) -> OffloadTurn:
    """Steps that spread by 2 % about `step_s`."""
    spread = step_s * (1 + 0.01 * np.cos(np.arange(steps) * np.pi))
    copies = None if copy_s is None else np.full(steps, copy_s)
    return OffloadTurn(spread, np.full(steps, exposed_s), copies, **known)


def timed(
    step_s: float, above: int | None = None, after: float = 0.0, *, moved: int = 0, peak: int = 90 * MIB, **known: Any
) -> SettingFacts:
    """A setting of batch 10 with three turns, of which half is moved out and half back."""
    one = turn(step_s, host_bytes=moved // 2, out_bytes=moved // 2, in_bytes=moved // 2, num_copies=4, **known)
    ledger = OffloadLedger(peak, moved // 2, moved // 2, moved // 2, 2, moved // 2)
    return SettingFacts(10, OffloadSetting(above, after), ledger, (one, one, one), peak_live_bytes=peak)


def replayed(
    step_s: float, above: int | None, compute_s: float = 0.01, peak: int = 90 * MIB, batch_size: int = 10
) -> SettingFacts:
    done = OffloadReplay(step_s, compute_s, step_s - compute_s, 2 * (step_s - compute_s), peak)
    ledger = OffloadLedger(peak, MIB, MIB, MIB, 1, MIB)
    return SettingFacts(batch_size, OffloadSetting(above, 0.0), ledger, replay=done)


TOO_LARGE = Failure("OutOfMemory", "does not fit: tensors need more than the cap")
ONE = SettingFacts(1, None, OffloadLedger(50 * MIB, 0, 0, 0, 0, 0), (turn(0.02),) * 3, peak_live_bytes=50 * MIB)
WITHOUT = SettingFacts(10, None, OffloadLedger(140 * MIB, 0, 0, 0, 0, 0), failure=TOO_LARGE)
CURVE = (
    timed(0.22, 0, moved=200 * MIB, exposed_s=0.1, copy_s=0.12),
    timed(0.15, MIB, moved=120 * MIB, exposed_s=0.05, copy_s=0.08),
    timed(0.14, MIB, 0.4, moved=100 * MIB, exposed_s=0.04, copy_s=0.08),
    timed(0.12, None, moved=60 * MIB, exposed_s=0.02, copy_s=0.05),
)


def study(**changes: Any) -> OffloadFacts:
    """A study of batch 10 in 100 MiB: everything costs 1.1 of batch 1's time per image, the best 0.6."""
    known: dict[str, Any] = {
        "step": STEP,
        "seed": 0,
        "is_study": True,
        "on_accelerator": True,
        "on_host": False,
        "environment": make_environment(),
        "device": make_device(),
        "memory_bytes": 100 * MIB,
        "memory_source": "--memory",
        "planned_bytes": 100 * MIB,
        "host_free_bytes": 2**33,
        "batch_one": ONE,
        "without": WITHOUT,
        "settings": CURVE,
        "num_settings": 12,
        "num_searched": 4,
        "num_rounds": 3,
        "interrupted": False,
    }
    return OffloadFacts(**{**known, **changes})
