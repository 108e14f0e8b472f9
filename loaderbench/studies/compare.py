"""Two data sets that hold the same files on two storages, measured in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from loaderbench.analysis.comparison import compare
from loaderbench.cases.case import Case
from loaderbench.cases.study import StudyRequest, plan
from loaderbench.errors import ConfigError
from loaderbench.recording.store import Store, plain_json
from loaderbench.recording.types import SCHEMA
from loaderbench.running.cache import can_hold, can_prove_cold
from loaderbench.samplers.sources import StorageCounter
from loaderbench.studies.measure import OnMessage, Record, measure_case

DEFAULT_ROUNDS = 3
"""Two rounds leave one degree of freedom: an interval of 12.7 standard errors."""


def parse_targets(texts: Sequence[str]) -> list[tuple[str, str]]:
    """`nvme=/data/set` → (`nvme`, `/data/set`), twice. Raises ConfigError for anything else."""
    found = []
    for text in texts:
        label, separator, dataset = text.partition("=")
        if not separator or not label.strip() or not dataset:
            raise ConfigError(
                f"compare takes NAME=DATASET twice, such as nvme=/data/set nfs=/mnt/nfs/set, not '{text}'"
            )
        found.append((label.strip(), dataset))
    if len(found) != 2 or found[0][0] == found[1][0]:
        raise ConfigError("compare takes two data sets of different names: nvme=/data/set nfs=/mnt/nfs/set")
    return found


def default_caches(folders: Sequence[str], total_bytes: int, max_bytes: int | None) -> tuple[list[str], list[str]]:
    """(cache states to measure, what is left out and why): cold and warm, where this machine can make them.

    `max_bytes`: those that one run may read of its storage; warm reads all of the data set once.
    """
    notes = []
    blind = next((folder for folder in folders if StorageCounter(folder).reason or not can_prove_cold(folder)), None)
    if blind is not None:
        notes.append(f"as-is instead of cold: that reads come from the storage cannot be proven for {blind} (doctor)")
    states = ["cold" if blind is None else "as-is"]
    if max_bytes is not None and total_bytes > max_bytes:
        notes.append(f"warm is left out: it reads all {total_bytes / 1e9:,.1f} GB, more than --max-bytes leaves a run")
    elif not can_hold(total_bytes):
        notes.append(f"warm is left out: memory cannot hold {total_bytes / 1e9:,.1f} GB; ask for it with --cache")
    else:
        states.append("warm")
    return states, notes


def plan_comparison(request: StudyRequest, caches: Sequence[str], rounds: int) -> list[Case]:
    """All cases: round by round, in each every cache state and number of workers, there the two sides in turn.

    `duration_s` is that of a case's rounds together, `max_bytes` that of a storage's runs together.

    Raises:
        ConfigError: a value out of range, or a contradiction.
    """
    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {rounds}")
    request = replace(request, repeats=rounds, duration_s=request.duration_s / rounds)
    cases = [case for cache in dict.fromkeys(caches) for case in plan(replace(request, cache=cache))]
    if request.max_bytes is not None:
        each = request.max_bytes * len(request.variants) // len(cases)
        cases = [replace(case, max_bytes=each) for case in cases]
    order = [variant.name for variant in request.variants]
    states = list(caches)
    cases.sort(key=lambda one: (one.repeat, states.index(one.cache), one.workers, order.index(one.dataset_name)))
    return cases


def title(case: Case) -> str:
    """Short text for a case among those of a comparison."""
    return f"round {case.repeat + 1}, {case.cache}: {case.title}"


class Comparison:
    """The runs of a comparison as they come in. What is known so far is stored behind each of them."""

    def __init__(
        self, labels: Sequence[str], cases: Sequence[Case], same_files: Mapping[str, int], notes: Sequence[str],
        store: Store,
    ) -> None:  # fmt: skip
        self.labels, self.cases, self.store = list(labels), cases, store
        self.records: list[Record] = []
        self._about = {
            "schema": SCHEMA,
            "comparison_id": store.new_comparison_id(labels),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "labels": {"a": labels[0], "b": labels[1]},
            "same_files": dict(same_files),
            "notes": list(notes),
            "num_cases": len(cases),
        }

    def measure(self, on_message: OnMessage, on_record: Callable[[Record], None]) -> None:
        """Run every case; a failure is kept as one. Raises what measure_case raises."""

        def keep(record: Record) -> None:
            self.records.append(record)
            on_record(record)
            self.store.write_comparison({**self.result(), "a": None, "b": None})

        for case in self.cases:
            measure_case(case, self.store, on_message, keep)

    def result(self) -> Record:
        """The form of `compare --json`, of the runs so far; stored without the records `a` and `b`."""
        sides = ([one for one in self.records if one["case"]["dataset_name"] == label] for label in self.labels)
        found: Record = plain_json({**self._about, **compare(*sides)}, [])
        return found
