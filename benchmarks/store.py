"""How long the commands about a store take, by the number of runs in it.

    python benchmarks/store.py [--runs 10,100,1000,10000] [--rounds 6] [--quick] [--json FILE]

A stored run of the tests' data, judged by today's rules, is copied under other names with other seeds. In each round
every command runs once on each store, as a process of its own, in turns. Printed: the CPU seconds of the command (user
and system, Python's start included), and their ratio to those on the smallest store, in the same round: the median over
rounds with its 95 % interval. Goals: a command about one run takes on the largest store at most 1.5 times as long as on
the smallest, and `list` at most 5 s of wall time. The exit status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from turns import Interval, judged, median_interval, spread

from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.recording.files import json_bytes
from loaderbench.recording.store import Store
from loaderbench.studies import measure

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import convert_schema1

SOURCE = Path(__file__).parents[1] / "tests" / "data" / "schema1"
MOST_GROWN, MOST_LIST_S = 1.5, 5.0
ABOUT_ONE = ("show latest", "show ID", "analyze latest", "analyze ID", "trace latest", "rm ID")
ABOUT_ALL = ("list", "list --json -", "ledger")
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
Turn = tuple[float, float]
"""(seconds by the clock, CPU seconds)"""


def fill(results: Path, num_runs: int) -> list[str]:
    """Runs that differ in seed and name, as measuring leaves them. Returns their ids, oldest first."""
    original = next(path.parent for path in sorted(SOURCE.glob("*/arrays.npz")) if "threaded" in path.parent.name)
    run = convert_schema1.load_run(original)
    folder = Store(results).open_run(run.case)
    run = folder.write_run(replace(run, run_id=folder.run_id))
    folder.write_record(measure.judged(run))
    values = {name: json.loads((folder.path / f"{name}.json").read_bytes()) for name in ("case", "facts", "run")}
    ids = []
    for number in range(num_runs):
        began = BEGUN + timedelta(minutes=number)
        run_id = f"{began:%Y%m%d-%H%M%S}-000-128-threaded-w2-{number:08x}-000000"
        (results / run_id).mkdir()
        case = {**values["case"], "seed": number}
        about = {"run_id": run_id, "case": case}
        for name, value in {"case": case, "facts": values["facts"] | about, "run": values["run"] | about}.items():
            (results / run_id / f"{name}.json").write_bytes(json_bytes(value))
        (results / run_id / "arrays.npz").hardlink_to(folder.path / "arrays.npz")
        ids.append(run_id)
    for path in folder.path.iterdir():
        path.unlink()
    folder.path.rmdir()
    return ids


def turn(command: str, results: Path, run_id: str) -> Turn:
    """One run of a command, which must end well."""
    given = command.replace("ID", run_id).split()
    more = {"trace": ["--out", os.devnull], "rm": ["--yes"]}.get(given[0], [])
    begun_cpu, begun = os.times(), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "loaderbench", *given, *more, "--results", str(results)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    took, cpu = time.perf_counter() - begun, os.times()
    used = cpu.children_user - begun_cpu.children_user + cpu.children_system - begun_cpu.children_system
    return took, used


def rows(turns: Mapping[tuple[str, int], Sequence[Turn]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A row a command and size."""
    found = []
    for (command, size), taken in turns.items():
        least = turns[command, sizes[0]]
        grown = median_interval([one[1] / other[1] for one, other in zip(taken, least, strict=True)])
        clock = median_interval([one[0] for one in taken])
        found.append({
            "command": command, "runs": size, "cpu_s": median_interval([one[1] for one in taken]), "wall_s": clock,
            "grown": grown, "goal": goal(command, size == sizes[-1], grown, clock),
        })  # fmt: skip
    return found


def goal(command: str, is_largest: bool, grown: Interval, clock: Interval) -> str | None:
    """Whether the row reaches its goal; None where it has none."""
    if not is_largest:
        return None
    if command in ABOUT_ONE:
        return judged(grown, 0.0, MOST_GROWN)
    return judged(clock, 0.0, MOST_LIST_S) if command == "list" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="10,100,1000,10000", help="numbers of runs, the smallest first")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="at most 1,000 runs, 3 rounds")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    sizes = [int(one) for one in arguments.runs.split(",")]
    sizes = [size for size in sizes if size <= 1000] if arguments.quick else sizes
    turns: dict[tuple[str, int], list[Turn]] = {}
    with tempfile.TemporaryDirectory(prefix="loaderbench-store-") as folder:
        stores = {size: Path(folder, str(size)) for size in sizes}
        ids = {size: fill(results, size) for size, results in stores.items()}
        for number in range(3 if arguments.quick else arguments.rounds):
            for command in (*ABOUT_ONE, *ABOUT_ALL):
                for size in sizes if number % 2 else reversed(sizes):
                    run_id = ids[size].pop(0) if command == "rm ID" else ids[size][len(ids[size]) // 2]
                    turns.setdefault((command, size), []).append(turn(command, stores[size], run_id))
            print(f"round {number + 1} is done", flush=True)
    found = sorted(rows(turns, sizes), key=lambda row: ((*ABOUT_ONE, *ABOUT_ALL).index(row["command"]), row["runs"]))
    print(f"\n{'command':<16}{'runs':>8}  {'CPU s':<24}{'clock s':<24}times the CPU s of {sizes[0]} runs")
    for row in found:
        print(f"{row['command']:<16}{row['runs']:>8,}  {spread(row['cpu_s'], 2):<24}{spread(row['wall_s'], 2):<24}"
              f"{spread(row['grown'], 2)}  {row['goal'] or ''}")  # fmt: skip
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": found, "environment": to_json(environment())}, indent=1) + "\n")
    missed = [f"{row['command']} with {row['runs']:,} runs" for row in found if row["goal"] == "missed"]
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
