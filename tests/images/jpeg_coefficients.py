"""Counts the quantized DCT coefficients of a baseline JPEG: the truth that the realism tests rest on.

A plain Huffman decoder (ITU-T T.81, annexes C and F), slow and independent of any library.
"""

from dataclasses import dataclass


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


def _lookup(counts: bytes, symbols: bytes) -> list[tuple[int, int]]:
    """(length, symbol) for every 16-bit prefix."""
    table = [(0, 0)] * 65536
    for (length, code), symbol in _codes(counts, symbols).items():
        begin = code << (16 - length)
        table[begin : begin + (1 << (16 - length))] = [(length, symbol)] * (1 << (16 - length))
    return table


def count_coefficients(encoded: bytes) -> CoefficientCount:
    """Decode one baseline, Huffman-coded JPEG without restart markers."""
    huffman: dict[int, list[tuple[int, int]]] = {}
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
                huffman[body[0]] = _lookup(body[1:17], body[17 : 17 + num])
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


def _count_scan(
    scan: bytes, num_mcus: int, order: list[tuple[int, int, int]], huffman: dict[int, list[tuple[int, int]]]
) -> int:
    num_nonzero = at = 0

    def peek16() -> int:
        byte, shift = at >> 3, 8 - (at & 7)
        return int.from_bytes(scan[byte : byte + 3]) >> shift & 0xFFFF

    for _ in range(num_mcus):
        for num_blocks, dc_table, ac_table in order:
            dc, ac = huffman[dc_table], huffman[ac_table]
            for _ in range(num_blocks):
                length, size = dc[peek16()]
                at += length + size
                num_nonzero += size > 0
                k = 1
                while k < 64:
                    length, symbol = ac[peek16()]
                    size = symbol & 15
                    at += length + size
                    if size:
                        num_nonzero += 1
                        k += (symbol >> 4) + 1
                    elif symbol == 0xF0:
                        k += 16
                    else:
                        break
    assert 0 <= len(scan) - 8 - at / 8 < 1, "the scan was not read to its end"
    return num_nonzero
