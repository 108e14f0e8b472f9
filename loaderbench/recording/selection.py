"""Some of a store's runs and studies, by the names that a user gives; and how they are removed."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.recording.store import RUNS_FOLDER, Store, StoredRun, StoredStudy

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


def select(store: Store, names: Sequence[str]) -> Selection:
    """The runs and studies that `names` name: ids or unique starts of them, `latest`, folders, or tags.

    Raises:
        ConfigError: one names nothing, or several.
    """
    runs, studies = store.runs(), store.studies()
    chosen: dict[Path, StoredRun] = {}
    chosen_studies: dict[Path, StoredStudy] = {}
    for name in names:
        tagged = [run for run in runs if run.record is not None and run.record.tag == name]
        path = Path(name).absolute()
        study = [one for one in studies if one.study_id.startswith(name) or one.path == path]
        if tagged:
            chosen |= {run.path: run for run in tagged}
        elif len(study) == 1 and not any(run.run_id.startswith(name) for run in runs):
            chosen_studies[study[0].path] = study[0]
        else:
            by_path = [run for run in runs if run.path == path]
            found = by_path[0] if by_path else store.named(name, runs)
            chosen[found.path] = found
    of_studies: dict[Path, StoredRun] = {}
    for stored in chosen_studies.values():
        if stored.study is not None:
            wanted = {*stored.study.runs, *stored.study.own_runs}
            own = Store(stored.path / RUNS_FOLDER).runs()
            of_studies |= {run.path: run for run in (*runs, *own) if run.run_id in wanted and run.path not in chosen}
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
        raise ConfigError(f"{measured[0].run_id} is not removed: {measured[0].problem}; end it first")
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
        shutil.rmtree(left, ignore_errors=True)
