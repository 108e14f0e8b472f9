"""What `loaderbench compare` asks for of two data sets, read into a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loaderbench.cases.case import DURATION_S, CacheState, Case
from loaderbench.cases.options import Options, Words
from loaderbench.cases.study import MOST_REPEATS, StudyRequest, check_number, check_range, plan
from loaderbench.errors import ConfigError
from loaderbench.images.cache_state import can_prove_cold
from loaderbench.images.listing import first_image
from loaderbench.recording.caveats import Reason
from loaderbench.studies.refusals import check_cases
from loaderbench.studies.request import Progress, resolve

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


def plan_comparison(request: StudyRequest, caches: Sequence[str], rounds: int) -> list[Case]:
    """All cases: each round has every cache state and number of workers, each of these both sides in turn.

    `duration_s` is the time of all rounds of a case, `max_bytes` the limit for all runs of a storage.

    Raises:
        ConfigError: a value out of range, or a contradiction.
    """
    check_range("--rounds", rounds, 1, MOST_REPEATS)
    request = replace(request, repeats=rounds)
    if request.steps is None or request.duration_s is not None:
        whole_s = DURATION_S if request.duration_s is None else request.duration_s
        request = replace(request, duration_s=whole_s / rounds)
    cases = [case for cache in dict.fromkeys(caches) for case in plan(replace(request, cache=cache))]
    if request.max_bytes is not None:
        each = request.max_bytes * len(request.variants) // len(cases)
        cases = [case.changed(max_bytes=each) for case in cases]
    check_cases(cases)
    sides = [variant.name for variant in request.variants]
    states = list(caches)

    def order(case: Case) -> tuple[int, int, int, int]:
        subject = case.subject
        return case.effort.repeat, states.index(subject.cache), case.feed.workers, sides.index(subject.dataset_name)

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
    options: Options,
    rounds: int,
    *,
    on_note: Callable[[str], None],
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
    asked = list(options.subject.cache or ())
    unset = replace(options, subject=replace(options.subject, cache=Words(("as-is",))))
    resolution = options.subject.res[0] if options.subject.res else None
    request = resolve(unset, [(dataset, resolution) for _, dataset in targets], on_note=on_note, progress=progress)
    variants = [replace(one, name=label) for one, label in zip(request.variants, labels, strict=True)]
    request = replace(request, variants=variants)
    folders, most = [variant.path for variant in variants], request.max_bytes
    check_number(rounds, len(variants))
    _check_apart(folders, labels)
    plan_comparison(request, asked or ("as-is",), rounds)  # refuses what is wrong before files are read to compare them
    from loaderbench.images.same_files import HASHED_BYTES, check_same_files  # late: it needs numpy

    on_note(f"checking that {' and '.join(labels)} hold the same files")
    same = check_same_files(folders, labels, HASHED_BYTES if most is None else min(HASHED_BYTES, most // 10))
    if most is not None:
        request = replace(request, max_bytes=most - same.hashed_bytes)
    notes: list[Reason] = []
    if not asked:
        runs = 2 * rounds * len(request.workers or [0])
        each = None if request.max_bytes is None else request.max_bytes // max(1, runs)
        states, notes = default_caches(folders, same.total_bytes, each)
        asked = [*states]
    cases = plan_comparison(request, asked, rounds)
    return ComparisonPlan((labels[0], labels[1]), tuple(cases), same, tuple(notes))


def title(case: Case) -> str:
    """Short text for a case among those of a comparison."""
    return f"round {case.effort.repeat + 1}, {case.subject.cache}: {case.title}"
