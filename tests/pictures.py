"""JPEGs and image trees cut from photographs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def encode(pixels: NDArray[np.uint8], **options: object) -> bytes:
    """JPEG bytes of uint8 [H, W, 3] (or [H, W]) pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **{"quality": 90, **options})
    return buffer.getvalue()


def write_tree(root: Path, photographs: list[NDArray[np.uint8]], sizes: list[tuple[int, int]]) -> None:
    """An ImageFolder tree of three classes; picture k is cut from a photograph to sizes[k] (width, height)."""
    for number, (width, height) in enumerate(sizes):
        photograph = photographs[number % len(photographs)]
        top, left = (7 * number) % (photograph.shape[0] - height), (11 * number) % (photograph.shape[1] - width)
        path = root / f"class{number % 3}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photograph[top : top + height, left : left + width], progressive=number % 5 == 0))
