"""The trace of what a step saves against arithmetic, and against hooks on the same step as it really runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from loaderbench.analysis.memory import peak_bytes
from loaderbench.cases.case import Mode
from loaderbench.errors import UnavailableError
from loaderbench.offloading.plan import ledger, plan_for
from loaderbench.recording.model_offload import NOT_SAVED, SAVED_EVENTS, SavedTrace
from loaderbench.running.memory_trace import trace_step
from loaderbench.running.offload_trace import saved_trace
from tests.offloading.steps import Running, step_of, traced

BATCH = 4


def rows(trace: SavedTrace) -> list[tuple[str, int]]:
    return [(SAVED_EVENTS[what], value) for what, value, *_ in trace.rows.tolist()]


def test_what_lenet_saves_is_what_arithmetic_says() -> None:
    trace = traced(step_of("lenet", BATCH))
    per_image = [
        28 * 28 * 4,  # the images, for the first convolution
        16 * 24 * 24 * 4, 16 * 12 * 12 * 8,  # max pooling: what it reads, and int64 places
        16 * 12 * 12 * 4,  # ReLU's result, which the next convolution reads
        16 * 8 * 8 * 4, 16 * 4 * 4 * 8, 16 * 4 * 4 * 4,
        256 * 4,  # flattened: channels_last has another order
        50 * 4,
        10 * 4, 8,  # log-softmax's result and int64 labels
    ]  # fmt: skip
    assert trace.saved[:, 0].tolist() == [*(BATCH * size for size in per_image), 4]  # the sum of the classes' weights
    assert not trace.saved[:, 1].any()


def test_work_is_what_arithmetic_says() -> None:
    forward = {
        "conv1": 2 * BATCH * 16 * 24 * 24 * 25, "conv2": 2 * BATCH * 16 * 8 * 8 * 16 * 25,
        "affine1": 2 * BATCH * 256 * 50, "affine2": 2 * BATCH * 50 * 10,
    }  # fmt: skip
    for mode, passes in (("train", {"conv1": 2, "conv2": 3, "affine1": 3, "affine2": 3}), ("infer", {})):
        trace = traced(step_of("lenet", BATCH, mode=mode))  # type: ignore[arg-type]
        found: Counter[str] = Counter()
        for what, value, _, _, module in trace.rows.tolist():
            if SAVED_EVENTS[what] == "operator" and value:
                found[trace.modules[module]] += value
        assert found == {name: flops * passes.get(name, 1) for name, flops in forward.items()}


@pytest.mark.parametrize(
    "name", ["lenet", "squeezenet1_1", "Views", "InPlace", "Reused", "Shared", "Dropout", "Custom"]
)
def test_hook_events_are_those_of_the_running_step(name: str) -> None:
    """Each pack and unpack in order: the storage, by the number of those seen before, and its bytes."""
    step = step_of(name, 2, 48)
    trace, running = traced(step), Running(step)
    own = {one.untyped_storage()._cdata for one in running.workload.model.state_dict().values()}
    held: list[torch.Tensor] = []  # so that no other storage gets the same address
    seen: list[tuple[str, int, int]] = []
    numbers: dict[tuple[int, int], int] = {}

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        held.append(tensor.detach())
        key = (storage._cdata, tensor._version)
        number = NOT_SAVED if storage._cdata in own else numbers.setdefault(key, len(numbers))
        seen.append(("pack", number, storage.nbytes()))
        return number, storage.nbytes(), tensor.detach()

    def unpack(packed: Any) -> torch.Tensor:
        seen.append(("unpack", *packed[:2]))
        return packed[2]  # type: ignore[no-any-return]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        running.workload.step(running.inputs, running.targets)
    expected = [(what, value) for what, value in rows(trace) if what in ("pack", "unpack")]
    assert [(what, number) for what, number, _ in seen] == expected
    sizes = {number: size for _, number, size in seen if number != NOT_SAVED}
    assert trace.saved[:, 0].tolist() == [sizes[number] for number in range(len(sizes))]


@pytest.mark.parametrize("name", ["lenet", "squeezenet1_1", "Views", "Reused"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_without_a_plan_it_takes_what_the_trace_of_its_memory_says(name: str, mode: Mode) -> None:
    step = step_of(name, 2, 48, mode)
    trace = traced(step)
    assert ledger(trace, plan_for(trace)).peak_bytes == peak_bytes(trace_step(step, 0, on_accelerator=False))


@pytest.mark.parametrize("name", ["lenet", "Views", "InPlace", "Reused"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_others_hold_and_let_go_in_turns(name: str, mode: Mode) -> None:
    held: set[int] = set()
    forgotten: set[int] = set()
    for what, value in rows(traced(step_of(name, 2, 48, mode))):
        if what in ("hold", "unpack") and value != NOT_SAVED:
            assert value not in forgotten and (what == "unpack" or value not in held)
            held.add(value)
        elif what == "let_go":
            assert value in held
            held.remove(value)
        elif what == "forget":
            forgotten.add(value)
    assert len(held) == (2 if mode == "infer" else 1)  # the caller's: the inputs and the result; the labels


def test_in_inference_what_is_written_in_place_is_another_storage() -> None:
    trace = traced(step_of("InPlace", mode="infer"))
    told = rows(trace)
    written = [value for place, (what, value) in enumerate(told) if what == "forget" and told[place + 1][0] == "hold"]
    sizes = trace.saved[:, 0]
    assert len(written) >= 3 and all(sizes[told[told.index(("forget", one)) + 1][1]] == sizes[one] for one in written)


def test_an_accelerators_sizes_are_rounded() -> None:
    trace = saved_trace(step_of("lenet", 3), 0, on_accelerator=True)
    assert not (trace.saved[:, 0] % 512).any() and trace.saved[:, 0].min() == 512


def test_a_model_that_reads_values_cannot_be_traced() -> None:
    with pytest.raises(UnavailableError, match="cannot be traced without values"):
        saved_trace(step_of("Reading"), 0, on_accelerator=False)
