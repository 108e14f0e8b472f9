"""Findings in words: the sentence and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loaderbench.analysis.attribution import Attribution
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
    limits = "limit this run: without them" if found.bottleneck == "launch" else "limits this run: without it"
    return f"{name[0].upper()}{name[1:]} {limits} {_times(removed)} faster."


def evidence(
    found: Attribution,
    capacities: dict[str, Estimate | None],
    storage: Mapping[str, Any] | None,
    transfer: Mapping[str, Any] | None,
) -> list[str]:
    """The measured figures that the verdict rests on, one a line. `storage`, `transfer`: those of the record."""
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
    if transfer is not None:
        lines.append(_of_copy(transfer))
    ceiling = (storage or {}).get("ceiling")
    if ceiling is not None:
        lines.append(_of_ceiling(ceiling))
    return lines


def _of_copy(transfer: Mapping[str, Any]) -> str:
    rate, ceiling = (transfer[f"{name}_bytes_per_s"] / 1e9 for name in ("link", "ceiling"))
    return (
        f"copy to the device: {transfer['bytes_per_step'] / 1e6:,.1f} MB a step in {transfer['copy_s'] * 1e3:.2f} ms, "
        f"{transfer['exposed_s'] * 1e3:.2f} ms of it exposed; {rate:.1f} GB/s, the link gives {ceiling:.1f}"
    )


def _of_ceiling(ceiling: Mapping[str, Any]) -> str:
    rate, readers = ceiling["bytes_per_s"]["value"] / 1e6, ceiling["readers"]
    rising = ", still rising" if ceiling["still_rising"] else ""
    bound = {
        "bandwidth": "; more readers than this run has get little more: bandwidth",
        "latency": f"; twice this run's readers get {ceiling['growth_per_doubling'] or 0:.1f}×: latency",
        None: "",
    }[ceiling["bound_by"]]
    return f"the storage gives {rate:,.1f} MB/s to {readers} reader{'s' * (readers != 1)}{rising}{bound}"
