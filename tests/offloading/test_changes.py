"""A tensor that is changed after autograd saved it: what the backward pass uses, with and without offloading."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import loaderbench
from tests.offloading.random_models import Doubled
from tests.offloading.steps import plain

Change = Callable[[torch.Tensor], object]


def in_no_grad(values: torch.Tensor) -> None:
    with torch.no_grad():
        values.mul_(2)


def by_foreach(values: torch.Tensor) -> None:
    with torch.no_grad():
        torch._foreach_mul_([values], 2)


def as_output(values: torch.Tensor) -> None:
    torch.mul(values.detach(), 2, out=values.detach())


def in_place_of_a_copy(values: torch.Tensor) -> None:
    with torch.autograd._unsafe_preserve_version_counter(values), torch.no_grad():
        values.mul_(2)


def by_chunks(values: torch.Tensor) -> None:
    for one in values.detach().unsafe_chunk(2, -1):
        one.mul_(2)


COUNTED: dict[str, Change] = {
    "in place": lambda values: values.mul_(2),
    "in place, a view": lambda values: values[0].mul_(2),
    "no_grad": in_no_grad,
    "a detached alias": lambda values: values.detach().mul_(2),
    "foreach": by_foreach,
    "out=": as_output,
    "set_": lambda values: values.detach().set_(torch.zeros(4, 8)),
    "resize_": lambda values: values.detach().resize_(2, 8),
    "mark_dirty": Doubled.apply,
}
"""PyTorch counts these as changes of the tensor."""

UNCOUNTED: dict[str, Change] = {
    ".data": lambda values: values.data.mul_(2),
    "unsafe_chunk": by_chunks,
    "NumPy": lambda values: values.detach().numpy().fill(0.3),
    "DLPack": lambda values: torch.utils.dlpack.from_dlpack(values.detach()).mul_(2),  # type: ignore[attr-defined]
    "the storage": lambda values: values.untyped_storage().fill_(0),
    "a counter that is put back": in_place_of_a_copy,
}
"""It does not count these."""


def as_saved() -> AbstractContextManager[Any]:
    """Every saved tensor is copied when it is saved."""
    return torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept)


def as_first_saved() -> AbstractContextManager[Any]:
    """A saved tensor is copied the first time that it is saved."""
    kept: dict[tuple[int, int], torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        return kept.setdefault((tensor.data_ptr(), tensor._version), tensor.clone())

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one)


def moving(above_bytes: int = 0) -> AbstractContextManager[Any]:
    return loaderbench.offload(nn.Linear(2, 2), above_bytes=above_bytes)


def staying() -> AbstractContextManager[Any]:
    return moving(1 << 40)


def gradient(change: Change, context: AbstractContextManager[Any], *, again: bool = False) -> torch.Tensor:
    """`hidden` is saved, has left the device where offloading moves it, is changed, and may be saved again."""
    values = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
    with context:
        hidden = values * 1.0
        results = [hidden.sin()]
        torch.ones(4, requires_grad=True).exp()  # saved after it: `hidden` has left
        change(hidden)
        if again:
            results.append(hidden.cos())
        del hidden
        sum(one.sum() for one in results).backward()  # type: ignore[union-attr]
    assert values.grad is not None
    return values.grad


def error(change: Change, context: AbstractContextManager[Any]) -> str:
    with pytest.raises(RuntimeError) as raised:
        gradient(change, context)
    return plain(str(raised.value))


@pytest.mark.parametrize("name", COUNTED)
def test_a_change_that_pytorch_counts_is_its_own_error_or_comes_too_late(name: str) -> None:
    change = COUNTED[name]
    said = error(change, nullcontext())
    assert "modified by an inplace operation" in said and error(change, staying()) == said
    assert torch.equal(gradient(change, moving()), gradient(change, as_saved()))


@pytest.mark.parametrize("name", [one for one in COUNTED if one not in ("set_", "resize_")])
def test_new_values_that_are_saved_again_are_copied_again(name: str) -> None:
    change = COUNTED[name]
    assert torch.equal(gradient(change, moving(), again=True), gradient(change, as_saved(), again=True))


@pytest.mark.parametrize("name", UNCOUNTED)
def test_a_change_that_pytorch_does_not_count_reaches_what_is_on_the_device_alone(name: str) -> None:
    change = UNCOUNTED[name]
    changed, saved = gradient(change, nullcontext()), gradient(change, as_saved())
    assert not torch.equal(changed, saved)
    assert torch.equal(gradient(change, staying()), changed)
    assert torch.equal(gradient(change, moving()), saved)
    assert torch.equal(gradient(change, moving(), again=True), gradient(change, as_first_saved(), again=True))


def assigned(values: torch.Tensor) -> None:
    values.data = values.detach() * 2


@pytest.mark.parametrize("context", [moving, staying])
@pytest.mark.parametrize("again", [False, True])
def test_other_data_reach_nothing_that_was_saved_before(context: Any, again: bool) -> None:
    assert not torch.equal(gradient(assigned, nullcontext()), gradient(assigned, as_saved()))
    assert torch.equal(gradient(assigned, context(), again=again), gradient(assigned, as_saved(), again=again))


def test_other_data_that_are_larger_are_not_taken_for_the_old_ones() -> None:
    kept = []

    def enlarge(values: torch.Tensor) -> None:
        kept.append(values)  # it lives on: what it has on the device is looked at before the host's copy
        values.data = torch.zeros(8, 16)

    assert torch.equal(gradient(enlarge, moving()), gradient(lambda values: None, as_saved()))


def test_a_storage_that_has_grown_is_copied_again() -> None:
    def run(context: AbstractContextManager[Any]) -> torch.Tensor:
        values = torch.linspace(-1, 1, 32).requires_grad_()
        with context:
            hidden = values * 1.0
            result = hidden.sin().sum()
            torch.ones(4, requires_grad=True).exp()
            hidden.untyped_storage().resize_(1024)
            hidden.untyped_storage().fill_(0)  # what is new has no values yet
            larger = hidden.as_strided((64,), (1,))
            factor = torch.ones(64, requires_grad=True)
            (result + (larger * factor).sum()).backward()
        assert values.grad is not None and factor.grad is not None
        return torch.cat([values.grad, factor.grad])

    assert torch.equal(run(moving()), run(as_saved()))


@pytest.mark.parametrize("change", [assigned, UNCOUNTED[".data"]])
def test_a_parameter_has_the_data_that_it_has_in_the_backward_pass(change: Change) -> None:
    def run(offloaded: bool) -> torch.Tensor:
        layer, values = nn.Linear(8, 4), torch.ones(4, 8, requires_grad=True)
        nn.init.ones_(layer.weight)
        with loaderbench.offload(layer) if offloaded else nullcontext():
            result = (values * layer.weight).sum()
            change(layer.weight)
            result.backward()
        assert values.grad is not None
        return values.grad

    assert torch.equal(run(False), torch.full((4, 8), 2.0)) and torch.equal(run(True), run(False))


def test_parts_that_count_their_changes_apart_are_copied_apart() -> None:
    def run(context: AbstractContextManager[Any]) -> torch.Tensor:
        values = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        with context:
            first, second = (values * 2).unsafe_chunk(2, -1)
            total = first.sigmoid_().sum()
            torch.ones(4, requires_grad=True).exp()
            total = total + second.tanh_().sum()
            del first, second
            total.backward()
        assert values.grad is not None
        return values.grad

    assert torch.equal(run(moving()), run(nullcontext()))


def test_views_are_saved_with_their_base_once() -> None:
    values = torch.ones(4, 8, requires_grad=True)
    with loaderbench.offload(nn.Linear(2, 2)) as offloading:
        hidden = values * 1.0
        sum(one.sin().sum() for one in (hidden, hidden.T, *hidden.chunk(2), hidden.view(-1)[3:])).backward()  # type: ignore[union-attr]
        assert offloading.end_step().num_saved == 1
