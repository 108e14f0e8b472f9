"""Run records as a table for spreadsheets and data frames: a row a run, an empty cell for what was not measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from loaderbench.reporting.format import CAUSES, part

_CASE_COLUMNS = (
    "dataset_name", "resolution", "loader", "decoder", "workers", "prefetch", "batch_size", "model", "mode",
    "precision", "device", "input_size", "cache", "seed", "repeat",
)  # fmt: skip
_PATHS = {
    **{name: ("case", name) for name in _CASE_COLUMNS},
    **{
        f"throughput_{end}samples_per_s": ("throughput", key)
        for end, key in (("", "value"), ("low_", "low"), ("high_", "high"))
    },
    **{f"step_{name}_s": ("step_time_s", name) for name in ("mean", "p50", "p95", "p99")},
    "time_to_first_batch_s": ("time_to_first_batch_s",),
    "loader_rate_samples_per_s": ("loader_rate", "value"),
    "ingestion_rate_samples_per_s": ("ingestion_rate", "value"),
    "accelerator_utilization_fraction": ("accelerator_utilization_fraction",),
    **{f"share_{cause}_fraction": ("shares", cause, "value") for cause in CAUSES},
    "bottleneck": ("verdict", "bottleneck"),
    "failure": ("failure", "message"),
}


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """One row per record, units in the column names."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(["run_id", "status", *_PATHS])
    for record in records:
        writer.writerow([record["run_id"], record["status"], *(part(record, *path) for path in _PATHS.values())])
    return buffer.getvalue()
