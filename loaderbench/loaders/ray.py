"""Ray Data: images prepared by tasks of a cluster, for preprocessing that outgrows one host's CPUs.

Set up as its guides do: a lazy data set, `map_batches`, `iter_batches` with prefetching. A block is one batch, made by
one task; `workers` tasks run at once. Transform, decoders and order are those of the Python loaders. A local cluster of
`workers` CPUs is started, and ended with the loader; `--loader-option address=…` uses a running cluster, whose nodes
must see the images under the same paths and have loaderbench installed.

Ray restarts a killed worker and repeats its task: that is no error here. No counter can attribute the reads of its
processes to this run, so a cold run is refused.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench import lacking
from loaderbench.cases.options import is_count
from loaderbench.errors import CaseFailed, ConfigError, UnavailableError
from loaderbench.loaders.base import Batch, LoaderContext, check_workers
from loaderbench.loaders.order import BatchPlan, epoch_order
from loaderbench.loaders.samples import FailureLimit, SampleMaker, SpanClock, make_decoder, output_shape
from loaderbench.loaders.torch_dataset import bytes_per_batch
from loaderbench.plain import JsonObject

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
try:
    ray: Any = importlib.import_module("ray")
    ray_data: Any = importlib.import_module("ray.data")
except lacking.LOAD_ERRORS as error:
    raise lacking.package("Ray", error, "pip install 'loaderbench[ray]'") from error

EXECUTION_BATCHES = 256
"""Batches of one execution: an endless stream chains executions, since Ray plans each block in advance."""
CONNECT_S = 5.0
PER_CLUSTER: list[int] = []
"""Loaders that use the local cluster."""


@dataclass(frozen=True)
class Options:
    """Which cluster to use."""

    address: str = ""
    """Address of a running cluster: HOST:PORT or ray://HOST:PORT; empty: a local one is started."""


class RayLoader:
    """`workers` tasks at once, about `workers × prefetch` batches ahead."""

    decodes = True
    owns_transfer = False
    evicts_own_reads = False

    def __init__(self, options: Options, context: LoaderContext) -> None:
        self._options, self._context = options, context
        self._decoder = make_decoder(context, "pillow")
        self._shape = output_shape(context)
        self._pin = context.pin_memory and torch.cuda.is_available()
        _join_cluster(options, context)
        self._joined = True
        # Put once: the index of a large set is not sent with each task.
        self._context_ref = ray.put(replace(context, slowdown=None, pin_memory=False))

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        limit = FailureLimit(context)
        begin = first_epoch * len(context.images)
        end = None if num_epochs is None else begin + num_epochs * len(context.images)
        while end is None or begin < end:
            left = sys.maxsize if end is None else (end - begin) // context.batch_size
            # A partial batch at the end is an execution of its own.
            num_samples = min(left, EXECUTION_BATCHES) * context.batch_size or cast(int, end) - begin
            stream = self._execution(begin, num_samples)
            try:
                for columns in stream:
                    batch = self._to_batch(columns)
                    limit.add(batch.num_samples, batch.failures)
                    yield batch
            except ray.exceptions.RayError as error:
                lines = [line for line in str(error).strip().splitlines() if line.strip()]
                raise CaseFailed(f"Ray failed: {lines[-1] if lines else type(error).__name__}") from error
            finally:
                stream.close()
            begin += num_samples

    def _execution(self, begin: int, num_samples: int) -> Generator[dict[str, NDArray[Any]], None, None]:
        """The batches of samples begin … begin + num_samples of the endless order."""
        context, reference = self._context, self._context_ref
        batch_size = context.batch_size

        def make(rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            from loaderbench.loaders.ray import make_rows  # by name: the worker keeps what it has cached

            return make_rows(reference, rows["id"] + begin)

        settings = ray_data.DataContext.get_current()
        settings.execution_options.preserve_order = True
        # Without a limit its tasks run on to the end of the execution, even if nobody takes the batches.
        ahead = context.workers * context.prefetch
        settings.execution_options.resource_limits = ray_data.ExecutionResources(
            cpu=context.workers, object_store_memory=ahead * bytes_per_batch(context, self._shape)
        )
        settings.enable_progress_bars = False
        rows = ray_data.range(num_samples, override_num_blocks=-(-num_samples // batch_size))
        made = rows.map_batches(make, batch_size=None, batch_format="numpy", concurrency=context.workers, num_cpus=1)
        iterator = iter(
            made.iter_batches(
                batch_size=batch_size, batch_format="numpy", prefetch_batches=context.workers * context.prefetch
            )
        )
        try:
            yield from iterator
        finally:
            del iterator, made  # ends the execution

    def _to_batch(self, columns: dict[str, NDArray[Any]]) -> Batch:
        told = [json.loads(text) for text in columns["told"] if text]
        failed = next((one["failed"] for one in told if "failed" in one), None)
        if failed is not None:
            raise CaseFailed(failed)
        indices = np.array(columns["index"], dtype=np.int64)
        # A copy out of the object store, whose memory is read-only and given back.
        inputs = torch.from_numpy(np.array(columns["pixels"])).permute(0, 3, 1, 2)
        targets = torch.from_numpy(self._context.images.labels[indices].astype(np.int64))
        if self._pin:
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        failures = tuple((int(index), str(reason)) for one in told for index, reason in one["failures"])
        return Batch(inputs, targets, len(indices), int(columns["bytes"].sum()), indices, failures=failures)

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "Ray Data",
            "version": ray.__version__,
            "address": self._options.address or "local",
            "num_tasks": self._context.workers,
            "decoder": self._decoder.describe(),
        }

    def close(self) -> None:
        if self._joined:
            self._joined = False
            self._context_ref = None
            PER_CLUSTER.pop()
            if not PER_CLUSTER:
                ray.shutdown()


def _join_cluster(options: Options, context: LoaderContext) -> None:
    """Connect to the cluster; start a local one at its first loader.

    Raises:
        UnavailableError: there is none at the address.
    """
    if not PER_CLUSTER:
        where: dict[str, object] = {"address": options.address}
        if not options.address:
            where = {"num_cpus": context.workers, "include_dashboard": False}
        try:
            if options.address:
                # Ray itself would try for minutes.
                socket.create_connection(_host_and_port(options.address), CONNECT_S).close()
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise UnavailableError(
                f"no Ray cluster at {options.address or 'this machine'}: {str(error).strip().splitlines()[0]}"
            ) from error
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    PER_CLUSTER.append(context.workers)


def _host_and_port(address: str) -> tuple[str, int]:
    """Raises ConfigError where `address` is invalid."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not is_count(port):
        raise ConfigError(f"loader option address must be HOST:PORT or ray://HOST:PORT, not '{address}'")
    return host, int(port)


@lru_cache(maxsize=4)
def _maker(reference: Any) -> tuple[LoaderContext, SampleMaker, tuple[int, int]]:
    context: LoaderContext = ray.get(reference)
    torch.set_num_threads(1)
    shape = output_shape(context)
    return context, SampleMaker(context, make_decoder(context, "pillow"), shape, SpanClock(0)), shape


def make_rows(reference: Any, positions: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """What a task does: the samples at `positions` of the endless order, as columns.

    `told` is JSON, {"failures": …} of the batch or {"failed": …}, in the first row; empty in the others.
    """
    context, maker, shape = _maker(reference)
    epochs, places = np.divmod(positions, len(context.images))
    orders = {epoch: epoch_order(len(context.images), context.seed, epoch) for epoch in set(epochs.tolist())}
    pairs = zip(epochs.tolist(), places.tolist(), strict=True)
    indices = np.array([orders[epoch][place] for epoch, place in pairs], dtype=np.int64)
    pixels = np.empty((len(positions), *shape, 3), dtype=np.float32 if context.output == "float32" else np.uint8)
    told = [""] * len(positions)
    context.reads.take_packed()  # nobody asks for them here
    num_bytes = np.zeros(len(positions), dtype=np.int64)
    try:
        made = maker.fill(BatchPlan(indices, epochs), pixels)
        assert made is not None
        indices, num_bytes[0] = made.indices, made.encoded_bytes
        told[0] = json.dumps({"failures": made.failures})
    except CaseFailed as error:
        told[0] = json.dumps({"failed": str(error)})
    return {"pixels": pixels, "index": indices, "bytes": num_bytes, "told": np.array(told)}


def build(options: Options, context: LoaderContext) -> RayLoader:
    """
    Raises:
        ConfigError: there are no workers, or the address is invalid.
        UnavailableError: no cluster can be reached or started.
    """
    check_workers("ray", context)
    return RayLoader(options, context)
