"""LeNet, as the examples of nnabla and Neural Network Console have it: the network of the 2019 layer profile.

nnabla's `examples/.../classification.py`, `mnist_lenet_prediction`: two 5x5 convolutions of 16 maps, each with 2x2 max
pooling and ReLU, then 50 hidden units. It takes 1x28x28 images, or any channels and side from LENET_MIN_SIDE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.workloads.example import known_size
from loaderbench.workloads.factory import classifier
from loaderbench.workloads.known import check_lenet
from loaderbench.workloads.training import ModelWorkload

NUM_MAPS, NUM_HIDDEN, NUM_OUTPUTS = 16, 50, 10


class LeNet(nn.Module):
    """Images [N, channels, side, side] -> logits [N, num_classes]."""

    def __init__(self, channels: int, side: int, num_classes: int) -> None:
        super().__init__()
        left = ((side - 4) // 2 - 4) // 2
        self.conv1, self.pool1, self.relu1 = nn.Conv2d(channels, NUM_MAPS, 5), nn.MaxPool2d(2), nn.ReLU()
        self.conv2, self.pool2, self.relu2 = nn.Conv2d(NUM_MAPS, NUM_MAPS, 5), nn.MaxPool2d(2), nn.ReLU()
        self.affine1, self.relu3 = nn.Linear(NUM_MAPS * left * left, NUM_HIDDEN), nn.ReLU()
        self.affine2 = nn.Linear(NUM_HIDDEN, num_classes)

    def forward(self, images: torch.Tensor) -> Any:
        hidden = self.relu1(self.pool1(self.conv1(images)))
        hidden = self.relu2(self.pool2(self.conv2(hidden)))
        return self.affine2(self.relu3(self.affine1(hidden.flatten(1))))


def build(
    detail: str, step: Step, device: Device, *, image_size: int | None, seed: int, num_classes: int
) -> ModelWorkload:
    """LeNet with random weights, the same for the same seed.

    Raises:
        ConfigError: the images' size is unknown or too small.
    """
    side, num_outputs = known_size(image_size), max(NUM_OUTPUTS, num_classes if step.channels == 3 else 0)
    check_lenet(detail, replace(step, input_size=side))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LeNet(step.channels, side, num_outputs)
    objective = classifier(step, num_outputs)
    return ModelWorkload(step, device, model, image_size=side, seed=seed, num_classes=num_outputs, objective=objective)
