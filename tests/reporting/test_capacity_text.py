"""How many ranks a storage feeds: in words, in a table, in a picture."""

from __future__ import annotations

import io

import pytest
from capacity_facts import au_look, capacity_facts, of_storage
from rich.console import Console

from loaderbench.analysis.capacity import capacity_of
from loaderbench.recording.capacity import CapacityFacts
from loaderbench.recording.facts import Failure
from loaderbench.reporting.capacity import capacity_page, headline, point_rows, print_capacity
from loaderbench.reporting.figures import svg

FULL = of_storage([1, 2, 4, 8, 16, 12, 10, 11])


def text_of(facts: CapacityFacts, width: int = 200) -> str:
    stream = io.StringIO()
    print_capacity(capacity_of(facts), Console(file=stream, width=width, color_system=None))
    return " ".join(stream.getvalue().split())


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            capacity_facts(*FULL),
            "It feeds 11 accelerators at AU ≥ 90 %; one more is stopped by the storage's bandwidth.",
        ),
        (
            capacity_facts(*of_storage([1, 2]), max_ranks=2),
            "It feeds 2 accelerators at AU ≥ 90 %, and no more were tried.",
        ),
        (
            capacity_facts(au_look(1, 0.5), au_look(2, 0.5), storage=4000.0),
            "It does not feed one accelerator at AU ≥ 90 %; that is stopped by the storage's latency.",
        ),
        (
            capacity_facts(*of_storage([1, 2])),
            "How many accelerators it feeds is not known: it ended while 2 still reached the target.",
        ),
        (capacity_facts(), "How many accelerators it feeds is not known: no number of ranks was measured."),
    ],
)
def test_the_first_sentence_says_it_all(facts: CapacityFacts, sentence: str) -> None:
    assert headline(capacity_of(facts)) == sentence


def test_the_answer_stands_beside_its_prediction_and_its_evidence() -> None:
    text = text_of(capacity_facts(*FULL), width=1000)
    assert "Predicted from one and two ranks: 11, by the storage's bandwidth." in text
    assert "With 12: AU 83.3 %, 100 % of the storage's ceiling is used, 20 % of the processors' time" in text
    assert "one rank at AU 100 % takes 40.0 images/s" in text and "held none of a sample" in text
    assert "this machine's processors: 55 ranks (2 CPUs ÷ 1.00 ms an image)" in text


def test_mlperfs_figure_stands_beside_ours_and_is_told_apart() -> None:
    facts = capacity_facts(*FULL)
    assert [row[-1] for row in point_rows(capacity_of(facts))] == [
        "100.0 %", "100.0 %", "100.0 %", "100.0 %", "100.0 %", "90.9 %", "83.3 %", "62.5 %",
    ]  # fmt: skip
    text = text_of(facts)
    assert "of every step but the first" in text and "at least 500 steps" in text and "no results of that" in text


def test_what_ended_it_is_said() -> None:
    broken = capacity_facts(
        *of_storage([1, 2]), failure=Failure("CaseFailed", "rank 3 of 4: killed"), interrupted=False
    )
    assert "It ended early: rank 3 of 4: killed." in text_of(broken)
    assert "It did not come to its end" in text_of(capacity_facts(*of_storage([1]), interrupted=True))


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    stream = io.StringIO()
    print_capacity(capacity_of(capacity_facts(*FULL)), Console(file=stream, width=80, color_system=None))
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    assert " MLPerf" in stream.getvalue() and "…" not in stream.getvalue()


def test_the_page_has_a_table_and_a_picture_of_au_and_rate() -> None:
    page = capacity_page(capacity_of(capacity_facts(*FULL)), "one", drawn=True)
    (figure,) = page.figures
    assert len(figure.rows) == len(page.tables[0].rows) == 8
    assert figure.rows[-1][:2] == (16, pytest.approx(62.5))
    drawn = svg(figure)
    assert "<svg" in drawn and "images/s" in drawn
    assert capacity_page(capacity_of(capacity_facts(au_look(1, 1.0))), "one", drawn=True).figures == []
