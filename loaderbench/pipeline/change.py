"""A run's pipeline with other workers, another storage or another device.

A recorded read holds the wait for the readers that it met, which other workers meet otherwise. So the reads of the run
as it is, and of the changed one, become service times in the storage's line; their ratio is what the change gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from loaderbench.analysis import storage
from loaderbench.pipeline.edits import Edited, Removed, without
from loaderbench.pipeline.fit import Fitted, met, usual_s
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
    """Seconds of reading ÷ those of today."""
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
    processors: float | None = None
    """That the run has, beside others that hold some."""
    without: frozenset[Removed] = frozenset()
    guessed: Mapping[str, float] = field(default_factory=dict)
    """Column → by how much it may also be longer."""


def changed(fitted: Fitted, change: Change) -> Edited:
    """The pipeline after a change. What is taken out stays out, whatever it would be instead."""
    gone, found = change.without, without(fitted, change.without)
    one, stages = found.stages.batches, found.stages

    def of_step(name: str, cause: Removed, factor: float, seconds: float | None) -> Times | float:
        return getattr(one, name) * factor if seconds is None or cause in gone else seconds

    found = found.with_(
        prep=one.prep * change.prep, cpu=one.cpu * change.cpu,
        issue=of_step("issue", "launch", change.issue, change.issue_s),
        copy=of_step("copy", "transfer", change.copy, change.copy_s),
        device=of_step("device", "compute", change.device, change.device_s),
        read=one.read * change.reading, tail=one.tail * change.reading, shared_s=stages.shared_s * change.reading,
    )  # fmt: skip
    if change.workers is not None or change.depth is not None or change.rate is not None:
        found = _in_line(fitted, found)
    if change.rate is not None and "storage" not in gone:
        found = found.with_(shared_s=1.0 / change.rate)
    if change.processors is not None and "others" not in gone:
        found = found.with_(processors=change.processors)
    found = replace(found, stages=_crew(found.stages, change))
    return replace(found, guessed=change.guessed)


def _crew(stages: Stages, change: Change) -> Stages:
    if change.workers is None and change.prefetch is None and change.depth is None and change.in_turn is None:
        return stages
    workers = stages.workers if change.workers is None else change.workers
    ahead = change.depth
    if ahead is None:
        ahead = workers * (change.prefetch or max(1, stages.depth // max(1, stages.workers)))
    in_turn = stages.in_turn if change.in_turn is None else change.in_turn
    return replace(stages, workers=workers, depth=max(1, ahead), in_turn=in_turn)


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


def own_read_s(fitted: Fitted) -> float:
    """Seconds of reading a batch with no other reader beside it, less what the storage works for it."""
    real = fitted.real
    alone = usual_s(real) * _longer(fitted, met(real, real.measured_s), 1.0)
    return max(0.0, alone - real.shared_s)


def _longer(fitted: Fitted, before: float, then: float) -> float:
    """How many times as long a read lasts that meets `then` readers, not `before`: by the storage probe, else own +
    shared × readers."""
    probe = fitted.recording.facts.storage.ceiling
    curve = sorted((one.readers, one.readers / storage.rate(one)) for one in storage.stages(probe))
    if len(curve) > 1:
        readers, each = np.log(np.array(curve)).T
        return float(np.exp(np.interp(np.log(then), readers, each) - np.interp(np.log(before), readers, each)))
    own, shared = max(0.0, usual_s(fitted.real) - fitted.real.shared_s * before), fitted.real.shared_s
    return (own + shared * then) / max(own + shared * before, 1e-12) if shared > 0 else 1.0
