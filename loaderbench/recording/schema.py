"""The record's JSON Schema, made from its dataclasses. `python -m loaderbench.recording.schema` rewrites it."""

from __future__ import annotations

import json
from pathlib import Path

from loaderbench import plain
from loaderbench.findings.advice import ADVICE_CODES
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.record import SHARES, RunRecord

SCHEMA_FILE = Path(__file__).parents[2] / "docs/run.schema.json"
"""In a checkout: nothing reads it when loaderbench runs, so the wheel goes without."""
MEASURED = (
    "environment", "throughput", "step_time_s", "time_to_first_batch_s", "loader_rate", "ingestion_rate",
    "accelerator_utilization_fraction", "shares", "verdict", "capacities", "storage", "stages", "cpu", "device",
    "overhead_fraction",
)  # fmt: skip
"""Fields that every run that ended well has; they may be null."""


def record_schema() -> JsonObject:
    """JSON Schema (draft 2020-12) of `run.json`."""
    definitions: JsonObject = {}
    described = plain.schema_of(RunRecord, definitions)
    properties = described["properties"]
    assert isinstance(properties, dict)
    version = properties["schema"]
    assert isinstance(version, dict)
    version["const"] = SCHEMA
    caveat = definitions["Caveat"]
    assert isinstance(caveat, dict)
    caveat["required"] = ["code", "message"]  # the words are added before it is stored
    advice = definitions["Advice"]
    assert isinstance(advice, dict) and isinstance(advice["properties"], dict)
    advice["properties"]["code"] = {"enum": [*ADVICE_CODES]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "loaderbench run record",
        **described,
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {
            "required": [*MEASURED],
            "properties": {"shares": {"type": ["object", "null"], "required": [*SHARES]}},
        },
        "else": {"properties": {"failure": {"$ref": "#/$defs/Failure"}}},
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    return json.dumps(record_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
