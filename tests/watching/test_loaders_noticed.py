"""Loaders that are noticed: within others, out of order, with batches that fail, of shapes that do not tell a size."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from loaderbench.watching.data_loader import MARK, DataLoaderQueue, noticed
from loaderbench.watching.seen import Source
from loaderbench.watching.watcher import Watcher


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index


class WithLoader(Numbers):
    """Iterates another loader for each sample. A sample tells whether that one's fetcher was taken for its own's."""

    def __init__(self) -> None:
        self.inner = Numbers()

    def __getitem__(self, index: int) -> int:
        iterator: Any = iter(DataLoader(self.inner, 4))
        return int(hasattr(iterator._dataset_fetcher, "_lane"))


def wait_until_full(iterator: object) -> None:
    begun = time.perf_counter()
    while not DataLoaderQueue(iterator).is_full():
        assert time.perf_counter() - begun < 10.0
        time.sleep(0.001)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_within_a_worker_s_data_set_writes_no_spans(persistent: bool) -> None:
    loader = DataLoader(WithLoader(), 4, num_workers=2, persistent_workers=persistent)
    with noticed(Watcher("none")):
        for epoch in (1, 2):
            iterator: Any = iter(loader)
            assert sum(int(batch.sum()) for batch in iterator) == 0
            assert iterator.__dict__[MARK].ring.made() == [8 * epoch if persistent else 8] * 2


def test_where_batches_come_out_of_order_no_worker_is_told_from_another() -> None:
    class Unlike(Numbers):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.02 * (index == 0))
            return index

    with noticed(Watcher("none")):
        iterator: Any = iter(DataLoader(Unlike(), 4, num_workers=2, in_order=False))
        watched = iterator.__dict__[MARK]
        first = next(iterator).tolist()
        assert first != [0, 1, 2, 3]  # the other worker's was sooner
        wait_until_full(iterator)
        assert watched.ring is None
        assert sum(len(batch) for batch in iterator) == 60


def test_workers_whose_shards_have_ended_are_not_waited_for() -> None:
    class Shards(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            assert info is not None
            return iter(range(4 if info.id == 0 else 40))

    iterator: Any = iter(DataLoader(Shards(), 4, num_workers=2))
    for _ in range(4):
        next(iterator)
    wait_until_full(iterator)


def test_behind_a_batch_that_failed_no_span_is_taken_for_another_batch_s() -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 5:
                raise ValueError("broken")
            return index

    with noticed(Watcher("none")):
        iterator: Any = iter(DataLoader(Broken(), 4, num_workers=2))
        watched = iterator.__dict__[MARK]
        next(iterator)
        assert watched.ring is not None
        with pytest.raises(ValueError, match="broken"):
            next(iterator)
        assert watched.ring is None
        assert next(iterator).tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("batches", "size", "expected"),
    [
        ([torch.ones(16, 3), torch.ones(5, 3)], 16, 21),
        ([(tuple(torch.ones(3, 8, 8) for _ in range(16)), (0,) * 16)] * 2, 16, 32),  # torchvision's detection
        ([torch.ones(20, 16)] * 2, 16, 32),  # time first
        ([torch.ones(6, 3)], None, 6),
    ],
    ids=["samples first", "lists of images", "time first", "no size"],
)
def test_samples_are_counted_by_the_batch_size_where_no_array_tells_them(
    batches: list[Any], size: int | None, expected: int
) -> None:
    watcher = Watcher("none")
    watcher.follows_device = False
    watched = watcher.opened(Source("DataLoader", "Data", 100, size, 0, 0, ""), 0, None, (), None)
    assert watched is not None
    left = iter(batches)
    for _ in batches:
        watched.step(next, left)
    assert watched.seen.num_samples == expected
