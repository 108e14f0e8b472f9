"""`loaderbench model memory`: what a step needs in memory, predicted without the device and measured on it.

docs/model-memory.md defines every figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loaderbench.analysis.memory import line_holds, line_through, peak_bytes
from loaderbench.cases.case import Step
from loaderbench.devices.select import traits_of
from loaderbench.errors import BatchTooSmall, ConfigError, LoaderbenchError
from loaderbench.machine import environment
from loaderbench.recording.facts import DeviceFacts, Failure
from loaderbench.recording.model_memory import BatchMemoryFacts, MemoryTrace, ModelMemoryFacts
from loaderbench.recording.store import LOG_FILE, Store
from loaderbench.running.jobs.table import MEASURE_MEMORY, TRACE_MEMORY, MeasureMemoryRequest, TraceRequest
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.kept import KeptStudy, Say, told
from loaderbench.studies.measure import quiet
from loaderbench.studies.memory_plan import MemoryPlan
from loaderbench.temporary import temporary_folder

NUM_STEPS = 3
"""Steps of a measurement: momentum and the optimizer's state are there from the second on; the last one counts."""
LINE_BATCHES = (2, 4)
"""Batch sizes of the traces through which the line goes. A batch of 1 is no point of it: some layouts and kernels
differ there."""
CHECK_BATCH = 3
"""Batch size of the trace that checks the line."""


def predict_traces(
    child: Child, step: Step, batch_sizes: Sequence[int], seed: int = 0, *, probed: bool = True
) -> tuple[MemoryTrace, ...]:
    """The step's traces at these batch sizes, from the child process, or kept from an earlier time.

    `probed`: as in trace_step; not for traces of a line.

    Raises:
        JobFailed: as the job: the model is unknown, does not take the images, or cannot be traced.
    """
    steps = tuple(replace(step, batch_size=size) for size in batch_sizes)
    return child.ask(TRACE_MEMORY, TraceRequest(steps, seed, on_accelerator(step), probed), quiet)


def predict_peaks(child: Child, step: Step, batch_sizes: Sequence[int], seed: int = 0) -> dict[int, int]:
    """Batch size → predicted peak of the step's live memory in bytes. No device is used.

    By the line through two traces, where a third confirms it; a smaller batch, and a model without such a line, by its
    own trace.
    `child`: any measuring process; it imports torch at the first job. Raises JobFailed as predict_traces.
    """
    above = [size for size in batch_sizes if size > LINE_BATCHES[-1]]
    traces = predict_traces(child, step, (*LINE_BATCHES, CHECK_BATCH), seed, probed=False) if above else ()
    line = line_through(traces)
    if line is not None and not line_holds(line, traces[-1]):
        line = None
    exact = [size for size in batch_sizes if line is None or size not in above]
    peaks = {trace.batch_size: peak_bytes(trace) for trace in predict_traces(child, step, exact, seed)}
    return peaks if line is None else peaks | {size: line.peak_bytes(size) for size in above}


def on_accelerator(step: Step) -> bool:
    """Whether the step's memory is an accelerator's own, or that of one that is emulated."""
    return not traits_of(step.device).on_host_cpus


class MemoryStudy(KeptStudy):
    """All batch sizes of one model. What is finished is kept and stored, however `run` ends."""

    def __init__(self, plan: MemoryPlan, store: Store) -> None:
        self._plan, self._step = plan, plan.step
        super().__init__(store.new_study("model_memory", [plan.step.model, plan.step.mode]))
        self._environment = environment()
        self._device: DeviceFacts | None = None
        self.batches: list[BatchMemoryFacts] = []
        self._interrupted = True

    def run(self, say: Say) -> None:
        """Predict every batch, then measure each in a process of its own.

        Raises:
            ConfigError: the model is unknown, or takes none of the batches.
            CaseFailed: the results cannot be written.
        """
        self._predict(say)
        self._folder.write(self.study())
        if self._plan.not_measured is None:
            self._measure_all(say)
        self._interrupted = False
        self._folder.write(self.study())

    def _measure_all(self, say: Say) -> None:
        for number, one in enumerate(self.batches):
            self.batches[number] = replace(one, status="interrupted")
        for number in range(len(self.batches)):
            if self.batches[number].trace_failure is None or not self._is_wrong(number):
                self._measure(number, say)
            self._folder.write(self.study())

    def _is_wrong(self, number: int) -> bool:
        """Whether the model does not take this batch, so that there is nothing to measure."""
        failure = self.batches[number].trace_failure
        wrong = failure is not None and failure.kind in (ConfigError.__name__, BatchTooSmall.__name__)
        if wrong:
            self.batches[number] = replace(self.batches[number], status="failed", failure=failure)
        return wrong

    def _predict(self, say: Say) -> None:
        """Nothing is stored before a batch is known to be possible."""
        errors: list[LoaderbenchError] = []
        with temporary_folder() as folder, Child(folder / LOG_FILE) as child:
            for size in self._plan.batch_sizes:
                say(f"batch {size}: predicting", False)
                trace: MemoryTrace | None = None
                failure: Failure | None = None
                try:
                    (trace,) = predict_traces(child, self._step, [size], self._plan.seed)
                except JobFailed as error:
                    failure = error.failure
                    errors.append(error.error)
                self.batches.append(BatchMemoryFacts(size, trace, failure, "skipped"))
        if len(errors) == len(self.batches) and isinstance(errors[0], ConfigError):
            raise errors[0]

    def _measure(self, number: int, say: Say) -> None:
        facts = self.batches[number]
        step = replace(self._step, batch_size=facts.batch_size)
        where = f"[{number + 1}/{len(self.batches)}] batch {facts.batch_size}"

        say(f"{where}: measuring {NUM_STEPS} steps", True)
        try:
            with Child(self._log) as child:
                request = MeasureMemoryRequest(step, self._plan.seed, NUM_STEPS)
                done = child.ask(MEASURE_MEMORY, request, told(say, where))
            self._device = done.device
            self.batches[number] = replace(facts, status="ok", measured=done.memory)
        except JobFailed as error:
            self.batches[number] = replace(facts, status=error.status, failure=error.failure)
            say(f"{where}: {error.failure.message}", True)

    @property
    def begun(self) -> bool:
        return bool(self.batches)

    @property
    def kept(self) -> str:
        done = sum(one.status not in ("interrupted", "skipped") for one in self.batches)
        return f"{done} of {len(self._plan.batch_sizes)} batch sizes were measured and are kept"

    @property
    def failed(self) -> bool:
        """Whether a batch failed, or could not be predicted."""
        return any(one.status == "failed" or one.trace is None for one in self.batches)

    def facts(self) -> ModelMemoryFacts:
        """What is known so far."""
        return ModelMemoryFacts(
            step=self._step,
            seed=self._plan.seed,
            on_accelerator=on_accelerator(self._step),
            environment=self._environment,
            device=self._device,
            not_measured=self._plan.not_measured,
            batches=tuple(self.batches),
            interrupted=self._interrupted,
        )
