"""The sample stream: every image once an epoch, endless or not, whatever the batch size."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from loaderbench.loaders.order import epoch_order, plan_batches


@pytest.mark.parametrize(("num_images", "batch_size"), [(24, 8), (25, 8), (3, 8), (1, 1), (8, 8)])
def test_finite_stream_has_every_image_once_an_epoch(num_images: int, batch_size: int) -> None:
    plans = list(plan_batches(num_images, batch_size, seed=0, num_epochs=3))
    indices = np.concatenate([plan.indices for plan in plans])
    epochs = np.concatenate([plan.epochs for plan in plans])

    for epoch in range(3):
        assert sorted(indices[epochs == epoch]) == list(range(num_images))
    assert all(len(plan.indices) == batch_size for plan in plans[:-1])
    assert len(plans) == -(-3 * num_images // batch_size)


def test_endless_stream_has_full_batches_even_from_few_images() -> None:
    plans = list(islice(plan_batches(3, 8, seed=0), 6))
    assert all(len(plan.indices) == 8 for plan in plans)
    indices = np.concatenate([plan.indices for plan in plans])
    assert all(sorted(indices[begin : begin + 3]) == [0, 1, 2] for begin in range(0, 48, 3))


def test_order_depends_on_seed_and_epoch() -> None:
    orders = [tuple(epoch_order(50, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    assert tuple(epoch_order(50, 1, 1)) == orders[3]


def test_stream_begins_at_the_epoch_asked_for() -> None:
    begun_later = next(plan_batches(20, 5, seed=4, first_epoch=7))
    assert list(begun_later.indices) == list(epoch_order(20, 4, 7)[:5])
    assert set(begun_later.epochs) == {7}
