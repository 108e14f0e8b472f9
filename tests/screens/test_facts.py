"""What is taken from a text: no other words change it, and each other number, unit, code or flag does."""

from __future__ import annotations

import json

import pytest

from tests.screens.facts import facts_of, split_json
from tests.screens.shown import page_text, same_everywhere

TEXT = """\
prep: the loader gives 1,000 ± 18 images/s, 70.0 ms/step (p95 79.8 ms), 46 % of it waiting; 2 workers, resnet18
kernel_gap_not_measured: give --kernels; run 20260101-000000-000-a
-- exit code 1 --
"""


def test_all_is_found_with_its_unit() -> None:
    assert facts_of(TEXT) == (
        "%: 46\ncodes: kernel_gap_not_measured\nexit code: 1\nflags: --kernels\nids: 20260101-000000-000-a\n"
        "images/s: 18\nms: 79.8\nms/step: 70.0\nnumbers: 2, 1,000\n"
    )


def test_other_words_in_another_order_say_the_same() -> None:
    other = """\
It waits for 46 % of a step of 70.0 ms/step, p95 79.8 ms. With 2 workers resnet18 is fed 1,000 ± 18 images/s.
--kernels was not given (kernel_gap_not_measured, 20260101-000000-000-a): kernel_gap_not_measured
-- exit code 1 --
"""
    assert facts_of(other) == facts_of(TEXT)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("1,000", "1,001"), ("18 images/s", "18 samples/s"), ("70.0 ms", "70.0 s"), ("46 %", "46"), (" 2 ", " two "),
        ("kernel_gap_not", "kernel_not"), ("--kernels", "--steps"), ("code 1", "code 0"), ("000-a", "000-b"),
        ("70.0 ms/step", "70.0 ms/step, 70.0 ms/step"),
    ],
)  # fmt: skip
def test_what_is_changed_besides_words_shows(text: str, other: str) -> None:
    assert text in TEXT
    assert facts_of(TEXT.replace(text, other)) != facts_of(TEXT)


def test_a_json_is_split_into_what_programs_read_and_what_people_read() -> None:
    split = split_json(json.dumps({"a": [{"code": "x_y", "text": "in words"}], "n": 1.23456789012345, "none": None}))
    assert json.loads(split.data) == {"a": [{"code": "x_y", "text": "…"}], "n": 1.23456789, "none": None}
    assert split.sentences == "a[0].text: in words\n"


def test_a_page_is_read_line_by_line_and_can_be_read_without_its_figures_data() -> None:
    page = (
        "<body><h1>A &amp; B</h1><script>no</script><details><summary>Rows</summary>\n"
        '<p class="download">CSV</p><table><tr><td>1</td><td>2</td></tr></table></details><p>end</p>'
    )
    assert page_text(page) == "A & B\nRows\nCSV\n1 | 2\nend\n"
    assert page_text(page, data=False) == "A & B\nRows\nend\n"


def test_colours_can_be_read_and_long_numbers_are_cut() -> None:
    assert same_everywhere("\x1b[1;38;5;208mprep\x1b[0m 0.12345678901  \n") == "⟦bold colour 208⟧prep⟦/⟧ 0.123456789\n"
