"""The traced memory of a step against torch.profiler's memory events of the same step, and against arithmetic."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from loaderbench.analysis.memory import BYTES, KIND, layers_of, peak_bytes, peak_of
from loaderbench.cases.case import Mode, Optimizer, Precision, Step
from loaderbench.errors import ConfigError, OutOfMemory, UnavailableError
from loaderbench.recording.model_memory import MEMORY_KINDS, MeasuredMemory
from loaderbench.running import kept_traces, workspaces
from loaderbench.running.jobs.memory import _DataGrowth, measure_memory, trace_memory, try_batch
from loaderbench.running.jobs.table import MeasureMemoryRequest, TraceRequest, TrialRequest
from loaderbench.running.kept_traces import trace_of
from loaderbench.running.memory_cap import MemoryCap
from loaderbench.running.memory_trace import trace_step
from loaderbench.running.workspaces import unchecked_processor
from tests.thinned import thinned

LENET_PARAMETERS = 16 * 25 + 16 + 16 * 16 * 25 + 16 + 256 * 50 + 50 + 50 * 10 + 10
"""Two convolutions of 16 maps with 5x5 kernels, 256 x 50 and 50 x 10 weights, and their biases."""


def step(
    model: str, batch: int = 2, size: int = 64, mode: Mode = "train", optimizer: Optimizer = "sgd",
    precision: Precision = "fp32",
) -> Step:  # fmt: skip
    lenet = model == "lenet"
    return Step(model, mode, precision, "cpu", batch, 28 if lenet else size, optimizer=optimizer,
                channels=1 if lenet else 3)  # fmt: skip


def measured(asked: Step) -> MeasuredMemory:
    return measure_memory(MeasureMemoryRequest(asked, 0, 3), lambda message: None).memory


needs_checked_processor = pytest.mark.skipif(
    unchecked_processor() is not None,
    reason=f"the rules for workspaces hold for AVX-512, and this processor has {unchecked_processor()}",
)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """oneDNN's workspaces depend on their number (docs/model-memory.md); tests beside each other have one each."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


CASES = [
    step("lenet", 16),
    step("lenet", 16, mode="infer"),
    step("lenet", 4, optimizer="adam"),
    step("squeezenet1_1", 4, optimizer="adam"),
    step("squeezenet1_1", 4, mode="infer"),
    step("resnet18", 2),
    step("resnet18", 2, mode="infer", precision="amp-bf16"),
]
SLOW_CASES = [step("squeezenet1_1", 1), step("resnet18", 4, optimizer="adam", precision="amp-bf16")]


@needs_checked_processor
@pytest.mark.parametrize(
    "asked",
    [*CASES, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW_CASES)],
    ids=lambda one: f"{one.model}-{one.mode}-{one.precision}-{one.optimizer}",
)
def test_the_predicted_peak_is_the_profilers(asked: Step, two_threads: None) -> None:
    predicted, found = peak_bytes(trace_step(asked, 0, on_accelerator=False)), measured(asked)
    assert found.peak_live_bytes is not None
    assert abs(predicted / found.peak_live_bytes - 1) <= 0.02
    assert found.peak_reserved_bytes is None and "peak_reserved_bytes" in found.missing


LENETS = [
    (mode, optimizer, precision, batch)
    for mode, optimizer in (("train", "sgd"), ("train", "adam"), ("infer", "sgd"))
    for precision in ("fp32", "amp-bf16")
    for batch in (1, 2, 8)
]


@pytest.mark.parametrize(("mode", "optimizer", "precision", "batch"), LENETS)
@pytest.mark.parametrize(("channels", "size"), thinned([(1, 28), (3, 32)], 2))
def test_the_smallest_steps_are_predicted_too(
    channels: int, size: int, mode: Mode, optimizer: Optimizer, precision: Precision, batch: int
) -> None:
    """oneDNN's scratchpads are up to a third of these: whatever processor and threads, for they are probed."""
    asked = Step("lenet", mode, precision, "cpu", batch, size, optimizer=optimizer, channels=channels)
    predicted, found = peak_bytes(trace_step(asked, 0, on_accelerator=False)), measured(asked)
    assert found.peak_live_bytes is not None
    assert abs(predicted / found.peak_live_bytes - 1) <= 0.002


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("name", ["lstm", "lstm_both", "gru", "encoder", "products"])
@pytest.mark.parametrize("batch", [3, 16])
def test_recurrent_and_fused_layers_and_products_are_predicted(batch: int, name: str, mode: Mode) -> None:
    """Their workspaces and inner results were missing: a prediction of 7 MiB where an LSTM needs 44."""
    model = f"tests.running.recurrent_models:{name}"
    asked = Step(model, mode, "fp32", "cpu", batch, 64, optimizer="sgd", channels=1)
    predicted, found = peak_bytes(trace_step(asked, 0, on_accelerator=False)), measured(asked)
    assert found.peak_live_bytes is not None
    assert abs(predicted / found.peak_live_bytes - 1) <= 0.02


def test_the_recurrent_layers_of_an_accelerator_are_not_predicted() -> None:
    model = "tests.running.recurrent_models:lstm"
    asked = Step(model, "train", "fp32", "cpu", 4, 64, optimizer="sgd", channels=1)
    with pytest.raises(UnavailableError, match="only its library knows"):
        trace_step(asked, 0, on_accelerator=True)


def test_a_module_that_returns_several_tensors_is_a_layer() -> None:
    model = "tests.running.recurrent_models:lstm"
    asked = Step(model, "train", "fp32", "cpu", 4, 64, optimizer="sgd", channels=1)
    layers = {one.name: one for one in trace_step(asked, 0, on_accelerator=False).layers}
    assert layers["rnn"].shape == (4, 64, 128)
    assert layers["rnn"].bytes == 4 * (4 * 64 * 128 + 2 * 2 * 4 * 128)  # with both layers' two states


def test_traces_for_a_line_are_not_probed_and_line_up_with_those_that_are() -> None:
    asked = step("lenet", 2, precision="amp-bf16")
    probed, by_rules = (trace_step(asked, 0, on_accelerator=False, probed=one) for one in (True, False))
    assert (probed.events[:, 1:3] == by_rules.events[:, 1:3]).all()
    more = probed.allocations[:, BYTES] - by_rules.allocations[:, BYTES]
    assert more.max() > 10_000  # oneDNN's scratchpads


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 1), ("adam", 2)])
def test_what_stands_is_what_arithmetic_says(optimizer: Optimizer, states: int) -> None:
    trace = trace_step(step("lenet", 3, optimizer=optimizer), 0, on_accelerator=False)
    standing = trace.allocations[trace.events[trace.events[:, 2] == 0][:, 0]]
    by_kind = {
        name: int(standing[standing[:, KIND] == number, BYTES].sum()) for number, name in enumerate(MEMORY_KINDS)
    }
    assert by_kind["parameters"] == 4 * LENET_PARAMETERS == by_kind["gradients"]
    counters = 0 if optimizer == "sgd" else 8 * 4  # one fp32 count of steps for each of the eight parameters
    assert by_kind["optimizer"] == 4 * LENET_PARAMETERS * states + counters
    images, labels, constants = 3 * 28 * 28 * 4, 3 * 8, 2 * 3 * 4  # the last: each channel's scale and shift
    assert by_kind["activations"] == images + labels + constants


@pytest.mark.parametrize(("mode", "handles"), [("train", 2), ("infer", 1)])
@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.15.0"])
def test_an_accelerators_sizes_are_rounded_and_its_library_takes_its_part(
    monkeypatch: pytest.MonkeyPatch, version: str, mode: Mode, handles: int
) -> None:
    monkeypatch.setattr(workspaces.torch, "__version__", version)
    trace = trace_step(step("lenet", 3, mode=mode), 0, on_accelerator=True)
    sizes = trace.allocations[:, BYTES]
    assert not (sizes % 512).any() and sizes.max() == 32 * 2**20
    (large,) = np.nonzero(sizes == 32 * 2**20)
    events = [trace.events[trace.events[:, 0] == number] for number in large]
    if version == "2.15.0":  # each of the two layers multiplies once, and twice more backwards; nothing is kept
        assert len(large) == (6 if mode == "train" else 2) and all(len(one) == 2 for one in events)
    else:  # read off an H200's allocator: for each thread that multiplies, and 1 MiB once
        assert len(large) == handles and all(len(one) == 1 for one in events)
        assert np.count_nonzero(sizes == 2**20) == 1
    assert any("_foreach_" in name for name in trace.operators) is (mode == "train")


def test_layers_are_the_models_and_so_is_the_place_of_the_peak() -> None:
    trace = trace_step(step("resnet18", 4), 0, on_accelerator=False)
    rows = layers_of(trace)
    # the first convolution: 64 maps of 32x32, 4 bytes each; the residual sums are rows too
    assert (rows[0].name, rows[0].shape, rows[0].output_bytes) == ("conv1", (4, 64, 32, 32), 4 * 64 * 32 * 32 * 4)
    assert sum(row.type.startswith("add") for row in rows) == 8
    assert rows[-1].outputs_bytes == sum(row.output_bytes for row in rows)
    peak = peak_of(trace)
    assert "conv" in peak.place.module and peak.place.operator.startswith("aten.convolution_backward")


class Reading(torch.nn.Module):
    """A model that looks at its values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 8 * 8, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(images.flatten(1))
        return out * 2 if bool(out.sum() > 0) else out


def test_a_model_that_reads_values_is_not_predicted_but_measured() -> None:
    asked = Step("tests.running.test_memory_trace:Reading", "train", "fp32", "cpu", 2, 8)
    with pytest.raises(UnavailableError, match="cannot be traced without values"):
        trace_step(asked, 0, on_accelerator=False)
    assert measured(asked).peak_live_bytes


def test_a_model_that_takes_no_such_images_says_so() -> None:
    with pytest.raises(ConfigError, match="images of 299×299 or larger"):
        trace_step(step("inception_v3", size=64), 0, on_accelerator=False)


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_it_ends_with_the_step(mode: Mode) -> None:
    trace = trace_step(step("lenet", 2, mode=mode), 0, on_accelerator=True)
    changes = trace.allocations[trace.events[:, 0], 0] * trace.events[:, 1]
    weights = trace.allocations[trace.allocations[:, 1] == MEMORY_KINDS.index("parameters"), 0].sum()
    assert weights > 0 and changes.sum() >= weights  # which no step frees


def test_a_processor_on_which_the_rules_were_not_checked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    asked = step("lenet", 2)
    assert trace_step(asked, 0, on_accelerator=False).unchecked_on == "AVX2"
    assert trace_step(asked, 0, on_accelerator=True).unchecked_on is None


# -- kept traces -----------------------------------------------------------------------------------------


def test_a_trace_is_kept_and_a_damaged_one_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = step("lenet", 3)
    first = trace_of(asked, 0, on_accelerator=False)
    (kept,) = (tmp_path / "loaderbench" / "memory").iterdir()
    # when it is asked for again, nothing is traced
    with monkeypatch.context() as patched:
        patched.setattr(kept_traces, "trace_step", None)
        again = trace_of(asked, 0, on_accelerator=False)
    assert again.seconds is None and peak_bytes(again) == peak_bytes(first) and again.layers == first.layers
    # when the file is damaged, it is traced again and kept again
    kept.write_bytes(kept.read_bytes()[:-100])
    assert trace_of(asked, 0, on_accelerator=False).seconds > 0
    assert trace_of(asked, 0, on_accelerator=False).seconds is None
    # and another step has another trace
    trace_of(step("lenet", 3, optimizer="adam"), 0, on_accelerator=False)
    assert len([*kept.parent.iterdir()]) == 2


def test_a_job_traces_several_batches() -> None:
    asked = TraceRequest((step("lenet", 2), step("lenet", 5)), 0, on_accelerator=False)
    assert [one.batch_size for one in trace_memory(asked, lambda message: None)] == [2, 5]


# -- limits ----------------------------------------------------------------------------------------------


def test_the_cap_ends_what_passes_it_with_the_allocators_own_error() -> None:
    with MemoryCap(1000) as cap:
        first = torch.zeros(100)
        assert cap.live_bytes == 400
        second = first + 1
        third = second.view(10, 10)  # takes nothing
        assert cap.live_bytes == 800
        del second
        assert cap.live_bytes == 800
        del third
        assert cap.live_bytes == 400 and cap.peak_bytes == 800 and not cap.passed
        with pytest.raises(RuntimeError, match=r"DefaultCPUAllocator: can't allocate memory.* 800 bytes"):
            torch.zeros(200)
    assert cap.passed


def test_a_trial_fits_at_its_peak_and_fails_a_byte_below() -> None:
    asked = step("lenet", 8)
    free = try_batch(TrialRequest(asked, 0, 3, 10**9, "ledger"), lambda message: None).memory.peak_live_bytes
    assert free is not None
    fits = TrialRequest(asked, 0, 3, free, "ledger")
    assert try_batch(fits, lambda message: None).memory.peak_live_bytes == free
    with pytest.raises(OutOfMemory, match="does not fit"):
        try_batch(TrialRequest(asked, 0, 3, free - 1, "ledger"), lambda message: None)
    with pytest.raises(OutOfMemory, match=r"tensors need more than the cap of 9\.8 KiB"):
        try_batch(TrialRequest(asked, 0, 3, 10_000, "ledger"), lambda message: None)


def test_the_growth_of_the_data_is_that_of_what_is_mapped_and_keeps_its_peak() -> None:
    def mapped(size: int) -> mmap.mmap:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    mapped(400 << 20).close()  # the address space was larger once
    gc.collect()
    with _DataGrowth() as data:
        first, second = mapped(20 << 20), mapped(12 << 20)
        first.close()
        second.close()
        mapped(8 << 20).close()
    assert 32 << 20 <= data.peak_bytes <= 33 << 20
