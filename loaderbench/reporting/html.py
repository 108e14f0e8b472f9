"""A report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loaderbench import __version__
from loaderbench.errors import ConfigError
from loaderbench.recording.store import write_atomic
from loaderbench.reporting import format as fmt
from loaderbench.reporting.format import CAUSES, Record, part

LABEL_FROM_PERCENT = 13.0
"""Narrowest bar segment that gets its time written into it; fits 6 characters on a 360 px phone."""
UNATTRIBUTED = "not attributed"


@dataclass(frozen=True)
class BarSegment:
    """One cause's part of a bar, in percent of the drawing's width."""

    cause: str
    x_percent: float
    width_percent: float
    time: str

    @property
    def labelled(self) -> bool:
        return self.width_percent >= LABEL_FROM_PERCENT


@dataclass(frozen=True)
class Bar:
    """One run's mean step, stacked by cause. Without segments the run has no step time."""

    label: str
    total: str
    segments: list[BarSegment]


def step_bar(record: Record, label: str, longest_s: float) -> Bar:
    """The mean step time, cut by the shares; what no measured share covers is `not attributed`.

    A share below zero (noise around nothing) takes no room.
    """
    mean_s = part(record, "step_time_s", "mean")
    if mean_s is None:
        return Bar(label, fmt.outcome(record) if record["status"] != "ok" else fmt.NOT_MEASURED, [])
    fractions = {cause: max(0.0, fmt.value_of(part(record, "shares", cause)) or 0.0) for cause in CAUSES}
    known = sum(fractions.values())
    stretch = 1 / known if known > 1 else 1.0
    fractions = {cause: fraction * stretch for cause, fraction in fractions.items()}
    fractions[UNATTRIBUTED] = max(0.0, 1 - known)
    segments = []
    x_percent = 0.0
    for cause, fraction in fractions.items():
        width_percent = fraction * mean_s / longest_s * 100
        if fraction >= 0.001:
            segments.append(BarSegment(cause, x_percent, width_percent, fmt.duration(fraction * mean_s)))
        x_percent += width_percent
    return Bar(label, fmt.duration(mean_s), segments)


def _groups(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Per resolution: the runs with their labels and bars."""
    longest_s = max((part(record, "step_time_s", "mean") or 0.0 for record in records), default=0.0)
    return [
        {
            "resolution": name,
            "runs": [
                {
                    "record": record,
                    "label": fmt.row_label(record, records),
                    "bar": step_bar(record, fmt.row_label(record, records), longest_s),
                }
                for record in group
            ],
        }
        for name, group in fmt.by_resolution(records)
    ]


def _environment(records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    """Every environment entry with its values, several where the runs differ."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for key, value in (record.get("environment") or {}).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found.setdefault(key, {})[text] = None
    return [(key, list(values)) for key, values in found.items()]


def render_report(records: Sequence[Mapping[str, Any]]) -> str:
    """The report's HTML text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    clean_records: list[Record] = [fmt.cleaned(record) for record in records]
    environment = Environment(
        loader=PackageLoader("loaderbench.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    started = sorted(record["started_at"] for record in clean_records)
    return environment.get_template("report.html").render(
        groups=_groups(clean_records),
        num_runs=len(clean_records),
        settings=fmt.common_settings(clean_records),
        causes=[*CAUSES, UNATTRIBUTED],
        caveats=fmt.grouped_caveats(clean_records),
        environment=_environment(clean_records),
        started=started,
        version=__version__,
        fmt=fmt,
    )


def write_report(records: Sequence[Mapping[str, Any]], out: str | os.PathLike[str]) -> None:
    """Write the report of these run records to the file `out`.

    Raises:
        ConfigError: there is nothing to report, or `out` cannot be written.
    """
    if not records:
        raise ConfigError("no finished run to report; measure one with `loaderbench run`")
    text = render_report(records)
    try:
        write_atomic(Path(out), text.encode())
    except OSError as error:
        raise ConfigError(f"cannot write the report {out}: {error.strerror}; name another file with --out") from error
