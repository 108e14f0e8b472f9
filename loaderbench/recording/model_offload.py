"""What a step saves and when it is used again: the trace that offloading is planned by, and replayed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Mode

SavedEvent = Literal["allocate", "release", "operator", "hold", "let_go", "pack", "unpack", "forget"]
"""What a row of SavedTrace.rows tells; `value` is of

- `allocate`, `release`: bytes of memory that is no saved storage's;
- `operator`: its FLOPs (0 where PyTorch has no formula). Its allocations are the rows before it, the releases that
  follow from it those behind it;
- `hold`: a saved storage. Its memory is allocated by others than the hooks: by the operator that makes it;
- `let_go`: a saved storage. All others than the hooks have let go of its copy on the device: without the hooks' own
  hold it is freed;
- `pack`, `unpack`: a saved storage, or NOT_SAVED. These rows together are the *hook events*, numbered from 0. Where
  nobody holds the storage at its unpack, others hold it from there on: it must be on the device, is allocated anew
  where it is on the host, and a `let_go` follows. Where others hold it still, nothing is allocated, and no second
  `let_go` follows;
- `forget`: a saved storage. Nobody will ask for it again: the hooks let go of it, on the device and on the host.
"""
SAVED_EVENTS: tuple[SavedEvent, ...] = get_args(SavedEvent)
NOT_SAVED = -1
"""Of a hook event on a storage that never goes to the host: a parameter's, a buffer's, or one of another kind of
tensor."""
SAVED_FIELDS = ("bytes", "clean", "module")
ROW_FIELDS = ("what", "value", "phase", "operator", "module")


@dataclass(frozen=True)
class SavedTrace:
    """One step in its steady state with every saved storage dropped when it is packed and made anew when it is
    unpacked: what others than the hooks hold, in order, and when. Traced without the device's memory.

    Training: a saved storage is one that autograd saves (its identity and version). Inference: every storage that
    operators read or write, parameters and inputs included; an operator's arguments are unpacked before it, its results
    packed behind it, and others hold either only while it runs. Parameters and buffers are packed before the first
    operator; the inputs and the result are unpacked once more behind the last.
    """

    mode: Mode
    batch_size: int
    saved: NDArray[np.int64]
    """[saved storages in the order of their first pack, SAVED_FIELDS]: bytes as the allocator counts them; 1 where the
    host has a copy that stays equal (parameters and buffers in inference), else 0; place in `modules` of the first
    pack."""
    rows: NDArray[np.int64]
    """[rows, ROW_FIELDS]: number in SAVED_EVENTS, value, number in STEP_PHASES of recording/model_memory.py, and places
    in `operators` and `modules`."""
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    seconds: float | None
    """What tracing took; None where it was kept from an earlier time."""
    unchecked_on: str | None = None
    """As in MemoryTrace."""
