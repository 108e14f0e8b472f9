"""What `loaderbench compare` asks for of two data sets, read into a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loaderbench.cases.case import CACHE_STATES, DURATION_S, CacheState, Case, Subject
from loaderbench.cases.study import MOST_REPEATS, StudyOptions, check_choice, check_number, check_range
from loaderbench.errors import ConfigError
from loaderbench.images.cache_state import can_prove_cold
from loaderbench.images.listing import first_image
from loaderbench.recording.caveats import Reason
from loaderbench.studies.refusals import check_cases
from loaderbench.studies.request import Progress, Say, find_data_sets, no_note, plan

if TYPE_CHECKING:
    from loaderbench.recording.studies import SameFiles

ONE_OF_EACH = ("res", "loader", "decoder", "prefetch", "model", "precision", "batch_size")
"""Options of which a comparison takes one value."""


def parse_targets(texts: Sequence[str]) -> list[tuple[str, str]]:
    """`nvme=/data/set` → (`nvme`, `/data/set`), twice. Raises ConfigError for anything else."""
    targets = []
    for text in texts:
        label, separator, dataset = text.partition("=")
        if not separator or not label.strip() or not dataset:
            raise ConfigError(
                f"compare needs NAME=DATASET twice, such as nvme=/data/set nfs=/mnt/nfs/set, not '{text}'"
            )
        targets.append((label.strip(), dataset))
    _check_targets(targets)
    return targets


def _check_targets(targets: Sequence[tuple[str, str]]) -> None:
    if len(targets) != 2 or targets[0][0] == targets[1][0]:
        raise ConfigError("compare needs two different names: nvme=/data/set nfs=/mnt/nfs/set")


def _check_apart(folders: Sequence[str], labels: Sequence[str]) -> None:
    """Raises ConfigError where both sides are the same files, by whatever path, mount or link: what one side reads is
    then in memory for the other."""
    firsts = [first_image(folder) or folder for folder in folders]
    if os.path.samefile(*firsts):  # noqa: PTH121
        raise ConfigError(
            f"{labels[0]} and {labels[1]} are the same files ({firsts[0]}): put a copy on each of the two storages"
        )


def default_caches(
    folders: Sequence[str], total_bytes: int, max_bytes: int | None
) -> tuple[list[CacheState], list[Reason]]:
    """(cache states to measure, what is left out and why): cold and warm, where this machine can make them.

    `max_bytes`: what one run may read from its storage; warm reads all of the data set once.
    """
    from loaderbench.running.cache import can_hold  # late: it needs numpy

    notes: list[Reason] = []
    blind = next((folder for folder in folders if not can_prove_cold(folder)), None)
    if blind is not None:
        notes.append(Reason("as_is_for_cold", {"path": blind}))
    states: list[CacheState] = ["cold" if blind is None else "as-is"]
    if max_bytes is not None and total_bytes > max_bytes:
        notes.append(Reason("warm_too_large_for_max_bytes", {"bytes": total_bytes}))
    elif not can_hold(total_bytes):
        notes.append(Reason("warm_does_not_fit", {"bytes": total_bytes}))
    else:
        states.append("warm")
    return states, notes


def plan_rounds(options: StudyOptions, sides: Sequence[Subject], rounds: int, on_note: Say = no_note) -> list[Case]:
    """The cases of all rounds with the files as they are in the cache.

    `duration` is the time of all rounds of a case.

    Raises:
        ConfigError: a value out of range, or a contradiction.
    """
    check_range("--rounds", rounds, 1, MOST_REPEATS)
    options = options.changed(repeats=rounds, cache="as-is")
    if options.steps is None or options.duration is not None:
        options = options.changed(duration=(DURATION_S if options.duration is None else options.duration) / rounds)
    return plan(options, sides, on_note=on_note)


def in_turn(
    cases: Sequence[Case], sides: Sequence[Subject], caches: Sequence[str], max_bytes: int | None
) -> list[Case]:
    """The cases in each cache state: each round has every state and number of workers, each of these both sides.

    `max_bytes`: limit for all runs of a storage.

    Raises:
        ConfigError: no such cache state, or one that a loader cannot have.
    """
    states = [check_choice("--cache", cache, CACHE_STATES) for cache in dict.fromkeys(caches)]
    each = None if max_bytes is None else max_bytes * len(sides) // (len(cases) * len(states))
    folders = [side.dataset for side in sides]
    cases = [case.changed(cache=state, max_bytes=each) for state in states for case in cases]
    check_cases(cases)

    def order(case: Case) -> tuple[int, int, int, int]:
        subject = case.subject
        return case.effort.repeat, states.index(subject.cache), case.feed.workers, folders.index(subject.dataset)

    return sorted(cases, key=order)


@dataclass(frozen=True)
class ComparisonPlan:
    """What a comparison of two data sets will measure."""

    labels: tuple[str, str]
    cases: tuple[Case, ...]
    same_files: SameFiles
    notes: tuple[Reason, ...]
    """What is left out, or done differently from the default."""


def plan_data_sets(
    targets: Sequence[tuple[str, str]],
    options: StudyOptions,
    rounds: int,
    *,
    on_note: Say,
    progress: Progress,
) -> ComparisonPlan:
    """Check that both hold the same files, and plan their cases.

    `targets`: (label, folder or name) twice. `on_note` is called with what is being done, and what was
    chosen for the user.

    Raises:
        ConfigError: a value out of range, a contradiction, or files that differ.
    """
    _check_targets(targets)
    labels = [label for label, _ in targets]
    found = find_data_sets([dataset for _, dataset in targets], options, progress=progress)
    sides = [replace(one, dataset_name=label) for one, label in zip(found, labels, strict=True)]
    folders, most = [one.dataset for one in sides], options.max_bytes
    check_number(rounds, len(sides))
    _check_apart(folders, labels)
    as_is = plan_rounds(options, sides, rounds, on_note)
    in_turn(as_is, sides, options.cache or ["as-is"], most)  # refused before files are read to compare them
    from loaderbench.images.same_files import HASHED_BYTES, check_same_files  # late: it needs numpy

    on_note(f"checking that {' and '.join(labels)} hold the same files")
    same = check_same_files(folders, labels, HASHED_BYTES if most is None else min(HASHED_BYTES, most // 10))
    if most is not None:
        most -= same.hashed_bytes
    states, notes = options.cache, list[Reason]()
    if states is None:
        each = None if most is None else most // len(as_is)
        states, notes = default_caches(folders, same.total_bytes, each)
    cases = in_turn(as_is, sides, states, most)
    return ComparisonPlan((labels[0], labels[1]), tuple(cases), same, tuple(notes))


def title(case: Case) -> str:
    """Short text for a case among those of a comparison."""
    return f"round {case.effort.repeat + 1}, {case.subject.cache}: {case.title}"
