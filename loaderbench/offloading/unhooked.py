"""What a model keeps for its backward pass beside autograd's own way: no hook sees it, so it stays on the device.

It is found in autograd's graph: tensors among the attributes of a custom function's context (`ctx.x = tensor` instead
of `ctx.save_for_backward`). What a function holds elsewhere, as in a closure, cannot be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from loaderbench.printable import memory_size


def unhooked_in(output: Any) -> tuple[str, ...]:
    """A sentence for each kind of custom function in the graph behind a model's output that keeps tensors so."""
    kept: dict[str, dict[int, int]] = {}
    names: dict[str, set[str]] = {}
    for node in _nodes([one.grad_fn for one in tree_leaves(output) if isinstance(one, torch.Tensor)]):
        for attribute, tensor in _attributes(node):
            storage = tensor.untyped_storage()
            kept.setdefault(node.name(), {})[storage._cdata] = storage.nbytes()
            names.setdefault(node.name(), set()).add(attribute)
    return tuple(
        (
            f"{name} keeps {memory_size(sum(storages.values()))} in {', '.join(sorted(names[name]))} of its "
            "context. No hook sees them, so they stay on the device; use ctx.save_for_backward"
        )
        for name, storages in sorted(kept.items())
    )


def _nodes(roots: list[Any]) -> Iterator[Any]:
    """Every node of autograd's graph behind the roots, once."""
    seen: set[Any] = set()
    pending = [root for root in roots if root is not None]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        pending += [one for one, _ in node.next_functions if one is not None]


def _attributes(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that a custom function's context has as attributes; other nodes have none."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return
    for name, value in vars(node).items():
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, torch.nn.Parameter):
                yield name, leaf
