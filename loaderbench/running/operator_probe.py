"""What operators of the CPU really allocate inside: each is run once on memory of its own, below torch.profiler.

oneDNN's scratchpads depend on shape, processor and number of threads, and no rule tells them (running/workspaces.py).
In a step of a few MB they count. So a trace has its small operators probed; large ones go by the rules, for running
them would take the time and the memory of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves, tree_map

from loaderbench.running.memory_events import events_of, marked

MOST_BYTES, MOST_PRODUCTS = 32 << 20, 100_000_000
"""Of an operator's tensors, and multiply-adds (some 4 ms of two cores): larger ones are not run."""
PROBED = frozenset({
    "aten.convolution.default", "aten.conv2d.default", "aten.convolution_backward.default", "aten.linear.default",
    "aten.addmm.default", "aten.mm.default",
})  # fmt: skip
"""Operators that may run in oneDNN."""


@dataclass(frozen=True)
class _Shape:
    """A tensor to be made."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> torch.Tensor:
        return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype).zero_()


@dataclass(frozen=True)
class OperatorCall:
    """An operator and its arguments, with shapes in place of tensors."""

    operator: Any
    arguments: Any
    key: str
    """The same for calls that allocate the same."""

    @classmethod
    def of(cls, operator: Any, arguments: Sequence[Any], keywords: Any, results: Sequence[Any]) -> OperatorCall | None:
        """None where it is not to be run."""
        if str(operator) not in PROBED:
            return None
        tensors = [one for one in tree_leaves((arguments, keywords, list(results))) if isinstance(one, torch.Tensor)]
        num_bytes = sum(one.numel() * one.element_size() for one in tensors)
        if num_bytes > MOST_BYTES or _products(str(operator), arguments, results) > MOST_PRODUCTS:
            return None
        given = tree_map(_described, (tuple(arguments), dict(keywords)))
        return cls(operator, given, f"{operator} {given}")

    def run(self) -> int:
        """Run it twice, the second time marked by its key; returns the bytes of its results. Raises RuntimeError."""
        arguments, keywords = tree_map(lambda one: one.made() if isinstance(one, _Shape) else one, self.arguments)
        self.operator(*arguments, **keywords)
        with marked(self.key):
            result = self.operator(*arguments, **keywords)
        tensors = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}.values())


def _products(name: str, arguments: Sequence[Any], results: Sequence[Any]) -> int:
    """Multiply-adds of one of PROBED."""
    if name in ("aten.mm.default", "aten.addmm.default"):
        left, right = arguments[-2:]
        return int(left.numel() * right.shape[1])
    if name == "aten.convolution_backward.default":
        return int(2 * arguments[0].numel() * math.prod(arguments[2].shape[1:]))
    return int(results[0].numel() * math.prod(arguments[1].shape[1:]))


def _described(one: Any) -> Any:
    return _Shape(tuple(one.shape), one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one


def probe(calls: Iterable[OperatorCall]) -> dict[str, int]:
    """Key → most bytes that the operator holds besides its arguments and results. Operators that fail are left out.

    Each is run twice, and the second time counts: the first sets up what oneDNN keeps.
    """
    results: dict[str, int] = {}
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for call in {one.key: one for one in calls}.values():
            with suppress(RuntimeError):
                results[call.key] = call.run()
    events = events_of(profiler)
    return {
        key: max(events.peak_bytes(key) - events.live_before(key) - result_bytes, 0)
        for key, result_bytes in results.items()
    }
