"""What oneDNN's recurrent layers hold: their workspace, which lives until the backward pass, and what they give back.

Its size is oneDNN's own, and fake tensors have none. So a small layer is run once; a larger one on two short sequences
of the same widths and batch, and a line through both gives the size for any length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _disable_current_modes

from loaderbench.running.memory_events import events_of, marked, storage_bytes

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
LAYER_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
LENGTHS = (8, 16)
"""Positions of the sequences that are run. From four on, workspaces of one to sixteen positions lie on a line: aligned
parts of shorter ones do not."""
MOST_PRODUCTS = 50_000_000
"""Multiply-adds of a sequence that is run at its whole length: some ms."""
FORWARD, BACKWARD = "recurrent forward", "recurrent backward"


@dataclass(frozen=True)
class RecurrentBytes:
    """Bytes of one layer and direction."""

    workspace: int
    """From the forward pass until the backward pass is done; 0 without gradients."""
    forward: int
    """Given back when the forward pass returns."""
    backward: int
    """Given back when the backward pass returns; 0 without gradients."""


def forward_bytes(arguments: Sequence[Any]) -> RecurrentBytes:
    """Find what a layer holds in the forward pass. `arguments`: those of `LAYER`, with fake tensors."""
    gradient = _Shape((), (), arguments[0].dtype)
    return _bytes(_shapes_of(arguments), (gradient,) * 3 if torch.is_grad_enabled() else None)


def backward_bytes(arguments: Sequence[Any]) -> int:
    """Find what a layer gives back when its backward pass returns. `arguments`: those of `LAYER_BACKWARD`."""
    reverse, mode, hidden, layers, biases, train, bidirectional, batch_sizes, batch_first = arguments[13:22]
    settings = reverse, batch_sizes, mode, hidden, layers, biases, bidirectional, batch_first, train
    return _bytes(_shapes_of((*arguments[:7], *settings)), tuple(map(_shape_of, arguments[10:13]))).backward


@functools.cache
def _bytes(given: tuple[Any, ...], gradients: _Gradients | None) -> RecurrentBytes:
    """`gradients`: of the layer's output and last states, for the order of their dimensions, each None where there is
    none; None: there is no backward pass."""
    length = given[0].sizes[0]
    with _disable_current_modes():
        if length <= LENGTHS[0] or _products(given) <= MOST_PRODUCTS:
            return _run(length, given, gradients)
        short, longer = (_run(one, given, gradients) for one in LENGTHS)
    more = (length - LENGTHS[0]) / (LENGTHS[1] - LENGTHS[0])
    return RecurrentBytes(*(
        round(getattr(short, name) + more * (getattr(longer, name) - getattr(short, name)))
        for name in ("workspace", "forward", "backward")
    ))  # fmt: skip


@dataclass(frozen=True)
class _Shape:
    """A tensor to be made. One whose dimensions lie in memory in another order is copied inside the layer."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    """Its dimensions, the outermost in memory first."""
    dtype: torch.dtype

    def made(self) -> torch.Tensor:
        laid = torch.zeros([self.sizes[one] for one in self.order], dtype=self.dtype)
        return laid.permute([self.order.index(one) for one in range(len(self.sizes))])


_Gradients = tuple[_Shape | None, ...]


def _products(given: tuple[Any, ...]) -> int:
    length, batch, _ = given[0].sizes
    return int(length * batch * sum(math.prod(weight.sizes) for weight in given[1:3]))


def _shapes_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_shape_of(one) for one in arguments)


def _shape_of(one: Any) -> Any:
    if isinstance(one, torch.Tensor):
        strides = one.stride()
        order = sorted(range(one.dim()), key=lambda dim: -strides[dim])
        return _Shape(tuple(one.shape), tuple(order), one.dtype)
    return tuple(one) if isinstance(one, list) else one


def _run(length: int, given: Sequence[Any], gradients: _Gradients | None) -> RecurrentBytes:
    """Run the layer forward and backward, twice: the first time sets up what oneDNN keeps."""
    shape, *rest = given
    sequence = replace(shape, sizes=(length, *shape.sizes[1:])).made()
    arguments = [one.made() if isinstance(one, _Shape) else one for one in rest]
    backward: Sequence[Any] = ()
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for turn in range(2):
            with marked(f"{FORWARD} {turn}"), torch.set_grad_enabled(gradients is not None):  # makes the workspace
                forward = LAYER(sequence, *arguments)
            if gradients is not None:
                output, hidden, cell, workspace = forward
                of_each = [
                    None if one is None else replace(one, sizes=tuple(to.shape), order=_order(one, to)).made()
                    for one, to in zip(gradients, (output, hidden, cell), strict=True)
                ]
                with marked(f"{BACKWARD} {turn}"):
                    backward = LAYER_BACKWARD(
                        sequence, *arguments[:6], output, hidden, cell, *of_each, *_settings(arguments), workspace
                    )
    events = events_of(profiler)
    in_forward = events.held_bytes(f"{FORWARD} 1", storage_bytes(forward))
    if gradients is None:
        return RecurrentBytes(0, in_forward, 0)
    in_backward = events.held_bytes(f"{BACKWARD} 1", storage_bytes(backward))
    return RecurrentBytes(storage_bytes(workspace), in_forward, in_backward)


def _order(gradient: _Shape, of: torch.Tensor) -> tuple[int, ...]:
    return gradient.order if len(gradient.order) == of.dim() else tuple(range(of.dim()))


def _settings(arguments: Sequence[Any]) -> Sequence[Any]:
    """Those of the backward pass, from those of the forward pass, which has them in another order."""
    reverse, batch_sizes, mode, hidden, layers, biases, bidirectional, batch_first, train = arguments[6:15]
    return reverse, mode, hidden, layers, biases, train, bidirectional, batch_sizes, batch_first
