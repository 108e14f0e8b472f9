"""A machine that measures nothing: its runs are simulated (tests/analysis/simulate.py), so that whole studies end at
once and their truth is known. All else is real: planning, storing, judging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.recording.facts import CacheFacts, CopyFacts, Failure, Recording, Run, ScaleProbe
from loaderbench.recording.progress import Report
from loaderbench.recording.store import RunFolder
from loaderbench.recording.studies import AlikeFacts
from loaderbench.running.jobs.table import (
    COMPARE_SCALES,
    MEASURE,
    SCREEN,
    Job,
    Judge,
    MeasureRequest,
    ScalesRequest,
    ScreenRequest,
)
from loaderbench.running.supervisor import JobFailed, KeptChild
from loaderbench.selftest.bench import CPU_MODEL
from loaderbench.selftest.injections import Injection
from loaderbench.selftest.jobs import (
    ALIKE,
    DEVICE_SECONDS,
    LOADER_SECONDS,
    WALL_SECONDS,
    AlikeRequest,
    DeviceTimeRequest,
    LoaderTimeRequest,
    WallTimeRequest,
)
from loaderbench.studies import measure
from tests.analysis import simulate
from tests.analysis.simulate import Pipeline, step_seconds
from tests.made import make_device, make_facts, make_run

IMAGE_S, DEVICE_S, ISSUE_S = 0.0008, 0.004, 0.0005
"""Of preparing an image, of the device's step, of issuing it."""
CPU_MODEL_S = 0.05
"""Of the step of the self-test's model on the CPU."""
LINK_BYTES_PER_S = 50e9
DIFFERENCE = (0.0, 1.0, 2.0, 5.0)
"""Of four samples decoded with `--decode-scale auto`."""

PipelineOf = Callable[[Case, Injection], Pipeline]


def injected(case: Case, injection: Injection) -> Pipeline:
    """The case's run with what is built in."""
    return Pipeline(
        device=(CPU_MODEL_S if case.step.model == CPU_MODEL["model"] else DEVICE_S) + injection.compute_extra_s,
        issue=ISSUE_S + injection.issue_delay_s,
        copy=1e-5 + injection.transfer_extra_bytes / LINK_BYTES_PER_S,
        overlap=True,
        read=0.0002,
        decode=case.step.batch_size * (IMAGE_S + injection.decode_burn_s),
        workers=case.feed.workers,
        prefetch=case.feed.prefetch,
    )


class Machine:
    """`pipeline_of` says what a case is; `before` is called with each case before it is measured, and may raise."""

    def __init__(self, pipeline_of: PipelineOf = injected, before: Callable[[Case], None] = lambda case: None) -> None:
        self.measured: list[Case] = []
        self.screened: list[Case] = []
        self.compared: list[Case] = []
        self.process = SimpleNamespace(pid=0)
        self.memory_takes = 1.0
        """CPU time of preparing an image that was read from memory ÷ the same from the storage."""
        self._pipeline_of, self._before = pipeline_of, before

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Machine:
        """Take the place of all measuring processes."""
        monkeypatch.setattr(KeptChild, "child", lambda kept, decoder: self)
        monkeypatch.setattr(KeptChild, "end", lambda kept: None)
        monkeypatch.setattr(measure, "supervise", self.supervise)
        return self

    def supervise(
        self, case: Case, folder: RunFolder, on_message: Report, judge: Judge | None = None, **ranks: object
    ) -> Run:
        recording, failure = None, None
        try:
            recording = self.record(case, Injection())
        except JobFailed as error:
            failure = error.failure
        run = make_run(case, segments=None, status="ok" if failure is None else "failed", failure=failure)
        return replace(
            run, run_id=folder.run_id, started_at=folder.started_at, recording=recording, sampling_cpu_s=0.01,
            environment=measure.environment(),
        )  # fmt: skip

    def ask(self, job: Job[Any, Any], request: Any, on_message: Report) -> Any:
        """What a measuring process answers."""
        match job, request:
            case (job, MeasureRequest(case=case, slowdown=slowdown)) if job == MEASURE:
                return self.record(case, slowdown or Injection())  # type: ignore[arg-type]
            case (job, ScreenRequest(case=case)) if job == SCREEN:
                self._before(case)
                self.screened.append(case)
                return case.step.batch_size * case.feed.lanes / self._pipeline_of(case, Injection()).decode
            case (job, ScalesRequest(case=case)) if job == COMPARE_SCALES:
                self._before(case)
                self.compared.append(case)
                return ScaleProbe((0.002,) * 4, (0.001,) * 4, DIFFERENCE)
            case (job, LoaderTimeRequest(case=case, injection=injection)) if job == LOADER_SECONDS:
                return self._pipeline_of(case, injection or Injection()).decode / case.feed.lanes
            case (job, DeviceTimeRequest(case=case, injection=injection)) if job == DEVICE_SECONDS:
                pipeline = self._pipeline_of(case, injection or Injection())
                return max(pipeline.device, pipeline.issue)
            case (job, WallTimeRequest(sides=sides, rounds=rounds)) if job == WALL_SECONDS:
                of = [step_seconds(self._pipeline_of(side.case, side.injection or Injection())) for side in sides]
                return [(one,) * rounds for one in of]
            case (job, AlikeRequest(name=name, case=case)) if job == ALIKE:
                random = np.random.default_rng(case.subject.resolution)
                from_storage = IMAGE_S * random.normal(1.0, 0.01, 5)
                from_memory = IMAGE_S * self.memory_takes * random.normal(1.0, 0.01, 5)
                faults = np.tile([37.0 + 400 * (self.memory_takes - 1), 37.0], (5, 1))
                return AlikeFacts(name, np.column_stack((from_memory, from_storage)), faults)
        raise JobFailed(Failure("CaseFailed", f"nobody simulates {job}"))

    def record(self, case: Case, injection: Injection) -> Recording:
        self._before(case)
        self.measured.append(case)
        pipeline = self._pipeline_of(case, injection)
        arms = simulate.ARMS if len(case.effort.arms) > 1 else (Arm.REAL,)
        facts = make_facts(
            device=make_device(overlap=pipeline.overlap),
            cache=CacheFacts(case.subject.cache, measured_once=False),
            copy=CopyFacts(batch_bytes=1_000_000, link_bytes_per_s=LINK_BYTES_PER_S),
        )
        recording = make_run(case, simulate.run(pipeline, arms=arms), facts=facts).recording
        assert recording is not None
        return recording


def broken(case: Case) -> None:
    """`before` of a machine on which nothing can be measured."""
    raise JobFailed(Failure("CaseFailed", "the disk is gone"))
