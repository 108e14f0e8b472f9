"""Cases in, stored records out: every command measures through this module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from loaderbench.analysis.decided import look
from loaderbench.analysis.record import analyze
from loaderbench.cases.case import Case
from loaderbench.errors import CaseFailed
from loaderbench.interrupts import interrupts_held
from loaderbench.machine import environment
from loaderbench.recording.facts import Environment, Failure, Run
from loaderbench.recording.machines import same_setup
from loaderbench.recording.progress import Message
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import NotStored, RunFolder, Store
from loaderbench.reporting.live import Progress, cell_of_notebook
from loaderbench.reporting.words import worded
from loaderbench.running.jobs.table import MEASURE, MeasureRequest
from loaderbench.running.peers import Seat
from loaderbench.running.process import Ahead
from loaderbench.running.supervisor import Child, JobFailed, Kept, Ranked, supervise

if TYPE_CHECKING:
    from loaderbench.loaders.base import Slowdown

OnMessage = Callable[[Case, Message], None]


def judged(run: Run) -> RunRecord:
    """The run's record by today's rules, in words."""
    return worded(analyze(run))


def quiet(message: Message) -> None:
    """Ignores a progress message."""


def unwatched(case: Case, message: Message) -> None:
    """Ignores a case's progress message."""


@contextmanager
def shown(on_message: OnMessage, num_cases: int) -> Iterator[tuple[OnMessage, Callable[[RunRecord], None]]]:
    """What to call with the messages and records of some cases: `on_message`; in a notebook where none was given, a
    view of the progress below the cell."""
    cell = cell_of_notebook() if on_message is unwatched else None
    if cell is None:
        yield on_message, lambda record: None
        return
    with Progress(num_cases, quiet=False, cell=cell) as view:
        yield view.message, view.finished


class Spilled(CaseFailed):
    """A run does not go into the store; the message says where it is."""

    def __init__(self, message: str, record: RunRecord) -> None:
        super().__init__(message)
        self.record = record


def measure_case(
    case: Case,
    store: Store,
    on_message: OnMessage,
    on_record: Callable[[RunRecord], None] = lambda record: None,
    *,
    on_interrupted: Callable[[RunRecord], None] = lambda record: None,
    tag: str | None = None,
    ranked: Ranked | None = None,
    seat: Seat | None = None,
    ahead: Ahead | None = None,
) -> RunRecord:
    """Run one case, analyse it, store it. A failure is in the record; an interruption is stored and raised again.

    `on_record` is called once the record is stored, here or elsewhere; an interruption during the call waits until it
    returns, and one behind the measurement's end until it is called. `on_interrupted` gets that of an interrupted one,
    with what its finished windows say. `tag`: a name that the user gave the run. `ranked`, `seat`: of one of several
    ranks. `ahead`: a process to take, where it is still there.

    Raises:
        ConfigError: the results folder cannot be written.
        Spilled: it could be no more once the case was measured.
        KeyboardInterrupt, SystemExit: the user or the system ends the program.
    """
    folder, kept, begun = store.open_run(case), Kept(), time.perf_counter()
    try:
        run = supervise(
            case, folder, lambda message: on_message(case, message), look, kept=kept, ranked=ranked,
            seat=seat, ahead=ahead,
        )  # fmt: skip
    except (KeyboardInterrupt, SystemExit) as stop:
        with interrupts_held():
            ended = _interrupted(folder, case, time.perf_counter() - begun, kept)
            on_ended = on_record if ended.status == "ok" else on_interrupted
            try:
                on_ended(stored(folder, replace(ended, tag=tag)))
            except Spilled as error:  # a full disk: it is not what ends the program
                on_ended(error.record)
                stop.add_note(str(error))
        raise
    with interrupts_held():  # the finished measurement must not be lost
        try:
            record = stored(folder, replace(run, tag=tag))
        except Spilled as error:
            on_record(error.record)
            raise
        on_record(record)
    return record


def measure_in(child: Child, case: Case, store: Store, *, slowdown: Slowdown | None = None) -> RunRecord:
    """Measure a case in a kept process, without samplers, and store it. A failure is stored and raised again.

    `slowdown`: work of known cost to build in. The record does not mention it.

    Raises:
        JobFailed: it could not be measured.
        ConfigError, Spilled: the results folder cannot be written.
    """
    folder, begun = store.open_run(case), time.perf_counter()
    run = Run(
        run_id=folder.run_id,
        case=case,
        status="ok",
        started_at=folder.started_at,
        wall_s=0.0,
        environment=environment(),
        sampling_cpu_s=0.0,
    )
    try:
        run.recording = child.ask(MEASURE, MeasureRequest(case, slowdown), quiet)
    except JobFailed as error:
        run.status, run.failure = error.status, error.failure
        run.wall_s = time.perf_counter() - begun
        with interrupts_held():
            stored(folder, run)
        raise
    except (KeyboardInterrupt, SystemExit):
        with interrupts_held():
            stored(folder, _interrupted(folder, case, time.perf_counter() - begun))
        raise
    run.wall_s = time.perf_counter() - begun
    with interrupts_held():
        return stored(folder, run)


def stored(folder: RunFolder, run: Run) -> RunRecord:
    """Store a run and its record.

    Raises:
        Spilled: they cannot be written there; another place was taken.
    """
    try:
        return _written(folder, run)
    except NotStored as error:
        said = folder.spill(run, lambda place: _written(place, run))
        raise Spilled(f"{error}; {said}", judged(run)) from error


def _written(folder: RunFolder, run: Run) -> RunRecord:
    return folder.write_record(judged(folder.write_run(run)))


def finished_records(store: Store, cases: Sequence[Case]) -> dict[str, RunRecord]:
    """Key → newest record, for the cases of which the store holds a finished run made on this machine with these
    packages."""
    wanted, here = {case.key for case in cases}, environment()
    found = {}
    for run in store.runs_where(lambda line: line.status == "ok" and line.case.key in wanted):
        if run.record is not None and same_machine(run.record.environment, here):
            found[run.record.case.key] = run.record
    return found


def same_machine(there: Environment | None, here: Environment) -> bool:
    """Whether both are one machine with the same packages, so that a study may take over a run."""
    return same_setup(there, here)


def _interrupted(folder: RunFolder, case: Case, wall_s: float, kept: Kept | None = None) -> Run:
    """`kept`: what is there of it; a measurement that was done is no part of one."""
    recording = None if kept is None else kept.recording
    is_done = kept is not None and kept.answer is not None
    when = "before it was measured" if recording is None else f"{wall_s:.0f} s after its start"
    return Run(
        run_id=folder.run_id,
        case=case,
        status="ok" if is_done else "interrupted",
        started_at=folder.started_at,
        wall_s=wall_s,
        environment=None if recording is None else environment(),
        recording=recording,
        series=[] if kept is None else kept.series,
        caveats=[] if kept is None else kept.caveats,
        sampling_cpu_s=None if kept is None else kept.sampling_cpu_s,
        failure=None if is_done else Failure("Interrupted", f"ended by the user or the system {when}"),
    )
