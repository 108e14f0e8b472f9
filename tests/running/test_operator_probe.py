"""What operators hold inside, against operators that allocate what arithmetic says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from loaderbench.running import operator_probe
from loaderbench.running.operator_probe import OperatorCall, probe
from loaderbench.running.workspaces import workspace_bytes

IMAGES, WEIGHT = torch.zeros(1, 3, 8, 8), torch.zeros(5, 3, 3, 3)
STRIDES = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)


def call_of(operator: Any, *arguments: Any) -> OperatorCall:
    call = OperatorCall.of(operator, arguments, {}, [operator(*arguments)])
    assert call is not None
    return call


def test_an_unfolded_convolution_holds_its_columns() -> None:
    """aten/src/ATen/native/ConvolutionMM2d.cpp: [channels x kernel, output's pixels], of a single small fp32 image."""
    call = call_of(torch.ops.aten.convolution.default, IMAGES, WEIGHT, None, *STRIDES)
    assert probe([call]) == {call.key: 4 * (3 * 3 * 3) * (6 * 6)}


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("other_order", [torch.contiguous_format, torch.channels_last])
def test_the_rule_for_batch_norms_backward_pass(order: Any, other_order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the images' gradient twice where both lie in one order."""
    operator = torch.ops.aten.native_batch_norm_backward.default
    monkeypatch.setattr(operator_probe, "PROBED", {str(operator)})
    monkeypatch.setattr(operator_probe, "MOST_PRODUCTS", 1 << 40)
    images = torch.zeros(4, 64, 16, 16).to(memory_format=order)
    gradient, ones = torch.zeros(4, 64, 16, 16).to(memory_format=other_order), torch.ones(64)
    arguments = (gradient, images, ones, ones, ones, ones, ones, True, 1e-5, [True, True, True])
    results = operator(*arguments)
    call = OperatorCall.of(operator, arguments, {}, results)
    assert call is not None
    by_rule = workspace_bytes(str(operator), arguments, results)
    assert by_rule == (4 * images.numel() if order == other_order else 0)
    assert 0 <= probe([call])[call.key] - by_rule <= 4 * 64  # a sum a channel


def test_a_product_of_matrices_holds_nothing_and_calls_alike_are_run_once() -> None:
    product = torch.ops.aten.mm.default
    calls = [call_of(product, torch.ones(4, 6), torch.ones(6, 2)) for _ in range(2)]
    assert calls[0].key == calls[1].key
    turned = call_of(product, torch.ones(6, 4).t(), torch.ones(6, 2))
    assert turned.key != calls[0].key
    assert probe([*calls, turned]) == {calls[0].key: 0, turned.key: 0}


def test_an_operator_that_fails_is_left_out() -> None:
    wrong = OperatorCall.of(torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(2, 3)), {}, [])
    assert wrong is not None and probe([wrong]) == {}


def test_what_is_large_or_another_operator_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.ones(2, 2)
    assert OperatorCall.of(torch.ops.aten.add.Tensor, (images, images), {}, [images]) is None
    product = torch.ops.aten.mm.default
    assert OperatorCall.of(product, (images, images), {}, [images]) is not None
    monkeypatch.setattr(operator_probe, "MOST_BYTES", 47)  # three matrices of 16 bytes
    assert OperatorCall.of(product, (images, images), {}, [images]) is None


def test_what_takes_long_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        operator_probe, "MOST_PRODUCTS", 5 * 36 * 27
    )  # outputs of 6x6 pixels, 3x3 kernels of 3 channels
    assert call_of(torch.ops.aten.convolution.default, IMAGES, WEIGHT, None, *STRIDES)
    gradients = (torch.zeros(1, 5, 6, 6), IMAGES, WEIGHT, [5], *STRIDES, [True, True, True])
    backward = torch.ops.aten.convolution_backward.default
    assert OperatorCall.of(backward, gradients, {}, backward(*gradients)) is None  # of the images and of the weights
    wide = torch.zeros(1, 3, 8, 9)
    assert OperatorCall.of(torch.ops.aten.conv2d.default, (wide, WEIGHT), {}, [torch.zeros(1, 5, 6, 7)]) is None
    monkeypatch.setattr(operator_probe, "MOST_PRODUCTS", 2 * 3 * 4)
    assert call_of(torch.ops.aten.addmm.default, torch.zeros(4), torch.zeros(2, 3), torch.zeros(3, 4))
    product = torch.ops.aten.mm.default
    assert OperatorCall.of(product, (torch.zeros(3, 3), torch.zeros(3, 4)), {}, [torch.zeros(3, 4)]) is None
