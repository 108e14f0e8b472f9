"""A script's ranks, each of them watched: what each saw goes to rank 0, which keeps one study of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from loaderbench.analysis.steps import handover_of, window_quantities
from loaderbench.cases.arms import Arm
from loaderbench.machine import environment
from loaderbench.recording.facts import Run, Segment
from loaderbench.recording.ranks import RANK_STEP, RankedCase, RankEnd, RankRun, RanksFacts, RankWindow
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.running.beside import Beside
from loaderbench.running.ranks import rank_of
from loaderbench.studies.ranks import bytes_of, part_from, records_of, study_of, window_of
from loaderbench.watching.watcher import Watcher

MOST_STEPS = 20_000
"""Of a rank, the last ones, that the study keeps."""
PARTS_S, HURRIED_S, FAILED_S = 60.0, 10.0, 1.0
"""For which rank 0 waits for the others; where the launcher ends all; where its own script failed, for whose end the
others may wait themselves."""


class WatchedRank:
    """One rank of a script, beside the others."""

    def __init__(self, beside: Beside) -> None:
        self.beside = beside
        beside.patience_s = PARTS_S
        self.study: StudyRecord | None = None
        """Of all ranks: on rank 0, once the script has ended."""

    @classmethod
    def of_launch(cls, variables: Mapping[str, str]) -> WatchedRank | None:
        """None where no launcher started several ranks. Raises ConfigError where its variables make no sense."""
        rank = rank_of(variables)
        return None if rank is None or rank.world_size < 2 else cls(Beside(rank, variables))

    @property
    def speaks(self) -> bool:
        """Whether it tells what all found."""
        return self.beside.place.rank == 0

    @property
    def problem(self) -> str | None:
        """Why there is no result of all ranks."""
        cut_off = self.beside.cut_off
        return None if cut_off is None else f"each of the {self.beside.place.ranks} ranks is watched alone: {cut_off}"

    def failed(self, error: BaseException, watcher: Watcher) -> None:
        """Its script ended with an error."""
        self.beside.patience_s = FAILED_S
        said = (str(error).strip().splitlines() or [""])[0][:200]
        num = sum(one.num_batches for one in watcher.seen.values())
        self.beside.failed(f"its script ended with {type(error).__name__}: {said}".rstrip(": "), f"batch {num}")

    def hurries(self) -> None:
        """The launcher ends all ranks."""
        self.beside.patience_s = min(self.beside.patience_s, HURRIED_S)

    def end(self, run: Run | None, record: RunRecord | None, store: Store) -> None:
        """Hand over what was stored; rank 0 keeps the study. Raises CaseFailed where it cannot be written."""
        part = b"" if run is None or record is None else bytes_of(part_of_script(run))
        parts, ended = self.beside.hand_over(part)
        known = tuple(part_from(one) for one in parts if one)
        if run is None or not self.speaks or not known:
            return
        self.study = _kept(run, known, ended, self.beside, store)


def _kept(run: Run, parts: tuple[RankRun, ...], ended: RankEnd | None, beside: Beside, store: Store) -> StudyRecord:
    place = beside.place
    cases = (RankedCase(run.case, parts, watched=True),)
    facts = RanksFacts(environment(), place.ranks, place.launcher, 1, cases, ended)
    folder = store.new_study("ranks", [f"{place.ranks}-ranks", run.case.subject.dataset_name or "script"])
    study = study_of(folder, facts, records_of(store, parts))
    folder.write(study)
    return study


def part_of_script(run: Run) -> RankRun:
    """What the study keeps of a rank's run: the same steps of each, as far as they were seen."""
    recording = run.recording
    assert recording is not None and recording.rank is not None, "a rank's run"
    handover_ns = handover_of(recording.segments)
    windows: list[RankWindow] = []
    left = MOST_STEPS
    for one in reversed(recording.segments):
        if one.arm not in (Arm.REAL, Arm.DEVICE) or one.delay is not None or left < len(one.steps):
            continue
        left -= len(one.steps)
        windows.append(_with_arrivals(one, handover_ns))
    return RankRun(recording.rank.place, run.run_id, run.status, (), tuple(reversed(windows)), None)


def _with_arrivals(segment: Segment, handover_ns: int | None) -> RankWindow:
    """A window, in which a batch that was ready is not waited for while it is handed over."""
    window, first = window_of(segment, joint=False), max(1, segment.num_warmup)
    values = window_quantities(segment, handover_ns)
    steps = window.steps.copy()
    if values is not None:
        asked = np.maximum(steps[first:, RANK_STEP["called_ns"]], steps[first - 1 : -1, RANK_STEP["done_ns"]])
        steps[first:, RANK_STEP["returned_ns"]] = asked + np.rint(values["stall"] * 1e9).astype(np.int64)
    return replace(window, steps=steps, first_batch=segment.first_batch)
