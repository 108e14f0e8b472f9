from __future__ import annotations

import json
import re
from typing import Any, cast

import example_records as examples
import jsonschema
import pytest

from loaderbench.plain import JsonObject
from loaderbench.recording.record import RunRecord
from loaderbench.recording.schema import SCHEMA_FILE
from loaderbench.recording.store import record_json

SCHEMA = json.loads(SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)

# What `--json` promises to scripts.
PROMISED = """
run_id, status, case, environment, started_at
throughput{value, low, high, unit} step_time_s{mean, p50, p95, p99} time_to_first_batch_s loader_rate ingestion_rate
accelerator_utilization_fraction
shares{compute, launch, transfer, prep, contention, storage, unexplained}
verdict{bottleneck, summary, speedup_if_removed{storage, prep, transfer, launch, compute}, evidence, advice}
capacities{storage, prep, loader, transfer, issue, device}
storage{bytes_read, expected_bytes, bandwidth_bytes_per_s, ceiling_bytes_per_s, source, cache_state,
  residency_fraction{before, after}, cold_proven}
stages{read, decode, augment, collate} cpu{busy_fraction, seconds_per_sample, workers_rss_bytes}
device{name, busy_fraction, kernel_gap{count_per_step, p50_s, p95_s, total_fraction}, memory_peak_bytes, nvml}
overhead_fraction
caveats
"""
OF_A_MEASURED_RUN = (
    "environment", "throughput", "step_time_s", "time_to_first_batch_s", "loader_rate", "ingestion_rate",
    "accelerator_utilization_fraction", "shares", "verdict", "capacities", "storage", "stages", "cpu", "device",
    "overhead_fraction",
)  # fmt: skip
"""They are there in every run that ended well; null where they were not measured."""


def as_json(record: RunRecord) -> JsonObject:
    return cast(JsonObject, json.loads(json.dumps(record_json(record)[0])))


def test_the_schema_is_a_valid_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def promised_paths() -> list[tuple[str, ...]]:
    paths, inside = [], []
    for name, bracket in re.findall(r"(\w+)|([{}])", PROMISED):
        if bracket == "{":
            inside.append(paths[-1][-1])
        elif bracket == "}":
            inside.pop()
        else:
            paths.append((*inside, name))
    return paths


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """What describes the value where it is not null."""
    node = node["anyOf"][0] if "anyOf" in node else node
    return cast(dict[str, Any], SCHEMA["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node)


@pytest.mark.parametrize("path", promised_paths(), ids=".".join)
def test_every_promised_field_is_described(path: tuple[str, ...]) -> None:
    node: dict[str, Any] = SCHEMA
    for name in path:
        node = resolved(node)
        # A mapping with names of its own, as the stages of a loader, describes all of them at once.
        node = node["properties"][name] if "properties" in node else node["additionalProperties"]
    assert {"type", "enum", "anyOf", "$ref"} & set(node)


def test_the_case_is_described_field_by_field() -> None:
    assert set(examples.case().to_json()) == set(resolved(SCHEMA["properties"]["case"])["properties"])


@pytest.mark.parametrize(
    "record", [*examples.sweep(), examples.ended_badly("interrupted")], ids=lambda record: record.run_id
)
def test_examples_are_valid_records(record: RunRecord) -> None:
    VALIDATOR.validate(as_json(record))
    VALIDATOR.validate({**as_json(record), "a_later_field": {"x": 1}})


@pytest.mark.parametrize("field", OF_A_MEASURED_RUN)
def test_a_measured_run_may_hold_null_but_not_leave_a_field_out(field: str) -> None:
    record = as_json(examples.measured())
    VALIDATOR.validate({**record, field: None})
    del record[field]
    assert not VALIDATOR.is_valid(record)


def test_wrong_records_are_refused() -> None:
    good = as_json(examples.measured())
    verdict = cast(JsonObject, good["verdict"])
    wrong: list[JsonObject] = [
        {**good, "schema": 3},
        {**good, "status": "fine"},
        {**good, "throughput": 914.0},
        {**good, "throughput": {"value": None, "low": 1, "high": 2}},
        {**good, "verdict": {**verdict, "bottleneck": "cpu"}},
        {**good, "started_at": None},
        {**good, "shares": {"compute": None}},
        {**good, "caveats": [{"code": "a"}]},
        {**as_json(examples.ended_badly()), "failure": None},
    ]
    assert [VALIDATOR.is_valid(record) for record in wrong] == [False] * len(wrong)
