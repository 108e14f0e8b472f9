"""What workers count besides their spans: objects, samples that repeat, random numbers, who gave each batch."""

from __future__ import annotations

import random
from collections import namedtuple

import numpy as np
import pytest
import torch

from loaderbench.watching import delivered
from loaderbench.watching.delivered import delivery_of, warn_of_shared_memory
from loaderbench.watching.random_marks import RandomMarks
from loaderbench.watching.sample_marks import MARKS, SampleMarks
from loaderbench.watching.spans import SpanRing

MILLISECOND = 1_000_000


# -- what is delivered -----------------------------------------------------------------------------------------


def test_objects_are_counted_by_sample_and_by_field() -> None:
    images = torch.zeros(16, 3, 8, 8)
    targets = [{"boxes": torch.ones(4, 4), "label": torch.ones(4, dtype=torch.int64), "name": "a"}] * 16
    found = delivery_of((images, targets))
    assert (found.objects, found.joined) == (33, 3)
    assert found.shared_bytes == 16 * 3 * 64 * 4 + 16 * (64 + 32)


@pytest.mark.parametrize(
    ("batch", "objects", "joined"),
    [
        (torch.zeros(4), 1, 1),
        ([torch.zeros(4), torch.zeros(4)], 2, 2),  # an input and its label
        ([torch.zeros(number) for number in range(1, 40)], 39, 1),  # samples of unlike lengths
        ({f"column {number}": np.zeros(64) for number in range(200)}, 200, 1),  # like columns
        (namedtuple("Pair", "x y")([torch.zeros(1)] * 8, [torch.zeros(1)] * 8), 16, 2),
        ("no array", 0, 1),
    ],
)
def test_the_kinds_of_a_batch(batch: object, objects: int, joined: int) -> None:
    found = delivery_of(batch)
    assert (found.objects, found.joined) == (objects, joined)


def test_too_little_shared_memory_is_said_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    warn_of_shared_memory(10 << 20, 4, (64 << 20, 60 << 20))
    assert capfd.readouterr().err == ""
    warn_of_shared_memory(10 << 20, 4, (64 << 20, 40 << 20))
    said = capfd.readouterr().err
    assert "52.4 MB" in said and "--shm-size" in said
    assert delivered.room_needed(10 << 20, 4) == 50 << 20


# -- samples that repeat ---------------------------------------------------------------------------------------


def marks_of(by_worker: list[list[object]]) -> float | None:
    marks = SampleMarks(len(by_worker))
    for worker, samples in enumerate(by_worker):
        marks.begin(worker)
        for begin in range(0, len(samples), 8):
            marks.add(worker, samples[begin : begin + 8], MILLISECOND * 100)
    return marks.repeats()


@pytest.mark.parametrize("num", [100, 3000])
def test_samples_that_all_workers_give_are_counted(num: int) -> None:
    samples: list[object] = [(torch.zeros(3, 4), number) for number in range(num)]
    assert marks_of([samples, samples]) == pytest.approx(2.0)
    assert marks_of([samples, samples, samples]) == pytest.approx(3.0)
    shuffled = random.Random(1).sample(samples, num)
    assert marks_of([samples, shuffled]) == pytest.approx(2.0)


@pytest.mark.parametrize("num", [100, 3000])
def test_samples_that_are_divided_come_once(num: int) -> None:
    samples: list[object] = [{"x": np.arange(5), "key": f"{number}"} for number in range(num)]
    assert marks_of([samples[::2], samples[1::2]]) == 1.0
    assert marks_of([samples[: num // 4], samples[num // 4 :]]) == 1.0


def test_half_of_the_samples_in_both_workers() -> None:
    samples: list[object] = list(range(4000))
    found = marks_of([samples[:3000], samples[1000:]])  # 2,000 of 4,000 come twice
    assert found == pytest.approx(1.5, abs=4 / MARKS**0.5)


def test_samples_that_look_alike_tell_nothing() -> None:
    alike: list[object] = [torch.zeros(3, 4)] * 500
    assert marks_of([alike, alike]) is None
    assert marks_of([[1, 2, 3], [1, 2, 3]]) is None  # too few


# -- random numbers --------------------------------------------------------------------------------------------


class Held:
    def __init__(self, seed: int | None) -> None:
        self.generator = np.random.default_rng(seed)


def test_workers_that_draw_the_same_numbers() -> None:
    marks, workers = RandomMarks(2), [Held(7), Held(7)]
    for number, data in enumerate(workers):
        random.seed(number)
        torch.manual_seed(number)
        np.random.seed(3)  # noqa: NPY002
        marks.before(number, data)
        random.random()
        torch.rand(1)
        np.random.random()  # noqa: NPY002
        data.generator.random()
        marks.after(number, data)
    assert marks.same() == ("numpy.random", "the data set's own generator")


def test_the_same_state_without_draws_is_no_finding() -> None:
    marks = RandomMarks(2)
    for number in range(2):
        random.seed(0)
        marks.before(number, Held(None))
        marks.after(number, Held(None))
    assert marks.same() == ()


# -- who gave each batch ---------------------------------------------------------------------------------------


def test_spans_follow_the_worker_of_each_batch() -> None:
    ring = SpanRing(2)
    for number in range(3):
        ring.add(0, (number, number + 1, number + 2, 0, 0, 0, 0, 0, 0, 0))
    ring.add(1, (100, 101, 102, 0, 0, 0, 0, 0, 0, 0))
    assert ring.table([0, 0], 0, 4) is None  # in turn, the second worker would have made two
    table = ring.table([0, 0], 1, 3, [0, 0, 1, 0])
    assert table is not None
    assert table[:, :2].tolist() == [[0, 1], [1, 100], [0, 2]]
    assert ring.first_s(1, 0) == pytest.approx(2e-9)
    assert ring.first_s(1, 1) is None
