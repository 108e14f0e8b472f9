"""Text as it may be printed: that from outside (names come from file systems, records and traces, and may hold
anything), and sizes of memory."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean(value: object) -> str:
    """`value` as one line of printable text.

    What a terminal would obey (control characters, also those of 0x80 to 0x9F), what turns the direction of the text,
    and undecodable bytes become U+FFFD, line breaks spaces.
    """
    text = str(value)
    if text.isprintable():
        return text
    text = text.encode("utf-8", "replace").decode()
    text = " ".join(text.split()) if any(character in text for character in "\n\r\t\u2028\u2029\x85") else text
    return clean_lines(text)


def clean_lines(text: str) -> str:
    """Text of several lines, cleaned in each."""
    if text.isprintable():
        return text
    return text.translate({ord(one): REPLACEMENT for one in set(text) if not _is_safe(one)})


def short(value: object, most: int = 60) -> str:
    """The text of a value, cut after `most` characters: what a message repeats of the user's own."""
    try:
        text = str(value)
    except ValueError:  # a number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}…"


def counted(number: int, one: str, more: str = "") -> str:
    """1 trial is; 2 trials are. `more`: empty where only an s is added."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def listed(names: Sequence[str], joint: str = "and") -> str:
    """`a, b and c`."""
    return f" {joint} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def memory_size(num_bytes: float) -> str:
    """Binary units, as memory is sold: 5,495 MiB; 18.2 GiB."""
    if abs(num_bytes) >= 10 * 2**30:
        return f"{num_bytes / 2**30:.1f} GiB"
    if abs(num_bytes) >= 100 * 2**20:
        return f"{num_bytes / 2**20:,.0f} MiB"
    return f"{num_bytes / 2**20:.1f} MiB" if abs(num_bytes) >= 2**20 else f"{num_bytes / 2**10:.1f} KiB"


def memory_sizes(*sizes: int) -> tuple[str, ...]:
    """Sizes of one sentence; in bytes where different ones would read the same."""
    texts = tuple(map(memory_size, sizes))
    return texts if len({*texts}) == len({*sizes}) else tuple(f"{size:,} bytes" for size in sizes)


def _is_safe(character: str) -> bool:
    return character.isprintable() or character == "\n" or unicodedata.category(character) == "Zs"
