"""Each injection costs what it says, in the stage it names, and leaves the results as they were."""

import io
import json
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from loaderbench.decoders.base import DecodeError, PilDecoder
from loaderbench.decoders.pillow import PillowDecoder
from loaderbench.devices.cpu import CpuDevice
from loaderbench.devices.emulated import EmulatedDevice
from loaderbench.devices.profile import Constant, Profile, StepTime
from loaderbench.errors import ConfigError
from loaderbench.images.index import index_images
from loaderbench.loaders import serial, threaded
from loaderbench.loaders.base import SPAN_FIELDS, LoaderContext, Slowdown
from loaderbench.selftest.injections import MOST_EXTRA_BYTES, InjectingDecoder, Injection

MS = 1_000_000
STEP_MS = 10.0
LINK_BYTES_PER_S = 1e9


@pytest.fixture
def device():
    def constant(value):
        return Constant(value, "assumed", "a test")

    profile = Profile(
        name="test",
        device_name="Test",
        machine="test",
        model="none",
        mode="train",
        precision="fp32",
        input_size=32,
        steps=(StepTime(8, constant(STEP_MS), constant(STEP_MS)),),
        issue_ms=constant(0.0),
        tail_ms=constant(0.0),
        link_bytes_per_s=constant(LINK_BYTES_PER_S),
    )
    return EmulatedDevice(profile, 8)


class Steps:
    """A workload on the emulated device."""

    def __init__(self, device):
        self._device = device

    def step(self, inputs, targets):
        self._device.enqueue_step(8)

    def describe(self):
        return {"model": "none"}


def batch(kind=torch.uint8):
    return torch.zeros((8, 3, 32, 32), dtype=kind), torch.zeros(8, dtype=torch.int64)


def loader_context(tree, injection, workers):
    return LoaderContext(
        images=index_images(str(tree)),
        batch_size=8,
        workers=workers,
        prefetch=2,
        decoder="pillow",
        input_size=32,
        mode="train",
        output="uint8",
        seed=0,
        slowdown=injection,
    )


def first_epoch(module, tree, injection, workers):
    """Pixels [24, …] and summed spans of one epoch."""
    loader = module.build(module.Options(), loader_context(tree, injection, workers))
    try:
        batches = [(made.inputs.numpy().copy(), made.spans) for made in loader.batches(0, 1)]
    finally:
        loader.close()
    spans = dict(zip(SPAN_FIELDS, np.sum([span for _, span in batches], axis=0).tolist(), strict=True))
    return np.concatenate([pixels for pixels, _ in batches]), spans


def test_json_both_ways_and_only_what_is_in_force():
    injection = Injection(decode_burn_s=0.002, transfer_extra_bytes=10, pageable=True)
    assert Injection.from_json(json.loads(json.dumps(injection.to_json()))) == injection
    assert injection.kinds == ("decode_burn_s", "transfer_extra_bytes", "pageable")
    assert Injection().to_json() == {}


def test_it_is_sent_to_a_measuring_process_as_it_is():
    injection = Injection(decode_burn_s=0.002, pageable=True)
    slowdown: Slowdown = pickle.loads(pickle.dumps(injection))
    assert slowdown == injection
    assert slowdown.pageable


def test_combinations_add_up():
    both = Injection(decode_burn_s=0.002, pageable=True) + Injection(decode_burn_s=0.001, issue_delay_s=0.5)
    assert both == Injection(decode_burn_s=0.003, issue_delay_s=0.5, pageable=True)


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="must not be negative"):
        Injection(compute_extra_s=-1)
    with pytest.raises(ConfigError, match="unknown injection 'magic'"):
        Injection.from_json({"magic": 1})


def test_nothing_injected_wraps_nothing(device):
    decoder, workload = PillowDecoder(), Steps(device)
    nothing = Injection()
    assert nothing.wrap_decoder(decoder) is decoder
    assert nothing.wrap_device(device) is device
    assert nothing.wrap_workload(workload, device) is workload


def test_a_decoder_burns_cpu_time_and_gives_the_same_pixels():
    file = io.BytesIO()
    Image.new("RGB", (32, 24), "red").save(file, "jpeg")
    inner = PillowDecoder()
    slowed = InjectingDecoder(inner, 0.02)
    before = time.thread_time()
    pixels = slowed.decode(file.getvalue())
    assert 0.02 <= time.thread_time() - before < 0.03
    assert (slowed.to_array(pixels) == inner.to_array(inner.decode(file.getvalue()))).all()
    assert slowed.size(pixels) == (24, 32)
    assert (slowed.name, slowed.describe()) == (inner.name, inner.describe())
    with pytest.raises(DecodeError):
        slowed.decode(b"no picture")


def test_an_open_file_costs_the_same_burn():
    file = io.BytesIO()
    Image.new("RGB", (32, 24), "red").save(file, "jpeg")
    file.seek(0)
    slowed = Injection(decode_burn_s=0.02).wrap_decoder(PillowDecoder())
    assert isinstance(slowed, PilDecoder)
    before = time.thread_time()
    assert slowed.load(file).size == (32, 24)
    assert 0.02 <= time.thread_time() - before < 0.03


def test_a_decoder_s_burn_lets_other_threads_run():
    # given a thread that counts while this one burns
    counted, stop = [], threading.Event()

    def count():
        while not stop.wait(0.001):
            counted.append(time.perf_counter())

    counter = threading.Thread(target=count)
    counter.start()
    Injection(decode_burn_s=0.2).burn_image(None)
    stop.set()
    counter.join()
    # a holder of the GIL would give it up every 5 ms only: 40 times
    assert len(counted) > 60


@pytest.mark.alone
@pytest.mark.parametrize(("module", "workers"), [(serial, 0), (threaded, 2)])
def test_in_a_loader_each_kind_shows_in_its_own_stage(own_tree, module, workers):
    # given 24 images in 3 batches
    pixels, bare = first_epoch(module, own_tree, None, workers)
    injection = Injection(decode_burn_s=0.004, collate_burn_s=0.02, collate_sleep_s=0.03)
    slowed_pixels, slowed = first_epoch(module, own_tree, injection, workers)
    # then the samples are the same, and stages and CPU time grew by what was injected
    assert (slowed_pixels == pixels).all()
    assert slowed["decode_ns"] - bare["decode_ns"] >= 0.95 * 24 * 4 * MS
    assert slowed["collate_ns"] - bare["collate_ns"] >= 0.99 * 3 * 50 * MS
    # wall time: on a busy machine others take some of it, less than half of the least injection
    assert slowed["augment_ns"] < bare["augment_ns"] + 12 * 4 * MS
    burnt_ns = slowed["cpu_ns"] - bare["cpu_ns"]
    assert burnt_ns == pytest.approx(24 * 4 * MS + 3 * 20 * MS, rel=0.15)


def test_dali_runs_the_burn_as_an_operator_of_its_own(own_tree):
    pytest.importorskip("nvidia.dali")
    from loaderbench.loaders import dali

    def seconds(injection):
        context = loader_context(own_tree, injection, 2)
        loader = dali.build(dali.Options(), LoaderContext(**{**vars(context), "decoder": None}))
        try:
            batches = loader.batches(0, 4)
            next(batches)
            begun = time.perf_counter()
            num_samples = sum(made.num_samples for made in batches)
            return num_samples, time.perf_counter() - begun
        finally:
            loader.close()

    _, bare_s = seconds(None)
    num_samples, slowed_s = seconds(Injection(decode_burn_s=0.004))
    ready_ahead = 3 * 8  # what its queue holds when the first batch is taken
    assert slowed_s >= 0.004 * (num_samples - ready_ahead) > bare_s


def link_ns(device, inputs, targets):
    """Time of one copy in a queue that is busy, so that nothing the host does shows in it."""
    for _ in range(20):
        device.enqueue_step(8)
    begin = device.record()
    device.copy_in(inputs, targets)
    begin_ns, end_ns = device.times_ns([begin, device.record()])
    return end_ns - begin_ns


def test_extra_bytes_take_their_time_on_the_link(device):
    inputs, targets = batch()
    slowed = Injection(transfer_extra_bytes=5_000_000).wrap_device(device)
    assert slowed.copy_in(inputs, targets)[0] is inputs
    num_bytes = 5_000_000 + inputs.nbytes + targets.nbytes
    assert link_ns(slowed, inputs, targets) == pytest.approx(num_bytes / LINK_BYTES_PER_S * 1e9, abs=2)


@pytest.mark.parametrize("beyond", [0, 5_000_000])
def test_many_extra_bytes_are_copies_of_one_piece_of_memory(device, monkeypatch, beyond):
    pieces = []

    def zeros(num_bytes: int, **kwargs: object) -> torch.Tensor:
        pieces.append(num_bytes)
        return torch.empty(num_bytes, **kwargs)

    monkeypatch.setattr(torch, "zeros", zeros)
    inputs, targets = torch.empty((4, 3, 8, 8)), torch.empty(4, dtype=torch.int64)
    extra = 20 * MOST_EXTRA_BYTES + beyond
    slowed = Injection(transfer_extra_bytes=extra).wrap_device(device)
    num_bytes = extra + inputs.nbytes + targets.nbytes
    assert link_ns(slowed, inputs, targets) == pytest.approx(num_bytes / LINK_BYTES_PER_S * 1e9, abs=25)
    assert sorted(pieces) == [size for size in (beyond, MOST_EXTRA_BYTES) if size]


@pytest.mark.parametrize(("kind", "times"), [(torch.uint8, 4), (torch.float32, 1)])
def test_float_transfer_makes_bytes_into_floats(device, kind, times):
    inputs, targets = torch.zeros((64, 3, 128, 128), dtype=kind), torch.zeros(64, dtype=torch.int64)
    slowed = Injection(float_transfer=True).wrap_device(device)
    num_bytes = inputs.nbytes * times + targets.nbytes
    assert link_ns(slowed, inputs, targets) == pytest.approx(num_bytes / LINK_BYTES_PER_S * 1e9, abs=2)


def test_pageable_copies_make_the_host_wait_for_all_that_was_enqueued(device):
    slowed = Injection(pageable=True).wrap_device(device)
    begun = time.perf_counter_ns()
    device.enqueue_step(8)
    slowed.copy_in(*batch())
    assert time.perf_counter_ns() - begun >= (STEP_MS - 1) * MS
    assert slowed.pin(batch()[0]).is_pinned() is False
    assert slowed.name == device.name and slowed.describe() == device.describe()


def test_pageable_extra_bytes_are_one_copy_with_the_batch(device):
    slowed = Injection(pageable=True, transfer_extra_bytes=5_000_000).wrap_device(device)
    inputs, targets = batch()
    begun = time.perf_counter_ns()
    assert slowed.copy_in(inputs, targets)[0] is inputs
    expected = (5_000_000 + inputs.nbytes + targets.nbytes) / LINK_BYTES_PER_S * 1e9
    assert time.perf_counter_ns() - begun >= expected


def test_issue_delay_costs_this_thread_cpu_time_and_leaves_the_device_idle(device):
    workload = Injection(issue_delay_s=0.02).wrap_workload(Steps(device), device)
    begin, cpu = device.record(), time.thread_time()
    workload.step(*batch())
    end = device.record()
    assert 0.02 <= time.thread_time() - cpu < 0.03
    begin_ns, end_ns = device.times_ns([begin, end])
    assert end_ns - begin_ns >= (20 + STEP_MS) * MS
    assert device.busy_ns(begin, end) == STEP_MS * MS
    assert workload.describe() == {"model": "none"}


def test_extra_compute_keeps_the_device_busy_and_costs_the_host_nothing(device):
    injection = Injection(compute_extra_s=0.03, transfer_extra_bytes=10)
    workload = injection.wrap_workload(Steps(device), injection.wrap_device(device))
    begin, cpu = device.record(), time.thread_time()
    workload.step(*batch())
    end = device.record()
    assert time.thread_time() - cpu < 0.005
    assert device.busy_ns(begin, end) == (30 + STEP_MS) * MS


def test_extra_compute_on_the_cpu_is_cpu_time():
    class Nothing:
        def step(self, inputs, targets):
            pass

    cpu_device = CpuDevice()
    workload = Injection(compute_extra_s=0.02).wrap_workload(Nothing(), cpu_device)
    before = time.thread_time()
    workload.step(None, None)
    assert time.thread_time() - before >= 0.02


@pytest.mark.gpu
def test_on_cuda_the_same_costs_are_real():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from loaderbench.devices.cuda import CudaDevice

    cuda = CudaDevice()

    class Nothing:
        def step(self, inputs, targets):
            pass

    def device_ms(act):
        for _ in range(3):
            act()
        cuda.synchronize()
        cuda.anchor()
        begin = cuda.record()
        act()
        first, last = cuda.times_ns([begin, cuda.record()])
        return (last - first) / MS

    # extra compute takes its time on the device
    assert cuda.cycles_per_s() > 1e8
    slowed = Injection(compute_extra_s=0.02).wrap_workload(Nothing(), cuda)
    assert device_ms(lambda: slowed.step(None, None)) == pytest.approx(20, rel=0.05)
    # extra bytes take as long as a batch of that size
    inputs, targets = torch.zeros(64 << 20, dtype=torch.uint8).pin_memory(), torch.zeros(8).pin_memory()
    small = torch.zeros(8, dtype=torch.uint8).pin_memory()
    larger = Injection(transfer_extra_bytes=64 << 20).wrap_device(cuda)
    plain_ms = device_ms(lambda: cuda.copy_in(inputs, targets))
    assert device_ms(lambda: larger.copy_in(small, targets)) == pytest.approx(plain_ms, rel=0.2)
    # a pageable copy waits for what was enqueued before it
    pageable = Injection(pageable=True).wrap_device(cuda)
    slowed.step(None, None)
    begun = time.perf_counter()
    pageable.copy_in(inputs, targets)
    assert time.perf_counter() - begun > 0.018
