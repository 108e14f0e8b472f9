"""Offloading on a GPU: the streams' copies, a plan from fake CUDA tensors, and the allocator's peak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import loaderbench
from loaderbench.offloading.plan import Plan, least_cap, ledger, plan_for
from loaderbench.running.offload_trace import saved_trace
from tests.offloading.steps import Running, step_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

WIDTH, ROWS, DEPTH = 2048, 8192, 12


def gradients(model: nn.Module, values: torch.Tensor, context: Any) -> tuple[list[torch.Tensor], int]:
    """Of two steps, and the allocator's peak beyond what was there before."""
    found = []
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        model.zero_grad()
        with context:
            model(values).square().mean().backward()
        found += [one.grad.clone().cpu() for one in model.parameters() if one.grad is not None]
    torch.cuda.synchronize()
    return found, torch.cuda.max_memory_allocated() - before


def test_gradients_are_bit_equal_and_less_memory_is_taken() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.0))]
    model = nn.Sequential(*layers).cuda()
    values = torch.randn(ROWS, WIDTH, device="cuda")
    expected, most = gradients(model, values, torch.enable_grad())
    found, taken = gradients(model, values, loaderbench.offload(model, above_bytes=1 << 20))
    assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
    assert taken < most - 8 * ROWS * WIDTH * 4


@pytest.mark.parametrize("name", ["squeezenet1_1", "resnet18"])
def test_a_plan_is_the_running_steps_and_keeps_below_its_cap(name: str) -> None:
    step = replace(step_of(name, 32, 224), device="cuda")
    trace = saved_trace(step, 0, on_accelerator=True, device="cuda")
    least, most = least_cap(trace), ledger(trace, plan_for(trace)).peak_bytes
    plan = plan_for(trace, cap_bytes=(least + most) // 2)
    planned = ledger(trace, plan)
    running = Running(step)
    running.inputs, running.targets = running.inputs.cuda(), running.targets.cuda()

    def run(plan: Plan) -> tuple[Any, list[float], int]:
        losses = []
        with running.engine(plan, None) as engine:
            for _ in range(3):
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                statistics = running.once(engine)
                losses.append(float(running.workload.last_output))
        return statistics, losses, torch.cuda.max_memory_allocated()

    _, _, whole = run(plan_for(trace))
    statistics, losses, peak = run(plan)
    assert statistics is not None and statistics.num_in == planned.num_in > 0
    assert losses[2] < losses[0] and statistics.exposed_s >= 0
    unseen = whole - most  # by the trace: cuDNN's workspace at the peak, which lies at another operator with a plan
    assert unseen >= 0
    assert peak <= planned.peak_bytes + unseen + 0.1 * most
