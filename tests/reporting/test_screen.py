"""What a study says on one screen of a terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loaderbench.reporting.result import Column, Result, Table
from loaderbench.reporting.screen import SCREEN_LINES, print_on_a_screen

REST = "loaderbench show it --all"
SHOWN = Path(__file__).parents[1] / "screens/golden/show"


def screen(result: Result, width: int = 80) -> list[str]:
    out = StringIO()
    print_on_a_screen(result, Console(file=out, width=width, force_terminal=True, color_system=None), REST)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def table(rows: int) -> Table:
    return Table("times", [Column("n"), Column("s")], [(number, 2.0 * number) for number in range(rows)], note="a note")


def test_what_fits_is_shown_whole() -> None:
    lines = screen(Result("it", ["a", "b"], ["The answer."], [table(3)], [("Also", ["one"])], [("Run it", "do it")]))
    assert lines[:2] == ["a · b", "The answer."] and "a note" in lines and "  one" in lines and lines[-1] == "do it"


@pytest.mark.parametrize("rows", [10, 18, 19, 40, 200])
def test_a_long_table_is_cut_and_what_to_do_stays(rows: int) -> None:
    found = Result("it", [], ["The answer."], [table(rows), table(9)], [("Also", ["x"] * 9), ("What to do", ["this"])])
    lines = screen(found)
    assert len(lines) <= SCREEN_LINES and "  this" in lines and lines[-1].endswith(REST)
    hidden = int(lines[-1].split()[0])
    whole = [*lines[:-1], *[""] * hidden]
    assert len(whole) == 1 + (2 + 2 + rows + 1) + (2 + 2 + 9 + 1) + (2 + 9) + (2 + 1)


def test_long_answers_keep_their_first_sentences() -> None:
    answer = [
        f"{size}: it is slow. Storage limits it. Try: {'another loader, ' * 12}then look again." for size in "abcd"
    ]
    lines = screen(Result("it", ["set"] * 60, answer, [table(12)]))
    assert len(lines) <= SCREEN_LINES
    assert lines[1:5] == [f"{size}: it is slow. Storage limits it." for size in "abcd"]
    assert sum(line.split()[:1] == [str(number)] for number in range(12) for line in lines) == 12


def test_the_first_screen_of_every_stored_kind_fits() -> None:
    for path in SHOWN.glob("*.80.txt"):
        lines = path.read_text().splitlines()[1:-1]  # without the command and its exit code
        assert len(lines) <= SCREEN_LINES or "-all." in path.name or "-caveats." in path.name, path.name
