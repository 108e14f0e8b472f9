"""Findings in words: the sentence, its evidence, and what to try next with what it is predicted to give."""

from __future__ import annotations

from typing import Any

from loaderbench.analysis.attribution import Attribution
from loaderbench.cases.case import Case
from loaderbench.recording.types import Estimate

NAMES = {
    "storage": "storage",
    "prep": "CPU preparation (decode, augment, collate)",
    "transfer": "the copy to the device",
    "launch": "kernel launches",
    "compute": "compute",
}


def _percent(estimate: Estimate | None) -> str:
    return "not measured" if estimate is None else f"{estimate.value:.0%}"


def _times(estimate: Estimate) -> str:
    return f"{estimate.value:.2f}× ({estimate.low:.2f} – {estimate.high:.2f})"


def summary(found: Attribution) -> str:
    """One sentence that a manager can read."""
    if found.bottleneck == "undetermined":
        return "Undetermined: " + "; ".join(found.reasons) + "."
    if found.bottleneck == "compute":
        best = max(
            (one for cause, one in found.speedup_if_removed.items() if one is not None and cause != "compute"),
            key=lambda one: one.value,
            default=None,
        )
        gain = "" if best is None else f"; nothing else is worth more than {best.value:.2f}×"
        return f"Compute limits this run: the device is fed {_percent(found.utilization)} of the time{gain}."
    if found.bottleneck == "mixed":
        if found.joint and found.joint_speedup is not None:
            causes = " and ".join(NAMES[cause] for cause in found.joint)
            return f"Mixed: {causes} bound this run together; without all of them {_times(found.joint_speedup)} faster."
        return "Mixed: " + "; ".join(found.reasons or ["no single cause is worth 1.10× alone"]) + "."
    removed = found.speedup_if_removed[found.bottleneck]
    assert removed is not None
    name = NAMES[found.bottleneck]
    return f"{name[0].upper()}{name[1:]} limits this run: without it {_times(removed)} faster."


def evidence(found: Attribution, capacities: dict[str, Estimate | None]) -> list[str]:
    """The measured figures that the verdict rests on, one a line."""
    lines = []
    known = [f"{name} {one.value:,.0f}" for name, one in capacities.items() if one is not None]
    if known:
        lines.append(f"samples/s of each stage alone: {', '.join(known)}")
    for cause, gain in found.speedup_if_removed.items():
        if gain is not None and gain.value >= 1.02:
            lines.append(f"without {NAMES[cause]}: {_times(gain)}")
    if found.utilization is not None:
        lines.append(f"accelerator utilization {found.utilization.value:.1%} (T_device ÷ T)")
    if found.witnesses is not None:
        arms, timeline = found.witnesses
        lines.append(f"waiting for data: {arms.value:.1%} of the step by arms, {timeline.value:.1%} by timeline")
    return lines


def _gain(found: Attribution, cause: str) -> dict[str, Any] | None:
    one = found.speedup_if_removed.get(cause)
    return None if one is None else one.to_json()


def advice(case: Case, found: Attribution, *, usable_cpus: int, contention: bool) -> list[dict[str, Any]]:
    """What to try next: {action, predicted_speedup, at_most}.

    `at_most` is the gain of removing the cause wholly. `predicted_speedup` stands only where the action does
    just that and its outcome was measured (the data in memory: the arm `ram`); else it is None.
    """
    causes = found.joint if found.bottleneck == "mixed" else (found.bottleneck,)
    actions: list[tuple[str, str, bool]] = []
    for cause in causes:
        if cause == "storage":
            actions.append((cause, "keep the data set in memory (--cache warm), or put it on faster storage", True))
        elif cause == "prep":
            actions += [(cause, action, False) for action in _prep_actions(case, usable_cpus, contention)]
        elif cause == "transfer" and case.output == "float32":
            actions.append((cause, "copy uint8 and normalize on the device: --output uint8", False))
        elif cause == "launch":
            actions.append((cause, f"raise the batch size (now {case.batch_size}), or replay CUDA graphs", False))
    return [
        {
            "action": action,
            "predicted_speedup": _gain(found, cause) if measured else None,
            "at_most": _gain(found, cause),
        }
        for cause, action, measured in actions
    ]


def _prep_actions(case: Case, usable_cpus: int, contention: bool) -> list[str]:
    actions = []
    if case.loader == "serial":
        actions.append(f"use a parallel loader: --loader multiprocess --workers {usable_cpus}")
    elif case.workers < usable_cpus:
        actions.append(f"add workers: --workers {usable_cpus} (now {case.workers})")
    if case.loader == "multiprocess" and case.output == "float32":
        actions.append("hand over uint8 and normalize on the device: --output uint8")
    if case.decoder == "pillow":
        actions.append("decode with libjpeg-turbo: --decoder turbojpeg, or --loader threaded")
    if case.resolution and case.input_size and case.resolution >= 2 * case.input_size:
        actions.append(f"store smaller images: loaderbench dataset derive --res {case.resolution // 2}")
    if contention:
        actions.append("the workers wait for a processor: free some, or add cores")
    return actions
