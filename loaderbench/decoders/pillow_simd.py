"""pillow-simd: Pillow with its resize written for AVX2, under Pillow's own module name.

`loaderbench install pillow-simd` builds it into a folder of its own; the supervisor puts that folder first on the path
of the processes of a case that uses it (loaderbench.prefixes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import PIL

from loaderbench.decoders.pillow import PillowDecoder, is_simd
from loaderbench.errors import UnavailableError


@dataclass(frozen=True)
class Options:
    """No options."""


class PillowSimdDecoder(PillowDecoder):
    """Pillow's decoder, in a process that has loaded pillow-simd. Its pixels are Pillow's, within a level."""

    name = "pillow-simd"

    def __init__(self) -> None:
        """Raises UnavailableError where this process has loaded another Pillow."""
        if not is_simd():
            raise UnavailableError(
                f"this process has loaded Pillow {PIL.__version__}, not pillow-simd: run `loaderbench install "
                "pillow-simd`"
            )
        super().__init__()

    def __reduce__(self) -> Any:
        return PillowSimdDecoder, ()  # a worker that is spawned proves it again


def build(options: Options, context: object = None) -> PillowSimdDecoder:
    return PillowSimdDecoder()
