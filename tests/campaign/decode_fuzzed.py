"""Run as a program: decodes JPEGs that were spoilt at random with every decoder that is installed.

    decode_fuzzed.py SEED FIRST NUMBER PLACE

PLACE is a file that names the picture and the decoder at work, for when this process dies. Prints what came out as
JSON: whatever is neither an image nor a DecodeError (or a MemoryError, where LIMIT_BYTES do not do) is listed.
"""

from __future__ import annotations

import io
import json
import resource
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from loaderbench import plugins
from loaderbench.decoders.base import DecodeError

LIMIT_BYTES = 1 << 30
"""Address space for the pixels: more than any sound picture here takes, and little enough for a shared machine."""


def originals() -> list[bytes]:
    """Small pictures of each kind that encoders write."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    smooth = Image.fromarray(pixels).resize((97, 61), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x010E] = "a description " * 20
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("RGB", {"subsampling": 0}), ("RGB", {"subsampling": 1}), ("RGB", {"subsampling": 2}), ("L", {}), ("CMYK", {}),
        ("RGB", {"progressive": True}), ("L", {"progressive": True}), ("RGB", {"restart_marker_rows": 1}),
        ("RGB", {"optimize": True, "quality": 30}), ("RGB", {"exif": exif, "icc_profile": bytes(3000)}),
        ("RGB", {"comment": b"x" * 500}), ("CMYK", {"progressive": True}),
    ]  # fmt: skip
    made = []
    for mode, options in kinds:
        buffer = io.BytesIO()
        smooth.convert(mode).save(buffer, "JPEG", **options)
        made.append(buffer.getvalue())
    return made


def spoilt(pictures: list[bytes], random: Random) -> bytes:
    """One of them with one to four damages."""
    data = bytearray(random.choice(pictures))
    for _ in range(random.choice([1, 1, 2, 4])):
        place, kind = random.randrange(len(data)), random.randrange(9)
        head = random.randrange(min(len(data), 700))
        if kind == 0:
            data[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[head] = random.randrange(256)
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            del data[head : head + random.randrange(1, 40)]
        elif kind == 4:
            data[place:place] = random.randbytes(random.randrange(1, 40))
        elif kind == 5:
            other = random.choice(pictures)
            data[place:] = other[random.randrange(len(other)) :]
        elif kind == 6:  # a marker of any kind
            data[head : head + 2] = bytes([0xFF, random.randrange(0xC0, 0xFF)])
        elif kind == 7:  # the size that the frame header tells
            at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
            if at > 0 and len(data) > at + 9:
                data[at + 5 : at + 9] = random.choice(
                    [random.randbytes(4), b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\1\0"]
                )
        else:  # the sampling factors
            at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
            if at > 0 and len(data) > at + 18:
                data[at + 11 + 3 * random.randrange(3)] = random.randrange(256)
        if not data:
            return b""
    return bytes(data)


def main() -> None:
    seed, first, number, place = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    decoders = [plugins.DECODERS.load(one.name) for one in plugins.installed_decoders()]
    built = [module.build(module.Options()) for module in decoders]
    most = LIMIT_BYTES + resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    pictures, outcomes, wrong = originals(), Counter[str](), []
    with place.open("wb", buffering=0) as at_work:
        for index in range(first, first + number):
            data = spoilt(pictures, Random(f"{seed} {index}"))
            for decoder in built:
                at_work.seek(0)
                at_work.write(f"{index:8d} {decoder.name:12s}".encode())
                try:
                    pixels = decoder.decode(data)
                    height, width = decoder.size(pixels)
                    array = decoder.to_array(pixels)
                    if array.shape != (height, width, 3) or array.dtype != np.uint8:
                        wrong.append(f"{index} {decoder.name}: {array.shape} {array.dtype}")
                    outcomes[f"{decoder.name}: image"] += 1
                except (DecodeError, MemoryError) as error:
                    outcomes[f"{decoder.name}: {type(error).__name__}"] += 1
                    if not str(error) and isinstance(error, DecodeError):
                        wrong.append(f"{index} {decoder.name}: an error without a reason")
                except Exception as error:
                    wrong.append(f"{index} {decoder.name}: {type(error).__name__}: {error}"[:200])
    print(json.dumps({"outcomes": outcomes, "wrong": wrong}))


if __name__ == "__main__":
    main()
