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
