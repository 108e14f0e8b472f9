"""Crop and resize of uint8 arrays, shared by the decoders that give arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from loaderbench.decoders.base import Geometry


def crop_resize_array(pixels: NDArray[np.uint8], geometry: Geometry, out: NDArray[np.uint8]) -> None:
    """Write the part of `pixels` (uint8 [H, W, 3]) that `geometry` names into `out`.

    torch's antialiased bilinear resize of uint8, the fixed-point port of Pillow's: the same levels
    within 1, and 2 (500×375) to 5 (1024²) times as fast as `Image.fromarray(…).resize` with AVX2.
    Uses one thread where the calling thread's torch.set_num_threads is 1.
    """
    box = pixels[geometry.top : geometry.top + geometry.height, geometry.left : geometry.left + geometry.width]
    height, width = out.shape[:2]
    if (geometry.resized_height, geometry.resized_width) != (geometry.height, geometry.width):
        planes = torch.from_numpy(box).permute(2, 0, 1).unsqueeze(0)
        size = [geometry.resized_height, geometry.resized_width]
        resized = interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
        box = resized[0].permute(1, 2, 0).numpy()
    window = box[geometry.window_top : geometry.window_top + height, geometry.window_left :][:, :width]
    put(window, out, flip=geometry.flip)


def put(window: NDArray[Any], out: NDArray[np.uint8], *, flip: bool) -> None:
    """Write `window` into `out`, mirrored where asked: torch mirrors 224² in 0.05 ms, numpy's `[:, ::-1]` in 0.4."""
    out[...] = torch.flip(torch.from_numpy(window), (1,)).numpy() if flip else window
