"""The closed set of caveats: what a reader must know before trusting a figure. reporting/words.py has their words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from loaderbench.plain import Json

Severity = Literal["changes the verdict", "limits a figure", "for your information"]
VERDICT: Severity = "changes the verdict"
FIGURE: Severity = "limits a figure"
INFORMATION: Severity = "for your information"

SEVERITIES: Mapping[str, Severity] = MappingProxyType(
    {
        # what the run itself met
        "images_failed": FIGURE,
        "cold_not_proven": VERDICT,
        "cold_by_residency": FIGURE,
        "disk_shared": INFORMATION,
        "reads_not_timed": INFORMATION,
        "fetch_missed": FIGURE,
        "eviction_failed": VERDICT,
        "residency_unknown": FIGURE,
        "warm_not_locked": FIGURE,
        "warm_drifted": FIGURE,
        "ram_subset": INFORMATION,
        "max_bytes_reached": FIGURE,
        "ended_early": FIGURE,
        "short_runs_not_measured": FIGURE,
        "buffer_not_full": FIGURE,
        "queue_not_steady": FIGURE,
        "preparation_differs": FIGURE,
        "short_run": FIGURE,
        "took_longer": INFORMATION,
        "ci_target_missed": FIGURE,
        "cpu_contention": FIGURE,
        "contention_not_measured": FIGURE,
        "witnesses_disagree": VERDICT,
        # what was not measured
        "real_not_measured": VERDICT,
        "arms_not_measured": FIGURE,
        "launch_not_measured": FIGURE,
        "no_files": INFORMATION,
        "no_transfer": INFORMATION,
        "loader_owns_transfer": INFORMATION,
        "link_not_measured": FIGURE,
        "storage_bytes_unknown": FIGURE,
        "ceiling_not_measured": FIGURE,
        "ceiling_still_rising": FIGURE,
        "ceiling_probe_limited": FIGURE,
        "stages_not_measured": FIGURE,
        "cpu_not_measured": FIGURE,
        "worker_memory_not_measured": INFORMATION,
        "overhead_not_measured": FIGURE,
        "first_batch_not_measured": FIGURE,
        # the device
        "emulated_device": INFORMATION,
        "issue_unknown": FIGURE,
        "device_memory_not_measured": FIGURE,
        "nvml_not_measured": FIGURE,
        "nvml_device_order": FIGURE,
        "nvml_field_missing": FIGURE,
        "kernel_gap_not_measured": FIGURE,
        "trace_incomplete": FIGURE,
        "trace_not_steady": FIGURE,
        "busy_witnesses_disagree": FIGURE,
        "busy_not_cross_checked": INFORMATION,
        # a watched script
        "watched_script": INFORMATION,
        "watched_so_far": FIGURE,
        "not_written_so_far": INFORMATION,
        "no_bursts": FIGURE,
        "no_delays": FIGURE,
        "no_shadow": FIGURE,
        "shadow_differs": FIGURE,
        "spans_unknown": FIGURE,
        # sampling
        "sampler_failed": FIGURE,
        "sampler_missing": FIGURE,
        # precision
        "fp32_not_measured": FIGURE,
        "fp32_repeat_not_measured": FIGURE,
        "memory_is_rss": INFORMATION,
        "process_memory_not_measured": FIGURE,
        # a model's layers
        "layers_do_not_sum": FIGURE,
        "stopwatch_takes_time": FIGURE,
        "issuing_takes_longer": FIGURE,
        "layers_hold_gaps": FIGURE,
        # trace files
        "activities_unusable": FIGURE,
        "steps_not_annotated": FIGURE,
        # the record
        "facts_missing": FIGURE,
        "not_finite": FIGURE,
    }
)
"""Code → what it means for the figures. Nothing outside this table is a caveat."""


@dataclass(frozen=True)
class Caveat:
    """Something a reader must know before trusting a figure.

    Raises:
        ValueError: the code is not in the closed set.
    """

    code: str
    details: Mapping[str, Json] = field(default_factory=dict)
    """The figures and names that its words use."""
    severity: Severity = "for your information"
    """`changes the verdict`, `limits a figure` or `for your information`; follows from the code."""
    message: str = ""
    """What it means, in words."""
    hint: str = ""
    """What to do about it; empty where nothing can be done."""

    def __post_init__(self) -> None:
        if self.code not in SEVERITIES:
            raise ValueError(f"unknown caveat '{self.code}'")
        object.__setattr__(self, "severity", SEVERITIES[self.code])

    def same_as(self, other: Caveat) -> bool:
        """Whether both say the same, whatever their words."""
        return (self.code, dict(self.details)) == (other.code, dict(other.details))


@dataclass(frozen=True)
class Reason:
    """Why a verdict is undetermined or mixed, or a trace incomplete: a code with the figures that belong to it."""

    code: str
    details: Mapping[str, Json] = field(default_factory=dict)
