"""Where a watched script's time went, in lines, by facts made by hand."""

from dataclasses import replace

import pytest

from loaderbench.recording.facts import WatchedApplied, WatchedSeconds
from loaderbench.reporting.watched import time_lines
from loaderbench.reporting.watched_words import loader_names
from tests.watched_facts import watched_facts


def test_a_loader_that_was_changed_is_one_loader_before_and_behind_the_change() -> None:
    plain = watched_facts()
    (main,) = plain.loaders
    before = replace(main, num_iterators=1, num_batches=100, seconds=WatchedSeconds(0.1, 0.1, 3.0, 1.0, 0.0, 0.0))
    spent = WatchedSeconds(0.2, 0.2, 0.4, 3.6, 0.0, 0.0)
    behind = replace(main, workers=4, num_iterators=2, num_batches=200, seconds=spent)
    facts = replace(
        plain, loaders=(before,), wall_s=10.0, before_s=1.0, applied=WatchedApplied({"workers": 4}, 2, (), behind)
    )
    lines = time_lines(facts)
    assert lines[0] == (
        "80 %  300 steps of DataLoader over Photos of 800: 100 before --apply, 75 % of it in next(), and 200 after it, "
        "10 % of it in next()"
    )
    assert "6 %  until the first batch of each of 3 epochs: 200 ms each" in lines
    assert sum("DataLoader" in line for line in lines) == 1
    assert sum(int(line.split()[0]) for line in lines) == 100  # 80, 10, 6 and 4


def named(*what: dict[str, object]) -> list[str]:
    (one,) = watched_facts().loaders
    return [name.removeprefix("DataLoader over ") for name in loader_names([replace(one, **of) for of in what])]


@pytest.mark.parametrize(
    ("loaders", "names"),
    [
        ([{}], ["Photos of 800"]),
        ([{"iterated_at": ("a.py:1",)}, {"data": "Held"}], ["Photos of 800", "Held of 800"]),
        ([{"phase": "train"}, {"phase": "evaluate"}], ["Photos of 800 (in training)", "Photos of 800 (in evaluation)"]),
        (
            [{"iterated_at": ("a.py:7", "a.py:20")}, {"num_samples": 9}, {"iterated_at": ("a.py:7", "a.py:22")}],
            ["Photos of 800 (first iterated at a.py:20)", "Photos of 9", "Photos of 800 (first iterated at a.py:22)"],
        ),
        (
            [{"iterated_at": ("a.py:7",)}, {"iterated_at": ("a.py:7",)}],
            [f"Photos of 800 (loader {k} of 2 such, first iterated at a.py:7)" for k in (1, 2)],
        ),
        ([{}, {"phase": "train"}], [f"Photos of 800 (loader {k} of 2 such)" for k in (1, 2)]),  # an older record
    ],
)
def test_each_loader_has_a_name_of_its_own(loaders: list[dict[str, object]], names: list[str]) -> None:
    assert named(*loaders) == names
