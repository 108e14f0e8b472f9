"""An offload study in words, in a table, in a picture, and as JSON."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands import call
from offload_facts import CURVE, MIB, ONE, replayed, study
from rich.console import Console

from loaderbench.analysis.offload import offload_of
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.recording.facts import SCHEMA, Failure
from loaderbench.recording.offload_study import OffloadFacts, OffloadSetting, ResultCheck, SettingFacts
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.reporting.figures import svg
from loaderbench.reporting.html import render_html
from loaderbench.reporting.markdown import render_markdown
from loaderbench.reporting.offload import offload_sentence, print_offload
from loaderbench.reporting.offload_figure import offload_figure
from loaderbench.reporting.report import read_report
from loaderbench.reporting.studies import as_json


def text_of(facts: OffloadFacts) -> str:
    stream = io.StringIO()
    print_offload(offload_of(facts), Console(file=stream, width=200, color_system=None))
    return " ".join(stream.getvalue().split())


def test_the_sentence_has_this_runs_figures() -> None:
    found = offload_sentence(offload_of(study()))
    assert found.startswith("Batch 10 does not fit in 100 MiB (it needs 140 MiB); everything offloaded takes 1.10× (")
    assert "the time per image of batch 1; the best, only what would not fit, 0.60× (" in found and found.endswith(".")


def test_the_best_threshold_comes_with_the_flags_that_run_it() -> None:
    text = text_of(study(settings=CURVE[:3]))
    assert "the best, tensors from 1 MiB once 40 % is in use, 0.70×" in text
    assert "To run it: --offload-above 1024 --offload-after 0.4." in text
    assert "The search tried 4 of 12 settings." in text and "The best does 1.57×" in text
    assert "→ from 1 MiB after 40 %" in text and text.count("→") == 2


def test_what_moves_is_said_for_each_mode_and_place() -> None:
    train, infer = (
        text_of(study()),
        text_of(study(step=study().step.__class__("resnet18", "infer", "fp32", "cpu", 10, 64))),
    )
    assert "keeps for the backward pass goes to the host" in train and "same RAM" not in train
    assert "parameters, inputs and the activations that are still to be used" in infer
    assert "times say nothing of another device" in text_of(study(on_host=True))


def test_a_batch_that_fits_says_so() -> None:
    fits = SettingFacts(10, None, CURVE[0].ledger, CURVE[3].turns, peak_live_bytes=90 * MIB)
    assert "Batch 10 fits in 100 MiB without offloading" in text_of(study(without=fits))


def test_a_replay_says_why_nothing_is_measured() -> None:
    facts = study(settings=(replayed(0.03, 0), replayed(0.011, None)), batch_one=None, not_measured="no model is run",
                  assumptions=("a step takes 10 ms (assumed)",))  # fmt: skip
    text = text_of(facts)
    assert "not measured: no model is run" in text and "a step takes 10 ms (assumed)" in text and "±" not in text
    assert "the best, only what would not fit: 1.10 ms per image; all times are those of a replay, assumed." in text
    assert "assumed" not in text_of(study())


def test_one_setting_has_no_best() -> None:
    text = text_of(study(is_study=False, batch_one=None, settings=CURVE[1:2]))
    assert "with tensors from 1 MiB on the host it fits (90.0 MiB) and takes 15.0 ± " in text
    assert "best" not in text and "→" not in text and "To run it" not in text


def test_parts_that_offloading_does_not_see_are_named() -> None:
    text = text_of(study(unhooked=("layer Swish keeps tensors",)))
    assert "Not offloaded" in text and "layer Swish keeps tensors" in text


def test_the_picture_has_the_curve_and_its_best() -> None:
    figure = offload_figure(offload_of(study()), "x")
    assert figure is not None and figure.name == "x-thresholds"
    assert [row[0] for row in figure.rows] == ["all", "1 MiB", "1 MiB", "none"]
    assert [row[-1] for row in figure.rows] == ["no", "no", "no", "yes"]
    drawn = svg(figure)
    assert "ms per image" in drawn and "MiB at the peak" in drawn and "batch 1" in drawn
    assert drawn.count(">40 %<") == 3  # of CURVE[2]: its time, and its memory on the device and on the host
    assert offload_figure(offload_of(study(settings=CURVE[:1])), "x") is None


def test_a_report_of_offloading_alone_has_the_answer_and_the_picture(tmp_path: Path) -> None:
    store, found = Store(tmp_path), study()
    folder = store.new_study("model_offload", ["resnet18", "train"])
    judged = offload_of(found)
    folder.write(StudyRecord(SCHEMA, RULES_VERSION, folder.study_id, "model_offload", folder.started_at, found, judged))
    report = read_report(store)
    assert [figure.name for figure in report.figures] == ["model1-thresholds"]
    for rendered in (render_html(report), render_markdown(report)):
        assert "resnet18, train: offloading" in rendered and "does not fit in 100 MiB" in rendered
        assert "only what would not fit" in rendered


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


def test_the_json_has_the_promised_names() -> None:
    made = study()
    written = as_json(made, offload_of(made), "an id")
    assert written["study_id"] == "an id" and written["best_above_bytes"] is None
    assert written["batch_one_s_per_image"] == offload_of(made).batch_one_s_per_image
    rows = written["thresholds"]
    assert isinstance(rows, list) and len(rows) == 4
    first = rows[0]
    assert isinstance(first, dict)
    assert {"above_bytes", "s_per_image", "peak_live_bytes", "host_bytes", "moved_bytes_per_step", "outcome"} <= {
        *first
    }
    answer = written["answer"]
    assert isinstance(answer, list) and "does not fit" in str(answer[0]) and ONE.turns


def test_where_the_smallest_batch_does_not_fit_there_is_no_ratio() -> None:
    one = SettingFacts(1, None, ONE.ledger, failure=Failure("OutOfMemory", "does not fit"))
    text = text_of(study(batch_one=one))
    assert "does not fit in 100 MiB (it needs 140 MiB), nor does batch 1; everything offloaded takes 22.0" in text
    assert "ms per image; the best, only what would not fit: 12.0" in text and "the time per image of batch" not in text


def test_that_the_batch_fits_is_said_once() -> None:
    fits = SettingFacts(10, None, CURVE[0].ledger, CURVE[3].turns, peak_live_bytes=95 * MIB)
    text = text_of(study(is_study=False, without=fits, settings=CURVE[1:2]))
    assert "Batch 10 fits in 100 MiB without offloading" in text and text.count(" fits") == 1
    assert "with tensors from 1 MiB on the host it needs 90.0 MiB and takes 15.0 ± " in text


def test_what_plans_leave_free_is_said() -> None:
    assert "Plans keep below 90.0 MiB of 100 MiB" in text_of(study(planned_bytes=90 * MIB))
    assert "Plans keep" not in text_of(study())


def test_whether_results_were_compared_is_said() -> None:
    def checked(check: ResultCheck | None, **known: Any) -> str:
        return text_of(study(settings=(*CURVE[:3], replace(CURVE[3], check=check)), **known))

    equal = "of a step were compared with those without offloading: equal to the bit."
    assert f"The gradients {equal}" in checked(ResultCheck(10, 5, 0.0, None))
    assert "a step (batch 1, with everything on the host) were compared" in checked(ResultCheck(1, 5, 0.0, None))
    alike = checked(ResultCheck(10, 5, 3e-7, 1e-7))
    assert "equal within 3e-07 of their largest value; two steps without offloading differ by 1e-07." in alike
    refused = checked(ResultCheck(10, 5, 0.5, 0.0))
    assert "Refused, only what would not fit on the host: its gradients differ" in refused
    assert refused.count("differ from those without offloading") == 1 and "were compared" not in refused
    assert "without offloading: no time." in checked(None, not_compared="no time")
    assert "compared with" not in checked(None)
