"""The CPU as a device: whatever was enqueued is done."""

import mmap
import os
import time
from pathlib import Path

import pytest

from loaderbench.cases.case import PRECISIONS
from loaderbench.devices.cpu import CpuDevice
from loaderbench.recording.facts import DeviceFacts


def test_an_event_is_the_moment_of_its_recording():
    cpu = CpuDevice()
    before = time.perf_counter_ns()
    events = [cpu.record(), cpu.record()]
    after = time.perf_counter_ns()
    times = cpu.times_ns(events)
    assert before <= times[0] <= times[1] <= after
    cpu.wait(events[1])
    assert cpu.busy_ns(*events) is None


def test_batches_stay_where_they_are():
    cpu = CpuDevice()
    inputs, targets = object(), object()
    assert cpu.copy_in(inputs, targets) == (inputs, targets)
    assert cpu.pin(inputs) is inputs
    assert cpu.pageable(inputs, targets) == (inputs, targets)
    assert not cpu.copies
    assert not cpu.pins_memory
    assert cpu.gpu is None


def test_facts_name_the_processor_and_leave_unknown_memory_open():
    facts = CpuDevice().describe()
    assert len(facts.name) > len("CPU ")
    assert facts.details["num_threads"] >= 1
    assert facts == DeviceFacts("cpu", facts.name, copies=False, on_host_cpus=True, details=facts.details)
    assert CpuDevice().peak_memory_bytes() is None


def test_its_threads_are_its_own_until_it_is_closed():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        affinity = os.sched_getaffinity(0)
        cpu = CpuDevice(2)
        assert (torch.get_num_threads(), cpu.describe().details["num_threads"]) == (2, 2)
        assert cpu.name.endswith(", 2 threads") and os.sched_getaffinity(0) == affinity
        cpu.close()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_memory_is_the_growth_of_the_resident_set_since_the_beginning():
    cpu = CpuDevice()
    cpu.begin_memory()
    if "rss_growth_bytes" in cpu.memory().missing:
        pytest.skip("this kernel does not let a process reset its memory peak")
    # given 64 MB that were touched and given back: mapped here, for malloc may hold freed memory to take them from
    with mmap.mmap(-1, 64 * 2**20) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
    cpu.release_memory()
    # then the peak still holds them, and what the CPU does not have is named
    facts = cpu.memory()
    assert 60 * 2**20 < facts.rss_growth_bytes < 300 * 2**20
    assert (facts.allocated_bytes, facts.reserved_bytes, facts.process_bytes) == (None, None, None)
    assert set(facts.missing) == {"allocated_bytes", "reserved_bytes", "process_bytes"}
    # and a new beginning forgets them
    cpu.begin_memory()
    assert cpu.memory().rss_growth_bytes < 60 * 2**20


def test_memory_that_was_not_counted_has_a_reason(monkeypatch):
    assert "before the model was built" in CpuDevice().memory().missing["rss_growth_bytes"]

    def refused(path, text):
        raise PermissionError(13, "Permission denied")

    cpu = CpuDevice()
    monkeypatch.setattr(Path, "write_text", refused)
    cpu.begin_memory()
    facts = cpu.memory()
    assert facts.rss_growth_bytes is None
    assert "does not let a process reset its memory peak" in facts.missing["rss_growth_bytes"]


def test_precisions_that_the_cpu_lacks_name_those_that_it_has():
    cpu = CpuDevice()
    assert [one for one in PRECISIONS if cpu.lacks(one) is None] == ["fp32", "bf16", "pure-bf16", "amp-bf16"]
    assert cpu.lacks("tf32") == (
        "--device cpu does not take --precision tf32 (TF32 is a mode of NVIDIA's tensor cores): "
        "use fp32, bf16, pure-bf16, amp-bf16"
    )
    assert "fp16 is slow and incomplete on it" in cpu.lacks("amp-fp16")


def test_an_allocation_that_does_not_fit_is_this_machines_memory():
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.zeros(1).expand(2**40, 64, 64).clone()
    assert CpuDevice().out_of_memory(caught.value) == "this machine's free memory"
    assert CpuDevice().out_of_memory(RuntimeError("expected 3 channels")) is None


def test_occupying_it_is_cpu_time_of_the_caller():
    occupy = CpuDevice().occupying(0.02)
    before = time.thread_time()
    occupy()
    assert 0.02 <= time.thread_time() - before < 0.03
