"""What watching costs a script: processor time of its main thread beside that of steps that are not watched.

Part of benchmarks/watch.py (`--overhead`). The script is benchmarks/watch_turns.py: one process, one model, two loaders
in turns of a few steps, of which `loaderbench watch` notices one. What the machine's speed does from one second to the
next, which makes the same script take 1.0 to 2.1 ms a step from run to run, then meets both sides. A value is a pair of
epochs of 2 s, in each of which both loaders are new, the one and then the other made first.

All that the watch does on that thread between the warm-up and the epoch's end is in it: stamps, ends of windows,
bursts. Bursts come by the clock, so that half as many steps meet as many, and each epoch ends a window: of a script all
of whose steps are watched, in long epochs, these cost less. What the watch's presence costs the steps that it does not
see (the modules that it loads) is not in it.

The same loop, not watched, with a known time of spinning in each step of the first loader checks the method: what is
found must be that time.

Once with the DataLoader itself, whose workers tell what they do, and once with a generator over one, which tells
nothing: there the waits are timed and looked at.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from turns import Interval, judged, spread
from watch_turns import BLOCK

from loaderbench.analysis.statistics import t_quantile

SCRIPT = Path(__file__).parent / "watch_turns.py"
SPUN = 0.03
"""Of the step's length, added to each step where nobody watches."""
KNOWN = "3 % more spinning"
SIDES: dict[str, str | None] = {"default probes": "burst", "no probes": "none", KNOWN: None}
AIMS = {
    ("default probes", 10.0): 0.02,
    ("no probes", 10.0): 0.01,
    ("default probes", 1.0): 0.05,
    ("no probes", 1.0): 0.02,
}
"""Most that the watch may add to a step, by side and length of the step in ms."""
WIDE = {10.0: 0.01, 1.0: 0.02}
"""Most that an interval may reach to either side, by the length of the step."""
EPOCH_S = 2.0
"""Of both loaders' steps."""


LOADERS: dict[str, tuple[str, ...]] = {"DataLoader": (), "generator": ("--generator",)}
"""What is iterated, and the script's option for it."""


def _command(data: Path, results: str, loader: str, step_ms: float, side: str, seconds: float) -> list[str]:
    steps = round(EPOCH_S * 1e3 / (step_ms + 2.0) / 4 / BLOCK) * 2 * BLOCK  # of each loader
    own = [
        str(SCRIPT), str(data), "--base", "0.2", "--step-ms", str(step_ms), "--epoch-steps", str(steps),
        "--epochs", str(2 * max(1, round(seconds / EPOCH_S / 2))), *LOADERS[loader],
    ]  # fmt: skip
    probes = SIDES[side]
    if probes is None:
        return [sys.executable, *own, "--spin", str(SPUN * step_ms)]
    return [sys.executable, "-m", "loaderbench", "watch", "--probes", probes, "--results", results, *own]


def overhead(
    data: Path, rounds: int, seconds: float, timed: Callable[[list[str]], dict[str, Any]], sides: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for each loader, length of step and of the `sides`; each of these is first in turn."""
    rows = []
    for loader, step_ms in product(LOADERS, (10.0, 1.0)):
        seen: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for number in range(rounds):
            order = [*sides][number % len(sides) :] + [*sides][: number % len(sides)]
            for side in order:
                with tempfile.TemporaryDirectory(prefix="loaderbench-overhead-") as results:
                    seen[side].append(timed(_command(data, results, loader, step_ms, side, seconds)))
        same = len({one["losses_and_order"] for runs in seen.values() for one in runs}) == 1
        for side, runs in seen.items():
            rows.append({"loader": loader, **row_of(side, step_ms, [one["epochs"] for one in runs], same=same)})
            print(line(rows[-1]), flush=True)
    return rows


def row_of(side: str, step_ms: float, runs: Sequence[Sequence[Any]], *, same: bool) -> dict[str, Any]:
    """`runs`: of each its epochs, ((processor time, time), (the same, not watched)), seconds a step."""
    kept = [np.asarray(run, dtype=np.float64)[: len(run) // 2 * 2] for run in runs]
    epochs = np.concatenate(kept).reshape(-1, 2, 2, 2).mean(axis=1)
    bare_cpu_s, bare_s = epochs[:, 1].mean(axis=0)
    more = (epochs[:, 0] - epochs[:, 1]) / bare_s
    part = mean_interval(more[:, 0])
    row = {
        "side": side,
        "step_ms": step_ms,
        "num_epochs": 2 * len(epochs),
        "block_steps": BLOCK,
        "bare_s_per_step": bare_s,
        "bare_cpu_s_per_step": bare_cpu_s,
        "part_of_step": part,
        "part_of_step_by_two_epochs": more[:, 0].tolist(),
        "time_part": mean_interval(more[:, 1]),
        "same": same,
    }
    if side == KNOWN:
        known = SPUN * step_ms / 1e3 / bare_s
        return {**row, "known": known, "judged": "found" if part[1] <= known <= part[2] else "NOT FOUND"}
    aim = AIMS[side, step_ms]
    return {**row, "aim": aim, "judged": judged(part, -math.inf, aim)}


def mean_interval(values: Any) -> tuple[float, float, float]:
    """The mean of independent values, with its 95 % interval by Student's t."""
    mean, num = float(np.mean(values)), len(values)
    half = t_quantile(num - 1) * float(np.std(values, ddof=1)) / num**0.5
    return mean, mean - half, mean + half


def _in_percent(interval: Interval) -> Interval:
    value, low, high = interval
    return 100 * value, None if low is None else 100 * low, None if high is None else 100 * high


def line(row: dict[str, Any]) -> str:
    same = "" if row["same"] else "  LOSSES OR ORDER DIFFER"
    wanted = f"known {row['known']:.2%}" if row["side"] == KNOWN else f"aim {row['aim']:.0%}"
    _, low, high = row["part_of_step"]
    wide = "" if (high - low) / 2 <= WIDE[row["step_ms"]] else "  WIDE"
    return (
        f"{row['loader']:10s} {row['step_ms']:g} ms, {row['side']:18s} "
        f"{spread(_in_percent(row['part_of_step']), 2)} % of a step of "
        f"{row['bare_s_per_step'] * 1e3:.2f} ms ({wanted}: {row['judged']}); time "
        f"{spread(_in_percent(row['time_part']), 2)} %; {row['num_epochs']} epochs{wide}{same}"
    )
