"""What was seen of a script, as the facts of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from loaderbench.analysis.doses import LEAST_PAIRS
from loaderbench.analysis.shadow import LEAST_READS
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case, Effort, Feed, Step, Subject
from loaderbench.cases.traits import LoaderTraits
from loaderbench.findings.table import words
from loaderbench.machine import environment
from loaderbench.originals import time
from loaderbench.plain import Json
from loaderbench.recording.facts import (
    CacheFacts,
    DeviceFacts,
    Facts,
    FailureFacts,
    LoaderFacts,
    RankRecording,
    Recording,
    RoundFacts,
    Run,
    StartupFacts,
    StorageFacts,
    WatchedFacts,
    WatchedShadow,
    WorkloadFacts,
)
from loaderbench.running.beside import Beside
from loaderbench.studies.watched import loader_of, surrounded, trials_of
from loaderbench.watching.applying import Applier
from loaderbench.watching.cost import cost_of
from loaderbench.watching.data_loader import uses_cuda
from loaderbench.watching.doses import PART
from loaderbench.watching.seen import Seen
from loaderbench.watching.watcher import Watcher

MOST_STORES = 4


def run_of(
    watcher: Watcher, name: str, script: str, started_at: str, applier: Applier | None = None,
    beside: Beside | None = None,
) -> Run | None:  # fmt: skip
    """What was seen, without a name; None where no steps were. `beside`: of one of several ranks."""
    main = watcher.main
    if main is None or not main.segments:
        return None
    case, facts = _case(name, script, main, watcher), _facts(name, main, watcher)
    assert facts.watched is not None
    facts = replace(facts, watched=surrounded(facts.watched, main, watcher, applier))
    samples = None if watcher.sampling is None else watcher.sampling.samples(watcher.number_of(main.source))
    collections = None if watcher.collector is None else watcher.collector.collections()
    rank = None if beside is None else RankRecording(beside.place, (), num_local=beside.num_local)
    return Run(
        run_id="",
        case=case,
        status="ok",
        started_at=started_at,
        wall_s=(time.perf_counter_ns() - watcher.begun_ns) / 1e9,
        environment=environment(),
        recording=Recording(main.segments, facts, rank=rank, samples=samples, collections=collections),
        trials=trials_of(case, facts, watcher, applier),
    )


def _case(name: str, script: str, main: Seen, watcher: Watcher) -> Case:
    source = main.source
    batch_size = source.batch_size or round(main.num_samples / max(1, main.num_batches)) or 1
    return Case(
        Subject(str(Path(script).resolve()), name, None, "as-is"),
        Feed(source.kind, None, source.workers, source.prefetch),
        Step(name, "unknown", "unknown", "cuda" if uses_cuda() else "cpu", batch_size, None),
        Effort(arms=(Arm.DEVICE, Arm.REAL), duration_s=watcher.wall_s, kernels=False),
    )


def _facts(name: str, main: Seen, watcher: Watcher) -> Facts:
    source, cuda = main.source, uses_cuda()
    return Facts(
        device=DeviceFacts(
            "cuda" if cuda else "cpu",
            "a GPU" if cuda else "this machine's CPUs",
            copies=cuda,
            on_host_cpus=not cuda,
            has_counters=False,
        ),
        workload=WorkloadFacts(name, "unknown", "unknown"),
        loader=LoaderFacts(
            decodes=True,
            owns_transfer=True,  # nothing tells a copy from the script's own step
            traits=LoaderTraits("processes" if source.workers else "in line", decodes="own", can_be_cold=False),
            num_readers=max(1, source.workers),
        ),
        cache=CacheFacts("as-is", measured_once=True),
        storage=StorageFacts(main.num_samples, None, None, "watch does not record which files a script reads"),
        startup=StartupFacts(),
        failures=FailureFacts(),
        rounds=RoundFacts((Arm.REAL, Arm.DEVICE), watcher.num_bursts, "ended"),
        watched=_watched(name, main, watcher, cuda=cuda),
    )


def _watched(name: str, main: Seen, watcher: Watcher, *, cuda: bool) -> WatchedFacts:
    others = sorted((one for one in watcher.seen.values() if one is not main), key=lambda one: -one.spent_ns)
    no_burst = None if watcher.num_bursts else watcher.no_burst
    if no_burst is None and not watcher.num_bursts and watcher.wants("burst"):
        no_burst = words("too_few_batches" if main.source.workers else "no_workers", {})
        no_burst = no_burst if main.source.tells else words("queue_unknown", {})
    shadow = _shadow(main, watcher)
    no_spans = None
    if not main.has_spans:
        no_spans = words("workers_not_forked" if main.segments else "too_few_batches", {})
        no_spans = no_spans if main.source.tells else words("workers_unknown", {})
    return WatchedFacts(
        script=name,
        loaders=tuple(loader_of(one) for one in (main, *others)),
        wall_s=watcher.wall_s,
        before_s=watcher.before_ns / 1e9,
        probes=watcher.probes,
        num_bursts=watcher.num_bursts,
        paused_s=watcher.paused_ns / 1e9,
        rested_s=watcher.rested_ns / 1e9,
        no_burst=no_burst,
        no_spans=no_spans,
        uses_cuda=cuda,
        device_stamped=cuda and watcher.device is not None and bool(main.segments),
        no_device_stamps=_no_device_stamps(main, watcher) if cuda else None,
        shadow=shadow,
        no_shadow=_no_shadow(shadow, watcher),
        no_doses=_no_doses(main, watcher),
        cost=cost_of(watcher),
        thread=watcher.thread_name,
        stores=watcher.stores(main)[:MOST_STORES],
        no_samples=None if watcher.sampling is None else watcher.sampling.problem,
    )


def _no_device_stamps(main: Seen, watcher: Watcher) -> str | None:
    """Why the device did not tell when the steps were done."""
    device = watcher.device
    if device is None:
        return words("device_used_late", {})
    if device.problem is not None or main.segments:
        return device.problem
    return words("steps_not_ended", {})


def _shadow(main: Seen, watcher: Watcher) -> WatchedShadow | None:
    """What was read beside the loader that the verdict is about."""
    reader = watcher.shadow
    if reader is None or watcher.shadow_of != main.source:
        return None
    return WatchedShadow((*reader.reads,), reader.start_ns / 1e9, reader.problem or "it still runs")


def _no_shadow(shadow: WatchedShadow | None, watcher: Watcher) -> str | None:
    """Why it tells nothing, where it was wanted."""
    if not watcher.wants("shadow") or (shadow is not None and len(shadow.reads) >= LEAST_READS):
        return None
    if shadow is None:
        return watcher.no_shadow or words("other_loader_first", {})
    details: dict[str, Json] = {"num": len(shadow.reads), "least": LEAST_READS, "stopped_by": shadow.stopped_by}
    return words("shadow_too_short", details)


def _no_doses(main: Seen, watcher: Watcher) -> str | None:
    """Why the windows with known delays are too few, where they were wanted."""
    num = sum(one.delay is not None for one in main.segments)
    if not watcher.wants("delay") or num >= LEAST_PAIRS:
        return None
    return words("too_few_delays", {"num": num, "least": LEAST_PAIRS, "part": PART})
