"""A split in words, in a table, in pictures, over time, and as JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import call
from rich.console import Console
from split_facts import SEARCH, TIMES, split_facts, turns_of

from loaderbench.analysis.model_split import split_of
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import SCHEMA, Failure
from loaderbench.recording.model_split import DroppedMember, KnownTimes, MemberFacts, MovedPart, SplitFacts
from loaderbench.recording.split_times import Split, SplitTime
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.reporting.figures import svg
from loaderbench.reporting.html import render_html
from loaderbench.reporting.markdown import render_markdown
from loaderbench.reporting.model_split import print_split, split_sentence, time_rows
from loaderbench.reporting.model_split_figure import split_figures
from loaderbench.reporting.perfetto import trace_of_split
from loaderbench.reporting.report import read_report


def text_of(facts: SplitFacts) -> str:
    stream = io.StringIO()
    print_split(split_of(facts), Console(file=stream, width=200, color_system=None))
    return " ".join(stream.getvalue().split())


def stored(facts: SplitFacts, results: Path) -> str:
    folder = Store(results).new_study("model_split", ["resnet18"])
    findings = split_of(facts)
    record = StudyRecord(SCHEMA, RULES_VERSION, folder.study_id, "model_split", folder.started_at, facts, findings)
    folder.path.mkdir(parents=True)
    folder.write(record)
    return folder.study_id


def test_the_sentence_has_this_runs_figures() -> None:
    sentence = split_sentence(split_of(split_facts()))
    assert sentence == (
        "10 on cpu:1 + 6 on cuda:0 take 62.0 ms (62.0–62.0), 0.56× (0.56–0.56) the time of cpu:1 alone."
    )


def test_both_searches_and_the_comparison_are_told() -> None:
    text = text_of(split_facts())
    assert "the greedy search 70.0 ms (12 + 4), the exact search 60.0 ms (10 + 6)" in text
    assert "Measured ÷ predicted: 1.033." in text and "The outputs of 16 images equal those of cpu:1" in text
    assert "10 % off" not in text and "may be as fast" not in text and "Left out" not in text
    slow = text_of(split_facts(turns=turns_of(np.full(10, 0.05), np.full(10, 0.09), np.full(10, 0.11))))
    assert "Measured ÷ predicted: 1.500, more than 10 % off: the machine is in another state" in slow
    either = (SplitTime("cpu:1", 16, 0.10, 0.09, 0.11, 6), SplitTime("cuda:0", 16, 0.16, 0.10, 0.20, 6))
    assert "By the table cuda:0 may be as fast alone as cpu:1, and was not run." in text_of(split_facts(times=either))
    assert "Left out: 1 turn of both, in which a member began late" in text_of(split_facts(num_left_out=1))
    close = text_of(split_facts(check=replace(split_facts().check, neighbours=1e-6)))  # type: ignore[type-var]
    assert "a wrong order could not be told" in close


def test_that_the_fastest_alone_is_best_is_said_where_no_split_can_beat_it_and_of_one_that_lost_that_it_did() -> None:
    slow = turns_of(np.full(8, 0.2), np.full(8, 0.21), np.full(8, 0.1))
    text = text_of(split_facts(turns=slow))
    assert "This split is slower than cpu:1 alone: 10 on cpu:1" in text and "fastest alone is best" not in text
    whole = Split((16, 0), 0.10)
    alone = replace(turns_of(np.empty(0), np.empty(0), np.full(8, 0.1)), sizes=(16, 0))
    facts = split_facts(searches=(replace(SEARCH, exact=whole, greedy=whole),), chosen=whole, turns=alone)
    text = text_of(facts)
    assert "The fastest alone is best: 16 on cpu:1 in 100 ms (100–100); by the table no split ends before it." in text
    assert "it was run" in text and "no part" in text


def test_a_part_that_moved_is_told_once_with_what_the_member_got_and_how_to_try_again() -> None:
    moved = (MovedPart(1, 9, "9 images need more"), MovedPart(1, 7, "7 images need more than the device's 1 GB"))
    text = text_of(split_facts(moved=moved))
    said = (
        "In the run 7, 9 images no longer fitted on cuda:0 (7 images need more than the device's 1 GB): it gets 6. The "
        "table keeps that; to try again: --drop cuda:0,7 --drop cuda:0,9"
    )
    assert text.count(said) == 1 == text.count("no longer fitted") and "went to the others" not in text


def test_a_device_that_cannot_hold_the_model_is_named() -> None:
    text = text_of(split_facts(dropped=(DroppedMember("cuda:1", "the model needs more than the device's 1 GB"),)))
    assert "cuda:1 has no part, for it cannot hold the model: the model needs more than the device's 1 GB." in text


def test_what_ended_a_split_early_is_shown() -> None:
    failure = Failure("CaseFailed", "cuda:0 (member 2 of 2): the measuring process was killed by SIGKILL")
    found = split_of(split_facts(failure=failure, interrupted=True))
    assert found.failure == failure.message
    text = text_of(split_facts(failure=failure, interrupted=True))
    assert f"It ended early: {failure.message}." in text


def test_fewer_than_six_turns_decide_nothing() -> None:
    few = np.full(5, 0.06)
    found = split_of(split_facts(turns=turns_of(few, few, 4 * few)))
    assert split_sentence(found) == (
        "10 on cpu:1 + 6 on cuda:0 take 60.0 ms, 0.25× the time of cpu:1 alone; fewer than 6 turns have no interval: "
        "nothing is decided."
    )
    one = split_facts(turns=turns_of(few[:1], few[:1], np.empty(0)), interrupted=True)
    assert split_sentence(split_of(one)) == "10 on cpu:1 + 6 on cuda:0 take 60.0 ms; cpu:1 alone was not run."


def test_an_emulated_member_without_a_part_is_no_source_of_a_figure() -> None:
    known = KnownTimes("published", "a table of figures", 1e9)
    members = (split_facts().members[0], MemberFacts("emulated:toy", None, known))
    assert "Not measured here" in text_of(split_facts(members=members))
    without = Split((16, 0), 0.10)
    text = text_of(split_facts(members=members, chosen=without, searches=(replace(SEARCH, exact=without),)))
    assert "Not measured here" not in text


def test_a_run_that_was_interrupted_is_told() -> None:
    text = text_of(split_facts(interrupted=True))
    assert "It did not come to its end" in text
    assert "No split was found." in text_of(split_facts(searches=(), chosen=None, turns=None, interrupted=True))


def test_a_time_is_shown_with_its_company_and_origin() -> None:
    missed = replace(TIMES[0], seconds=None, low=None, high=None, outcome="out_of_memory", message="too small")
    set_by_hand = replace(TIMES[0], beside=(), low=None, high=None, num_turns=None, origin="set by hand")
    rows = time_rows([TIMES[0], missed, set_by_hand])
    assert rows[0] == ["cpu:1", "cuda:0", "1", "5.00 ms", "4.50–5.50", "6", "measured"]
    assert rows[1][3] == "does not fit" and rows[2] == ["cpu:1", "alone", "1", "5.00 ms", "", "", "set by hand"]


def test_the_pictures_hold_the_parts_and_the_times() -> None:
    parts, times = split_figures(split_of(split_facts()), "s")
    assert [row[1] for row in parts.rows] == [10, 6, 16] and parts.rows[0][3] == pytest.approx(51.0)
    assert parts.rows[2][0] == "cpu:1 alone: 16" and parts.rows[2][3] == pytest.approx(110.0)
    assert {row[0] for row in times.rows} == {"cpu:1 beside cuda:0", "cuda:0 beside cpu:1"}
    assert "<svg" in svg(parts) and "<svg" in svg(times)
    assert split_figures(split_of(split_facts(searches=(), chosen=None, turns=None, times=())), "s") == []


def test_the_report_has_a_page_of_it(tmp_path: Path) -> None:
    stored(split_facts(), tmp_path)
    report = read_report(Store(tmp_path))
    html = render_html(report)
    assert "resnet18, batch 16 over 2 devices" in html and "0.56×" in html and "cpu:1 beside cuda:0" in html
    assert "10 on cpu:1 + 6 on cuda:0" in render_markdown(report)


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
    with pytest.raises(ConfigError, match="no turn of this split was run"):
        trace_of_split(split_facts(turns=None))
