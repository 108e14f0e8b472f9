"""What looks at made-up jobs say, against the step that the same pipeline takes without its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderbench.attach.facts import GpuUse, Io, JobFacts, Processors, ThreadUse
from loaderbench.attach.judge import judge, judge_job
from loaderbench.cases.options import Price
from loaderbench.recording.thread_samples import STATES, SampledThread
from tests.attach_facts import Work, attached, job, simulated

STEP: Work = [("sleep", "", 0.010)]
RUNS: Work = [("running", "", 0.010)]
READS: Work = [("file", "folio_wait_bit_common", 0.040), ("running", "", 0.004)]
FAULTS: Work = [("fault", "", 0.040), ("running", "", 0.004)]
PREPARES: Work = [("file", "", 0.002), ("running", "", 0.040)]
SLEEPS: Work = [("sleep", "", 0.040), ("running", "", 0.004)]
ASKS: Work = [("socket", "tcp", 0.040), ("running", "", 0.004)]
QUICK: Work = [("running", "", 0.004)]


def without(work: Work, *states: str) -> Work:
    return [part for part in work if part[0] not in states]


CASES: dict[str, tuple[Work, Work, str, str | None, dict[str, Any], tuple[str, ...]]] = {
    "reads": (READS, STEP, "storage", "latency", {}, ("file",)),
    "reads, 4 workers": (READS, [("sleep", "", 0.005)], "storage", "latency", {"workers": 4}, ("file",)),
    "reads that vary": (READS, STEP, "storage", "latency", {"spread": 0.7}, ("file",)),
    "faults": (FAULTS, STEP, "storage", "latency", {}, ("fault",)),
    "reads without workers": (READS, RUNS, "storage", None, {"workers": 0}, ("file",)),
    "prepares": (PREPARES, STEP, "prep", None, {}, ("running",)),
    "sleeps": (SLEEPS, STEP, "prep", "sleep", {}, ("sleep",)),
    "asks a server": (ASKS, STEP, "prep", "network", {}, ("socket",)),
    "connections are the storage": (
        ASKS, STEP, "storage", "connections", {"received_bytes": 1 << 30, "workers_io": Io(9, 0, 9)}, ("socket",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("calls", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_cause_is_named_and_its_true_gain_is_within_the_bounds(name: str, calls: bool) -> None:
    work, step, bottleneck, detail, changes, states = CASES[name]
    verdict = judge_job(job(work, step, calls=calls, **changes)).verdict
    assert (verdict.bottleneck, verdict.cause_detail) == (bottleneck, detail), verdict
    shape = {name: changes[name] for name in ("workers", "spread") if name in changes}
    truth = simulated(work, step, **shape)[1] / simulated(without(work, *states), step, **shape)[1]
    gain = verdict.speedup_if_removed[bottleneck]  # type: ignore[index]
    assert gain.low is not None and gain.high is not None
    assert gain.low <= truth * 1.02 and truth * 0.98 <= gain.high


def test_a_step_that_waits_for_nothing_limits_the_job() -> None:
    verdict = judge_job(job(QUICK, [("sleep", "", 0.030)])).verdict
    assert (verdict.bottleneck, verdict.cause_detail) == ("compute", "step")


def test_one_busy_main_thread_may_be_the_step_or_a_sampler() -> None:
    """Only names of functions, other threads that compute, or a busy GPU decide."""
    busy = [("running", "", 0.030)]
    one: Any = (ThreadUse("consumer", None, "python", True, 15.0, 0.0, 9, 0),)
    many = (*one, ThreadUse("other", None, "python", False, 14.0, 0.0, 9, 0))
    assert judge_job(job(QUICK, busy, uses=one)).verdict.bottleneck == "undetermined"
    assert judge_job(job(QUICK, busy, uses=many)).verdict.bottleneck == "compute"
    on_gpu = judge_job(job(QUICK, busy, uses=one, gpus=(GpuUse("H200", 0.97),)))
    assert on_gpu.verdict.bottleneck == "compute" and on_gpu.gpu_busy_fraction == 0.97
    step = judge_job(job(QUICK, busy, uses=one, part={"running": "step"})).verdict
    assert (step.bottleneck, step.cause_detail) == ("compute", "step")
    sampler = judge_job(job(QUICK, busy, uses=one, part={"running": "sampler"})).verdict
    assert (sampler.bottleneck, sampler.cause_detail) == ("prep", "sampler")


def test_a_loader_within_the_main_process_is_preparation() -> None:
    """The main thread waits for threads that decode; by names of functions, or of the threads."""
    work: Work = [("lock", "private", 0.030)]
    seen = job([], [*work, ("sleep", "", 0.010)], workers=0, part={"lock": "loader", "sleep": "step"})
    for facts in (_with_thread(seen, "python"), _with_thread(job([], [*work, *STEP], workers=0), "[DALI][TP0]Exec")):
        verdict = judge_job(facts).verdict
        assert verdict.bottleneck == "prep", verdict
        gain = verdict.speedup_if_removed["prep"]
        assert gain.low is not None and gain.low <= 4.0 and (gain.high is None or gain.high >= 4.0)


def _with_thread(facts: JobFacts, name: str) -> JobFacts:
    """With another thread of the main process, which runs all the time."""
    samples = facts.samples
    num = len(np.unique(samples.time_s))
    more: dict[str, Any] = {
        "time_s": np.unique(samples.time_s), "thread": np.full(num, len(samples.threads)),
        "state": np.full(num, STATES.index("running")), "place": np.full(num, -1), "weight_s": np.full(num, 1.0),
    }  # fmt: skip
    joined = {key: np.concatenate([getattr(samples, key), value]) for key, value in more.items()}
    order = np.argsort(joined["time_s"], kind="stable")
    threads = (*samples.threads, SampledThread("other", None, name))
    return replace(
        facts,
        samples=replace(samples, threads=threads, **{key: value[order] for key, value in joined.items()}),
        detail=np.concatenate([facts.detail, np.zeros(num, np.int64)])[order],
        file=np.concatenate([facts.file, np.full(num, -1)])[order],
        uses=(*facts.uses, ThreadUse("other", None, name, False, 15.0, 0.0, 9, 0)),
    )


@pytest.mark.parametrize(
    "facts",
    [
        job([], [("other", "", 0.030)], workers=0),  # the kernel does not say for what
        job([], [("sleep", "", 0.030)], workers=0),  # a step, or preparation that sleeps
    ],
)
def test_what_is_not_understood_is_not_called_the_step(facts: JobFacts) -> None:
    assert judge_job(facts).verdict.bottleneck in ("undetermined", "prep")
    assert judge_job(facts).verdict.cause_detail != "step"


def test_workers_that_nobody_waits_for_are_not_known() -> None:
    seen = job(QUICK, STEP)
    state = seen.samples.state.copy()
    state[:] = STATES.index("lock")
    facts = replace(seen, samples=replace(seen.samples, state=state), detail=np.zeros_like(seen.detail))
    verdict = judge_job(facts).verdict
    assert verdict.bottleneck == "undetermined" and "not those of a loader that I know" in verdict.summary


def test_a_job_that_imports_is_starting() -> None:
    found = judge_job(job([], [("running", "", 0.01)], workers=0, part={"running": "import"}, age_s=9.0, batches=None))
    assert found.phase == "start-up"


def test_a_lock_between_workers_wins_what_they_wait_for_it() -> None:
    """Two workers that take turns each wait for half of the time: without the lock they are twice as fast."""
    work: Work = [("lock", "shared", 0.020), ("sleep", "", 0.020)]
    verdict = judge_job(job(work, [("sleep", "", 0.002)])).verdict
    assert (verdict.bottleneck, verdict.cause_detail) == ("prep", "lock")
    gain = verdict.speedup_if_removed["prep"]
    assert gain.low is not None and gain.high is not None and 1.3 < gain.low <= 2.0 <= gain.high


def test_a_loader_and_a_step_that_take_as_long_have_no_cause() -> None:
    verdict = judge_job(job([("file", "", 0.010), ("running", "", 0.010)], STEP)).verdict
    assert verdict.bottleneck in ("undetermined", "mixed", "compute")


@pytest.mark.parametrize(
    ("processors", "ran", "queued", "detail"),
    [
        (Processors(2, 2, 0.5, 15.0, 12.0, 0.0, 19.0), 10.0, 30.0, "quota"),
        (Processors(2, 2, None, None, 40.0, 0.0, 19.0), 10.0, 30.0, "neighbours"),
        (Processors(2, 2, None, None, 40.0, 12.0, 19.0), 10.0, 30.0, "steal"),
        (Processors(1, 4, None, None, 19.9, 0.0, 19.0), 19.5, 30.0, "affinity"),
    ],
)
def test_processors_that_others_hold(processors: Processors, ran: float, queued: float, detail: str) -> None:
    """The loader would be as fast as the step if its threads did not wait for a processor."""
    work: Work = [("running", "", 0.015), ("runnable", "", 0.045)]
    uses = (ThreadUse("worker", 0, "pt_data_worker", True, ran, queued, 100, 0),)
    verdict = judge_job(job(work, STEP, processors=processors, uses=uses)).verdict
    assert (verdict.bottleneck, verdict.cause_detail) == ("contention", detail)


def test_one_late_worker() -> None:
    """One of two workers does all the work: shared evenly it would take half as long."""
    one = job(SLEEPS, [("sleep", "", 0.002)])
    samples = one.samples
    state, detail = samples.state.copy(), one.detail.copy()
    late = samples.thread == 2
    state[late], detail[late] = STATES.index("pipe"), len(one.details)
    known = (*one.details, "index")
    verdict = judge_job(replace(one, samples=replace(samples, state=state), detail=detail, details=known)).verdict
    assert (verdict.bottleneck, verdict.cause_detail) == ("prep", "one_worker")
    gain = verdict.speedup_if_removed["prep"]
    assert gain.low is not None and 1.3 < gain.low <= 2.0 and (gain.high is None or gain.high > 2.0)


def test_more_threads_than_processors_are_no_plain_step() -> None:
    """What threads lose that spin while they wait for each other is not to be seen: the gain has no upper bound."""
    step: Work = [("running", "", 0.02), ("runnable", "", 0.01)]
    threads = tuple(ThreadUse("other", None, "python", False, 2.0, 6.0, 9, 0) for _ in range(16))
    uses: Any = (ThreadUse("consumer", None, "python", True, 8.0, 12.0, 9, 0), *threads)
    verdict = judge_job(job(QUICK, step, uses=uses, processors=Processors(2, 2, None, None, 40.0, 0.0, 19.0))).verdict
    assert (verdict.bottleneck, verdict.cause_detail) == ("contention", "own_threads")
    assert verdict.speedup_if_removed["contention"].high is None
    few = judge_job(job(QUICK, step, uses=uses[:3], processors=Processors(2, 2, None, None, 40.0, 0.0, 19.0))).verdict
    assert few.cause_detail != "own_threads"


def test_a_main_thread_that_waits_for_the_gil() -> None:
    held: Work = [("running", "", 0.003), ("gil", "private", 0.030)]
    verdict = judge_job(job(QUICK, held, part={"running": "step", "gil": "step"})).verdict
    assert (verdict.bottleneck, verdict.cause_detail) == ("contention", "gil")
    gain = verdict.speedup_if_removed["contention"]
    assert gain.low is not None and gain.low <= 33 / 4 and (gain.high is None or gain.high >= 33 / 4 * 0.95)


def test_few_looks_name_no_cause() -> None:
    verdict = judge_job(job(READS, STEP, looks=20)).verdict
    assert verdict.bottleneck == "undetermined" and "too few looks" in verdict.summary


def test_a_job_that_does_not_move_is_stuck() -> None:
    quiet = (ThreadUse("consumer", None, "python", True, 0.0, 0.0, 0, 0),)
    found = judge_job(job([], [("file", "rpc_wait_bit_killable", 1.0)], workers=0, uses=quiet, consumer_waited_s=431.0))
    assert found.phase == "stuck" and "rpc_wait_bit_killable" in found.phase_note
    assert found.verdict.bottleneck == "undetermined"


def test_steps_a_second_are_counted_messages() -> None:
    found = judge_job(job(READS, STEP, batches=800))
    assert found.steps_per_s is not None and found.steps_per_s.value == pytest.approx(40.0)
    unknown = judge_job(job(READS, STEP, batches=None))
    assert unknown.steps_per_s is None and unknown.no_rate == "no messages of one batch each were seen"


def test_what_the_cause_costs_at_a_price() -> None:
    found = judge(attached(job(READS, STEP), price=Price(3.0, "EUR")))
    (one,) = found.jobs
    assert one.cost is not None
    gain = one.verdict.speedup_if_removed["storage"]
    assert one.cost.hour.value == pytest.approx(3.0 * (1 - 1 / gain.value))
    assert found.verdict == one.verdict and found.cores_used_fraction == pytest.approx(0.0125)


def test_a_job_that_was_not_seen_says_nothing() -> None:
    seen = job(READS, STEP)
    none: Any = np.zeros(0, np.int64)
    samples = replace(seen.samples, time_s=none * 1.0, thread=none, state=none, place=none, weight_s=none * 1.0)
    empty: JobFacts = replace(seen, samples=samples, detail=none, file=none, batches=None)
    assert judge_job(empty).verdict.bottleneck == "undetermined"
