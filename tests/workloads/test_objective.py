"""The loss that a model's outputs ask for, against PyTorch's own losses of the same values; and its targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

from loaderbench.workloads.objective import Objective, flat, tensors_of

RANDOM = torch.Generator().manual_seed(3)


def logits(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RANDOM, requires_grad=True)


def loss_of(outputs: Any, *, tokens: bool = False, **more: Any) -> tuple[torch.Tensor, torch.Tensor, Objective]:
    """(loss, targets, objective) for outputs of two samples."""
    objective = Objective(outputs, integer_inputs=tokens, **more)
    targets = objective.targets(2, torch.Generator().manual_seed(5))
    return objective.loss(outputs, targets, in_float32=True), targets, objective


@pytest.mark.parametrize("shape", [(2, 7), (2, 5, 4, 6), (2, 5, 9)])
def test_logits_have_their_classes_in_the_second_dimension(shape: tuple[int, ...]) -> None:
    outputs = logits(*shape)
    loss, targets, objective = loss_of(outputs)
    assert targets.shape == (2, *shape[2:]) and targets.max() < shape[1] == objective.num_classes
    torch.testing.assert_close(loss, functional.cross_entropy(outputs, targets))


def test_logits_of_tokens_have_their_classes_last() -> None:
    outputs = logits(2, 9, 50)
    loss, targets, objective = loss_of({"logits": outputs, "cache": logits(2, 9, 9)}, tokens=True)
    assert targets.shape == (2, 9) and objective.num_classes == 50
    torch.testing.assert_close(loss, functional.cross_entropy(outputs.movedim(2, 1), targets))


def test_one_channel_is_two_classes() -> None:
    outputs = logits(2, 1, 4, 4)
    loss, targets, _ = loss_of(outputs)
    torch.testing.assert_close(loss, functional.binary_cross_entropy_with_logits(outputs, targets))


def test_auxiliary_classifiers_have_the_same_loss_and_other_heads_their_squares() -> None:
    main, auxiliary, boxes = logits(2, 7), logits(2, 7), logits(2, 4)
    loss, targets, _ = loss_of((main, auxiliary, boxes))
    of_both = functional.cross_entropy(main, targets) + functional.cross_entropy(auxiliary, targets)
    torch.testing.assert_close(loss, of_both + boxes.square().mean())
    loss.backward()
    assert all(one.grad is not None for one in (main, auxiliary, boxes))


def test_nested_outputs_of_a_detector_all_take_part() -> None:
    outputs = {"classes": [logits(2, 20, 8, 8), logits(2, 20, 4, 4)], "boxes": [logits(2, 4, 8, 8)]}
    loss, _, _ = loss_of(outputs)
    loss.backward()
    assert all(one.grad is not None for one in tensors_of(outputs))


def test_losses_that_the_model_returns_are_summed() -> None:
    one, other = logits(), logits()
    assert loss_of({"classes": one, "boxes": other})[0] == one + other
    assert loss_of({"loss": one, "logits": logits(2, 7)})[0] is one


def test_values_without_classes_have_their_squares() -> None:
    outputs = logits(2)
    loss, targets, _ = loss_of(outputs)
    assert targets.numel() == 0
    torch.testing.assert_close(loss, outputs.square().mean())


def test_ones_own_loss_gets_targets_if_it_takes_two_arguments() -> None:
    outputs = logits(2)
    loss, targets, _ = loss_of(outputs, own=functional.mse_loss)
    assert targets.shape == (2,)
    torch.testing.assert_close(loss, functional.mse_loss(outputs, targets))
    assert loss_of(outputs, own=lambda given: given.sum())[0] == outputs.sum()


@dataclass
class Named:
    scores: torch.Tensor
    labels: torch.Tensor


def test_outputs_are_compared_by_all_their_values() -> None:
    outputs = Named(torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64))
    assert flat([outputs, torch.zeros(2, 2)]).shape == (2, 5)
    assert [one.dtype for one in tensors_of(outputs)] == [torch.bfloat16, torch.int64]
