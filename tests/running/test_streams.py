"""Streams that go on from one window of a loader to the next: when they may, and that nothing of it is measured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loaderbench.cases.arms import Arm
from loaderbench.loaders.base import Batch, Loader
from loaderbench.recording.facts import SPAN, SPAN_FIELDS, STEP, STEP_FIELDS, Segment, Table
from loaderbench.running import feeds
from loaderbench.running.feeds import Feeds
from loaderbench.running.jobs.measure import measure
from loaderbench.running.jobs.table import MeasureRequest
from loaderbench.running.loop import StepLoop
from loaderbench.running.streams import Pace, Stream, come_to_rest, complete, goes_straight_on, is_as_before, pace_of
from loaderbench.running.window import durations
from loaderbench.selftest.injections import Injection
from tests.made import make_case, make_segment

MS = 1_000_000


def window(arm: Arm, wait_ms: list[int], step_ms: int = 10, *, steady: bool = True) -> Segment:
    """Steps that wait for their batch and then take `step_ms` on the device, one after the other."""
    table, now = np.full((len(wait_ms) + 1, len(STEP_FIELDS)), -1, dtype=np.int64), 0
    for row, wait in zip(table, [0, *wait_ms], strict=True):
        row[STEP["called_ns"]], row[STEP["returned_ns"]] = now, now + wait * MS
        now += (wait + step_ms) * MS
        row[STEP["done_ns"]] = now if arm.on_device else -1
        row[STEP["waited_ns"]] = now
    return make_segment(arm, table, steady=steady)


@pytest.mark.parametrize(
    ("arm", "waits", "pace"),
    [
        (Arm.REAL, [10] * 8, "starved"),
        (Arm.REAL, [0, 10] * 4, "starved"),  # two workers that hand over together: one wait a round
        (Arm.REAL, [0] * 8, "full"),
        (Arm.REAL, [0, 0, 0, 0, 0, 9, 0, 0], None),  # now and then: neither
        (Arm.FREE, [5] * 8, "starved"),
        (Arm.FREE, [0] * 8, None),  # without a device there is nothing that a full queue could be ahead of
        (Arm.REAL, [10] * 3, None),  # one round and a half tell nothing
    ],
)
def test_the_pace_of_a_window(arm: Arm, waits: list[int], pace: str | None) -> None:
    assert pace_of(window(arm, waits), lanes=2) == pace


def test_a_window_that_was_not_steady_has_no_pace() -> None:
    assert pace_of(window(Arm.REAL, [10] * 8, steady=False), lanes=2) is None


def test_a_host_that_waits_while_the_device_works_does_not_starve_it() -> None:
    real = window(Arm.REAL, [8] * 8)
    real.steps[:, STEP["done_ns"]] = np.arange(1, 10) * 30 * MS  # the device ends a step each 30 ms
    assert pace_of(real, lanes=2) == "full"


def loop_of(steps: list[tuple[int, int, int]]) -> StepLoop:
    """(called, returned, start of the batch's making) of each step, in ms; a batch takes 1 ms to make."""
    spans = []
    for _, _, start in steps:
        span = np.zeros(len(SPAN_FIELDS), dtype=np.int64)
        span[SPAN["start_ns"]], span[SPAN["ready_ns"]] = start * MS, (start + 1) * MS
        spans.append(span)
    host = [(called * MS, returned * MS, returned * MS, (returned + 10) * MS, 1, 1) for called, returned, _ in steps]
    return cast(StepLoop, SimpleNamespace(host=host, spans=spans))


def test_a_window_opens_when_the_head_start_is_used_up() -> None:
    # given a queue that went on at 100 ms, with two batches of before
    old, new = [(100, 100, 50), (110, 110, 60)], [(120, 125, 115), (135, 140, 125)]
    assert not is_as_before(loop_of(old), "full", 100 * MS, lanes=2)
    assert not is_as_before(loop_of(old + new[:1]), "full", 100 * MS, lanes=2)
    assert is_as_before(loop_of(old + new), "full", 100 * MS, lanes=2)
    # a loader that is behind must be waited for again as well
    assert is_as_before(loop_of(old + new), "starved", 100 * MS, lanes=2)
    ready = [(called, called, start) for called, _, start in new]
    assert not is_as_before(loop_of(old + ready), "starved", 100 * MS, lanes=2)
    # a new stream has no head start; a full queue must be seen to fill
    assert is_as_before(loop_of(new), "starved", None, lanes=2)
    assert not is_as_before(loop_of(new), "full", None, lanes=2)


def test_a_window_within_a_step_of_the_last_one_goes_straight_on() -> None:
    behind, ahead = window(Arm.REAL, [30] * 8), window(Arm.REAL, [0] * 8)  # of steps of 40 and of 10 ms

    def straight(last: Segment, arm: Arm, later_ms: int) -> bool:
        resumed_ns = int(last.steps[-1, STEP["returned_ns"]]) + later_ms * MS
        return goes_straight_on(Stream(iter(()), resumed_ns=resumed_ns, windows=[last]), arm)

    assert straight(behind, Arm.REAL, 39) and not straight(behind, Arm.REAL, 41)
    assert straight(ahead, Arm.REAL, 9) and not straight(ahead, Arm.REAL, 11)
    # without the device, a loader that was ahead has a queue to empty first
    assert straight(behind, Arm.FREE, 39) and not straight(ahead, Arm.FREE, 9)
    free = window(Arm.FREE, [30] * 8)
    assert straight(free, Arm.FREE, 38) and not straight(free, Arm.REAL, 38)
    assert not goes_straight_on(Stream(iter(()), resumed_ns=0), Arm.REAL)
    assert not goes_straight_on(Stream(iter(()), windows=[behind]), Arm.REAL)


def spans(*begins_ms: int) -> Table:
    table = np.zeros((len(begins_ms), len(SPAN_FIELDS)), dtype=np.int64)
    table[:, SPAN["start_ns"]] = np.array(begins_ms) * MS
    return table


def test_each_window_of_a_stream_gets_the_batches_that_were_begun_in_it() -> None:
    steps = np.zeros((2, len(STEP_FIELDS)), dtype=np.int64)
    first = make_segment(Arm.REAL, steps, spans(1, 5), closed_ns=10 * MS)
    second = make_segment(Arm.FREE, steps, spans(8, 12), closed_ns=20 * MS)
    complete([first, second], spans(15, 18, 25))
    assert first.spans is not None and second.spans is not None
    assert (first.spans[:, SPAN["start_ns"]] // MS).tolist() == [1, 5, 8]
    assert (second.spans[:, SPAN["start_ns"]] // MS).tolist() == [8, 12, 15, 18]
    assert (first.num_drained, second.num_drained) == (1, 2)


def test_a_loader_without_spans_completes_nothing() -> None:
    segment = make_segment(Arm.REAL, np.zeros((2, len(STEP_FIELDS)), dtype=np.int64))
    complete([segment], None)
    assert segment.spans is None and segment.num_drained is None


class TellingLoader:
    def __init__(self) -> None:
        self.closed = 0

    def batches(self) -> Iterator[Batch]:
        try:
            while True:
                yield Batch(None, None, 1, 0)
        finally:
            self.closed += 1

    def drained_spans(self) -> Table:
        return spans(3)


def test_ending_a_stream_closes_it_once_and_tells_what_was_left() -> None:
    loader = TellingLoader()
    stream = Stream(loader.batches(), cast(Loader, loader))
    next(stream.batches)
    drained = stream.close()
    assert drained is not None and len(drained) == 1
    stream.close()
    assert loader.closed == 1


def test_rest_is_seen_by_the_processor_time_of_other_threads() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert not come_to_rest(0.2)
        threading.Timer(0.15, stop.set).start()
        assert come_to_rest(5.0)
    finally:
        stop.set()
        thread.join()


# -- whole runs ----------------------------------------------------------------------------------------------


def segments_of(images: Path, loader: str, sleep_s: float, **changes: Any) -> list[Segment]:
    """Of a run whose one worker takes `sleep_s` more for a batch; the device takes about 4 ms."""
    given: dict[str, Any] = {
        "dataset": str(images), "dataset_name": "none", "resolution": None, "loader": loader, "workers": 1,
        "prefetch": 2, "batch_size": 4, "mode": "infer", "precision": "amp-bf16",
        "device": "emulated:h200-resnet50-infer-amp-bf16", "input_size": 64, "output": "uint8", "duration_s": 2.0,
        "kernels": False, "cache": "warm",
    }  # fmt: skip
    case = make_case(**given | changes)
    return measure(MeasureRequest(case, Injection(collate_sleep_s=sleep_s)), lambda message: None).segments


@pytest.mark.alone
@pytest.mark.parametrize("loader", ["threaded", "multiprocess"])
def test_a_window_of_a_stream_that_goes_on_holds_no_batch_that_was_ready_before(image_tree: Path, loader: str) -> None:
    segments = segments_of(image_tree, loader, 0.05)
    went_on = [one for one in segments if one.first_batch_s is None and one.arm in (Arm.REAL, Arm.RAM, Arm.FREE)]
    assert went_on
    # the worker needs 50 ms for each; of two that it had ready, one alone would make seven steps shorter by a seventh
    for one in went_on:
        assert float(durations(one).mean()) > 0.047
        assert one.num_drained is not None


@pytest.mark.alone
def test_a_window_that_goes_straight_on_has_more_steps_of_the_same_time(image_tree: Path) -> None:
    # without `device`, beside which `free` is left out for want of time
    arms = (Arm.RAM, Arm.REAL, Arm.FREE)
    segments = segments_of(image_tree, "threaded", 0.4, prefetch=1, duration_s=3.0, arms=arms)
    straight = [one for one in segments if one.num_warmup == 1]
    assert {one.arm for one in straight} == {Arm.REAL, Arm.FREE}
    for one in straight:
        assert len(one.window) == 3  # a round more than the two of a window that warms up
        assert durations(one).min() > 0.36  # a batch that was ready before would make one shorter
        assert durations(one).max() < 0.7  # and two batches in one, longer


def test_over_cold_files_each_window_has_a_stream_of_its_own(image_tree: Path) -> None:
    segments = segments_of(image_tree, "threaded", 0.02, cache="cold", arms=(Arm.REAL, Arm.FREE, Arm.DEVICE))
    assert all(one.first_batch_s is not None for one in segments)


def test_a_given_number_of_warm_up_steps_is_that_of_each_stream(image_tree: Path) -> None:
    segments = segments_of(image_tree, "threaded", 0.01, warmup=3)
    assert {one.num_warmup for one in segments} == {3}
    assert all(one.first_batch_s is not None for one in segments)


def test_streams_rest_or_end_before_an_arm_without_their_loader_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = True
    monkeypatch.setattr(feeds, "come_to_rest", lambda most_s: rests)

    def left(arm: Arm | None, pace: Pace | None) -> bool:
        """Whether the stream of `real` is open behind `rest`."""
        loader = TellingLoader()
        stream = Stream(loader.batches(), cast(Loader, loader), pace=pace)
        next(stream.batches)
        some = object.__new__(Feeds)
        some._open = {Arm.REAL: stream}
        some.rest(arm)
        assert loader.closed == (Arm.REAL not in some._open)
        return Arm.REAL in some._open

    assert left(Arm.FREE, None) and left(Arm.REAL, "starved")  # the loader's own arms
    assert left(Arm.DEVICE, "full") and left(Arm.RAM, "full") and left(Arm.FETCH, "full")
    assert not left(Arm.DEVICE, "starved") and not left(Arm.RAM, None)
    assert not left(Arm.SHORT, "full") and not left(Arm.TRACED, "full") and not left(None, "full")
    rests = False
    assert not left(Arm.DEVICE, "full")
