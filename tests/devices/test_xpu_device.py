"""The Intel GPU, against a fake torch.xpu: what is its own beside what it shares with CUDA."""

import contextlib
import time
from types import SimpleNamespace

import pytest
import torch

from loaderbench.devices.xpu import SIDE, XpuDevice, XpuRecorder
from loaderbench.errors import OutOfMemory, UnavailableError
from loaderbench.recording.facts import MemoryFacts

STEP_NS = 3_000_000
"""What the fake takes for a matrix product."""


class FakeQueue:
    def __init__(self, device=None):
        self.free_ns = 0

    def wait_stream(self, other):
        self.free_ns = max(self.free_ns, other.free_ns)


class FakeEvent:
    def __init__(self, enable_timing=False, blocking=False):
        assert enable_timing
        self.at_ns = 0

    def record(self, queue):
        self.at_ns = max(time.perf_counter_ns(), queue.free_ns)

    def synchronize(self):
        while time.perf_counter_ns() < self.at_ns:
            time.sleep(1e-4)

    def elapsed_time(self, other):
        return (other.at_ns - self.at_ns) / 1e6


class FakeXpu:
    """What XpuDevice asks of torch.xpu, with one GPU and its queue."""

    def __init__(self):
        self.queue, self.calls, self.bf16 = FakeQueue(), [], True

    def product(self, left, right):
        assert left.shape == right.shape == (SIDE, SIDE)
        self.queue.free_ns = max(time.perf_counter_ns(), self.queue.free_ns) + STEP_NS

    def install(self, monkeypatch):
        found = SimpleNamespace(
            name="Intel Fake Graphics", total_memory=16_000_000_000, driver_version="1.6", max_compute_units=96
        )
        replaced = {
            "init": lambda: None,
            "device_count": lambda: 1,
            "set_device": lambda index: self.calls.append(f"set {index}"),
            "current_stream": lambda device: self.queue,
            "get_device_properties": lambda device: found,
            "is_bf16_supported": lambda: self.bf16,
            "Event": FakeEvent,
            "Stream": FakeQueue,
            "stream": lambda queue: contextlib.nullcontext(),
            "synchronize": lambda device: None,
            "empty_cache": lambda: self.calls.append("empty_cache"),
            "reset_peak_memory_stats": lambda device: self.calls.append("reset"),
            "max_memory_allocated": lambda device: 500,
            "max_memory_reserved": lambda device: 600,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(f"torch.xpu.{name}", value)


@pytest.fixture
def fake(monkeypatch):
    made = FakeXpu()
    made.install(monkeypatch)
    return made


def test_what_callers_would_ask_its_kind_for_is_told(fake):
    opened = XpuDevice(0, overlap=True)
    assert (str(opened.torch_device), opened.gpu, opened.copies, opened.pins_memory) == ("xpu:0", None, True, False)
    facts = opened.describe()
    assert (facts.kind, facts.name, facts.memory_bytes) == ("xpu", "Intel Fake Graphics", 16_000_000_000)
    assert (facts.emulated, facts.overlap, facts.on_host_cpus, facts.has_counters) == (False, True, False, False)
    assert facts.details["num_compute_units"] == 96 and type(facts.details["torch"]) is str
    assert not XpuDevice(0).describe().overlap
    tensor = torch.zeros(1)
    assert opened.pin(tensor) is tensor
    assert opened.held_ns(lambda: None, 0.1) is None
    assert opened.busy_ns(None, None) is None


def test_memory_is_the_allocators_for_the_driver_tells_no_process(fake):
    opened = XpuDevice(0)
    opened.release_memory()
    assert fake.calls == ["set 0", "empty_cache", "reset"]
    facts = opened.memory()
    assert (facts.allocated_bytes, facts.reserved_bytes, facts.process_bytes) == (500, 600, None)
    assert (
        isinstance(facts, MemoryFacts) and "does not report the memory of a process" in facts.missing["process_bytes"]
    )


def test_events_bracket_its_work(fake):
    opened = XpuDevice(0)
    begin = opened.record()
    fake.queue.free_ns = time.perf_counter_ns() + 20_000_000
    first, last = opened.times_ns([begin, opened.record()])
    assert last - first == pytest.approx(20_000_000, rel=0.05)


def test_occupying_it_enqueues_products_that_take_the_time(fake, monkeypatch):
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, device: ones(*shape))
    monkeypatch.setattr(torch, "mm", fake.product)
    opened = XpuDevice(0)
    occupy = opened.occupying(0.06)
    opened.synchronize()
    begin = opened.record()
    occupy()
    first, last = opened.times_ns([begin, opened.record()])
    assert last - first == pytest.approx(60_000_000, rel=0.1)


def test_which_precisions_it_lacks(fake):
    opened = XpuDevice(0)
    assert opened.lacks("tf32") is not None
    assert all(opened.lacks(precision) is None for precision in ("fp32", "fp16", "amp-fp16", "bf16", "amp-bf16"))
    fake.bf16 = False
    assert "this Intel GPU does not take --precision amp-bf16" in opened.lacks("amp-bf16")
    assert opened.lacks("fp16") is None


def test_whose_memory_was_too_small(fake):
    opened = XpuDevice(0)
    assert opened.out_of_memory(torch.OutOfMemoryError("XPU out of memory.")) == "the device's 16 GB"
    driver = RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)")
    assert opened.out_of_memory(driver) == "the device's 16 GB"
    assert opened.out_of_memory(RuntimeError("expected 3 channels")) is None

    class Huge:
        nbytes = 3_000_000

        def to(self, device, non_blocking):
            raise torch.OutOfMemoryError("XPU out of memory.")

    with pytest.raises(OutOfMemory, match="does not fit: a batch of 3 MB"):
        opened.copy_in(Huge(), Huge())


def test_without_one_it_is_unavailable_in_one_line(monkeypatch):
    monkeypatch.setattr("torch.xpu.device_count", lambda: 0)
    with pytest.raises(UnavailableError, match=r"there is no Intel GPU 0: torch\.xpu offers 0") as caught:
        XpuDevice(0)
    assert "\n" not in str(caught.value)

    def broken():
        raise AssertionError("Torch not compiled with XPU enabled\nmore")

    monkeypatch.setattr("torch.xpu.device_count", lambda: 1)
    monkeypatch.setattr("torch.xpu.init", broken)
    with pytest.raises(UnavailableError, match=r"torch.xpu does not start \(Torch not compiled with XPU enabled\)"):
        XpuDevice(0)


def test_its_recorder_asks_for_its_own_activity():
    assert XpuRecorder().source == "torch.profiler, XPU activity"
