"""Who had the processors in an arm's windows, and how much faster the run's threads would run without the others.

The run's threads kept U processors at work, and Q more of its threads were runnable, but ran on none. What others held
(`taken`: other processes, the hypervisor's other guests, the part of the processors that a quota keeps from the run)
could have served min(Q, taken) of them; the rest of the queue stands behind the run's own threads. A runnable thread
went ahead at the rate U ÷ (U + Q), and without others it would at (U + min(Q, taken)) ÷ (U + Q). Of the time that it
waits for a processor, the part

    for_others = (U + Q) ÷ Q · min(Q, taken) ÷ (U + min(Q, taken))

would be gone: all of it where the others hold Q or more, none where they hold nothing. This is arithmetic of processors
that are shared fairly (Kleinrock, Queueing Systems II, 4.4); a neighbour of another priority makes it an estimate.

A thread that is on a processor while the hypervisor has given that to another guest waits too, but stands in no run
queue. Of the stolen time the run's threads bear their part of the processors' time, which Q holds besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import t_quantile
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SCRIPT_LANE, CpuWindow, Recording, Segment, StorageFacts
from loaderbench.recording.record import ContentionBy

Draws = NDArray[np.float64]
LEAST_QUEUED = 0.02
"""Processors that the run's threads waited for in vain; fewer are the scheduler's own work."""
NUM_THROTTLED = 0.1
"""Of the periods of a quota: where it stopped the run in fewer, it was not what held it up."""
ANOTHER, LEAST_LEFT = 0.5, 2
"""So many processors more or fewer in others' hands make another machine; windows of an arm that must be left."""
FULL = 0.9
"""Of the processors at work: what the run then takes more, others have less, and the other way round."""
MOST = 0.75
"""Of the windows without a storage; others use more in those that leave the processors idle, and in a few by chance."""
SPENT = 0.9
"""Of a quota: a run that uses so much of it and is stopped for the rest uses it up."""
PERIOD_S = 0.1
"""The usual period of a cgroup's quota, of runs that did not store it."""


@dataclass(frozen=True)
class Processors:
    """One arm's windows together, in processors: CPU seconds a second."""

    own: float
    queued: float
    neighbours: float | None
    """Other processes of this machine; None where the kernel does not tell, and where `neighbours_or_storage` does."""
    stolen: float | None
    quota_room: float
    """What the processors have beyond a quota, as far as it kept them from the run; 0 without one."""
    consumer_queued: float | None
    """Of the thread that takes batches and issues; without `suspended`."""
    suspended: float
    """Of `queued`, what its threads were on a processor that the hypervisor had given to another guest."""
    cpus: int
    quota_cpus: float | None
    spread: float
    """95 % half-width of `for_others`, by the windows."""
    neighbours_or_storage: float | None = None
    """What others used where no arm tells other processes from those of the storage; None elsewhere."""
    busiest_queued_fraction: float | None = None
    """`queued_fraction` of the loader's busiest thread alone; None in runs that did not store it."""

    @property
    def for_others(self) -> float:
        """The part of the queue that stands behind others, 0 to 1."""
        return _part(self.taken, self.queued, self.own)

    @property
    def waits(self) -> bool:
        """Whether its threads waited for more than the scheduler's own work takes."""
        return self.queued >= LEAST_QUEUED

    @property
    def held(self) -> float:
        """What other processes and guests use, as far as it is known."""
        return (self.neighbours or 0.0) + (self.stolen or 0.0)

    @property
    def taken(self) -> float:
        return self.held + self.quota_room

    @property
    def queued_fraction(self) -> float:
        """Of the time in which its threads could have run, the part in which they did not."""
        return self.queued / max(self.own + self.queued, 1e-9)

    @property
    def largest(self) -> ContentionBy:
        """Who holds most of what others hold. Of a run that uses up its quota no one else withholds anything."""
        if self.quota_room > 0 and self.quota_cpus is not None and self.own >= SPENT * self.quota_cpus:
            return "quota"
        held: list[tuple[float, ContentionBy]] = [
            (self.neighbours or 0.0, "neighbours"),
            (self.stolen or 0.0, "steal"),
            (self.quota_room, "quota"),
        ]
        return max(held)[1]

    def draws(self, num: int) -> Draws:
        """[num] of the part of the queue that stands behind others."""
        noise = np.random.default_rng(23).normal(0.0, self.spread / 1.96, num)
        return np.asarray(np.clip(self.for_others + noise, 0.0, 1.0))


def available(seen: Processors | CpuWindow) -> float:
    """Processors that the affinity mask and the tightest quota allow."""
    return seen.cpus if seen.quota_cpus is None else min(seen.cpus, seen.quota_cpus)


def left_for(seen: Processors, cpus: int) -> float:
    """Processors that the run has, of the `cpus` that it may use, beside those who keep some from it. A quota leaves as
    much whatever others hold of the other processors."""
    held = seen.held if seen.for_others > 0 else 0.0
    return max(seen.own, min(cpus, available(seen), seen.cpus - held))


def has_processes(storage: StorageFacts) -> bool:
    """Whether the storage may have processes or threads of its own on this machine, which a run seems to share the
    processors with: a FUSE daemon, an NFS client. False where its kind was not stored, and of a script that is watched,
    of which it is unknown."""
    return storage.kind not in (None, "local", "memory")


def beside_the_same(segments: Sequence[Segment], *, storage_works: bool = False) -> Sequence[Segment]:
    """The windows without those beside which others wanted far more, or fewer, processors than beside every window of
    `real`: an arm is compared with `real`, and would be measured on another machine. Kept whole where the windows of
    `real` differ among themselves, and an arm of which fewer than two would be left.

    What others use tells what they want but for what the run itself keeps them from: they use less beside an arm that
    works more, where the processors are full.

    Args:
        storage_works: others' time is also that of the storage's own processes: in the arms that read from it, what is
            more than in most windows (MOST) of the arms that leave it alone is none of a neighbour's.
    """
    most = _most_neighbours(segments) if storage_works else None
    uses = {id(one): _use_of(one, most) for one in segments}
    real = [use for one in segments if one.arm is Arm.REAL and (use := uses[id(one)]) is not None]
    beside_real = [use.others for use in real]
    if len(real) < 2 or max(beside_real) - min(beside_real) > ANOTHER / 2:
        return segments
    usual = _Use(fmean(use.own for use in real), fmean(beside_real), fmean(use.part for use in real))
    kept = {name for name, use in uses.items() if use is None or _is_alike(use, usual)}
    kept |= {id(one) for one in segments if one.lane == SCRIPT_LANE}  # a script's bursts follow at once
    left = Counter(one.arm for one in segments if id(one) in kept)
    return [one for one in segments if id(one) in kept or left[one.arm] < LEAST_LEFT]


@dataclass(frozen=True)
class Crowd:
    """What the loader alone got of the processors beside others, by its windows."""

    own: float
    """Processors that it used, in all windows together."""
    got: Draws
    """[W] Processors that it got in each of them; infinite where others kept none from it that it wanted."""


def crowd_of(segments: Sequence[Segment], *, storage_works: bool = False) -> Crowd | None:
    """Of the windows of `free`; None where no others kept processors from it.

    They did in a window in which all processors were at work, others had a good part of them, and the loader would have
    taken all: its threads ran or were runnable on so many (FULL). A loader that waits for its storage wants fewer, and
    one of few threads, too: what it got tells nothing then of what it could have had.

    Args:
        storage_works: as for `beside_the_same`.
    """
    most = _most_neighbours(segments) if storage_works else None
    used, got = list[float](), list[float]()
    for one in segments:
        if one.arm is Arm.FREE and one.cpu is not None and (use := _use_of(one, most)) is not None:
            used.append(use.own)
            got.append(max(use.own, LEAST_QUEUED) if _is_crowded(one.cpu, use) else np.inf)
    return Crowd(fmean(used), np.array(got)) if got and np.isfinite(got).any() else None


def _most_neighbours(segments: Sequence[Segment]) -> float | None:
    """What others use in most windows that leave the storage alone; None where there are none."""
    known = [_neighbours([one.cpu]) for one in segments if one.cpu is not None and not one.arm.touches_storage]
    quiet = [used for used in known if used is not None]
    return float(np.quantile(quiet, MOST, method="lower")) if quiet else None


@dataclass(frozen=True)
class _Use:
    """Who used how many processors during windows."""

    own: float
    others: float
    """Other processes, and guests."""
    part: float
    """Of the processors, what both used."""


def _use_of(segment: Segment, most_neighbours: float | None) -> _Use | None:
    window = segment.cpu
    if window is None or (neighbours := _neighbours([window])) is None:
        return None
    own, stolen = window.own_s / window.wall_s, (window.stolen_s or 0.0) / window.wall_s
    part = (own + neighbours + stolen) / window.cpus
    if most_neighbours is not None and segment.arm.touches_storage:
        neighbours = min(neighbours, most_neighbours)
    return _Use(own, neighbours + stolen, part)


def _is_crowded(window: CpuWindow, use: _Use) -> bool:
    """Whether others kept processors from the run, which would have taken all."""
    stolen = (window.stolen_s or 0.0) / window.wall_s
    suspended = stolen * _borne(use.own, _neighbours([window]))
    wanted = use.own + (window.own_queued_s or 0.0) / window.wall_s + suspended
    others_hold_some = use.others >= (1.0 - FULL) * window.cpus
    return others_hold_some and min(use.part * window.cpus, wanted) >= FULL * window.cpus


def _is_alike(one: _Use, other: _Use) -> bool:
    """Whether others may have wanted as many processors both times: they used as many, but for what the run took more
    of full ones where they used fewer."""
    fewer, more = sorted((one, other), key=lambda use: use.others)
    kept_from_them = max(0.0, fewer.own - more.own) if fewer.part >= FULL else 0.0
    return more.others - fewer.others - kept_from_them <= ANOTHER


def processors_of(recording: Recording, *, storage_works: bool = True) -> dict[Arm, Processors]:
    """By arm, for the arms whose windows tell; empty in runs of older versions. `storage_works`: the storage may have
    work of its own on these processors."""
    windows: dict[Arm, list[CpuWindow]] = {}
    for segment in recording.segments:
        if segment.cpu is not None and segment.cpu.own_queued_s is not None:
            windows.setdefault(segment.arm, []).append(segment.cpu)
    quiet = [arm for arm in windows if not arm.touches_storage] if storage_works else []
    most = max((_neighbours(windows[arm]) or 0.0 for arm in quiet), default=None)
    told = most is not None or not (storage_works and has_processes(recording.facts.storage))
    return {arm: _together(of, most, told=told) for arm, of in windows.items()}


def _together(windows: Sequence[CpuWindow], most_neighbours: float | None, *, told: bool) -> Processors:
    """`most_neighbours`: what others used in the arms that leave the storage alone. More of it is the storage's own
    work: a FUSE daemon, an NFS client's threads. `told`: False where such work may be part of it, but no arm tells."""
    wall = sum(one.wall_s for one in windows)
    others = _neighbours(windows)
    if others is not None and most_neighbours is not None:
        others = min(others, most_neighbours)
    neighbours = others if told else None
    stolen = _sum([one.stolen_s for one in windows])
    quota = windows[-1].quota_cpus
    room = _quota_room(windows)
    own = sum(one.own_s for one in windows) / wall
    bears = _borne(own, others)
    parts = [
        _part(
            _taken(one, neighbours, room),
            ((one.own_queued_s or 0.0) + bears * (one.stolen_s or 0.0)) / one.wall_s,
            one.own_s / one.wall_s,
        )
        for one in windows
    ]
    suspended = bears * (stolen or 0.0) / wall
    spread = 0.0
    if len(parts) > 1:
        spread = float(np.std(parts, ddof=1)) / len(parts) ** 0.5 * t_quantile(len(parts) - 1)
    consumer = _sum([one.consumer_queued_s for one in windows])
    return Processors(
        own=own,
        queued=sum(one.own_queued_s or 0.0 for one in windows) / wall + suspended,
        neighbours=neighbours,
        stolen=None if stolen is None else stolen / wall,
        quota_room=room,
        consumer_queued=None if consumer is None else consumer / wall,
        suspended=suspended,
        cpus=windows[-1].cpus,
        quota_cpus=quota,
        spread=spread,
        neighbours_or_storage=None if told else others,
        busiest_queued_fraction=_busiest_queued_fraction(windows),
    )


def _borne(own: float, others: float | None) -> float:
    """The run's part of the time that guests steal: processes are suspended whoever runs."""
    return own / (own + (others or 0.0)) if own > 0 else 0.0


def _busiest_queued_fraction(windows: Sequence[CpuWindow]) -> float | None:
    ran, queued = _sum([one.busiest_s for one in windows]), _sum([one.busiest_queued_s for one in windows])
    return queued / (ran + queued) if ran is not None and queued is not None and ran + queued > 0 else None


def _quota_room(windows: Sequence[CpuWindow]) -> float:
    """What the processors have beyond a quota that stopped the run, as far as it kept them from it; 0 without one.
    Where the time was not stored, the periods in which it stopped the run tell whether it did."""
    wall, quota = sum(one.wall_s for one in windows), windows[-1].quota_cpus
    if quota is None:
        return 0.0
    room = max(0.0, windows[-1].cpus - quota)
    stopped_s = _sum([one.throttled_s for one in windows])
    if stopped_s is not None:
        return min(room, stopped_s / wall) if stopped_s >= LEAST_QUEUED * wall else 0.0
    periods = wall / (windows[-1].quota_period_s or PERIOD_S)
    return room if sum(one.num_throttled or 0 for one in windows) >= NUM_THROTTLED * periods else 0.0


def _part(taken: float, queued: float, own: float) -> float:
    """`for_others`, by the formula above."""
    if queued < LEAST_QUEUED:
        return 0.0
    served = min(queued, taken)
    return float((own + queued) / queued * served / (own + served)) if own + served > 0 else 0.0


def _taken(window: CpuWindow, most_neighbours: float | None, room: float) -> float:
    """`most_neighbours`: those of all windows together, since a short one's ticks are rough; None: unknown."""
    neighbours = min(_neighbours([window]) or 0.0, most_neighbours or 0.0)
    return neighbours + (window.stolen_s or 0.0) / window.wall_s + room


def _neighbours(windows: Sequence[CpuWindow]) -> float | None:
    """Processors that other processes used. The machine's time comes in ticks, so that of short windows is rough."""
    busy = _sum([one.machine_busy_s for one in windows])
    if busy is None:
        return None
    return max(0.0, busy - sum(one.own_s for one in windows)) / sum(one.wall_s for one in windows)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def by_whom(real: Processors, *, others: bool, workers: int) -> ContentionBy:
    """Who holds the run up in `real`. `others`: those outside of it take more than its own threads from each other."""
    if others:
        return real.largest
    return "workers" if workers > real.cpus else "own threads"
