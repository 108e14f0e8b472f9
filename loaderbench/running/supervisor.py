"""Runs one case in a child process, samples it from outside, and survives anything that happens to it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol

from loaderbench.cases.case import Case
from loaderbench.devices.select import nvml_ordinal
from loaderbench.errors import KINDS, CaseFailed, LoaderbenchError, UnavailableError
from loaderbench.images.listing import first_image
from loaderbench.interrupts import interrupts_held
from loaderbench.lacking import memory
from loaderbench.machine import environment
from loaderbench.prefixes import prefix_of
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import Failure, Recording, Run, Series, Status
from loaderbench.recording.progress import Measured, Message, Report, SoFar
from loaderbench.recording.store import RunFolder
from loaderbench.running.jobs.table import MEASURE, A, Answer, Job, Judge, MeasureRequest, Q, Request
from loaderbench.running.peers import Seat
from loaderbench.running.process import EARLY_LOG, GRACE_S, Ahead, Process, wait
from loaderbench.samplers.base import SamplerThread
from loaderbench.samplers.sources import samplers_for

HANG_S = 900.0
"""Seconds without a message after which the child counts as hung (a dead NFS server, a deadlock) and is ended."""
LOOK_S = 0.5
"""Between two looks at whether it was killed."""


class Child(Process):
    """A measuring process: takes jobs, answers with messages, and never outlives this object. A context manager."""

    def __init__(self, log_path: Path, prefix: Path | None = None, ahead: Ahead | None = None) -> None:
        """`prefix`: as in Process. `ahead`: a process to take over, if it is still there, instead of starting one."""
        super().__init__(prefix)
        self.log_path = log_path
        self._ahead = ahead
        self._has_loader = False
        """Of the last job: its memory depends on the number of workers too."""

    def _start(self) -> None:
        with self.log_path.open("ab") as log:
            if self._ahead is None or self._prefix is not None or not self._ahead.give_to(self, log):
                self._begin(log)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with interrupts_held():
            self._keep_early_words()
            super().__exit__(kind, error, trace)

    def _keep_early_words(self) -> None:
        """Move what a process that was taken over had printed by then into its log."""
        if self._temporary is None:
            return
        with suppress(OSError):  # there is none, or the log's storage is full
            early = self._temporary.path / EARLY_LOG
            words = early.read_bytes()
            early.unlink()
            with self.log_path.open("ab") as log:
                log.write(words)

    def ask(self, job: Job[Q, A], request: Q, on_message: Report, is_over: Callable[[], bool] | None = None) -> A:
        """Run one job, passing its progress messages to `on_message`. Returns its result. `is_over`: whether the
        process was killed and should be gone: it may wait in the kernel, for a storage that does not answer.

        Raises:
            JobFailed: the job raised an error, the child died, or there was no sign of life.
        """
        self.begin(job, request)
        until = time.monotonic() + HANG_S
        while True:
            if not self._has_told(until, is_over):
                raise JobFailed(no_sign_of_life(request))
            told = self.receive()
            if not (isinstance(told, SoFar) and told.signs):  # a thread of its own tells that, whatever hangs
                until = time.monotonic() + HANG_S
            if not isinstance(told, Answer):
                on_message(told)
            else:
                result: A = told.result
                return result

    def _has_told(self, until: float, is_over: Callable[[], bool] | None) -> bool:
        """Wait for a message, `until` then by time.monotonic; False where none comes. Raises JobFailed where the
        process was killed and stays."""
        if is_over is None:
            return self.pipe.poll(max(0.0, until - time.monotonic()))
        while not self.pipe.poll(LOOK_S):
            if is_over():
                self._stuck = True
                raise JobFailed(
                    Failure("CaseFailed", "the measuring process does not end because it waits for its storage")
                )
            if time.monotonic() > until:
                return False
        return True

    def begin(self, job: Job[Q, A], request: Q) -> None:
        """Give it a job. `receive` has the messages and the answer. Raises ProcessDied where the process is gone."""
        self._has_loader = getattr(request, "case", None) is not None
        try:
            self.pipe.send((job, request))
        except ConnectionError:
            raise self._died() from None

    def receive(self) -> Message | Answer:
        """The next message of the job, or its answer; waits for it. Raises JobFailed as `ask`."""
        try:
            told: Message | Answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise self._died() from None
        if isinstance(told, Answer) and told.failure is not None:
            raise JobFailed(told.failure)
        return told

    def _died(self) -> ProcessDied:
        wait(self.process, GRACE_S)
        self._keep_early_words()
        return ProcessDied(
            Failure("CaseFailed", _how_it_died(self.process.returncode, self.log_path, self._has_loader))
        )


class KeptChild:
    """A measuring process that does one job after another: importing torch takes seconds. A context manager.

    A new process is started where a job needs other packages than the last one, and after `end`.
    """

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._child: Child | None = None
        self._prefix: Path | None = None

    def __enter__(self) -> KeptChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.__exit__(kind, error, trace)

    def child(self, decoder: str | None) -> Child:
        """The process for a job with this decoder. Raises JobFailed where others may change the decoder's package."""
        prefix = prefix_of_decoder(decoder)
        if self._child is not None and prefix != self._prefix:
            self.end()
        if self._child is None:
            self._prefix = prefix
            self._child = Child(self._log_path, prefix).__enter__()
        return self._child

    def end(self) -> None:
        """End the process: a job failed, and the process may be gone with it."""
        self.__exit__(None, None, None)


class JobFailed(Exception):
    """What ended a job, as it is stored."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @property
    def error(self) -> LoaderbenchError:
        """The error that the job raised; a CaseFailed for errors that are not loaderbench's own."""
        return KINDS.get(self.failure.kind, CaseFailed)(self.failure.message)

    @property
    def status(self) -> Status:
        """`skipped` where the machine lacks what the job needs, else `failed`."""
        return "skipped" if isinstance(self.error, UnavailableError) else "failed"


class ProcessDied(JobFailed):
    """The measuring process ended in the middle of a job."""


def no_sign_of_life(request: Request) -> Failure:
    """What ended a job of which nothing was heard for HANG_S."""
    return Failure("CaseFailed", f"no sign of life for {HANG_S:.0f} s: does {request.waits_for} hang?")


def prefix_of_decoder(decoder: str | None) -> Path | None:
    """The folder of packages that a process with this decoder needs. Raises JobFailed where others may change it."""
    try:
        return prefix_of(decoder)
    except UnavailableError as error:
        raise JobFailed(Failure(type(error).__name__, str(error))) from error


class Ranked(Protocol):
    """What goes on around a case that several ranks measure together (running/meeting.py)."""

    def hears(self, message: Message) -> None: ...
    def watching(self, process: subprocess.Popen[bytes]) -> AbstractContextManager[None]: ...
    def cause_of(self, failure: Failure) -> Failure: ...
    def is_over(self) -> bool: ...


class Kept:
    """What is kept of a run that does not come to its end: the windows that the measuring process has handed over, or
    its whole answer, and what was sampled beside it."""

    def __init__(self) -> None:
        self._told: list[Measured] = []
        self.answer: Recording | None = None
        """The measurement is done: nothing but the process's end is waited for."""
        self.series: list[Series] = []
        self.caveats: list[Caveat] = []
        self.sampling_cpu_s: float | None = None

    def hearing(self, on_message: Report) -> Report:
        """Keeps windows, and passes on all other messages."""

        def heard(message: Message) -> None:
            if isinstance(message, Measured):
                self._told.append(message)
            else:
                on_message(message)

        return heard

    @property
    def recording(self) -> Recording | None:
        """None before the first window."""
        if self.answer is not None or not self._told:
            return self.answer
        segments = [one for told in self._told for one in told.segments]
        facts = [told.facts for told in self._told if told.facts is not None][-1]  # the first message has some
        rounds = replace(facts.rounds, num_rounds=1 + segments[-1].round)
        return Recording(segments, replace(facts, rounds=rounds), [*self._told[-1].caveats])


def supervise(
    case: Case,
    folder: RunFolder,
    on_message: Report,
    judge: Judge | None = None,
    *,
    kept: Kept,
    ranked: Ranked | None = None,
    seat: Seat | None = None,
    ahead: Ahead | None = None,
) -> Run:
    """Run `case`, writing the child's output to the folder's worker.log. `judge`: for the verdict so far; `kept`: gets
    the windows as they are done; `ranked` and `seat`: of one of several ranks; `ahead`: a process that may be started.

    Never raises for anything that happens to the child: the Run says how it ended, and has the windows that were done.
    KeyboardInterrupt and SystemExit in this process end the child and its workers, and propagate.
    """
    started_at, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    failed: JobFailed | None = None
    with ExitStack() as stack:
        try:
            child = stack.enter_context(Child(folder.log_path, prefix_of_decoder(case.feed.decoder), ahead))
            if ranked is not None:
                stack.enter_context(ranked.watching(child.process))
                on_message = _heard_by(ranked, on_message)
            on_message = kept.hearing(on_message)
            samplers, kept.caveats = samplers_for(
                first_image(case.subject.dataset) or case.subject.dataset,
                child.process.pid,
                nvml_ordinal(case.step.device),
            )
            sampling = SamplerThread(samplers)
            try:
                sampling.start()
                request = MeasureRequest(case, started_ns=child.started_ns, judge=judge, seat=seat)
                kept.answer = child.ask(MEASURE, request, on_message, None if ranked is None else ranked.is_over)
            finally:
                with interrupts_held():  # a run that is done is not done without them
                    kept.series, sampler_caveats, sampling_cpu_ns = sampling.stop()
                kept.caveats = [*kept.caveats, *sampler_caveats]
                kept.sampling_cpu_s = None if sampling_cpu_ns is None else sampling_cpu_ns / 1e9
        except JobFailed as error:
            failed = error if ranked is None else JobFailed(ranked.cause_of(error.failure))
    return Run(
        run_id=folder.run_id,
        case=case,
        status="ok" if failed is None else failed.status,
        started_at=started_at,
        wall_s=time.perf_counter() - begun,
        environment=environment(),
        recording=kept.recording,
        series=kept.series,
        caveats=kept.caveats,
        failure=None if failed is None else failed.failure,
        sampling_cpu_s=kept.sampling_cpu_s,
    )


def _heard_by(ranked: Ranked, on_message: Report) -> Report:
    def heard(message: Message) -> None:
        ranked.hears(message)
        on_message(message)

    return heard


DEATH_HINTS = {
    "SIGKILL": " (out of memory? try a smaller --batch-size)",
    "SIGINT": " (OpenBLAS ends this way if it cannot start threads: `ulimit -u`)",
    "SIGTERM": "",
    "SIGXCPU": " (`ulimit -t`)",
}


def _how_it_died(returncode: int | None, log: Path, has_loader: bool) -> str:
    if returncode is not None and returncode < 0:
        name = signal.Signals(-returncode).name
        hint = DEATH_HINTS[name] if name in DEATH_HINTS else memory()
        if has_loader:
            hint = hint.replace("try ", "try fewer --workers or ")
        return f"the measuring process was killed by {name}{hint}"
    lines = log.read_text(errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    return f"the measuring process ended with status {returncode}{last}{memory()}"
