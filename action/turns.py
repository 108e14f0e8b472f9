"""Measure the base and the head of a pull request in turns, and compare them.

    python action/turns.py --base DIR --head DIR --out DIR --command "loaderbench watch train.py" --limit 0.05

`--command` is a `loaderbench run`, `sweep` or `watch`, which is run in each folder, round by round. OUT gets
`comment.md`, `comparison.json`, and the stored runs of both sides in `base` and `head`. The ratio and its interval are
those of `loaderbench compare` over several rounds. Exit code: 0, also if only the base cannot be measured, with which
there is nothing to compare; 1 if the head is slower by more than the limit with the whole interval, or cannot be
measured; 2 if the request is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from loaderbench import plain
from loaderbench.analysis.comparison import DATA_SET, is_regression, pair, unlike
from loaderbench.errors import ConfigError
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.recording.studies import Pair
from loaderbench.reporting import format as fmt
from loaderbench.reporting.forms import markdown
from loaderbench.reporting.result import Column, Result, Table

SIDES = ("base", "head")
MEASURES = ("run", "sweep", "watch")
MARK = "<!-- loaderbench -->"
"""By which the comment of an earlier push is found."""
COLUMNS = (
    Column("case", left=True), Column("base, samples/s", show=fmt.plus_minus_percent),
    Column("head, samples/s", show=fmt.plus_minus_percent), Column("head ÷ base", show=fmt.speedup),
    Column("base limited by", left=True), Column("head limited by", left=True),
)  # fmt: skip
NOTE = "Both measured in turns on this runner; intervals are of 95 %, over the rounds."
LOG_LINES = 15


class NotMeasured(Exception):
    """A side gave no run."""

    def __init__(self, side: str, why: str) -> None:
        super().__init__(why)
        self.side = side


def command_of(text: str, folder: Path) -> list[str]:
    """The words to run, which keep their runs in `folder`. Raises ConfigError for another command."""
    words = shlex.split(text)
    begins = next((at for at, word in enumerate(words) if Path(word).name == "loaderbench"), None)
    if begins is None or len(words) < begins + 2 or words[begins + 1] not in MEASURES:
        raise ConfigError(f"the command must be `loaderbench run`, `sweep` or `watch`, not '{text}'")
    if "--results" in words:
        raise ConfigError("leave --results out of the command: the action keeps the runs of both sides")
    own = [sys.executable, "-m", "loaderbench"]
    return [*own, words[begins + 1], "--results", str(folder), *words[begins + 2 :]]


def measured(side: str, folder: Path, command: str, setup: str, kept: Path) -> list[RunRecord]:
    """One turn of one side. Raises NotMeasured where it gives no run."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path}
    if setup:
        done = subprocess.run(
            ["bash", "-c", setup], cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotMeasured(side, f"`{setup}` ended with {done.returncode}\n{_tail(done.stdout + done.stderr)}")
    words = command_of(command, kept)
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    found = [one.record for one in Store(kept).runs() if one.record is not None and one.record.measured]
    if done.returncode or not found:
        raise NotMeasured(side, f"`{command}` ended with {done.returncode}\n{_tail(done.stdout + done.stderr)}")
    return found


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-LOG_LINES:])


def rounds_of(arguments: argparse.Namespace) -> dict[str, list[list[RunRecord]]]:
    """Side → the records of each round, each in the order of the cases. The sides take turns to begin a round."""
    found: dict[str, list[list[RunRecord]]] = {side: [] for side in SIDES}

    def turn(side: str, number: int) -> list[RunRecord]:
        kept = arguments.out / side / f"round{number + 1}"
        print(f"round {number + 1} of {arguments.rounds}: {side}", file=sys.stderr, flush=True)
        return measured(side, getattr(arguments, side), arguments.command, arguments.setup, kept)

    for number in range(arguments.rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            try:
                found[side].append(turn(side, number))
            except NotMeasured:
                if side == "base" and not found["head"]:
                    turn("head", number)  # raises if neither side can be measured
                raise
    return found


def pairs_of(found: dict[str, list[list[RunRecord]]]) -> list[tuple[list[RunRecord], list[RunRecord]]]:
    """Each case's runs of the base and of the head, by round. Raises ConfigError where the sides have other cases."""
    numbers = {len(records) for rounds in found.values() for records in rounds}
    if len(numbers) != 1:
        raise ConfigError(f"the base and the head measured other numbers of cases: {sorted(numbers)}")
    by_case = [list(zip(*found[side], strict=True)) for side in SIDES]
    return [(list(base), list(head)) for base, head in zip(*by_case, strict=True)]


def row_of(base: Sequence[RunRecord], found: Pair) -> tuple[object, ...]:
    """One case of the table."""
    return (
        base[0].case.title, found.a.throughput, found.b.throughput, found.ratio, found.a.bottleneck, found.b.bottleneck,
    )  # fmt: skip


def result_of(
    pairs: Sequence[tuple[list[RunRecord], list[RunRecord]]], limit: float
) -> tuple[Result, list[Pair], bool]:
    """(what to say, the comparison of each case, whether one of them is a regression)."""
    compared = [pair(base, head) for base, head in pairs]
    slower = [one for one in compared if one.ratio is not None and is_regression(one.ratio, limit)]
    worst = min(compared, key=lambda one: 1.0 if one.ratio is None else one.ratio.value)
    said = f"{fmt.speedup(worst.ratio)} of the base's samples/s; the limit is {limit:.0%} slower"
    answer = f"{'Slower' if slower else 'Not slower than allowed'}: {said}."
    if not slower and worst.ratio is not None and worst.ratio.value < 1 - limit:
        answer = f"Not decided: {said}, and the interval reaches it. Measure more rounds."
    elif worst.ratio is not None and (worst.ratio.low or 0.0) > 1:
        answer = f"Faster: {said}."
    advice = {fmt.advice(one) for _, head in pairs if (verdict := head[-1].verdict) for one in verdict.advice[:1]}
    differs = {
        f"{one.field}: {fmt.clean(one.a)} → {fmt.clean(one.b)}"
        for base, head in pairs
        for one in unlike(base[0], head[0])
        if one.field not in DATA_SET
    }
    limits = {
        f"{side}: {one.summary}"
        for found in compared
        for side, one in zip(SIDES, (found.a, found.b), strict=True)
        if one.summary
    }
    rows = [row_of(base, found) for (base, _), found in zip(pairs, compared, strict=True)]
    table = Table("", COLUMNS, rows, NOTE)  # type: ignore[arg-type]
    sections = [
        ("Limited by", sorted(limits)), ("What to try next on the head", sorted(advice)),
        ("The head does other work", sorted(differs)),
    ]  # fmt: skip
    return Result("Data loading", [], [answer], [table], sections), compared, bool(slower)


def written(out: Path, text: str, facts: plain.JsonObject) -> None:
    """Keep what was found, and show it in the job's summary."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "comment.md").write_text(f"{MARK}\n{text}")
    (out / "comparison.json").write_text(json.dumps(facts, indent=2))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "a") as file:
            file.write(text)


def main() -> int:
    """Measure, compare, write. The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for side in SIDES:
        parser.add_argument(f"--{side}", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--setup", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=0.05)
    arguments = parser.parse_args()
    arguments.out = arguments.out.absolute()
    try:
        if not 0 <= arguments.limit < 1 or arguments.rounds < 2:
            raise ConfigError("the limit must be a fraction such as 0.05, and there must be 2 rounds or more")
        command_of(arguments.command, arguments.out)
        result, compared, regression = result_of(pairs_of(rounds_of(arguments)), arguments.limit)
    except ConfigError as error:
        print(f"loaderbench: {error}", file=sys.stderr)
        return 2
    except NotMeasured as error:
        more = "" if error.side == "head" else " So nothing is compared; the head could be measured."
        text = f"### Data loading\n\n**The {error.side} could not be measured.**{more}\n\n```\n{error}\n```\n"
        written(arguments.out, text, {"regression": None, "problem": f"{error.side}: {error}"})
        print(f"loaderbench: the {error.side} could not be measured: {error}", file=sys.stderr)
        return int(error.side == "head")
    facts: plain.JsonObject = {
        "limit": arguments.limit, "regression": regression, "pairs": [plain.to_json(one) for one in compared],
    }  # fmt: skip
    written(arguments.out, markdown(result), facts)
    print(result.headline, file=sys.stderr)
    return int(regression)


if __name__ == "__main__":
    sys.exit(main())
