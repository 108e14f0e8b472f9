"""An offload study in words, in a table, in a picture, and as JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from commands import call
from offload_facts import ONE, study

from loaderbench.analysis.offload import offload_of
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.offload_study import OffloadSetting
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.reporting.figures import svg
from loaderbench.reporting.offload import offload_figures
from loaderbench.reporting.report import read_report


def test_the_picture_has_the_curve_and_its_best() -> None:
    (figure,) = offload_figures(offload_of(study()))
    assert figure.name == "thresholds"
    assert [row[0] for row in figure.rows] == ["all", "1 MiB", "1 MiB", "none"]
    assert [row[-1] for row in figure.rows] == ["no", "no", "no", "yes"]
    drawn = svg(figure)
    assert "ms per image" in drawn and "MiB at the peak" in drawn and "batch 1" in drawn
    assert drawn.count(">40 %<") == 3  # of CURVE[2]: its time, and its memory on the device and on the host


def test_a_record_that_makes_no_sense_is_named_and_the_others_are_reported(tmp_path: Path) -> None:
    store = Store(tmp_path)
    nonsense = OffloadSetting(0, float("nan"))  # null in a file that was edited by hand
    for found in (study(), study(without=replace(ONE, setting=nonsense))):
        folder, judged = store.new_study("model_offload", ["resnet18", "train"]), offload_of(study())
        folder.write(
            StudyRecord(SCHEMA, RULES_VERSION, folder.study_id, "model_offload", folder.started_at, found, judged)
        )
    report = read_report(store)
    assert len(report.parts) == 1 and report.without is not None
    ((name, _, _, why),) = report.without.rows
    assert name == folder.study_id and "contradict each other" in why
    done = call("show", folder.study_id, "--results", tmp_path)
    assert done.code == 2 and "cannot be shown: its facts contradict each other" in done.err
