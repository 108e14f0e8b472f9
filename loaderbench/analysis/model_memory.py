"""The figures of `loaderbench model memory` and `loaderbench model fit`: pure functions of stored facts."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench.analysis.memory import MemoryLine, course_of, layers_of, line_holds, line_through, peak_bytes, peak_of
from loaderbench.analysis.reserved import reserved_bytes
from loaderbench.cases.case import Mode, Optimizer, Precision, Step
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import DeviceFacts, Failure
from loaderbench.recording.model_memory import (
    BatchMemory,
    BatchMemoryFacts,
    FitTrial,
    MemoryTrace,
    ModelFit,
    ModelFitFacts,
    ModelMemory,
    ModelMemoryFacts,
    PredictedPeak,
    TrialFacts,
    TrialOutcome,
)

SMALL_ERROR = 0.05
"""Of the measured peak: a prediction that misses it by more is a finding."""
NUM_CONFIRMATIONS = 2
"""How often the largest batch must fit, and the next one fail."""
KILLED = ("was killed by SIGKILL",)
"""In the message of a child that the kernel ended."""
NO_MEMORY = ("can't allocate memory", "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "bad_alloc")
"""In the messages of errors that mean lack of memory, besides those of the class OutOfMemory."""


# -- model memory ----------------------------------------------------------------------------------------


def memory_of(facts: ModelMemoryFacts) -> ModelMemory:
    """Predicted and measured memory of each batch size."""
    step = facts.step
    batches = tuple(_batch(one, step.mode, on_accelerator=facts.on_accelerator) for one in facts.batches)
    return ModelMemory(
        *of_model(step, facts.device),
        inputs=step.inputs,
        not_measured=facts.not_measured,
        batches=batches,
        caveats=tuple(
            Caveat("prediction_misses", {"batch_size": one.batch_size, "error": one.error_fraction})
            for one in batches
            if one.error_fraction is not None and abs(one.error_fraction) > SMALL_ERROR
        ),
        unchecked_on=_unchecked_on([one.trace for one in facts.batches if one.trace is not None]),
        interrupted=facts.interrupted,
    )


def _unchecked_on(traces: Sequence[MemoryTrace]) -> str | None:
    return next((trace.unchecked_on for trace in traces if trace.unchecked_on is not None), None)


def of_model(
    step: Step, device: DeviceFacts | None
) -> tuple[str, Mode, Precision, Optimizer | None, int | None, int, str]:
    """The fields of OfModel. `device`: None where nothing was measured."""
    optimizer = step.optimizer if step.mode == "train" else None
    name = step.device if device is None else device.name
    return step.model, step.mode, step.precision, optimizer, step.input_size, step.channels, name


def _batch(facts: BatchMemoryFacts, mode: str, *, on_accelerator: bool) -> BatchMemory:
    trace = facts.trace
    peak = None if trace is None else peak_of(trace)
    layers = () if trace is None else layers_of(trace)
    measured = None if facts.measured is None else facts.measured.peak_live_bytes
    return BatchMemory(
        batch_size=facts.batch_size,
        mode=mode,
        predicted=None if peak is None else peak.memory,
        measured=facts.measured,
        error_fraction=None if peak is None or not measured else peak.memory.peak_live_bytes / measured - 1,
        peak=None if peak is None else peak.place,
        outputs_bytes=layers[-1].outputs_bytes if layers else None,
        layers=layers,
        trace_s=None if trace is None else trace.seconds,
        trace_failure=facts.trace_failure,
        status=facts.status,
        failure=facts.failure,
        course=None if trace is None else course_of(trace),
        predicted_reserved_bytes=reserved_bytes(trace) if trace is not None and on_accelerator else None,
    )


# -- model fit -------------------------------------------------------------------------------------------


def outcome_of(trial: TrialFacts) -> TrialOutcome:
    """How a trial ended. A child that the kernel killed is `killed` only where its OOM killer was seen, or cannot be
    asked; everything that says nothing about memory is `unknown`."""
    failure = trial.failure
    if failure is None:
        return "fits"
    if failure.kind == "OutOfMemory" or any(text in failure.message for text in NO_MEMORY):
        return "out_of_memory"
    if any(text in failure.message for text in KILLED):
        return "unknown" if trial.oom_kills == 0 else "killed"
    return "unknown"


def fails_for_memory(outcome: TrialOutcome) -> bool:
    """Whether the trial shows that its batch does not fit."""
    return outcome in ("out_of_memory", "killed")


def bounds_of(trials: Sequence[TrialFacts]) -> tuple[int, int | None]:
    """(largest batch that fitted, smallest above it that failed), by most of the trials of each; 0 and None where there
    is none."""
    votes = _votes(trials)
    fitted = max((size for size, vote in votes.items() if vote > 0), default=0)
    return fitted, min((size for size, vote in votes.items() if vote < 0 and size > fitted), default=None)


def undecided(trials: Sequence[TrialFacts]) -> list[int]:
    """Batches that fitted as often as they failed, in order."""
    return sorted(size for size, vote in _votes(trials).items() if not vote)


def _votes(trials: Sequence[TrialFacts]) -> dict[int, int]:
    """Batch → trials that fitted less those that failed for memory; without batches of which neither is known."""
    sizes = {one.batch_size for one in trials if outcome_of(one) != "unknown"}
    return {size: counted(trials, size, fits=True) - counted(trials, size, fits=False) for size in sizes}


def counted(trials: Sequence[TrialFacts], batch_size: int, *, fits: bool) -> int:
    """Trials of this batch that fitted, or that failed for memory."""
    outcomes = [outcome_of(one) for one in trials if one.batch_size == batch_size]
    return sum((one == "fits") if fits else fails_for_memory(one) for one in outcomes)


def fit_of(facts: ModelFitFacts) -> ModelFit:
    """The largest batch, by the prediction and by the trials."""
    step, line = facts.step, line_through(facts.traces)
    exact = {trace.batch_size: peak_bytes(trace) for trace in facts.traces}
    predicted_batch = None if line is None else line.largest_batch(facts.memory_bytes, facts.most)
    largest, confirmed = _largest(facts, predicted_batch)
    around = () if largest is None else range(max(largest - 1, 1), largest + 3)
    return ModelFit(
        *of_model(step, facts.device),
        inputs=step.inputs,
        memory_bytes=facts.memory_bytes,
        memory_source=facts.memory_source,
        how=facts.how,
        largest_batch=largest,
        confirmed=confirmed,
        at_most=largest == facts.most,
        unchecked_on=_unchecked_on(facts.traces),
        predicted_batch=predicted_batch,
        needs_bytes=None if largest is None else _predicted(line, exact, largest + 1),
        predicted=tuple(
            PredictedPeak(size, known) for size in around if (known := _predicted(line, exact, size)) is not None
        ),
        line_holds=_line_holds(line, facts.traces),
        num_search_trials=sum(largest is None or one.batch_size not in (largest, largest + 1) for one in facts.trials),
        not_monotone=_not_monotone(facts.trials),
        trials=tuple(_trial(one, line, exact) for one in facts.trials),
        not_measured=facts.not_measured,
        trace_failure=facts.trace_failure,
        interrupted=facts.interrupted,
    )


def _largest(facts: ModelFitFacts, predicted: int | None) -> tuple[int | None, bool]:
    """(largest batch, whether it is confirmed). Without trials it is the predicted one."""
    if facts.not_measured is not None:
        return predicted, False
    fitted, failed = bounds_of(facts.trials)
    if fitted == facts.most:
        return fitted, counted(facts.trials, fitted, fits=True) >= NUM_CONFIRMATIONS
    if failed != fitted + 1:
        return (fitted or None), False
    below = fitted == 0 or counted(facts.trials, fitted, fits=True) >= NUM_CONFIRMATIONS
    return fitted, below and counted(facts.trials, failed, fits=False) >= NUM_CONFIRMATIONS


def _predicted(line: MemoryLine | None, exact: dict[int, int], batch_size: int) -> int | None:
    if batch_size in exact:
        return exact[batch_size]
    return None if line is None else line.peak_bytes(batch_size)


def _line_holds(line: MemoryLine | None, traces: Sequence[MemoryTrace]) -> bool | None:
    if line is None:
        return False if len(traces) >= NUM_CONFIRMATIONS else None
    return all(line_holds(line, trace) for trace in traces[2:]) if len(traces) > 2 else None


def _not_monotone(trials: Sequence[TrialFacts]) -> bool:
    fitted = [one.batch_size for one in trials if outcome_of(one) == "fits"]
    return any(fails_for_memory(outcome_of(one)) and one.batch_size <= max(fitted, default=0) for one in trials)


def _trial(facts: TrialFacts, line: MemoryLine | None, exact: dict[int, int]) -> FitTrial:
    failure: Failure | None = facts.failure
    return FitTrial(
        batch_size=facts.batch_size,
        outcome=outcome_of(facts),
        peak_live_bytes=facts.peak_live_bytes,
        predicted_bytes=_predicted(line, exact, facts.batch_size),
        how=facts.how,
        why=None if failure is None else failure.message,
        wall_s=facts.wall_s,
        peak_data_bytes=facts.peak_data_bytes,
    )
