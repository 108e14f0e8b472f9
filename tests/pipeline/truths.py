"""What is true of a simulated pipeline under changes, by simulating it with them. All are kept once they are known."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.analysis import event_model, event_world
from tests.analysis.event_model import REMOVED, Pipeline, true_step_ms

WORKERS, PREFETCH, RATES = (1, 2, 4, 8), (1, 2, 4), (0.5, 2.0)
NUM_STEPS, NUM_UNEVEN, NUM_SLICED = 960, 9600, 480
"""Of a window that tells the truth; with slow files, of which it must hold many; with cores that are shared by time
slices, which even out quickly. All are multiples of every crew."""


@dataclass(frozen=True)
class Changed:
    """How a pipeline is changed; None leaves it as it is."""

    workers: int | None = None
    prefetch: int | None = None
    storage: float = 1.0
    """Its rate, times so much: ordinary reads take as much less. Slow files and standstills stay."""
    without: frozenset[str] = frozenset()
    """Causes of REMOVED that are taken away."""

    def of(self, pipe: Pipeline) -> Pipeline:
        fields: dict[str, Any] = {name: REMOVED[cause][name] for cause in self.without for name in REMOVED[cause]}
        read = replace(pipe, latency_ms=pipe.latency_ms / self.storage, storage_ms=pipe.storage_ms / self.storage)
        crew = {name: value for name in ("workers", "prefetch") if (value := getattr(self, name)) is not None}
        return replace(read, **crew, **fields)


AS_IT_IS = Changed()


def true_s(pipe: Pipeline, change: Changed = AS_IT_IS) -> float:
    """Seconds a step."""
    return _true_s(change.of(pipe))


def _true_s(made: Pipeline) -> float:
    key = repr(replace(made, tells_more=False))
    if key not in _KNOWN:
        num_steps = NUM_UNEVEN if made.tail[0] else NUM_SLICED if made.slices else NUM_STEPS
        _KNOWN[key] = true_step_ms(made, num_steps=num_steps, even=True) / 1e3
    return _KNOWN[key]


_KNOWN: dict[str, float] = {}
"""Pipeline → seconds a step."""


def _source() -> str:
    """A digest of what the truths come from."""
    files = (event_model.__file__, event_world.__file__, __file__)
    return hashlib.sha256(b"".join(Path(name).read_bytes() for name in files)).hexdigest()


def read_known(path: Path) -> int:
    """Take over the truths that a file keeps, if today's code told them; how many there are."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("source") != _source():
        return 0
    _KNOWN.update(kept["truths"])
    return len(kept["truths"])


def write_known(path: Path) -> None:
    path.write_text(json.dumps({"source": _source(), "truths": _KNOWN}, indent=1) + "\n")


def true_gain(pipe: Pipeline, *causes: str) -> float:
    """By which the step is shorter without them."""
    return true_s(pipe) / true_s(pipe, Changed(without=frozenset(causes)))


def causes_of(pipe: Pipeline) -> tuple[str, ...]:
    """Those that can be taken away from it: it would be another pipeline without them."""
    return tuple(cause for cause in REMOVED if Changed(without=frozenset({cause})).of(pipe) != pipe)


def crews(pipe: Pipeline) -> tuple[int, ...]:
    """Numbers of workers that its run is asked about: its own, and WORKERS."""
    return WORKERS if pipe.workers in WORKERS else (pipe.workers, *WORKERS)


def reads(pipe: Pipeline) -> bool:
    """Whether its storage's rate can matter."""
    return bool(pipe.latency_ms or pipe.storage_ms)
