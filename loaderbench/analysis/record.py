"""Run → record: figures, verdict, and a caveat for each figure that is missing. Pure: the same facts give the same
record. Its sentences are reporting/words.py's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

import numpy as np

from loaderbench.analysis import kernels, next_run
from loaderbench.analysis import storage as probed
from loaderbench.analysis.advice import Measured, advise
from loaderbench.analysis.alike import ARMS_ALIKE, preparation
from loaderbench.analysis.caveats import STARVED, caveats_of
from loaderbench.analysis.comparison import rate_of_runs, ratio_of
from loaderbench.analysis.doses import Place, Response, doses, responses
from loaderbench.analysis.invariants import enforced
from loaderbench.analysis.latency import Slowness, slowness
from loaderbench.analysis.model import WORTH, Model, Watched
from loaderbench.analysis.predictions import Predictions
from loaderbench.analysis.processors import (
    Crowd,
    Processors,
    beside_the_same,
    by_whom,
    crowd_of,
    has_processes,
    processors_of,
)
from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.rate_change import rate_change
from loaderbench.analysis.read_queue import Queue, spread_of_met
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.samples import channel, counter_rate, gauge_mean, sampled, windows_of
from loaderbench.analysis.shadow import storage_part
from loaderbench.analysis.slow_folder import slow_folder
from loaderbench.analysis.standstills import whole_periods
from loaderbench.analysis.statistics import blocks_of, draws_of_mean, interval
from loaderbench.analysis.steps import ArmSteps, join_arms
from loaderbench.analysis.verdict import Attribution, attribute
from loaderbench.analysis.verification import verified
from loaderbench.analysis.waiting import waiting_part
from loaderbench.analysis.watched_advice import advise_watched
from loaderbench.analysis.watched_counts import counted_details
from loaderbench.analysis.watched_notes import notes_of
from loaderbench.analysis.watched_places import Named, moved, named, names
from loaderbench.cases.arms import ARMS, Arm
from loaderbench.cases.case import CacheState, Case, Change
from loaderbench.pipeline.fit import fit, giving_workers
from loaderbench.pipeline.gains import Replays
from loaderbench.pipeline.verdict import at_least, gain_by_model, held_out_residual
from loaderbench.plain import Json
from loaderbench.recording.caveats import Caveat, Reason
from loaderbench.recording.facts import (
    SCHEMA,
    SPAN,
    STEP,
    Facts,
    Recording,
    Run,
    Segment,
    StorageWindow,
    Table,
    WatchedFacts,
)
from loaderbench.recording.record import (
    Advice,
    ArmFigures,
    BusyWitnesses,
    ContentionBy,
    ContentionFigures,
    CpuFigures,
    DeviceFigures,
    DoseFigures,
    Estimate,
    KernelGap,
    PreparationFigures,
    RateChange,
    Residency,
    Residual,
    RunRecord,
    ShortRun,
    SlowFolder,
    Stage,
    StepTimes,
    StorageFigures,
    Timing,
    TransferFigures,
    Verdict,
    finite,
)

STAGES = ("read", "decode", "augment", "collate")
SPANS_STREAM = 10
"""Of random numbers: another one than those of the arms that are drawn."""
STEADY_S, LAG_S = 5.0, 1.0
"""NVML and GPM are compared with a trace over windows of STEADY_S seconds, their first LAG_S left out: GPM smears the
edges of 1 s windows by up to 8 points and is within about 1.5 over 5 s (measured on an H200)."""
IDLE_FRACTION = 0.02
"""A storage that moved less than this fraction of the requested bytes was idle: others may use a shared disk."""


def analyze(run: Run) -> RunRecord:
    """The whole record of a run."""
    record = RunRecord(
        schema=SCHEMA,
        rules_version=RULES_VERSION,
        run_id=run.run_id,
        status=run.status,
        failure=run.failure,
        case=run.case,
        environment=run.environment,
        started_at=run.started_at,
        wall_s=run.wall_s,
        caveats=tuple(run.caveats),
        tag=run.tag,
    )
    if run.recording is None:
        return record
    judged = judged_run(run, run.recording)
    if judged is None:
        return replace(record, caveats=(*run.caveats, *run.recording.caveats, Caveat("real_not_measured")))
    figures = judged.record(record)
    if run.status not in ("ok", "interrupted") and figures.verdict is not None:  # the failure is to be mended first
        figures = replace(figures, verdict=replace(figures.verdict, advice=()))
    figures = replace(figures, caveats=(*run.caveats, *run.recording.caveats, *caveats_of(judged, figures)))
    return finite(figures if judged.facts.watched is None else enforced(figures))


def predicted_gain(run: Run, change: Change) -> Estimate | None:
    """The gain of another case, by replay; None where a part of it is not known, or the run has no complete step."""
    judged = None if run.recording is None else judged_run(run, run.recording)
    if judged is None or judged.usable_cpus is None or judged.facts.watched is not None:
        return None
    predictions = judged.predictions(judged.usable_cpus)
    return None if predictions is None else predictions.predict(change)


def judged_run(run: Run, recording: Recording) -> Judged | None:
    """What is computed from a run; None before a complete step of `real`."""
    slow = slowness_of(run.case, recording)
    stood = slow.standstills
    whole = recording.segments if stood is None else whole_periods(recording.segments, stood.period_s)
    storage_works = has_processes(recording.facts.storage) and _storage_works(recording)
    segments = beside_the_same(whole, storage_works=storage_works)
    on_host_cpus = recording.facts.device.on_host_cpus
    arms = join_arms(segments, lanes_of(run, recording), stood, on_host_cpus=on_host_cpus)
    crowd = crowd_of(segments, storage_works=storage_works)
    return Judged(run, recording, arms, slow, crowd) if Arm.REAL in arms else None


def lanes_of(run: Run, recording: Recording) -> int:
    """Workers that make batches side by side: of a watched loader those that gave some."""
    workers = run.case.feed.workers
    return run.case.feed.lanes if recording.facts.watched is None else max(1, giving_workers(recording, workers))


@dataclass(frozen=True)
class Judged:
    """One run and everything computed from it, each part when first needed."""

    run: Run
    recording: Recording
    arms: Mapping[Arm, ArmSteps]
    slowness: Slowness
    """What makes the storage slow."""
    crowd: Crowd | None

    @property
    def case(self) -> Case:
        return self.run.case

    @property
    def ended_early(self) -> bool:
        """By the user, an error or the death of its process: what is looked at behind the rounds is not there."""
        return self.facts.rounds.stopped_by == "interrupted"

    @property
    def facts(self) -> Facts:
        return self.recording.facts

    @property
    def real(self) -> ArmSteps:
        return self.arms[Arm.REAL]

    @cached_property
    def spans(self) -> Table | None:
        """Spans of the real arm's window batches (those delivered after the warm-up)."""
        tables = []
        for segment in self.recording.of(Arm.REAL):
            if segment.spans is None:
                return None
            tables.append(segment.spans[segment.num_warmup : len(segment.steps)])
        return np.concatenate(tables) if tables and sum(len(table) for table in tables) else None

    @cached_property
    def starved_fraction(self) -> float | None:
        """Share of the workers' time on a batch in which they were runnable but not running (schedstat)."""
        return self._part_of_spans("runqueue_ns")

    @cached_property
    def runnable_fraction(self) -> float | None:
        """Share of the workers' time on a batch in which they ran or were runnable."""
        running, starved = self._part_of_spans("cpu_ns"), self.starved_fraction
        return None if running is None or starved is None else min(1.0, running + starved)

    def _with_suspended(self, counted: float | None) -> float | None:
        return None if counted is None else counted + self._suspended_part

    @property
    def _suspended_part(self) -> float:
        """Share of the workers' time on a batch in which they were on a processor that another guest had; no counter of
        a thread holds it."""
        seen = self.processors.get(Arm.REAL)
        if seen is None or not seen.own > 0 or self.starved_fraction is None or self.runnable_fraction is None:
            return 0.0
        ran = self.runnable_fraction - self.starved_fraction
        return min(1.0 - self.runnable_fraction, ran * seen.suspended / seen.own)

    def _part_of_spans(self, name: str) -> float | None:
        """A column of the spans ÷ the workers' time on their batches; None where the loader does not tell it."""
        spans = self.spans
        if spans is None or (spans[:, SPAN[name]] < 0).any():
            return None
        wall = (spans[:, SPAN["ready_ns"]] - spans[:, SPAN["start_ns"]]).sum()
        threads = (spans[:, [SPAN[f"{stage}_ns"] for stage in STAGES]]).sum()
        return float(spans[:, SPAN[name]].sum() / max(wall, threads, 1))

    @cached_property
    def storage(self) -> StorageFigures | None:
        if self.facts.watched is not None:  # which files a script reads is not seen
            return None
        return storage_figures(self.case, self.recording, self.slowness)

    @cached_property
    def model(self) -> Model:
        return Model(
            arms=self.arms,
            reads_files=self.facts.loader.decodes,
            owns_transfer=self.facts.loader.owns_transfer,
            synchronous=self.case.feed.workers == 0,
            overlap=self.facts.device.overlap,
            storage_idle=self.storage is not None and self.storage.idle_proof is not None,
            starved=self._with_suspended(self.starved_fraction),
            runnable=self._with_suspended(self.runnable_fraction),
            processors=self.processors,
            crowd=self.crowd,
            on_host_cpus=self.facts.device.on_host_cpus,
            copies=self.facts.device.copies,
            stalls_missed=self.slowness.missed,
            fetch_usable=self.slowness.fetch_saw is not False,
            rate_capped=self.slowness.kind == "bandwidth",
            queue=self._queue(),
            watched=None if self.facts.watched is None else self._watched(),
        )

    def _watched(self) -> Watched:
        """Where the workers' spans are not known the timeline alone tells, and nothing tells the storage from
        preparation."""
        spans, response = self.spans, self.responses.get("host")
        of_many = self.recording.rank is not None
        low = None if response is None else response.value.low
        if spans is None:
            waits = Quantity.of(self.real, "wait")
            part = self.waiting_part if self.shadow_part is None else self.shadow_part
            return Watched(
                part, waits, low, knows_arrivals=False, behind_threads_s=self._behind_threads_s(),
                of_many_ranks=of_many,
            )  # fmt: skip
        lanes = lanes_of(self.run, self.recording)
        busy = (spans[:, SPAN["ready_ns"]] - spans[:, SPAN["start_ns"]]).astype(np.float64)
        rounds = blocks_of([[busy, spans[:, SPAN["read_ns"]].astype(np.float64)]], lanes)
        drawn = draws_of_mean(rounds, stream=SPANS_STREAM)
        mean_busy, mean_read = rounds.means()
        known = (spans[:, SPAN["runqueue_ns"]] >= 0).all()
        read = (spans[:, SPAN["page_bytes"]].clip(0).sum() > 0) or (spans[:, SPAN["major_faults"]].sum() > 0)
        part = Quantity(mean_read / mean_busy, drawn[:, 1] / drawn[:, 0], len(rounds)) if known and read else None
        if part is not None:
            lost = self._suspended_part
            part = Quantity(part.value - lost, part.draws - lost, part.n).at_least(0.0)
        if not known:
            part = self.shadow_part
        busy_s = Quantity(mean_busy / lanes / 1e9, drawn[:, 0] / lanes / 1e9, len(rounds))
        return Watched(
            part, busy_s, low, knows_arrivals=True, lanes=lanes, of_many_ranks=of_many,
            reads_nothing=bool(known and (spans[:, SPAN["page_bytes"]] == 0).all() and not read),
        )  # fmt: skip

    def _behind_threads_s(self) -> float:
        """Of a step of a script whose loader tells nothing: for how long at most other Python threads of its process
        may have held it up. Its thread neither waited for a batch nor ran nor wanted a processor so long, and they ran.
        They may have made its batches, with Python's lock."""
        if not self.facts.device.on_host_cpus or self.recording.rank is not None:  # for the device, or other ranks
            return 0.0
        blocked = ran = 0.0
        for one in self.recording.of(Arm.REAL):
            cpu = one.cpu
            if cpu is None or cpu.python_threads_s is None or one.consumer_cpu_s is None:
                return 0.0
            rows = one.window
            own_s = float((rows[:, STEP["issued_ns"]] - rows[:, STEP["returned_ns"]]).sum()) / 1e9
            blocked += max(0.0, own_s - one.consumer_cpu_s - (cpu.consumer_queued_s or 0.0))
            ran += cpu.python_threads_s
        return min(blocked, ran) / self.real.num_steps

    def _prep_s(self) -> float | None:
        """Worker seconds of a batch besides reading; None where the loader does not tell."""
        spans = self.spans
        if spans is None:
            return None
        return float(sum(spans[:, SPAN[f"{stage}_ns"]].mean() for stage in STAGES if stage != "read")) / 1e9

    def _queue(self, prep_s: float = 0.0) -> Queue | None:
        """The loader's queue over slow files or stalls; None where there are none. `prep_s`: of a batch."""
        found, feed = self.slowness, self.case.feed
        known = found.real or (found.fetch if self.facts.loader.traits.format is None else None)
        if known is None or (found.tail is None and found.stalls is None):  # of containers, no read is one image
            return None
        depth = self.facts.loader.traits.buffer_batches(feed)
        # What a file takes in the workers depends on what else they do; `fetch` does nothing else.
        reads = found.fetch if not prep_s and found.fetch_saw and found.fetch is not None else known
        workers = feed.workers if found.real is not None else known.readers
        ahead = known.readers if workers and known.readers != workers else 0
        return Queue(
            reads, found.stalls, self.case.step.batch_size, workers, depth, prep_s, spread_of_met(reads, found),
            found.tail.share if found.stalls is None and found.tail is not None else 1.0, io_threads=ahead,
        )  # fmt: skip

    @cached_property
    def processors(self) -> Mapping[Arm, Processors]:
        return processors_of(self.recording, storage_works=_storage_works(self.recording))

    @cached_property
    def attribution(self) -> Attribution:
        found = attribute(
            self.model,
            storage_idle=_storage_idle(self.storage),
            doubts=[*_doubts(self.case, self.facts, self.storage), *_against_the_delays(self.doses)],
        )
        return replace(found, verdict=self._of_few_steps(found.verdict))

    def _of_few_steps(self, found: Verdict) -> Verdict:
        """A run that is too short for the rules alone may still show, batch by batch, what limits it at least, once
        each of its workers gave a batch."""
        too_few = [one.code for one in found.reasons] == ["too_few_steps"]
        if not too_few or self.replays is None or self.real.num_steps < max(2, self.replays.fitted.real.workers):
            return found
        bound = at_least(self.replays)
        if bound is None:
            return found
        cause, gain = bound
        return replace(
            found, bottleneck=cause, reasons=(), speedup_if_removed={**found.speedup_if_removed, cause: gain}
        )

    @cached_property
    def shadow_part(self) -> Quantity | None:
        """The part of a sample that is its storage's, by the shadow reader."""
        seen = self.facts.watched
        return None if seen is None or seen.shadow is None else storage_part(seen.shadow.reads)

    @cached_property
    def waiting_part(self) -> Quantity | None:
        """The part of its loader's time in which a script whose workers are not known waits for what is read, by all
        processors that it wants. A loader that works on a device wants none meanwhile."""
        seen = self.facts.watched
        if seen is None or seen.no_spans is None or not self.facts.device.on_host_cpus:
            return None
        return waiting_part(self.recording.of(Arm.REAL))

    @cached_property
    def responses(self) -> Mapping[Place, Response]:
        return {} if self.facts.watched is None else responses(self.recording.segments)

    @cached_property
    def doses(self) -> tuple[DoseFigures, ...]:
        return doses(self.responses, self.model)

    @cached_property
    def transfer(self) -> TransferFigures | None:
        return transfer_figures(self.recording, self.arms)

    @cached_property
    def kernel_gap(self) -> KernelGap | None:
        """None where no window was traced, or the trace is incomplete."""
        traced = self.traced
        if traced is None or kernels.missing(traced):
            return None
        return kernels.summarize(traced, self.recording.of(Arm.UNTRACED))

    @cached_property
    def traced(self) -> Segment | None:
        """The window that was traced, else the last steps of `real` of which the device keeps a log."""
        known = [one for one in self.recording.segments if one.kernels is not None and one.trace is not None]
        own = [one for one in known if one.arm is Arm.TRACED] or [one for one in known if one.arm is Arm.REAL]
        return kernels.traced_part(own[-1]) if own else None

    # -- the record ----------------------------------------------------------------------------------------

    def record(self, begun: RunRecord) -> RunRecord:
        """The record with all figures; the caller adds the caveats."""
        real, facts, found = self.real, self.facts, self.attribution
        rate = rate_of(real)
        if rate is not None:
            rate = next_run.rate(rate, self.model, in_line=not self.case.feed.workers)
        return replace(
            begun,
            throughput=rate,
            step_time_s=_step_times(real),
            total_time_s=real.seconds,
            num_steps=real.num_steps,
            time_to_first_batch_s=self._first_batch_s(),
            start_s=dict(facts.startup.phases_s),
            loader_rate=rate_of(self.arms.get(Arm.FREE)),
            ingestion_rate=rate_of(self.arms.get(Arm.DEVICE)),
            accelerator_utilization_fraction=None if found.utilization is None else found.utilization.value,
            accelerator_utilization=found.utilization,
            shares=found.shares if self.facts.watched is None else moved(found.shares, self.verdict, self.named),
            verdict=self.verdict,
            capacities=self._capacities(),
            storage=self.storage,
            transfer=self.transfer,
            stages=self._stages(),
            cpu=self._cpu(),
            contention=self.contention,
            device=self._device(),
            loader=facts.loader.description,
            overhead_fraction=self._overhead_fraction(),
            overhead_measured_at=self.run.started_at,
            num_failures=facts.failures.num_reads,
            failures=facts.failures.examples,
            sampling_cpu_fraction=self._sampling_fraction(),
            arms={arm: _arm(steps) for arm, steps in self.arms.items()},
            preparation=_preparation(self.recording),
            stopped_by=facts.rounds.stopped_by,
            timing=self._timing(),
            short_run=_short_run(self.case, self.recording, rate),
            doses=self.doses,
            storage_by_shadow=None if self.shadow_part is None else self.shadow_part.estimate("fraction"),
            storage_by_processors=None if self.waiting_part is None else self.waiting_part.estimate("fraction"),
            watched=None if facts.watched is None else replace(facts.watched, consumer_cpu_s=self._consumer_cpu_s()),
            notes=self._notes(),
            residual=self._residual(),
            rate_change=self._rate_change(),
        )

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict with its advice."""
        contention = self.attribution.shares["contention"]
        starved = (self.starved_fraction or 0.0) > STARVED
        found = self._beside_the_model(self.attribution.verdict)
        if self.facts.rounds.stopped_by == "decided":
            found = next_run.of_many_looks(found)
        verdict = next_run.without_contention(found, self.model)
        if self.usable_cpus is None:  # workers that they can feed
            return verdict
        if self.facts.watched is not None:
            verdict = next_run.of_a_script(named(verdict, self.named, self.held_up_by))
            return replace(verdict, advice=self._watched_advice(verdict, self.facts.watched, self.usable_cpus))
        predictions = self.predictions(self.usable_cpus)
        if predictions is None:
            return verdict
        starving = starved or (contention is not None and contention.value > 0.05)
        measured = Measured(predictions, self.model, starving, self.held_up_by, self.storage)
        return replace(verdict, advice=verified(self.run, advise(verdict, measured)))

    def _beside_the_model(self, found: Verdict) -> Verdict:
        """The gain of a stage twice: by the arm without it, and by replay of `real`. There is no verdict where the
        replay shows that the run gains nothing worth it."""
        measured = None if self.recording.rank is not None or self.facts.watched is not None else found.gain
        if measured is None or measured.low is None or measured.high is None or self.replays is None:
            return found
        model = gain_by_model(self.replays, found.bottleneck)
        if model is None or model.high is None or model.high >= WORTH:
            return replace(found, by_model=model)
        details: dict[str, Json] = {"cause": found.bottleneck, "measured": measured.value, "model": model.value}
        return replace(found, bottleneck="undetermined", reasons=(Reason("model_disagrees", details),))

    def predictions(self, cpus: int) -> Predictions | None:
        if self.replays is None:
            return None
        in_memory = self.case.subject.cache == "warm" and not self.model.storage_costs
        told = self.model.fetch_usable or self.replays.fitted.real.standstill is not None
        return Predictions(
            self.replays, cpus, storage_costs=self.model.has_storage and not in_memory,
            storage_known=told and Arm.FETCH in self.arms,
        )  # fmt: skip

    def _rate_change(self) -> RateChange | None:
        """Of a run of our own loop: a script's steps may change by themselves."""
        if self.facts.watched is not None:
            return None
        begun_ns = min(one.opened_ns for one in self.recording.segments)
        return rate_change(self.recording.of(Arm.REAL), lanes_of(self.run, self.recording), begun_ns)

    def _residual(self) -> Residual | None:
        found = held_out_residual(self.run)
        return None if found is None else Residual(*found)

    @cached_property
    def replays(self) -> Replays | None:
        fitted = fit(self.run)
        return None if fitted is None else Replays(fitted)

    @property
    def held_up_by(self) -> ContentionBy | None:
        """Who kept the processors from the run."""
        return None if self.contention is None else self.contention.by

    @cached_property
    def named(self) -> Named | None:
        """What samples of the script's threads say, and what its loader's counts do."""
        seen = self.facts.watched
        if seen is None:
            return None
        known = names(self.recording, self.replays, seen, self.usable_cpus)
        counted = counted_details(self.replays, seen)
        if known is None:
            return Named(counted, None, (), self.real.mean("duration"), None) if counted else None
        return replace(known, details=(*known.details, *counted))

    def _watched_advice(self, verdict: Verdict, seen: WatchedFacts, cpus: int) -> tuple[Advice, ...]:
        return advise_watched(
            self.run, self.replays, verdict, self.model, seen, cpus=cpus, held_up_by=self.held_up_by, known=self.named
        )  # fmt: skip

    def _notes(self) -> tuple[Reason, ...]:
        seen = self.facts.watched
        if seen is None:
            return ()
        notes = notes_of(seen, self.recording.segments, self.usable_cpus, self.starved_fraction)
        if self.named is not None and any(one.word in ("sampler", "gil") for one in self.named.details):
            notes = [one for one in notes if one.code != "taking_over"]  # it is this that takes so long
        if self.recording.rank is None:
            return tuple(notes)
        place = self.recording.rank.place
        return (Reason("of_many_ranks", {"rank": place.rank, "ranks": place.ranks, "node": place.node}), *notes)

    @property
    def usable_cpus(self) -> int | None:
        """Of this process: a watched script's ranks share their node's. None where an older version did not store
        it."""
        environment, probe, rank = self.run.environment, self.facts.prep_probe, self.recording.rank
        if environment is not None:
            num_local = 1 if rank is None else rank.num_local or 1
            return max(1, environment.cpus_usable // num_local)
        return None if probe is None else probe.num_cpus

    def _consumer_cpu_s(self) -> float | None:
        """CPU seconds a step of the thread that takes batches and issues the work, in `real`; None: unknown."""
        known = [(one.consumer_cpu_s, len(one.window)) for one in self.recording.of(Arm.REAL)]
        told = [(seconds, steps) for seconds, steps in known if seconds is not None]
        steps = sum(steps for _, steps in told)
        return sum(seconds for seconds, _ in told) / steps if steps else None

    def _timing(self) -> Timing | None:
        """None of a watched script, whose own steps are measured as they come."""
        effort, facts = self.case.effort, self.facts
        if facts.watched is not None:
            return None
        took = {arm: sum(one.wall_s or 0.0 for one in self.recording.of(arm)) for arm in (*ARMS, Arm.PREP)}
        asked = effort.steps is None and not effort.until_decided
        return Timing(
            asked_s=effort.duration_s if asked or effort.strict_duration else None,
            wall_s=self.run.wall_s,
            first_answer_s=facts.first_answer_s,
            decided_s=facts.decided_s,
            real_fraction=took[Arm.REAL] / sum(took.values()) if took[Arm.REAL] else None,
        )

    def _first_batch_s(self) -> float | None:
        """Loader construction → first batch delivered, the first time that the data set was read."""
        build, seen = self.facts.startup.build_s.get(Arm.REAL), self.facts.watched
        if seen is not None:
            main = seen.loaders[0]
            return (main.seconds.opening + main.seconds.first) / main.num_iterators
        for segment in self.recording.segments:
            if segment.arm in (Arm.REAL, Arm.FREE) and build is not None and segment.first_batch_s is not None:
                return build + segment.first_batch_s
        return None

    def _capacities(self) -> dict[Stage, Estimate | None]:
        arms = self.arms
        device = arms.get(Arm.DEVICE)
        if self.facts.watched is not None:
            return {stage: self._watched_capacities().get(stage) for stage in get_args(Stage)}
        busy = None if device is None or not np.isfinite(device.mean("busy")) else rate_of(device, "busy")
        # Where the files of `free` are in memory, and asking for them costs nothing, it is the preparation alone.
        in_memory = self.case.subject.cache == "warm" and not self.model.storage_costs
        alone = arms.get(Arm.FREE) if in_memory else None
        return {
            "storage": rate_of(arms.get(Arm.FETCH)) if self.model.fetch_usable else None,
            "prep": rate_of(arms.get(Arm.PREP) or alone),
            "loader": rate_of(arms.get(Arm.FREE)),
            "transfer": rate_of(arms.get(Arm.HOST), "copy"),
            "issue": rate_of(device, "issue"),
            "device": busy or rate_of(device),
        }

    def _watched_capacities(self) -> dict[Stage, Estimate | None]:
        """Of a watched script: what its step takes where the batch is there, and its workers' time on a batch."""
        per_step, model = self.real.num_samples / self.real.num_steps, self.model
        found: dict[Stage, Quantity | None] = {"device": model.times.device}
        if self.spans is not None and model.watched is not None:
            found["loader"] = model.watched.batch_s
        return {
            stage: interval(per_step / one.value, per_step / one.draws, "samples/s", one.n)
            for stage, one in found.items()
            if one is not None and one.value > 0
        }

    def _stages(self) -> dict[str, float] | None:
        """Seconds an image in each stage: wall seconds inside the worker, or those of a loader that counts batches."""
        spans = self.spans
        if spans is None:
            return _operator_stages(self.case, self.recording.of(Arm.REAL))
        samples = len(spans) * self.real.num_samples / self.real.num_steps
        return {stage: float(spans[:, SPAN[f"{stage}_ns"]].sum()) / 1e9 / samples for stage in STAGES}

    def _cpu(self) -> CpuFigures:
        windows, series = windows_of(self.recording, Arm.REAL), self.run.series
        user = counter_rate(channel(series, "process_cpu_user_s"), windows)
        system = counter_rate(channel(series, "process_cpu_system_s"), windows)
        cores = None if user is None or system is None else user + system
        rate = self.real.num_samples / self.real.num_steps / self.real.mean("duration")
        return CpuFigures(
            busy_fraction=gauge_mean(channel(series, "cpu_busy_fraction"), windows),
            cores_used=cores,
            seconds_per_sample=None if cores is None else cores / rate,
            workers_rss_bytes=gauge_mean(channel(series, "process_rss_bytes"), windows),
            workers_pss_bytes=self.facts.loader.workers_pss_bytes,
        )

    @cached_property
    def contention(self) -> ContentionFigures | None:
        seen = self.processors.get(Arm.REAL)
        if seen is None:
            return None
        others = self.model.held_up_by_others and seen.for_others > 0
        return ContentionFigures(
            by=by_whom(seen, others=others, workers=self.case.feed.workers) if seen.waits else None,
            own=seen.own,
            queued=seen.queued,
            neighbours=seen.neighbours,
            neighbours_or_storage=seen.neighbours_or_storage,
            stolen=seen.stolen,
            cpus=seen.cpus,
            quota_cpus=seen.quota_cpus,
            throttled=seen.quota_room > 0,
            others_fraction=seen.for_others,
            pressure_fraction=counter_rate(
                channel(self.run.series, "pressure_cpu_some_s"), windows_of(self.recording, Arm.REAL)
            ),
        )

    def _device(self) -> DeviceFigures:
        facts, real = self.facts.device, self.real
        busy = real.mean("busy") / real.mean("duration")
        if not np.isfinite(busy) and Arm.DEVICE in self.arms:  # the same work; here only held steps tell
            busy = self.arms[Arm.DEVICE].mean("busy") / real.mean("duration")
        windows = windows_of(self.recording, Arm.REAL)
        nvml = {one.name: sampled(one, windows) for one in self.run.series if one.name.startswith("gpu_")}
        issued = [ns for one in self.recording.segments if one.held is not None for ns in one.held.issue_ns]
        drifts = [one.clock_drift_ns for one in self.recording.of(Arm.REAL) if one.clock_drift_ns is not None]
        return DeviceFigures(
            kind=facts.kind,
            name=facts.name,
            emulated=facts.emulated,
            overlap=facts.overlap,
            memory_bytes=facts.memory_bytes,
            details=facts.details,
            busy_fraction=float(busy) if np.isfinite(busy) else None,
            kernel_gap=self.kernel_gap,
            busy_witnesses=self._busy_witnesses(),
            memory_peak_bytes=self.facts.peak_memory_bytes,
            nvml=nvml or None,
            clock_drift_ns=max(drifts, key=abs, default=None),
            held_issue_s=float(np.median(issued)) / 1e9 if issued else None,
        )

    def _busy_witnesses(self) -> BusyWitnesses | None:
        """Busy fraction of the device, by each source that can tell; None from NVML: no steady window."""
        gap, series = self.kernel_gap, self.run.series
        if gap is None:
            return None
        steady = [
            (begin + int(LAG_S * 1e9), end)
            for begin, end in windows_of(self.recording, Arm.REAL)
            if end - begin >= (STEADY_S + LAG_S) * 1e9
        ]
        return BusyWitnesses(
            kernels=gap.kernel_fraction,
            nvml=gauge_mean(channel(series, "gpu_utilization_fraction"), steady),
            gpm=gauge_mean(channel(series, "gpu_gpm_graphics_fraction"), steady),
            events_at_most=gap.event_busy_fraction,
        )

    def _sampling_fraction(self) -> float | None:
        """The fraction of one processor that the sampling thread uses."""
        if self.run.sampling_cpu_s is None or not self.run.wall_s > 0:
            return None
        return self.run.sampling_cpu_s / self.run.wall_s

    def _overhead_fraction(self) -> float | None:
        """Fraction of the step that measuring takes: the loop's own stamps, and the sampling's part of the CPUs."""
        watched = self.facts.watched
        if watched is not None:
            return None if watched.own_s is None or not watched.wall_s > 0 else watched.own_s / watched.wall_s
        loop_s, sampling, environment = self.facts.loop_overhead_s, self._sampling_fraction(), self.run.environment
        if loop_s is None or sampling is None or environment is None:
            return None
        return loop_s / self.real.mean("duration") + sampling / environment.cpus_usable


# -- figures -----------------------------------------------------------------------------------------------


def rate_of(arm: ArmSteps | None, quantity: str = "duration") -> Estimate | None:
    """Samples/s of an arm: samples a step ÷ mean seconds a step, from the window's totals and not a mean of rates."""
    if arm is None or not arm.mean(quantity) > 0:
        return None
    per_step = arm.num_samples / arm.num_steps
    draws = per_step / np.maximum(arm.drawn(quantity), 1e-12)
    return interval(per_step / arm.mean(quantity), draws, "samples/s", arm.num_blocks)


def _step_times(real: ArmSteps) -> StepTimes:
    p50, p95, p99 = (float(q) for q in np.percentile(real.all("duration"), [50, 95, 99]))
    return StepTimes(real.mean("duration"), p50, p95, p99)


def _arm(steps: ArmSteps) -> ArmFigures:
    estimate = interval(steps.mean("duration"), steps.drawn("duration"), "s", steps.num_blocks)
    return ArmFigures(estimate, steps.num_steps, steps.seconds)


def _preparation(recording: Recording) -> dict[Arm, PreparationFigures]:
    found = {arm: preparation(recording.of(arm)) for arm in ARMS_ALIKE}
    return {
        arm: PreparationFigures(one.cpu_s.estimate("s"), one.minor_faults)
        for arm, one in found.items()
        if one is not None
    }


def _short_run(case: Case, recording: Recording, steady: Estimate | None) -> ShortRun | None:
    """Runs that begin with a full prefetch buffer against the steady rate; None: not asked for.

    The clock of a short run starts when it asks for its first batch and ends when its last step is done.
    """
    segments = recording.of(Arm.SHORT)
    if not segments:
        return None
    rates = []
    for segment in segments:
        steps = segment.window
        taken_s = (steps[-1, STEP["done_ns"]] - steps[0, STEP["called_ns"]]) / 1e9
        value = float(steps[:, STEP["num_samples"]].sum() / taken_s)
        rates.append(Estimate(value, None, None, "samples/s", 1, "one short run"))
    rate, num_steps = rate_of_runs(rates), len(segments[0].window)
    depth = recording.facts.loader.traits.buffer_batches(case.feed)
    return ShortRun(
        num_steps=num_steps,
        buffer_batches=depth,
        buffer_ratio=depth / num_steps,
        buffer_full=all(segment.steady for segment in segments),
        throughput=rate,
        flatters=ratio_of([steady], [rate]),
    )


def _operator_stages(case: Case, segments: Sequence[Segment]) -> dict[str, float] | None:
    """Thread seconds an image in each stage of a loader that counts whole batches (DALI); None where it cannot.

    An operator has all threads to itself, so its wall time × the number of threads is the thread time of an image, as
    in a worker process; reading has one thread.
    """
    counted = [segment.stage_times for segment in segments if segment.stage_times]
    found = {}
    for stage in counted[0] if counted else ():
        batches = sum(times[stage][0] for times in counted)
        ns = sum(times[stage][1] for times in counted)
        if batches:
            lanes = 1 if stage == "read" else case.feed.lanes
            found[stage] = ns / 1e9 / batches / case.step.batch_size * lanes
    return found if "decode" in found else None


def slowness_of(case: Case, recording: Recording) -> Slowness:
    """What makes the storage slow, by the times of single files and the storage probe."""
    readers = recording.facts.loader.num_readers or case.feed.lanes
    return slowness(recording, readers, idle=_moved_nothing(recording))


def _moved_nothing(recording: Recording) -> bool:
    """Whether a counter proves that the storage did nothing in the windows of `real`."""
    facts = recording.facts
    return probed.is_idle(facts.storage, _storage_windows(recording), in_processes=facts.loader.traits.can_be_cold)


def _storage_works(recording: Recording) -> bool:
    """Whether the storage may have had work to do in the windows that read from it."""
    return recording.facts.loader.decodes and not _moved_nothing(recording)


def _storage_windows(recording: Recording) -> list[StorageWindow]:
    """What the storage did in the windows of `real`; empty where not all of them tell."""
    segments = recording.of(Arm.REAL)
    told = [one.storage for one in segments if one.storage is not None]
    return told if len(told) == len(segments) else []


def storage_figures(case: Case, recording: Recording, slow: Slowness) -> StorageFigures | None:
    """What the storage did in the real arm; None for a loader that reads no files."""
    facts = recording.facts
    if not facts.loader.decodes:
        return None
    segments = recording.of(Arm.REAL)
    windows = _storage_windows(recording)
    moved = probed.moved_by(facts.storage, windows, in_processes=facts.loader.traits.can_be_cold)
    expected = float(sum(one.storage.expected_bytes for one in segments if one.storage is not None))
    seconds = sum((segment.closed_ns - segment.opened_ns) / 1e9 for segment in segments)
    before = mean_of_all([window.residency_before for window in windows])
    after = mean_of_all([window.residency_after for window in windows])
    ratio = moved.read_bytes / expected if moved.read_bytes is not None and expected else None
    ceiling = probed.describe(facts.storage.ceiling, facts.loader.num_readers or case.feed.lanes)
    slowdown = probed.cold_read_ratio(facts.cache.cold_reads)
    proof = probed.cold_proof(windows, ratio, slowdown) if windows and facts.cache.state == "cold" else None
    return StorageFigures(
        bytes_read=moved.read_bytes,
        expected_bytes=int(expected),
        moved_fraction=ratio,
        bandwidth_bytes_per_s=moved.read_bytes / seconds if moved.read_bytes is not None and seconds else None,
        reads_per_s=moved.reads / seconds if moved.reads is not None and seconds else None,
        mean_file_bytes=_mean_file_bytes(facts),
        ceiling_bytes_per_s=None if ceiling is None else ceiling.bytes_per_s.value,
        ceiling=ceiling,
        source=facts.storage.source,
        cache_state=_cache_state(facts.cache.state, ratio, before),
        residency_fraction=Residency(before, after),
        cold_proven=proof is not None,
        nfs=probed.nfs_operations(moved.counters, seconds) if seconds else None,
        cold_proof=proof,
        cold_read_ratio=slowdown,
        idle_proof=facts.storage.kind if _moved_nothing(recording) else None,
        others_read_bytes=moved.others_read_bytes,
        kind=slow.kind,
        latency_of=slow.latency_of,
        reads=slow.reads,
        tail=slow.tail,
        stalls=slow.stalls,
        fetch_saw=slow.fetch_saw,
        slow_folder=_slow_folder(facts, slow),
    )


def _slow_folder(facts: Facts, slow: Slowness) -> SlowFolder | None:
    uneven = slow.tail is not None or slow.stalls is not None
    return None if slow.real is None or uneven else slow_folder(slow.real, facts.storage)


def _mean_file_bytes(facts: Facts) -> float | None:
    num_images, image_bytes = facts.storage.num_images, facts.storage.image_bytes
    return image_bytes / num_images if num_images and image_bytes else None


def _cache_state(wanted: CacheState, moved_fraction: float | None, resident: float | None) -> CacheState:
    """The cache state that the arm `real` found: `cold` only where the page cache did not serve it."""
    if moved_fraction is None:  # nothing counts the bytes: what was in memory before need not have been read
        moved_fraction = None if resident is None else 1 - resident
    if wanted != "cold" or moved_fraction is None or moved_fraction >= probed.SERVED_BY_CACHE:
        return wanted
    return "warm" if moved_fraction <= 1 - probed.SERVED_BY_CACHE or (resident or 0.0) >= 0.99 else "as-is"


def _doubts(case: Case, facts: Facts, storage: StorageFigures | None) -> list[Reason]:
    """Why the arms did not measure what they should."""
    if facts.watched is not None and facts.watched.uses_cuda and not facts.watched.device_stamped:
        return [Reason("device_not_stamped", {"reason": facts.watched.no_device_stamps})]
    if case.subject.cache != "cold" or storage is None:
        return []
    if storage.cache_state != "cold":
        details: dict[str, Json] = {"moved_fraction": storage.moved_fraction}
        return [Reason("served_by_page_cache", {**details, "resident_before": storage.residency_fraction.before})]
    ratio = storage.cold_read_ratio
    if storage.moved_fraction is None and ratio is not None and ratio < probed.SLOW_READ:
        return [Reason("read_as_fast_as_memory", {"ratio": ratio})]
    return []


def _against_the_delays(found: Sequence[DoseFigures]) -> list[Reason]:
    """Why known delays speak against what bursts and the timeline say."""
    return [
        Reason("delays_disagree", {"response": one.response.value, "expected": list(one.expected or ())})
        for one in found
        if one.agrees is False
    ]


def _storage_idle(storage: StorageFigures | None) -> bool:
    """Everything was in memory, and the storage's counter agrees. False where no counter can tell, and where an NFS
    server was asked for anything else."""
    if storage is None or storage.moved_fraction is None or storage.nfs is not None:
        return False
    return storage.cache_state == "warm" and storage.moved_fraction < IDLE_FRACTION


def transfer_figures(recording: Recording, arms: Mapping[Arm, ArmSteps]) -> TransferFigures | None:
    """The copy to the device: how long it takes, how much of that the step time shows, and at what rate.

    From the arm `host`, where data are always ready. None without that arm, and where nothing is copied.
    """
    copy, host, device = recording.facts.copy, arms.get(Arm.HOST), arms.get(Arm.DEVICE)
    if host is None or device is None or copy.link_bytes_per_s is None or copy.batch_bytes is None:
        return None
    copy_s = host.mean("copy")
    if not copy_s > 0:
        return None
    exposed_s = max(0.0, host.mean("duration") - device.mean("duration"))
    return TransferFigures(
        overlap=recording.facts.device.overlap,
        bytes_per_step=copy.batch_bytes,
        copy_s=copy_s,
        exposed_s=exposed_s,
        hidden_s=max(0.0, copy_s - exposed_s),
        link_bytes_per_s=copy.batch_bytes / copy_s,
        ceiling_bytes_per_s=copy.link_bytes_per_s,
        pinned=copy.pinned,
    )


def mean_of_all(values: Sequence[float | None]) -> float | None:
    """Their mean; None where one is unknown, or there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
