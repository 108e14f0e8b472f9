"""A training loop that changes, every few steps, between two loaders: one that a watch notices, and one that it cannot.

Part of benchmarks/watch.py (`--overhead`). Both loaders do the same, and one model is trained on the batches of both.
The second is of a copy of PyTorch's own module, loaded under another name, so that nothing is replaced in it. Their
blocks of steps come in the order 1 2 2 1 or 2 1 1 2, which is drawn: what the machine's speed does meanwhile meets both
alike. Both are made anew for each epoch, each of them first in turn, since where in memory a loader lies, and whose
workers were forked first, makes its steps longer or shorter for as long as it lives.

With `--generator` both come out of a generator over a DataLoader of that copy, and the first is given to
`loaderbench.watch`: a loader that tells nothing of its workers.

Where nobody watches, the loaders differ in nothing, and `--spin` adds a known time of the main thread to each step of
the first: the method's own test.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "watched"))

import scene
import torch
import torch.utils.data.dataloader as home

BLOCK = 8
"""Steps of one loader in turn."""
WARMUP_BLOCKS = 2
"""Of each epoch; left out: workers start, queues fill."""


def copied() -> ModuleType:
    """PyTorch's module of the DataLoader once more: its classes are others, and nothing is replaced in them."""
    name = f"{home.__name__}_again"
    spec = importlib.util.spec_from_file_location(name, str(home.__file__))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def batches(loader: Any) -> Iterator[Any]:
    """A loader of which only its batches are known."""
    yield from loader


def parse() -> tuple[Any, float, bool]:
    """The scene's options; `--spin`: milliseconds that are added to the first loader's steps; `--generator`."""
    spin_ms, generator = 0.0, "--generator" in sys.argv
    if generator:
        sys.argv.remove("--generator")
    if "--spin" in sys.argv:
        at = sys.argv.index("--spin")
        spin_ms = float(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    return scene.parse(), spin_ms, generator


class Side:
    """One of the loaders in one epoch, and what its steps took."""

    def __init__(self, loader: Any, spin_s: float) -> None:
        self._iterator, self._spin_s = iter(loader), spin_s
        self.cpu_s = self.wall_s = 0.0
        self.steps = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        yield
        self.cpu_s += time.thread_time() - begun_cpu
        self.wall_s += time.perf_counter() - begun

    def block(self, model: Any, optimizer: Any, *, counted: bool) -> None:
        """Some steps; `counted`: among those whose time is told."""
        cpu_s, wall_s = self.cpu_s, self.wall_s
        with self.timed():
            for _ in range(BLOCK):
                batch = next(self._iterator)
                optimizer.zero_grad()
                model(**batch)["loss"].backward()
                optimizer.step()
                if self._spin_s:
                    scene.burn(self._spin_s)
        if counted:
            self.steps += BLOCK
        else:
            self.cpu_s, self.wall_s = cpu_s, wall_s

    def close(self) -> None:
        """The epoch's end: what a watch does with the last window is a part of its cost."""
        with self.timed():
            for _ in self._iterator:
                raise AssertionError("the loader gives more batches than the epoch has steps")


def main() -> None:
    arguments, spin_ms, generator = parse()
    model = scene.Model(arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    unseen = copied()
    kinds = (unseen if generator else home, unseen)
    tool = sys.modules.get("loaderbench")  # where it watches this script
    drawn = random.Random(7)
    epochs = []
    for epoch in range(arguments.epochs):
        order = (epoch % 2, 1 - epoch % 2)
        sides: list[Any] = [None, None]
        for number in order:
            loader = scene.loader(arguments, scene.Samples(arguments), kinds[number].DataLoader)
            if generator:
                loader = batches(loader)
                if tool is not None and number == 0:
                    loader = tool.watch(loader)
            sides[number] = Side(loader, 0.0 if number else spin_ms / 1e3)
        for number in range(0, arguments.epoch_steps // BLOCK, 2):
            first = drawn.randrange(2)
            for block, side in enumerate((first, 1 - first, 1 - first, first)):
                sides[side].block(model, optimizer, counted=number + block // 2 >= WARMUP_BLOCKS)
        for number in order:
            sides[number].close()
        epochs.append([[side.cpu_s / side.steps, side.wall_s / side.steps] for side in sides])
    model.report({"epochs": epochs})


if __name__ == "__main__":
    main()
