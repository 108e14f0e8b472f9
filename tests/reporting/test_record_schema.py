from __future__ import annotations

import json
import re
from typing import Any

import example_records as examples
import jsonschema
import pytest

from loaderbench.cases.case import Case
from loaderbench.recording.store import SCHEMA_FILE

SCHEMA = json.loads(SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)

# What cli.md promises to scripts, copied from there.
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


@pytest.mark.parametrize("path", promised_paths(), ids=".".join)
def test_every_promised_field_is_described(path: tuple[str, ...]) -> None:
    node: dict[str, Any] = SCHEMA
    for name in path:
        if "anyOf" in node:
            node = SCHEMA["$defs"][node["anyOf"][0]["$ref"].rpartition("/")[2]]
        node = node["properties"][name]
    assert {"type", "enum", "anyOf"} & set(node)


def test_the_case_is_described_field_by_field() -> None:
    fields = set(Case.from_json(examples.case()).to_json())
    assert fields == set(SCHEMA["properties"]["case"]["properties"]) == set(examples.case())


@pytest.mark.parametrize(
    "record", [*examples.sweep(), examples.ended_badly("interrupted")], ids=lambda one: one["run_id"]
)
def test_examples_are_valid_records(record: dict[str, Any]) -> None:
    VALIDATOR.validate(record)
    VALIDATOR.validate({**record, "a_later_field": {"x": 1}})


@pytest.mark.parametrize("field", SCHEMA["then"]["required"])
def test_a_measured_run_may_hold_null_but_not_leave_a_field_out(field: str) -> None:
    record = examples.measured()
    VALIDATOR.validate({**record, field: None})
    del record[field]
    assert not VALIDATOR.is_valid(record)


def test_wrong_records_are_refused() -> None:
    good = examples.measured()
    wrong = [
        {**good, "schema": 2},
        {**good, "status": "fine"},
        {**good, "throughput": 914.0},
        {**good, "throughput": {"value": None, "low": 1, "high": 2}},
        {**good, "verdict": {**good["verdict"], "bottleneck": "cpu"}},
        {**good, "started_at": None},
        {**good, "shares": {"compute": None}},
        {**good, "caveats": [{"code": "a"}]},
        {**examples.ended_badly(), "failure": None},
    ]
    assert [VALIDATOR.is_valid(record) for record in wrong] == [False] * len(wrong)
