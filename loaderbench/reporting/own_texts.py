"""Tells whether a text is loaderbench's own: written in its source, which is public, with nothing added but figures."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import loaderbench

NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?"
LITERAL = r'[rbu]?"(?:[^"\\\n]|\\.)*"'
"""A piece of text on one line of source."""
PIECES = re.compile(rf"(?:f?{LITERAL}\s*)+")
"""Pieces that Python joins, since nothing but blanks is between them."""
FIGURE = re.compile(r"\{[^{}]*:[+,]?(?:\.\d)?[defg%]?\}")
"""Where an f-string, or the words of a finding, has a figure: with a format of numbers, it can never hold a name."""
LEAST_LETTERS = 3
"""Of a text with figures in it: less would let texts through that only look like one."""


def is_own(text: str) -> bool:
    """Whether the text, its figures aside, is written in loaderbench's source."""
    exact, with_figures = _texts()
    if text in exact:
        return True
    return len(re.findall("[a-z]", text)) >= LEAST_LETTERS and re.sub(NUMBER, "#", text) in with_figures


@functools.cache
def _texts() -> tuple[frozenset[str], frozenset[str]]:
    """The texts without figures, and those with them: each figure is `#`."""
    exact, with_figures = set(), set()
    package = Path(loaderbench.__file__).parent
    for path in (*package.rglob("*.py"), *package.rglob("*.toml")):  # the second: profiles of devices
        for pieces in PIECES.findall(path.read_text(encoding="utf-8")):
            text = "".join(FIGURE.sub("\0", _value(piece)) for piece in re.findall(LITERAL, pieces))
            if "\0" not in text:
                exact.add(text)
            elif "{" not in text:
                with_figures.add(re.sub(rf"\0|{NUMBER}", "#", text))
    return frozenset(exact), frozenset(with_figures)


def _value(piece: str) -> str:
    """What a piece of text in the source stands for."""
    try:
        return str(ast.literal_eval(piece))
    except (SyntaxError, ValueError):  # a part of a longer text
        return ""
