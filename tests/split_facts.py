"""Made-up facts of a split."""

from __future__ import annotations

from typing import Any

import numpy as np
from made import make_device, make_environment
from numpy.typing import NDArray

from loaderbench.recording.model_split import MemberFacts, OutputCheck, SplitFacts, SplitSearch, SplitTurns
from loaderbench.recording.split_times import Split, SplitTime


def toy_card(batch_size: int, milliseconds: float) -> str:
    """A profile of lenet with one published time: an emulated device's file."""
    return f"""
machine = "toy"
device_name = "toy card"
model = "lenet"
mode = "infer"
precision = "fp32"
input_size = 28
tail_ms = {{ value = 0.0, label = "assumed", source = "a test" }}
link_bytes_per_s = {{ value = 1e6, label = "assumed", source = "a test" }}
[[steps]]
batch_size = {batch_size}
duration_ms = {{ value = {milliseconds}, label = "published", source = "a test" }}
busy_ms = {{ value = {milliseconds}, label = "assumed", source = "a test" }}
"""


SEARCH = SplitSearch(
    members=(0, 1),
    greedy=Split((12, 4), 0.07),
    exact=Split((10, 6), 0.06),
    alone=Split((16, 0), 0.10),
    to_run=Split((10, 6), 0.06),
    parts_s=(0.05, 0.06),
    alone_s=(0.10, 0.16),
)
TIMES = tuple(
    SplitTime(device, size, size * each, size * each * 0.9, size * each * 1.1, 6, beside)
    for device, each, beside in (
        ("cpu:1", 0.005, ("cuda:0",)), ("cuda:0", 0.01, ("cpu:1",)), ("cpu:1", 0.00625, ()), ("cuda:0", 0.01, ()),
    )
    for size in (1, 8, 16)
)  # fmt: skip


def turns_of(first: NDArray[np.float64], second: NDArray[np.float64], alone: NDArray[np.float64]) -> SplitTurns:
    """Turns whose members take so many seconds each ([num_turns] each), the first member alone in turn with them."""
    starts = np.arange(len(first), dtype=np.int64) * 10**10
    ends = np.stack([starts + np.rint(one * 1e9).astype(np.int64) for one in (first, second)], axis=1)
    begins = np.stack([starts, starts], axis=1)
    alone_starts = np.arange(len(alone), dtype=np.int64) * 10**10 + 5 * 10**9
    alone_ends = alone_starts + np.rint(alone * 1e9).astype(np.int64)
    return SplitTurns(
        sizes=(10, 6),
        alone=0,
        split_start_ns=starts,
        split_ns=np.stack([begins, ends], axis=2),
        alone_start_ns=alone_starts,
        alone_ns=np.stack([alone_starts, alone_ends], axis=1),
    )


def split_facts(**changes: Any) -> SplitFacts:
    """A batch of 16 over a CPU and a GPU."""
    known: dict[str, Any] = {
        "model": "resnet18",
        "precision": "fp32",
        "input_size": 64,
        "channels": 3,
        "batch_size": 16,
        "seed": 0,
        "environment": make_environment(),
        "table": "tables/resnet18-infer-fp32-3x64x64.jsonl",
        "members": (
            MemberFacts("cpu:1", make_device(name="a CPU", emulated=False, details={"num_threads": 1})),
            MemberFacts("cuda:0", make_device(name="a GPU", emulated=False)),
        ),
        "times": TIMES,
        "num_measured": len(TIMES),
        "searches": (SEARCH,),
        "chosen": SEARCH.exact,
        "turns": turns_of(np.full(10, 0.051), np.full(10, 0.062), np.full(10, 0.11)),
        "check": OutputCheck(0, 16, 1e-7, 1e-4, 0.3),
        "interrupted": False,
    }
    return SplitFacts(**{**known, **changes})
