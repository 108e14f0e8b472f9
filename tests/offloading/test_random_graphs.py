"""Graphs of many kinds of operators: outputs and gradients with and without offloading are equal bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import loaderbench
from loaderbench.cases.case import Step
from loaderbench.offloading.plan import least_cap, ledger, plan_for
from tests.offloading.random_models import BLOCKS, Blocks, drawn
from tests.offloading.steps import equal, results, traced

ABOVE = (0, 1 << 11)
"""Bytes from which tensors go to the host: everything; about half of all."""
AFTER = 1 << 14


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def passes(model: Blocks, **sizes: int) -> list[torch.Tensor]:
    """The output, and the gradients after each of three passes: two through one graph, one through a new one."""
    torch.manual_seed(1)
    images = torch.randn(2, 3, 8, 8, requires_grad=True)
    leaves = [images, *model.parameters()]
    found: list[torch.Tensor] = []
    with loaderbench.offload(model, **sizes) if sizes else nullcontext():
        for number in range(2):
            output = model(images)
            found.append(output.detach().clone())
            for retain in (True, False)[number:]:
                output.square().sum().backward(retain_graph=retain)
                found += [one.grad.clone() for one in leaves if one.grad is not None]
    model.zero_grad()
    return found


def assert_alike(make: Any) -> None:
    expected = passes(make())
    for above in ABOVE:
        assert equal(passes(make(), above_bytes=above), expected), above
    assert equal(passes(make(), above_bytes=0, after_bytes=AFTER), expected)


def seeded(make: Any) -> Any:
    def made() -> Blocks:
        torch.manual_seed(0)
        return make()  # type: ignore[no-any-return]

    return made


def test_plain_passes_are_equal_to_each_other() -> None:
    make = seeded(lambda: Blocks([*BLOCKS.values()], [*range(len(BLOCKS))]))
    assert equal(passes(make()), passes(make()))


@pytest.mark.parametrize("name", BLOCKS)
def test_each_kind_of_operator(name: str) -> None:
    assert_alike(seeded(lambda: Blocks([BLOCKS[name]], [0])))


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(one, marks=pytest.mark.slow) for one in range(6, 300))])
def test_random_graphs(seed: int) -> None:
    assert_alike(seeded(lambda: drawn(seed)))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(one, marks=pytest.mark.slow) for one in range(2, 60))])
def test_random_graphs_by_a_plan(seed: int) -> None:
    step = Step(f"tests.offloading.random_models:Random{seed}", "train", "fp32", "cpu", 2, 8)
    trace = traced(step)
    least, most = least_cap(trace), ledger(trace, plan_for(trace)).peak_bytes
    expected, _ = results(step)
    for plan in (
        plan_for(trace, above_bytes=0),
        plan_for(trace, cap_bytes=least),
        plan_for(trace, above_bytes=1 << 12, cap_bytes=(least + most) // 2),
    ):
        assert equal(results(step, plan)[0], expected)
