"""What the user scripts of this folder share: samples, a model with a stand-in for an accelerator, a stopwatch.

None of it imports loaderbench: the scripts are run as users have them, with and without something slow built in.

The step: a small real network (its losses can be compared bit for bit), then a sleep of `--step-ms` in its forward
pass. A sleep leaves the processors to the loader as an accelerator does; a network that computed for 10 ms on a machine
of two processors would hold up the loader's workers, so that no injection had one cause. It is synchronous, unlike a
GPU's step. With `--cuda` the network is on the GPU, and matrix products there that take `--step-ms` stand in its place.
All built-in work is processor time (`burn`), not wall time, so that it takes longer where processors are short.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

FLOATS, CLASSES, BATCH_SIZE = 1024, 10, 8
WARMUP = 24
"""Forward passes before the stopwatch starts: workers start, queues fill."""
INJECTIONS = ("none", "item", "collate", "storage", "issue", "compute", "neighbours", "validation", "epoch")
"""`storage` and `neighbours` are made outside of the script: another folder, other processes."""


def parse() -> argparse.Namespace:
    """The options of every script; `--strength` is in steps: what is built in takes so many times `--step-ms`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="a folder of sample files")
    parser.add_argument("--inject", choices=INJECTIONS, default="none")
    parser.add_argument("--strength", type=float, default=2.0)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--base", type=float, default=0.2, help="what the loader takes without injection, in steps")
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    parser.add_argument("--no-step", action="store_true", help="the stand-in for an accelerator takes no time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--epoch-steps", type=int, default=128)
    arguments = parser.parse_args()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - as users do
    torch.manual_seed(1)
    torch.set_num_threads(1)
    return arguments


def burn(seconds: float) -> None:
    """Work for so much processor time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def extra(arguments: argparse.Namespace, name: str) -> float:
    """Seconds of one step's injection, 0 where another or none is built in."""
    return arguments.strength * arguments.step_ms / 1e3 if arguments.inject == name else 0.0


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """(values, class, index) of each file. Decoding takes the same processor time for each."""

    def __init__(self, arguments: argparse.Namespace, split: str = "train", num: int | None = None) -> None:
        lanes = max(1, arguments.workers)
        num_wanted = num if num is not None else arguments.epoch_steps * BATCH_SIZE
        files = sorted(str(path) for path in Path(arguments.data).iterdir())
        self.files = [files[number % len(files)] for number in range(num_wanted)]
        slow = extra(arguments, "item" if split == "train" else "validation")
        self.decode_s = (arguments.base * arguments.step_ms / 1e3 + slow) * lanes / BATCH_SIZE

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        with open(self.files[index], "rb") as file:
            values = np.frombuffer(file.read(), np.float32).copy()
        burn(self.decode_s)
        return torch.from_numpy(values), index % CLASSES, index


class Collate:
    """Three tensors of a list of samples."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.slow_s = extra(arguments, "collate") * max(1, arguments.workers)

    def __call__(self, samples: list[tuple[torch.Tensor, int, int]]) -> dict[str, torch.Tensor]:
        burn(self.slow_s)
        values, labels, indices = zip(*samples, strict=True)
        return {"values": torch.stack(values), "labels": torch.tensor(labels), "indices": torch.tensor(indices)}


class WorkerStart:
    """What a loader's worker does first: with `--inject epoch` it takes a part of the epoch."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.slow_s = extra(arguments, "epoch") * arguments.epoch_steps

    def __call__(self, worker: int) -> None:
        torch.set_num_threads(1)
        if worker == 0:
            burn(self.slow_s)


def loader(
    arguments: argparse.Namespace,
    data: Any,
    kind: Any = torch.utils.data.DataLoader,
    *,
    shuffle: bool = True,
    pin_memory: bool = False,
) -> Any:
    """A DataLoader as most scripts make one. `kind`: its class."""
    return kind(
        data, BATCH_SIZE, shuffle=shuffle, num_workers=arguments.workers, collate_fn=Collate(arguments),
        worker_init_fn=WorkerStart(arguments) if arguments.workers else None, drop_last=True, pin_memory=pin_memory,
    )  # fmt: skip


class Products:
    """Work for the GPU: matrix products, enqueued and not waited for (but the next step's copy from pageable memory is:
    the host is one step ahead at most, unless the script pins its memory)."""

    SIDE, CALIBRATED = 2048, 50

    def __init__(self) -> None:
        self._left, self._right, self._out = torch.ones(3, self.SIDE, self.SIDE, device="cuda").unbind()
        self._enqueue(self.CALIBRATED)  # the first ones load the library and raise the clocks
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        self._enqueue(self.CALIBRATED)
        ended.record()
        ended.synchronize()
        self._each_s = begun.elapsed_time(ended) / 1e3 / self.CALIBRATED

    def __call__(self, seconds: float) -> None:
        self._enqueue(round(seconds / self._each_s))

    def _enqueue(self, num: int) -> None:
        for _ in range(num):
            torch.mm(self._left, self._right, out=self._out)


class Model(torch.nn.Module):
    """A linear classifier that keeps the step waiting as an accelerator would, and times the script that trains it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(FLOATS, CLASSES)
        self.issue_s = extra(arguments, "issue")
        self.step_s = 0.0 if arguments.no_step else arguments.step_ms / 1e3 + extra(arguments, "compute")
        self.steps = 0
        self._begun = self._begun_cpu = self._ended = self._ended_cpu = 0.0
        self._begun_there: Any = None
        self._ended_there: Any = None
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._device = torch.device("cuda" if arguments.cuda else "cpu")
        self._work = Products() if arguments.cuda else time.sleep
        self.to(self._device)

    def forward(self, values: torch.Tensor, labels: torch.Tensor, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self._step()
        burn(self.issue_s)
        out = self.linear(values.to(self._device))
        loss = torch.nn.functional.cross_entropy(out.float(), labels.to(self._device))
        self._work(self.step_s if self.training else self.step_s / 4)
        if self.training:
            self._seen.append((indices.clone(), loss.detach()))
        return {"loss": loss, "logits": out}

    def _step(self) -> None:
        self.steps += 1
        self._ended, self._ended_cpu = time.perf_counter(), time.thread_time()
        if self._device.type == "cuda":  # the host runs ahead
            self._ended_there = torch.cuda.Event(enable_timing=True)
            self._ended_there.record()
            self._begun_there = self._ended_there if self.steps == WARMUP else self._begun_there
        if self.steps == WARMUP:
            self._begun, self._begun_cpu = self._ended, self._ended_cpu

    def report(self, more: dict[str, Any] | None = None) -> None:
        """Print the stopwatch's figures: from the end of the warm-up to the last step, all pauses included; a hash of
        all losses and of the samples in their order, bit for bit; and more that the script knows."""
        steps, seconds = self.steps - WARMUP, self._ended - self._begun
        if self._begun_there is not None:
            torch.cuda.synchronize()
            seconds = self._begun_there.elapsed_time(self._ended_there) / 1e3
        seen = hashlib.sha256()
        for tensor in (one for pair in self._seen for one in pair):
            seen.update(tensor.cpu().numpy().tobytes())
        figures = {
            "seconds_per_step": seconds / steps,
            "main_cpu_s_per_step": (self._ended_cpu - self._begun_cpu) / steps,
            "steps": steps,
            "losses_and_order": seen.hexdigest(),
            **(more or {}),
        }
        print("TIMED " + json.dumps(figures), flush=True)
