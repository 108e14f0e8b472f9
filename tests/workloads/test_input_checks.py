"""Models that cannot take their images: said in a line, before a weight is allocated."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from loaderbench.cases.case import Step
from loaderbench.devices.select import open_device
from loaderbench.errors import BatchTooSmall, ConfigError
from loaderbench.workloads import build_workload, vision
from loaderbench.workloads.lenet import LeNet
from loaderbench.workloads.training import ModelWorkload


def make_step(model: str, size: int, **changes: Any) -> Step:
    fields = {"mode": "train", "precision": "fp32", "device": "cpu", "batch_size": 2, **changes}
    return Step(model=model, input_size=size, **fields)


def build(model: str, size: int, **changes: Any) -> ModelWorkload:
    step = make_step(model, size, **changes)
    workload = build_workload(step, open_device(step, size), image_size=size, seed=3, num_classes=1)
    assert isinstance(workload, ModelWorkload)
    return workload


@pytest.mark.parametrize(
    ("model", "mode", "size", "says"),
    [
        ("inception_v3", "train", 298, "inception_v3 cannot train on images of 298×298: it takes images, for its "
         "auxiliary classifier, of 299×299 or larger; give --input-size 299"),
        ("inception_v3", "infer", 74, "inception_v3 cannot infer on images of 74×74: it takes images of 75×75 or "
         "larger; give --input-size 299"),
        ("vgg11", "infer", 31, "vgg11 cannot infer on images of 31×31: it takes images of 32×32 or larger; "
         "give --input-size 224"),
        ("vit_b_32", "infer", 256, "it takes images of one size only; give --input-size 224"),
        pytest.param(
            "densenet121", "infer", 28,
            "densenet121 cannot infer on images of 28×28: it takes images of 29×29 or larger",
            marks=pytest.mark.slow,
        ),
        ("squeezenet1_1", "train", 16,
         "squeezenet1_1 cannot train on images of 16×16: it takes images of 17×17 or larger"),
    ],
)  # fmt: skip
def test_images_that_are_too_small_are_told_with_the_least_size(model: str, mode: str, size: int, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        vision.check_images(model, make_step(model, size, mode=mode), (size, size))
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "mode", "size"),
    [("squeezenet1_1", "train", 17), pytest.param("vgg11", "infer", 32, marks=pytest.mark.slow)],
)
def test_the_least_size_is_taken_by_the_real_model_and_the_one_below_is_not(model: str, mode: str, size: int) -> None:
    workload = build(model, size, mode=mode, batch_size=1)
    workload.step(*workload.example("float32"))
    with pytest.raises(RuntimeError):
        workload.step(torch.zeros(1, 3, size - 1, size - 1), None)


def test_nothing_is_allocated_for_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[nn.Module] = []
    make = vision._made
    monkeypatch.setattr(vision, "_made", lambda *given: made.append(make(*given)) or made[-1])  # type: ignore[func-returns-value]
    with pytest.raises(ConfigError):
        build("vgg16", 31)
    assert made and {tensor.device.type for model in made for tensor in model.state_dict().values()} == {"meta"}


def test_a_model_that_cannot_be_built_on_meta_is_checked_all_the_same() -> None:
    vision.check_images("regnet_y_400mf", make_step("regnet_y_400mf", 32), (32, 32))


def test_torchvision_s_models_take_three_channels() -> None:
    with pytest.raises(ConfigError, match="resnet18 takes images with 3 channels, not 1"):
        build("resnet18", 64, channels=1)


def test_a_batch_of_one_that_batch_norm_cannot_train_on_is_its_own_error() -> None:
    with pytest.raises(BatchTooSmall, match="resnet18 cannot train on batches of one image of 32×32") as refused:
        build("resnet18", 32, batch_size=1)
    assert "--batch-size 2 or more" in str(refused.value) and "\n" not in str(refused.value)
    for fits in ({"batch_size": 2}, {"batch_size": 1, "mode": "infer"}):
        vision.check_images("resnet18", make_step("resnet18", 32, **fits), (32, 32))
    # 33 pixels leave maps of 2×2: four values a channel
    workload = build("resnet18", 33, batch_size=1)
    workload.step(*workload.example("float32"))


# -- LeNet -----------------------------------------------------------------------------------------------


def lenet_parameters(channels: int, side: int, num_classes: int) -> int:
    """Weights and biases, counted by hand: 5×5 convolutions of 16 maps, 50 hidden units."""
    left = ((side - 4) // 2 - 4) // 2
    first, second = 16 * (channels * 25 + 1), 16 * (16 * 25 + 1)
    return first + second + 50 * (16 * left * left + 1) + num_classes * (50 + 1)


@pytest.mark.parametrize(
    ("channels", "side", "left", "num_parameters"),
    [
        (1, 28, 4, 416 + 6_416 + 12_850 + 510),  # the 2019 network, layer by layer
        (3, 16, 1, lenet_parameters(3, 16, 10)),
        (3, 64, 13, lenet_parameters(3, 64, 10)),
        (3, 29, 4, lenet_parameters(3, 29, 10)),
    ],
)
def test_lenet_has_the_shapes_and_parameters_of_its_definition(
    channels: int, side: int, left: int, num_parameters: int
) -> None:
    model = LeNet(channels, side, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    seen: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_children():
        module.register_forward_hook(lambda _, __, output, name=name: seen.update({name: tuple(output.shape)}))
    model(torch.zeros(5, channels, side, side))
    assert seen["conv1"] == (5, 16, side - 4, side - 4)
    assert seen["pool1"] == seen["relu1"] == (5, 16, (side - 4) // 2, (side - 4) // 2)
    assert seen["pool2"] == seen["relu2"] == (5, 16, left, left)
    assert seen["affine1"] == seen["relu3"] == (5, 50) and seen["affine2"] == (5, 10)


def test_lenet_trains_on_one_channel_and_on_three() -> None:
    for channels, side in ((1, 28), (3, 32)):
        workload = build("lenet", side, channels=channels)
        inputs, targets = workload.example("float32")
        assert inputs.shape == (2, channels, side, side) and targets.max() < 10
        losses = []
        for _ in range(10):
            workload.step(inputs, targets)
            losses.append(float(workload.last_output))
        assert losses[-1] < losses[0]


def test_lenet_below_its_least_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="lenet takes images of 16x16 or larger, not 15"):
        build("lenet", 15)


# -- the user's own --------------------------------------------------------------------------------------


class OneChannel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Linear(4, 7)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.norm(self.conv(images)).mean(dim=(2, 3)))
        return logits


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    module: Any = ModuleType("own_model_of_a_test")
    module.one_channel = OneChannel
    monkeypatch.setitem(sys.modules, "own_model_of_a_test", module)
    return "own_model_of_a_test:one_channel"


def test_the_user_s_model_gets_images_of_the_channels_asked_for(own: str) -> None:
    workload = build(own, 8, channels=1)
    inputs, targets = workload.example("float32")
    assert inputs.shape == (2, 1, 8, 8)
    workload.step(inputs, targets)
    with pytest.raises(ConfigError, match="does not take images of 3×8×8"):
        build(own, 8)


class Bare(nn.Module):
    """Nothing to train."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, :10]


class Frozen(OneChannel):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


@pytest.mark.parametrize("kind", [Bare, Frozen])
def test_the_user_s_model_without_anything_to_train_only_infers(kind: type[nn.Module], own: str) -> None:
    sys.modules["own_model_of_a_test"].one_channel = kind  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"^--model own\S+ has no trainable parameters: use --mode infer"):
        build(own, 8, channels=1)
    workload = build(own, 8, channels=1, mode="infer")
    workload.step(*workload.example("float32"))
    assert len(workload.last_output) == 2


def test_the_user_s_batch_norm_in_a_batch_of_one_is_told_as_what_it_is(own: str) -> None:
    workload = build(own, 4, channels=1, batch_size=1)  # 3×3 at stride 2 leaves one value
    with pytest.raises(BatchTooSmall, match="cannot train on batches of one image of 4×4"):
        workload.step(*workload.example("float32"))
