"""A training that runs for some time with one cause built in, for `attach` to find; `--fix` takes the cause out.

Once in 0.2 s it writes the time, its steps and a hash of all losses to a file: a stopwatch of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

BATCH, SECONDS_A_LINE = 8, 0.2


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="a folder of files")
    parser.add_argument("log", help="where the stopwatch writes")
    parser.add_argument("--cause", default="none")
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--ms", type=float, default=40.0, help="what the cause takes of a batch")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pin", action="store_true")
    return parser.parse_args()


def burn(seconds: float) -> None:
    """Work for so much processor time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def burn_in_threads(seconds: float, num: int) -> None:
    """The same processor time, by several threads: numpy's products release the GIL."""
    square = np.ones((160, 160), np.float32)

    def work() -> None:
        end = time.thread_time() + seconds / num
        while time.thread_time() < end:
            square @ square

    threads = [threading.Thread(target=work) for _ in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Samples(Dataset):  # type: ignore[type-arg]
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.files = options, sorted(str(path) for path in Path(options.data).iterdir())
        self.slow_s = 0.0 if options.fix else options.ms / 1e3 / BATCH * max(1, options.workers)
        self.lock = multiprocessing.Lock()
        self.connection: socket.socket | None = None
        self.maps: dict[str, mmap.mmap] = {}

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, index: int) -> Any:
        cause = self.options.cause
        values = self.read(self.files[index * 7919 % len(self.files)])
        burn(0.0002)
        if cause == "decode":
            burn(self.slow_s)
        elif cause == "sleep":
            time.sleep(self.slow_s)
        elif cause == "lock" and self.slow_s:
            with self.lock:
                time.sleep(self.slow_s / max(1, self.options.workers))
        elif cause == "lock":
            time.sleep(self.options.ms / 1e3 / BATCH)
        elif cause == "threads" and self.slow_s:
            burn_in_threads(self.slow_s, 8)
        elif cause == "order" and index % (BATCH * 9) == 0:  # one batch in 9, of each of 4 workers in turn
            time.sleep(self.slow_s * BATCH * 9 / max(1, self.options.workers))
        elif cause in ("socket", "network"):
            self.ask(b"s" if cause == "socket" else b"n")
        if cause == "delivery" and self.slow_s:
            return {f"field{number}": torch.tensor([float(index)]) for number in range(int(self.options.ms))}
        return torch.from_numpy(values), index % 10

    def read(self, file: str) -> Any:
        with open(file, "rb", buffering=0) as opened:
            if self.options.cause == "faults":
                pages = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
                values = np.frombuffer(pages, np.float32, 64, 0).copy()
                pages.madvise(mmap.MADV_DONTNEED)
            else:
                values = np.frombuffer(opened.read(), np.float32)[:64].copy()
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return values

    def ask(self, what: bytes) -> None:
        """One request to a server that answers as slowly as it is asked to."""
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.options.port))
        delay_us = int(self.slow_s * 1e6)
        self.connection.sendall(what + delay_us.to_bytes(4, "little"))
        left = 65536 if what == b"s" else 16
        while left:
            left -= len(self.connection.recv(left))


class Slow(Sampler):  # type: ignore[type-arg]
    """Draws with weights, as `np.random.choice(p=…)` does: all of them for each index."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s

    def __iter__(self) -> Iterator[int]:
        for index in range(1 << 24):
            burn(self.slow_s / BATCH)
            yield index


class Shards(IterableDataset):  # type: ignore[type-arg]
    """In one piece: only the first worker has samples."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None and worker.id and not self.options.fix:
            return
        while True:
            time.sleep(self.options.ms / 1e3 / BATCH)
            yield torch.zeros(64), 0


def loader(options: argparse.Namespace) -> Any:
    torch.set_num_threads(1)
    cause, slow_s = options.cause, 0.0 if options.fix else options.ms / 1e3

    def collate(samples: list[Any]) -> Any:
        if cause == "collate":
            burn(slow_s * max(1, options.workers))
        return torch.utils.data.default_collate(samples)

    data: Any = Shards(options) if cause == "one_worker" else Samples(options)
    sampler = None if cause == "one_worker" else Slow(slow_s if cause == "sampler" else 0.0)
    return DataLoader(data, BATCH, sampler=sampler, num_workers=options.workers, collate_fn=collate,
                      pin_memory=options.pin, persistent_workers=options.workers > 0)  # fmt: skip


def main() -> None:
    options = parse()
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    step_s = options.step_ms / 1e3 + (options.ms / 1e3 if options.cause == "compute" and not options.fix else 0.0)
    begun, written, steps, seen = time.monotonic(), 0.0, 0, hashlib.sha256()
    with open(options.log, "w", buffering=1) as log:
        for batch in loader(options):
            values = batch[0] if isinstance(batch, list | tuple) else torch.zeros(BATCH, 64)
            optimizer.zero_grad()
            if options.cause == "issue" and not options.fix:
                burn(options.ms / 1e3)
            loss = torch.nn.functional.cross_entropy(model(values[:, :64]), torch.zeros(len(values), dtype=torch.long))
            time.sleep(step_s)
            loss.backward()
            optimizer.step()
            steps += 1
            seen.update(np.float32(loss.item()).tobytes())
            now = time.monotonic()
            if now - written > SECONDS_A_LINE:
                written = now
                log.write(f"{now} {steps} {seen.hexdigest()}\n")
            if now - begun > options.seconds:
                break


if __name__ == "__main__":
    main()
