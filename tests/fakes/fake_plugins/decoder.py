"""Pillow under another name."""

from __future__ import annotations

from dataclasses import dataclass

from loaderbench.decoders.pillow import PillowDecoder


@dataclass(frozen=True)
class Options:
    """No options."""


class FakeDecoder(PillowDecoder):
    name = "fake-decoder"


def build(options: Options, context: object = None) -> FakeDecoder:
    return FakeDecoder()
