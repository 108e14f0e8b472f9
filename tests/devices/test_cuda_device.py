"""The CUDA device: its arithmetic anywhere, its behaviour where there is a GPU."""

import time

import numpy as np
import pytest

from loaderbench.devices.cuda import CudaDevice
from loaderbench.devices.select import num_visible_gpus
from loaderbench.errors import CaseFailed, UnavailableError

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(num_visible_gpus() == 0, reason="no NVIDIA GPU here (no /dev/nvidia0, or hidden from CUDA)"),
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
        slack = device.describe()["anchor_uncertainty_ns"] + 5_000
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
        with pytest.raises(CaseFailed, match=r"does not fit.*--batch-size"):
            device.copy_in(huge, huge)

    def test_facts_and_peak_memory(self, device):
        import torch

        device.reset_peak_memory()
        kept = torch.empty(100_000_000, dtype=torch.uint8, device="cuda:0")
        assert device.peak_memory_bytes() >= kept.nbytes
        facts = device.describe()
        assert facts["memory_bytes"] > 1e9
        assert facts["emulated"] is False

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
        assert all(one is not None and 2_000_000 < one < 10_000_000 for one in held)

    def test_a_hold_that_ends_too_early_says_nothing(self, device):
        assert device.held_ns(lambda: time.sleep(0.2), 0.01) is None
