"""A run's pipeline without a cause of its slowness.

storage      reads as from memory (the arm `ram`, else `prep`), no standstills
prep         no work besides reading, reads as in `fetch`; the host takes over and issues as with data at hand
transfer     no copies        launch   no issuing, no gaps between kernels        compute   no computing
tail         no more for slow files than for typical ones        stalls   no standstills
others       no wait for a processor behind other processes, guests or a quota
own          the loader and the step on processors of their own
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.pipeline.fit import Fitted, usual_s
from loaderbench.pipeline.stages import Stages, Times
from loaderbench.recording.facts import STEP

Removed = Literal["storage", "prep", "transfer", "launch", "compute", "tail", "stalls", "others", "own"]


@dataclass(frozen=True)
class Edited:
    """A pipeline, some columns of which come from other arms than `real`: how well these are known, goes into its
    interval."""

    stages: Stages
    of_arms: Mapping[str, Arm] = field(default_factory=dict)
    """Column → the arm that it is of."""
    factors: Mapping[str, Times] = field(default_factory=dict)
    """Column → [1 + 2 draws] how much of its value it may be."""
    against: Stages | None = None
    """What the run as it is looks like by the same means, where these are not those of `real`: the edit then takes as
    many times the measured step as it takes times this one's."""

    def with_(self, arm: Arm | None = None, /, **changed: object) -> Edited:
        """With other columns or fields; `arm`: these are of that arm."""
        told = {name: one for name, one in self.of_arms.items() if name not in changed}
        of_arm = {} if arm is None else dict.fromkeys(changed, arm)
        return Edited(self.stages.with_(**changed), told | of_arm, self.factors, self.against)


def without(fitted: Fitted, causes: Collection[Removed]) -> Edited:
    """The pipeline without these causes."""
    found = Edited(fitted.real)
    if "others" in causes and fitted.waits is not None:
        found = replace(found, stages=_alone(fitted, found.stages))
    if "own" in causes and fitted.seen is not None:
        found = _apart(fitted, found)
    if "stalls" in causes:
        found = found.with_(standstill=None)
    if "tail" in causes:
        found = found.with_(read=found.stages.batches.read - found.stages.batches.tail, tail=0.0)
    if "storage" in causes:
        found = _from_memory(fitted, found, alone="others" in causes)
    if "prep" in causes:
        found = _without_prep(fitted, found, reads_too="storage" in causes)
    if "transfer" in causes:
        found = found.with_(copy=0.0)
    if "launch" in causes or "compute" in causes:
        found = _less_of_the_step(fitted, found, causes)
    return found


def _from_memory(fitted: Fitted, found: Edited, *, alone: bool) -> Edited:
    """Reads as from memory. An opaque loader is one stage: what it takes from memory, at best without all that reading
    alone takes."""
    stages = found.stages
    arm = Arm.RAM if Arm.RAM in fitted.arms else Arm.PREP
    memory, changed = fitted.arms.get(arm), {"standstill": None, "shared_s": 0.0, "tail": 0.0}
    if stages.opaque:
        if memory is None:
            return found.with_(prep=(stages.batches.prep - fitted.fetch_s).clip(0))
        return found.with_(arm, prep=float(memory.batches.prep.mean()))
    if memory is None:
        return found.with_(read=0.0, **changed)
    behind = fitted.seen.for_others if alone and fitted.seen is not None else 0.0
    prep = (_as_many(memory, stages, "prep") - _as_many(memory, stages, "queue") * behind).clip(0)
    steps = {} if arm is Arm.PREP or alone else {
        name: _as_many(memory, stages, name) for name in ("hand", "send", "take", "issue")
    }  # fmt: skip
    return found.with_(**changed, **steps).with_(arm, read=_as_many(memory, stages, "read"), prep=prep)


def _as_many(arm: Stages, stages: Stages, column: str) -> Times:
    """A column of another arm, as often as there are batches."""
    return np.resize(getattr(arm.batches, column), len(stages.batches))


def _without_prep(fitted: Fitted, found: Edited, *, reads_too: bool) -> Edited:
    stages = found.stages
    if stages.opaque:
        return found.with_(prep=0.0 if reads_too else fitted.fetch_s, read=0.0)
    fetch = fitted.arms.get(Arm.FETCH)
    if fetch is not None and not fetch.opaque and not reads_too and stages.workers:
        one = stages.batches
        longer = usual_s(fetch) / max(usual_s(stages), 1e-12)  # readers that do nothing else meet all others
        found = found.with_(shared_s=0.0).with_(Arm.FETCH, read=(one.read - one.tail) * longer + one.tail)
    return beside_less_work(fitted, found, 0.0).with_(prep=0.0, cpu=0.0, hand=0.0, send=0.0)


def beside_less_work(fitted: Fitted, found: Edited, part: float) -> Edited:
    """With the host's steps as they are beside this part of the loader's work. Beside none of it they are those of
    `device`; what they are longer beside the loader grows with the work that is done there."""
    stages, device = found.stages, fitted.arms.get(Arm.DEVICE)
    if device is None or not stages.workers:
        return found
    one = stages.batches
    issue = one.issue * min(1.0, float(device.batches.issue.mean()) / max(float(one.issue.mean()), 1e-12))
    take = np.minimum(one.take, float(np.median(device.batches.take)))
    return found.with_(
        issue=part * one.issue + (1.0 - part) * issue, take=part * one.take + (1.0 - part) * take
    )  # fmt: skip


def _less_of_the_step(fitted: Fitted, found: Edited, causes: Collection[Removed]) -> Edited:
    """Without issuing, computing or both; the host's thread needs no processor for them."""
    one, waits = found.stages.batches, fitted.waits
    cpu = one.cpu if waits is None else (one.cpu - waits.host_cpu_s[found.stages.window]).clip(0)
    issue, device = one.issue, one.device
    if "launch" in causes:
        issue, device = 0.0 * issue, np.minimum(device, busy_s(fitted))
    if "compute" in causes:
        device = 0.0 * device
        if fitted.recording.facts.device.on_host_cpus or fitted.is_watched:
            issue = 0.0 * issue
    return found.with_(cpu=cpu, issue=issue, device=device)


def busy_s(fitted: Fitted) -> float:
    """Mean seconds of a step in which the device computes: by steps that it was held for until they were issued, else
    by what it tells of each step; infinite where neither is known."""
    segments = [one for one in fitted.recording.segments if one.arm in (Arm.DEVICE, Arm.REAL)]
    held = [ns for one in segments if one.held is not None for ns in one.held.busy_ns]
    windows = [one.steps[max(1, one.num_warmup) :, STEP["busy_ns"]] for one in segments]
    busy = np.array(held) if held else np.concatenate([*windows, np.zeros(0)])
    return float(busy.mean()) / 1e9 if len(busy) and (busy >= 0).all() else float("inf")


def _alone(fitted: Fitted, stages: Stages) -> Stages:
    """Without what waited behind others for a processor: a batch as its span counted it, handing over and issuing as
    their threads' counters say."""
    waits, seen, one = fitted.waits, fitted.seen, stages.batches
    assert waits is not None and seen is not None
    behind = waits.behind_others[stages.window]
    loader = 1.0 - waits.loader[stages.window] * behind
    works = one.take + one.issue + one.send + (0.0 if stages.workers else one.prep)
    part = np.minimum(1.0, waits.host[stages.window] * stages.measured_s / max(float(works.mean()), 1e-9))
    host = 1.0 - behind * part
    stages = stages.with_(take=one.take * host, issue=one.issue * host, send=one.send * loader, hand=one.hand * loader)
    if stages.opaque:
        return stages.with_(prep=one.prep * loader)
    lost = np.minimum(one.queue if stages.workers else one.queue * behind, one.read + one.prep)
    if stages.workers:
        stages = replace(stages, processors=max(float(seen.cpus), seen.own))  # no quota either
    share = one.prep / np.maximum(one.read + one.prep, 1e-12)
    return stages.with_(prep=one.prep - lost * share, read=one.read - lost * (1 - share))


def _apart(fitted: Fitted, found: Edited) -> Edited:
    """The loader and the step with processors of their own: each as it is alone."""
    stages, seen = found.stages, fitted.seen
    assert seen is not None
    free, device = fitted.arms.get(Arm.FREE), fitted.arms.get(Arm.DEVICE)
    if free is not None and not stages.opaque and not fitted.is_watched:
        columns = {name: _as_many(free, stages, name) for name in ("read", "prep", "hand", "cpu")}
        found = found.with_(Arm.FREE, **columns)
    elif fitted.is_watched and not stages.opaque:
        own = stages.batches.queue * (1 - seen.for_others)
        found = found.with_(prep=(stages.batches.prep - own).clip(0))
    if device is not None:
        issue = min(float(stages.batches.issue.mean()), float(device.batches.issue.mean()))
        found = found.with_(Arm.DEVICE, issue=issue)
    return found
