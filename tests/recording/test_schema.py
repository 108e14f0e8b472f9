"""The JSON Schema of records: the file that is shipped is made from the classes, and records follow it."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.plain import JsonObject, schema_of, to_json
from loaderbench.recording.record import RunRecord
from loaderbench.recording.schema import SCHEMA_FILE, schema_text
from loaderbench.reporting.words import worded
from tests.analysis.judging import run_of
from tests.analysis.test_verdict_rates import random_pipeline
from tests.filled import filled
from tests.made import make_record, make_run


@cache
def validator() -> jsonschema.Draft202012Validator:
    definitions: JsonObject = {}
    described = schema_of(RunRecord, definitions)
    schema: Any = {**described, "$defs": definitions}
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_that_is_shipped_is_that_of_the_classes() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run python -m loaderbench.recording.schema"
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_bytes()))


def test_records_of_simulated_runs_follow_it() -> None:
    schema = validator()
    for seed in range(10):
        pipe = random_pipeline(np.random.default_rng([5, seed]))
        record = analyze(run_of(pipe, rounds=2, num_steps=16, seed=seed))
        for form in (record, worded(record)):
            schema.validate(json.loads(json.dumps(to_json(form))))
    schema.validate(to_json(analyze(make_run(segments=None))))


@pytest.mark.parametrize("whole", [False, True])
def test_a_record_of_any_values_follows_it(whole: bool) -> None:
    schema = validator()
    for seed in range(20):
        schema.validate(to_json(filled(RunRecord, Random(seed), whole=whole)))


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": 3},
        {"status": "perhaps"},
        {"throughput": {"value": 1.0}},
        {"shares": {"prep": 0.5}},
        {"caveats": [{"code": "short_run", "severity": "dreadful"}]},
        {"case": {"loader": "serial"}},
        {"verdict": {"bottleneck": "the weather"}},
    ],
)
def test_what_is_no_record_does_not_follow_it(change: dict[str, Any]) -> None:
    stored = to_json(make_record())
    assert isinstance(stored, dict)
    validator().validate(stored)
    with pytest.raises(jsonschema.ValidationError):
        validator().validate({**stored, **change})


def test_it_has_the_record_s_fields_and_no_signature_for_a_description() -> None:
    schema = json.loads(SCHEMA_FILE.read_bytes())
    assert [*schema["properties"]] == [*vars(make_record())]
    assert not [text for text in _descriptions(schema) if "(" in text.split(" ")[0]]


def _descriptions(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [text for item in schema for text in _descriptions(item)]
    if not isinstance(schema, dict):
        return []
    inner = [text for item in schema.values() for text in _descriptions(item)]
    own = schema.get("description")
    return [own, *inner] if isinstance(own, str) else inner
