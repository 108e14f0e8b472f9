"""The emulated workload: the device's profile decides, the batch's shape scales."""

import numpy as np
import pytest

from loaderbench.cases.case import Case
from loaderbench.devices.select import open_device
from loaderbench.errors import ConfigError
from loaderbench.workloads import build_workload

MS = 1_000_000


def case(**changes):
    fields = {
        "dataset": "tree",
        "dataset_name": "tree",
        "resolution": None,
        "loader": "serial",
        "decoder": None,
        "workers": 0,
        "prefetch": 2,
        "batch_size": 64,
        "model": "resnet50",
        "mode": "train",
        "precision": "fp32",
        "device": "emulated:h200-resnet50-train-fp32",
        "input_size": 224,
    }
    return Case(**{**fields, **changes})


def step_times_ms(workload, device, inputs, targets):
    device.enqueue_step(500)  # 250 ms of work, so that the steps queue behind it however busy this machine is
    events = [device.record()]
    for _ in range(2):
        workload.step(inputs, targets)
        events.append(device.record())
    return (np.diff(device.times_ns(events)) / MS).tolist()


def test_steps_take_the_profiles_time():
    device = open_device(case())
    workload = build_workload(case(), device)
    inputs, targets = workload.example("uint8")
    assert inputs.shape == (64, 3, 224, 224)
    assert step_times_ms(workload, device, inputs, targets) == [32.0, 32.0]


def test_a_smaller_last_batch_and_other_image_sizes_scale():
    device = open_device(case())
    workload = build_workload(case(), device)
    inputs, targets = workload.example("uint8")
    assert step_times_ms(workload, device, inputs[:48], targets[:48]) == [24.0, 24.0]
    assert step_times_ms(workload, device, inputs[:, :, :112], targets) == pytest.approx([16.0, 16.0])


@pytest.mark.parametrize(("output", "kind"), [("uint8", "torch.uint8"), ("float32", "torch.float32")])
def test_examples_have_the_loaders_types_and_repeat(output, kind):
    workload = build_workload(case(), open_device(case()))
    inputs, targets = workload.example(output)
    again, _ = workload.example(output)
    assert str(inputs.dtype) == kind
    assert str(targets.dtype) == "torch.int64"
    assert bool((inputs == again).all())


def test_uncropped_images_have_the_stored_size_where_it_is_known():
    stored = case(input_size=None, resolution=256)
    inputs, _ = build_workload(stored, open_device(stored)).example("uint8")
    assert inputs.shape[2:] == (256, 256)
    unknown = case(input_size=None)
    with pytest.raises(ConfigError, match="--res N"):
        build_workload(unknown, open_device(unknown)).example("uint8")
