"""Scripts with one cause that has a name and a line: what it truly costs, and what `loaderbench watch` says of it.

    python benchmarks/watch.py --causes [--only NAME,NAME] [--rounds 3] [--traceml COMMAND] [--py-spy COMMAND]
        [--json FILE] [--results DIR]

The scripts (benchmarks/watched/causes) say in their first line what is built in, and mark its lines with `# HERE`;
`FIX=1` takes it out. Truth is their own stopwatch, with the cause and without it, in turns. A row whose script has no
such line is not asked for one: an affinity, a delivery have none.

The other tools are asked about the same script, with no line added, and what they say stands beside it: TraceML's
diagnosis of the steps (it needs `trace_step` in a loop of one's own), and the line of the script in most of py-spy's
stacks, sleeping ones and those of workers among them. Neither tells a gain.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loaderbench.errors import LoaderbenchError
from loaderbench.machine import environment
from loaderbench.plain import to_json

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
    variables = {**os.environ, "FIX": "1" if fixed else ""}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=FOLDER, env=variables
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("TIMED ")]
    if len(told) != 1:
        raise RuntimeError(f"ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    figures: dict[str, Any] = json.loads(told[0].removeprefix("TIMED "))
    return figures


def traceml_says(command: str, script: str, arguments: list[str], folder: Path) -> str:
    """TraceML's own diagnosis of a script's steps, `none` where it gives none. Raises LoaderbenchError."""
    with tempfile.TemporaryDirectory(prefix="loaderbench-traceml-") as logs:
        asked = [command, "run", script, "--mode=summary", "--run-name", "run", "--logs-dir", logs]
        more = ["--args", *arguments] if arguments else []
        done = subprocess.run(
            [*asked, *more], capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=folder
        )  # fmt: skip
        summary = Path(logs, "run", "final_summary.json")
        if done.returncode or not summary.exists():
            raise LoaderbenchError(f"ended with {done.returncode}: {done.stderr[-400:]}")
        diagnosis = (json.loads(summary.read_text()).get("step_time") or {}).get("diagnosis") or {}
        return str(diagnosis.get("kind") or "none")


def py_spy_says(command: str, one: Built) -> dict[str, Any]:
    """The line of the script that most of py-spy's stacks are at or came through last, and its part of all."""
    with tempfile.TemporaryDirectory(prefix="loaderbench-py-spy-") as folder:
        stacks = Path(folder, "stacks")
        asked = [command, "record", "--idle", "--nonblocking", "--subprocesses", "--rate", "50"]
        run([*asked, "--format", "raw", "--output", str(stacks), "--", sys.executable, str(one.path)], fixed=False)
        counts: Counter[int] = Counter()
        for row in stacks.read_text().splitlines():
            frames, _, num = row.rpartition(" ")
            found = re.findall(rf"\({re.escape(one.path.name)}:(\d+)\)", frames)
            counts[int(found[-1]) if found else 0] += int(num)
    whole = sum(counts.values())
    del counts[0]
    line, num = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    return {"line": line, "part": num / max(1, whole), "right": line in one.lines}


def ask(one: Built, rounds: int, results: Path | None, others: Mapping[str, str | None]) -> dict[str, Any]:
    """A row: truth, and what was said."""
    plain = [sys.executable, str(one.path)]
    turns, seen = [], set()
    for number in range(rounds):
        pair = {fixed: run(plain, fixed=fixed) for fixed in ((False, True) if number % 2 else (True, False))}
        turns.append((pair[False]["seconds_per_step"], pair[True]["seconds_per_step"]))
        seen.add(pair[False]["losses_and_order"])
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
    same = {*seen, watched["losses_and_order"]}
    verdict = found["verdict"]
    where = (verdict.get("where") or [None])[0]
    gain = statistics.median(plain_s / fixed_s for plain_s, fixed_s in turns)
    said = verdict["speedup_if_removed"].get(verdict["bottleneck"])
    return {
        "name": one.path.stem, "cause": one.cause, "detail": one.detail, "gain": gain, "turns": turns,
        "said": verdict["bottleneck"], "said_detail": verdict.get("cause_detail"), "said_gain": said, "where": where,
        "line_right": where is not None and Path(where["file"]).name == one.path.name and where["line"] in one.lines,
        "asked_line": bool(one.lines), "watched_s": watched["seconds_per_step"], "watch_same": len(same) == 1,
        "summary": verdict["summary"],
        "traceml": traceml_says(traceml, str(one.path), [], FOLDER) if (traceml := others.get("traceml")) else None,
        "py_spy": py_spy_says(py_spy, one) if (py_spy := others.get("py_spy")) else None,
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
    missed = " NOT THE LINE" if row["asked_line"] and not row["line_right"] else ""
    at = f"{Path(where['file']).name}:{where['line']}{missed}"
    traceml = "" if row["traceml"] is None else f"  TraceML {row['traceml']}"
    spied = row["py_spy"]
    told = (
        "" if spied is None else f"  py-spy :{spied['line']} {spied['part']:.0%}{' THE LINE' if spied['right'] else ''}"
    )
    return (
        f"{row['name']:20s}{row['cause']}/{row['detail']:14s} {row['gain']:6.2f}  {outcome(row):13s}"
        f"{row['said']}/{row['said_detail']} {said['value']:.2f}{ends}  {at}"
        f"{'' if row['watch_same'] else '  WATCHED RUN DIFFERS'}{traceml}{told}"
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
        "line_asked": sum(row["asked_line"] for row in rows),
        "line_right": sum(row["line_right"] for row in rows if row["asked_line"]),
        "near": sum(error <= NEAR for error in errors),
        "median_error": statistics.median(errors) if errors else None, "intervals": len(bounded), "hold": len(inside),
        "differing": [row["name"] for row in rows if not row["watch_same"]],
    }  # fmt: skip


def measure(
    only: str | None, rounds: int, results: Path | None, json_file: Path | None, others: Mapping[str, str | None]
) -> None:
    """Ask all, and print what came out."""
    wanted = tuple((only or "").split(","))
    rows = []
    for one in scripts():
        if one.path.stem.startswith(wanted):
            try:
                rows.append(ask(one, rounds, results, others))
            except (RuntimeError, LoaderbenchError, subprocess.TimeoutExpired) as error:
                print(f"{one.path.stem}: {error}", flush=True)
                continue
            print(line(rows[-1]), flush=True)
    found = summarize(rows)
    print(json.dumps(found))
    if json_file:
        facts = {"summary": found, "rows": rows, "rounds": rounds, "environment": to_json(environment())}
        json_file.write_text(json.dumps(facts, indent=1) + "\n")
    if found["wrong"] or found["differing"]:
        sys.exit(1)
