"""A loader that tells nothing of itself, and Python threads beside the script's own: by facts made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.recording.facts import CpuWindow, RankRecording
from loaderbench.recording.rank_place import RankPlace
from loaderbench.recording.record import Verdict
from tests.watched_facts import segment, untold

NUM = 80


def verdict_of(
    *, own_cpu_ms: float, threads_ms: float, queued_ms: float = 0.0, wait_ms: float = 0.1, ranks: int = 1
) -> Verdict:
    """Of a script whose step takes 10 ms behind such a wait, with such processor times a step."""
    random = np.random.default_rng(3)
    seconds = NUM * (10.0 + wait_ms) / 1e3
    parts = []
    for _ in range(3):
        one = segment(np.full(NUM, wait_ms), random.normal(10.0, 0.05, NUM), 0)
        cpu = CpuWindow(
            seconds, (own_cpu_ms + threads_ms) * NUM / 1e3, queued_ms * NUM / 1e3, queued_ms * NUM / 1e3,
            (own_cpu_ms + threads_ms) * NUM / 1e3, 0.0, 2, None, None, python_threads_s=threads_ms * NUM / 1e3,
        )  # fmt: skip
        parts.append(replace(one, cpu=cpu, consumer_cpu_s=own_cpu_ms * NUM / 1e3))
    run = untold(parts)
    if ranks > 1:
        assert run.recording is not None
        run.recording.rank = RankRecording(RankPlace(0, ranks, 0, "one", "torchrun"), ())
    verdict = analyze(run).verdict
    assert verdict is not None
    return verdict


def test_a_step_that_threads_of_the_same_process_may_hold_up_is_not_called_the_scripts_own() -> None:
    # Of 10 ms the script's thread runs for 5; for 5 it is held up, while other Python threads run.
    verdict = verdict_of(own_cpu_ms=5.0, threads_ms=8.0)
    (reason,) = verdict.reasons
    assert (verdict.bottleneck, reason.code) == ("undetermined", "threads_in_step")
    assert reason.details["most"] == pytest.approx(10.1 / 5.1, rel=0.03)


def test_threads_in_the_step_are_told_also_where_the_script_waits() -> None:
    # It waits for a sixth of its time, 1.2x; the threads may cost it as much as half of its step.
    verdict = verdict_of(own_cpu_ms=5.0, threads_ms=8.0, wait_ms=2.0)
    assert (verdict.bottleneck, [one.code for one in verdict.reasons]) == ("undetermined", ["threads_in_step"])
    # Where waiting is most of it, that is named.
    assert verdict_of(own_cpu_ms=5.0, threads_ms=8.0, wait_ms=20.0).bottleneck != "undetermined"


def test_a_rank_waits_for_others_in_its_step_and_no_thread_is_suspected() -> None:
    assert not verdict_of(own_cpu_ms=5.0, threads_ms=8.0, ranks=2).reasons


@pytest.mark.parametrize(
    ("own_cpu_ms", "threads_ms", "queued_ms"),
    [
        pytest.param(10.0, 8.0, 0.0, id="its own thread runs all the time"),
        pytest.param(2.0, 1.5, 0.0, id="a progress bar: a step of 8.5 ms is not much faster"),
        pytest.param(2.0, 0.4, 0.0, id="others hardly run: it waits for something else, or for torch's threads"),
        pytest.param(5.0, 8.0, 5.0, id="it waits for a processor"),
    ],
)
def test_threads_that_cannot_hold_it_up_change_nothing(own_cpu_ms: float, threads_ms: float, queued_ms: float) -> None:
    verdict = verdict_of(own_cpu_ms=own_cpu_ms, threads_ms=threads_ms, queued_ms=queued_ms)
    assert "threads_in_step" not in {one.code for one in verdict.reasons}
