"""A split in words, in a table, in pictures, over time, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import call
from split_facts import split_facts, turns_of

from loaderbench.analysis.model_split import split_of
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.model_split import SplitFacts
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.reporting.perfetto import trace_of_split


def stored(facts: SplitFacts, results: Path) -> str:
    folder = Store(results).new_study("model_split", ["resnet18"])
    findings = split_of(facts)
    record = StudyRecord(SCHEMA, RULES_VERSION, folder.study_id, "model_split", folder.started_at, facts, findings)
    folder.path.mkdir(parents=True)
    folder.write(record)
    return folder.study_id


def test_the_turns_lie_in_the_trace_as_they_were(tmp_path: Path) -> None:
    facts = split_facts(turns=turns_of(np.array([0.03, 0.04]), np.array([0.05, 0.02]), np.array([0.09, 0.08])))
    name = stored(facts, tmp_path)
    target = tmp_path / "t.json"
    done = call("trace", name, "--out", target, "--results", tmp_path)
    assert done.code == 0, done.err
    events = json.loads(target.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    first = [event for event in slices if event["tid"] == 1]
    assert [event["name"] for event in first] == ["10 images", "10 images", "16 images, alone", "16 images, alone"]
    assert [event["dur"] for event in first] == pytest.approx([30e3, 40e3, 90e3, 80e3])
    whole = [event["dur"] for event in slices if event["tid"] == 0]
    assert whole == pytest.approx([50e3, 40e3, 90e3, 80e3])
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names[1] == "cpu:1 (member 1)" and names[2] == "cuda:0 (member 2)"
    with pytest.raises(ConfigError, match="this split has no turns to draw"):
        trace_of_split(split_facts(turns=None))
