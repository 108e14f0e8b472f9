"""What a text says besides its words: numbers with their units, codes, flags, ids."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

SYMBOL = r"[A-Za-z]+/s|[KMGT]iB|[kKMGT]B|%|×|ms|µs|ns|°C|[MG]Hz"
UNIT = rf"{SYMBOL}|[kMGT]?FLOPs?|bytes|B|s|seconds?|min|minutes?|h|hours?|days?|W"
"""Behind a number."""
NUMBER = re.compile(
    rf"(?<![A-Za-z_\d.,])(?<![A-Za-z]-)(?P<number>(?:(?<![\w)])[-−+])?\d+(?:,\d{{3}})*(?:\.\d+)?(?:e[-+]?\d+)?)(?!\d)"
    rf"(?: ?(?P<unit>(?:{UNIT})(?:/[a-z]+)?)(?![\w/]))?"
)
HEADING = re.compile(rf"(?<![\w'’-])(?:{SYMBOL})(?![\w/'’-])")
"""A unit of its own, as above a column."""
CODE = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
EXIT = re.compile(r"-- exit code (-?\d+) --")
RUN_ID = re.compile(r"\b\d{8}-\d{6}-\d{3}[\w-]*")


def facts_of(text: str) -> str:
    """A line for each unit, with its numbers, and for each kind of code. The order of a text is its words', and so is
    how often it names a code."""
    lines: dict[str, str] = {}
    for kind, pattern in (("ids", RUN_ID), ("flags", FLAG), ("codes", CODE)):
        lines[kind] = ", ".join(sorted(set(pattern.findall(text))))
        text = pattern.sub(" ~ ", text)
    if ended := EXIT.search(text):
        lines["exit code"] = ended[1]
        text = text.replace(ended[0], "")
    numbers: dict[str, Counter[str]] = {}
    for found in NUMBER.finditer(text):
        numbers.setdefault(found["unit"] or "numbers", Counter())[found["number"]] += 1
    lines["units"] = ", ".join(sorted(set(HEADING.findall(NUMBER.sub(" ~ ", text)))))
    lines |= {unit: ", ".join(_counted(of_unit)) for unit, of_unit in numbers.items()}
    return "".join(f"{kind}: {lines[kind]}\n" for kind in sorted(lines) if lines[kind])


def _counted(found: Counter[str]) -> Iterator[str]:
    for what in sorted(found, key=lambda what: (_value(what), what)):
        yield what if found[what] == 1 else f"{what} ({found[what]} times)"


def _value(text: str) -> float:
    try:
        return float(text.replace(",", "").replace("−", "-"))
    except ValueError:
        return 0.0


@dataclass(frozen=True)
class Split:
    """What a program reads of a JSON, and the sentences in it, which people read."""

    data: str
    sentences: str


def split_json(text: str) -> Split:
    """The JSON with `…` in place of each sentence, and the sentences by their places."""
    said: list[str] = []

    def without(value: object, place: str) -> object:
        if isinstance(value, dict):
            return {name: without(one, f"{place}.{name}" if place else name) for name, one in value.items()}
        if isinstance(value, list):
            return [without(one, f"{place}[{number}]") for number, one in enumerate(value)]
        if isinstance(value, str) and " " in value:
            said.append(f"{place}: {value}\n")
            return "…"
        return value

    data = without(json.loads(text), "") if text else ""
    return Split(rounded(_lines(data)) + "\n", "".join(said))


def rounded(text: str) -> str:
    """The text with nine digits of long numbers: the last ones depend on in which order a processor adds."""
    return re.sub(r"(?<![\w.])-?\d+\.\d{9,}(?:e[-+]?\d+)?", lambda found: f"{float(found[0]):.9g}", text)


def _lines(value: object, indent: str = "") -> str:
    """JSON with a list of numbers on one line."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        inside = [f"{deeper}{json.dumps(name)}: {_lines(one, deeper)}" for name, one in value.items()]
        return "{\n" + ",\n".join(inside) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        return "[\n" + ",\n".join(f"{deeper}{_lines(one, deeper)}" for one in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)
