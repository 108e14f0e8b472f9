"""A stand-in for a device on which a model has shapes and nothing else: what a step is traced with."""

from __future__ import annotations

from typing import Any

import torch

from loaderbench.devices.cpu import CpuDevice


class ShapesDevice(CpuDevice):
    """A `Device` whose tensors have no memory. It takes every precision, since nothing is computed."""

    torch_device: Any = torch.device("meta")

    def lacks(self, precision: str) -> str | None:
        """None: nothing is computed."""
        return None
