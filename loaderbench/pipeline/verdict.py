"""What limits a run, and what removing it would give, by replay alone.

A cause is worth naming if the step without it is WORTH times shorter, surely SURE times. Contention is named where no
stage gains more beyond it. Where no cause alone is worth it, the smallest set that is. What storage is slow by is the
edit of its reads that gains half of what all gain, else how its rate grows with its readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from loaderbench.analysis import storage
from loaderbench.analysis.processors import by_whom
from loaderbench.cases.arms import Arm
from loaderbench.pipeline.change import Change, changed
from loaderbench.pipeline.edits import Removed, busy_s, without
from loaderbench.pipeline.fit import EXPLAINED, Fitted, fit, residual
from loaderbench.pipeline.gains import Replays
from loaderbench.pipeline.replay import step_s
from loaderbench.pipeline.stages import Times
from loaderbench.recording.facts import Run
from loaderbench.recording.record import Bottleneck, Cause, ContentionBy, Estimate, Removable, StorageSlowness
from loaderbench.recording.whatif import Limit

WORTH, SURE, ALIKE = 1.10, 1.03, 1.01
"""As the rules have it (analysis/model.py, analysis/verdict.py)."""
HALF = 0.5
"""Of the storage's gain, in logarithms, that names its kind."""
WITHOUT: Mapping[Removable, Removed] = {
    "storage": "storage", "prep": "prep", "transfer": "transfer", "launch": "launch", "compute": "compute",
}  # fmt: skip
"""The edit of each cause that is work of the run's own."""


@dataclass(frozen=True)
class Replayed:
    """The replay's findings on one run."""

    bottleneck: Bottleneck
    joint: tuple[Cause, ...]
    gains: Mapping[Removable, Estimate]
    joint_gain: Estimate | None
    residual: float
    """Step replayed ÷ measured, less 1: of rounds that were not fitted, where there are such."""
    held_out: bool
    kind: StorageSlowness | None = None
    by: ContentionBy | None = None


def judged(run: Run) -> Replayed | None:
    """None where no step of `real` is complete."""
    fitted = fit(run)
    return None if fitted is None else _Judge(fitted).judged()


def held_out_residual(run: Run) -> tuple[float, bool] | None:
    """(step replayed ÷ measured less 1, whether what was replayed had not been fitted): the other arms, the standstills
    and the processors are fitted on rounds of odd number, and the batches of `real` in the others are replayed with
    that. Of a single round they are its own. None where no step of `real` is complete."""
    recording = run.recording
    rounds = [] if recording is None else sorted({one.round for one in recording.of(Arm.REAL)})
    held_out = len(rounds) > 1
    fitted = fit(run, calibrated=rounds[0::2], replayed=rounds[1::2]) if held_out else fit(run)
    return None if fitted is None else (residual(fitted), held_out)


def at_least(replays: Replays) -> tuple[Cause, Estimate] | None:
    """The stage that limits a run of few, long steps, with a lower bound of its gain: each of its batches tells what
    was read and prepared for how long, though there are too few of them for an interval with two ends. None where the
    replay names no single stage or does not explain the run, and where the storage, which may be slow only now and
    then, may matter but is not named."""
    if replays.order.num_blocks < 2:
        replays = replace(replays, by_batch=True)
    judge = _Judge(replays.fitted, replays)
    bottleneck, joint = judge.named(judge.contention())
    cause = next((one for one in judge.stages if one == bottleneck and not joint), None)
    gain = None if cause is None else judge.estimate(cause)
    if cause is None or gain is None or gain.low is None or gain.low < WORTH:
        return None
    if cause != "storage" and "storage" in judge.stages:
        most = judge.estimate("storage").high
        if most is None or most >= WORTH:
            return None
    return cause, replace(gain, high=None)


def gain_by_model(replays: Replays, bottleneck: Bottleneck) -> Estimate | None:
    """What a run would gain without a stage, known no better than the replay explains the run. None of anything but a
    stage that the replay can take out."""
    judge = _Judge(replays.fitted, replays)
    cause = next((one for one in judge.stages if one == bottleneck), None)
    if cause is None or (cause == "launch" and not np.isfinite(busy_s(replays.fitted))):
        return None
    return replays.estimate(judge.gain(WITHOUT[cause]), own=abs(residual(replays.fitted)) + ALIKE - 1.0)


def limits(fitted: Fitted, replays: Replays, change: Change) -> Limit:
    """What limits the run after a change, judged as a run is."""
    found = _Judge(fitted, replays, change).judged()
    return Limit(found.bottleneck, found.joint, found.gains, found.joint_gain)


class _Judge:
    """Judges a run, or what a change makes of it."""

    def __init__(self, fitted: Fitted, replays: Replays | None = None, change: Change | None = None) -> None:
        self.fitted, self.replays, self.change = fitted, replays or Replays(fitted), change
        facts = fitted.recording.facts
        self.stages = list[Cause](["storage", "prep"])
        if not facts.device.on_host_cpus and not fitted.is_watched:
            self.stages.append("launch")
        if facts.device.copies and not fitted.is_watched:
            self.stages.append("transfer")
        arms = set(fitted.arms)
        self.blind = fitted.real.opaque and not arms & {Arm.RAM, Arm.PREP, Arm.FETCH}
        if self.blind or not facts.loader.decodes:
            self.stages.remove("storage")
        self._draws = dict[frozenset[Removed], Times]()

    def gain(self, *causes: Removed) -> Times:
        key = frozenset(causes)
        if key not in self._draws:
            self._draws[key] = self.replays.gain(key) if self.change is None else self._changed_gain(key)
        return self._draws[key]

    def _changed_gain(self, causes: frozenset[Removed]) -> Times:
        assert self.change is not None
        gone = replace(self.change, without=self.change.without | causes)
        return np.maximum(1.0, self._then_s / np.maximum(self.replays.step_s(changed(self.fitted, gone)), 1e-12))

    @cached_property
    def _then_s(self) -> Times:
        assert self.change is not None
        return self.replays.step_s(changed(self.fitted, self.change))

    def judged(self) -> Replayed:
        gains = {
            cause: self.gain(edit) for cause, edit in WITHOUT.items() if cause == "compute" or cause in self.stages
        }
        contention = self.contention()
        if contention is not None:
            gains["contention"] = contention[1]
        bottleneck, joint = self.named(contention)
        explained, held_out = self._explained()
        estimates = {cause: self.replays.estimate(gain) for cause, gain in gains.items()}
        together = [WITHOUT[cause] for cause in joint if cause in WITHOUT]
        return Replayed(
            bottleneck, joint, estimates, self.replays.estimate(self.gain(*together)) if together else None, explained,
            held_out, kind=self._kind() if self.change is None and "storage" in (bottleneck, *joint) else None,
            by=None if contention is None else self._by(contention[0]),
        )  # fmt: skip

    def _explained(self) -> tuple[float, bool]:
        none = float("nan"), False
        return none if self.change is not None else held_out_residual(self.fitted.run) or none

    def estimate(self, cause: Cause) -> Estimate:
        return self.replays.estimate(self.gain(WITHOUT[cause]))

    def contention(self) -> tuple[Removed, Times] | None:
        seen = self.fitted.seen
        if seen is None or not seen.waits:
            return None
        ways = list[Removed](["others"]) + list[Removed](["own"] if Arm.DEVICE in self.fitted.arms else [])
        gains = {way: self.gain(way) for way in ways}
        way = max(ways, key=lambda one: float(gains[one][0]))
        return way, gains[way]

    def _by(self, way: Removed) -> ContentionBy | None:
        seen = self.fitted.seen
        return None if seen is None else by_whom(seen, others=way == "others", workers=self.fitted.real.workers)

    def _is_worth(self, gain: Times) -> bool:
        low = self.replays.estimate(gain).low
        return bool(gain[0] >= WORTH and low is not None and low >= SURE)

    def named(self, contention: tuple[Removed, Times] | None) -> tuple[Bottleneck, tuple[Cause, ...]]:
        """The bottleneck, with the causes of a joint one; undetermined where the replay does not explain the run."""
        if abs(residual(self.fitted)) > EXPLAINED:
            return "undetermined", ()
        ranked = sorted(self.stages, key=lambda cause: -float(self.gain(WITHOUT[cause])[0]))
        best = self.gain(WITHOUT[ranked[0]])
        if contention is not None and self._is_worth(contention[1]):
            way, gain = contention
            beyond = max(float(self.gain(way, WITHOUT[cause])[0] / gain[0]) for cause in self.stages)
            if beyond <= gain[0]:
                return "contention", ()
        if self._is_worth(best):
            return self._alike(ranked, best)
        if best[0] >= WORTH:
            return "undetermined", ()
        for size in range(2, min(3, len(self.stages)) + 1):
            some = max(combinations(self.stages, size), key=self._joint_gain)
            if self._joint_gain(some) >= WORTH:
                return "mixed", some
        return "compute", ()

    def _joint_gain(self, causes: Sequence[Cause]) -> float:
        return float(self.gain(*(WITHOUT[cause] for cause in causes))[0])

    def _alike(self, ranked: Sequence[Cause], best: Times) -> tuple[Bottleneck, tuple[Cause, ...]]:
        """The best cause alone, or with those that may be as good."""
        close = list[Cause]()
        for cause in ranked[1:]:
            gain = self.gain(WITHOUT[cause])
            low = self.replays.estimate(best / gain).low
            if self._is_worth(gain) and (low is None or low <= 1.0 or best[0] <= ALIKE * gain[0]):
                close.append(cause)
        if ranked[0] == "prep" and self.blind:  # nothing tells them apart
            close = ["storage", *close]
        return ("mixed", (ranked[0], *close)) if close else (ranked[0], ())

    def _kind(self) -> StorageSlowness | None:
        first = self.replays.order.first()
        now = float(self.replays.now_s[0])

        def part(cause: Removed) -> float:
            return float(np.log(now / step_s(without(self.fitted, {cause}).stages, first)[0]))

        whole = max(part("storage"), 1e-9)
        slow = {"stalls": part("stalls") / whole, "tail": part("tail") / whole}
        most: StorageSlowness = "stalls" if slow["stalls"] >= slow["tail"] else "tail"
        if slow[most] >= HALF:
            return most
        return storage.bound_by(self.fitted.recording.facts.storage.ceiling, max(1, self.fitted.real.workers))
