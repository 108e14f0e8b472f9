"""The files: compared with what is shown today, or written anew.

`LOADERBENCH_SCREENS=words` writes the words; `facts` also what no change of words may change.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
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


def differing(name: str, texts: Mapping[str, str], kind: str) -> str:
    """How these texts of a screen differ from its files of this kind, which are written where that is asked for."""
    left = [file for file in files() if is_of(file, name) and kind_of(file) == kind and file not in texts]
    return "".join([_differing(FOLDER / name, text, kind) for name, text in texts.items()]) + without(left, kind)


def without(left: Sequence[str], kind: str) -> str:
    """Files that nothing is shown in any more: they are removed where files of their kind are written, else named."""
    if left and WRITES not in (FACTS, kind):
        return "".join(f"{file}: nothing is shown there any more\n" for file in left)
    for file in left:
        (FOLDER / file).unlink()
    return ""


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


def is_of(file: str, name: str) -> bool:
    return file == name or file.startswith((f"{name}.", f"{name}/"))


def kind_of(file: str) -> str:
    return FACTS if file.endswith((".facts", ".json", ".csv")) else WORDS


@cache
def files() -> set[str]:
    """All that are kept, by their places below the folder."""
    return {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
