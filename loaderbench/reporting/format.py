"""How figures, names and settings of a run record are worded, whatever they are shown on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
"""A run record as run.schema.json describes it."""

CAUSES = ("compute", "launch", "transfer", "prep", "contention", "storage", "unexplained")
"""The shares of a step, in the order in which they are drawn."""

NOT_MEASURED = "not measured"
MISSING = "–"

_COMMON_FIELDS = {
    "dataset_name": "{}",
    "model": "{}",
    "mode": "{}",
    "precision": "{}",
    "input_size": "input {}",
    "batch_size": "batch {}",
    "cache": "cache {}",
    "decoder": "{}",
}
_QUIET_FIELDS = {
    "device": "{}",
    "prefetch": "prefetch {}",
    "buffer_ratio": "buffer {} of the run",
    "decode_scale": "decode scale {}",
    "output": "{}",
    "loader_options": "{}",
    "decoder_options": "{}",
    "loss_scale": "loss scale {}",
    "seed": "seed {}",
    "repeat": "repeat {}",
}
"""Shown only where the runs differ in them."""


_FOLLOWING = {"decoder": "decoders", "output": "outputs", "decode_scale": "decode scale"}
"""Settings with a default for each loader: where each loader has one, they are said once and not in each row."""


def clean(value: Any) -> str:
    """`value` as one line of printable text: names come from file systems and may hold anything.

    Control characters (a terminal would obey them) and undecodable bytes become U+FFFD, line breaks spaces.
    """
    text = str(value).encode("utf-8", "replace").decode()
    text = " ".join(text.split()) if any(character in text for character in "\n\r\t") else text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def cleaned(value: Any) -> Any:
    """A JSON value with every text in it cleaned."""
    if isinstance(value, Mapping):
        return {clean(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def number(value: float | None, digits: int = 3) -> str:
    """Rounded to `digits` significant digits, never more than whole units: 15,713 · 104 · 61.2 · 0.0081."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def duration(seconds: float | None) -> str:
    """1.84 s · 104 ms · 110 µs"""
    if seconds is None:
        return MISSING
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= scale:
            return f"{number(seconds / scale)} {unit}"
    return f"{number(seconds / 1e-6)} µs"


def size(num_bytes: float | None, per: str = "") -> str:
    """Decimal units: 2.90 GB"""
    if num_bytes is None:
        return MISSING
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(num_bytes) >= scale:
            return f"{number(num_bytes / scale)} {unit}{per}"
    return f"{num_bytes:.0f} B{per}"


def percent(fraction: float | None, sign: str = " %", decimals: int = 0) -> str:
    """31 %"""
    if fraction is None:
        return MISSING
    text = f"{fraction * 100:.{decimals}f}"
    return (text.removeprefix("-") if float(text) == 0 else text) + sign


def value_of(estimate: Mapping[str, Any] | None) -> float | None:
    """An estimate's value, None where it was not measured."""
    return None if estimate is None else estimate["value"]


def half_width(estimate: Mapping[str, Any]) -> float | None:
    """The larger side of the 95 % interval, None where there is none."""
    low, high = estimate.get("low"), estimate.get("high")
    return None if low is None or high is None else max(estimate["value"] - low, high - estimate["value"])


def plus_minus(estimate: Mapping[str, Any] | None) -> str:
    """914 ± 18"""
    if estimate is None:
        return NOT_MEASURED
    width = half_width(estimate)
    if width is not None and width < 1e-6 * abs(estimate["value"]):
        width = 0.0  # rounding of the arithmetic, not spread
    if width is not None and width > abs(estimate["value"]):
        return f"{number(estimate['value'])} ± over 100 %"
    return number(estimate["value"]) + ("" if width is None else f" ± {number(width, 2)}")


def plus_minus_percent(estimate: Mapping[str, Any] | None) -> str:
    """914 ±2%, for narrow columns"""
    if estimate is None:
        return MISSING
    width = half_width(estimate)
    if width is None or not estimate["value"]:
        return number(estimate["value"])
    percents = width / estimate["value"] * 100
    # Few blocks leave the rate all but unknown: the size of such an interval says nothing more.
    return number(estimate["value"]) + (f" ±{percents:.0f}%" if percents <= 100 else " ±>100%")


def percent_interval(estimate: Mapping[str, Any] | None) -> str:
    """38.9–41.2, empty where there is no interval"""
    if estimate is None or half_width(estimate) is None:
        return ""
    return f"{percent(estimate['low'], '', 1)}–{percent(estimate['high'], '', 1)}"


def speedup(estimate: Mapping[str, Any] | None) -> str:
    """1.60× (1.44–1.76)"""
    if estimate is None:
        return NOT_MEASURED
    spread = "" if half_width(estimate) is None else f" ({estimate['low']:.2f}–{estimate['high']:.2f})"
    return f"{estimate['value']:.2f}×{spread}"


def part(record: Record, *path: str) -> Any:
    """The value at `path`, None where it or anything on the way is missing or null."""
    value: Any = record
    for key in path:
        if value is None:
            return None
        value = value.get(key)
    return value


def resolution(record: Record) -> str:
    """The stored resolution; `stored` for a tree without variants."""
    return clean(record["case"].get("resolution") or "stored")


def prep_share(record: Record) -> float | None:
    """Preparation and contention together, as the verdict counts them."""
    prep = value_of(part(record, "shares", "prep"))
    return None if prep is None else prep + (value_of(part(record, "shares", "contention")) or 0.0)


def outcome(record: Record) -> str:
    """One or two words: the bottleneck, or how the run ended."""
    if record["status"] != "ok":
        return clean(record["status"])
    return clean(part(record, "verdict", "bottleneck") or MISSING)


def sentence(record: Record) -> str:
    """The verdict in a sentence, or why there is none."""
    if record["status"] != "ok":
        return clean(part(record, "failure", "message") or "no reason was recorded")
    return clean(part(record, "verdict", "summary") or "no verdict: the arms for it were not run")


def headline(record: Record) -> tuple[str, str]:
    """(`prep: `, the sentence); the first is empty where the sentence itself begins with that word."""
    word, text = outcome(record), sentence(record)
    return ("" if text.lower().startswith(word) else f"{word}: "), text


def device_name(record: Record) -> str:
    """The device's own name, else the one that was asked for."""
    return clean(part(record, "device", "name") or record["case"]["device"])


def loader_name(case: Mapping[str, Any]) -> str:
    """multiprocess 8w"""
    return clean(f"{case['loader']} {case['workers']}w" if case["workers"] else case["loader"])


def by_resolution(records: Iterable[Record]) -> list[tuple[str, list[Record]]]:
    """The records grouped by stored resolution, small ones first, in their order otherwise."""
    groups: dict[int, list[Record]] = {}
    for record in records:
        groups.setdefault(record["case"].get("resolution") or 0, []).append(record)
    return [(resolution(group[0]), group) for _, group in sorted(groups.items())]


def _worded(pattern: str, value: Any) -> str:
    if value is None:
        value = "full" if pattern.startswith("input") else ""
    if isinstance(value, Mapping):
        value = " ".join(f"{key}={item}" for key, item in value.items())
    return clean(pattern.format(value)) if value != "" else ""


def _varies(records: Sequence[Record], field: str) -> bool:
    return any(record["case"].get(field) != records[0]["case"].get(field) for record in records)


def _follows_loader(records: Sequence[Record], field: str) -> bool:
    if field not in _FOLLOWING:
        return False
    pairs = {(record["case"]["loader"], record["case"].get(field)) for record in records}
    return len(pairs) == len({loader for loader, _ in pairs})


def common_settings(records: Sequence[Record]) -> list[str]:
    """What all records share, and which decoder and output each loader has where they follow from it."""
    case = records[0]["case"]
    common = [_worded(text, case.get(field)) for field, text in _COMMON_FIELDS.items() if not _varies(records, field)]
    if not _varies(records, "device"):
        # A run that failed knows no device name.
        common.append(
            next((device_name(record) for record in records if part(record, "device", "name")), case["device"])
        )
    for field, word in _FOLLOWING.items():
        if _varies(records, field) and _follows_loader(records, field):
            pairs = dict.fromkeys((record["case"]["loader"], record["case"].get(field)) for record in records)
            common.append(f"{word}: " + ", ".join(f"{clean(a)} {clean(b)}" for a, b in pairs if b))
    return [text for text in common if text]


def row_label(record: Record, records: Sequence[Record]) -> str:
    """The loader, its workers and whatever else sets this run apart from the others."""
    apart = [
        _worded(text, record["case"].get(field))
        for field, text in {**_COMMON_FIELDS, **_QUIET_FIELDS}.items()
        if _varies(records, field)
        and not _follows_loader(records, field)
        # A buffer that is a part of the run has its prefetch follow from the workers.
        and not (field == "prefetch" and record["case"].get("buffer_ratio") is not None)
    ]
    return " ".join([loader_name(record["case"]), *(text for text in apart if text)])


def grouped_caveats(records: Sequence[Record]) -> list[tuple[str, str, int]]:
    """(code, message, number of runs), each code once, in the order of appearance.

    Messages of one code that differ only in their figures are one; the first run's is shown.
    """
    first: dict[tuple[str, str], str] = {}
    counts: dict[tuple[str, str], int] = {}
    for record in records:
        seen = set()
        for one in record.get("caveats") or []:
            code, message = clean(one["code"]), clean(one["message"])
            key = (code, re.sub(r"\d+(\.\d+)?", "#", message))
            first.setdefault(key, message)
            if key not in seen:
                counts[key] = counts.get(key, 0) + 1
            seen.add(key)
    return [
        (key[0], message if counts[key] == 1 or key[1] == message else f"{message} (figures differ)", counts[key])
        for key, message in first.items()
    ]
