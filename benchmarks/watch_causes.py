"""Scripts with one cause that has a name and a line: what it truly costs, and what `loaderbench watch` says of it.

    python benchmarks/watch.py --causes [--only NAME,NAME] [--rounds 3] [--json FILE] [--results DIR]

The scripts (benchmarks/watched/causes) say in their first line what is built in, and mark its lines with `# HERE`;
`FIX=1` takes it out. Truth is their own stopwatch, with the cause and without it, in turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "watched" / "causes"
HELPER = "common"
LIMIT_S = 240.0
NEAR = 0.15
"""Of the gain, that a prediction may be off."""


@dataclass(frozen=True)
class Built:
    """A script, and what is built into it."""

    path: Path
    cause: str
    detail: str
    lines: tuple[int, ...]


def scripts() -> list[Built]:
    """All of them, by name."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem == HELPER:
            continue
        text = path.read_text().splitlines()
        cause, detail = text[0].partition("cause: ")[2].partition(".")[0].split()
        lines = tuple(number for number, line in enumerate(text, 1) if line.rstrip().endswith("# HERE"))
        found.append(Built(path, cause, detail, lines))
    return found


def run(command: list[str], *, fixed: bool) -> dict[str, Any]:
    """What the script's stopwatch printed."""
    environment = {**os.environ, "FIX": "1" if fixed else ""}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=FOLDER, env=environment
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("TIMED ")]
    if len(told) != 1:
        raise RuntimeError(f"ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    figures: dict[str, Any] = json.loads(told[0].removeprefix("TIMED "))
    return figures


def ask(one: Built, rounds: int, results: Path | None) -> dict[str, Any]:
    """A row: truth, and what was said."""
    plain = [sys.executable, str(one.path)]
    turns = []
    for number in range(rounds):
        pair = {fixed: run(plain, fixed=fixed) for fixed in ((False, True) if number % 2 else (True, False))}
        turns.append((pair[False]["seconds_per_step"], pair[True]["seconds_per_step"]))
    with tempfile.TemporaryDirectory(prefix="loaderbench-causes-") as folder:
        record = Path(folder, "record.json")
        watch = [
            sys.executable,
            "-m",
            "loaderbench",
            "watch",
            "--results",
            str(results or folder),
            "--json",
            str(record),
        ]
        watched = run([*watch, str(one.path)], fixed=False)
        found = json.loads(record.read_text())
    same = {run(plain, fixed=False)["losses_and_order"], watched["losses_and_order"]}
    verdict = found["verdict"]
    where = (verdict.get("where") or [None])[0]
    gain = statistics.median(plain_s / fixed_s for plain_s, fixed_s in turns)
    said = verdict["speedup_if_removed"].get(verdict["bottleneck"])
    return {
        "name": one.path.stem, "cause": one.cause, "detail": one.detail, "gain": gain, "turns": turns,
        "said": verdict["bottleneck"], "said_detail": verdict.get("cause_detail"), "said_gain": said, "where": where,
        "line_right": where is not None and Path(where["file"]).name == one.path.name and where["line"] in one.lines,
        "watched_s": watched["seconds_per_step"], "watch_same": len(same) == 1, "summary": verdict["summary"],
    }  # fmt: skip


def outcome(row: dict[str, Any]) -> str:
    """right, cause only, undetermined or WRONG."""
    if row["said"] == row["cause"]:
        return "right" if row["said_detail"] == row["detail"] else "cause only"
    return "undetermined" if row["said"] in ("undetermined", "mixed") else "WRONG"


def line(row: dict[str, Any]) -> str:
    said = row["said_gain"] or {"value": float("nan"), "low": None, "high": None}
    where = row["where"] or {"file": "-", "line": 0}
    ends = "" if said["low"] is None else f" ({said['low']:.2f}–{said['high'] or float('inf'):.2f})"
    at = f"{Path(where['file']).name}:{where['line']}{'' if row['line_right'] else ' NOT THE LINE'}"
    return (
        f"{row['name']:20s}{row['cause']}/{row['detail']:14s} {row['gain']:6.2f}  {outcome(row):12s}"
        f"{row['said']}/{row['said_detail']} {said['value']:.2f}{ends}  {at}"
        f"{'' if row['watch_same'] else '  WATCHED RUN DIFFERS'}"
    )


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    right = [row for row in rows if outcome(row) == "right"]
    errors = [abs(row["said_gain"]["value"] / row["gain"] - 1) for row in right if row["said_gain"]]
    bounded = [row for row in right if row["said_gain"] and row["said_gain"]["low"] is not None]
    inside = [
        row for row in bounded if row["said_gain"]["low"] <= row["gain"] <= (row["said_gain"]["high"] or float("inf"))
    ]
    return {
        "asked": len(rows), "right": len(right), "wrong": [row["name"] for row in rows if outcome(row) == "WRONG"],
        "line_right": sum(row["line_right"] for row in rows), "near": sum(error <= NEAR for error in errors),
        "median_error": statistics.median(errors) if errors else None, "intervals": len(bounded), "hold": len(inside),
        "differing": [row["name"] for row in rows if not row["watch_same"]],
    }  # fmt: skip


def measure(only: str | None, rounds: int, results: Path | None, json_file: Path | None) -> None:
    """Ask all, and print what came out."""
    wanted = tuple((only or "").split(","))
    rows = []
    for one in scripts():
        if one.path.stem.startswith(wanted):
            try:
                rows.append(ask(one, rounds, results))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{one.path.stem}: {error}", flush=True)
                continue
            print(line(rows[-1]), flush=True)
    found = summarize(rows)
    print(json.dumps(found))
    if json_file:
        json_file.write_text(json.dumps({"summary": found, "rows": rows}, indent=1) + "\n")
    if found["wrong"] or found["differing"]:
        sys.exit(1)
