"""What else a watched script showed, from facts made by hand: told where it matters, and not told where it does not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.analysis.steps import handover_of, window_quantities
from loaderbench.analysis.watched_notes import growth, notes_of
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SPAN, STEP, WatchedMemory, WatchedShared
from tests.watched_facts import MS, epoch, run_of, segment, settings, watched_facts

MIB = 1 << 20


def told(segments: Any = (), cpus: int = 8, starved: float | None = 0.0, **facts: Any) -> list[str]:
    return [one.text() for one in notes_of(watched_facts(**facts), segments, cpus, starved)]


def memory(*, own: float = 0.0, workers: float = 0.0, num: int = 40) -> tuple[WatchedMemory, ...]:
    """Growth in MiB a 1,000 batches; two epochs, whose workers begin anew; readings 50 batches apart."""
    random = np.random.default_rng(1)
    found = []
    for number in range(num):
        batch, of_epoch = 50 * number, 50 * (number % (num // 2))
        noise = random.integers(-MIB // 4, MIB // 4)
        script = int((500 + own * batch / 1000) * MIB) + int(noise)
        found.append(
            WatchedMemory(batch, 1 + number // (num // 2), script, int((300 + workers * of_epoch / 1e3) * MIB), 2)
        )
    return tuple(found)


def test_memory_that_grows_is_told_for_the_script_and_for_its_workers() -> None:
    assert told(memory=memory()) == []
    (own,) = told(memory=memory(own=100))
    assert own.startswith("the memory of the script grows by") and "10" in own
    (theirs,) = told(memory=memory(workers=200))
    assert "its workers together" in theirs and "within an epoch" in theirs
    found = growth([(one.batch, one.script_bytes) for one in memory(own=100)])
    assert found == pytest.approx(100 * MIB, rel=0.05)


def test_memory_that_only_fills_up_at_the_start_or_varies_is_no_growth() -> None:
    filled = tuple(replace(one, script_bytes=500 * MIB + min(one.batch, 400) * MIB) for one in memory())
    assert told(memory=filled) == []
    random = np.random.default_rng(2)
    noisy = tuple(replace(one, script_bytes=int((500 + random.normal(0, 60)) * MIB)) for one in memory())
    assert told(memory=noisy) == []
    assert told(memory=memory(own=100, num=8)) == []  # too few readings


def test_every_nth_batch_is_waited_for_where_n_workers_hand_over_in_turn() -> None:
    step = np.full(200, 2.0)
    assert any("for one batch in 4" in one for one in told([segment(np.full(200, 40.0), step, 4)], workers=4))
    assert told([segment(np.full(200, 40.0), step, 1)], workers=1) == []
    assert told([segment(np.full(200, 4.0), np.full(200, 10.0), 4)], workers=4) == []  # nothing is waited for
    random = np.random.default_rng(4)
    assert told([segment(random.exponential(12.0, 400), random.exponential(2.0, 400), 4)], workers=4) == []


def test_batches_that_take_long_to_take_over() -> None:
    real = segment(np.full(200, 4.0), np.full(200, 40.0), 2)
    burst = replace(segment(np.full(6, 0.1), np.full(6, 40.0), 2), arm=Arm.DEVICE, num_warmup=1)
    burst.steps[:, STEP["returned_ns"]] = burst.steps[:, STEP["called_ns"]] + 30 * MS
    (found,) = told([real, burst], workers=2)
    assert "takes 30 ms of a step's" in found
    assert told([real, burst], workers=2, starved=0.3) == []  # it may have waited for a processor
    assert told([real, burst], workers=2, uses_cuda=True) == []
    burst.steps[:, STEP["returned_ns"]] = burst.steps[:, STEP["called_ns"]] + MS
    assert told([real, burst], workers=2) == []


def test_more_threads_than_processors() -> None:
    many = settings(worker_torch_threads=4)
    (found,) = told(workers=4, cpus=4, settings=many, torch_threads=1)
    assert "4 workers with 4 threads each" in found and "share 4" in found
    assert told(workers=4, cpus=16, settings=many, torch_threads=1) == []
    crowded: dict[str, Any] = {
        "workers": 4,
        "cpus": 4,
        "settings": settings(worker_torch_threads=1),
        "torch_threads": 4,
    }
    assert told(**crowded, starved=0.0) == []  # nobody waits for a processor
    (found,) = told(**crowded, starved=0.4)
    assert "and 4 threads of the script" in found and "40%" in found
    assert told(**crowded, starved=0.4, uses_cuda=True) == []  # those are idle while a GPU computes


def test_shared_memory_that_is_nearly_full() -> None:
    assert told(shared=WatchedShared(64 * MIB, 32 * MIB)) == []
    (found,) = told(shared=WatchedShared(64 * MIB, 3 * MIB))
    assert "/dev/shm" in found and "--shm-size" in found
    assert told(shared=WatchedShared(64 * MIB, 3 * MIB), workers=0) == []


def test_a_first_epoch_unlike_the_later_ones() -> None:
    cold = (epoch(0.1, 0.1, 3.0, 1.0), epoch(0.1, 0.1, 0.0, 1.0), epoch(0.1, 0.1, 0.1, 1.0))
    (found,) = told(epochs=cold)
    assert "40 ms" in found and "10.5 ms" in found
    assert told(epochs=cold[1:]) == []
    assert told(epochs=(cold[0], epoch(0.1, 0.1, 0.0, 0.5, num=50))) == []  # not of the same length


def test_notes_stand_in_the_record() -> None:
    record = analyze(run_of(segment(np.full(200, 40.0), np.full(200, 2.0), 4), 4))
    assert [one.code for one in record.notes] == ["in_turn"]


# -- a batch that is complete is not there yet ---------------------------------------------------------------


def test_a_batch_that_its_worker_sends_late_was_waited_for() -> None:
    one = segment(np.full(60, 20.0), np.full(60, 5.0), 1)
    late = replace(one, spans=one.spans.copy())  # type: ignore[union-attr]
    assert late.spans is not None
    late.spans[:, SPAN["ready_ns"]] = late.steps[:, STEP["called_ns"]] - MS  # complete before it was asked for
    ready = replace(segment(np.full(4, 0.1), np.full(4, 5.0), 1), arm=Arm.DEVICE, num_warmup=1)
    ready.steps[:, STEP["returned_ns"]] = ready.steps[:, STEP["called_ns"]] + MS // 2
    handover = handover_of([late, ready])
    assert handover == MS // 2
    stall = window_quantities(late, handover)
    assert stall is not None and stall["stall"].mean() == pytest.approx(0.015 - 0.0005, rel=0.05)
    assert handover_of([late]) is not None  # it waits for most of its time
    quick = segment(np.full(60, 2.0), np.full(60, 5.0), 1)
    assert handover_of([quick]) is None


def test_a_machine_that_stood_still_at_one_hand_over_hides_no_wait() -> None:
    # 20 ready batches of 0.1 to 2 ms, and one of 30 ms: nine in ten took 1.9 ms or less
    ready = replace(segment(np.full(22, 0.1), np.full(22, 50.0), 1), arm=Arm.DEVICE, num_warmup=1)
    took = [0.0, *(0.1 * number for number in range(1, 21)), 30.0]
    ready.steps[:, STEP["returned_ns"]] = ready.steps[:, STEP["called_ns"]] + np.asarray(took) * MS
    assert handover_of([ready]) == pytest.approx(1.9 * MS)
