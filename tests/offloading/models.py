"""Made-up models, each with something that offloading could get wrong: images [N, 3, S, S] → logits [N, 5]."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 8


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Linear(WIDTH, 5)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.middle(self.first(images)).mean((2, 3)))

    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        return maps


class Views(Base):
    """Slices, transposed and expanded tensors over one storage, with offsets of their own."""

    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        left, right = maps[:, : WIDTH // 2], maps[:, WIDTH // 2 :]
        product = left.exp() * right.transpose(2, 3)
        whole = torch.cat([product, left * product[:, :1].expand_as(left)], 1)
        return (whole.flatten(2) * whole.flatten(2)[..., 1:2]).view_as(whole)


class InPlace(Base):
    """In-place updates of tensors that are saved in their new state alone, and of a part of one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(WIDTH)

    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        maps = functional.relu_(self.norm(maps))
        other = torch.zeros_like(maps)
        other[:, :2] = maps[:, :2] * 2
        other.add_(maps).mul_(0.5)
        return torch.sigmoid_(other + maps)


class Reused(Base):
    """One module called three times, and one function's result used by four."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.relu = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()

    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            maps = self.relu(self.again(maps))
        gate = torch.tanh(maps)
        return gate * maps + gate * gate + gate.square()


class Shared(Base):
    """Weights that two layers share, and a buffer that is used as a mask."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(WIDTH, WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.two.weight = self.one.weight
        self.register_buffer("mask", torch.arange(WIDTH).float().view(1, WIDTH, 1, 1))

    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(maps).exp().clamp(max=3) * self.mask) * self.mask


class Unused(Base):
    """A weight larger than all else, which no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.aside = nn.Linear(1024, 512)


class Dropout(Base):
    """Random masks."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.values = nn.Dropout2d(0.3), nn.Dropout(0.5)

    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        return self.values(functional.gelu(self.maps(maps)))


class Cube(torch.autograd.Function):
    """A custom function that saves as it should."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(values, values.square())
        return values**3

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        values, squares = context.saved_tensors
        return gradients[0] * 3 * squares + 0 * values


class HiddenCube(torch.autograd.Function):
    """A custom function that keeps a tensor where no hook sees it."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        context.squares = values.square()
        return values**3

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * 3 * context.squares


class Custom(Base):
    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        return Cube.apply(maps) + maps  # type: ignore[no-untyped-call]


class Hidden(Base):
    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        return HiddenCube.apply(maps) + maps  # type: ignore[no-untyped-call]


class Reading(Base):
    """Its way depends on values."""

    def middle(self, maps: torch.Tensor) -> torch.Tensor:
        return maps * 2 if maps.sum().item() > 0 else maps


NAMES = ("Views", "InPlace", "Reused", "Shared", "Dropout", "Custom")
