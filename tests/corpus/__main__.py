"""The command line of the corpus; see the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loaderbench.errors import LoaderbenchError
from tests.corpus.adding import TRUTH_FILE, add, of_run, of_self_test, of_store
from tests.corpus.packed import HALVES, Packed, names_of_sets, read_set
from tests.corpus.score import JUDGES, Case, Judge, all_judged, scores

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]


def judge(sets: Sequence[str], half: str, processes: int, by: Judge = "rules") -> Json:
    """Scores of each set, its cases, and the seconds that all took."""
    begun, found = time.perf_counter(), dict[str, list[Case]]()
    for name in sets:
        found[name] = list(all_judged(read_set(name, half), processes, by))
    told = {
        "sets": {name: asdict(scores(cases)) for name, cases in found.items()},
        "seconds": time.perf_counter() - begun,
        "cases": {name: [asdict(one) for one in cases] for name, cases in found.items()},
    }
    return dict(json.loads(json.dumps(told)))  # as it is when it is read from a file


def judged_by(revision: str, sets: Sequence[str], half: str) -> Json:
    """The same sets, judged by the code of another revision."""
    with tempfile.TemporaryDirectory(prefix="loaderbench-corpus-") as folder:
        there = Path(folder)
        command = ["git", "archive", revision, "loaderbench"]
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            raise SystemExit(f"--against {revision}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x"], cwd=there, input=archive.stdout, check=True)
        (there / "tests").mkdir()
        (there / "tests" / "corpus").symlink_to(Path(__file__).parent)
        command = [sys.executable, "-m", "tests.corpus", *sets, "--half", half, "--json", "-"]
        told = subprocess.run(command, cwd=there, capture_output=True, check=False)
        if told.returncode:
            raise SystemExit(f"--against {revision}: {told.stderr.decode().strip().splitlines()[-1]}")
    return dict(json.loads(told.stdout))


def changes(before: Json, now: Json) -> list[str]:
    """What became different, a line each."""
    lines = []
    for name, cases in now["cases"].items():
        earlier = {one["name"]: one for one in before["cases"].get(name, [])}
        for case in cases:
            old = earlier.get(case["name"])
            if old is None:
                lines.append(f"{name}/{case['name']}: new")
            elif differs := [field for field in ("truth", "verdict", "kind", "culprit") if old[field] != case[field]]:
                said = ", ".join(f"{field} {_text(old[field])} -> {_text(case[field])}" for field in differs)
                lines.append(f"{name}/{case['name']} (truth {case['truth']} {case['gain'][0]:.2f}x): {said}")
        kept = {one["name"] for one in cases}
        lines += [f"{name}/{gone}: gone" for gone in earlier if gone not in kept]
    return lines


FLOOR = Path(__file__).with_name("floor.json")
AT_LEAST, AT_MOST = ("num_right", "num_kind_right", "num_culprit_right"), ("num_confidently_wrong",)
"""Scores that the suite holds to those in FLOOR."""


def keep_floor(sets: Mapping[str, Json], half: str, by: Judge) -> None:
    """Write the scores of `tune` that the suite asks for."""
    if half != "tune":
        raise SystemExit("--floor: the suite scores `tune` alone; leave --half out")
    whole = json.loads(FLOOR.read_text()) if FLOOR.exists() else {}
    there = whole.get(by, {})
    there |= {name: {field: one[field] for field in ("num_cases", *AT_LEAST, *AT_MOST)} for name, one in sets.items()}
    kept = {name: there[name] for name in sorted(there) if name in names_of_sets()}
    FLOOR.write_text(json.dumps({**whole, by: kept}, indent=1) + "\n")


def not_right(cases: Sequence[Json]) -> list[str]:
    """The cases that are clear and not right, or confidently wrong, a line each."""
    off = [one for one in cases if one["confidently_wrong"] or (one["clear"] and not one["right"])]
    return [f"{one['name']}: truth {one['truth']} {one['gain'][0]:.2f}x, said {one['verdict']}" for one in off]


LARGELY = 0.10
"""Two gains of one cause that differ by more are told."""


def disagreements(rules: Json, replay: Json) -> list[str]:
    """Where the two say another cause, kind or gain, a line each."""
    lines = []
    for name, cases in rules["cases"].items():
        for one, other in zip(cases, replay["cases"][name], strict=True):
            apart = [f"{field} {_text(one[field])} / {_text(other[field])}" for field in ("verdict", "kind", "culprit")
                     if one[field] != other[field]]  # fmt: skip
            gains = [None if case["predicted"] is None else case["predicted"][0] for case in (one, other)]
            if None not in gains and abs(gains[1] / gains[0] - 1.0) > LARGELY:
                apart.append(f"gain {gains[0]:.2f} / {gains[1]:.2f}")
            if apart:
                truth = f"truth {one['truth']} {one['gain'][0]:.2f}x"
                lines.append(f"{name}/{one['name']} ({truth}): rules / replay: {', '.join(apart)}")
    return lines or ["rules and replay say the same"]


def _text(value: Any) -> str:
    return str(value[1]) if isinstance(value, list | tuple) else str(value)


def table(sets: Mapping[str, Json]) -> list[str]:
    """The scores as lines of text."""
    heads = (
        "cases", "clear", "right", "wrong", "undet.", "kind", "culprit", "gain error", "95 %", "coverage", "residual",
        "90 %",
    )  # fmt: skip
    lines = [f"{'set':<28}" + "".join(f"{head:>11}" for head in heads)]
    for name, one in sets.items():
        counts = [one[f"num_{field}"] for field in (
            "cases", "clear", "right", "confidently_wrong", "undetermined", "kind_right", "culprit_right",
        )]  # fmt: skip
        parts = [_percent(one["gain_error_median"]), _percent(one["gain_error_p95"])]
        parts.append("-" if one["interval_coverage"] is None else
                     f"{round(one['interval_coverage'] * one['coverage_num'])}/{one['coverage_num']}")  # fmt: skip
        parts += [_percent(one["residual_median"]), _percent(one["residual_p90"])]
        lines.append(f"{name:<28}" + "".join(f"{value!s:>11}" for value in (*counts, *parts)))
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def cases_of(folder: Path, truth: Path | None, beside: str) -> Iterator[Packed]:
    """What a folder holds: a run, whose truth may lie in a file elsewhere, a self-test, or many runs."""
    if truth is not None or (folder / TRUTH_FILE).exists():
        return iter([of_run(folder, truth or folder / TRUTH_FILE, beside)])
    return of_self_test(folder, beside) if (folder / "study.json").exists() else of_store(folder, beside)


def main() -> int:
    """Judge, or add."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"default: all; there are {', '.join(names_of_sets())}")
    parser.add_argument("--half", choices=[*HALVES], default="tune")
    parser.add_argument("--json", metavar="FILE", help="scores and cases; -: to standard output, and nothing else")
    parser.add_argument("--against", metavar="REV|FILE", help="what changed since a revision, or a --json FILE")
    parser.add_argument("--judge", choices=[*JUDGES, "both"], default="rules", help="both: where they disagree, too")
    parser.add_argument("--cases", action="store_true", help="print each case that is clear and not right")
    parser.add_argument("--floor", action="store_true", help="let the suite ask for these scores from now on")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--add", metavar="RUN", type=Path, help="folder of a run, of a self-test, or of runs with truth.json"
    )
    parser.add_argument("--set", metavar="SET", help="the set to add to")
    parser.add_argument("--truth", metavar="FILE", type=Path, help="the run's truth, as JSON")
    parser.add_argument("--beside", default="nothing", help="what else ran on the machine")
    given = parser.parse_args()
    if given.add is not None:
        if given.set is None:
            parser.error("--add needs --set")
        print("\n".join(add(given.set, cases_of(given.add, given.truth, given.beside))))
        return 0
    sets = given.sets or names_of_sets()
    if unknown := set(sets) - set(names_of_sets()):
        parser.error(f"no set {', '.join(sorted(unknown))}; there are {', '.join(names_of_sets())}")
    first: Judge = "rules" if given.judge == "both" else given.judge
    found = judge(sets, given.half, given.processes, first)
    if given.json == "-":
        print(json.dumps(found, indent=1))
        return 0
    if given.json is not None:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found["sets"])))
    if given.judge == "both":
        other = judge(sets, given.half, given.processes, "replay")
        print("\n".join(["", *table(other["sets"]), "", *disagreements(found, other)]))
    if given.floor:
        keep_floor(found["sets"], given.half, first)
    if given.cases:
        print("\n".join(f"{name}/{line}" for name, cases in found["cases"].items() for line in not_right(cases)))
    if given.against is not None:
        path = Path(given.against)
        before = json.loads(path.read_text()) if path.is_file() else judged_by(given.against, sets, given.half)
        print("\n".join(changes(before, found) or ["nothing changed"]))
    print(f"{found['seconds']:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LoaderbenchError as error:
        sys.exit(str(error))
