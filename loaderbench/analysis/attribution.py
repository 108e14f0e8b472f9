"""What limits the run: shares of the step time by cause, and what removing each cause would give.

Implements design measurement.md, `Arms`, `Shares`, `Verdict` (restated in docs/method.md). Facts in, findings
out: nothing here runs, reads a clock or knows how the facts came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import interval, pool_adjacent_violators
from loaderbench.analysis.steps import STALLED_FRACTION, ArmSteps
from loaderbench.recording.types import Caveat, Estimate

WORTH = 1.10
"""A speed-up from which a cause counts as a bottleneck."""
COMPUTE_AU = 0.90
AGREEMENT = 0.05
"""Two witnesses may differ by this fraction of the step time, and an arm may be faster by it than one that does
less, or by their interval where that is wider. A machine's speed moves by 2 % from one round to the next."""
SURE = 1.03
"""The low end of a gain that is named as the one cause."""
CLEAR = 1.25
"""A gain that a compute verdict must be able to exclude."""
HOST_BOUND = 0.95
"""A host that is in `next()` or issuing for this part of the step does not wait for the device."""
STALLED_ROUNDS = 0.7
"""Where the device waited for data in more than this fraction of the workers' rounds, the loader paces the run."""

Draws = NDArray[np.float64]
CAUSES = ("storage", "prep", "transfer", "launch")
SHARES = ("compute", "launch", "transfer", "prep", "contention", "storage", "unexplained")


@dataclass(frozen=True)
class Quantity:
    """A value with its bootstrap draws, so that intervals go through every formula."""

    value: float
    draws: Draws
    n: int

    def map(self, value: float, draws: Draws) -> Quantity:
        return Quantity(value, draws, self.n)

    def estimate(self, unit: str) -> Estimate:
        return interval(self.value, self.draws, unit, self.n)


def _ratio(a: Quantity, b: Quantity) -> Quantity:
    return Quantity(a.value / b.value, a.draws / b.draws, min(a.n, b.n))


def _minus(a: Quantity, b: Quantity) -> Quantity:
    return Quantity(a.value - b.value, a.draws - b.draws, min(a.n, b.n))


def _largest(*given: Quantity) -> Quantity:
    return Quantity(
        max(one.value for one in given),
        np.maximum.reduce([one.draws for one in given]),
        min(one.n for one in given),
    )


@dataclass
class Attribution:
    """The findings on one run."""

    shares: dict[str, Estimate | None]
    speedup_if_removed: dict[str, Estimate | None]
    bottleneck: str
    joint: tuple[str, ...] = ()
    """For a mixed verdict: the smallest set of causes whose joint removal is worth it."""
    joint_speedup: Estimate | None = None
    utilization: Estimate | None = None
    """AU = T_device ÷ T_real."""
    witnesses: tuple[Estimate, Estimate] | None = None
    """Data wait by arms and data stall by timeline, as fractions of the step."""
    reasons: list[str] = field(default_factory=list)
    """Why a verdict is undetermined or mixed."""
    caveats: list[Caveat] = field(default_factory=list)


@dataclass(frozen=True)
class Times:
    """Mean step times of the arms, made monotone, with their draws. None: not measured."""

    real: Quantity
    ram: Quantity | None
    host: Quantity | None
    device: Quantity | None
    busy: Quantity | None
    free: Quantity | None
    prep: Quantity | None
    fetch: Quantity | None
    violation: str | None
    """Arms whose order is wrong by more than their interval."""


def arm_times(arms: Mapping[str, ArmSteps], *, reads_files: bool) -> Times:
    """Mean step times with the order device ≤ host ≤ ram ≤ real enforced by pool-adjacent-violators.

    A loader that reads no files has `ram` = `real` by construction: there is no storage under it.
    """
    chain = [name for name in ("device", "host", "ram", "real") if name in arms]
    raw = np.array([arms[name].mean("duration") for name in chain])
    drawn = np.stack([arms[name].drawn("duration") for name in chain], axis=1)
    fitted, fitted_draws = pool_adjacent_violators(raw), pool_adjacent_violators(drawn)
    times = {
        name: Quantity(float(fitted[k]), fitted_draws[:, k], arms[name].num_blocks) for k, name in enumerate(chain)
    }
    violation = None
    for k in range(1, len(chain)):
        excess = raw[k - 1] - raw[k]
        width = float(np.std(drawn[:, k - 1] - drawn[:, k])) * 1.96
        if excess > max(width, AGREEMENT * raw[-1]):
            violation = (
                f"`{chain[k]}` ({raw[k] * 1e3:.2f} ms a step) ran faster than `{chain[k - 1]}` "
                f"({raw[k - 1] * 1e3:.2f} ms), which does less"
            )
    busy = None
    if "device" in arms and np.isfinite(arms["device"].mean("busy")):
        device = times["device"]
        value = min(arms["device"].mean("busy"), device.value)
        busy = Quantity(value, np.minimum(arms["device"].drawn("busy"), device.draws), device.n)

    def plain(name: str) -> Quantity | None:
        arm = arms.get(name)
        return None if arm is None else Quantity(arm.mean("duration"), arm.drawn("duration"), arm.num_blocks)

    ram = times.get("ram")
    return Times(
        real=times["real"],
        ram=ram if ram is not None or reads_files else times["real"],
        host=times.get("host"),
        device=times.get("device"),
        busy=busy,
        free=plain("free"),
        prep=plain("prep"),
        fetch=plain("fetch"),
        violation=violation,
    )


def attribute(
    arms: Mapping[str, ArmSteps],
    *,
    reads_files: bool,
    owns_transfer: bool,
    synchronous: bool,
    starved_fraction: float | None,
    overlap: bool = False,
    storage_idle: bool = False,
    doubts: Sequence[str] = (),
) -> Attribution:
    """Judge one run from its arms.

    Args:
        arms: window steps of each arm; `real` must be there.
        reads_files: False for a loader without files (synthetic, cached).
        owns_transfer: the loader delivers batches on the device, so that there is no `host` arm.
        synchronous: the loader works inside `next()` (no workers), in line with issuing.
        starved_fraction: of the workers' time on a batch, the part they were runnable but not running; None
            where unknown.
        overlap: copies run beside the compute of earlier steps.
        storage_idle: the storage's own counter shows that it moved nothing during `real`: it cannot be a cause.
        doubts: why the arms are not what they were to be; any of them leaves the verdict undetermined.
    """
    times = arm_times(arms, reads_files=reads_files)
    found = Attribution({}, {}, "undetermined", reasons=list(doubts))
    real = times.real
    # Where the loader owns the transfer, what separates device from ram is all preparation.
    base = times.device if owns_transfer else times.host
    share = _shares(times, base, arms, starved_fraction, found)
    found.shares = {name: None if share[name] is None else share[name].estimate("fraction") for name in SHARES}  # type: ignore[union-attr]
    if times.device is not None:
        au = _ratio(times.device, real)
        found.utilization = au.estimate("fraction")
    order = Order(synchronous=synchronous, overlap=overlap)
    without = _times_without(times, base, arms, order)
    speedups = {cause: None if one is None else _ratio(real, _bounded(one, real)) for cause, one in without.items()}
    found.speedup_if_removed = {c: None if s is None else s.estimate("ratio") for c, s in speedups.items()}
    together = None if base is None else _smallest_together(times, base, arms, order)
    _judge(found, times, base, speedups, together)
    if found.bottleneck == "mixed" and base is not None:
        if found.joint:  # these could not be told apart
            together = _together([frozenset(found.joint)], times, base, arms, order)
        if together is not None:
            found.joint = tuple(cause for cause in CAUSES if cause in together[0])
            found.joint_speedup = together[1]
    if storage_idle and "storage" in (found.bottleneck, *found.joint):
        found.bottleneck, found.joint, found.joint_speedup = "undetermined", (), None
        found.reasons.append(
            "`real` ran slower than `ram` although the storage moved nothing: something else disturbed this run; "
            "measure longer, or on a quieter machine"
        )
    return found


def _bounded(without: Quantity, real: Quantity) -> Quantity:
    """Removing a cause cannot slow the run down: at most the real time is left."""
    return without.map(min(without.value, real.value), np.minimum(without.draws, real.draws))


def _shares(
    times: Times, base: Quantity | None, arms: Mapping[str, ArmSteps], starved: float | None, found: Attribution
) -> dict[str, Quantity | None]:
    real = times.real

    def of_step(quantity: Quantity | None) -> Quantity | None:
        return None if quantity is None else _ratio(quantity, real)

    share: dict[str, Quantity | None] = dict.fromkeys(SHARES)
    if times.device is not None:
        share["compute"] = of_step(times.busy if times.busy is not None else times.device)
        share["launch"] = None if times.busy is None else of_step(_minus(times.device, times.busy))
        if times.host is not None:
            share["transfer"] = of_step(_minus(times.host, times.device))
    if times.ram is not None:
        share["storage"] = of_step(_minus(real, times.ram))
    if base is None or times.ram is None:
        return share
    growth = _minus(times.ram, base)
    contention = _contention(growth, arms, starved)
    share["contention"] = of_step(contention)
    share["prep"] = of_step(_minus(growth, contention))
    share["unexplained"] = _unexplained(share, times, base, arms, found)
    return share


def _issue_growth(arms: Mapping[str, ArmSteps], arm: str) -> Quantity | None:
    """Growth of the host's issue time from `host` (or `device`) to `arm`, seconds a step."""
    before = arms.get("host") or arms.get("device")
    after = arms.get(arm)
    if before is None or after is None:
        return None
    value = max(after.mean("issue") - before.mean("issue"), 0.0)
    return Quantity(value, np.maximum(after.drawn("issue") - before.drawn("issue"), 0.0), after.num_blocks)


def _host_growth(arms: Mapping[str, ArmSteps]) -> Quantity | None:
    """Growth of the host's time for a step from `host` (or `device`) to `real` that is no data stall, seconds.

    That of issuing; and where the host never waits for the device, that of taking over ready batches too: it
    then stands in line with issuing, while the device still works on the step before.
    """
    issue, real = _issue_growth(arms, "real"), arms["real"]
    before = arms.get("host") or arms.get("device")
    if issue is None or before is None:
        return issue
    if real.mean("wait") + real.mean("issue") < HOST_BOUND * real.mean("duration"):
        return issue

    def taking(arm: ArmSteps) -> Quantity:
        draws = np.asarray(arm.drawn("wait") - arm.drawn("stall"))
        return Quantity(arm.mean("wait") - arm.mean("stall"), draws, arm.num_blocks)

    grown = _minus(taking(real), taking(before))
    return _plus(issue, grown.map(max(grown.value, 0.0), np.maximum(grown.draws, 0.0)))


def _contention(growth: Quantity, arms: Mapping[str, ArmSteps], starved: float | None) -> Quantity:
    """The exposed part of CPU contention within `ram` − `host`.

    On the issuing side: the part of the growth that is not data stall, up to the growth of the issue time.
    On the workers' side: their run-queue share of the data stall.
    """
    ram = arms["ram"] if "ram" in arms else arms["real"]
    stall = _data_stall(arms, ram)
    issue = _issue_growth(arms, ram.arm)
    not_stall = _minus(growth, stall)
    value, draws = 0.0, np.zeros_like(growth.draws)
    if issue is not None:
        value = float(np.clip(not_stall.value, 0.0, issue.value))
        draws = np.clip(not_stall.draws, 0.0, issue.draws)
    if starved is not None:
        value += starved * float(np.clip(stall.value, 0.0, growth.value - value))
        draws = draws + starved * np.clip(stall.draws, 0.0, np.maximum(growth.draws - draws, 0.0))
    return growth.map(value, draws)


def _data_stall(arms: Mapping[str, ArmSteps], arm: ArmSteps) -> Quantity:
    """Seconds a step that the device waits for data, by the arm's timeline.

    A copy that overlaps is hidden while data are always ready. The part of it that a late batch exposes, over what
    `host` exposes, is the wait's too.
    """
    stall = Quantity(arm.mean("stall"), arm.drawn("stall"), arm.num_blocks)
    if "host" not in arms:
        return stall
    grown = arm.mean("exposed") - arms["host"].mean("exposed")
    return Quantity(
        stall.value + max(grown, 0.0),
        stall.draws + np.maximum(arm.drawn("exposed") - arms["host"].drawn("exposed"), 0.0),
        stall.n,
    )


def _unexplained(
    share: dict[str, Quantity | None],
    times: Times,
    base: Quantity,
    arms: Mapping[str, ArmSteps],
    found: Attribution,
) -> Quantity:
    """Compare the data wait by arms with the data stall by the real arm's timeline; take the difference out.

    The growth of the step that the host's own stamps account for (_host_growth) is no data stall, so it is left
    out of the arms' side. The difference comes out of the larger of prep and storage.
    """
    real_arm, real = arms["real"], times.real
    by_arms = _ratio(_minus(real, base), real)
    by_timeline = _ratio(_data_stall(arms, real_arm), real)
    host = _host_growth(arms)
    if host is not None:
        excess = _minus(by_arms, by_timeline)
        exposed = _ratio(host, real)
        by_arms = by_arms.map(
            by_arms.value - float(np.clip(excess.value, 0.0, exposed.value)),
            by_arms.draws - np.clip(excess.draws, 0.0, exposed.draws),
        )
    first, second = by_arms.estimate("fraction"), by_timeline.estimate("fraction")
    found.witnesses = (first, second)
    difference = _minus(by_arms, by_timeline)
    width = (first.high - first.low + second.high - second.low) / 2
    if abs(difference.value) > max(AGREEMENT, width):
        found.reasons.append(
            f"the arms put the wait for data at {first.value:.0%} of the step, the timeline at {second.value:.0%}"
        )
        found.caveats.append(Caveat("witnesses_disagree", found.reasons[-1]))
    prep, storage = share["prep"], share["storage"]
    assert prep is not None and storage is not None
    larger = "prep" if prep.value >= storage.value else "storage"
    kept = share[larger]
    assert kept is not None
    taken = difference.map(
        float(np.clip(difference.value, 0.0, kept.value)), np.clip(difference.draws, 0.0, np.maximum(kept.draws, 0.0))
    )
    share[larger] = _minus(kept, taken)
    return taken


def _issue(arms: Mapping[str, ArmSteps], *names: str) -> Quantity | None:
    """Host time to issue a step, in the first of these arms that was measured."""
    for name in names:
        if name in arms:
            return Quantity(arms[name].mean("issue"), arms[name].drawn("issue"), arms[name].num_blocks)
    return None


def _plus(a: Quantity, b: Quantity | None) -> Quantity:
    return a if b is None else Quantity(a.value + b.value, a.draws + b.draws, min(a.n, b.n))


def loader_time(times: Times, arms: Mapping[str, ArmSteps], *, synchronous: bool) -> Quantity | None:
    """Seconds a batch that the loader needs beside the running device.

    Free-running it has the processor to itself. Beside the device it needs the part of a step in which its
    workers are at work; where it does not tell that, it needs the whole step where it paces the run.
    A synchronous loader and issuing take turns, so that a batch costs both.
    """
    if times.free is None:
        return None
    real, issue = arms["real"], _issue(arms, "real") if synchronous else None
    alone = _plus(times.free, issue)
    if real.worked is not None:
        beside = times.real.map(real.worked * times.real.value, real.worked * times.real.draws)
        return _largest(alone, _bounded(_plus(beside, issue), times.real))
    paced = real.stalled_rounds() > STALLED_ROUNDS and real.all("stall").sum() > STALLED_FRACTION * real.seconds
    return _largest(alone, times.real) if paced else alone


@dataclass(frozen=True)
class Order:
    """What of a step runs in line and what side by side."""

    synchronous: bool
    """The loader works inside `next()`, in line with issuing."""
    overlap: bool
    """Copies run beside the compute of earlier steps."""


def _without_launches(times: Times, arms: Mapping[str, ArmSteps], order: Order) -> Quantity | None:
    """The consumer's step time with no launch gaps and no issuing: the copy, then busy kernels, in one queue or in two.

    T_host − (T_device − busy) would be wrong where issuing is the slower: the copy hides behind it.
    """
    if times.busy is None or times.host is None:
        return times.busy
    host = arms["host"]
    copy = Quantity(host.mean("copy"), host.drawn("copy"), host.num_blocks)
    return _bounded(_largest(times.busy, copy) if order.overlap else _plus(times.busy, copy), times.host)


def _times_without(
    times: Times, base: Quantity | None, arms: Mapping[str, ArmSteps], order: Order
) -> dict[str, Quantity | None]:
    """The step time that is left when a cause is removed, from measured arms (measurement.md, `Verdict`).

    The bound by the other stages' capacities supposes that these overlap perfectly. What a cause on the
    device's side takes exposed is therefore a second bound: without the copy the run cannot gain more than
    T_host − T_device, without launches not more than T_device − busy; where that is worth something, what
    issuing grew by beside the loader comes on top. (Where it is not, the growth is contention alone, and
    counts with preparation.) A synchronous loader stands in line with issuing: there the whole issue time is
    exposed, and it is added to the loader's or the reader's own time wherever these bound the run.
    """
    without: dict[str, Quantity | None] = dict.fromkeys((*CAUSES, "compute"))
    without["storage"] = times.ram
    if base is not None:
        if times.fetch is not None:
            in_line = _issue(arms, "host", "device") if order.synchronous else None
            without["prep"] = _largest(base, _plus(times.fetch, in_line))
        elif times.ram is times.real:  # no files under the loader: nothing to fetch
            without["prep"] = base
    paced = loader_time(times, arms, synchronous=order.synchronous)
    if times.free is None or paced is None:
        return without
    if times.device is not None and times.host is not None:
        exposed = _minus(times.host, times.device)
        # Beside the loader issuing takes longer, and no copy hides it any more.
        device = arms["device"]
        issue = Quantity(device.mean("issue"), device.drawn("issue"), device.num_blocks)
        crowded = _plus(issue, _issue_growth(arms, "real"))
        without["transfer"] = _largest(times.device, paced, crowded, _minus(times.real, exposed))
    rest = _without_launches(times, arms, order)
    if times.device is not None and times.busy is not None and rest is not None:
        exposed = _minus(times.device, times.busy)
        if times.device.value >= WORTH * times.busy.value:
            exposed = _plus(exposed, _issue_growth(arms, "real"))
        if order.synchronous:
            real = arms["real"]
            exposed = _largest(exposed, Quantity(real.mean("issue"), real.drawn("issue"), real.num_blocks))
        feed = times.free if order.synchronous else paced
        without["launch"] = _largest(rest, feed, _minus(times.real, exposed))
    parts = [paced]
    for name, quantity in (("host", "copy"), ("device", "issue")):
        arm = arms.get(name)
        if arm is not None:
            parts.append(Quantity(arm.mean(quantity), arm.drawn(quantity), arm.num_blocks))
    without["compute"] = _largest(*parts)
    return without


def _joint_without(
    removed: frozenset[str], times: Times, base: Quantity, arms: Mapping[str, ArmSteps], order: Order
) -> Quantity | None:
    """The step time without several causes, where the arms tell."""
    consumer: Quantity | None = base
    if "launch" in removed:
        consumer = times.busy if "transfer" in removed else _without_launches(times, arms, order)
    elif "transfer" in removed and times.device is not None:
        consumer = times.device
    if consumer is None:
        return None
    if {"storage", "prep"} <= removed:
        return consumer
    feed = loader_time(times, arms, synchronous=order.synchronous)
    if "prep" in removed:
        feed = times.fetch
    elif "storage" in removed:
        feed = times.prep if times.prep is not None else times.ram
    if feed is None:
        return None
    if not removed & {"prep", "storage"}:
        # The time of a loader in line with issuing holds that; without launches only its own is left.
        return _largest(
            consumer, times.free if order.synchronous and "launch" in removed and times.free is not None else feed
        )
    in_line = _issue(arms, "host", "device") if order.synchronous and "launch" not in removed else None
    return _largest(consumer, _plus(feed, in_line))


def _judge(
    found: Attribution,
    times: Times,
    base: Quantity | None,
    speedups: Mapping[str, Quantity | None],
    together: tuple[frozenset[str], Estimate] | None,
) -> None:
    """Name the bottleneck by the rule of measurement.md, `Verdict`. `together`: see _smallest_together."""
    estimates = {cause: found.speedup_if_removed[cause] for cause in CAUSES}
    known = {cause: one for cause, one in estimates.items() if one is not None}
    if times.violation:
        found.reasons.append(times.violation)
    if not known or times.device is None or base is None or times.ram is None:
        found.reasons.append("arms needed for a verdict were not measured; run with --arms all")
    worth = sorted((c for c, one in known.items() if one.value >= WORTH), key=lambda c: -known[c].value)
    best = known[worth[0]].value if worth else 1.0
    for cause, most in _most_of_unmeasured(times, base, known).items():
        if not found.reasons and most >= WORTH and most > 1.03 * best:
            found.reasons.append(
                f"the gain without {cause} was not measured and may be up to {most:.2f}×: "
                "that takes --arms all and --cache warm or cold"
            )
    # A gain that may be nothing is no single cause, where several together surely give more than it can.
    only_together = (
        bool(worth) and together is not None and len(together[0]) > 1 and together[1].low > known[worth[0]].high
    )
    if worth and known[worth[0]].low < SURE and not only_together:
        one = known[worth[0]]
        found.reasons.append(
            f"the gain without {worth[0]} is known only as {one.low:.2f}× – {one.high:.2f}×: measure longer"
        )
    if not worth and known:
        cause = max(known, key=lambda c: known[c].high)
        if known[cause].high >= CLEAR:
            found.reasons.append(f"without {cause} it may be up to {known[cause].high:.2f}× faster: measure longer")
    if times.real.n < 2:
        found.reasons.append("too few steps for an interval: measure longer")
    if found.reasons:
        return
    assert base is not None and found.utilization is not None
    if worth and known[worth[0]].low < SURE:
        found.bottleneck = "mixed"
    elif worth:
        first = worth[0]
        close = [cause for cause in worth[1:] if not _surely_larger(speedups[first], speedups[cause])]
        found.bottleneck = "mixed" if close else first
        if close:
            found.joint = (first, *close)
            found.reasons.append(f"the gains without {' and without '.join(found.joint)} cannot be told apart")
    elif found.utilization.value >= COMPUTE_AU:
        found.bottleneck = "compute"
    elif found.utilization.high > 1 / SURE:
        low, high = found.utilization.low, found.utilization.high
        found.reasons.append(f"the device is fed between {low:.0%} and {high:.0%} of the time: measure longer")
    else:
        found.bottleneck = "mixed"


def _most_of_unmeasured(times: Times, base: Quantity | None, known: Mapping[str, Estimate]) -> dict[str, float]:
    """The most that removing a cause can give where its arms are missing. Launches are left out: where the
    device does not tell its busy time they are part of compute, and a caveat says so."""
    real = times.real.value
    most: dict[str, float] = {}
    if "prep" not in known and base is not None:
        most["prep"] = real / base.value
    if "transfer" not in known and times.host is not None and times.device is not None:
        most["transfer"] = real / max(times.device.value, real - (times.host.value - times.device.value))
    return most


def _surely_larger(first: Quantity | None, second: Quantity | None) -> bool:
    """Whether the interval of the two gains' ratio lies above 1. Both rest on the same runs, so what moves
    the real time moves both: the ratio is known better than either."""
    assert first is not None and second is not None
    return bool(np.percentile(first.draws / second.draws, 2.5) > 1.0)


def _smallest_together(
    times: Times, base: Quantity, arms: Mapping[str, ArmSteps], order: Order
) -> tuple[frozenset[str], Estimate] | None:
    """The smallest set of two or more causes whose joint removal is worth it, and what that gives."""
    sets = [frozenset(some) for size in (2, 3, 4) for some in combinations(CAUSES, size)]
    return _together(sets, times, base, arms, order)


def _together(
    candidates: Sequence[frozenset[str]],
    times: Times,
    base: Quantity,
    arms: Mapping[str, ArmSteps],
    order: Order,
) -> tuple[frozenset[str], Estimate] | None:
    """The smallest of the sets that is worth removing, of equal ones the best."""
    best: tuple[int, float, frozenset[str], Quantity] | None = None
    for some in candidates:
        left = _joint_without(some, times, base, arms, order)
        if left is None or not min(left.value, left.draws.min()) > 0:
            continue
        gain = _ratio(times.real, _bounded(left, times.real))
        if gain.value >= WORTH and (best is None or (len(some), -gain.value) < best[:2]):
            best = (len(some), -gain.value, some, gain)
    return None if best is None else (best[2], best[3].estimate("ratio"))
