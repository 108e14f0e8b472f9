"""`run --verify`: runs the advice that can be run, and compares the predictions with the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case, Change
from loaderbench.interrupts import interrupts_held
from loaderbench.recording.facts import Run, Trial
from loaderbench.recording.record import Advice, RunRecord
from loaderbench.recording.store import RunFolder, Store
from loaderbench.running.cache import RESIDENT
from loaderbench.running.jobs.table import MEASURE, MeasureRequest
from loaderbench.running.supervisor import JobFailed, KeptChild
from loaderbench.studies.measure import quiet, stored
from loaderbench.temporary import temporary_folder

ROUNDS = 2
"""How often base and changes take turns, so that other load of the machine affects all."""
SECONDS = 4.0
"""Most seconds of measuring in one turn."""


def to_verify(record: RunRecord) -> list[Advice]:
    """The record's advice that can be run and has a prediction; none of a run that did not come to its end."""
    advice = record.verdict.advice if record.verdict is not None and record.status == "ok" else ()
    return [one for one in advice if one.change is not None and one.predicted_speedup is not None]


def verify_record(
    record: RunRecord,
    store: Store,
    say: Callable[[str], None],
    on_record: Callable[[RunRecord], None] = lambda record: None,
    on_failure: Callable[[str], None] = lambda message: None,
) -> RunRecord:
    """Run the record's advice, store its turns with the run, and store the record again with the measured gains.

    Each piece of advice gets `measured_speedup`, or in `not_verified` the reason why not. `say` gets a line before each
    turn, `on_record` the record after each, `on_failure` why a turn failed. Each turn is stored at once: an
    interruption keeps the finished turns.

    Raises:
        ConfigError: the run's facts cannot be read.
        CaseFailed: the record cannot be written.
    """
    advice = to_verify(record)
    if not advice:
        return record
    folder = RunFolder(record.run_id, store.root / record.run_id, record.started_at)
    run = store.load_run(record.run_id)
    if _cache_state_gone(record):
        run.not_verified = "cache_state_gone"
        return stored(folder, run)
    verified = record

    def keep() -> None:
        nonlocal verified
        with interrupts_held():
            verified = stored(folder, run)
            on_record(verified)

    run_advice(run, [one.change for one in advice if one.change is not None], say, keep, on_failure)
    return verified


def _cache_state_gone(record: RunRecord) -> bool:
    """Whether the base cannot be run again in the same cache state."""
    storage = record.storage
    if storage is None or storage.cache_state != "as-is":
        return False
    before = storage.residency_fraction.before
    return before is None or before < RESIDENT


def trial_cases(base: Case, changes: Sequence[Change]) -> list[tuple[Change, Case]]:
    """The case itself and each change of it, shortened to turns of the arm `real`."""
    num_turns = ROUNDS * (1 + len(changes))
    most = base.effort.max_bytes
    short = base.changed(
        arms=(Arm.REAL,), duration_s=SECONDS, steps=None, warmup=None, ci_target=0.01, repeat=0, kernels=False,
        max_bytes=None if most is None else most // num_turns,
    )  # fmt: skip
    return [({}, short), *((change, short.changed(**change)) for change in changes)]


def run_advice(
    run: Run,
    changes: Sequence[Change],
    say: Callable[[str], None],
    keep: Callable[[], None] = lambda: None,
    on_failure: Callable[[str], None] = lambda message: None,
) -> None:
    """Base and changed cases in turn, ROUNDS times, in one kept process. Adds a trial to the run for each, then calls
    `keep`. A turn that this machine lacks something for is no failure."""
    cases = trial_cases(run.case, changes)
    run.trials.clear()
    failed: set[int] = set()
    with (
        temporary_folder() as folder,
        KeptChild(folder / "worker.log") as kept,
    ):
        for turn in range(ROUNDS):
            for number, (change, case) in enumerate(cases):
                if number in failed or 0 in failed:
                    continue
                say(f"verifying, turn {turn + 1} of {ROUNDS}: {case.title}")
                try:
                    # Base and changes run in one process, even if a change's decoder would have a package prefix.
                    recording = kept.child(run.case.feed.decoder).ask(MEASURE, MeasureRequest(case), quiet)
                    run.trials.append(Trial(change, case, turn, recording))
                except JobFailed as error:
                    run.trials.append(Trial(change, case, turn, None, error.failure))
                    failed.add(number)
                    if error.status == "failed":
                        on_failure(error.failure.message)
                    kept.end()
                keep()
