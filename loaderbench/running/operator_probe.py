"""What operators of the CPU really allocate inside: each is run once on memory of its own, below torch.profiler.

oneDNN's scratchpads depend on shape, processor and number of threads, and no rule tells them (running/workspaces.py).
In a step of a few MB they count. So a trace has its small operators probed; large ones go by the rules, for running
them would take the time and the memory of the step. Operators without a rule, which may copy an argument into another
order or type, are run as they are, or for two smaller batches, through which a line gives what they hold at any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves, tree_map

from loaderbench.running.memory_events import events_of, marked, storage_bytes
from loaderbench.running.workspaces import RULED, unchecked_processor

MOST_BYTES, MOST_PRODUCTS = 32 << 20, 100_000_000
"""Of an operator's tensors, and multiply-adds (some 4 ms of two cores): larger ones are not run."""
PROBED = frozenset({
    "aten.convolution.default", "aten.conv2d.default", "aten.convolution_backward.default", "aten.linear.default",
    "aten.addmm.default", "aten.mm.default", "aten.bmm.default", "aten.baddbmm.default",
})  # fmt: skip
"""Operators that may run in oneDNN."""
NEVER = ("empty", "new_", "zeros", "ones", "full", "arange", "rand", "scalar_tensor", "_to_copy", "clone", "copy",
         "fill", "cat", "stack", "embedding", "_unsafe_view", "_reshape_alias", "bernoulli", "normal", "uniform",
         "lift_fresh", "_local_scalar_dense", "set_", "resize", "_foreach", "_fused", "zero_", "select", "slice",
         "split", "unsafe_", "index", "gather", "tril", "triu")  # fmt: skip
"""How operators of ATen begin that hold nothing besides their results, or cannot be run alone."""
MOST_OTHER_BYTES = 16 << 20
"""Of an operator without a rule: a larger one is run at smaller batches."""


FUSED = frozenset({"aten._transformer_encoder_layer_fwd.default", "aten._native_multi_head_attention.default"})
"""Operators made of many, which keep their own results inside; there are no rules for these."""
BATCHED = {
    "aten._transformer_encoder_layer_fwd.default": 1, "aten._native_multi_head_attention.default": 3,
    "aten.convolution.default": 1, "aten.conv2d.default": 1, "aten.convolution_backward.default": 2,
}  # fmt: skip
"""Operator → how many arguments have the batch as first dimension. They can be run at two small batches, and a line
through both gives what they hold at any. It is done for fused ones, and on processors without checked rules."""
BATCHES = (2, 4)
MOST_LINE_PRODUCTS = 10 * MOST_PRODUCTS
"""Multiply-adds of the larger of the two."""


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
    batch: int = 0
    """Samples of a call that is run at smaller batches; 0: it is run unmodified."""

    @classmethod
    def of(cls, operator: Any, arguments: Sequence[Any], keywords: Any, results: Sequence[Any]) -> OperatorCall | None:
        """None where it is not to be run."""
        name = str(operator)
        others = may_hold(operator, arguments)
        if (name not in PROBED | FUSED and not others) or (name in FUSED and arguments[0].is_nested):
            return None
        given = tree_map(_described, (tuple(arguments), dict(keywords)))
        call = cls(operator, given, f"{operator} {given}")
        if name in FUSED:
            return replace(call, batch=int(arguments[0].shape[0]))
        tensors = [one for one in tree_leaves((arguments, keywords, list(results))) if isinstance(one, torch.Tensor)]
        if any(one.layout != torch.strided or one.is_complex() for one in tensors):
            return None
        num_bytes = sum(one.numel() * one.element_size() for one in tensors)
        if others:
            batch = next(one.shape[0] for one in _tensors(arguments) if one.ndim)
            if num_bytes <= MOST_OTHER_BYTES:
                return call
            fits = batch > BATCHES[-1] and num_bytes * BATCHES[-1] <= MOST_OTHER_BYTES * batch
            return replace(call, batch=int(batch)) if fits else None
        products = _products(name, arguments, results)
        if num_bytes <= MOST_BYTES and products <= MOST_PRODUCTS:
            return call
        batch = int(arguments[0].shape[0])
        small_enough = products * BATCHES[-1] <= MOST_LINE_PRODUCTS * batch
        if name in BATCHED and batch > BATCHES[-1] and small_enough and unchecked_processor() is not None:
            return replace(call, batch=batch)
        return None

    def parts(self) -> list[OperatorCall]:
        """The calls that are run: at two smaller batches for a line, or itself."""
        return [self] if self.batch <= BATCHES[-1] else [self._at(batch) for batch in BATCHES]

    def held_bytes(self, held: Mapping[str, int]) -> int | None:
        """What it holds, by what its parts hold; None if one of them failed."""
        found = [held.get(one.key) for one in self.parts()]
        if None in found:
            return None
        few, *more = (one for one in found if one is not None)
        slope = (more[0] - few) / (BATCHES[1] - BATCHES[0]) if more else 0.0
        return round(few + slope * (self.batch - BATCHES[0]))

    def _at(self, batch: int) -> OperatorCall:
        arguments, keywords = self.arguments
        count = BATCHED.get(str(self.operator), len(arguments))
        given = (*(self._smaller(one, batch) for one in arguments[:count]), *arguments[count:]), keywords
        return OperatorCall(self.operator, given, f"{self.operator} {given}", batch)

    def _smaller(self, one: Any, batch: int) -> Any:
        """An argument at another batch: a tensor whose first dimension it is, or a shape that begins with it."""
        if isinstance(one, _Shape):
            return replace(one, sizes=(batch, *one.sizes[1:])) if one.sizes[:1] == (self.batch,) else one
        if isinstance(one, list | tuple):
            if len(one) > 1 and one[0] == self.batch and all(isinstance(part, int) for part in one):
                return [batch, *one[1:]]
            return [self._smaller(part, batch) for part in one]
        return one

    def run(self) -> int:
        """Run it twice, the second time marked by its key; returns the bytes of its results. Raises RuntimeError."""
        arguments, keywords = tree_map(lambda one: one.made() if isinstance(one, _Shape) else one, self.arguments)
        self.operator(*arguments, **keywords)
        with marked(self.key):
            result = self.operator(*arguments, **keywords)
        own = {one.untyped_storage()._cdata for one in _tensors((arguments, keywords))}
        return storage_bytes([one for one in _tensors(result) if one.untyped_storage()._cdata not in own])


def _products(name: str, arguments: Sequence[Any], results: Sequence[Any]) -> int:
    """Multiply-adds of one of PROBED."""
    if name in ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"):
        left, right = arguments[-2:]
        return int(left.numel() * right.shape[-1])
    if name == "aten.convolution_backward.default":
        return int(2 * arguments[0].numel() * math.prod(arguments[2].shape[1:]))
    return int(results[0].numel() * math.prod(arguments[1].shape[1:]))


def may_hold(operator: Any, arguments: Any) -> bool:
    """Whether an operator that has no rule may allocate inside. One that works value by value does so if its tensors'
    types differ: TensorIterator copies them into a common type first (aten/src/ATen/TensorIterator.cpp)."""
    name = str(operator)
    if operator.namespace != "aten" or name in PROBED | FUSED | RULED or operator.is_view:
        return False
    bare = name.split(".")[1]
    tensors = [one for one in _tensors(arguments) if one.ndim]
    if bare.startswith(NEVER) or not tensors:
        return False
    return torch.Tag.pointwise not in operator.tags or len({one.dtype for one in tensors}) > 1


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def _described(one: Any) -> Any:
    return _Shape(tuple(one.shape), one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one


def probe(calls: Iterable[OperatorCall]) -> dict[str, int]:
    """Key → most bytes that the operator holds besides its arguments and results. Operators that fail are left out.

    Each is run twice, and the second time counts: the first sets up what oneDNN keeps.
    """
    calls = list(calls)
    results: dict[str, int] = {}
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for call in {part.key: part for one in calls for part in one.parts()}.values():
            with suppress(RuntimeError, IndexError, TypeError, ValueError):
                results[call.key] = call.run()
    events = events_of(profiler)
    held = {key: events.held_bytes(key, result_bytes) for key, result_bytes in results.items()}
    return {one.key: found for one in calls if (found := one.held_bytes(held)) is not None}
