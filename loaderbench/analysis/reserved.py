"""The memory that PyTorch's CUDA allocator would hold for a step, in use or not: its rules, replayed over a trace.

Rules and constants: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11, with its default settings (no expandable
segments, no limit of splitting, one stream). What a GPU's driver gives out beyond it (context, libraries) is not in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from loaderbench.analysis.memory import ALLOCATION, BYTES, KIND, PHASE, SIGN, STANDING
from loaderbench.recording.model_memory import MEMORY_KINDS, STEP_PHASES, MemoryTrace

OPTIMIZER, UPDATE = MEMORY_KINDS.index("optimizer"), STEP_PHASES.index("update")
MIB = 1 << 20
LEAST_BLOCK = 512
"""kMinBlockSize: sizes are rounded up to it."""
SMALL = MIB
"""kSmallSize: up to it a request is of the small pool."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
"""kSmallBuffer, kLargeBuffer: what is asked of the driver for a small request, and for one below OWN_SEGMENT."""
OWN_SEGMENT, SEGMENT_ROUNDING = 10 * MIB, 2 * MIB
"""kMinLargeAlloc, kRoundLarge: a request from the one on gets a segment of its own, rounded up to the other."""
MOST_STEPS = 4
"""Steps after which the segments are taken to be all there."""


class _Block:
    """A stretch of a segment: [address, address + size)."""

    __slots__ = ("address", "after", "before", "is_free", "size", "small")

    def __init__(self, address: int, size: int, small: bool) -> None:
        self.address, self.size, self.small, self.is_free = address, size, small, False
        self.before: _Block | None = None
        self.after: _Block | None = None


class CachingAllocator:
    """The allocator's bookkeeping, without memory. Blocks are handles."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        """Sum of the segments. Nothing is given back to the driver, so it is the most there was, too."""
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        """Pool → (size, address) of its free blocks, in order."""
        self._blocks: dict[int, _Block] = {}
        """Address → free block."""

    def allocate(self, num_bytes: int) -> _Block:
        """The smallest free block of the pool that is large enough, else a new segment; the rest is split off."""
        size = max(-(-num_bytes // LEAST_BLOCK) * LEAST_BLOCK, LEAST_BLOCK)
        small = size <= SMALL
        pool = self._free[small]
        place = bisect_left(pool, (size, -1))
        block = self._take(pool[place]) if place < len(pool) else self._segment(size, small)
        rest = block.size - size
        if rest >= LEAST_BLOCK if small else rest > SMALL:
            remaining = _Block(block.address + size, rest, small)
            remaining.before, remaining.after, block.after = block, block.after, remaining
            if remaining.after is not None:
                remaining.after.before = remaining
            block.size = size
            self._put(remaining)
        return block

    def release(self, block: _Block) -> None:
        """Back into its pool, joined with its free neighbours in the segment."""
        if block.before is not None and block.before.is_free:
            before = self._take((block.before.size, block.before.address))
            before.size += block.size
            before.after = block.after
            block = before
        if block.after is not None and block.after.is_free:
            after = self._take((block.after.size, block.after.address))
            block.size += after.size
            block.after = after.after
        if block.after is not None:
            block.after.before = block
        self._put(block)

    def _segment(self, size: int, small: bool) -> _Block:
        of = SMALL_SEGMENT if small else LARGE_SEGMENT
        if size >= OWN_SEGMENT:
            of = -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
        block = _Block(self.reserved_bytes, of, small)
        self.reserved_bytes += of
        return block

    def _put(self, block: _Block) -> None:
        block.is_free = True
        self._blocks[block.address] = block
        insort(self._free[block.small], (block.size, block.address))

    def _take(self, key: tuple[int, int]) -> _Block:
        block = self._blocks.pop(key[1])
        pool = self._free[block.small]
        del pool[bisect_left(pool, key)]
        block.is_free = False
        return block


def reserved_bytes(trace: MemoryTrace) -> int | None:
    """Bytes that the allocator holds once steps like the traced one have been done.

    As in a training that begins: parameters and inputs first; the first step finds no gradients of one before it, and
    makes the optimizer's state in its update; then steps are done until a further one takes no new segment. None
    where the step does not leave what the next one lets go, so that it cannot be done again.
    """
    sizes = trace.allocations[:, BYTES].tolist()
    in_step = trace.events[:, PHASE] != STANDING
    step = trace.events[in_step][:, [ALLOCATION, SIGN, PHASE]].tolist()
    standing = trace.events[~in_step][:, ALLOCATION].tolist()
    from_before = set(standing) & {allocation for allocation, sign, _ in step if sign < 0}
    of_optimizer = {one for one in standing if trace.allocations[one, KIND] == OPTIMIZER} - from_before

    allocator = CachingAllocator()
    blocks = {one: allocator.allocate(sizes[one]) for one in standing if one not in from_before | of_optimizer}
    state = [(one, +1, UPDATE) for one in standing if one in of_optimizer]
    update = next((place for place, event in enumerate(step) if event[2] == UPDATE), len(step))
    for number in range(MOST_STEPS):
        held = allocator.reserved_bytes
        for allocation, sign, _ in step if number else [*step[:update], *state, *step[update:]]:
            if sign > 0:
                blocks[allocation] = allocator.allocate(sizes[allocation])
            elif allocation in blocks:
                allocator.release(blocks.pop(allocation))
        if allocator.reserved_bytes == held:
            break
        if not _next_step(allocator, blocks, standing, from_before, sizes):
            return None
    return allocator.reserved_bytes


def _next_step(
    allocator: CachingAllocator, blocks: dict[int, _Block], standing: list[int], from_before: set[int], sizes: list[int]
) -> bool:
    """Let what the step left (its gradients) be what the next one finds from before, size by size, and the rest (its
    loss) be gone. False where the step left too little."""
    left: dict[int, list[int]] = defaultdict(list)
    for allocation in sorted(set(blocks) - set(standing)):
        left[sizes[allocation]].append(allocation)
    for allocation in sorted(from_before):
        if not left[sizes[allocation]]:
            return False
        blocks[allocation] = blocks.pop(left[sizes[allocation]].pop(0))
    for allocation in [one for rest in left.values() for one in rest]:
        allocator.release(blocks.pop(allocation))
    return True
