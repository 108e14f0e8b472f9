"""Models for tests of offloading."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _Kept(torch.autograd.Function):
    """The square, which keeps its argument beside autograd's own way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.kept = x
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2 * ctx.kept


class _Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Kept.apply(x)
        return result


def unhooked() -> nn.Module:
    """A function of its own keeps what no hook sees."""
    layers = [nn.Conv2d(3, 8, 3), _Square(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 10))


class _Rewritten(nn.Module):
    """Doubles what was saved, which PyTorch does not count: the host has the values from before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.exp()
        result = hidden.sin() + x.cos().tanh()
        hidden.data.mul_(2)
        return result


def rewritten() -> nn.Module:
    """Its gradients with and without offloading differ."""
    layers = [nn.Conv2d(3, 8, 3), _Rewritten(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 10))


class _Noisy(nn.Module):
    """Adds what no seed of PyTorch sets."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = torch.Generator()
        self._numbers.seed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 1e-6 * torch.rand(x.shape, generator=self._numbers))


def noisy() -> nn.Module:
    """No two of its steps are equal."""
    layers = [nn.Conv2d(3, 8, 3), _Noisy(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 10))
