"""Peaks, kinds and lines of memory traces that are written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loaderbench.analysis.memory import course_of, layers_of, line_holds, line_through, peak_bytes, peak_of
from loaderbench.recording.model_memory import MEMORY_KINDS, STEP_PHASES, LayerOutput, MemoryTrace

PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY = range(len(MEMORY_KINDS))
STANDING, FORWARD, BACKWARD, UPDATE = range(len(STEP_PHASES))


def trace(batch: int, *, weights: int = 1000, activation: int = 10, workspace: int = 700) -> MemoryTrace:
    """Weights stand; two activations of each image, then a gradient, and a workspace in the update."""
    allocations = [
        [weights, PARAMETERS], [activation * batch, ACTIVATIONS], [2 * activation * batch, ACTIVATIONS],
        [weights, GRADIENTS], [workspace, TEMPORARY],
    ]  # fmt: skip
    events = [
        (0, 1, STANDING, 0, 0), (1, 1, FORWARD, 1, 1), (2, 1, FORWARD, 2, 2), (3, 1, BACKWARD, 3, 2),
        (2, -1, BACKWARD, 3, 2), (1, -1, BACKWARD, 3, 1), (4, 1, UPDATE, 4, 0), (4, -1, UPDATE, 4, 0),
        (3, -1, UPDATE, 4, 0),
    ]  # fmt: skip
    layers = (LayerOutput("a", "Conv2d", (batch, 1), activation * batch, 2),
              LayerOutput("b", "ReLU", (batch, 2), 2 * activation * batch, 3))  # fmt: skip
    names = ("", "aten.conv", "aten.relu", "aten.back", "aten.add")
    return MemoryTrace(batch, np.array(allocations), np.array(events), names, ("", "a", "b"), layers, 0.0)


def test_the_peak_has_its_kinds_and_its_place() -> None:
    # given a batch whose activations are more than the update's workspace
    peak = peak_of(trace(100))
    # then the peak is where the gradient joins them
    memory = peak.memory
    assert memory.peak_live_bytes == 1000 + 30 * 100 + 1000
    assert (memory.parameters_bytes, memory.gradients_bytes, memory.activations_bytes) == (1000, 1000, 3000)
    assert (memory.optimizer_bytes, memory.temporary_bytes) == (0, 0)
    assert (peak.place.phase, peak.place.module, peak.place.operator) == ("backward", "b", "aten.back")


def test_the_peak_moves_with_the_batch() -> None:
    # given a batch so small that the update's workspace is more than its activations
    peak = peak_of(trace(1))
    assert (peak.place.phase, peak.memory.peak_live_bytes) == ("update", 2700)
    assert peak.memory.temporary_bytes == 700


def test_the_line_knows_both_sides_of_the_bend() -> None:
    # given two traces beyond the bend, where one line through their peaks would be wrong below it
    line = line_through([trace(50), trace(100)])
    assert line is not None
    for batch in (1, 2, 23, 24, 80, 1000):
        assert line.peak_bytes(batch) == peak_bytes(trace(batch)) == max(2000 + 30 * batch, 2700)
    assert line_holds(line, trace(7)) and not line_holds(line, trace(7, workspace=900))


@pytest.mark.parametrize(("cap", "largest"), [(2699, 0), (2700, 23), (2720, 24), (2721, 24), (32000, 1000)])
def test_the_largest_batch_is_the_last_below_the_cap(cap: int, largest: int) -> None:
    line = line_through([trace(2), trace(4)])
    assert line is not None
    assert line.largest_batch(cap) == largest
    assert line.largest_batch(cap, most=10) == min(largest, 10)


def test_traces_that_do_not_line_up_have_no_line() -> None:
    longer = trace(4)
    other = MemoryTrace(4, longer.allocations, longer.events[::-1], longer.operators, longer.modules, (), 0.0)
    assert line_through([trace(2), other]) is None and line_through([trace(2)]) is None


def test_layers_add_up_and_show_what_is_live_behind_them() -> None:
    first, second = layers_of(trace(10))
    assert (first.outputs_bytes, second.outputs_bytes) == (100, 300)
    assert (first.live_bytes, second.live_bytes) == (1100, 1300)


def test_the_course_is_that_of_the_step_and_ends_where_it_began() -> None:
    course = course_of(trace(100))
    assert course is not None
    assert course.events == (0, 1, 2, 3, 4, 5, 6, 7, 8)
    assert course.bytes_by_kind["activations"] == (0, 1000, 3000, 3000, 1000, 0, 0, 0, 0)
    assert course.bytes_by_kind["gradients"] == (0, 0, 0, 1000, 1000, 1000, 1000, 1000, 0)
    assert course.bytes_by_kind["temporary"] == (0, 0, 0, 0, 0, 0, 700, 0, 0)
    assert set(course.bytes_by_kind["parameters"]) == {1000}
    assert course.phases == ("forward",) * 3 + ("backward",) * 3 + ("update",) * 3


def test_a_long_course_is_shortened_and_keeps_its_peak() -> None:
    course = course_of(trace(100), most_points=2)
    assert course is not None and len(course.events) == 2
    totals = [sum(sizes) for sizes in zip(*course.bytes_by_kind.values(), strict=True)]
    assert max(totals) == peak_bytes(trace(100))


def test_releases_of_one_operator_may_come_in_any_order() -> None:
    small, large = trace(2), trace(4)
    release = np.array([[0, -1, UPDATE, 4, 0]])  # behind that of the gradient, by the same operator
    turned = np.concatenate([large.events[:-1], release, large.events[-1:]])
    line = line_through([replace(small, events=np.concatenate([small.events, release])), replace(large, events=turned)])
    assert line is not None and line.peak_bytes(100) == peak_bytes(trace(100))
    elsewhere = replace(large, events=np.concatenate([release, large.events]))
    assert line_through([replace(small, events=np.concatenate([small.events, release])), elsewhere]) is None
