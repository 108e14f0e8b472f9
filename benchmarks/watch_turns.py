"""A training loop that changes, every few steps, between two loaders: one that a watch notices, and one that it cannot.

Part of benchmarks/watch.py (`--overhead`). Both loaders do the same, and one model is trained on the batches of both.
The second is of a copy of PyTorch's own module, loaded under another name, so that nothing is replaced in it. Their
blocks of steps come in pairs, which one first is drawn; what the machine's speed does in the meantime meets both alike.
Where nobody watches, the loaders differ in nothing, and `--spin` adds a known time of the main thread to each step of
the first: the method's own test.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "watched"))

import scene
import torch
import torch.utils.data.dataloader as home

BLOCK = 8
"""Steps of one loader in turn."""
WARMUP_PAIRS = 8
"""Left out: workers start, queues fill."""


def copied() -> ModuleType:
    """PyTorch's module of the DataLoader once more: its classes are others, and nothing is replaced in them."""
    name = f"{home.__name__}_again"
    spec = importlib.util.spec_from_file_location(name, str(home.__file__))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def parse() -> tuple[Any, float]:
    """The scene's options, and `--spin`: milliseconds that are added to the first loader's steps."""
    spin_ms = 0.0
    if "--spin" in sys.argv:
        at = sys.argv.index("--spin")
        spin_ms = float(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    return scene.parse(), spin_ms


def main() -> None:
    arguments, spin_ms = parse()
    model = scene.Model(arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kinds = (home, copied())
    iterators = [iter(scene.loader(arguments, scene.Samples(arguments), kind.DataLoader)) for kind in kinds]
    drawn = random.Random(7)
    pairs: list[list[list[float]]] = []
    for number in range(arguments.epoch_steps // BLOCK):
        first = drawn.randrange(2)
        pair: list[list[float]] = [[], []]
        for side in (first, 1 - first):
            iterator, spin_s = iterators[side], 0.0 if side else spin_ms / 1e3
            begun, begun_cpu = time.perf_counter(), time.thread_time()
            for _ in range(BLOCK):
                batch = next(iterator)
                optimizer.zero_grad()
                model(**batch)["loss"].backward()
                optimizer.step()
                if spin_s:
                    scene.burn(spin_s)
            cpu_s, wall_s = time.thread_time() - begun_cpu, time.perf_counter() - begun
            pair[side] = [cpu_s / BLOCK, wall_s / BLOCK]
        if number >= WARMUP_PAIRS:
            pairs.append(pair)
    model.report({"pairs": pairs})


if __name__ == "__main__":
    main()
