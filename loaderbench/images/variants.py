"""The resolution variants of a data set: the names of their folders, and which there are."""

from __future__ import annotations

import os
from pathlib import Path

from loaderbench.cases.options import is_count
from loaderbench.errors import ConfigError
from loaderbench.images.listing import IMAGE_SUFFIXES
from loaderbench.printable import short


def parse_resolution(token: int | str) -> tuple[int, int]:
    """(width, height) of a resolution token: N is N×N, "WxH" is itself.

    Raises:
        ConfigError: neither form, or a side outside 16 … 16384.
    """
    parts = str(token).lower().split("x")
    if len(parts) > 2 or not all(map(is_count, parts)):
        raise ConfigError(f"resolution '{short(token)}' is neither a number N (for N×N) nor WIDTHxHEIGHT")
    width, height = int(parts[0]), int(parts[-1])
    if not 16 <= min(width, height) <= max(width, height) <= 16384:
        raise ConfigError(f"resolution '{token}' is out of range: sides may be 16 to 16384 pixels")
    return width, height


def variant_name(width: int, height: int) -> str:
    """Name of a variant's folder: `512` or `500x375`."""
    return str(width) if width == height else f"{width}x{height}"


def find_variants(root: str | Path) -> dict[int, Path]:
    """The resolution variants of a data set: sub-folders named as integers that hold class folders.

    A class folder that merely has a number for a name (MNIST's 0 … 9) holds images itself and is none.
    Ordered by resolution; empty for a plain ImageFolder tree, a flat folder, a missing one.
    """
    try:
        with os.scandir(root) as entries:
            numbered = [entry for entry in entries if entry.name.isascii() and entry.name.isdigit() and entry.is_dir()]
    except OSError:
        return {}
    found = {int(entry.name): Path(entry.path) for entry in numbered if _holds_classes(entry.path)}
    return dict(sorted(found.items()))


def _holds_classes(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.lower().endswith(IMAGE_SUFFIXES):
                    return False
                if not entry.name.startswith(".") and entry.is_dir():
                    return True
    except OSError:
        return False
    return False
