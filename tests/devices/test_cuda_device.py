"""The CUDA device: its arithmetic anywhere, its behaviour where there is a GPU."""

import contextlib
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from loaderbench.devices import cuda
from loaderbench.devices.cuda import CudaDevice
from loaderbench.devices.select import num_visible_gpus
from loaderbench.errors import OutOfMemory, UnavailableError
from loaderbench.recording.facts import MemoryFacts

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(num_visible_gpus() == 0, reason="no NVIDIA GPU (or not asked for: -m gpu)"),
]


class Float32Event:
    """An event whose differences come as CUDA gives them: float32 milliseconds."""

    def __init__(self, at_ns):
        self.at_ns = at_ns

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return float(np.float32((other.at_ns - self.at_ns) / 1e6))


def test_event_times_keep_their_resolution_over_a_minute():
    # given a device anchored at 5 s of the host's clock, and an event every 16 ms for a minute
    device = CudaDevice.__new__(CudaDevice)
    device._anchor_event, device._anchor_ns = Float32Event(0), 5_000_000_000
    at = np.arange(1, 3750, dtype=np.int64) * 16_123_457
    # when their times are asked for
    times = device.times_ns([Float32Event(int(t)) for t in at])
    # then float32 has cost less than a microsecond (against the anchor alone it would cost four)
    assert np.abs(times - 5_000_000_000 - at).max() < 1_000
    direct = np.array([Float32Event(0).elapsed_time(Float32Event(int(t))) * 1e6 for t in at])
    assert np.abs(direct - at).max() > 1_000


class FakeStream:
    """A queue of work on the host's clock."""

    def __init__(self, device=None):
        self.free_ns = 0

    def wait_stream(self, other):
        self.free_ns = max(self.free_ns, other.free_ns)


class FakeEvent(Float32Event):
    def __init__(self, **flags):
        super().__init__(0)

    def record(self, stream):
        self.at_ns = max(time.perf_counter_ns(), stream.free_ns)

    def synchronize(self):
        while time.perf_counter_ns() < self.at_ns:
            time.sleep(1e-4)


class FakeTensor:
    """All that a copy looks at."""

    def __init__(self, fake, pinned, fits=True):
        self.fake, self.pinned, self.fits, self.nbytes = fake, pinned, fits, 3_000_000

    def is_pinned(self):
        return self.pinned

    def clone(self):
        return FakeTensor(self.fake, pinned=False, fits=self.fits)

    def record_stream(self, stream):
        pass

    def to(self, device, non_blocking):
        import torch

        assert (str(device), non_blocking) == ("cuda:0", True)
        if not self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate …")
        self.fake.calls.append("pinned copy" if self.pinned else "pageable copy")
        return self


class FakeCuda:
    """What CudaDevice asks of torch.cuda, with one GPU that runs at 1.5 GHz and has a queue."""

    cycles_per_s = 1.5e9

    def __init__(self):
        self.stream = FakeStream()
        self.calls = []
        self.capability = (9, 0)
        self.process_bytes = 700

    def sleep(self, cycles):
        begin = max(time.perf_counter_ns(), self.stream.free_ns)
        self.stream.free_ns = begin + round(cycles / self.cycles_per_s * 1e9)

    def process_memory_bytes(self, ordinal, pid):
        assert (ordinal, pid) == (0, os.getpid())
        if self.process_bytes is None:
            raise UnavailableError("NVML does not start; install the NVIDIA driver")
        return self.process_bytes

    def properties(self, device):
        major, minor = self.capability
        return SimpleNamespace(
            name="NVIDIA Fake", total_memory=151_000_000_000, major=major, minor=minor, multi_processor_count=132
        )

    def install(self, monkeypatch):
        def note(name):
            return lambda *device: self.calls.append(name)

        replaced = {
            "init": lambda: None,
            "device_count": lambda: 1,
            "set_device": lambda index: None,
            "current_stream": lambda device: self.stream,
            "get_device_properties": self.properties,
            "Event": FakeEvent,
            "Stream": FakeStream,
            "stream": lambda stream: contextlib.nullcontext(),
            "synchronize": lambda device: None,
            "_sleep": self.sleep,
            "empty_cache": note("empty_cache"),
            "reset_peak_memory_stats": note("reset_peak_memory_stats"),
            "max_memory_allocated": lambda device: 500,
            "max_memory_reserved": lambda device: 600,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(f"torch.cuda.{name}", value)
        monkeypatch.setattr(cuda, "process_memory_bytes", self.process_memory_bytes)


@pytest.fixture
def fake(monkeypatch):
    made = FakeCuda()
    made.install(monkeypatch)
    return made


def test_a_stamp_is_an_event_that_wakes_nobody(fake, monkeypatch):
    flags = []
    opened = CudaDevice(0)
    monkeypatch.setattr("torch.cuda.Event", lambda **asked: flags.append(asked) or FakeEvent(**asked))
    fake.sleep(1.5e6)  # 1 ms
    first, last = opened.stamp(), opened.record()
    assert flags == [{"enable_timing": True}, {"enable_timing": True, "blocking": True}]
    assert first.at_ns == last.at_ns == fake.stream.free_ns


def test_what_callers_would_ask_its_kind_for_is_told(fake):
    opened = CudaDevice(0, overlap=True)
    assert (opened.copies, opened.pins_memory, opened.gpu, str(opened.torch_device)) == (True, True, 0, "cuda:0")
    assert opened.num_search_steps == 10
    facts = opened.describe()
    assert (facts.kind, facts.name, facts.memory_bytes) == ("cuda", "NVIDIA Fake", 151_000_000_000)
    assert (facts.emulated, facts.overlap, facts.copies, facts.on_host_cpus) == (False, True, True, False)
    assert facts.has_counters
    assert facts.details["compute_capability"] == "9.0"
    assert type(facts.details["torch"]) is str  # torch's own class would make its reader import torch
    assert not CudaDevice(0).describe().overlap


def test_memory_by_the_allocator_and_by_the_driver(fake):
    opened = CudaDevice(0)
    opened.begin_memory()
    opened.release_memory()
    assert fake.calls == ["reset_peak_memory_stats", "empty_cache", "reset_peak_memory_stats"]
    why = {"rss_growth_bytes": "the model's memory is on the device"}
    assert opened.memory() == MemoryFacts(500, 600, 700, None, why)
    fake.process_bytes = None
    facts = opened.memory()
    assert facts.process_bytes is None
    assert "install the NVIDIA driver" in facts.missing["process_bytes"]


def test_an_old_gpu_lacks_tf32_and_bf16(fake):
    new = CudaDevice(0)
    fake.capability = (7, 5)
    old = CudaDevice(0)
    for precision in ("fp32", "fp16", "pure-fp16", "amp-fp16"):
        assert old.lacks(precision) is None
    for precision in ("tf32", "bf16", "amp-bf16", "pure-bf16"):
        assert new.lacks(precision) is None
        assert old.lacks(precision) == (
            f"--precision {precision} needs compute capability 8.0, and this GPU has 7.5: "
            "use fp32, fp16, pure-fp16 or amp-fp16"
        )


def test_whose_memory_was_too_small(fake):
    import torch

    opened = CudaDevice(0)
    assert opened.out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")) == "the device's 151 GB"
    assert opened.out_of_memory(RuntimeError("CUDA error: out of memory")) == "the device's 151 GB"
    host = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    assert opened.out_of_memory(host) == "this machine's free memory"
    assert opened.out_of_memory(RuntimeError("expected 3 channels")) is None
    huge = FakeTensor(fake, pinned=True, fits=False)
    with pytest.raises(OutOfMemory) as caught:
        opened.copy_in(huge, huge)
    assert str(caught.value) == (
        "does not fit: a batch of 3 MB and the model need more than the device's 151 GB; try a smaller --batch-size"
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_a_pageable_copy_is_none_from_pinned_memory(fake, overlap):
    opened = CudaDevice(0, overlap=overlap)
    inputs, targets = FakeTensor(fake, pinned=True), FakeTensor(fake, pinned=False)
    opened.copy_in(inputs, targets)
    opened.pageable(inputs, targets)
    assert fake.calls == ["pinned copy", "pageable copy", "pageable copy", "pageable copy"]


def test_occupying_it_spins_by_its_measured_clock(fake):
    opened = CudaDevice(0)
    assert opened.cycles_per_s() == pytest.approx(1.5e9, rel=0.01)
    occupy = opened.occupying(0.04)
    opened.synchronize()
    begin, cpu = opened.record(), time.thread_time()
    occupy()
    end = opened.record()
    assert time.thread_time() - cpu < 0.005
    first, last = opened.times_ns([begin, end])
    assert last - first == pytest.approx(40_000_000, rel=0.02)


@pytest.mark.skipif(num_visible_gpus() > 0, reason="there is a GPU, so it opens")
def test_without_a_gpu_it_is_unavailable_in_one_line():
    with pytest.raises(UnavailableError) as caught:
        CudaDevice(0)
    assert "--device emulated" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def device():
    opened = CudaDevice(0)
    yield opened
    opened.close()


def spin(seconds):
    """Keep the GPU busy for about this long, at 1–2 GHz."""
    import torch

    torch.cuda._sleep(int(seconds * 1.5e9))


class TestOnGpu:
    pytestmark = needs_gpu

    def test_event_times_lie_between_the_host_stamps_around_them(self, device):
        device.anchor()
        slack = device.describe().details["anchor_uncertainty_ns"] + 5_000
        for _ in range(50):
            begin = time.perf_counter_ns()
            event = device.record()
            device.wait(event)
            end = time.perf_counter_ns()
            assert begin - slack <= device.times_ns([event])[0] <= end + slack
        assert slack < 60_000

    def test_waiting_sleeps(self, device):
        spin(0.2)
        event = device.record()
        begin, cpu = time.perf_counter_ns(), time.thread_time_ns()
        device.wait(event)
        waited, burnt = time.perf_counter_ns() - begin, time.thread_time_ns() - cpu
        assert waited > 50_000_000
        assert burnt < 0.1 * waited

    def test_a_copy_from_pinned_memory_does_not_block(self, device):
        import torch

        inputs = device.pin(torch.zeros(64, 3, 224, 224))
        targets = device.pin(torch.zeros(64, dtype=torch.int64))
        device.copy_in(inputs, targets)
        device.synchronize()
        spin(0.2)
        begin = time.perf_counter_ns()
        copied, _ = device.copy_in(inputs, targets)
        assert time.perf_counter_ns() - begin < 50_000_000
        device.synchronize()
        assert copied.is_cuda

    def test_a_copy_on_a_stream_of_its_own_runs_beside_the_compute(self):
        import torch

        opened = CudaDevice(0, overlap=True)
        inputs = opened.pin(torch.ones(64, 3, 224, 224))
        targets = opened.pin(torch.zeros(64, dtype=torch.int64))
        opened.copy_in(inputs, targets)
        opened.synchronize()
        spin(0.2)  # computes while the next batch is copied
        computed = opened.record()
        begin = opened.record_copy()
        copied, _ = opened.copy_in(inputs, targets)
        end = opened.record_copy()
        total = copied.sum()  # must wait for the copy
        (done,) = opened.times_ns([computed])
        first, last = opened.times_ns([begin, end])
        assert first < last < done
        assert float(total) == inputs.numel()
        opened.close()

    def test_the_clocks_drift_by_microseconds_a_second_at_most(self, device):
        device.anchor()
        time.sleep(1.0)
        assert abs(device.drift_ns()) < 100_000

    def test_a_batch_that_does_not_fit_fails_the_case_in_one_line(self, device):
        import torch

        huge = torch.zeros(1, 1, dtype=torch.uint8).expand(2**24, 2**17)  # 2 TiB, of which one byte exists
        with pytest.raises(OutOfMemory, match=r"does not fit.*--batch-size"):
            device.copy_in(huge, huge)

    def test_facts_and_peak_memory(self, device):
        import torch

        device.reset_peak_memory()
        kept = torch.empty(100_000_000, dtype=torch.uint8, device="cuda:0")
        assert device.peak_memory_bytes() >= kept.nbytes
        facts = device.describe()
        assert facts.memory_bytes > 1e9
        assert facts.emulated is False
        assert device.memory().allocated_bytes >= kept.nbytes
        del kept
        device.release_memory()
        assert device.memory().allocated_bytes < 100_000_000

    def test_a_held_step_takes_its_kernels_time_however_late_the_host_is(self, device):
        spin(0.5)  # wakes the clocks

        def late():
            spin(0.002)
            time.sleep(0.02)
            spin(0.002)

        device.synchronize()
        begin, _, end = device.record(), late(), device.record()
        first, last = device.times_ns([begin, end])
        assert last - first > 20_000_000
        held = [device.held_ns(late, 0.1) for _ in range(3)]
        assert all(busy is not None and 2_000_000 < busy < 10_000_000 for busy in held)

    def test_a_hold_that_ends_too_early_says_nothing(self, device):
        assert device.held_ns(lambda: time.sleep(0.2), 0.01) is None
