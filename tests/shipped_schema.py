"""The schema of records that is shipped, ready to judge one record after another: checking a schema takes a while."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from loaderbench.recording.schema import SCHEMA_FILE


@cache
def shipped() -> jsonschema.Draft202012Validator:
    schema: Any = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
