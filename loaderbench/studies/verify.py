"""`run --verify`: runs the advice that can be run, and holds what was predicted against what came of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench.analysis.statistics import interval
from loaderbench.analysis.steps import arm_steps
from loaderbench.cases.case import Case
from loaderbench.prefixes import prefix_of
from loaderbench.recording.store import RunFolder, Store
from loaderbench.recording.types import Estimate, Segment
from loaderbench.running.cache import RESIDENT
from loaderbench.running.supervisor import Child, JobFailed

ROUNDS = 2
"""Base and changes take turns so many times, so that whatever else the machine does meets all."""
SECONDS = 4.0
"""Most seconds of measuring of one turn."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One piece of advice, run."""

    action: str
    change: Mapping[str, Any]
    predicted: Mapping[str, float]
    measured: Estimate | None
    reason: str | None
    """Why it was not measured."""

    @property
    def error(self) -> float | None:
        """predicted ÷ measured − 1."""
        return None if self.measured is None else self.predicted["value"] / self.measured.value - 1


def to_verify(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The record's advice that can be run and has a prediction."""
    advice = (record.get("verdict") or {}).get("advice") or []
    return [one for one in advice if one.get("change") and one.get("predicted_speedup")]


def verify_record(record: Record, store: Store, say: Callable[[str], None]) -> tuple[Record, list[Check]]:
    """Run the record's advice, and store the record with what was measured.

    Fills `measured_speedup` (samples/s with the change ÷ without it) and `not_verified` (why there is none) of
    each piece of advice. `say` gets a line before each turn.

    Raises:
        CaseFailed: the record cannot be written.
    """
    advice = to_verify(record)
    base = Case.from_json(record["case"])
    reason = _not_repeatable(record)
    checks = [_unmeasured(one, reason) for one in advice] if reason else run_advice(base, advice, say)
    for one, check in zip(advice, checks, strict=True):
        one["measured_speedup"] = None if check.measured is None else check.measured.to_json()
        one["not_verified"] = check.reason
    if not advice:
        return record, []
    folder = RunFolder(record["run_id"], store.root / record["run_id"], record["started_at"])
    return folder.write_record(record), checks


def _not_repeatable(record: Mapping[str, Any]) -> str | None:
    """Why the base cannot be run again as it was."""
    storage = record.get("storage") or {}
    before = (storage.get("residency_fraction") or {}).get("before")
    if storage.get("cache_state") != "as-is" or (before is not None and before >= RESIDENT):
        return None
    return "the data set's own cache state is gone once it was measured: run with --cache cold or --cache warm"


def run_advice(base: Case, advice: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> list[Check]:
    """Base and changed cases in turn, ROUNDS times, only the arm `real`, in one process that is kept."""
    turns_in_all = ROUNDS * (1 + len(advice))
    short = replace(
        base, arms=("real",), duration_s=SECONDS, steps=None, warmup=None, ci_target=0.01, repeat=0, kernels=False,
        max_bytes=None if base.max_bytes is None else base.max_bytes // turns_in_all,
    )  # fmt: skip
    cases = [short, *(replace(short, **one["change"]) for one in advice)]
    kept: list[list[Segment]] = [[] for _ in cases]
    failed: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="loaderbench-verify-") as folder:
        turns = [(turn, number) for turn in range(ROUNDS) for number in range(len(cases))]
        while turns:
            with Child(Path(folder, "worker.log"), prefix_of(base.decoder)) as child:
                while turns:
                    turn, number = turns.pop(0)
                    if number in failed or 0 in failed:
                        continue
                    say(f"verifying, turn {turn + 1} of {ROUNDS}: {cases[number].title}")
                    try:
                        kept[number] += child.ask("measure", cases[number], _quiet).segments
                    except JobFailed as error:
                        failed[number] = error.message
                        break  # the process may be gone with it: begin a new one
    checks = []
    for number, one in enumerate(advice, 1):
        reason = failed.get(0) or failed.get(number)
        measured = None if reason else rate_ratio(kept[0], kept[number], cases[0].lanes, cases[number].lanes)
        if measured is None and reason is None:
            reason = "no complete step within a turn"
        checks.append(Check(one["action"], one["change"], one["predicted_speedup"], measured, reason))
    return checks


def _unmeasured(one: Mapping[str, Any], reason: str) -> Check:
    return Check(one["action"], one["change"], one["predicted_speedup"], None, reason)


def _quiet(kind: str, payload: Any) -> None:
    """Progress within a turn is not shown."""


def rate_ratio(
    before: Sequence[Segment], after: Sequence[Segment], lanes_before: int = 1, lanes_after: int = 1
) -> Estimate | None:
    """Samples/s of the arm `real` in `after` ÷ in `before`; None where one has no complete step.

    `lanes_…`: batches that each prepares at once (Case.lanes).
    """
    first, second = arm_steps(before, "real", 0, lanes_before), arm_steps(after, "real", 1, lanes_after)
    if first is None or second is None:
        return None
    samples = (second.num_samples / second.num_steps) / (first.num_samples / first.num_steps)
    value = samples * first.mean("duration") / second.mean("duration")
    draws = np.asarray(samples * first.drawn("duration") / second.drawn("duration"))
    method = f"runs in turn, {ROUNDS} each; block bootstrap, 95 %"
    return interval(value, draws, "ratio", min(first.num_blocks, second.num_blocks), method)
