"""Traces of models' memory, kept between runs in the user's cache folder: the same step has the same trace."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

import loaderbench
from loaderbench import plain
from loaderbench.cases.case import Step
from loaderbench.errors import UnavailableError
from loaderbench.images.files import make_own_folder, user_cache_folder
from loaderbench.plain import Arrays
from loaderbench.recording.files import write_atomic
from loaderbench.recording.model_memory import MemoryTrace
from loaderbench.running.memory_trace import TRACE_VERSION, trace_step

MOST_KEPT = 1000
"""Traces; the oldest are deleted. One takes about 50 kB."""


def trace_of(step: Step, seed: int, *, on_accelerator: bool, probed: bool = True) -> MemoryTrace:
    """The step's trace: the kept one, or a new one, which is then kept. A damaged one is made anew.

    A user's own model is traced each time: its code may have changed. Raises as trace_step.
    """
    path = None if ":" in step.model else _path(step, on_accelerator=on_accelerator, probed=probed)
    if path is not None and (kept := _read(path)) is not None:
        return kept
    trace = trace_step(step, seed, on_accelerator=on_accelerator, probed=probed)
    if path is not None:
        with contextlib.suppress(OSError):  # a full or read-only cache folder costs time, nothing else
            _write(path, trace)
    return trace


def _path(step: Step, *, on_accelerator: bool, probed: bool) -> Path | None:
    """Where the trace is kept; None where the user has no cache folder."""
    told = {
        "step": plain.to_json(replace(step, device="")),
        "on_accelerator": on_accelerator,
        "torch": str(torch.__version__),
        "models": str(torchvision.__version__),
        "loaderbench": loaderbench.__version__,
        "trace": TRACE_VERSION,
        "probed": probed,
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    name = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
    try:
        return user_cache_folder() / "memory" / f"{name}.npz"
    except UnavailableError:
        return None


def _read(path: Path) -> MemoryTrace | None:
    """The kept trace; None where there is none, or it is damaged."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as tables:
            arrays = {name: tables[name] for name in tables.files}
        described = json.loads(bytes(arrays.pop("described")))
        return replace(plain.from_json(MemoryTrace, described, arrays), seconds=None)
    except Exception:  # whatever may be in a damaged file
        return None


def _write(path: Path, trace: MemoryTrace) -> None:
    """Keep a trace. Raises OSError."""
    make_own_folder(path.parent)
    arrays: Arrays = {}
    described = json.dumps(plain.to_json(trace, None, arrays)).encode()
    buffer = io.BytesIO()
    tables: Any = {**arrays, "described": np.frombuffer(described, dtype=np.uint8)}
    np.savez_compressed(buffer, **tables)
    write_atomic(path, buffer.getvalue())
    kept = sorted(path.parent.glob("*.npz"), key=lambda one: one.stat().st_mtime)
    for old in kept[:-MOST_KEPT]:
        old.unlink(missing_ok=True)
