"""Floating-point operations of one operator call; a multiply-add is two.

PyTorch's own formulas (torch.utils.flop_counter) have no entry for recurrent layers, fused transformer layers and
products of vectors, and count the backward pass of a grouped convolution as that of a dense one. These are here.
Elementwise operators, reductions and copies count nothing, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry

Formula = Callable[..., int]
aten: Any = torch.ops.aten


def formula_of(operator: Any) -> Formula | None:
    """Return (*args, out_val=result, **kwargs) → operations; None for an operator without a formula.

    `operator`: an overload, of an in-place variant (`addmm_`), too.
    """
    name = operator._schema.name.partition("::")[2]
    for known in (name, name.removesuffix("_")):
        if known in FORMULAS and operator.namespace == "aten":
            return FORMULAS[known]
        packet = getattr(aten, known, None) if operator.namespace == "aten" else operator._overloadpacket
        if packet in flop_registry:
            return flop_registry[packet]  # type: ignore[no-any-return]
    return None


def _convolution_backward(
    gradient: Any, images: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, output_mask: Sequence[bool], *, out_val: Any,
) -> int:  # fmt: skip
    """Count the gradient of the images and that of the weight: each has the forward pass's multiply-adds, since each
    product of a weight and an input value takes part in each once."""
    forward = conv_flop_count(list(images.shape), list(weight.shape), list(gradient.shape), transposed)
    return int(forward * sum(output_mask[:2]))


def _slow_convolution_backward(
    gradient: Any, images: Any, weight: Any, kernel: Any, stride: Any, padding: Any, output_mask: Any, *, out_val: Any
) -> int:
    forward = conv_flop_count(list(images.shape), list(weight.shape), list(gradient.shape))
    return int(forward * sum(output_mask[:2]))


def _one_recurrent_layer(sequence: Any, input_weight: Any, hidden_weight: Any, *_: Any, **__: Any) -> int:
    """oneDNN's, one direction of one layer: at each position each weight takes part in one multiply-add."""
    return 2 * _positions(sequence) * int(input_weight.numel() + hidden_weight.numel())


def _one_recurrent_layer_backward(*arguments: Any, out_val: Any, **_: Any) -> int:
    """Count the gradients of the inputs and of the weights."""
    return 2 * _one_recurrent_layer(*arguments)


def _recurrent(sequence: Any, weights: Sequence[Any], *_: Any, **__: Any) -> int:
    """cuDNN's and MIOpen's, all layers and directions; a packed sequence has one row a position."""
    return 2 * _positions(sequence) * sum(int(one.numel()) for one in weights if one.dim() == 2)


def _recurrent_backward(*arguments: Any, out_val: Any, **keywords: Any) -> int:
    """Count the gradients of the inputs and, where they are asked for, of the weights (the last of the mask)."""
    mask = keywords.get("output_mask", arguments[-1])
    return _recurrent(*arguments) * (1 + bool(mask[-1]))


def _positions(sequence: Any) -> int:
    return int(sequence.numel() // sequence.shape[-1])


def _attention_of(lengths: Sequence[int], width: int) -> int:
    """Scores and their product with the values; `width`: of all heads together."""
    return sum(2 * 2 * n * n * width for n in lengths)


def _lengths(sequences: Any) -> list[int]:
    """Positions of each sequence of [batch, positions, width] or of a nested tensor."""
    if sequences.is_nested:
        return [int(one.shape[0]) for one in sequences.unbind()]
    return [int(sequences.shape[1])] * int(sequences.shape[0])


def _encoder_layer(
    source: Any, width: int, heads: int, qkv: Any, qkv_bias: Any, projection: Any, projection_bias: Any, gelu: bool,
    norm_first: bool, eps: float, norm1: Any, bias1: Any, norm2: Any, bias2: Any, up: Any, up_bias: Any, down: Any,
    *_: Any, **__: Any,
) -> int:  # fmt: skip
    """torch.nn.TransformerEncoderLayer in inference."""
    lengths, weights = _lengths(source), (qkv, projection, up, down)
    return 2 * sum(lengths) * sum(int(one.numel()) for one in weights) + _attention_of(lengths, width)


def _multi_head_attention(
    query: Any, key: Any, value: Any, width: int, heads: int, qkv: Any, qkv_bias: Any, projection: Any, *_: Any,
    **__: Any,
) -> int:  # fmt: skip
    """torch.nn.MultiheadAttention in inference, which takes this path only with equal query, key and value."""
    lengths = _lengths(query)
    return 2 * sum(lengths) * int(qkv.numel() + projection.numel()) + _attention_of(lengths, width)


def _matrix_vector(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
    return 2 * int(matrix.numel())


def _added_matrix_vector(added: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * int(matrix.numel())


def _added_product(added: Any, left: Any, right: Any, *_: Any, **__: Any) -> int:
    return 2 * int(left.numel()) * int(right.shape[-1])


def _dot(left: Any, *_: Any, **__: Any) -> int:
    return 2 * int(left.numel())


def _outer(added: Any, left: Any, right: Any, *_: Any, **__: Any) -> int:
    return 2 * int(left.numel()) * int(right.numel())


def _trilinear(
    one: Any, two: Any, three: Any, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], *_: Any, **__: Any,
) -> int:  # fmt: skip
    """torch.nn.Bilinear: two multiplications and an addition for each element of the factors' common shape."""
    full = one.dim() + len(expand1)
    sizes = [1] * full
    for tensor, expanded in ((one, expand1), (two, expand2), (three, expand3)):
        rest = iter(tensor.shape)
        for dim in range(full):
            if dim not in expanded:
                sizes[dim] = max(sizes[dim], int(next(rest)))
    return 3 * prod(sizes)


FORMULAS: dict[str, Formula] = {
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    "_slow_conv2d_backward": _slow_convolution_backward,
    "mkldnn_rnn_layer": _one_recurrent_layer,
    "mkldnn_rnn_layer_backward": _one_recurrent_layer_backward,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
    "miopen_rnn": _recurrent,
    "miopen_rnn_backward": _recurrent_backward,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "_native_multi_head_attention": _multi_head_attention,
    "mv": _matrix_vector,
    "addmv": _added_matrix_vector,
    "addbmm": _added_product,
    "_addmm_activation": _added_product,
    "dot": _dot,
    "vdot": _dot,
    "addr": _outer,
    "_trilinear": _trilinear,
}
"""Operator of `aten` → its formula, on the tensors themselves (fake ones, too)."""


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the floating-point operations of everything that runs within it.

    `torch.utils.flop_counter.FlopCounterMode` cannot be used: its hooks on modules would be seen as calls.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = formula_of(operator)
        if formula is None and operator.namespace != "prim":
            with self:  # in inference composite operators arrive whole
                result = operator.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = operator(*args, **kwargs)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=result))
        return result


def flops_of(operator: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Count one call on fake tensors that has run; 0 if neither it nor what it is made of has a formula."""
    formula = formula_of(operator)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=out))
    if operator.namespace != "aten" or operator.is_view or operator._schema.is_mutable or not operator._can_decompose():
        return 0
    counter = FlopCount()
    with counter:
        operator.decompose(*args, **kwargs)
    return counter.total
