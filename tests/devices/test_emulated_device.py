"""The virtual clock against closed forms, on the machine as it is (other processes may run)."""

import multiprocessing
import os
import statistics
import threading
import time

import numpy as np
import pytest

from loaderbench.devices.emulated import EmulatedDevice, burn_cpu
from loaderbench.devices.profile import Constant, Profile, StepTime, named

pytestmark = pytest.mark.alone

MS = 1_000_000


def constant(value):
    return Constant(value, "assumed", "a test")


def device(
    duration_ms=20.0, busy_ms=None, issue_ms=0.0, tail_ms=0.0, link_bytes_per_s=1e9, batch_size=8, overlap=False
):
    profile = Profile(
        name="test",
        device_name="Test",
        machine="test",
        model="none",
        mode="train",
        precision="fp32",
        input_size=224,
        steps=(StepTime(batch_size, constant(duration_ms), constant(busy_ms or duration_ms)),),
        issue_ms=constant(issue_ms),
        tail_ms=constant(tail_ms),
        link_bytes_per_s=constant(link_bytes_per_s),
    )
    return EmulatedDevice(profile, batch_size, overlap=overlap)


class Bytes:
    """All that the device looks at in a tensor."""

    def __init__(self, nbytes):
        self.nbytes = nbytes


def test_steps_queue_up_and_the_host_sleeps_until_they_are_done():
    # given five steps of 20 ms, enqueued at once
    emulated = device(duration_ms=20)
    before = time.perf_counter_ns()
    events = [emulated.record()]
    for _ in range(5):
        emulated.enqueue_step(8)
        events.append(emulated.record())
    enqueued = time.perf_counter_ns()
    # when the host waits for them
    cpu = time.thread_time_ns()
    emulated.synchronize()
    cpu = time.thread_time_ns() - cpu
    done = time.perf_counter_ns()
    # then enqueueing cost nothing, the steps follow each other without a gap, and the wait burnt no CPU time
    times = emulated.times_ns(events)
    assert enqueued - before < 15 * MS
    assert np.diff(times)[1:].tolist() == [20 * MS] * 4
    assert before + 100 * MS <= times[-1] <= enqueued + 100 * MS
    assert done >= times[-1]
    assert cpu < 5 * MS


def test_a_host_that_comes_late_leaves_the_device_idle_for_as_long():
    # given a step that is done, and a host that brings the next one 30 ms later
    emulated = device(duration_ms=5)
    emulated.enqueue_step(8)
    first = emulated.record()
    emulated.wait(first)
    time.sleep(0.03)
    late = time.perf_counter_ns()
    # when it is enqueued
    begin = emulated.record()
    emulated.enqueue_step(8)
    second = emulated.record()
    # then it begins when it was brought, and busy time counts only the step
    times = emulated.times_ns([first, begin, second])
    assert times[1] >= late
    assert times[2] - times[1] >= 5 * MS
    assert times[2] - times[0] >= 35 * MS
    assert emulated.busy_ns(first, second) == 5 * MS


def test_a_host_that_issues_more_slowly_than_the_device_computes_sets_the_period():
    # given steps that take 5 ms to issue and 2 ms to compute
    emulated = device(duration_ms=2, issue_ms=5, tail_ms=0.02)
    events, issued = [emulated.record()], []
    # when twelve are issued
    for _ in range(12):
        emulated.enqueue_step(8)
        issued.append(time.perf_counter_ns())
        events.append(emulated.record())
    times = emulated.times_ns(events)
    # then each is done as its last kernel is, a period is an issue time, and the gaps are what is left of it
    lags = times[1:] - np.array(issued)
    assert statistics.median(lags) == pytest.approx(0.02 * MS, abs=0.1 * MS)
    assert np.median(np.diff(times) - np.diff([times[0], *issued])) == pytest.approx(0, abs=0.1 * MS)
    assert np.diff(times)[1:].min() >= 4.8 * MS  # and more where other processes took the CPU
    span, busy = int(times[-1] - times[0]), emulated.busy_ns(events[0], events[-1])
    assert busy == 12 * 2 * MS
    assert (span - busy) / 12 >= 2.9 * MS


def test_issue_hides_under_a_longer_step():
    # given steps that take 4 ms to issue and 40 ms to compute
    emulated = device(duration_ms=40, busy_ms=36, issue_ms=4)
    # when three are issued in a row
    events = [emulated.record()]
    for _ in range(3):
        emulated.enqueue_step(8)
        events.append(emulated.record())
    # then only the compute is seen, and its small gaps
    times = emulated.times_ns(events)
    assert np.diff(times)[1:].tolist() == [40 * MS] * 2
    assert emulated.busy_ns(events[0], events[-1]) == 3 * 36 * MS


def test_a_copy_takes_bytes_over_rate_in_the_same_queue():
    # given a link of 1 GB/s and a device that computes for 20 ms
    emulated = device(duration_ms=20, link_bytes_per_s=1e9)
    emulated.enqueue_step(8)
    begin = emulated.record()
    # when 3 MB of inputs and 500 kB of targets are copied and a step follows
    inputs, targets = Bytes(3_000_000), Bytes(500_000)
    assert emulated.copy_in(inputs, targets) == (inputs, targets)
    copied = emulated.record()
    emulated.enqueue_step(8)
    done = emulated.record()
    # then the copy takes 3.5 ms behind the first step, and the second step comes behind the copy
    times = emulated.times_ns([begin, copied, done])
    assert np.diff(times).tolist() == [3_500_000, 20 * MS]
    assert emulated.busy_ns(begin, copied) == 0


@pytest.mark.parametrize(("copy_ms", "period_ms"), [(5, 20), (30, 30)])
def test_a_copy_on_a_queue_of_its_own_hides_behind_earlier_steps(copy_ms, period_ms):
    # given a device that computes for 20 ms and copies beside it
    emulated = device(duration_ms=20, link_bytes_per_s=1e9, overlap=True)
    copies, dones = [], []
    # when five batches are copied and computed, all enqueued at once
    for _ in range(5):
        begin = emulated.record_copy()
        emulated.copy_in(Bytes(copy_ms * 1_000_000), Bytes(0))
        copies.append((begin, emulated.record_copy()))
        emulated.enqueue_step(8)
        dones.append(emulated.record())
    # then a copy follows the copy before, no step begins before its copy is done, and the longer of both is the period
    done = emulated.times_ns(dones)
    copied = emulated.times_ns([end for _, end in copies])
    assert np.diff(copied).tolist() == [copy_ms * MS] * 4
    assert (done - copied >= 20 * MS).all()
    assert np.diff(done)[1:].tolist() == [period_ms * MS] * 3


@pytest.mark.parametrize("milliseconds", [1.0, 3.7, 7.4, 15.0])
def test_burnt_cpu_time_is_what_was_asked_for(milliseconds):
    ratios = []
    for _ in range(5):
        begin = time.thread_time_ns()
        burn_cpu(round(milliseconds * MS))
        ratios.append((time.thread_time_ns() - begin) / (milliseconds * MS))
    # a disturbance by others only adds
    assert min(ratios) == pytest.approx(1.01, abs=0.02)


def test_other_threads_get_the_gil_while_a_step_is_issued():
    # given a thread that needs the GIL for each of its turns
    turns, stop = 0, threading.Event()

    def work():
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=work)
    thread.start()
    # when 50 ms of issue work are burnt
    try:
        before = turns
        burn_cpu(50 * MS)
        during = turns - before
    finally:
        stop.set()
        thread.join()
    # then it had its turn far more often than the 5 ms switch interval alone would give
    assert during > 20


def _compete(cpu, begun, stop):
    os.sched_setaffinity(0, {cpu})
    begun.set()
    while not stop.is_set():
        sum(range(10_000))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's CPU affinity")
def test_a_starved_host_issues_later():
    # given a CPU that a second process wants as well
    usable = os.sched_getaffinity(0)
    cpu = min(usable)
    spawn = multiprocessing.get_context("spawn")
    begun, stop = spawn.Event(), spawn.Event()
    rival = spawn.Process(target=_compete, args=(cpu, begun, stop), daemon=True)
    rival.start()
    try:
        assert begun.wait(30)
        os.sched_setaffinity(0, {cpu})
        # when 200 ms of CPU time are burnt for issuing
        emulated = device(duration_ms=1, issue_ms=20)
        begin = time.perf_counter_ns()
        cpu_begin = time.thread_time_ns()
        for _ in range(10):
            emulated.enqueue_step(8)
        wall, burnt = time.perf_counter_ns() - begin, time.thread_time_ns() - cpu_begin
    finally:
        os.sched_setaffinity(0, usable)
        stop.set()
        rival.join()
    # then the cost in CPU time is the same and the clock on the wall has moved on much further
    assert burnt == pytest.approx(200 * MS, rel=0.03)
    assert wall > 1.3 * burnt


def test_small_inference_batches_are_launch_bound_as_on_the_h200():
    # given the profile of an H200, where batch 1 and 8 were both measured at 3.7 ms
    for batch_size in (1, 8):
        emulated = EmulatedDevice(named("h200-resnet50-infer-amp-bf16"), batch_size)
        # when steps are issued one behind the other
        events, issued = [emulated.record()], []
        cpu = time.thread_time_ns()
        for _ in range(15):
            emulated.enqueue_step(batch_size)
            issued.append(time.perf_counter_ns())
            events.append(emulated.record())
        cpu = time.thread_time_ns() - cpu
        # then each costs the host 3.7 ms, and is done right behind its issue
        times = emulated.times_ns(events)
        assert cpu / 15 == pytest.approx(3.7 * MS, rel=0.03)
        assert statistics.median(times[1:] - np.array(issued)) < 0.1 * MS
        assert times[-1] - times[0] >= 15 * 3.6 * MS


def test_its_name_and_facts_say_that_it_is_emulated_and_where_each_constant_comes_from():
    facts = EmulatedDevice(named("h200-resnet50-train-fp32"), 32, 224).describe()
    assert facts.name.startswith("emulated NVIDIA H200")
    assert facts.emulated is True
    constants = facts.details["constants"]
    assert constants["step_duration_ms"]["value"] == 16.0
    assert constants["step_duration_ms"]["label"] == "extrapolated"
    assert all(entry["label"] and entry["source"] for entry in constants.values())
    assert (facts.copies, facts.on_host_cpus, facts.has_counters) == (True, False, False)


def test_a_published_profile_costs_the_host_nothing_and_tells_no_busy_time():
    emulated = EmulatedDevice(named("rtx2080ti-resnet18-infer-fp32x4"), 12)
    assert "published, not measured here" in emulated.name
    begin, cpu = emulated.record(), time.thread_time()
    emulated.enqueue_step(12)
    end = emulated.record()
    assert time.thread_time() - cpu < 0.001
    assert emulated.busy_ns(begin, end) is None
    first, last = emulated.times_ns([begin, end])
    duration_ms = emulated.profile.duration_ms(12).value
    assert last - first == pytest.approx(duration_ms * MS, abs=0.5 * MS)
    issue = emulated.describe().details["constants"]["issue_ms"]
    assert issue["value"] is None and "lacks the host's time" in issue["source"]


def test_peak_memory_is_unknown_not_zero():
    assert device().peak_memory_bytes() is None
    emulated = device()
    emulated.begin_memory()
    emulated.release_memory()
    facts = emulated.memory()
    figures = (facts.allocated_bytes, facts.reserved_bytes, facts.process_bytes, facts.rss_growth_bytes)
    assert figures == (None,) * 4
    assert len(facts.missing) == 4


def test_nothing_computes_or_is_pinned_for_it():
    emulated = device()
    assert (emulated.torch_device, emulated.gpu, emulated.pins_memory) == (None, None, False)
    assert emulated.copies
    assert emulated.num_search_steps == 0
    assert emulated.out_of_memory(MemoryError()) is None


def test_it_has_the_times_of_one_precision():
    assert device().lacks("fp32") is None
    assert device().lacks("tf32") == "device profile 'test' is for --precision fp32, not tf32"


def test_occupying_it_costs_the_host_nothing():
    emulated = device(duration_ms=5)
    occupy = emulated.occupying(0.03)
    begin, cpu = emulated.record(), time.thread_time()
    occupy()
    emulated.enqueue_step(8)
    end = emulated.record()
    assert time.thread_time() - cpu < 0.005
    assert emulated.busy_ns(begin, end) == 35 * MS


@pytest.mark.parametrize("overlap", [False, True])
def test_a_copy_from_pageable_memory_makes_the_host_wait(overlap):
    # given a link of 1 GB/s and a step of 20 ms in the queue
    emulated = device(duration_ms=20, link_bytes_per_s=1e9, overlap=overlap)
    emulated.enqueue_step(8)
    begun = time.perf_counter_ns()
    # when 5 MB are copied
    inputs, targets = Bytes(5_000_000), Bytes(0)
    assert emulated.pageable(inputs, targets) == (inputs, targets)
    # then the host waited for them, and for the step where both stand in one queue
    assert time.perf_counter_ns() - begun >= (5 if overlap else 24) * MS
