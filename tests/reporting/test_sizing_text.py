"""What a sizing study says: in the terminal, in a report, and in its JSON."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.sizing import sized
from loaderbench.recording.facts import SCHEMA, Failure
from loaderbench.recording.model_size import BatchFacts, KnownStep, SizeFacts, StepRound
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.reporting.figures import svg
from loaderbench.reporting.html import render_html
from loaderbench.reporting.markdown import render_markdown
from loaderbench.reporting.report import read_report
from loaderbench.reporting.sizing import answer_lines, demand_lines, legend, print_sizing
from loaderbench.reporting.sizing_figure import sizing_figure
from loaderbench.reporting.studies import as_json
from tests.analysis.test_sizing import FEED, batch, facts, out_of_memory
from tests.made import make_device


def text_of(made: SizeFacts, width: int = 80) -> str:
    stream = io.StringIO()
    print_sizing(sized(made), Console(file=stream, width=width))
    return stream.getvalue()


THREE = (batch(1, 0.01), batch(2, 0.0125), batch(4, 0.02))
FULL = facts(
    *THREE, out_of_memory(8), target_per_s=5000.0, latency_s=0.5, stopped_by="memory", feed=FEED,
    mean_file_bytes=110_000.0, mean_file_source="run", percentile=99.9,
)  # fmt: skip


def test_what_is_printed_fits_80_columns_and_answers_first() -> None:
    text = text_of(FULL)
    assert max(map(len, text.splitlines())) <= 80
    plain = " ".join(text.split())
    for expected in (
        "peak memory", "p99.9",
        "No answer: whether p99.9 is within 500 ms is not known", "5,000 images/s for the target",
        "550 MB/s at 110 kB a file, of the stored run", "20.0 CPUs", "batch 8, failed: does not fit",
    ):  # fmt: skip
        assert expected in plain


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"percentile": 99.0},
            "25 devices for 5,000 images/s within 500 ms (p99): one does 200 ± 0 images/s at batch 4.",
        ),
        ({"latency_s": None}, "25 devices for 5,000 images/s: one does 200 ± 0 images/s at batch 4."),
        ({"latency_s": None, "target_per_s": 100.0}, "1 device for 100 images/s"),
        (
            {"latency_s": 0.015, "percentile": 99.0},
            "The bound is latency: batch 4 would do 200 ± 0 images/s, p99 20.0 ms",
        ),
        ({"latency_s": None}, "The bound is memory: images/s still grew up to this batch, and the next does not fit."),
        ({"latency_s": None}, "No batch above 4 was measured: the next does not fit."),
        ({"latency_s": 0.001}, "1.00 ms cannot be met: batch 1 takes 10.0 ms a step."),
        ({"latency_s": 0.001, "percentile": 99.0}, "1.00 ms cannot be met: batch 1 takes 10.0 ms a step, p99 10.0 ms."),
        ({"target_per_s": None, "percentile": 99.0}, "Batch 4 gives the most within 500 ms (p99): 200 ± 0 images/s"),
        ({"latency_s": None, "stopped_by": "duration"}, "No batch above 4 was measured: the time for it is used up"),
        (
            {"latency_s": None, "stopped_by": "duration"},
            "images/s still grew at this batch, and a larger one may do more.",
        ),
        ({"batches": (out_of_memory(1),)}, "No answer: no batch was measured."),
    ],
)
def test_the_answer_in_words(changes: dict[str, Any], says: str) -> None:
    lines = answer_lines(sized(replace(FULL, **changes)))
    assert any(says in line for line in lines), lines


def test_a_batch_beyond_the_limit_that_may_do_more_is_named() -> None:
    # given rounds of 30, 36 and 42 ms of four images: 111 a second, and the two images of 20 ms do 100
    rounds = tuple(StepRound(np.full(700, step_s)) for step_s in (0.030, 0.036, 0.042))
    found = sized(facts(batch(2, 0.02), replace(batch(4, 0.036), rounds=rounds), latency_s=0.025))
    assert (found.bound, found.chosen_batch) == ("compute", 2)
    assert "batch 4, beyond the limit, may do more images/s, but not beyond the intervals." in answer_lines(found)[1]


def test_an_interval_of_the_count_is_said_where_it_has_one() -> None:
    rounds = tuple(StepRound(np.full(40, step_s)) for step_s in (0.009, 0.010, 0.011))
    line = answer_lines(sized(facts(replace(THREE[0], rounds=rounds), target_per_s=1000.0)))[0]
    assert line.startswith("10 devices (") and " by its interval) for 1,000 images/s" in line


def test_who_feeds_them_in_words() -> None:
    found = " ".join(demand_lines(sized(replace(FULL, latency_s=None))))
    assert "Your storage feeds 3.1 (2.9–3.3) of these devices (620 ± 31 images/s)." in found
    assert "Your 8 workers feed 0.90 (0.81–0.99) of these devices" in found
    assert "The stage prep is not known: that run did not measure it alone." in found
    other = " ".join(demand_lines(sized(replace(FULL, feed=replace(FEED, input_size=224, named=False)))))
    assert "It prepared images of 224×224, not 28×28." in other and "the newest of this machine" in other
    without = " ".join(demand_lines(sized(facts(*THREE, target_per_s=5.0, no_feed="no run is stored"))))
    assert "give --mean-file-bytes" in without and "No stored run was joined: no run is stored." in without
    cpus = replace(FEED, cpu_s_per_sample=None, no_cpu_s="the run has no CPU times")
    assert "CPUs are not known: the run has no CPU times." in demand_lines(sized(replace(FULL, feed=cpus)))


def test_the_legend_says_how_many_steps_a_percentile_needs() -> None:
    short = facts(batch(1, 0.01, num_steps=30), batch(2, 0.01, num_steps=20), target_per_s=1.0)
    (line,) = legend(sized(short))
    assert line.startswith("– too few steps: p95 needs 132, p99 needs 660; 60 to 90 were timed. Give --steps 660")
    on_cpu = sized(replace(short, device=make_device(emulated=False, on_host_cpus=True)))
    assert "not a device's memory" in legend(on_cpu)[0]


def test_known_times_are_never_called_measured_here() -> None:
    known = facts(BatchFacts(64, "ok", known=KnownStep(0.0162, "measured", "CUDA events")), target_per_s=20_000.0,
                  stopped_by="known")  # fmt: skip
    text = " ".join(text_of(known).split())
    assert "Nothing was measured here" in text and "It has no spread" in text
    assert "Batch 64, measured: CUDA events." in text and "p99" not in text


def test_a_report_of_sizing_alone_has_the_answer_and_the_picture(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.new_study("model_size", ["lenet", "infer"])
    found = replace(FULL, latency_s=None)
    folder.write(
        StudyRecord(SCHEMA, RULES_VERSION, folder.study_id, "model_size", folder.started_at, found, sized(found))
    )
    report = read_report(store)
    (part,) = report.parts
    assert part.sentence.startswith("25 devices") and [figure.name for figure in report.figures] == ["model1-batches"]
    page, text = render_html(report), render_markdown(report)
    for rendered in (page, text):
        assert "25 devices for 5,000 images/s" in rendered and "lenet, infer: devices needed" in rendered
        assert "Your storage feeds 3.1" in rendered


def test_the_picture_marks_the_chosen_batch() -> None:
    figure = sizing_figure(sized(replace(FULL, latency_s=None)), "x")
    assert figure is not None
    assert [(row[0], row[-1]) for row in figure.rows] == [(1, "no"), (2, "no"), (4, "yes")]
    assert [row[4] for row in figure.rows] == pytest.approx([10.0, 6.25, 5.0])
    drawn = svg(figure)
    assert "images/s" in drawn and "ms per image" in drawn
    assert sizing_figure(sized(facts(out_of_memory(1))), "x") is None


def test_the_json_has_the_answer_in_words_beside_the_figures() -> None:
    made = replace(FULL, latency_s=None)
    written = as_json(made, sized(made), "an id")
    assert written["study_id"] == "an id" and written["devices_needed"] == 25 and written["bound"] == "memory"
    answer = written["answer"]
    assert isinstance(answer, list) and str(answer[0]).startswith("25 devices")
    failed = written["batches"]
    assert isinstance(failed, list) and isinstance(failed[-1], dict)
    assert failed[-1]["failure"] == {"kind": "OutOfMemory", "message": "does not fit"}
    assert Failure("OutOfMemory", "does not fit") == made.batches[-1].failure
