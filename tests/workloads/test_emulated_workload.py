"""The emulated workload: the device's profile decides, the batch's shape scales."""

import time
from dataclasses import replace

import numpy as np
import pytest

from loaderbench.cases.case import Step
from loaderbench.devices.select import open_device
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import WorkloadFacts
from loaderbench.workloads import build_workload
from loaderbench.workloads.example import image_size

MS = 1_000_000
STEP = Step("resnet50", "train", "fp32", "emulated:h200-resnet50-train-fp32", batch_size=64, input_size=224)


def build(size=224):
    """(workload, its device)"""
    device = open_device(STEP, size)
    return build_workload(STEP, device, image_size=size), device


def step_times_ms(workload, device, inputs, targets):
    while True:
        begun = time.perf_counter()
        device.enqueue_step(500)  # 250 ms of work, so that the steps queue behind it
        events = [device.record()]
        for _ in range(2):
            workload.step(inputs, targets)
            events.append(device.record())
        if time.perf_counter() - begun < 0.2:  # else this machine was too busy
            break
    return (np.diff(device.times_ns(events)) / MS).tolist()


def test_steps_take_the_profiles_time():
    workload, device = build()
    inputs, targets = workload.example("uint8")
    assert inputs.shape == (64, 3, 224, 224)
    assert step_times_ms(workload, device, inputs, targets) == [32.0, 32.0]


def test_a_smaller_last_batch_and_other_image_sizes_scale():
    workload, device = build()
    inputs, targets = workload.example("uint8")
    assert step_times_ms(workload, device, inputs[:48], targets[:48]) == [24.0, 24.0]
    assert step_times_ms(workload, device, inputs[:, :, :112], targets) == pytest.approx([16.0, 16.0])


@pytest.mark.parametrize(("output", "kind"), [("uint8", "torch.uint8"), ("float32", "torch.float32")])
def test_examples_have_the_loaders_types_and_repeat(output, kind):
    workload, _ = build()
    inputs, targets = workload.example(output)
    again, _ = workload.example(output)
    assert str(inputs.dtype) == kind
    assert str(targets.dtype) == "torch.int64"
    assert bool((inputs == again).all())


def test_uncropped_images_have_the_stored_size_where_it_is_known():
    uncropped = replace(STEP, input_size=None)
    inputs, _ = build(256)[0].example("uint8")
    assert inputs.shape[2:] == (256, 256)
    with pytest.raises(ConfigError, match="--res N"):
        image_size(uncropped)
    workload, device = build(None)
    with pytest.raises(ConfigError, match="--res N"):
        workload.example("uint8")
    # a step needs no example
    workload.step(np.empty((64, 3, 448, 448), dtype=np.uint8), None)
    device.synchronize()


def test_facts_are_those_of_the_profile():
    assert build()[0].describe() == WorkloadFacts("resnet50", "train", "fp32", emulated=True)
