"""The CPU as a device: whatever was enqueued is done."""

import time

from loaderbench.devices.cpu import CpuDevice


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


def test_facts_name_the_processor_and_leave_unknown_memory_open():
    facts = CpuDevice().describe()
    assert len(facts["name"]) > len("CPU ")
    assert facts["num_threads"] >= 1
    assert CpuDevice().peak_memory_bytes() is None
