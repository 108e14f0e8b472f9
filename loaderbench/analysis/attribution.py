"""Where a step's time goes: its shares by cause, and the two witnesses of the wait for data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loaderbench.analysis.model import AGREEMENT, Model
from loaderbench.analysis.quantities import Quantity
from loaderbench.cases.arms import Arm
from loaderbench.recording.record import SHARES, Estimate, Share


@dataclass(frozen=True)
class Witnesses:
    """The wait for data as a fraction of the step: by the arms, and by the real arm's timeline.

    Each is a fraction of the step that it is part of: the arms' of the time that their order makes of it (`arm_times`),
    the timeline's of the step that was measured. The growth of the step that the host's own stamps account for
    (`Model.host_growth`) is no data stall, so the arms' side leaves it out.
    """

    by_arms: Quantity
    by_timeline: Quantity

    @property
    def agree(self) -> bool:
        """Whether they agree within AGREEMENT of the step, or within the intervals where these are wider."""
        width = (self.by_arms.high - self.by_arms.low + self.by_timeline.high - self.by_timeline.low) / 2
        return abs(self.difference.value) <= max(AGREEMENT, width)

    @property
    def difference(self) -> Quantity:
        return self.by_arms - self.by_timeline


def witnesses(model: Model) -> Witnesses | None:
    """Both witnesses; None where the wait for data does not follow from the arms."""
    real, base = model.real, model.base
    if base is None or (model.times.ram is None and model.watched is None):
        return None
    by_arms = (real - base) / real
    by_timeline = model.data_stall(Arm.REAL) / Quantity.of(model.arms[Arm.REAL], "duration")
    host = model.host_growth
    if host is not None:
        excess, most = by_arms - by_timeline, host / real
        if model.watched is not None:
            most = most.clipped(0.0, model.most_own_growth)
        by_arms = by_arms - excess.clipped(0.0, most)
    return Witnesses(by_arms, by_timeline)


def shares(model: Model) -> dict[Share, Quantity | None]:
    """Each cause's part of the step time, disjoint; they sum to 1 where every arm was measured. None: not measured."""
    times, real = model.times, model.real
    share: dict[Share, Quantity | None] = dict.fromkeys(SHARES)
    if times.device is not None:
        share["compute"] = (times.device if times.busy is None else times.busy) / real
        share["launch"] = None if times.busy is None else (times.device - times.busy) / real
        if times.host is not None:
            share["transfer"] = (times.host - times.device) / real
    if times.ram is not None:
        share["storage"] = (real - times.ram) / real
    seen = witnesses(model)
    if seen is None or times.ram is None:
        return share
    base, ram, storage, contention = model.base, times.ram, share["storage"], model.contention_time
    assert base is not None and ram is not None and storage is not None and contention is not None
    prep = (ram - base - contention) / real
    # What the two witnesses disagree on is taken from the larger of the two shares.
    larger = prep if prep.value >= storage.value else storage
    taken = seen.difference.clipped(0.0, larger.at_least(0.0))
    share["contention"], share["unexplained"] = contention / real, taken
    share["prep"] = prep - taken if larger is prep else prep
    share["storage"] = storage - taken if larger is storage else storage
    return share


def estimates(share: Mapping[Share, Quantity | None]) -> dict[Share, Estimate | None]:
    """The shares with their intervals."""
    return {name: None if part is None else part.estimate("fraction") for name, part in share.items()}
