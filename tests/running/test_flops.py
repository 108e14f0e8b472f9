"""Counted floating-point operations against counts by hand: for each output, the multiply-adds that its definition
names, twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from loaderbench.running.flops import FlopCount, flops_of

N = 3


def counted(run: Callable[[], Any]) -> int:
    with FlopCount() as count:
        run()
    return count.total


def forward_and_backward(module: nn.Module, *inputs: torch.Tensor) -> tuple[int, int]:
    """(operations of the forward pass, of the backward pass), the inputs needing gradients, too."""
    for one in inputs:
        one.requires_grad_()
    with FlopCount() as count:
        out = module(*inputs)
        forward = count.total
        leaf = out[0] if isinstance(out, tuple) else out
        leaf.backward(torch.ones_like(leaf))
    return forward, count.total - forward


@pytest.mark.parametrize(
    ("layer", "images", "outputs", "weights"),
    [
        (nn.Conv2d(8, 16, 3, padding=1), (8, 10, 12), 10 * 12, 16 * 8 * 9),
        (nn.Conv2d(8, 16, 3, padding=1, groups=4), (8, 10, 12), 10 * 12, 16 * 2 * 9),
        (nn.Conv2d(8, 8, 3, padding=1, groups=8), (8, 10, 12), 10 * 12, 8 * 9),
        (nn.Conv2d(8, 24, (5, 1), stride=2, groups=8), (8, 11, 12), 4 * 6, 24 * 5),
        (nn.Conv1d(6, 4, 3, groups=2), (6, 20), 18, 4 * 3 * 3),
        (nn.Conv3d(4, 4, 2, groups=4), (4, 5, 5, 5), 4**3, 4 * 8),
        (nn.ConvTranspose2d(8, 4, 3, stride=2, groups=2), (8, 5, 6), 5 * 6, 8 * 2 * 9),
    ],
)
def test_a_convolution_of_any_groups_has_its_forward_count_for_each_of_its_two_gradients(
    layer: nn.Module, images: tuple[int, ...], outputs: int, weights: int
) -> None:
    forward, backward = forward_and_backward(layer, torch.randn(N, *images))
    assert forward == 2 * N * outputs * weights
    assert backward == 2 * forward


def test_the_first_convolution_has_no_gradient_of_its_images() -> None:
    layer = nn.Conv2d(8, 8, 3, groups=8)
    forward = counted(lambda: layer(torch.randn(N, 8, 6, 6)))
    with FlopCount() as count:
        layer(torch.randn(N, 8, 6, 6)).sum().backward()
    assert count.total == 2 * forward == 2 * 2 * N * 16 * 8 * 9


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_use_each_weight_once_a_position(kind: Any, gates: int, directions: int) -> None:
    positions, width, hidden = 7, 10, 6
    layer = kind(width, hidden, 2, bidirectional=directions == 2)
    by_hand = 2 * positions * N * gates * hidden * directions * (width + hidden + directions * hidden + hidden)
    forward, backward = forward_and_backward(layer, torch.randn(positions, N, width))
    assert forward == by_hand
    # The first position has no gradient of the state before it, which the user gives as zeros.
    assert 2 * forward * (1 - 1 / positions) <= backward <= 2 * forward


def attention(length: int, width: int) -> int:
    return 2 * 2 * N * length * length * width


@pytest.mark.parametrize("training", [True, False])
def test_attention_counts_the_same_in_training_and_on_the_fast_path_of_inference(training: bool) -> None:
    length, width = 9, 16
    layer = nn.MultiheadAttention(width, 4, batch_first=True).train(training)
    tokens = torch.randn(N, length, width)
    with torch.set_grad_enabled(training):
        found = counted(lambda: layer(tokens, tokens, tokens, need_weights=False))
    assert found == 2 * N * length * 4 * width * width + attention(length, width)


@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_layer_counts_the_same_in_training_and_on_the_fast_path_of_inference(training: bool) -> None:
    length, width, inner = 9, 16, 40
    layer = nn.TransformerEncoderLayer(width, 4, inner, dropout=0.0, batch_first=True).train(training)
    tokens = torch.randn(N, length, width)
    with torch.set_grad_enabled(training):
        found = counted(lambda: layer(tokens))
    assert found == 2 * N * length * (4 * width * width + 2 * width * inner) + attention(length, width)


@pytest.mark.parametrize("keys", [9, 21])
def test_fused_attention_computes_its_scores_again_in_the_backward_pass(keys: int) -> None:
    heads, length, width = 4, 9, 16
    query = torch.randn(N, heads, length, width, requires_grad=True)
    key, value = (torch.randn(N, heads, keys, width, requires_grad=True) for _ in range(2))
    one_product = 2 * N * heads * length * keys * width
    with FlopCount() as count:
        out = nn.functional.scaled_dot_product_attention(query, key, value)
        assert count.total == 2 * one_product
        out.sum().backward()
    # the scores again, and the gradients of the value, of the scores, of the query and of the key
    assert count.total == 2 * one_product + 5 * one_product


def test_batched_products_and_their_gradients() -> None:
    left, right = torch.randn(2, 4, 5, requires_grad=True), torch.randn(2, 5, 6, requires_grad=True)
    with FlopCount() as count:
        torch.bmm(left, right).sum().backward()
    assert count.total == 3 * 2 * 2 * 4 * 5 * 6


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (nn.Embedding(10, 8), torch.tensor([[1, 2, 3]])),
        (nn.LayerNorm(8), torch.randn(N, 8)),
        (nn.BatchNorm2d(4), torch.randn(N, 4, 5, 5)),
        (nn.GELU(), torch.randn(N, 8).requires_grad_()),
        (nn.MaxPool2d(2), torch.randn(N, 4, 6, 6).requires_grad_()),
    ],
)
def test_look_ups_normalisations_and_elementwise_layers_count_nothing(layer: nn.Module, given: torch.Tensor) -> None:
    assert counted(lambda: layer(given).sum().backward()) == 0


def test_a_recurrent_cell_has_no_gradient_of_the_zeros_that_it_begins_with() -> None:
    cell = nn.LSTMCell(5, 7)
    forward, backward = forward_and_backward(cell, torch.randn(N, 5))
    assert forward == 2 * N * 4 * 7 * (5 + 7)
    assert backward == forward + 2 * N * 4 * 7 * 5


def test_linear_and_its_gradients() -> None:
    assert forward_and_backward(nn.Linear(12, 20), torch.randn(N, 5, 12)) == (2 * N * 5 * 240, 2 * 2 * N * 5 * 240)


@pytest.mark.parametrize(
    ("run", "by_hand"),
    [
        (lambda: torch.zeros(4, 6).addmm_(torch.ones(4, 5), torch.ones(5, 6)), 2 * 4 * 5 * 6),
        (lambda: torch.zeros(2, 4, 6).baddbmm_(torch.ones(2, 4, 5), torch.ones(2, 5, 6)), 2 * 2 * 4 * 5 * 6),
        (lambda: torch.ones(4, 5) @ torch.ones(5), 2 * 4 * 5),
        (lambda: torch.zeros(4).addmv_(torch.ones(4, 5), torch.ones(5)), 2 * 4 * 5),
        (lambda: torch.ones(5) @ torch.ones(5), 2 * 5),
        (lambda: torch.zeros(4, 6).addbmm(torch.ones(2, 4, 5), torch.ones(2, 5, 6)), 2 * 2 * 4 * 5 * 6),
        (lambda: torch.zeros(4, 6).addr(torch.ones(4), torch.ones(6)), 2 * 4 * 6),
        (lambda: torch.einsum("bij,bjk->bik", torch.ones(2, 4, 5), torch.ones(2, 5, 6)), 2 * 2 * 4 * 5 * 6),
        (lambda: nn.Bilinear(4, 5, 6)(torch.ones(N, 4), torch.ones(N, 5)), 3 * N * 4 * 5 * 6),
        (lambda: torch.ones(4).add_(1).relu_(), 0),
    ],
)
def test_products_of_any_form(run: Callable[[], Any], by_hand: int) -> None:
    assert counted(run) == by_hand


def test_one_call_is_counted_as_the_mode_counts_it() -> None:
    layer = nn.LSTM(10, 6)
    sequence = torch.randn(7, N, 10)
    weights = list(layer.parameters())
    zeros = torch.zeros(1, N, 6)
    operator = torch.ops.aten.lstm.input
    arguments = (sequence, (zeros, zeros), weights, True, 1, 0.0, False, False, False)
    found = flops_of(operator, arguments, {}, operator(*arguments))
    assert found == counted(lambda: layer(sequence)) == 2 * 7 * N * 4 * 6 * (10 + 6)
