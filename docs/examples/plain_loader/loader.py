"""A loader in one file: a pool of threads makes the batches of the case's plan with the case's decoder and transform.

A library that decodes and crops for itself takes the place of `SampleMaker`; its loader refuses the case's decoder with
`check_no_decoder` of loaderbench/loaders/base.py, since the record would else name one that was not used.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import torch

from loaderbench.loaders.base import Batch, LoaderContext, check_workers
from loaderbench.loaders.order import BatchPlan, plan_batches
from loaderbench.loaders.samples import FailureLimit, SampleMaker, SpanClock, make_decoder, output_shape
from loaderbench.plain import JsonObject


@dataclass(frozen=True)
class Options:
    """No options."""


class _OfThread(threading.local):
    maker: SampleMaker | None = None


class PlainLoader:
    """`workers` threads, `workers × prefetch` batches ahead; each batch is new memory."""

    decodes = True
    owns_transfer = False
    evicts_own_reads = True

    def __init__(self, context: LoaderContext) -> None:
        self._context = context
        self._decoder = make_decoder(context, "pillow")
        self._shape = output_shape(context)
        self._pin = context.pin_memory and torch.cuda.is_available()
        self._pool = ThreadPoolExecutor(context.workers)
        self._numbers = itertools.count()
        self._of_thread = _OfThread()

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        limit = FailureLimit(context)
        plans = plan_batches(len(context.images), context.batch_size, context.seed, first_epoch, num_epochs)
        first = itertools.islice(plans, context.workers * context.prefetch)
        waiting = deque(self._pool.submit(self._make, plan) for plan in first)
        try:
            while waiting:
                batch = waiting.popleft().result()
                waiting.extend(self._pool.submit(self._make, plan) for plan in itertools.islice(plans, 1))
                limit.add(batch.num_samples, batch.failures)
                yield batch
        finally:
            wait([future for future in waiting if not future.cancel()])

    def _make(self, plan: BatchPlan) -> Batch:
        maker = self._of_thread.maker
        if maker is None:
            clock = SpanClock(next(self._numbers))
            maker = self._of_thread.maker = SampleMaker(self._context, self._decoder, self._shape, clock)
        maker.clock.begin()
        slots = np.empty((len(plan.indices), *self._shape, 3), dtype=self._context.output)
        made = maker.fill(plan, slots)
        assert made is not None  # nobody cancels it
        inputs, targets = torch.from_numpy(slots).permute(0, 3, 1, 2), torch.from_numpy(made.targets)
        if self._pin:
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        span = maker.clock.end()
        return Batch(
            inputs, targets, len(made.indices), made.encoded_bytes, made.indices, span, tuple(made.failures)
        )  # fmt: skip

    def describe(self) -> JsonObject:
        return {"loader": "plain", "num_threads": self._context.workers, "decoder": self._decoder.describe()}

    def close(self) -> None:
        self._pool.shutdown()


def build(options: Options, context: LoaderContext) -> PlainLoader:
    """Raises ConfigError where there is no thread to work."""
    check_workers("plain", context)
    return PlainLoader(context)
