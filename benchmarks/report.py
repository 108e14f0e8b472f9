"""How long the report of many runs takes, how large it is, and how long a browser takes to open it.

    python benchmarks/report.py [--runs 200,2000] [--shape sets|one|serial] [--from RESULTS] [--json FILE]

Copies of the runs in RESULTS (or of made-up ones) under other names fill a store, no two of the same settings. The
shape `sets`: ten data sets, many numbers of workers; `one`: one data set; `serial`: one data set, half of the runs
serial. Prints seconds and MB of `loaderbench report`, seconds of `--format csv`, and those that headless Chromium takes
from its start to the load of the page, less those for an empty one. Aims: ten times the runs in ≤ 12 times the seconds;
1,000 runs in ≤ 15 s and ≤ 10 MB; 200 runs in < 6 MB, opened in < 2 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loaderbench.plain import to_json
from loaderbench.recording.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "reporting"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="200,2000", help="numbers of runs")
    parser.add_argument("--shape", default="sets", choices=("sets", "one", "serial"), help="what the runs differ in")
    parser.add_argument("--from", dest="source", type=Path, help="a results folder to copy runs from")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    found = [measure(int(number), arguments.source, arguments.shape) for number in arguments.runs.split(",")]
    for one in found:
        opened = "not measured (no Chromium)" if one["open_s"] is None else f"{one['open_s']:.2f} s"
        csv_s = f"CSV in {one['csv_s']:.1f} s"
        print(f"{one['runs']} runs: {one['report_s']:.1f} s, {one['megabytes']:.2f} MB, {csv_s}, opened in {opened}")
    for before, after in itertools.pairwise(found):
        grown = ", ".join(f"{name} {after[f'{name}_s'] / before[f'{name}_s']:.1f}" for name in ("report", "csv"))
        print(f"{after['runs'] / before['runs']:.0f} times the runs, times the seconds: {grown}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def measure(num_runs: int, source: Path | None, shape: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="loaderbench-report-") as folder:
        results, page = Path(folder, "results"), Path(folder, "report.html")
        fill(results, num_runs, source, shape)
        command = [sys.executable, "-m", "loaderbench", "report", "--results", str(results), "--out"]
        took = {}
        for name, options in (("report", [str(page)]), ("csv", [str(Path(folder, "x.csv")), "--format", "csv"])):
            begun = time.perf_counter()
            subprocess.run([*command, *options], check=True, capture_output=True)
            took[name] = time.perf_counter() - begun
        return {
            "runs": num_runs,
            "report_s": took["report"],
            "csv_s": took["csv"],
            "megabytes": page.stat().st_size / 1e6,
            "open_s": opening_s(page, Path(folder)),
        }


def changes(shape: str, number: int, num_runs: int) -> dict[str, Any]:
    """What sets a run apart from all others."""
    resolution = (256, 512, 1024)[number % 3]
    if shape == "sets":
        name, workers = f"set{number * 10 // num_runs}", 1 + number // 3
    else:
        name, workers = "set", number % 2 if shape == "serial" else 1 + number // 3
    apart = {"seed": number} if shape == "serial" else {}
    return {"dataset_name": name, "dataset": f"/data/{name}/{resolution}", "resolution": resolution,
            "workers": workers, **apart}  # fmt: skip


def fill(results: Path, num_runs: int, source: Path | None, shape: str = "sets") -> None:
    """Distinct runs, as real ones lie in a store."""
    if source is None:
        import example_records

        originals: list[tuple[Any, Path | None]] = [(to_json(example_records.measured()), None)]
    else:
        kept = [run.path for run in Store(source).runs() if run.record is not None]
        originals = [(json.loads((path / "run.json").read_text()), path) for path in kept]
    for number in range(num_runs):
        record, folder = originals[number % len(originals)]
        copy = json.loads(json.dumps(record))
        copy["run_id"] = f"{number:05d}-{copy['run_id']}"
        copy["case"] |= changes(shape, number, num_runs)
        target = results / copy["run_id"]
        if folder is not None:
            shutil.copytree(folder, target)
            facts = target / "facts.json"
            if facts.exists():  # those of another run would not be drawn
                facts.write_text(json.dumps({**json.loads(facts.read_text()), "run_id": copy["run_id"]}))
        target.mkdir(parents=True, exist_ok=True)
        (target / "case.json").write_text(json.dumps(copy["case"]))
        (target / "run.json").write_text(json.dumps(copy))


def opening_s(page: Path, folder: Path) -> float | None:
    """Median of three, less an empty page; None without Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return None
    empty = folder / "empty.html"
    empty.write_text("<!doctype html><title>empty</title>")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    times: dict[Path, list[float]] = {page: [], empty: []}
    for _ in range(3):
        for one in times:
            command = [
                chromium,
                *flags,
                f"--user-data-dir={folder / 'profile'}",
                f"--screenshot={folder / 'x.png'}",
                one.as_uri(),
            ]
            begun = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            times[one].append(time.perf_counter() - begun)
    return sorted(times[page])[1] - sorted(times[empty])[1]


if __name__ == "__main__":
    main()
