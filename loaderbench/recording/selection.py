"""Some of a store's runs and studies, by the names that a user gives; and how they are removed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.recording.checks import LATEST, RUN_NAME
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import RUNS_FOLDER, Store, StoredRun, StoredStudy
from loaderbench.recording.studies import StudyRecord

REMOVED = ".removed-"
"""Start of the name that a folder has while it is removed: no run is ever listed in part."""


@dataclass(frozen=True)
class Selection:
    """Some runs and studies of a store."""

    runs: tuple[StoredRun, ...]
    """Those that were named."""
    studies: tuple[StoredStudy, ...]
    of_studies: tuple[StoredRun, ...]
    """The other runs of these studies, in the store or in a study's own folder."""


def find(store: Store, name: str) -> RunRecord | StudyRecord:
    """The record or the study that `name` means, as `Store.named` finds it; `latest` may be a study too.

    Raises:
        ConfigError: none or several match, or what matches has no result.
    """
    record, _ = find_with_folder(store, name)
    return record


def find_with_folder(store: Store, name: str) -> tuple[RunRecord | StudyRecord, Path]:
    """What `find` gives, and its folder. Raises as `find`."""
    stored = (store.latest() if name == LATEST else None) or store.named(name)
    if isinstance(stored, StoredStudy):
        if stored.study is None:
            raise ConfigError(stored.problem)
        return stored.study, stored.path
    if stored.record is None:
        raise ConfigError(f"{stored.run_id} has no result: {stored.problem}")
    return stored.record, stored.path


def select(store: Store, names: Sequence[str]) -> Selection:
    """The runs and studies that `names` name: `latest`, ids or unique starts of them, folders, or tags.

    What is an id, or begins like a whole one up to its time, is never taken for a tag.

    Raises:
        ConfigError: one names nothing, or several.
    """
    chosen: dict[Path, StoredRun] = {}
    chosen_studies: dict[Path, StoredStudy] = {}
    tags: list[tuple[str, str]] | None = None
    for name in names:
        ids = store.ids_of(name)
        tagged: list[str] = []
        if name != LATEST and name not in ids and not (ids and (RUN_NAME.match(name) or os.sep in name)):
            if tags is None:
                tags = [(line.record.tag, line.run_id) for line in store.lines() if line.record and line.record.tag]
            tagged = [run_id for tag, run_id in tags if tag == name]
        if tagged and ids and ids != tagged:
            raise ConfigError(f"'{name}' is a tag and the ids of other runs begin with it: give whole ids")
        for one in tagged or [name]:
            found = store.named(one)
            if isinstance(found, StoredStudy):
                chosen_studies[found.path] = found
            elif found.path.parent == store.root:
                chosen[found.path] = found
            else:
                raise ConfigError(f"{found.path} is not in {store.root}")
    of_studies: dict[Path, StoredRun] = {}
    for stored in chosen_studies.values():
        if stored.study is not None:
            named = (*stored.study.runs, *stored.study.own_runs)
            every = [place.run(run_id) for place in (store, Store(stored.path / RUNS_FOLDER)) for run_id in named]
            of_studies |= {run.path: run for run in every if run is not None and run.path not in chosen}
    return Selection(tuple(chosen.values()), tuple(chosen_studies.values()), tuple(of_studies.values()))


@dataclass(frozen=True)
class Removal:
    """What goes where a selection is removed."""

    runs: tuple[StoredRun, ...]
    studies: tuple[StoredStudy, ...]
    kept: tuple[StoredRun, ...]
    """Runs of these studies that another study names too."""
    named_by: tuple[StoredStudy, ...]
    """Other studies that name a run that goes."""


def plan_removal(store: Store, names: Sequence[str]) -> Removal:
    """What removing these would take: a study with its runs, unless another study names them too.

    Raises:
        ConfigError: a name means nothing, or several; or a run is being measured.
    """
    chosen = select(store, names)
    going = {study.study_id for study in chosen.studies}
    others = [one for one in store.studies() if one.study is not None and one.study_id not in going]
    needed = {run for one in others if one.study is not None for run in one.study.runs}
    beside = [run for run in chosen.of_studies if run.path.parent == store.root]
    runs = (*chosen.runs, *(run for run in beside if run.run_id not in needed))
    measured = [run for run in runs if run.status == "running"]
    if measured:
        raise ConfigError(f"{measured[0].run_id} still runs ({measured[0].problem}): end it first")
    gone = {run.run_id for run in runs}
    return Removal(
        runs,
        chosen.studies,
        tuple(run for run in beside if run.run_id in needed),
        tuple(one for one in others if one.study is not None and gone & {*one.study.runs}),
    )


def remove(store: Store, removal: Removal) -> None:
    """Remove them, studies first: each is gone from the store at once, whatever happens to the rest.

    Raises:
        CaseFailed: one cannot be removed.
    """
    for folder in [*(study.path for study in removal.studies), *(run.path for run in removal.runs)]:
        try:
            folder.rename(store.root / f"{REMOVED}{secrets.token_hex(4)}")
        except FileNotFoundError:  # another process removed it
            continue
        except OSError as error:
            raise CaseFailed(f"cannot remove {folder}: {error.strerror}") from error
    for left in store.root.glob(f"{REMOVED}*"):
        if left.is_symlink():  # what it links to is not in the store
            left.unlink(missing_ok=True)
        else:
            shutil.rmtree(left, ignore_errors=True)
