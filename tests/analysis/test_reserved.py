"""What the CUDA allocator holds: closed forms of its documented rules, and steps whose sum is known."""

from __future__ import annotations

import numpy as np
import pytest

from loaderbench.analysis.memory import peak_bytes
from loaderbench.analysis.reserved import MIB, CachingAllocator, reserved_bytes
from loaderbench.recording.model_memory import MEMORY_KINDS, MemoryTrace

STANDING, FORWARD, BACKWARD = 0, 1, 2


@pytest.mark.parametrize(
    ("requests", "held"),
    [
        ([1], 2 * MIB),  # "small requests are packed into 2MB buffers"
        ([512] * 4096, 2 * MIB),
        ([512] * 4097, 4 * MIB),
        ([1], 2 * MIB),
        ([MIB], 2 * MIB),
        ([MIB, MIB], 2 * MIB),
        ([MIB + 1], 20 * MIB),  # "requests between 1MB and 10MB will allocate and split a 20MB block"
        ([9 * MIB, 9 * MIB], 20 * MIB),
        ([9 * MIB, 9 * MIB, 3 * MIB], 40 * MIB),
        ([10 * MIB], 10 * MIB),  # from there on a segment of its own, rounded up to 2 MiB
        ([10 * MIB + 1], 12 * MIB),
        ([101 * MIB, 1], 102 * MIB + 2 * MIB),
    ],
)
def test_segments_are_those_of_the_documented_rules(requests: list[int], held: int) -> None:
    allocator = CachingAllocator()
    for size in requests:
        allocator.allocate(size)
    assert allocator.reserved_bytes == held


def test_free_neighbours_are_joined_and_used_again() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]  # one segment of 20 MiB, full
    for block in (blocks[0], blocks[2], blocks[1]):  # the last joins both sides
        allocator.release(block)
    allocator.allocate(15 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.release(blocks[3])
    allocator.allocate(9 * MIB)  # only 5 are free together
    assert allocator.reserved_bytes == 40 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, fitting = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.release(large)
    allocator.release(fitting)
    allocator.allocate(30 * MIB)
    allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 70 * MIB


@pytest.mark.parametrize("rest", [MIB, MIB + 512])
def test_a_large_block_keeps_a_rest_of_up_to_a_mebibyte(rest: int) -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(22 * MIB)
    allocator.release(first)
    kept = allocator.allocate(22 * MIB - rest)
    assert allocator.reserved_bytes == 22 * MIB
    assert kept.size == (22 * MIB if rest == MIB else 22 * MIB - rest)


def trace(events: list[tuple[int, int, int]], sizes: list[int], optimizer: int | None = None) -> MemoryTrace:
    """`events`: (allocation, sign, phase). `optimizer`: the allocation of its state."""
    kinds = [MEMORY_KINDS.index("optimizer" if number == optimizer else "temporary") for number in range(len(sizes))]
    return MemoryTrace(
        1, np.array([*zip(sizes, kinds, strict=True)], dtype=np.int64),
        np.array([[allocation, sign, phase, 0, 0] for allocation, sign, phase in events], dtype=np.int64),
        ("",), ("",), (), None,
    )  # fmt: skip


def test_a_step_that_comes_again_needs_nothing_new() -> None:
    # 100 MiB of parameters stay; 30 of activations come and go; 100 of gradients replace those of the step before;
    # the optimizer's 100 stay from the first update on
    sizes = [100 * MIB, 100 * MIB, 30 * MIB, 100 * MIB, 100 * MIB]
    standing = [(0, 1, STANDING), (1, 1, STANDING), (4, 1, STANDING)]
    step = [(1, -1, FORWARD), (2, 1, FORWARD), (3, 1, BACKWARD), (2, -1, BACKWARD)]
    found = trace([*standing, *step], sizes, optimizer=4)
    assert reserved_bytes(found) == 330 * MIB == peak_bytes(found)


def test_a_first_step_has_no_gradients_of_one_before_it() -> None:
    sizes = [100 * MIB, 100 * MIB, 60 * MIB, 80 * MIB, 100 * MIB]
    step = [(1, -1, FORWARD), (2, 1, FORWARD), (2, -1, FORWARD), (3, 1, FORWARD), (3, -1, FORWARD), (4, 1, BACKWARD)]
    found = trace([(0, 1, STANDING), (1, 1, STANDING), *step], sizes)
    # 100 parameters + 60 + 80 + 100 gradients; then 60 fits 60, 80 fits 80, and 100 the freed 100
    assert reserved_bytes(found) == 340 * MIB
    assert peak_bytes(found) == 200 * MIB


def test_what_is_freed_in_pieces_may_not_do_for_what_is_large() -> None:
    # 4 × 12 MiB go before 40 MiB come: each has a segment of its own, so none of them can hold it
    sizes = [12 * MIB] * 4 + [40 * MIB]
    events = [(one, 1, FORWARD) for one in range(4)] + [(one, -1, FORWARD) for one in range(4)]
    found = trace([*events, (4, 1, FORWARD), (4, -1, FORWARD)], sizes)
    assert peak_bytes(found) == 48 * MIB
    assert reserved_bytes(found) == 88 * MIB


def test_a_step_that_does_not_leave_what_the_next_one_lets_go_is_unknown() -> None:
    assert reserved_bytes(trace([(0, 1, STANDING), (0, -1, FORWARD), (1, 1, FORWARD)], [MIB, 16 * MIB])) is None


def test_what_a_step_leaves_over_is_gone_in_the_next() -> None:
    found = trace([(0, 1, STANDING), (1, 1, FORWARD)], [MIB, 16 * MIB])
    assert reserved_bytes(found) == 2 * MIB + 16 * MIB
