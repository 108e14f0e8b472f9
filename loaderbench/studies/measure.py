"""Cases in, stored records out: the one way in which every command measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loaderbench.analysis.record import make_record
from loaderbench.cases.case import Case
from loaderbench.interrupts import interrupts_held
from loaderbench.machine import environment
from loaderbench.recording.store import RunFolder, Store
from loaderbench.recording.types import Run
from loaderbench.running.supervisor import supervise

SAME_MACHINE = ("cpu_model", "cpus_usable", "gpus", "packages", "python")
"""Facts of the environment in which a run must agree for a resumed study to take it."""

Record = dict[str, Any]
OnMessage = Callable[[Case, str, Any], None]


def measure_case(
    case: Case, store: Store, on_message: OnMessage, on_record: Callable[[Record], None] = lambda record: None
) -> Record:
    """Run one case, analyse it, store it. A failure is in the record; an interruption is stored and goes on up.

    `on_record` is called once the record is stored; an interruption that comes meanwhile waits until it returns.

    Raises:
        ConfigError, CaseFailed: the results folder cannot be written.
        KeyboardInterrupt, SystemExit: the user or the system ends the program.
    """
    folder = store.open_run(case)
    try:
        run = supervise(case, folder, lambda kind, payload: on_message(case, kind, payload))
    except (KeyboardInterrupt, SystemExit):
        with interrupts_held():
            folder.write_record(_interrupted(folder, case))
        raise
    with interrupts_held():  # it is measured: that must not be lost
        if run.recording is not None:
            folder.write_recording(run.recording, run.series)
        record = folder.write_record(make_record(folder.run_id, run))
        on_record(record)
    return record


def finished_records(store: Store, cases: Sequence[Case]) -> dict[str, Record]:
    """Of the cases those that the store holds a finished run of, made with this machine and these packages:
    key → its newest record."""
    wanted, here = {case.key for case in cases}, environment()
    found = {}
    for one in store.runs():
        record = one.record
        if record is None or record["status"] != "ok":
            continue
        key = Case.from_json(record["case"]).key
        if key in wanted and all(record["environment"].get(name) == here[name] for name in SAME_MACHINE):
            found[key] = record
    return found


def _interrupted(folder: RunFolder, case: Case) -> Record:
    failure = ("Interrupted", "ended by the user or the system before it was measured")
    run = Run(case, "interrupted", folder.started_at, 0.0, None, [], [], {}, failure)
    return make_record(folder.run_id, run)
