r"""Repairs events of a trace that are not JSON: names with unescaped quotes or backslashes, bare words for values.

Kineto wrote such events in many releases: Python frames `<quote>` and `C:\Users\…` in names, `N/A`, `nan` and `inf` as
values, characters of other encodings.
"""

from __future__ import annotations

import json
import re

from loaderbench.plain import JsonObject

_KEYS = r'"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|cname)"'
NEXT_EVENT = re.compile(r'\}\s*,\s*(?=\{(?:[^{}\[\]"]|"(?:[^"\\]|\\.)*")*?"ph"\s*:\s*")')
"""The end of an event before another one: an object with the key `ph` before any nested list or object."""
LAST_EVENT = re.compile(r'\}\s*(?=\]\s*(?:,\s*"|\}|$))')
"""The end of the last event of a list."""
LONGEST_HEAD = 1 << 16
"""Characters of an event before its key `ph`, at most."""
_NAME = re.compile(rf'("name"\s*:\s*")(.*?)("\s*(?:,\s*{_KEYS}\s*:|\}}\s*$))', re.DOTALL)
_BARE = re.compile(
    r'((?<!\\)"[^"\\\n]*"\s*:\s*+)(?!["{\[]|-?\d|true\b|false\b|null\b|NaN\b|-?Infinity\b)'  # after a key, not a value
    r"[^,}\]\n]*"
)
_DECODER = json.JSONDecoder(parse_float=str, strict=False)


def repaired(text: str) -> JsonObject | None:
    """Decode one event after escaping its name and replacing bare words by null; None if it still is not JSON."""
    text = _NAME.sub(lambda found: found[1] + json.dumps(found[2])[1:-1] + found[3], text, count=1)
    try:
        event = _DECODER.decode(_BARE.sub(r"\1null", text))
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
