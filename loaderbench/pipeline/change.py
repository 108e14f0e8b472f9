"""A run's pipeline with other workers, another storage or another device.

A recorded read holds the wait for the readers that it met, which other workers meet otherwise. So the reads of the run
as it is, and of the changed one, become service times in the storage's line; their ratio is what the change gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from loaderbench.analysis import storage
from loaderbench.analysis.processors import available
from loaderbench.pipeline.edits import Edited, Removed, beside_less_work, without
from loaderbench.pipeline.fit import Fitted, batch_bytes, fair_part, met, usual_s
from loaderbench.pipeline.stages import Stages, Times


@dataclass(frozen=True)
class Change:
    """What is another one. None: it stays."""

    workers: int | None = None
    prefetch: int | None = None
    """Batches ahead of each worker."""
    depth: int | None = None
    """Batches ahead of all of them; None: as the loader has it."""
    in_turn: bool | None = None
    reading: float = 1.0
    """Seconds of reading ÷ those of today; slow files stay as slow."""
    rate: float | None = None
    """Batches a second that the storage gives, to all readers together."""
    prep: float = 1.0
    """Seconds of what workers do besides reading ÷ those of today."""
    cpu: float = 1.0
    """The same of the CPU seconds of a batch."""
    issue: float = 1.0
    issue_s: float | None = None
    """Seconds in which the host issues a step."""
    copy: float = 1.0
    copy_s: float | None = None
    """Seconds of copying a batch."""
    device: float = 1.0
    device_s: float | None = None
    """Seconds of computing a step."""
    without: frozenset[Removed] = frozenset()
    least_s: float = 0.0
    """A batch takes all workers together this long at least."""
    factors: Mapping[str, Times] = field(default_factory=dict)
    """Column → [1 + 2 draws] how much of its value it may be; 1 for the value itself."""


def changed(fitted: Fitted, change: Change) -> Edited:
    """The pipeline after a change. What is taken out stays out, whatever it would be instead."""
    gone = change.without
    found = beside_less_work(fitted, without(fitted, gone), min(1.0, change.prep))
    one, stages = found.stages.batches, found.stages

    def of_step(name: str, cause: Removed, factor: float, seconds: float | None) -> Times | float:
        return getattr(one, name) * factor if seconds is None or cause in gone else seconds

    found = found.with_(
        prep=one.prep * change.prep, cpu=one.cpu * change.cpu,
        issue=of_step("issue", "launch", change.issue, change.issue_s),
        copy=of_step("copy", "transfer", change.copy, change.copy_s),
        device=of_step("device", "compute", change.device, change.device_s),
        read=(one.read - one.tail) * change.reading + one.tail, shared_s=stages.shared_s * change.reading,
    )  # fmt: skip
    if change.workers is not None or change.depth is not None or change.rate is not None:
        workers = found.stages.workers if change.workers is None else change.workers
        found = _beside_others(fitted, _in_line(fitted, found), workers)
    if change.rate is not None and "storage" not in gone:
        found = found.with_(shared_s=1.0 / change.rate)
    if change.least_s:
        found = replace(found, stages=_at_least(found.stages, change.least_s))
    found = replace(found, stages=_crew(found.stages, change))
    return replace(found, factors=change.factors)


def _crew(stages: Stages, change: Change) -> Stages:
    if change.workers is None and change.prefetch is None and change.depth is None and change.in_turn is None:
        return stages
    workers = stages.workers if change.workers is None else change.workers
    ahead = change.depth
    if ahead is None:
        ahead = workers * (change.prefetch or max(1, stages.depth // max(1, stages.workers)))
    in_turn = stages.in_turn if change.in_turn is None else change.in_turn
    return replace(stages, workers=workers, depth=max(1, ahead), in_turn=in_turn)


def _at_least(stages: Stages, least_s: float) -> Stages:
    """A batch takes the processors so long."""
    cpu_s = np.maximum(stages.batches.cpu / stages.processors, least_s)
    return replace(stages.with_(cpu=cpu_s), processors=1.0)


def _in_line(fitted: Fitted, found: Edited) -> Edited:
    """With reads as service times: what one lasts with no other reader beside it, less the storage's work for it."""
    real = fitted.real
    if real.opaque:
        return found
    part = own_read_s(fitted) / max(usual_s(real), 1e-12)

    def served(stages: Stages) -> Stages:
        one = stages.batches
        return replace(stages.with_(read=(one.read - one.tail) * part + one.tail), in_line=True)

    return replace(found, stages=served(found.stages), against=served(real))


def _beside_others(fitted: Fitted, found: Edited, workers: int) -> Edited:
    """With the processors that so many workers and the host get beside others, who take as much from fewer threads."""
    seen, against = fitted.seen, found.against
    if seen is None or against is None or fair_part(seen, 1) == 1.0:
        return found

    def shared(stages: Stages, threads: int) -> Stages:
        one, part = stages.batches, fair_part(seen, threads)
        runs = min(1.0, available(seen) * part / threads)  # of its time, a thread that wants to
        bare = one.prep - np.minimum(one.queue, one.prep)
        return replace(stages.with_(prep=bare / runs), processors=available(seen) * part)

    found = replace(found, stages=shared(found.stages, max(1, workers) + 1))
    return replace(found, against=shared(against, max(1, fitted.real.workers) + 1))


def own_read_s(fitted: Fitted) -> float:
    """Seconds of reading a batch with no other reader beside it, less what the storage works for it."""
    real, curve = fitted.real, _curve(fitted)
    alone = usual_s(real) * _longer(fitted, met(real), 1.0)
    if curve:  # a read whose reader waits for processors lasts longer than one of the probe
        readers, batches_per_s = curve[0][0], curve[0][1] / max(batch_bytes(fitted.recording), 1e-12)
        alone = min(alone, readers / batches_per_s)
    return max(0.0, alone - real.shared_s)


def _curve(fitted: Fitted) -> list[tuple[int, float]]:
    """(readers, bytes a second of all) as the storage was probed, the fewest first."""
    return sorted((one.readers, storage.rate(one)) for one in storage.stages(fitted.recording.facts.storage.ceiling))


def _longer(fitted: Fitted, before: float, then: float) -> float:
    """How many times as long a read lasts that meets `then` readers, not `before`: by the storage probe, else own +
    shared × readers."""
    curve = [(readers, readers / rate) for readers, rate in _curve(fitted)]
    if len(curve) > 1:
        readers, each = np.log(np.array(curve)).T
        return float(np.exp(np.interp(np.log(then), readers, each) - np.interp(np.log(before), readers, each)))
    own, shared = max(0.0, usual_s(fitted.real) - fitted.real.shared_s * before), fitted.real.shared_s
    return (own + shared * then) / max(own + shared * before, 1e-12) if shared > 0 else 1.0
