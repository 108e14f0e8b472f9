"""Seconds of a step from samples: the parts of a step are exact, what is done within them is drawn."""

import numpy as np
import pytest

from loaderbench.analysis.watched_looks import WatchedLooks
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import STEP, STEP_FIELDS, Recording, Segment
from loaderbench.recording.thread_samples import Place, SampledThread, SampleRows
from tests.made import make_facts

WAIT = Place("/lib/queues.py", 1, "Queue.get", "", "library", "queue")
SAMPLER = Place("/home/me/train.py", 13, "Mine.__iter__", "choice", "user", "sampler")
STEP_AT = Place("/home/me/train.py", 20, "train", "", "user", "step")
SAVE = Place("/home/me/train.py", 30, "train", "torch.save", "user", "checkpoint")


def window(waits_s: list[float], steps_s: list[float], begin_s: float = 0.0, arm: Arm = Arm.REAL) -> Segment:
    """One without a warm-up."""
    rows, now = np.zeros((len(steps_s), len(STEP_FIELDS)), dtype=np.int64), begin_s
    for row, wait, step in zip(rows, waits_s, steps_s, strict=True):
        stamps = {"called_ns": now, "returned_ns": now + wait, "issued_ns": now + wait + step}
        stamps["done_ns"] = stamps["issued_ns"]
        for name, at in stamps.items():
            row[STEP[name]] = round(at * 1e9)
        now += wait + step
    return Segment(arm, 0, 0, True, rows, None, round(begin_s * 1e9), round(now * 1e9))


def looks(windows: list[Segment], rows: SampleRows) -> WatchedLooks:
    return WatchedLooks(Recording(windows, make_facts()), rows.samples())


def consumer() -> tuple[SampleRows, int]:
    rows = SampleRows()
    return rows, rows.add_thread(SampledThread("consumer"))


def test_the_time_of_a_part_is_that_of_its_phase_times_its_share() -> None:
    """In each step of 10 ms the script waits for 4, of which it is in the sampler for a quarter."""
    rows, thread = consumer()
    for number in range(100):
        at = number * 0.010
        rows.add(
            at + 0.001, thread, "running" if number % 4 == 0 else "pipe", 1.0, SAMPLER if number % 4 == 0 else WAIT
        )
        rows.add(at + 0.007, thread, "running", 1.0, STEP_AT)
    found = looks([window([0.004] * 100, [0.006] * 100)], rows)
    taken, worked = found.seconds(found.consumer.in_parts("sampler"))
    assert taken.value == pytest.approx(0.001)
    assert worked.value == 0.0
    assert taken.error == pytest.approx(0.004 * (0.25 * 0.75 / 100) ** 0.5, rel=0.1)
    assert found.step_s == pytest.approx(0.010)


def test_long_steps_count_by_their_time_and_not_by_how_often_they_were_sampled() -> None:
    """Every tenth step is 50 ms, all of it saving; few samples met them, and nothing is lost by that."""
    rows, thread = consumer()
    steps = [0.050 if number % 10 == 9 else 0.005 for number in range(100)]
    begins = np.cumsum([0.0, *(step + 0.001 for step in steps)])
    for number, step in enumerate(steps):
        if step > 0.01 and number > 30:
            continue  # the others were missed
        rows.add(float(begins[number]) + 0.002, thread, "running", 1.0, SAVE if step > 0.01 else STEP_AT)
    found = looks([window([0.001] * 100, steps)], rows)
    taken, worked = found.seconds(found.consumer.in_parts("checkpoint"))
    assert taken.value == 0.0
    assert worked.value == pytest.approx(0.050 / 10)


def test_waits_count_in_windows_of_the_run_as_it_is_alone() -> None:
    """Behind a burst all batches are ready: what next() does there is not what it does else."""
    rows, thread = consumer()
    rows.add(0.001, thread, "pipe", 1.0, WAIT)
    rows.add(1.001, thread, "running", 1.0, SAMPLER)
    found = looks([window([0.004] * 20, [0.006] * 20), window([0.004] * 20, [0.006] * 20, 1.0, Arm.DEVICE)], rows)
    assert len(found.consumer) == 1
    taken, _ = found.seconds(found.consumer.in_parts("sampler"))
    assert taken.value == 0.0


def test_workers_count_where_they_make_batches() -> None:
    rows = SampleRows()
    thread = rows.add_thread(SampledThread("worker", 0))
    rows.add(0.001, thread, "pipe", 1.0, Place("/lib/queues.py", 1, "get", "", "library", "indices"))
    rows.add(0.002, thread, "sleep", 3.0, Place("/home/me/data.py", 5, "D.__getitem__", "sleep", "user", "dataset"))
    rows.add(0.003, thread, "running", 1.0, Place("/home/me/data.py", 7, "D.__getitem__", "", "user", "dataset"))
    found = looks([window([0.004] * 20, [0.006] * 20)], rows).workers
    assert found.part(found.in_states(["sleep"])) == pytest.approx(0.75)
    line = found.heaviest(np.ones(2, dtype=bool))
    assert line is not None
    place, state, part = line
    assert (place.line, state, part) == (5, "sleep", pytest.approx(0.75))
