"""Training with what autograd saves on the host: gradients bit-equal, memory below the cap, autograd's own errors."""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import loaderbench
from loaderbench.cases.case import Mode, Step
from loaderbench.errors import ConfigError, PlanMismatch
from loaderbench.offloading.copies import copier_for
from loaderbench.offloading.hooks import Offload
from loaderbench.offloading.plan import Plan, least_cap, ledger, plan_for
from loaderbench.offloading.sources import SizeSource
from loaderbench.running.workspaces import unchecked_processor
from tests.offloading.models import NAMES, Hidden
from tests.offloading.steps import Running, equal, plain, profiled_peak, results, step_of, traced

MODELS = (
    "squeezenet1_0", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "resnet18", "resnet34", "resnet50",
    "inception_v3", "vgg16", "vgg19", "densenet121", "googlenet", "resnext50_32x4d",
)  # fmt: skip
CASES = [
    step_of("lenet", 4),
    step_of("squeezenet1_1", 2, 48),
    *(step_of(name) for name in NAMES),
    step_of("Views", precision="amp-bf16"),
    step_of("InPlace", precision="amp-bf16"),
    step_of("Reused", precision="amp-bf16"),
]
SLOW_CASES = [
    *(step_of(name, 1 if name.startswith("vgg") else 2) for name in MODELS),
    step_of("resnet18", precision="amp-bf16"),
    step_of("squeezenet1_1", precision="amp-bf16"),
]


def plans(step: Step) -> list[Plan]:
    """Everything on the host; the least cap; one in the middle, with both rules."""
    trace = traced(step)
    least, most = least_cap(trace), ledger(trace, plan_for(trace)).peak_bytes
    return [
        plan_for(trace, above_bytes=0),
        plan_for(trace, cap_bytes=least),
        plan_for(trace, above_bytes=1 << 12, cap_bytes=(least + most) // 2),
    ]


@pytest.mark.parametrize(
    "step",
    [*CASES, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW_CASES)],
    ids=lambda one: f"{one.model.rpartition(':')[2]}-{one.precision}",
)
def test_gradients_are_bit_equal_and_what_moved_is_the_plans(step: Step) -> None:
    expected, _ = results(step)
    found, statistics = results(step, above_bytes=0)
    assert equal(found, expected)
    assert statistics is not None and statistics.num_out == statistics.num_saved > 0
    for plan in plans(step):
        found, statistics = results(step, plan)
        counted = ledger(traced(step), plan)
        assert equal(found, expected)
        assert statistics is not None
        # In bf16, PyTorch's fake batch norm tells half of the bytes of its statistics.
        near = 0 if step.precision == "fp32" else 0.03
        assert statistics.num_saved == len(plan.sizes)
        assert statistics.saved_bytes == pytest.approx(sum(plan.sizes), rel=near)
        assert (statistics.num_out, statistics.num_in) == (counted.num_out, counted.num_in)
        assert statistics.out_bytes == pytest.approx(counted.out_bytes, rel=near)
        assert statistics.in_bytes == pytest.approx(counted.in_bytes, rel=near)
        assert statistics.host_peak_bytes == pytest.approx(counted.host_peak_bytes, rel=near)
        assert near or statistics.host_reserved_bytes == counted.host_reserved_bytes >= counted.host_peak_bytes


def test_the_whole_room_moves_in_the_plans_that_the_tests_above_ran() -> None:
    assert all(ledger(traced(one), plans(one)[0]).num_in > 2 for one in CASES if one.model != "lenet")


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.9])
def test_the_profilers_peak_stays_below_the_cap(part: float) -> None:
    step = step_of("lenet", 32)
    trace = traced(step)
    least, most = least_cap(trace), ledger(trace, plan_for(trace)).peak_bytes
    assert abs(profiled_peak(step, None) - most) <= 8 < most - least  # the last step's loss, of 4 bytes, lives longer
    cap = least + int(part * (most - least))
    plan = plan_for(trace, cap_bytes=cap)
    assert not plan.moves_nothing and ledger(trace, plan).peak_bytes <= cap
    assert profiled_peak(step, plan) <= cap + 8


@pytest.fixture
def two_threads() -> Iterator[None]:
    """oneDNN's workspaces depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(unchecked_processor() is not None, reason="the rules for workspaces hold for AVX-512")
@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [step_of("squeezenet1_1", 4), step_of("resnet18", 4), step_of("Reused", 4), step_of("mobilenet_v2", 4)],
    ids=lambda one: one.model,
)  # fmt: skip
@pytest.mark.parametrize("part", [0.0, 0.5])
def test_the_profilers_peak_of_larger_models_too(step: Step, part: float, two_threads: None) -> None:
    trace = traced(step)
    least, most = least_cap(trace), ledger(trace, plan_for(trace)).peak_bytes
    cap = least + int(part * (most - least))
    plan = plan_for(trace, cap_bytes=cap)
    assert profiled_peak(step, plan) <= 1.005 * cap


def test_nothing_moves_when_the_run_fits() -> None:
    step = step_of("Reused")
    trace = traced(step)
    peak = ledger(trace, plan_for(trace)).peak_bytes
    plan = plan_for(trace, cap_bytes=peak)
    assert plan.moves_nothing
    _, statistics = results(step, plan)
    assert statistics is not None
    assert statistics.num_out == statistics.num_in == statistics.host_reserved_bytes == 0
    assert not plan_for(trace, cap_bytes=peak - 1).moves_nothing


def test_a_storage_is_saved_once_and_parameters_never() -> None:
    weight = nn.Linear(4, 4)
    values = torch.randn(3, 4, requires_grad=True)
    with loaderbench.offload(weight) as offloading:
        hidden = torch.exp(values)  # saved by exp, by the product twice, and by the layer: one storage
        result = (weight(hidden * hidden) + hidden).sum()
        del hidden
        result.backward()
        found = offloading.end_step()
    assert found.num_saved == found.num_out == 2 and found.saved_bytes == 2 * 3 * 4 * 4
    assert found.num_in == 1  # the product is the last that was saved: it had not left


def test_what_others_hold_still_needs_no_copy_back() -> None:
    layer = nn.Linear(4, 4)
    values = [torch.randn(3, 4, requires_grad=True) for _ in range(3)]
    kept = []
    with loaderbench.offload(layer) as offloading:
        for one in values:
            kept.append(one.exp())
        sum(kept).sum().backward()  # type: ignore[attr-defined]
        found = offloading.end_step()
    assert (found.num_out, found.num_in) == (3, 0)
    assert all(torch.equal(one.grad, one.exp()) for one in values if one.grad is not None)


def test_what_is_not_needed_any_more_leaves_the_host() -> None:
    layer = nn.Linear(64, 64)
    with loaderbench.offload(layer) as offloading:
        for _ in range(4):
            values = torch.randn(32, 64)
            for _ in range(5):
                values = layer(values).tanh()
            values.sum().backward()
        kept = offloading.end_step()
        del values
        gc.collect()
        assert offloading._moves.host_bytes == 0 and not offloading._saved
    assert kept.host_reserved_bytes <= 12 * 8192  # the buffers of one step serve all


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_model_is_gone_with_its_last_reference(mode: Mode) -> None:
    gc.collect()
    step = step_of("lenet", 4, mode=mode)
    running = Running(step)
    seen = weakref.ref(running.workload.model)
    with running.engine(plan_for(traced(step), above_bytes=0), None) as engine:
        running.once(engine)
    gc.disable()
    try:
        del running, engine
        assert seen() is None
    finally:
        gc.enable()


def changed_in_place(offloaded: bool, late: bool) -> str:
    layer = nn.Linear(4, 4)
    first = torch.ones(2, 4, requires_grad=True)
    context = loaderbench.offload(layer, above_bytes=1 << 40 if not late else 0) if offloaded else torch.enable_grad()
    with context:
        hidden = first * 2
        result = hidden.exp()
        result.add_(1)
        with pytest.raises(RuntimeError) as raised:
            result.sum().backward()
    return plain(str(raised.value))


def test_a_change_in_place_of_what_was_kept_is_autograds_own_error() -> None:
    assert changed_in_place(True, late=False) == changed_in_place(False, late=False)


def test_a_parameter_changed_in_place_is_autograds_own_error() -> None:
    def error(offloaded: bool) -> str:
        layer = nn.Linear(4, 4)
        with loaderbench.offload(layer) if offloaded else torch.enable_grad():
            loss = layer(torch.ones(2, 4, requires_grad=True)).sum()
            with torch.no_grad():
                layer.weight.add_(1)
            with pytest.raises(RuntimeError) as raised:
                loss.backward()
        return plain(str(raised.value))

    assert error(True) == error(False)


def test_a_storage_that_was_copied_before_it_is_changed_gives_its_old_values() -> None:
    values = torch.full((2, 4), 0.5, requires_grad=True)
    with loaderbench.offload(nn.Linear(4, 4)):
        result = values.exp()
        before = result.detach().clone()
        torch.ones(4, requires_grad=True).exp()  # behind it the first has left
        result.add_(1)
        result.sum().backward()
    assert values.grad is not None and torch.equal(values.grad, before)


def test_a_step_of_another_batch_is_not_the_plans() -> None:
    plan = plan_for(traced(step_of("lenet", 4)), above_bytes=0)
    other = Running(step_of("lenet", 5))
    with (
        other.engine(plan, None) as engine,
        pytest.raises(PlanMismatch, match=r"saved storage 0 of 12,544 bytes.*15,680"),
    ):
        other.once(engine)


def test_a_step_of_another_model_is_not_the_plans() -> None:
    plan = plan_for(traced(step_of("Views")), above_bytes=0)
    shorter = Running(step_of("Views"))
    longer = replace(plan, hooks=(*plan.hooks, -1))
    with (
        shorter.engine(longer, None) as engine,
        pytest.raises(PlanMismatch, match=r"the step has \d+ hook events and its"),
    ):
        shorter.once(engine)
    with (
        shorter.engine(replace(plan, hooks=plan.hooks[:-1]), None) as engine,
        pytest.raises(PlanMismatch, match="more hook events than"),
    ):
        shorter.once(engine)


@pytest.mark.parametrize("name", ["above_bytes", "after_bytes"])
@pytest.mark.parametrize(
    "size", [-1, "8M", math.nan, math.inf, 0.5, 8.0, True, torch.tensor(0.5), [8], np.float64(8)], ids=repr
)
def test_what_is_no_number_of_bytes_is_refused_in_one_line(name: str, size: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is .*: give a whole number of bytes, 0 or more"):
        loaderbench.offload(nn.Linear(2, 2), **{name: size})
    with pytest.raises(ConfigError, match=r"^after_bytes is None: "):
        loaderbench.offload(nn.Linear(2, 2), after_bytes=None)  # type: ignore[arg-type]


def test_numpys_whole_numbers_are_numbers_of_bytes() -> None:
    loaderbench.offload(nn.Linear(2, 2), above_bytes=np.int64(8), after_bytes=np.int32(0))  # type: ignore[arg-type]


def test_a_device_that_nothing_can_be_copied_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="a model on a CUDA device or on the CPU, not on meta"):
        loaderbench.offload(nn.Linear(2, 2, device="meta"))


class Scale(nn.Module):
    """A model without parameters, and perhaps without buffers."""

    def __init__(self, factor: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("factor", factor)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.exp() if self.factor is None else (values * self.factor).exp()


def test_a_model_without_parameters_is_where_its_buffers_are() -> None:
    with pytest.raises(ConfigError, match="not on meta"):
        loaderbench.offload(Scale(torch.ones(3, device="meta")))
    assert _num_moved(Scale(torch.ones(3))) == 1


def test_a_model_with_neither_needs_its_device_told() -> None:
    model = Scale(None)
    with pytest.raises(ConfigError, match="no parameters or buffers that show its device: give device="):
        loaderbench.offload(model)
    with pytest.raises(ConfigError, match="not on meta"):
        loaderbench.offload(model, device="meta")
    with pytest.raises(ConfigError, match="PyTorch refuses device 'gpu':"):
        loaderbench.offload(model, device="gpu")
    assert _num_moved(model, device="cpu") == 1


def _num_moved(model: nn.Module, **options: Any) -> int:
    """What a step of the model moves to the host."""
    with loaderbench.offload(model, **options) as offloading:
        model(torch.ones(4, 3, requires_grad=True)).sum().backward()
        return offloading.end_step().num_out


def test_only_from_so_many_bytes_on_and_behind_so_many() -> None:
    layer = nn.Linear(8, 8)

    def moved(**sizes: int) -> int:
        with loaderbench.offload(layer, **sizes) as offloading:
            values = torch.ones(4, 8, requires_grad=True)
            for _ in range(6):
                values = values.exp()  # 128 bytes each
            values.sum().backward()
            return offloading.end_step().num_out

    assert moved() == 6 and moved(above_bytes=128) == 6 and moved(above_bytes=129) == 0
    assert moved(after_bytes=3 * 128) == 4  # the third is the first behind which as many are live


def test_what_a_custom_function_hides_is_said() -> None:
    model = Hidden()
    with (
        pytest.warns(UserWarning, match="HiddenCubeBackward keeps 4.0 KiB in squares"),
        loaderbench.offload(model) as offloading,
    ):
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    (sentence,) = offloading.unhooked
    assert "use ctx.save_for_backward" in sentence
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with loaderbench.offload(nn.Linear(3, 3)) as offloading:
            nn.Linear(3, 3)(torch.randn(2, 3)).sum().backward()
    assert offloading.unhooked == ()


def test_one_engine_serves_one_context_after_another() -> None:
    step = step_of("Reused")
    running = Running(step)
    expected, _ = results(step)
    engine = running.engine(plan_for(traced(step), above_bytes=0), None)
    found, reserved = [], []
    for _ in range(2):
        with engine:
            statistics = running.once(engine)
        found += running.results()
        assert statistics is not None
        reserved.append(statistics.host_reserved_bytes)
    assert equal(found, expected) and reserved[0] == reserved[1] > 0  # the buffers stay


def test_the_graph_may_be_used_twice() -> None:
    values = torch.randn(4, 8, requires_grad=True)
    with loaderbench.offload(nn.Linear(2, 2)):
        result = (values.exp() * values.sin()).tanh().sum()
        result.backward(retain_graph=True)
        first = values.grad
        values.grad = None
        result.backward()
    assert first is not None and values.grad is not None and torch.equal(first, values.grad)


def test_the_engine_lets_go_of_what_it_moved() -> None:
    values = torch.randn(4, 8, requires_grad=True)
    with loaderbench.offload(nn.Linear(2, 2)):
        one = values.exp()
        seen: Any = weakref.ref(one.untyped_storage())
        two = one.sin()
        three = two.cos()
        del one
        assert seen() is None  # `two` was copied out since, so `one` has left
        three.exp().sum().backward()


def test_values_that_change_unseen_between_two_passes_are_saved_anew() -> None:
    def gradient(sizes: dict[str, int] | None) -> torch.Tensor | None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        values = np.zeros((8, 16), np.float32)
        images = torch.from_numpy(values)
        kept = []
        with ExitStack() as stack:
            if sizes is not None:
                stack.enter_context(loaderbench.offload(model, **sizes))
            for number in range(3):
                values[:] = number + 1  # as a loader's own buffer: no version tells it
                kept.append(model(images[:]).sum())
            kept[-1].backward()  # the others' graphs are alive
        return next(model.parameters()).grad

    expected, found = gradient(None), gradient({})
    assert expected is not None and found is not None and torch.equal(expected, found)


def test_a_graph_that_is_kept_from_a_step_before_does_not_disturb_the_plan() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
    images = torch.randn(8, 16)
    hooks: list[int] = []

    class Heard(SizeSource):
        def check(self, saved: int, num_bytes: int) -> None:
            hooks.append(saved)

    with Offload(model, Heard(1 << 30, 0), copier_for(torch.device("cpu"))):
        model(images).sum().backward()
    plan = Plan((512,) * (max(hooks) + 1), tuple(hooks), {}, {}, {})
    with loaderbench.offload(model, plan=plan) as offloading:
        kept = model(images)  # a look without a backward pass
        for _ in range(2):
            offloading.begin_step()
            model(images).sum().backward()
            offloading.end_step()
    assert kept.grad_fn is not None


def test_a_loop_within_one_context_leaves_nothing_behind() -> None:
    model, source = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)), SizeSource(0, 0)
    with Offload(model, source, copier_for(torch.device("cpu"))):
        for _ in range(5):
            model(torch.randn(8, 16)).sum().backward()
    left = {name: value for name, value in vars(source).items() if isinstance(value, list | dict | set) and value}
    assert left == {}
