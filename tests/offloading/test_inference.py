"""Inference with parameters and activations on the host: outputs bit-equal, memory below the cap, nothing lost."""

from __future__ import annotations

import pytest
import torch

from loaderbench.cases.case import Step
from loaderbench.errors import PlanMismatch
from loaderbench.offloading.inference import InferenceOffload
from loaderbench.offloading.plan import least_cap, ledger, plan_for
from tests.offloading.models import NAMES
from tests.offloading.steps import Running, equal, profiled_peak, results, step_of, traced

CASES = [
    step_of("lenet", 4, mode="infer"),
    step_of("lenet", 4, mode="infer", precision="amp-bf16"),
    step_of("squeezenet1_1", 2, 48, mode="infer"),
    *(step_of(name, mode="infer") for name in (*NAMES, "Unused")),
]
SLOW_CASES = [
    *(step_of(name, 1 if name.startswith("vgg") else 2, mode="infer") for name in (
        "squeezenet1_0", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "resnet18", "resnet34", "resnet50",
        "inception_v3", "vgg16", "densenet121", "googlenet", "resnext50_32x4d",
    )),
    step_of("resnet18", mode="infer", precision="amp-bf16"),
]  # fmt: skip


@pytest.mark.parametrize(
    "step",
    [*CASES, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW_CASES)],
    ids=lambda one: f"{one.model.rpartition(':')[2]}-{one.precision}",
)
def test_outputs_are_bit_equal_and_what_moved_is_the_plans(step: Step) -> None:
    trace = traced(step)
    expected, _ = results(step)
    least, most = least_cap(trace), ledger(trace, plan_for(trace)).peak_bytes
    for sizes in (
        {"above_bytes": 0},
        {"cap_bytes": least},
        {"above_bytes": 1 << 10, "cap_bytes": (least + most) // 2},
    ):
        plan = plan_for(trace, **sizes)
        counted = ledger(trace, plan)
        found, statistics = results(step, plan, num_steps=3)
        assert equal(found[:2], expected) and torch.equal(found[2], found[1])
        # A parameter that no step uses is all that need be on the host below a cap.
        assert statistics is not None and (counted.in_bytes > 0 or step.model.endswith(":Unused"))
        assert (statistics.num_out, statistics.out_bytes) == (counted.num_out, counted.out_bytes)
        assert (statistics.num_in, statistics.in_bytes) == (counted.num_in, counted.in_bytes)
        assert statistics.host_peak_bytes == counted.host_peak_bytes
        assert statistics.host_reserved_bytes == counted.host_reserved_bytes


@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_the_profilers_peak_stays_below_the_cap(part: float) -> None:
    step = step_of("lenet", 32, mode="infer")
    trace = traced(step)
    least, most = least_cap(trace), ledger(trace, plan_for(trace)).peak_bytes
    assert profiled_peak(step, None) == most
    cap = least + int(part * (most - least))
    assert profiled_peak(step, plan_for(trace, cap_bytes=cap)) <= cap


def test_everything_is_on_the_device_again_behind_it() -> None:
    step = step_of("Shared", mode="infer")
    running = Running(step)
    model = running.workload.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = running.inputs.clone()
    with running.engine(plan_for(traced(step), above_bytes=0), None) as engine:
        running.once(engine)
        assert all(not one.untyped_storage().nbytes() for one in model.parameters())  # on the host between two steps
        assert torch.equal(running.inputs, inputs)  # the caller's are whole
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert engine._moves.host_bytes == 0


def test_parameters_may_be_changed_between_two_steps() -> None:
    step = step_of("Shared", mode="infer")
    plan = plan_for(traced(step), above_bytes=0)
    plain, offloaded = Running(step), Running(step)
    with offloaded.engine(plan, None) as engine:
        offloaded.once(engine)
        for one in (plain, offloaded):
            with torch.no_grad():
                for parameter in one.workload.model.parameters():
                    parameter.mul_(1.5)
        plain.once(None)
        offloaded.once(engine)
        assert torch.equal(plain.workload.last_output, offloaded.workload.last_output)


def test_an_operator_that_raises_ends_its_step_alone() -> None:
    step = step_of("lenet", 4, mode="infer")
    plan = plan_for(traced(step), above_bytes=0)
    running, counted = Running(step), ledger(traced(step), plan)
    expected, _ = results(step)
    layers = [one for one in running.workload.model.modules() if isinstance(one, torch.nn.Conv2d)]
    with running.engine(plan, None) as engine:
        for layer in layers:
            padding, layer.padding = layer.padding, (-1, -1)
            with pytest.raises(RuntimeError, match="negative padding"):
                running.once(engine)
            layer.padding = padding
            assert torch.ones(3).sum() == 3  # what comes between two steps is no part of the plan
            statistics = running.once(engine)
            assert equal(running.results(), expected[:1])
            assert statistics is not None and statistics.num_in == counted.num_in > 0
            assert all(not one.untyped_storage().nbytes() for one in running.workload.model.parameters())


def test_what_pytorch_cannot_resize_stays_and_is_said() -> None:
    step = step_of("Shared", mode="infer")
    plan = plan_for(traced(step), above_bytes=0)
    expected, _ = results(step)
    running = Running(step)
    weight = running.workload.model.first.weight
    weight.data = torch.from_numpy(weight.detach().numpy().copy())  # the weight of a checkpoint that is mapped
    with running.engine(plan, None) as engine:
        for _ in range(2):
            running.once(engine)
            assert equal(running.results(), expected[:1])
        assert weight.untyped_storage().nbytes() == 8 * 3 * 3 * 3 * 4
    (sentence,) = engine.unhooked
    assert sentence.startswith("1 storage stays on the device, 0.8 KiB: ")
    with Running(step).engine(plan, None) as engine:
        assert engine.unhooked == ()


def test_another_input_each_step() -> None:
    step = step_of("lenet", 4, mode="infer")
    plan = plan_for(traced(step), above_bytes=0, cap_bytes=least_cap(traced(step)))
    plain, offloaded = Running(step), Running(step)
    with offloaded.engine(plan, None) as engine:
        for seed in range(3):
            torch.manual_seed(seed)
            plain.inputs = torch.randn_like(plain.inputs)
            offloaded.inputs = plain.inputs.clone()
            plain.once(None)
            offloaded.once(engine)
            assert torch.equal(plain.workload.last_output, offloaded.workload.last_output)


def test_another_batch_is_not_the_plans() -> None:
    plan = plan_for(traced(step_of("lenet", 4, mode="infer")), above_bytes=0)
    other = Running(step_of("lenet", 5, mode="infer"))
    with (
        InferenceOffload(other.workload.model, plan) as engine,
        pytest.raises(PlanMismatch, match="another model, batch"),
    ):
        other.once(engine)
    assert all(one.untyped_storage().nbytes() for one in other.workload.model.parameters())


def test_nothing_moves_when_it_fits() -> None:
    step = step_of("lenet", 4, mode="infer")
    trace = traced(step)
    plan = plan_for(trace, cap_bytes=ledger(trace, plan_for(trace)).peak_bytes)
    _, statistics = results(step, plan)
    assert plan.moves_nothing and statistics is not None
    assert statistics.num_in == statistics.num_out == statistics.host_reserved_bytes == 0
