"""`run` and `sweep` under a launcher: each rank measures its share beside the others, and rank 0 keeps the study."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench import plain
from loaderbench.analysis.ranks import ranks_of
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.devices.select import of_local_rank
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.machine import environment
from loaderbench.recording.facts import SPAN, STEP, RankRecording, Run, Segment
from loaderbench.recording.ranks import RankedCase, RankEnd, RankRun, Ranks, RanksFacts, RankWindow
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store, StudyFolder
from loaderbench.recording.studies import StudyRecord
from loaderbench.running.meeting import Meeting, RankGone
from loaderbench.running.peers import PeerGone
from loaderbench.studies.kept import record_in
from loaderbench.studies.measure import OnMessage, finished_records, measure_case

PREP_STAGES = ("decode_ns", "augment_ns", "collate_ns")
MOST_STEPS = 20_000
"""Of a window, that the study keeps."""
TABLE = "json"
"""Name of the array that holds the JSON of a part on its way."""


def cases_of_rank(cases: Sequence[Case], meeting: Meeting, *, device: str) -> list[Case]:
    """The cases as this rank runs them: its share of the files, its device. `device`: as it was asked for.

    Each repeat moves the shares on by one rank, so that slow files move and slow ranks stay.
    """
    place = meeting.place
    return [
        case.changed(
            shard=f"{(place.rank + case.effort.repeat) % place.ranks}/{place.ranks}",
            device=of_local_rank(case.step.device, device, place.local_rank),
        )
        for case in cases
    ]


def check_same(cases: Sequence[Case], meeting: Meeting) -> None:
    """Raises ConfigError where a rank was asked for something else. The folder and the device may differ."""
    apart: Any = {"shard": None, "dataset": "", "dataset_name": "", "resolution": None, "device": ""}
    alike = [case.changed(**apart).key for case in cases]
    digest = hashlib.sha256(json.dumps(alike).encode()).hexdigest().encode()
    for number, told in enumerate(meeting.gather("asked", digest)):
        if told != digest:
            raise ConfigError(f"rank {number} has other options than rank {meeting.rank}: give all ranks the same")


class RanksStudy:
    """The cases of a launch as they come in, on one rank."""

    def __init__(
        self, cases: Sequence[Case], store: Store, meeting: Meeting, *, resume: bool = False, tag: str | None = None
    ) -> None:
        store.check_tag(tag)
        self.cases, self.store, self._tag, self._meeting = list(cases), store, tag, meeting
        finished = finished_records(store, cases) if resume else {}
        mine = json.dumps([case.key in finished for case in cases]).encode()
        of_all = [json.loads(told) for told in meeting.gather("finished", mine)]
        self._taken = {
            number: finished[case.key] for number, case in enumerate(cases) if all(told[number] for told in of_all)
        }
        """Finished runs of `--resume`, by the case's number, where every rank has one."""
        names = list(dict.fromkeys(case.feed.loader for case in cases))
        self._folder = store.new_study("ranks", [f"{meeting.ranks}-ranks", *names])
        self._facts = RanksFacts(environment(), meeting.ranks, meeting.place.launcher, len(cases))
        self.records: list[RunRecord] = []
        """Of this rank."""

    def measure(self, on_message: OnMessage, on_record: Callable[[RunRecord], None]) -> None:
        """Run every case beside the other ranks. Rank 0 stores the study after each.

        Raises:
            RankGone, PeerGone: another rank ended the launch.
            LoaderbenchError, KeyboardInterrupt, SystemExit: this one does.
        """
        for number, case in enumerate(self.cases):
            record = self._taken.get(number)
            if record is None:
                self._meeting.doing(f"starting {case.title}")
                record = measure_case(
                    case, self.store, on_message, tag=self._tag, ranked=self._meeting, seat=self._meeting.seat(number)
                )
            if record.status != "ok":
                failure = record.failure
                message = "unknown" if failure is None else failure.message
                raise PeerGone(message) if failure and failure.kind == PeerGone.__name__ else CaseFailed(message)
            self._meeting.doing("sending its measurements")
            part = part_of(self.store.load_run(str(self.store.root / record.run_id)))
            parts = [part_from(data) for data in self._meeting.gather(f"part{number}", bytes_of(part))]
            self._facts = replace(self._facts, cases=(*self._facts.cases, RankedCase(case, tuple(parts))))
            if self._meeting.rank == 0:
                self.keep()
            self.records.append(record)
            on_record(record)

    @property
    def num_taken(self) -> int:
        """Cases that are taken from the store."""
        return len(self._taken)

    @property
    def begun(self) -> bool:
        """Whether a case is finished."""
        return bool(self._facts.cases)

    @property
    def num_finished(self) -> int:
        return len(self._facts.cases)

    def ended(self, end: RankEnd | None) -> None:
        """The launch ended early."""
        self._facts = replace(self._facts, ended=end)

    def findings(self) -> Ranks:
        """What is known so far."""
        return ranks_of(self._facts, self._found_records())

    def study(self) -> StudyRecord:
        return study_of(self._folder, self._facts, self._found_records())

    def keep(self) -> StudyRecord:
        """Store it. Raises CaseFailed where it cannot be written."""
        study = self.study()
        self._folder.write(study)
        return study

    def _found_records(self) -> Mapping[str, RunRecord]:
        return records_of(self.store, [part for case in self._facts.cases for part in case.parts])


# -- one rank's part -------------------------------------------------------------------------------------


def records_of(store: Store, parts: Sequence[RankRun]) -> Mapping[str, RunRecord]:
    """Run id → record, of the runs that are in this store: those of other nodes may be elsewhere."""
    found = {}
    for part in parts:
        stored = store.run(part.run_id)
        if stored is not None and stored.record is not None:
            found[part.run_id] = stored.record
    return found


def study_of(folder: StudyFolder, facts: RanksFacts, records: Mapping[str, RunRecord]) -> StudyRecord:
    """The study of a launch, as it is stored. `records`: of the ranks' runs, as far as this store has them."""
    return record_in(folder, facts, ranks_of(facts, records), tuple(records))


def part_of(run: Run) -> RankRun:
    """What the study keeps of a rank's run."""
    recording = run.recording
    assert recording is not None and recording.rank is not None, "a rank's run that ended well"
    rank: RankRecording = recording.rank
    windows = [
        *(window_of(one, joint=False) for one in recording.segments if one.arm in (Arm.REAL, Arm.DEVICE)),
        *(window_of(one, joint=True) for one in rank.joint),
    ]
    return RankRun(rank.place, run.run_id, run.status, rank.clocks, tuple(windows), recording.facts.storage.num_images)


def window_of(segment: Segment, *, joint: bool) -> RankWindow:
    """What the study keeps of a window."""
    steps = segment.steps[:MOST_STEPS]
    named = ("called_ns", "returned_ns", "issued_ns", "done_ns", "num_samples", "encoded_bytes")
    columns = [steps[:, STEP[name]] for name in named]
    unknown = np.full(len(steps), -1, dtype=np.int64)
    spans = segment.spans
    if spans is None or len(spans) < len(steps):
        columns += [unknown] * 3
    else:
        spans = spans[: len(steps)]
        prep: NDArray[np.int64] = sum((spans[:, SPAN[name]] for name in PREP_STAGES), np.zeros(len(steps), np.int64))
        columns += [spans[:, SPAN["read_ns"]], prep, spans[:, SPAN["runqueue_ns"]]]
    return RankWindow(segment.arm, joint, segment.round, segment.num_warmup, np.stack(columns, axis=1))


def bytes_of(part: RankRun) -> bytes:
    """A part on its way to the other ranks; nothing in it is code."""
    arrays: plain.Arrays = {}
    text = json.dumps(plain.to_json(part, None, arrays)).encode()
    buffer = io.BytesIO()
    tables = {TABLE: np.frombuffer(text, dtype=np.uint8), **arrays}
    np.savez_compressed(buffer, **tables)  # type: ignore[arg-type]
    return buffer.getvalue()


def part_from(data: bytes) -> RankRun:
    """The inverse of `bytes_of`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as tables:
        arrays = {name: tables[name] for name in tables.files}
    return plain.from_json(RankRun, json.loads(bytes(arrays.pop(TABLE))), arrays)


__all__ = ["RankGone", "RanksStudy", "cases_of_rank", "check_same"]
