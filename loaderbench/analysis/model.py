"""What the arms say about a run: the step time of each, which parts of a step run in series and which overlap, and the
step time that is left when a cause is removed.

The rules are those of docs/method.md, `Arms`, `Shares` and `Gain without a cause`. Facts in, figures out: nothing here
runs, reads a clock or knows how the facts came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from loaderbench.analysis.processors import Crowd, Processors, available
from loaderbench.analysis.quantities import Draws, Quantity, largest
from loaderbench.analysis.read_queue import Queue
from loaderbench.analysis.statistics import pool_adjacent_violators
from loaderbench.analysis.steps import STALLED_FRACTION, ArmSteps, chance_of_so_short
from loaderbench.cases.arms import CHAIN, Arm
from loaderbench.recording.facts import MAX_STEPS_IN_FLIGHT
from loaderbench.recording.record import STAGES, Cause, Removable

WORTH = 1.10
"""A cause counts as a bottleneck from this speed-up on."""
AGREEMENT = 0.05
"""Two witnesses may differ by this fraction of the step time, or by their interval where that is wider. An arm may be
faster by as much than an arm that does less. A machine's speed moves by 2 % from one round to the next."""
CONTRADICTION = 2.0
"""Arms are out of order if their difference exceeds this many half-widths of its 95 % interval. One would be exceeded
by chance in one run of 13 whose storage, preparation and copy cost nothing: three pairs, 2.5 % each."""
QUEUED = 0.10
"""Where the run's threads waited behind each other for more than this part of the time in which they could have run,
the others' part alone tells too little of contention."""
HOST_BOUND = 0.95
"""A host that is in `next()` or issuing for this part of the step does not wait for the device."""
NEAR_ONE = 0.7
"""A known delay in each step that lengthens it by more than this part shows that the step paces the run."""
LEAST_BURSTS = 4
"""Fewer steps of a watched script with data ready do not tell their spread; the timeline then tells the step."""
UNLIKELY = 0.01
"""Chance by which steps of the run as it is, taken at random, would be as short as those in bursts."""
OWN_GROWTH = 0.25
"""Of a watched script's step: by so much more than its threads wait for processors its own step may be longer than in
bursts, beside workers that share memory and caches with it. What is beyond contradicts the timeline."""
NOTHING = 1e-3
"""Of what is left of a step."""
HARDLY = 0.02
"""Of a step: what is no more may be the drift of the machine."""
STALLED_ROUNDS = 0.7
"""The loader paces the run if the device waited for data in more than this fraction of the workers' rounds."""


@dataclass(frozen=True)
class Violation:
    """An arm that ran surely faster than one that does less."""

    faster: Arm
    faster_s: float
    slower: Arm
    slower_s: float


@dataclass(frozen=True)
class Times:
    """Mean step times of the arms, made monotone, with their draws. None: not measured."""

    real: Quantity
    ram: Quantity | None
    host: Quantity | None
    device: Quantity | None
    busy: Quantity | None
    """The device's compute, without the gaps between its kernels."""
    free: Quantity | None
    prep: Quantity | None
    fetch: Quantity | None
    violation: Violation | None


def arm_times(arms: Mapping[Arm, ArmSteps], *, has_storage: bool) -> Times:
    """Mean step times with the order device ≤ host ≤ ram ≤ real enforced by pool-adjacent-violators.

    Without a storage under the loader `ram` = `real`: they differ by the machine's drift alone.
    """
    chain = [arm for arm in CHAIN if arm in arms and (has_storage or arm is not Arm.RAM)]
    raw = np.array([arms[arm].mean("duration") for arm in chain])
    drawn = np.stack([arms[arm].drawn("duration") for arm in chain], axis=1)
    fitted, fitted_draws = pool_adjacent_violators(raw), pool_adjacent_violators(drawn)
    times = {arm: Quantity(float(fitted[k]), fitted_draws[:, k], arms[arm].num_blocks) for k, arm in enumerate(chain)}
    violation = None
    for k in range(1, len(chain)):
        excess, told = raw[k - 1] - raw[k], min(arms[arm].num_blocks for arm in chain[k - 1 : k + 1]) > 1
        width = float(np.std(drawn[:, k - 1] - drawn[:, k])) * 1.96
        if told and excess > max(CONTRADICTION * width, AGREEMENT * raw[-1]):
            violation = Violation(chain[k], float(raw[k]), chain[k - 1], float(raw[k - 1]))
    device, busy = times.get(Arm.DEVICE), None
    if device is not None and np.isfinite(arms[Arm.DEVICE].mean("busy")):
        busy = Quantity.of(arms[Arm.DEVICE], "busy").at_most(device)

    def plain(arm: Arm) -> Quantity | None:
        return Quantity.of(arms[arm], "duration") if arm in arms else None

    ram = times.get(Arm.RAM)
    return Times(
        real=times[Arm.REAL],
        ram=ram if has_storage else times[Arm.REAL],
        host=times.get(Arm.HOST),
        device=device,
        busy=busy,
        free=plain(Arm.FREE),
        prep=plain(Arm.PREP),
        fetch=plain(Arm.FETCH),
        violation=violation,
    )


@dataclass(frozen=True)
class Watched:
    """Of a script's own loader, by its workers' spans."""

    off_processor: Quantity | None
    """Of the workers' time on a batch, the part in which the data set's code neither ran nor wanted to run: it waited
    for what it read. None where that is not known, or it read nothing."""
    batch_s: Quantity
    """Seconds a batch, of all workers together."""
    response: float | None
    """Low end of the part by which known delays lengthened the steps; None where there were none, or too few."""
    knows_arrivals: bool
    """Whether the stalls end when a batch was complete, not when it was handed over."""
    lanes: int = 1
    """Workers; a batch costs one of them so many times `batch_s`."""
    behind_threads_s: float = 0.0
    """Seconds a step by which other Python threads of its process may hold it up: they may make its batches there."""
    of_many_ranks: bool = False
    """It steps together with others: in its own steps it waits for theirs."""
    reads_nothing: bool = False
    """Its workers' times are known, and that they asked for no byte."""


@dataclass(frozen=True)
class Model:
    """One run by its arms; `real` must be among them."""

    arms: Mapping[Arm, ArmSteps]
    reads_files: bool
    """False for a loader without files (synthetic, cached)."""
    owns_transfer: bool
    """The loader delivers batches on the device, so that there is no `host` arm."""
    synchronous: bool
    """The loader works inside `next()` (no workers), in series with issuing."""
    overlap: bool
    """Copies run beside the compute of earlier steps."""
    storage_idle: bool = False
    """The storage provably had nothing to do in `real`."""
    starved: float | None = None
    """Of the workers' time on a batch, the part in which they were runnable but not running; None where unknown."""
    runnable: float | None = None
    """Of the same time, the part in which they ran or were runnable: they waited for nothing but a processor."""
    processors: Mapping[Arm, Processors] = field(default_factory=dict)
    """Who had the processors, by arm; empty where unknown."""
    crowd: Crowd | None = None
    """What the loader alone got of them beside others; None where these kept none from it, or where unknown."""
    on_host_cpus: bool = False
    """The device computes on the processors that the loader works on."""
    copies: bool = True
    """Batches are copied to the device. Without that `host` differs from `device` by the machine's drift alone."""
    stalls_missed: tuple[float, float] | None = None
    """Part of the time in which the storage stood still, and that of the windows of `real`, where these met too little
    of it."""
    fetch_usable: bool = True
    """False where `fetch` did not meet the slow files or stalls that `real` met: it tells nothing of the step then."""
    rate_capped: bool = False
    """The storage's rate is what `fetch` found, whatever else works on these processors."""
    queue: Queue | None = None
    """The loader's queue, over a storage with slow files or stalls, if preparation cost nothing."""
    watched: Watched | None = None
    """Given for a script that was watched: what stands in for arms that only our own loop can measure."""

    @property
    def stages(self) -> tuple[Cause, ...]:
        """The stages that the run has."""
        return tuple(stage for stage in STAGES if self.copies or stage != "transfer")

    @property
    def has_storage(self) -> bool:
        """Whether the storage can be a part of the step."""
        return self.reads_files and not self.storage_idle

    @property
    def storage_costs(self) -> bool:
        """Whether the storage is a part of the step that is worth removing, or nothing says that it is not. Files in
        memory may be asked for all the same: a server or a daemon answers each open."""
        gain = self.gains.get("storage")
        return self.has_storage and (gain is None or gain.value >= WORTH)

    @cached_property
    def times(self) -> Times:
        if self.watched is None:
            return arm_times(self.arms, has_storage=self.has_storage)
        told = {arm: steps for arm, steps in self.arms.items() if arm is not Arm.DEVICE or self._ready_arm is not None}
        return self._with_stand_ins(arm_times(told, has_storage=self.has_storage), self.watched)

    @cached_property
    def _ready_arm(self) -> ArmSteps | None:
        """A watched script's steps with data ready; None where there are too few to know their spread, or to stand for
        all of its steps, or where they are longer than those of the run as it is: then data were not ready in them.

        Of steps that take unlike times (batches of a gradient accumulation that are taken first, and worked on behind
        the last of them) a few can all be of one kind, and look alike. Those in bursts stand for all if it would be too
        great a chance that they are so short: then steps are unlike since the loader works beside them. The loader
        makes steps of each kind longer, too, so that it must be a chance that they are nearly so short.
        """
        bursts, real = self.arms.get(Arm.DEVICE), self.arms[Arm.REAL]
        if bursts is None or bursts.num_blocks < LEAST_BURSTS:
            return None
        if bursts.mean("duration") > (1.0 + AGREEMENT) * real.mean("duration"):
            return None
        stand = not bursts.of_unlike or chance_of_so_short(bursts, real) < UNLIKELY
        return bursts if stand else None

    def _with_stand_ins(self, times: Times, watched: Watched) -> Times:
        """The times of arms that a watched script does not run, from its timeline and its workers' spans
        (docs/watch-method.md, `Where the figures come from`)."""
        real, steps = times.real, self.arms[Arm.REAL]
        stall = Quantity.of(steps, "stall")
        device = real - stall if times.device is None else times.device
        if watched.of_many_ranks and device is times.device:
            # In a burst the batches of all ranks are there: such a step lacks the waits for other ranks' batches too.
            device = largest(device, real - self.data_stall(Arm.REAL))
        if self.steps_pace:  # it waits only while batches that are ready are handed over
            device = real
        times = replace(times, device=device)
        part = watched.off_processor
        if part is None or not self.has_storage:
            return times
        if self.synchronous:
            waited = stall * part
            return replace(times, ram=real - waited, fetch=device + waited)
        loader = real if self.loader_paces else watched.batch_s.at_most(real)
        # No step gains more than the loader's reading: what else it is longer than with data ready is not storage's.
        rest = largest(device, real - loader * part).at_most(real)
        return replace(times, ram=rest, fetch=loader * part)

    @property
    def steps_pace(self) -> bool:
        """Whether known delays show that a watched script's steps pace it, where bursts and its workers' stamps tell
        nothing."""
        seen = self.watched
        if seen is None or seen.response is None or seen.knows_arrivals or self._ready_arm is not None:
            return False
        return self.on_host_cpus and not self.synchronous and seen.response >= NEAR_ONE

    @property
    def real(self) -> Quantity:
        return self.times.real

    @property
    def base(self) -> Quantity | None:
        """The step time when data are always ready. Where the loader owns the transfer, the whole difference between
        `device` and `ram` is preparation."""
        return self.times.device if self.owns_transfer else self.times.host

    @property
    def ready_step_s(self) -> float | None:
        """Seconds of a watched script's step with data ready and no worker at work, by its bursts; None: these do not
        tell."""
        device = self.times.device
        return None if device is None or self._ready_arm is None else device.value

    @property
    def behind_threads_s(self) -> float:
        """Seconds a step by which other threads of a watched script's process may hold it up."""
        return 0.0 if self.watched is None else self.watched.behind_threads_s

    @property
    def most_own_growth(self) -> float:
        """Of a watched script's step, the part by which its own work can be longer than in bursts."""
        seen = self.processors.get(Arm.REAL)
        return OWN_GROWTH + (0.0 if seen is None else seen.queued_fraction)

    # -- parts of a step ---------------------------------------------------------------------------------

    def part(self, arm: Arm, name: str) -> Quantity | None:
        """Mean of one of the arm's quantities; None where it was not measured."""
        return Quantity.of(self.arms[arm], name) if arm in self.arms else None

    def issue(self, *arms: Arm) -> Quantity | None:
        """Host time to issue a step, in the first of these arms that was measured."""
        return next((self.part(arm, "issue") for arm in arms if arm in self.arms), None)

    def issue_growth(self, arm: Arm) -> Quantity | None:
        """Growth of the host's issue time from `host` (or `device`) to `arm`, seconds a step."""
        before, after = self.issue(Arm.HOST, Arm.DEVICE), self.issue(arm)
        if before is None or after is None:
            return None
        grown = (after - before).at_least(0.0)
        return Quantity(grown.value, grown.draws, after.n)

    @cached_property
    def host_growth(self) -> Quantity | None:
        """Growth of the host's time for a step from `host` (or `device`) to `real` that is no data stall, seconds.

        The growth of the issue time; where the host never waits for the device, also that of taking over ready batches:
        this is then in series with issuing, while the device still works on the step before.
        """
        issue, real = self.issue_growth(Arm.REAL), self.arms[Arm.REAL]
        before = self.arms.get(Arm.HOST) or self.arms.get(Arm.DEVICE)
        if issue is None or before is None or not self._never_waits_for_device:
            return issue

        def taking(arm: ArmSteps) -> Quantity:
            return Quantity.of(arm, "wait") - Quantity.of(arm, "stall")

        return issue + (taking(real) - taking(before)).at_least(0.0)

    @property
    def _never_waits_for_device(self) -> bool:
        """Whether the host of `real` is always in `next()` or issuing."""
        real = self.arms[Arm.REAL]
        return real.mean("wait") + real.mean("issue") >= HOST_BOUND * real.mean("duration")

    def data_stall(self, arm: Arm) -> Quantity:
        """Seconds a step that the device waits for data, by the arm's timeline.

        An overlapping copy is hidden while data are always ready. What a late batch exposes of it, beyond what `host`
        exposes, counts as waiting for data too.
        """
        steps = self.arms[arm]
        stall = Quantity.of(steps, "stall")
        if self.watched is not None:
            ready = self._ready_arm
            if self.steps_pace:
                return stall.scaled(0.0)
            if ready is None or self.watched.knows_arrivals:
                return stall
            return (stall - Quantity.of(ready, "wait")).at_least(0.0)  # a ready batch takes time to hand over
        if Arm.HOST not in self.arms:
            return stall
        late = (Quantity.of(steps, "exposed") - Quantity.of(self.arms[Arm.HOST], "exposed")).at_least(0.0)
        return Quantity(stall.value + late.value, stall.draws + late.draws, stall.n)

    @cached_property
    def loader_time(self) -> Quantity | None:
        """Seconds a batch that the loader needs beside the running device.

        Free-running, the loader has the processor to itself. Beside the device it needs the part of a step in which its
        workers are at work; where that is unknown, it needs the whole step if it paces the run.
        A synchronous loader and issuing take turns, so that a batch costs both.
        """
        free = self.times.free
        if free is None:
            return None
        steps, issue = self.arms[Arm.REAL], self.issue(Arm.REAL) if self.synchronous else None
        alone = free + issue
        if steps.worked is not None:
            beside = self.real.scaled(steps.worked)
            return largest(alone, (beside + issue).at_most(self.real))
        return largest(alone, self.real) if self.loader_paces else alone

    @cached_property
    def loader_paces(self) -> bool:
        """Whether the device waited for data in most of the workers' rounds, and for a good part of the time."""
        steps = self.arms[Arm.REAL]
        stalled = steps.all("stall").sum() > STALLED_FRACTION * steps.seconds
        return bool(stalled) and steps.stalled_rounds() > STALLED_ROUNDS

    @cached_property
    def without_launches(self) -> Quantity | None:
        """The consumer's step time with no launch gaps and no issuing: the copy, then busy kernels, in one queue or in
        two.

        T_host − (T_device − busy) would be wrong where issuing is slower than the device: issuing hides the copy.
        Without `host` the copy time is that of `real`.
        """
        busy, host = self.times.busy, self.times.host
        if busy is None or self.owns_transfer:
            return busy
        copy = Quantity.of(self.arms[Arm.REAL if host is None else Arm.HOST], "copy")
        left = largest(busy, copy) if self.overlap else busy + copy
        return left if host is None else left.at_most(host)

    # -- what is left without a cause ----------------------------------------------------------------------

    def without(self, cause: Removable) -> Quantity | None:
        """The step time that is left when a cause is removed; None where the arms for it were not measured.

        The bound by the other stages' capacities assumes that these overlap perfectly. The exposed time of a cause
        on the device's side is therefore a second bound: without the copy the run cannot gain more than
        T_host − T_device, without launches not more than T_device − busy. Where that is worth something, the growth
        of issuing beside the loader is added. (Where it is not, the growth is contention alone, and counts with
        preparation.) A synchronous loader runs in series with issuing: the whole issue time is exposed, and it is
        added to the loader's or the reader's own time wherever these bound the run.
        """
        match cause:
            case "storage":
                return self.times.ram
            case "prep":
                return self._without_prep()
            case "contention":
                return self._without_contention()
            case "transfer":
                return self._without_transfer()
            case "launch":
                return self._without_launch()
            case "compute":
                return self._without_compute()

    def _without_prep(self) -> Quantity | None:
        if self.base is None:
            return None
        in_line = self.issue(Arm.HOST, Arm.DEVICE) if self.synchronous else None
        feed = self._fetched(self.base, in_line)
        if feed is not None:
            return largest(self.base, feed)
        return None if self.reads_files else self.base  # no files under the loader: nothing to fetch

    def _fetched(self, consumer: Quantity, in_line: Quantity | None) -> Quantity | None:
        """Seconds a step of the storage if preparation cost nothing: as `fetch` measured it, and as the loader's queue
        hands the files over; None: unknown."""
        fetch = self.times.fetch + in_line if self.times.fetch is not None and self.fetch_usable else None
        queue = self.queue
        if queue is None:
            return fetch
        met = np.exp(np.random.default_rng(31).normal(0.0, queue.spread, len(consumer.draws)))
        if self.synchronous:
            return self._fetched_in_line(queue, fetch, in_line, consumer, met)
        longer = max(0.0, queue.step_s(consumer.value) / consumer.value - 1.0)
        held_up = Quantity(consumer.value * (1.0 + longer), consumer.draws * (1.0 + longer * met), consumer.n)
        return held_up if fetch is None else largest(fetch, held_up)

    def _fetched_in_line(
        self, queue: Queue, fetch: Quantity | None, in_line: Quantity | None, consumer: Quantity, met: Draws
    ) -> Quantity:
        """The same for a loader whose reads and issuing follow each other, by the reads of `real` alone where `fetch`
        did not meet what is slow: a device that is MAX_STEPS_IN_FLIGHT steps behind at most bridges little of it.
        `met`: draws of how much of what is slow was met."""
        issue_s = 0.0 if in_line is None else in_line.value
        read_s = queue.step_s(issue_s) - issue_s
        even_s = max(consumer.value, read_s * (1.0 - queue.slow_part) + issue_s)
        behind = replace(queue, workers=1, depth=MAX_STEPS_IN_FLIGHT, prep_s=issue_s)
        slow_s = max(0.0, behind.step_s(consumer.value) - even_s)
        even = even_s / consumer.value * consumer.draws
        held_up = Quantity(even_s + slow_s, even + slow_s * met, consumer.n)
        return held_up if fetch is None else largest(fetch, held_up)

    # -- contention ----------------------------------------------------------------------------------------

    @property
    def contention_time(self) -> Quantity | None:
        """Seconds a step that the run's threads waited for processors, as far as the step is longer for it; None where
        the arms do not tell. Part of T_ram − T_host.

        On the issuing side: the part of that growth which is not data stall, up to the growth of the issue time, where
        a thread waited for a processor.
        On the workers' side: their run-queue share of the data stall.
        """
        base, ram = self.base, self.times.ram
        if base is None or ram is None:
            return None
        growth, exposed, seen = ram - base, self.late_issue, self.processors.get(Arm.REAL)
        assert exposed is not None
        if seen is not None and not seen.waits:  # then it has another reason: a lock, the caches
            exposed = exposed.scaled(0.0)
        if self.starved is not None:
            stall = self.data_stall(self._fed_arm)
            exposed = exposed + stall.clipped(0.0, (growth - exposed).at_least(0.0)).scaled(self.starved)
        return Quantity(exposed.value, exposed.draws, growth.n)

    @property
    def _fed_arm(self) -> Arm:
        """The arm of `times.ram`."""
        return Arm.RAM if Arm.RAM in self.arms and self.has_storage else Arm.REAL

    @property
    def late_issue(self) -> Quantity | None:
        """Seconds a step by which it is longer than with data always ready though its data were there: issuing came
        later, by its own growth at most. None where the arms do not tell."""
        base, ram = self.base, self.times.ram
        if base is None or ram is None:
            return None
        growth, issue = ram - base, self.issue_growth(self._fed_arm)
        if issue is None:
            return growth.scaled(0.0)
        return (growth - self.data_stall(self._fed_arm)).clipped(0.0, issue)

    def _without_contention(self) -> Quantity | None:
        if Arm.REAL not in self.processors:
            return None
        own, others = self.without_own_contention, self.without_others
        if own is not None:
            # Issuing that takes longer though no thread waits for a processor has another reason: a lock, the caches.
            return own.at_most(others) if self.processors[Arm.REAL].waits else others
        return None if self._waits_behind_its_own else others

    @property
    def _waits_behind_its_own(self) -> bool:
        seen = self.processors[Arm.REAL]
        return not self.synchronous and seen.queued_fraction * (1.0 - seen.for_others) > QUEUED

    @property
    def most_of_contention(self) -> float | None:
        """Upper bound of the gain without contention, where the loader's and the consumer's times alone, which would
        tell it, were not measured; None where they were, or where nothing waited."""
        base, waited = self.base, self.contention_time
        if Arm.REAL not in self.processors or self.without_own_contention is not None or not self._waits_behind_its_own:
            return None
        if base is None or waited is None:
            return None
        left = max(base.value, self.real.value - waited.value)
        return self.real.value / left if left > 0 else float("inf")

    @cached_property
    def without_others(self) -> Quantity:
        """The step time if nobody else used the processors, no guest stole them, no quota withheld them.

        A batch then costs the loader less by its workers' wait behind others. The step is shorter by as much, as far as
        the device waited for data, and where issuing waited for a processor, by that; but not by more than all of the
        run's threads would go faster.
        """
        seen, real, steps = self.processors[Arm.REAL], self.real, self.arms[Arm.REAL]
        part = Quantity(seen.for_others, seen.draws(len(real.draws)), real.n)
        least = real - real * part.scaled(seen.queued_fraction)
        if self.synchronous:  # the loader works in the thread that issues
            known = seen.consumer_queued
            waited = seen.queued_fraction if known is None else known + seen.suspended
            return self._no_faster_than_fed(largest(real - real * part.scaled(min(1.0, waited)), least))
        waited = seen.queued_fraction
        if self.starved is None and seen.busiest_queued_fraction is not None:
            # Threads that have little to do wait long for it, and nobody waits for them: the busiest sets the pace.
            waited = min(waited, seen.busiest_queued_fraction)
        if self.starved is not None and self.runnable is not None:  # handing over waits as the work does
            waited = max(self.starved, self.runnable * seen.queued_fraction)
        if self.watched is not None and self.starved is not None and self._fed_alone is not None:
            # Handing over waits behind others too, in the bursts as well, so that the stall tells too little.
            left = self.watched.batch_s - self.watched.batch_s * part.scaled(self.starved)
            return self._no_faster_than_fed(largest(left, least))
        loader = real if self.loader_time is None else self.loader_time.at_most(real)
        behind = loader * part.scaled(waited)
        exposed = behind.at_most(Quantity.of(steps, "stall"))
        if self.starved is None:  # what its workers do besides waiting is not known: all threads' wait bounds it
            exposed = exposed.at_most(real * part.scaled(seen.queued))
        alone = loader - behind  # beside issuing, so that no step is shorter
        left = largest(real - (exposed + self._issue_behind_others(Arm.REAL)).at_most(real), least, alone)
        return self._no_faster_than_fed(left)

    @property
    def taken_by_others(self) -> float:
        """The part of a step of `real` that waits behind other processes and guests; a quota takes the same from every
        run, and does not count. 0 where nothing is known of them."""
        seen = self.processors.get(Arm.REAL)
        if seen is None or not seen.taken > 0:
            return 0.0
        come_and_go = 1.0 - seen.quota_room / seen.taken
        return (1.0 - self.without_others.value / self.real.value) * come_and_go

    def _no_faster_than_fed(self, left: Quantity) -> Quantity:
        """The step without others: at least what it takes with data always ready, itself without them, and what a
        storage of a capped rate takes."""
        if self.base is None:
            return left
        behind = self._issue_behind_others(Arm.DEVICE if self.owns_transfer else Arm.HOST)
        fed = self.base if behind is None else (self.base - behind).at_least(0.0)
        if self.rate_capped and self.has_storage and self.times.fetch is not None:
            left = largest(left, self.times.fetch)
        return largest(left, self._fed_alone or fed).at_most(self.real)

    @cached_property
    def _fed_alone(self) -> Quantity | None:
        """A watched script's step with its batches ready, without others; None where its bursts do not tell.

        It is shorter by what the script's thread waits behind others, as it issues and as it takes batches over. For
        whom else it waits meanwhile is not known: its workers wake up while they rest, and wait then too.
        """
        base, seen = self.base, self.processors.get(Arm.DEVICE)
        if self.watched is None or base is None or seen is None or seen.consumer_queued is None:
            return None
        part = Quantity(seen.for_others, seen.draws(len(base.draws)), base.n)
        return base - base * part.scaled(min(1.0, seen.consumer_queued + seen.suspended))

    def _issue_behind_others(self, arm: Arm) -> Quantity | None:
        """Seconds a step that issuing waited behind others for a processor, where the step is longer for it."""
        seen = self.processors.get(arm)
        if seen is None or seen.consumer_queued is None:
            return None
        steps = self.arms[arm]
        duration = Quantity.of(steps, "duration")
        part = Quantity(seen.for_others, seen.draws(len(duration.draws)), duration.n)
        if self.on_host_cpus:  # the step ends with its slowest thread
            return Quantity.of(steps, "issue") * part.scaled(seen.queued_fraction)
        if steps.mean("wait") + steps.mean("issue") < HOST_BOUND * steps.mean("duration"):
            late = self._late_though_fed
            if arm is Arm.REAL and self.late_issue is not None:
                late = self.late_issue + late
            return None if late is None else late.at_most(duration.scaled(seen.consumer_queued)) * part
        return (duration * part.scaled(seen.consumer_queued)).at_most(Quantity.of(steps, "issue"))

    @property
    def _late_though_fed(self) -> Quantity | None:
        """Seconds by which a step of `host` is longer than one of `device` and its copy: at most so much the host is
        late there. None: not measured."""
        device, host = self.times.device, self.times.host
        if device is None or host is None:
            return None
        copy = Quantity.of(self.arms[Arm.HOST], "copy")
        alone = largest(device, copy) if self.overlap else device + copy
        return (host - alone).at_least(0.0)

    @cached_property
    def without_own_contention(self) -> Quantity | None:
        """The step time if the loader and the consumer had processors of their own: the longer of the two alone. More
        workers than processors gain nothing by that. None where their times alone were not measured."""
        base, waited = self.base, self.contention_time
        if base is None or waited is None or self.synchronous:
            return None
        own = 1.0 - self.processors[Arm.REAL].for_others
        free = self._watched_free(own) if self.watched is not None else self.times.free
        if free is None:
            return None
        return largest(base, free, self.real - waited.scaled(own)).at_most(self.real)

    def _watched_free(self, own: float) -> Quantity | None:
        """Seconds a batch of a watched script's workers if they had the processors to themselves; None: unknown.
        `own`: the part of their wait for processors that the run's own threads cause. Workers that are more than the
        processors wait for each other, and still do then."""
        watched, seen = self.watched, self.processors[Arm.REAL]
        if watched is None or self.starved is None or self.runnable is None:
            return None
        ran = (self.runnable - self.starved) * watched.lanes / min(watched.lanes, available(seen))
        return watched.batch_s.scaled(max(1.0 - self.starved * own, ran))

    @property
    def held_up_by_others(self) -> bool:
        """Whether those outside of the run take more from it than its own threads take from each other. Where the
        times alone were not measured, or both are the same or take next to nothing (HARDLY), the queue tells: whether
        most of it stands behind others."""
        if Arm.REAL not in self.processors:
            return False
        own, others = self.without_own_contention, self.without_others
        hardly_s = (1.0 - HARDLY) * self.real.value
        if own is None or others.value == own.value or min(own.value, others.value) >= hardly_s:
            return self.processors[Arm.REAL].for_others >= 0.5
        return others.value < own.value

    def _without_transfer(self) -> Quantity | None:
        if not self.copies:
            return self.real
        device, host, paced = self.times.device, self.times.host, self.loader_time
        if device is None or host is None or paced is None:
            return None
        # Issuing takes longer beside the loader, and no copy hides it any more.
        crowded = Quantity.of(self.arms[Arm.DEVICE], "issue") + self.issue_growth(Arm.REAL)
        left = largest(device, paced, crowded, self.real - (host - device))
        return self._as_others_leave_it(left, frozenset({"transfer"}))

    def _without_launch(self) -> Quantity | None:
        exposed, rest, feed = self.exposed_launches, self.without_launches, self.loader_time
        if exposed is None or rest is None or feed is None:
            return None
        if self.synchronous:
            assert self.times.free is not None
            feed = self.times.free
        return self._as_others_leave_it(largest(rest, feed, self.real - exposed), frozenset({"launch"}))

    @property
    def exposed_launches(self) -> Quantity | None:
        """Upper bound of what launches take of a step.

        A host that never waits for the device takes batches over and issues in turn. Its whole issue time is exposed:
        without launches the device would still be at work while the next batch is taken over.
        """
        device, busy = self.times.device, self.times.busy
        if device is None or busy is None:
            return None
        exposed, issue = device - busy, Quantity.of(self.arms[Arm.REAL], "issue")
        launch_bound = device.value >= WORTH * busy.value
        if launch_bound:
            exposed = exposed + (issue - Quantity.of(self.arms[Arm.DEVICE], "issue")).at_least(0.0)
        in_turn = self.synchronous or (launch_bound and self._never_waits_for_device)
        return largest(exposed, issue) if in_turn else exposed

    def _without_compute(self) -> Quantity | None:
        if self.loader_time is None:
            return None
        others = (self.part(Arm.HOST, "copy"), self.part(Arm.DEVICE, "issue"))
        left = largest(self.loader_time, *(part for part in others if part is not None))
        return self._as_others_leave_it(left, frozenset({"compute"}))

    def _as_others_leave_it(self, left: Quantity, removed: frozenset[Removable]) -> Quantity:
        """`left`, which holds while others do not set the pace, where they might: a step takes at least its CPU time
        divided by the processors that the run gets beside them when it wants all.

        The CPU time is the loader's and that of issuing. (A host that waits for its device may spin: that is no work.)
        The processors are those that the loader alone got. They are others in each window, since they depend on which
        processor each process settles on, and that lasts longer than a queue bridges: the step is the mean over the
        windows, and the next run is known no better than by one of them. No window leaves more than `real`, nor several
        removed causes more than one of them.
        """
        crowd, free = self.crowd, self.times.free
        if self.synchronous or crowd is None or free is None:  # in line, times of one thread that shares it all add up
            return left
        cpu_s = crowd.own * free.value
        device, issue = self.processors.get(Arm.DEVICE), self.part(Arm.DEVICE, "issue")
        issues = "launch" not in removed and not (self.on_host_cpus and "compute" in removed)
        if issues and device is not None and issue is not None:
            cpu_s += min(issue.value, device.own * self.arms[Arm.DEVICE].mean("duration"))
        bounds = [self.without(cause) for cause in removed] if len(removed) > 1 else []
        most_s = min(bound.value for bound in (self.real, *bounds) if bound is not None)
        paced = np.minimum(cpu_s / crowd.got, most_s)
        met = np.random.default_rng(29).choice(paced, len(left.draws))
        n = min(left.n, len(paced))
        return Quantity(float(np.maximum(paced, left.value).mean()), np.maximum(met, left.draws), n)

    def gain(self, left: Quantity | None) -> Quantity | None:
        """T_real ÷ what is left; never below 1, since removing a cause cannot slow the run down. None stays None."""
        if left is None:
            return None
        left = left.at_most(self.real)
        if left.value > 0:  # of few windows, draws may leave less than nothing: the gain has no upper end then
            left = left.at_least(NOTHING * left.value)
        return (self.real / left).at_least(1.0)

    @cached_property
    def gains(self) -> Mapping[Cause, Quantity]:
        """The gain of removing each cause that is work of the run's own, for the causes that the arms tell."""
        gains = {cause: self.gain(self.without(cause)) for cause in STAGES}
        return {cause: gain for cause, gain in gains.items() if gain is not None}

    @cached_property
    def contention_gain(self) -> Quantity | None:
        """The gain if no thread of the run waited for a processor; None where unknown."""
        return self.gain(self.without("contention"))

    def joint_without(self, removed: frozenset[Cause]) -> Quantity | None:
        """The step time without several causes, where the arms tell."""
        if self.base is None:
            return None
        consumer: Quantity | None = self.base
        if "launch" in removed:
            consumer = self.times.busy if "transfer" in removed else self.without_launches
        elif "transfer" in removed and self.times.device is not None:
            consumer = self.times.device
        if consumer is None or {"storage", "prep"} <= removed:
            return consumer
        in_line = self.issue(Arm.HOST, Arm.DEVICE) if self.synchronous and "launch" not in removed else None
        if "prep" in removed:
            fetched = self._fetched(consumer, in_line)
            return None if fetched is None else largest(consumer, fetched)
        feed = self.loader_time
        if "storage" in removed:
            feed = self.times.prep
            if feed is None:  # a whole step, with its issuing
                feed, in_line = self.times.ram, None
        if feed is None:
            return None
        if not removed & {"prep", "storage"}:
            # A loader in series with issuing has the issue time in its own; without launches only its own is left.
            own = self.times.free if self.synchronous and "launch" in removed else None
            left = largest(consumer, own or feed)
        else:
            left = largest(consumer, feed + in_line)
        return self._as_others_leave_it(left, removed)
