"""What a run takes without a cause where others set the pace then, in closed form: CPU seconds by processors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import CpuWindow, Segment
from loaderbench.recording.record import Estimate, Removable
from tests.analysis import simulate
from tests.analysis.simulate import Pipeline
from tests.made import make_case, make_device, make_facts, make_loader, make_run

CPUS = 2
PARTS = (1.0, 1.4, 1.0, 1.25)
"""Processors that the loader alone gets in the four windows of `free`, beside those who use the rest."""
DEVICE_S, LOADER_S, ISSUE_S = 0.018, 0.014, 0.003
COPYING = Pipeline(device=DEVICE_S, copy=0.040, overlap=True, decode=2 * LOADER_S, issue=ISSUE_S)
ISSUES_S = 0.005
"""CPU seconds of `device` a step, of which it issues for ISSUE_S."""


def windows(pipeline: Pipeline, *, parts: tuple[float, ...] = PARTS, full: bool = True) -> list[Segment]:
    """Beside `real`, and in all arms but `free`, the run uses what it needs, and others have the rest."""
    segments, left = simulate.run(pipeline, rounds=len(parts)), list(parts)
    for one in segments:
        own = left.pop(0) if one.arm is Arm.FREE else ISSUES_S / DEVICE_S if one.arm is Arm.DEVICE else 0.6
        busy = CPUS if full else own + 0.05
        one.cpu = CpuWindow(10.0, 10 * own, 3.0, 0.0, 10.0 * busy, 0.0, CPUS, None, None)
    return segments


def gain_of(cause: Removable, segments: list[Segment], **kwargs: object) -> Estimate:
    case = make_case(workers=2, cache="warm", loader="multiprocess", **kwargs)
    verdict = analyze(make_run(case, segments, facts=make_facts(device=make_device(), loader=make_loader()))).verdict
    assert verdict is not None
    gain = verdict.speedup_if_removed[cause]
    assert gain is not None and gain.low is not None and gain.high is not None
    return gain


def left_of(cpu_s: float, parts: tuple[float, ...] = PARTS) -> float:
    return float(np.mean([max(DEVICE_S, cpu_s / part) for part in parts]))


def test_without_the_copy_a_step_takes_its_cpu_time_by_the_processors_that_others_leave() -> None:
    cpu_s = np.mean(PARTS) * LOADER_S + ISSUE_S
    gain = gain_of("transfer", windows(COPYING))
    assert gain.value == pytest.approx(COPYING.copy / left_of(cpu_s), rel=0.01)
    assert gain.low == pytest.approx(COPYING.copy / (cpu_s / min(PARTS)), rel=0.01)
    assert gain.high == pytest.approx(COPYING.copy / DEVICE_S, rel=0.01)


@pytest.mark.parametrize("full", [False, True], ids=["processors idle", "others hold next to nothing"])
def test_where_others_hold_nothing_the_device_sets_the_pace(*, full: bool) -> None:
    segments = windows(COPYING, parts=(1.85,) * 4 if full else PARTS, full=full)
    gain = gain_of("transfer", segments)
    assert gain.value == pytest.approx(COPYING.copy / DEVICE_S, rel=0.01)
    assert gain.low == pytest.approx(gain.value, rel=0.01)


def test_a_host_that_spins_while_it_waits_for_the_device_does_no_work_by_it() -> None:
    segments = windows(COPYING)
    for one in segments:
        if one.arm is Arm.DEVICE:
            assert one.cpu is not None
            one.cpu = replace(one.cpu, own_s=one.cpu.wall_s)
    gain = gain_of("transfer", segments)
    assert gain.value == pytest.approx(COPYING.copy / left_of(np.mean(PARTS) * LOADER_S + ISSUE_S), rel=0.01)


def test_without_launches_nobody_issues_and_without_compute_the_host_still_does() -> None:
    launching = replace(COPYING, copy=0.0, issue=0.060, busy=DEVICE_S)
    gain = gain_of("launch", windows(launching))
    assert gain.value == pytest.approx(0.060 / left_of(np.mean(PARTS) * LOADER_S), rel=0.02)
    computing = replace(COPYING, copy=0.0, device=0.060)
    cpu_s = np.mean(PARTS) * LOADER_S + ISSUE_S
    paced = np.mean([max(LOADER_S, cpu_s / part) for part in PARTS])
    assert gain_of("compute", windows(computing)).value == pytest.approx(0.060 / paced, rel=0.01)


def test_windows_in_which_a_processor_idles_tell_nothing_of_what_others_leave() -> None:
    segments = windows(COPYING)
    for one in segments:
        assert one.cpu is not None
        if one.arm is Arm.FREE and one.cpu.own_s == pytest.approx(10 * PARTS[0]):
            one.cpu = replace(one.cpu, machine_busy_s=16.0)
    cpu_s = np.mean(PARTS) * LOADER_S + ISSUE_S
    gain = gain_of("transfer", segments)
    assert gain.value == pytest.approx(COPYING.copy / left_of(cpu_s, (1.4, 1.25)), rel=0.01)
