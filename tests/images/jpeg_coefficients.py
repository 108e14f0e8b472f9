"""Counts the quantized DCT coefficients of a baseline JPEG: the truth that the realism tests rest on.

A plain Huffman decoder (ITU-T T.81, annexes C and F), slow and independent of any library.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class CoefficientCount:
    num_pixels: int
    num_nonzero: int
    """Nonzero quantized coefficients, all components, DC differences included."""


def _codes(counts: bytes, symbols: bytes) -> dict[tuple[int, int], int]:
    table, code, position = {}, 0, 0
    for length in range(1, 17):
        for _ in range(counts[length - 1]):
            table[length, code] = symbols[position]
            code, position = code + 1, position + 1
        code <<= 1
    return table


@dataclass(frozen=True)
class _Lookup:
    """For every 16-bit prefix: the bits of the code and of the number behind it, the coefficients passed, and whether
    one is not zero. The end of a block passes all 64."""

    bits: list[int]
    passed: list[int]
    nonzero: list[int]


def _lookup(counts: bytes, symbols: bytes, ac: bool) -> _Lookup:
    table = _Lookup([0] * 65536, [0] * 65536, [0] * 65536)
    for (length, code), symbol in _codes(counts, symbols).items():
        size = symbol & 15
        passed = (symbol >> 4) + 1 if size or symbol == 0xF0 else 64
        begin, num = code << (16 - length), 1 << (16 - length)
        for column, value in (
            (table.bits, length + size),
            (table.passed, passed if ac else 1),
            (table.nonzero, int(size > 0)),
        ):
            column[begin : begin + num] = [value] * num
    return table


def count_coefficients(encoded: bytes) -> CoefficientCount:
    """Decode one baseline, Huffman-coded JPEG without restart markers."""
    huffman: dict[int, _Lookup] = {}
    sampling: dict[int, int] = {}
    order: list[tuple[int, int, int]] = []
    width = height = mcu_width = mcu_height = 0
    at = 2
    while not order:
        marker, length = encoded[at + 1], int.from_bytes(encoded[at + 2 : at + 4])
        body = encoded[at + 4 : at + 2 + length]
        at += 2 + length
        if marker == 0xC4:
            while body:
                num = sum(body[1:17])
                huffman[body[0]] = _lookup(body[1:17], body[17 : 17 + num], ac=body[0] >= 16)
                body = body[17 + num :]
        elif marker in (0xC0, 0xC1):
            height, width = int.from_bytes(body[1:3]), int.from_bytes(body[3:5])
            factors = [(body[6 + 3 * i], body[7 + 3 * i] >> 4, body[7 + 3 * i] & 15) for i in range(body[5])]
            mcu_width, mcu_height = 8 * max(f[1] for f in factors), 8 * max(f[2] for f in factors)
            sampling = {name: across * down for name, across, down in factors}
        elif marker == 0xDA:
            order = [
                (sampling[body[1 + 2 * i]], body[2 + 2 * i] >> 4, 16 + (body[2 + 2 * i] & 15)) for i in range(body[0])
            ]
        else:
            assert marker not in (0xC2, 0xDD), "baseline without restart markers only"
    scan = encoded[at:-2].replace(b"\xff\x00", b"\xff")
    num_mcus = -(-width // mcu_width) * -(-height // mcu_height)
    return CoefficientCount(width * height, _count_scan(scan + bytes(8), num_mcus, order, huffman))


def _count_scan(scan: bytes, num_mcus: int, order: list[tuple[int, int, int]], huffman: dict[int, _Lookup]) -> int:
    padded = np.frombuffer(scan, np.uint8).astype(np.uint32)
    three = padded[:-2] << 16 | padded[1:-1] << 8 | padded[2:]
    prefixes = ((three[:, None] >> np.arange(8, 0, -1)) & 0xFFFF).ravel().tolist()  # at every bit of the scan
    blocks = [(huffman[dc], huffman[ac]) for num_blocks, dc, ac in order for _ in range(num_blocks)]
    num_nonzero = at = 0
    for _ in range(num_mcus):
        for dc, ac in blocks:
            prefix = prefixes[at]
            at += dc.bits[prefix]
            num_nonzero += dc.nonzero[prefix]
            bits, passed, nonzero = ac.bits, ac.passed, ac.nonzero
            k = 1
            while k < 64:
                prefix = prefixes[at]
                at += bits[prefix]
                num_nonzero += nonzero[prefix]
                k += passed[prefix]
    assert 0 <= len(scan) - 8 - at / 8 < 1, "the scan was not read to its end"
    return num_nonzero
