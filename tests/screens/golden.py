"""The files: compared with what is shown today, or written anew.

`LOADERBENCH_SCREENS=words` writes the words; `facts` also what no change of words may change.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("golden")
WORDS, FACTS = "words", "facts"
WRITES = os.environ.get("LOADERBENCH_SCREENS", "")
MOST_LINES = 80
"""Of differences that a failed test shows."""


@dataclass(frozen=True)
class Made:
    """What is shown of a screen today: place below `golden/` → content."""

    words: Mapping[str, str]
    """What people read."""
    facts: Mapping[str, str]
    """What no change of words may change."""


def differing(texts: Mapping[str, str], kind: str) -> str:
    """How these texts differ from their files, which are written anew where that is asked for."""
    return "".join(_differing(FOLDER / name, text, kind) for name, text in texts.items())


def _differing(path: Path, text: str, kind: str) -> str:
    there = path.read_text() if path.exists() else None
    if there == text:
        return ""
    if WRITES == FACTS or (WRITES == WORDS and (kind == WORDS or there is None)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return ""
    name = str(path.relative_to(FOLDER))
    if there is None:
        return f"{name}: there is no such file\n"
    lines = list(difflib.unified_diff(there.splitlines(), text.splitlines(), name, "today", lineterm="", n=1))
    more = [f"… {len(lines) - MOST_LINES} further lines"] if len(lines) > MOST_LINES else []
    return "\n".join([*lines[:MOST_LINES], *more]) + "\n"


def left_over(name: str, made: Made) -> set[str]:
    """Files of that screen which it has no more. They are removed where words are written anew."""
    found = {file for file in files() if is_of(file, name)} - {*made.words, *made.facts}
    if WRITES:
        for file in found:
            (FOLDER / file).unlink()
        return set()
    return found


def is_of(file: str, name: str) -> bool:
    return file == name or file.startswith((f"{name}.", f"{name}/"))


@cache
def files() -> set[str]:
    """All that are kept, by their places below the folder."""
    return {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
