"""A folder whose files are slower than the others', against readers whose folders have set speeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from loaderbench.analysis.latency import tail
from loaderbench.analysis.slow_folder import slow_folder
from loaderbench.recording.facts import READ, StorageFacts, Table
from tests.analysis.test_latency import NUM_FILES, readers_at_work, reads

FIVE = StorageFacts(
    NUM_FILES, NUM_FILES * 100_000, None, None,
    slow_files={str(number): f"train/{'abcde'[number % 5]}/{number}.jpg" for number in range(NUM_FILES)},
    slow_folders={"train": NUM_FILES, **{f"train/{one}": NUM_FILES // 5 for one in "abcde"}},
)  # fmt: skip
"""DIR/train/class with five classes of the same size."""


def windows(slow: Callable[[int, np.random.Generator], float], num: int = 4, seconds: float = 0.7) -> list[Table]:
    return [readers_at_work(2, seconds, slow=slow, begin=5.0 * number, seed=number) for number in range(num)]


@pytest.mark.parametrize("longer_s", [0.004, 0.008, 0.02])
def test_one_of_five_classes_on_a_slow_volume_is_named(longer_s: float) -> None:
    # given files of 2 ms and a bit (log-normal, sigma 0.3), and those of class c that take longer
    found = reads(2, *windows(lambda file, _: longer_s if file % 5 == 2 else 0.0))
    assert tail(found, None, FIVE) is None
    slower, typical_s = slow_folder(found, FIVE), 0.0002 + 0.002 * np.exp(0.3**2 / 2)
    assert slower is not None
    assert (slower.folder, slower.of_files) == ("train/c", 0.2)
    assert slower.of_slowest >= 0.8
    assert slower.times == pytest.approx(1 + longer_s / typical_s, rel=0.25)


def test_files_that_are_slow_in_all_folders_name_none() -> None:
    def any_of_them(file: int, random: np.random.Generator) -> float:
        return 0.01 if random.random() < 0.2 else 0.0

    assert slow_folder(reads(2, *windows(any_of_them)), FIVE) is None
    assert slow_folder(reads(2, *windows(lambda *_: 0.0)), FIVE) is None
    # nor a class that is a little slower
    assert slow_folder(reads(2, *windows(lambda file, _: 0.001 if file % 5 == 2 else 0.0)), FIVE) is None


@pytest.mark.parametrize(("larger", "named"), [(4.5, False), (1.5, True)])
def test_a_folder_of_larger_files_is_not_slow(larger: float, named: bool) -> None:
    # given files of class c that take 4.5 times as long, and have more bytes
    tables = windows(lambda file, _: 0.008 if file % 5 == 2 else 0.0)
    for table in tables:
        table[:, READ["bytes"]] = np.where(table[:, READ["image"]] % 5 == 2, larger * 100_000, 100_000)
    found = slow_folder(reads(2, *tables), replace(FIVE, image_bytes=int(NUM_FILES * 1e5 * (0.8 + 0.2 * larger))))
    assert (found is not None) is named


def test_too_few_kept_reads_tell_nothing_of_a_folder() -> None:
    # given windows of which 128 slow reads are kept, and many more are slow
    long = windows(lambda file, _: 0.008 if file % 5 == 2 else 0.0, num=1, seconds=20.0)
    assert slow_folder(reads(2, *long), FIVE) is None
