"""What a run takes without a cause where others set the pace then, in closed form: CPU seconds by processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from loaderbench.analysis.model import Model
from loaderbench.analysis.record import judged_run
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import CpuWindow, Run
from loaderbench.recording.record import Cause, Removable
from tests.analysis import simulate
from tests.analysis.simulate import Pipeline
from tests.made import make_case, make_device, make_facts, make_loader, make_run

CPUS = 2
DEVICE_S, LOADER_S, ISSUE_S = 0.018, 0.014, 0.006
COPYING = Pipeline(device=DEVICE_S, copy=0.040, overlap=True, decode=2 * LOADER_S, issue=ISSUE_S)


@dataclass(frozen=True)
class Window:
    """Of the loader alone, in processors."""

    own: float
    others: float | None = None
    """None: all that it does not get."""
    wanted: float | None = None
    """On which its threads ran or were runnable; None: all, and a little more."""
    stolen: bool = False
    """The others are guests, and its threads stand in no queue for what these have."""
    cpus: int = CPUS

    @property
    def seen(self) -> CpuWindow:
        others = self.cpus - self.own if self.others is None else self.others
        queued = (1.05 * self.cpus if self.wanted is None else self.wanted) - self.own
        busy, stolen = (self.own, others) if self.stolen else (self.own + others, 0.0)
        return CpuWindow(
            10.0, 10 * self.own, 0.0 if self.stolen else 10 * queued, 0.0, 10 * busy, 10 * stolen, self.cpus, None, None
        )


FEW = (Window(1.0), Window(1.4), Window(1.0), Window(1.25))
OWN = float(np.mean([one.own for one in FEW]))


def model_of(
    alone: Sequence[Window], pipeline: Pipeline = COPYING, *, device_cpu_s: float = 0.009, real: Window | None = None
) -> Model:
    """A run whose loader alone got the processors of `alone`, window by window. `device_cpu_s`: of a step of `device`,
    whose host spins while it waits; `real`: what the other arms got."""
    cpus, left = alone[0].cpus, [one.seen for one in alone]
    of_device = Window(device_cpu_s / max(pipeline.device, pipeline.issue), cpus=cpus).seen
    others = (real or Window(0.3 * cpus, cpus=cpus)).seen
    segments = simulate.run(pipeline, arms=simulate.ARMS, rounds=len(alone))
    for one in segments:
        one.cpu = left.pop(0) if one.arm is Arm.FREE else of_device if one.arm is Arm.DEVICE else others
    run: Run = make_run(
        make_case(workers=pipeline.workers, cache="warm", loader="multiprocess" if pipeline.workers else "serial"),
        segments, facts=make_facts(device=make_device(), loader=make_loader()),
    )  # fmt: skip
    assert run.recording is not None
    judged = judged_run(run, run.recording)
    assert judged is not None
    return judged.model


def left_without(cause: Removable, model: Model) -> tuple[float, float, float]:
    left = model.without(cause)
    assert left is not None
    return left.value, left.low, left.high


def paced(cpu_s: float, alone: Sequence[Window] = FEW, least_s: float = DEVICE_S) -> float:
    return float(np.mean([max(least_s, cpu_s / one.own) for one in alone]))


def test_without_the_copy_a_step_takes_its_cpu_time_by_the_processors_that_others_leave() -> None:
    cpu_s = OWN * LOADER_S + ISSUE_S
    value, low, high = left_without("transfer", model_of(FEW))
    assert value == pytest.approx(paced(cpu_s), rel=0.01)
    assert value > 1.1 * DEVICE_S
    assert (low, high) == (pytest.approx(DEVICE_S, rel=0.01), pytest.approx(cpu_s / 1.0, rel=0.01))


@pytest.mark.parametrize(
    "alone",
    [
        pytest.param(Window(1.0, others=0.7), id="a processor idles"),
        pytest.param(Window(0.4, wanted=0.5), id="the loader waits for its storage"),
        pytest.param(Window(2.0, others=27.0, wanted=2.05, cpus=32), id="it has few threads"),
        pytest.param(Window(1.86, others=0.14), id="others hold next to nothing"),
    ],
)
def test_where_others_keep_nothing_from_the_loader_the_device_sets_the_pace(alone: Window) -> None:
    loader_s = 0.017
    assert (alone.own * loader_s + ISSUE_S) / alone.own > DEVICE_S
    slow = Pipeline(device=DEVICE_S, copy=0.060, overlap=True, decode=2 * loader_s, issue=ISSUE_S)
    assert left_without("transfer", model_of((alone,) * 4, slow)) == pytest.approx((DEVICE_S,) * 3, rel=0.01)


def test_processors_that_guests_have_are_missed_as_those_of_processes() -> None:
    stolen = [Window(one.own, stolen=True) for one in FEW]
    found = left_without("transfer", model_of(stolen))
    assert found == pytest.approx(left_without("transfer", model_of(FEW)), rel=0.01)


@pytest.mark.parametrize(
    ("device_cpu_s", "issuing_s"), [(0.018, ISSUE_S), (0.002, 0.002)], ids=["it spins", "it waits to issue"]
)
def test_what_issuing_takes_of_a_processor(device_cpu_s: float, issuing_s: float) -> None:
    as_long = Pipeline(device=DEVICE_S, copy=0.040, overlap=True, decode=2 * DEVICE_S, issue=ISSUE_S)
    value, _, _ = left_without("transfer", model_of([Window(0.9)] * 4, as_long, device_cpu_s=device_cpu_s))
    assert value == pytest.approx(DEVICE_S + issuing_s / 0.9, rel=0.01)


def test_without_launches_nobody_issues_and_without_compute_the_host_still_does() -> None:
    launching = Pipeline(device=0.012, busy=0.012, issue=0.060, decode=2 * LOADER_S)
    value, _, _ = left_without("launch", model_of(FEW, launching, device_cpu_s=0.060))
    assert value == pytest.approx(paced(OWN * LOADER_S, least_s=LOADER_S), rel=0.01)
    assert value > 1.05 * LOADER_S
    computing = Pipeline(device=0.060, issue=ISSUE_S, decode=2 * LOADER_S)
    value, _, _ = left_without("compute", model_of(FEW, computing))
    assert value == pytest.approx(paced(OWN * LOADER_S + ISSUE_S, least_s=LOADER_S), rel=0.01)


def test_a_window_with_next_to_nothing_leaves_no_more_than_the_run_took() -> None:
    alone = (*[Window(1.4)] * 7, Window(0.3))
    cpu_s = float(np.mean([one.own for one in alone])) * LOADER_S + ISSUE_S
    value, _, high = left_without("transfer", model_of(alone))
    assert cpu_s / 1.4 < DEVICE_S < COPYING.copy < cpu_s / 0.3
    assert value == pytest.approx((7 * DEVICE_S + COPYING.copy) / 8, rel=0.01)
    assert high == pytest.approx(COPYING.copy, rel=0.01)


def test_a_window_beside_another_machine_does_not_count() -> None:
    usual, busier, real = Window(1.4), Window(0.1, others=1.9), Window(0.3, others=0.9)
    assert left_without("transfer", model_of([*[usual] * 5, busier], real=real)) == pytest.approx(
        left_without("transfer", model_of([usual] * 5, real=real)), rel=0.01
    )


def test_a_loader_in_line_has_its_times_in_one_thread() -> None:
    in_line = Pipeline(device=DEVICE_S, copy=0.060, overlap=True, decode=LOADER_S, issue=ISSUE_S, workers=0)
    value, _, _ = left_without("transfer", model_of([Window(0.8)] * 4, in_line))
    assert value == pytest.approx(LOADER_S + ISSUE_S, rel=0.02)


@pytest.mark.parametrize("removed", [("transfer", "launch"), ("storage", "transfer"), ("storage", "launch")])
def test_without_two_causes_a_step_is_no_longer_than_without_one(removed: tuple[Cause, Cause]) -> None:
    reading = Pipeline(device=DEVICE_S, busy=0.012, copy=0.020, overlap=True, read=0.120, decode=2 * LOADER_S,
                       issue=ISSUE_S)  # fmt: skip
    model = model_of(FEW, reading)
    together, alone = model.joint_without(frozenset(removed)), [model.without(cause) for cause in removed]
    assert together is not None
    assert together.value <= min(left.value for left in alone if left is not None) * 1.001


def test_without_copy_and_launches_others_set_the_pace_as_without_one() -> None:
    both = Pipeline(device=0.020, busy=0.012, issue=0.020, copy=0.030, overlap=True, decode=2 * LOADER_S)
    model = model_of(FEW, both)
    together = model.joint_without(frozenset[Cause]({"transfer", "launch"}))
    assert together is not None
    assert together.value == pytest.approx(paced(OWN * LOADER_S, least_s=LOADER_S), rel=0.02)
