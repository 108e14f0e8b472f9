"""Which images make which batch: the sample stream that every loader written in Python follows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class BatchPlan(NamedTuple):
    """The samples of one batch. `epochs` differs from `indices` position by position where a batch spans epochs."""

    indices: NDArray[np.int64]
    epochs: NDArray[np.int64]


def epoch_order(num_images: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The permutation of one epoch, drawn from (seed, epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(num_images)


def plan_batches(
    num_images: int, batch_size: int, seed: int, first_epoch: int = 0, num_epochs: int | None = None
) -> Iterator[BatchPlan]:
    """The batches from the start of `first_epoch`.

    Endless (`num_epochs` None): every batch is full and may span epochs. Otherwise the stream ends
    with the last epoch, and its last batch may be smaller; batches in between span epochs as well.
    """
    waiting_indices = np.empty(0, dtype=np.int64)
    waiting_epochs = np.empty(0, dtype=np.int64)
    epochs = count(first_epoch) if num_epochs is None else range(first_epoch, first_epoch + num_epochs)
    for epoch in epochs:
        order = epoch_order(num_images, seed, epoch)
        waiting_indices = np.concatenate([waiting_indices, order])
        waiting_epochs = np.concatenate([waiting_epochs, np.full(num_images, epoch, dtype=np.int64)])
        num_full = len(waiting_indices) // batch_size
        for begin in range(0, num_full * batch_size, batch_size):
            end = begin + batch_size
            yield BatchPlan(waiting_indices[begin:end], waiting_epochs[begin:end])
        waiting_indices = waiting_indices[num_full * batch_size :]
        waiting_epochs = waiting_epochs[num_full * batch_size :]
    if len(waiting_indices):
        yield BatchPlan(waiting_indices, waiting_epochs)
