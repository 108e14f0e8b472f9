"""What watching costs a script: processor time of its main thread, bare and watched, in turns.

Part of benchmarks/watch.py (`--overhead`). The script is the plain loop of benchmarks/watched; its own stopwatch counts
the main thread's processor time from the end of the warm-up to the last step, so that starts are left out and all that
the watch does between steps is in it. What is judged is the extra time as a part of the step.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import judged, median_interval, spread

SIDES = {"bare": None, "default probes": "burst", "no probes": "none"}
AIMS = {
    ("default probes", 10.0): 0.02,
    ("no probes", 10.0): 0.01,
    ("default probes", 1.0): 0.05,
    ("no probes", 1.0): 0.02,
}
"""Most that the watch may add to a step, by side and length of the step in ms."""
EPOCHS = 3


def _command(script: Path, data: Path, results: str, step_ms: float, probes: str | None, seconds: float) -> list[str]:
    steps = round(seconds * 1e3 / EPOCHS / (step_ms + 1.0))
    own = [
        str(script), str(data), "--base", "0.2", "--step-ms", str(step_ms), "--epoch-steps", str(steps),
        "--epochs", str(EPOCHS),
    ]  # fmt: skip
    if probes is None:
        return [sys.executable, *own]
    return [sys.executable, "-m", "loaderbench", "watch", "--probes", probes, "--results", results, *own]


def overhead(
    script: Path, data: Path, rounds: int, seconds: float, timed: Callable[[list[str]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each side and length of step; each side is first in turn."""
    rows = []
    for step_ms in (10.0, 1.0):
        seen: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for number in range(rounds):
            order = [*SIDES][number % len(SIDES) :] + [*SIDES][: number % len(SIDES)]
            for side in order:
                with tempfile.TemporaryDirectory(prefix="loaderbench-overhead-") as results:
                    seen[side].append(timed(_command(script, data, results, step_ms, SIDES[side], seconds)))
        for side in [*SIDES][1:]:
            rows.append(_row(side, step_ms, seen["bare"], seen[side]))
            print(line(rows[-1]), flush=True)
    return rows


def _row(side: str, step_ms: float, bare: list[dict[str, Any]], watched: list[dict[str, Any]]) -> dict[str, Any]:
    key, pairs = "main_cpu_s_per_step", list(zip(bare, watched, strict=True))
    aim = AIMS[side, step_ms]
    part = median_interval([(one[key] - alone[key]) / alone["seconds_per_step"] for alone, one in pairs])
    return {
        "side": side,
        "step_ms": step_ms,
        "bare_cpu_s_per_step": [one[key] for one in bare],
        "watched_cpu_s_per_step": [one[key] for one in watched],
        "part_of_step": part,
        "cpu_ratio": median_interval([one[key] / alone[key] for alone, one in pairs]),
        "wall_ratio": median_interval([one["seconds_per_step"] / alone["seconds_per_step"] for alone, one in pairs]),
        "aim": aim,
        "judged": judged(part, -1.0, aim),
        "same": len({one["losses_and_order"] for pair in pairs for one in pair}) == 1,
    }


def line(row: dict[str, Any]) -> str:
    value, low, high = (None if one is None else 100 * one for one in row["part_of_step"])
    same = "" if row["same"] else "  LOSSES OR ORDER DIFFER"
    return (
        f"{row['step_ms']:g} ms, {row['side']:15s} {spread((value, low, high), 2)} % of a step (aim {row['aim']:.0%}: "
        f"{row['judged']}); processor time {spread(row['cpu_ratio'])}, time {spread(row['wall_ratio'])} of the bare "
        f"script's{same}"
    )
