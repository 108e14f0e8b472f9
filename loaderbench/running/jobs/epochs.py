"""Whole epochs, as a training runs them, and checkpoints: what a forecast is checked with."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from loaderbench.errors import CaseFailed, UnavailableError
from loaderbench.images.cache_state import evict_files, residency
from loaderbench.images.shards import DataSet
from loaderbench.loaders.base import Loader
from loaderbench.recording.forecast import EpochState
from loaderbench.recording.progress import EpochDone, Phase, Report
from loaderbench.running.cache import SURVEY_FILES
from loaderbench.running.jobs.table import (
    CheckpointsRequest,
    CheckpointsTimed,
    EpochsRequest,
)
from loaderbench.running.loop import StepLoop
from loaderbench.running.rig import Rig, progress_of
from loaderbench.running.streams import close
from loaderbench.temporary import temporary_folder

REPORT_S = 0.5
"""Seconds from one message to the next."""


def run_epochs(request: EpochsRequest, report: Report) -> None:
    """Run whole epochs in one process, with one loader and one model. Nothing is evicted while an epoch runs.
    Each epoch is reported when it has ended.

    Raises:
        LoaderbenchError: something that the user can fix, in one line.
    """
    with ExitStack() as stack:
        rig = Rig(request.case, stack, report)
        loader = rig.build_loader(rig.data, evict=False)
        prepared_ns = 0
        for number, state in enumerate(request.states):
            begun = time.perf_counter_ns()
            before = _prepare(rig.data, state, report, first=number == 0) if loader.decodes else None
            prepared_ns += time.perf_counter_ns() - begun
            num_images, seconds = _epoch(rig, loader, number, report, len(request.states))
            since_start_ns = time.perf_counter_ns() - request.started_ns - prepared_ns
            report(EpochDone(num_images, seconds, before, since_start_ns / 1e9))


def _prepare(data: DataSet, state: EpochState, report: Report, *, first: bool) -> float | None:
    """Bring the files into the state. Returns the fraction of the sampled pages in memory."""
    paths = list(data.files.paths())
    if state == "cold":
        progress = progress_of(report)("evicting the images from the page cache")
        evict_files(paths, progress)
    elif first:
        progress = progress_of(report)("reading the images into the page cache")
        for number, path in enumerate(paths):
            progress(number, len(paths))
            _read(path)
    chosen = np.random.default_rng(0).permutation(len(paths))[:SURVEY_FILES]
    return residency([paths[number] for number in chosen]).fraction


def _read(path: str) -> None:
    try:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass
    except OSError as error:
        raise CaseFailed(f"{path} can no longer be read ({error.strerror}): was the data set removed?") from error


def _epoch(rig: Rig, loader: Loader, number: int, report: Report, num: int) -> tuple[int, float]:
    """One epoch: (images, seconds from asking for its batches to the end of its last step)."""
    total, where = len(rig.images), f"epoch {number + 1} of {num}"
    rig.device.synchronize()
    begun = time.perf_counter_ns()
    batches = loader.batches(number, 1)
    try:
        loop = StepLoop(batches, rig.device, rig.workload, resident=loader.owns_transfer)
        ended = False
        while not ended:
            report(Phase(f"{where}: {sum(row[4] for row in loop.host):,} of {total:,} images"))
            try:
                loop.run(sys.maxsize, time.perf_counter_ns() + int(REPORT_S * 1e9))
            except StopIteration:
                ended = True
        rig.device.synchronize()
        seconds = (time.perf_counter_ns() - begun) / 1e9
    finally:
        close(batches)
    return sum(row[4] for row in loop.host), seconds


def time_checkpoints(request: CheckpointsRequest, report: Report) -> CheckpointsTimed:
    """Write the model and its optimizer, after one step, so often and flush each to the disk.

    Raises:
        UnavailableError: the device computes no model.
        CaseFailed: the folder cannot be written.
    """
    import torch

    from loaderbench.devices.select import open_device
    from loaderbench.workloads import build_workload
    from loaderbench.workloads.training import ModelWorkload

    report(Phase("timing checkpoints"))
    with ExitStack() as stack:
        device = open_device(request.step, request.step.input_size)
        stack.callback(device.close)
        workload = build_workload(
            request.step, device, image_size=request.step.input_size, seed=request.seed, num_classes=1000
        )
        if not isinstance(workload, ModelWorkload):
            raise UnavailableError(f"{request.step.device} computes no model, so there is no checkpoint to save")
        inputs, targets = workload.example("float32")
        workload.step(*device.copy_in(inputs, targets))  # an optimizer has its state from the first step on
        device.synchronize()
        seconds: list[float] = []
        num_bytes = 0
        try:
            folder = stack.enter_context(temporary_folder(Path(request.folder)))
            for _ in range(request.times):
                begun = time.perf_counter()
                optimizer = workload.optimizer
                state = {
                    "model": workload.model.state_dict(),
                    "optimizer": None if optimizer is None else optimizer.state_dict(),
                }
                with (folder / "checkpoint.pt").open("wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
                    num_bytes = file.tell()
                seconds.append(time.perf_counter() - begun)
        except OSError as error:
            raise CaseFailed(f"cannot write a checkpoint to {request.folder}: {error.strerror}") from error
    return CheckpointsTimed(num_bytes, tuple(seconds))
