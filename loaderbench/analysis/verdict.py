"""What limits a run, by the rule of docs/method.md, `Verdict`: a bottleneck, or why none can be named.

Findings are codes and figures; reporting/words.py puts them into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np

from loaderbench.analysis.attribution import Witnesses, estimates, shares, witnesses
from loaderbench.analysis.model import WORTH, Model
from loaderbench.analysis.quantities import Quantity
from loaderbench.cases.arms import Arm
from loaderbench.plain import Json
from loaderbench.recording.caveats import Reason
from loaderbench.recording.record import (
    CAUSES,
    STAGES,
    Bottleneck,
    Cause,
    DataWait,
    Estimate,
    Removable,
    Share,
    Verdict,
)

COMPUTE_AU = 0.90
SURE = 1.03
"""A cause is named as the only one if the low end of its gain reaches this."""
CLEAR = 1.25
"""A gain that a compute verdict must be able to exclude."""
LEAST_STEPS = 15
"""Steps of `real` in the shortest ordinary run: three windows of five. With fewer, or fewer than three rounds of the
workers, a run is short."""
SPREAD = 3.0
"""A gain whose interval's ends differ by more than this factor is not known. A short run names no cause by one, unless
it is surely at least as large, and no run blames several causes by one."""
ENOUGH_STEPS, ENOUGH_ROUNDS, LONGER = 30, 6, 4
"""What a run that is too short is told to measure: as many steps, rounds of the workers, and times its own steps."""
MORE = 1.03
"""An unmeasured gain must exceed the best measured one by this factor to take its place."""
HELD_UP = 1.6
"""A run that would surely be so much faster without others is not judged beside them: their part is named first,
whatever its own stages could give. One busy process beside a run that keeps two processors busy costs it 1.5."""
ALIKE = 1.01
"""Gains that differ by no more than this factor are the same to who acts on them. Two that end at the same step differ
in the last digit of a float."""
UNSURE = ("gain_uncertain", "may_be_faster", "feeding_uncertain")
"""Reasons that more steps would settle."""
HOLD_CONTENTION: frozenset[Cause] = frozenset(("prep", "launch"))
"""Stages whose gain holds that without contention: what is not prepared or launched waits for no processor."""
REMOVABLE: tuple[Removable, ...] = (*CAUSES, "compute")


@dataclass(frozen=True)
class Group:
    """Causes that stand together: their removal gives `gain`, whatever each one alone would give."""

    causes: tuple[Cause, ...]
    gain: Quantity | None
    """None where the arms do not tell."""


@dataclass(frozen=True)
class Joined:
    """Causes that the measured arms do not tell apart, and the gain without all of them."""

    causes: tuple[Cause, ...]
    gain: Quantity


@dataclass(frozen=True)
class Attribution:
    """The findings on one run."""

    shares: Mapping[Share, Estimate | None]
    utilization: Estimate | None
    """AU = T_device ÷ T_real."""
    verdict: Verdict


@dataclass(frozen=True)
class Ruling:
    """The part of a verdict that is decided here."""

    bottleneck: Bottleneck
    reasons: tuple[Reason, ...] = ()
    group: Group | None = None


def attribute(model: Model, *, storage_idle: bool = False, doubts: Sequence[Reason] = ()) -> Attribution:
    """Judge one run from its arms.

    Args:
        storage_idle: the storage's own counter shows that it moved nothing during `real`, so it cannot be a cause.
        doubts: why the arms did not measure what they should; any of them leaves the verdict undetermined.
    """
    seen = witnesses(model)
    judge = _Judge(model, seen, tuple(doubts))
    ruling = judge.ruling()
    if storage_idle and "storage" in (ruling.bottleneck, *(ruling.group.causes if ruling.group else ())):
        ruling = Ruling("undetermined", (*ruling.reasons, Reason("storage_was_idle")))
    group = ruling.group
    too_short = any(reason.code == "too_few_steps" for reason in ruling.reasons)
    gains = {cause: model.gain(model.without(cause)) for cause in REMOVABLE}
    verdict = Verdict(
        bottleneck=ruling.bottleneck,
        reasons=ruling.reasons,
        speedup_if_removed={
            cause: None if gain is None or (too_short and _is_wide(gain)) else gain.estimate("ratio")
            for cause, gain in gains.items()
        },
        joint=() if group is None else group.causes,
        joint_speedup=None if group is None or group.gain is None else group.gain.estimate("ratio"),
        waiting_for_data=None
        if seen is None
        else DataWait(seen.by_arms.estimate("fraction"), seen.by_timeline.estimate("fraction")),
    )
    au = judge.utilization
    share = estimates(shares(model))
    return Attribution(share, None if au is None else au.estimate("fraction"), verdict)


@dataclass(frozen=True)
class _Judge:
    model: Model
    seen: Witnesses | None
    doubts: tuple[Reason, ...] = field(default=())

    @cached_property
    def utilization(self) -> Quantity | None:
        device = self.model.times.device
        return None if device is None else device / self.model.real

    @cached_property
    def worth(self) -> list[Cause]:
        """The causes whose removal is worth it, the best first."""
        gains = self.model.gains
        return sorted((c for c in gains if gains[c].value >= WORTH), key=lambda c: -gains[c].value)

    @property
    def best(self) -> float:
        """The largest gain of one cause that is worth removing; 1 where none is."""
        return self.model.gains[self.worth[0]].value if self.worth else 1.0

    def gives_far_more_together(self, best: Quantity) -> bool:
        """Whether the best cause may not be worth it alone, and several together surely give more than its square."""
        group = self.together
        return best.low < WORTH and group is not None and group.gain is not None and group.gain.low > best.high**2

    @cached_property
    def together(self) -> Group | None:
        """The smallest set of two or more causes whose joint removal is worth it; among equally small ones the best."""
        stages = self.model.stages
        sets = [frozenset(some) for size in range(2, len(stages) + 1) for some in combinations(stages, size)]
        return self.best_group(sets)

    def best_group(self, sets: Sequence[frozenset[Cause]]) -> Group | None:
        """The smallest of the sets that is worth removing; among equally small ones the best."""
        best: tuple[int, float, Group] | None = None
        for some in sets:
            left = self.model.joint_without(some)
            if left is None or not min(left.value, left.draws.min()) > 0:
                continue
            gain = self.model.gain(left)
            assert gain is not None
            rank = (len(some), -gain.value)
            if gain.value >= WORTH and (best is None or rank < best[:2]):
                best = (*rank, Group(tuple(cause for cause in STAGES if cause in some), gain))
        return None if best is None else best[2]

    def ruling(self) -> Ruling:
        if self.doubts:
            return Ruling("undetermined", self.doubts)
        if self.model.real.n >= 2 and self.is_held_up:
            return Ruling("contention")
        if self.model.real.n < 2:
            return self.of_too_few_steps
        if against := self.disorder():
            return self.of_too_few_steps if self.is_once_out_of_order else Ruling("undetermined", tuple(against))
        ruling = self.of_the_gains()
        return self.of_too_few_steps if self.rests_on_too_little(ruling) else ruling

    @property
    def is_held_up(self) -> bool:
        """Whether the want of processors limits the run: it surely costs something, and either no stage of the run's
        own gives more beyond it, or others take so much (HELD_UP) that its stages cannot be judged beside them.

        Where a stage's gain holds that without contention (HOLD_CONTENTION), what it gives of its own is the ratio of
        both.
        """
        gain = self.model.contention_gain
        if gain is None or gain.n < 2 or _is_wide(gain):
            return False
        if gain.low < SURE:
            return self.stage_is_contention(gain)
        if self.model.held_up_by_others and gain.low >= HELD_UP:
            return True
        found: list[tuple[tuple[Cause, ...], Quantity]] = []
        found += [((cause,), self.model.gains[cause]) for cause in self.worth[:1]]
        if self.unseparated is not None:  # what the arms do not tell apart may give more, too
            found.append((self.unseparated.causes, self.unseparated.gain))
        causes, best = max(found, key=lambda one: one[1].value, default=(("prep",), gain))
        if gain.value < WORTH and (best.value < WORTH or best.low < SURE):
            return False
        return _may_hold(gain.value, causes) >= best.value

    def stage_is_contention(self, gain: Quantity) -> bool:
        """Whether the best stage surely gives something, and is worth nothing beyond the `gain` without contention that
        it holds: whatever that gain is, it is what the stage's is."""
        if gain.value < WORTH or HOLD_CONTENTION.isdisjoint(self.worth[:1]) or self.unseparated is not None:
            return False
        best = self.model.gains[self.worth[0]]
        return best.low >= SURE and best.value < WORTH * gain.value

    @property
    def hides_contention(self) -> bool:
        """Whether the best stage's gain is so badly known that it may be no more than the want of processors, which
        surely costs something."""
        gain, best = self.model.contention_gain, self.model.gains[self.worth[0]]
        if gain is None or gain.n < 2 or gain.low < SURE or gain.value < WORTH or not _is_wide(best):
            return False
        return not HOLD_CONTENTION.isdisjoint(self.worth[:1]) and _may_hold(gain.value, self.worth[:1]) >= best.low

    def of_the_gains(self) -> Ruling:
        joined = self.unseparated
        if joined is not None and joined.gain.value > max(WORTH, MORE * self.best):
            behind = self.behind_threads(joined.gain.value)
            return Ruling("undetermined", tuple(behind)) if behind else self.of_unseparated(joined)
        if unsure := self.unsure():
            return Ruling("undetermined", tuple(unsure))
        return self.of_one_cause() if self.worth else self.of_none()

    # -- runs that are too short ---------------------------------------------------------------------------

    @cached_property
    def is_short(self) -> bool:
        real = self.model.arms[Arm.REAL]
        return real.num_steps + real.left_out < max(LEAST_STEPS, 3 * real.round_steps)

    def rests_on_too_little(self, ruling: Ruling) -> bool:
        """Whether the steps are too few for what the ruling names, or for any ruling."""
        if ruling.bottleneck == "undetermined":
            return self.is_short and any(reason.code in UNSURE for reason in ruling.reasons)
        known = [gain for cause, gain in self.model.gains.items() if cause == ruling.bottleneck]
        if ruling.group is None and all(gain.n > 1 and gain.low >= SPREAD for gain in known):
            return False
        if ruling.group is not None:
            of_group = [self.model.gains[cause] for cause in ruling.group.causes if cause in self.model.gains]
            known = of_group if ruling.group.gain is None else [ruling.group.gain]
        if any(reason.code == "cannot_be_told_apart" for reason in ruling.reasons):
            assert ruling.group is not None
            known += [self.model.gains[cause] for cause in ruling.group.causes if cause in self.model.gains]
        return (self.is_short or ruling.bottleneck == "mixed") and any(gain.n < 2 or _is_wide(gain) for gain in known)

    @property
    def enough_steps(self) -> int:
        """Of `real`, to judge a run by."""
        return max(ENOUGH_STEPS, ENOUGH_ROUNDS * self.model.arms[Arm.REAL].round_steps)

    @property
    def of_too_few_steps(self) -> Ruling:
        """Undetermined, with how many steps to measure, and the seconds that takes in all arms."""
        real = self.model.arms[Arm.REAL]
        wanted = max(self.enough_steps, LONGER * real.num_steps)
        seconds = wanted * sum(arm.mean("duration") for arm in self.model.arms.values())
        details: dict[str, Json] = {"steps": real.num_steps, "wanted": wanted, "seconds": seconds}
        return Ruling("undetermined", (Reason("too_few_steps", details),))

    # -- what speaks against any verdict -------------------------------------------------------------------

    @property
    def is_once_out_of_order(self) -> bool:
        """Whether all that speaks against a verdict is the order of two arms of a short window each: those of a single
        arm may differ as much."""
        found = self.model.times.violation
        if found is None or (self.seen is not None and not self.seen.agree):
            return False
        if self.model.watched is not None or self.model.arms[Arm.REAL].num_steps >= self.enough_steps:
            return False
        return all(len(self.model.arms[arm].quantities) == 1 for arm in (found.faster, found.slower))

    def disorder(self) -> list[Reason]:
        """Arms that contradict each other, or the timeline."""
        reasons = []
        if self.seen is not None and not self.seen.agree:
            details: dict[str, Json] = {
                "by_arms": self.seen.by_arms.value,
                "by_timeline": self.seen.by_timeline.value,
            }
            reasons.append(Reason("witnesses_disagree", details))
        violation = self.model.times.violation
        if violation is not None:
            reasons.append(
                Reason(
                    "arms_out_of_order",
                    {
                        "faster": violation.faster.value,
                        "faster_s": violation.faster_s,
                        "slower": violation.slower.value,
                        "slower_s": violation.slower_s,
                    },
                )
            )
        return reasons

    def unsure(self) -> list[Reason]:
        """Gains that are not known well enough, or not at all."""
        gains, reasons = self.model.gains, []
        for cause, most in self.most_of_unmeasured().items():
            if most >= WORTH and most > MORE * self.best:
                reasons.append(Reason("gain_not_measured", {"cause": cause, "most": most}))
        held_up = self.model.most_of_contention
        if held_up is not None and held_up >= WORTH and _may_hold(held_up, self.worth[:1]) >= self.best:
            reasons.append(Reason("gain_not_measured", {"cause": "contention", "most": held_up}))
        reasons += self.behind_threads(self.best)
        if self.model.stalls_missed is not None:
            part, seen = self.model.stalls_missed
            if (most := 1.0 / max(1.0 - part, 1e-9)) >= WORTH and most > MORE * self.best:
                reasons.append(_stalls_missed(part, seen))
        unknown = self.worth and (gains[self.worth[0]].low < SURE or self.hides_contention)
        if unknown and not self.only_together:
            reasons.append(_uncertain(self.worth[0], gains[self.worth[0]]))
        possible = {str(cause): gain.high for cause, gain in gains.items()}
        if self.model.contention_gain is not None:
            possible["contention"] = self.model.contention_gain.high
        if self.unseparated is not None:
            possible[" and ".join(self.unseparated.causes)] = self.unseparated.gain.high
        if not self.worth and possible:
            what = max(possible, key=lambda name: possible[name])
            if possible[what] >= CLEAR:
                reasons.append(Reason("may_be_faster", {"cause": what, "high": possible[what]}))
        return reasons

    def behind_threads(self, best: float) -> list[Reason]:
        """Where threads of a watched script's process may cost it more than the best of its causes."""
        behind_s, real_s = self.model.behind_threads_s, self.model.real.value
        most = real_s / max(real_s - behind_s, 1e-9)
        if most < CLEAR or most <= MORE * best:
            return []
        return [Reason("threads_in_step", {"part": behind_s / real_s, "most": most})]

    @property
    def only_together(self) -> bool:
        """Whether several causes together surely give more than the best single one, whose own gain may be nothing."""
        group = self.together
        if not self.worth or group is None or group.gain is None:
            return False
        return group.gain.low > self.model.gains[self.worth[0]].high

    def most_of_unmeasured(self) -> dict[Cause, float]:
        """Upper bound of what removing the copy or the launches can give where their arms are missing; empty where the
        loader paces the run. Where the device does not tell its busy time, launches are part of compute, and a caveat
        says so."""
        model, times, real = self.model, self.model.times, self.model.real.value
        most: dict[Cause, float] = {}
        if model.loader_paces and not model.synchronous:
            return most
        launches = model.exposed_launches
        if "launch" not in model.gains and launches is not None and times.busy is not None:
            left = max(real - launches.value, times.busy.value)
            most["launch"] = real / left if left > 0 else float("inf")
        if "transfer" not in model.gains and model.copies and not model.owns_transfer and times.host is not None:
            exposed = times.host.value if times.device is None else times.host.value - times.device.value
            left = max(real - exposed, 0.0 if times.device is None else times.device.value)
            most["transfer"] = real / left if left > 0 else float("inf")
        return most

    # -- arms that were not measured -------------------------------------------------------------------------

    @cached_property
    def unseparated(self) -> Joined | None:
        """The causes that the measured arms do not tell apart, with the gain of removing all of them; None: there are
        none, or their gain is unknown."""
        times = self.model.times
        feeding: tuple[Cause, ...] = ("storage", "prep") if self.model.has_storage else ("prep",)
        if self.model.base is not None:
            return None if set(feeding) <= set(self.model.gains) else self.joined(feeding, self.model.base)
        if times.device is not None:
            return self.joined((*feeding, "transfer") if self.model.copies else feeding, times.device)
        left = self.model.real - self.model.data_stall(Arm.REAL)  # by the timeline alone
        return self.joined(feeding, left) if min(left.value, left.draws.min()) > 0 else None

    def joined(self, causes: tuple[Cause, ...], left: Quantity) -> Joined:
        gain = self.model.gain(left)
        assert gain is not None
        return Joined(causes, gain)

    def of_unseparated(self, joined: Joined) -> Ruling:
        if joined.gain.low < SURE:
            return Ruling("undetermined", (_uncertain(" and ".join(joined.causes), joined.gain),))
        arms = [] if self.model.watched is not None else self.missing_arms(joined.causes)  # no option runs them there
        missing: list[Json] = [arm.value for arm in arms]
        reason = Reason("not_separated", {"causes": [*joined.causes], "arms": missing})
        if self.model.watched is not None and self.model.watched.reads_nothing:
            reason = Reason("nothing_read", {"causes": [*joined.causes]})
        bottleneck: Bottleneck = joined.causes[0] if len(joined.causes) == 1 else "mixed"
        return Ruling(bottleneck, (reason,), Group(joined.causes, joined.gain))

    def missing_arms(self, causes: Sequence[Cause]) -> list[Arm]:
        """The arms that would tell the causes apart."""
        wanted = [Arm.FETCH] if "prep" in causes and self.model.reads_files else []
        wanted += [Arm.RAM] if "storage" in causes else []
        wanted.append(Arm.DEVICE if self.model.owns_transfer else Arm.HOST)
        return [arm for arm in wanted if arm not in self.model.arms]

    # -- verdicts --------------------------------------------------------------------------------------------

    def of_one_cause(self) -> Ruling:
        """The best cause, unless another cannot be told from it, or only several causes together limit the run."""
        gains, first = self.model.gains, self.worth[0]
        if gains[first].low < SURE or self.gives_far_more_together(gains[first]):
            return Ruling("mixed", (), self.together)
        close = [cause for cause in self.worth[1:] if not _surely_larger(gains[first], gains[cause])]
        if not close:
            return Ruling(first)
        causes: list[Json] = [first, *close]
        reason = Reason("cannot_be_told_apart", {"causes": causes})
        group = self.best_group([frozenset((first, *close))])
        return Ruling("mixed", (reason,), group or Group((first, *close), None))

    def of_none(self) -> Ruling:
        """No single cause is worth removing: the device is kept busy, or several causes limit the run together."""
        au, group = self.utilization, self.together
        if self.model.stalls_missed is not None:
            return Ruling("undetermined", (_stalls_missed(*self.model.stalls_missed),))
        if au is None and group is not None and group.gain is not None and group.gain.low >= SURE:
            return Ruling("mixed", (), group)
        if au is None:
            return Ruling("undetermined", (Reason("consumer_not_separated"),))
        if au.value >= COMPUTE_AU:
            return Ruling("compute")
        if au.high > 1 / SURE:
            return Ruling("undetermined", (Reason("feeding_uncertain", {"low": au.low, "high": au.high}),))
        return Ruling("mixed", () if self.together else (Reason("none_alone"),), self.together)


def _may_hold(contention: float, causes: Sequence[Cause]) -> float:
    """The gain of the best causes up to which contention is named before them. Where theirs holds that without
    contention, a stage that is worth it only with this is no better a name."""
    return contention ** (1 if HOLD_CONTENTION.isdisjoint(causes) else 2)


def _is_wide(gain: Quantity) -> bool:
    return gain.high > SPREAD * gain.low


def _stalls_missed(part: float, seen: float) -> Reason:
    return Reason("stalls_missed", {"part": part, "seen": seen})


def _uncertain(what: str, gain: Quantity) -> Reason:
    return Reason("gain_uncertain", {"cause": what, "low": gain.low, "high": gain.high})


def _surely_larger(first: Quantity, second: Quantity) -> bool:
    """Whether the interval of the two gains' ratio lies above 1, and the ratio above ALIKE. Both come from the same
    runs, so a change of the real time moves both: the ratio is known better than either."""
    return first.value > ALIKE * second.value and bool(np.percentile(first.draws / second.draws, 2.5) > 1.0)
