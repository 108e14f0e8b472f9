"""A loader on a device slowed until it limits the run, and what a scenario builds into that run: for the self-test and
for benchmarks that ask others about the same runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from loaderbench import plugins
from loaderbench.analysis.model import WORTH
from loaderbench.analysis.statistics import paired_ratio
from loaderbench.cases.case import Case
from loaderbench.errors import UnavailableError
from loaderbench.images.index import index_images
from loaderbench.machine import usable_cpus
from loaderbench.recording.studies import Stopwatch
from loaderbench.running.supervisor import Child
from loaderbench.selftest.disturbers import Disturber, neighbours, quota
from loaderbench.selftest.injections import Injection
from loaderbench.selftest.jobs import (
    DEVICE_SECONDS,
    LOADER_SECONDS,
    WALL_SECONDS,
    DeviceTimeRequest,
    LoaderTimeRequest,
    Side,
    WallTimeRequest,
)
from loaderbench.selftest.scenarios import Scenario
from loaderbench.selftest.slow_fuse import slow_fuse
from loaderbench.selftest.throttled_loop import throttled_loop
from loaderbench.studies.measure import quiet

LOADER_STEP_S = 0.010
"""A batch is what the loader makes in this time: long compared with the issue time and the scheduler's ticks."""
MIN_BATCH, MAX_BATCH = 8, 128
LINK_BYTES_PER_S = 50e9
"""Link rate of the emulated device (devices/profiles); on CUDA it may differ, but truth is measured anyway."""
TAIL_PART = 0.03
"""Of the files that are slow, in `tails`."""
STALL_PERIOD_S, STALL_PERIODS = 1.5, 3
"""Of the standstills, in `stalls`; how many of them a turn of the stopwatch spans."""
UNEVEN_LEAST_S = 16.0
"""Least seconds of measuring of a run with standstills or slow files: it has a few in each of its windows."""
TAIL_TURNS = 3
"""How many times longer a turn of the stopwatch is where the slow files are few."""
WORKERS_A_DURATION = 5
"""Workers beside a model on the CPU for which a run is as long as others; with more it is longer. Sixteen were at 22
steps in 7.5 s (an H200's 16 processors), and a verdict wants three rounds of them, 48."""
MORE_ROUNDS = 2
"""Of turns, where it is not plain from the first ones whether there is a cause."""
BESIDE_TURN_S = 5.0
"""Least seconds of a turn beside busy processes: which processor each of these has moves a run's step by a quarter, and
takes seconds to settle; turns of 1.2 s only saw the first of them."""
CPU_MODEL = {"device": "cpu", "model": "resnet18", "mode": "infer", "precision": "fp32"}
CPU_INPUT_SIZES = (64, 128, 224)
"""Of `own threads`: the first with which the model takes longer than the loader for the same images."""

Amounts = dict[str, float]
"""Field of Injection → how much."""


class BedMissing(Exception):
    """A test bed could not be made; says why."""


@dataclass(frozen=True)
class Built:
    """A run with its cause, ready to be asked about, while beds and disturbers stand."""

    case: Case
    amounts: Amounts
    """All extra work: the slowed device's, and the cause's."""
    sides: Mapping[str, Side]
    """Field of Stopwatch → the run to time for it."""
    turn_s: float
    """Seconds of a turn of the stopwatch."""
    mean: bool = False
    """What slows the run comes and goes: the mean of the turns tells, not the fastest."""
    disturber: Disturber | None = None
    groups: tuple[Callable[[int], None], ...] = field(default=())
    """Called with the pid of a process that is to run the case."""

    @property
    def injection(self) -> Injection:
        return _injection(self.amounts)

    def enter(self, pid: int) -> None:
        """Put a process, which has no workers yet, where the case is to run."""
        for group in self.groups:
            group(pid)

    def stopwatch(self, child: Child) -> Stopwatch:
        """Time all sides, in turns. Raises JobFailed."""
        sides = tuple(self.sides.values())
        request = WallTimeRequest(sides, self.turn_s, mean=self.mean, disturber=self.disturber)
        turns = dict(zip(self.sides, timed_in_turns(child, request), strict=True))
        if "without_s" not in turns:  # the model and the loader share the processors: the slower of the two alone
            device = DeviceTimeRequest(self.case, self.injection)
            loader = LoaderTimeRequest(self.case, 1.0, self.injection)
            # On both sides of them, since they are not timed in turns with it.
            models_s, loaders_s = [], []
            for _ in range(request.rounds):
                models_s.append(child.ask(DEVICE_SECONDS, device, quiet))
                loaders_s.append(child.ask(LOADER_SECONDS, loader, quiet))
            again = child.ask(WALL_SECONDS, request, quiet)[0]
            turns["with_s"] = tuple(map(fmean, zip(turns["with_s"], again, strict=True)))
            turns["without_s"] = tuple(max(models_s, loaders_s, key=fmean))
        return Stopwatch(**dict(zip(turns, request.of([*turns.values()]), strict=True)), turns=turns)


def leaves_open(with_s: Sequence[float], without_s: Sequence[float]) -> bool:
    """Whether turns do not show if the gain is above or below WORTH."""
    _, low, high = paired_ratio(with_s, without_s)
    return low < WORTH < high


def timed_in_turns(child: Child, request: WallTimeRequest) -> list[tuple[float, ...]]:
    """Wall seconds a step of each side in each round; in more of them where it is not plain from the first ones whether
    another side's gain over the first is worth it. Raises JobFailed."""
    first, *others = turns = child.ask(WALL_SECONDS, request, quiet)
    if any(leaves_open(first, other) for other in others):
        more = child.ask(WALL_SECONDS, replace(request, rounds=MORE_ROUNDS), quiet)
        turns = [(*some, *further) for some, further in zip(turns, more, strict=True)]
    return turns


class Bench:
    """One loader on one device that is slowed until a run without a cause is bound by compute."""

    def __init__(self, child: Child, case: Case, turn_s: float) -> None:
        """`turn_s`: seconds of a turn of the stopwatch. Raises JobFailed."""
        self._child, self.turn_s = child, turn_s
        first_s = child.ask(LOADER_SECONDS, LoaderTimeRequest(case), quiet)
        batch_size = int(np.clip(round(case.step.batch_size * LOADER_STEP_S / first_s / 8) * 8, MIN_BATCH, MAX_BATCH))
        self.case = case.changed(batch_size=batch_size)
        self.loader_s = child.ask(LOADER_SECONDS, LoaderTimeRequest(self.case), quiet)
        self._own_device_s = child.ask(DEVICE_SECONDS, DeviceTimeRequest(self.case), quiet)
        self._slowed: dict[float, tuple[Amounts, float]] = {}

    def slowed(self, device_to_loader: float) -> tuple[Amounts, float]:
        """(what slows the device, its seconds a step then). A loader in line makes no batch while the host issues."""
        if device_to_loader not in self._slowed:
            in_line = plugins.LOADERS.find(self.case.feed.loader).traits.work == "in line"
            hosts_s = self.loader_s + (self._own_device_s if in_line else 0.0)
            wanted_s = max(device_to_loader * hosts_s, self._own_device_s)
            base: Amounts = {"compute_extra_s": wanted_s - self._own_device_s}
            # Where issuing bound the bare device, a part of the added compute filled its gaps.
            request = DeviceTimeRequest(self.case, _injection(base))
            base["compute_extra_s"] += max(0.0, wanted_s - self._child.ask(DEVICE_SECONDS, request, quiet))
            self._slowed[device_to_loader] = base, wanted_s
        return self._slowed[device_to_loader]

    @contextmanager
    def build(self, scenario: Scenario, *, beside: int = 0) -> Iterator[Built]:
        """The scenario's run. `beside`: so many busy processes beside it and all its sides but one, where the scenario
        itself is not about processors.

        Raises:
            JobFailed, BedMissing
        """
        try:
            with ExitStack() as stack:
                built = _Builder(self, scenario, stack).built()
                if beside and scenario.cause != "contention":
                    alone = replace(built.sides["with_s"], disturbed=False)
                    busy = stack.enter_context(neighbours(beside))
                    sides = {**built.sides, "undisturbed_s": alone}
                    turn_s = max(2 * built.turn_s, BESIDE_TURN_S)
                    built = replace(built, sides=sides, turn_s=turn_s, mean=True, disturber=busy)
                yield built
        except UnavailableError as error:
            raise BedMissing(str(error)) from error

    def own_threads(self, scenario: Scenario) -> Built:
        """A model on the CPU and a loader that prepares `magnitude` − 1 times as long, on the same processors.

        Raises:
            JobFailed, BedMissing: the loader alone takes longer than that.
        """
        num_workers = usable_cpus()
        # A round of so many workers is so many steps, and a run has a few rounds.
        seconds = self.case.effort.duration_s * max(1.0, num_workers / WORKERS_A_DURATION)
        case = self.case.changed(**CPU_MODEL, workers=num_workers, cache="warm", duration_s=seconds)
        loader_s = self._child.ask(LOADER_SECONDS, LoaderTimeRequest(case), quiet)
        for size in CPU_INPUT_SIZES:
            case = case.changed(input_size=size)
            wanted_s = (scenario.magnitude - 1) * self._child.ask(DEVICE_SECONDS, DeviceTimeRequest(case), quiet)
            if wanted_s >= loader_s:
                amounts: Amounts = {"decode_burn_s": (wanted_s - loader_s) * case.feed.lanes / case.step.batch_size}
                return Built(case, amounts, {"with_s": Side(case, _injection(amounts))}, 2 * self.turn_s, mean=True)
        raise BedMissing("no model here is slower than the loader")

    def two_of_equal_size(self, prep: Amounts, base: Amounts, device_s: float) -> Amounts:
        """Preparation, and a copy that bounds the run at the same step time: found by the stopwatch, since burning
        workers and issuing slow each other down."""
        case = self.case.changed(cache="warm")
        # A copy beside the compute shows only where it is longer: three times the device's step certainly is.
        transfer: Amounts = {"transfer_extra_bytes": int(3 * device_s * LINK_BYTES_PER_S)}
        sides = tuple(Side(case, _injection(_sum(base, amounts))) for amounts in (prep, transfer))
        request = WallTimeRequest(sides, self.turn_s)
        with_prep_s, with_copy_s = request.of(self._child.ask(WALL_SECONDS, request, quiet))
        return {**prep, "transfer_extra_bytes": int(with_prep_s / with_copy_s * transfer["transfer_extra_bytes"])}


class _Builder:
    """Builds one scenario; its beds and disturbers last as long as the stack."""

    def __init__(self, bench: Bench, scenario: Scenario, stack: ExitStack) -> None:
        self._bench, self._scenario, self._stack = bench, scenario, stack
        self._base, self._device_s = bench.slowed(scenario.device_to_loader)
        self._case = bench.case.changed(cache="warm")
        self._lanes, self._batch = self._case.feed.lanes, self._case.step.batch_size

    def built(self) -> Built:
        match self._scenario.hard:
            case "own threads":
                return self._bench.own_threads(self._scenario)
            case "neighbours":
                number = max(1, round(self._scenario.magnitude * usable_cpus()))
                beside = self._held_up(self._stack.enter_context(neighbours(number)))
                return replace(beside, turn_s=max(beside.turn_s, BESIDE_TURN_S))
            case "quota":
                # Workers of `lanes` processors' worth would then take `magnitude` times the device's time.
                cpus = self._lanes * self._bench.loader_s / (self._scenario.magnitude * self._device_s)
                return self._held_up(self._stack.enter_context(quota(cpus)))
            case "either-or":
                return self._either()
        return self._of_the_run()

    def _held_up(self, disturber: Disturber) -> Built:
        injection = _injection(self._base)
        sides = {"with_s": Side(self._case, injection), "without_s": Side(self._case, injection, disturbed=False)}
        return Built(self._case, self._base, sides, 2 * self._bench.turn_s, True, disturber, groups=(disturber.enter,))

    def _either(self) -> Built:
        """Opens and decoding that each take half of `magnitude` times the device's time."""
        half_s = self._scenario.magnitude * self._device_s * self._lanes / self._batch / 2
        own_s = self._bench.loader_s * self._lanes / self._batch
        prep: Amounts = {"decode_burn_s": max(0.0, half_s - own_s)}
        bed = self._stack.enter_context(slow_fuse(self._case.subject.dataset, open_latency_s=half_s))
        slow, full = self._case.changed(dataset=bed.path), _sum(self._base, prep)
        sides = {
            "with_s": Side(slow, _injection(full)),
            "without_s": Side(self._case, _injection(self._base)),
            "without_prep_s": Side(slow, _injection(self._base)),
            "without_storage_s": Side(self._case, _injection(full)),
        }
        return Built(slow, full, sides, self._bench.turn_s)

    def _of_the_run(self) -> Built:
        """A cause in the run itself, or in its storage."""
        scenario, base = self._scenario, self._base
        amounts = self._amounts()
        full, slow = _sum(base, amounts), self._case
        groups: tuple[Callable[[int], None], ...] = ()
        if scenario.bed:
            dataset, groups = self._slow_storage()
            slow = self._case.changed(dataset=dataset, cache="warm" if scenario.warm else "cold")
        without = slow if scenario.hard == "warm FUSE" else self._case
        sides = {
            "with_s": Side(slow, _injection(full), cold=slow.subject.cache == "cold"),
            "without_s": Side(without, _injection(base)),
        }
        if scenario.cause == "mixed":
            names = {"decode_burn_s": "without_prep_s", "transfer_extra_bytes": "without_transfer_s"}
            for key in amounts:
                sides[names[key]] = Side(self._case, _injection(_sum(base, _without(amounts, key))))
        turn_s = self._bench.turn_s
        uneven = scenario.hard in ("stalls", "tails")
        if uneven:
            turn_s = STALL_PERIODS * STALL_PERIOD_S if scenario.hard == "stalls" else TAIL_TURNS * turn_s
            slow = slow.changed(duration_s=max(slow.effort.duration_s, UNEVEN_LEAST_S))
        # A throttled disk gives what it has at once, then nothing for tens of milliseconds: it comes and goes, too.
        return Built(slow, full, sides, turn_s, mean=uneven or scenario.bed == "throttled_loop", groups=groups)

    def _amounts(self) -> Amounts:
        """The extra work that is built in besides the slowed device."""
        wanted_s = self._scenario.magnitude * self._device_s
        add_s = max(wanted_s - self._bench.loader_s, 0.0)
        in_line = plugins.LOADERS.find(self._case.feed.loader).traits.extra_work_in_line
        lanes = 1 if in_line else self._lanes  # workers share the burn
        prep: Amounts = {"decode_burn_s": add_s * lanes / self._batch}
        match self._scenario.cause:
            case "prep":
                return prep
            case "transfer":
                return {"transfer_extra_bytes": int(wanted_s * LINK_BYTES_PER_S)}
            case "launch":
                return {"issue_delay_s": wanted_s}
            case "compute":
                return {"compute_extra_s": wanted_s - self._device_s}
            case "mixed":
                return self._bench.two_of_equal_size(prep, self._base, self._device_s)
        return {}

    def _slow_storage(self) -> tuple[str, tuple[Callable[[int], None], ...]]:
        """(the data set on the scenario's bed, what a process must enter to be slowed by it)"""
        dataset, wanted_s = self._case.subject.dataset, self._scenario.magnitude * self._device_s
        # A loader without workers decodes only once it has read.
        in_line_s = 0.0 if self._case.feed.workers else self._bench.loader_s
        bytes_per_s = float(index_images(dataset).sizes.mean()) * self._batch / (wanted_s - in_line_s)
        if self._scenario.bed == "throttled_loop":
            disk = self._stack.enter_context(throttled_loop(dataset, bytes_per_s=bytes_per_s))
            return disk.path, (disk.enter,)
        # Each worker waits for its own files, and decodes between them.
        file_s = (wanted_s - self._bench.loader_s) * self._lanes / self._batch
        match self._scenario.hard:
            case "warm FUSE":
                bed = slow_fuse(dataset)
            case "opens":
                bed = slow_fuse(dataset, open_latency_s=file_s)
            case "tails":
                bed = slow_fuse(dataset, tail=(TAIL_PART, file_s / TAIL_PART))
            case "stalls":
                # What lies ready in the queue is used up first.
                ready_s = self._case.feed.prefetch * self._lanes * self._device_s
                length_s = (1 - 1 / self._scenario.magnitude) * STALL_PERIOD_S + ready_s
                bed = slow_fuse(dataset, stall=(STALL_PERIOD_S, min(length_s, 0.8 * STALL_PERIOD_S)))
            case _:
                bed = slow_fuse(dataset, bytes_per_s=bytes_per_s)
        return self._stack.enter_context(bed).path, ()


def _injection(amounts: Mapping[str, float]) -> Injection:
    return Injection.from_json({name: amount for name, amount in amounts.items() if amount})


def _sum(base: Amounts, more: Amounts) -> Amounts:
    return {name: base.get(name, 0) + more.get(name, 0) for name in sorted({*base, *more})}


def _without(amounts: Amounts, key: str) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name != key}
