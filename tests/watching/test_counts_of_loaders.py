"""What real loaders' workers count, and how their epochs begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from loaderbench.studies.watched import loader_of
from loaderbench.watching.data_loader import noticed
from loaderbench.watching.seen import Seen
from loaderbench.watching.watcher import Watcher


class Augmented(Dataset[Any]):
    def __init__(self, *, own: bool = False) -> None:
        self.generator = np.random.default_rng(0) if own else None

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        draw = torch.rand(1) if self.generator is None else torch.tensor([self.generator.random()])
        return torch.full((3, 4, 4), index), {"draw": draw, "size": torch.ones(2)}


class Undivided(IterableDataset[int]):
    def __init__(self, *, divided: bool) -> None:
        self.divided = divided

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, 400, info.num_workers) if self.divided else range(400))


class OneShard(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(160 if info.id == 0 else 0))


class SlowSampler(Sampler[int]):
    def __len__(self) -> int:
        return 96

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.2)
        return iter(range(96))


def watched(loader: Any, epochs: int = 1) -> Seen:
    watcher = Watcher("none")
    with noticed(watcher):
        for _ in range(epochs):
            for _ in loader:
                pass
    watcher.close()
    (seen,) = watcher.seen.values()
    return seen


def list_of_targets(samples: list[Any]) -> Any:
    return torch.stack([one for one, _ in samples]), [one for _, one in samples]


@pytest.mark.parametrize("collate", [None, list_of_targets])
def test_objects_of_a_batch(collate: Any) -> None:
    found = loader_of(watched(DataLoader(Augmented(), 8, num_workers=2, collate_fn=collate))).delivered
    assert found is not None
    assert (found.objects, found.joined) == ((17, 3) if collate else (3, 3))
    assert found.shared_bytes == 8 * (48 * 8 + 4 + 8)


@pytest.mark.parametrize("divided", [True, False])
def test_samples_of_an_iterable_data_set(divided: bool) -> None:
    seen = watched(DataLoader(Undivided(divided=divided), 8, num_workers=2))
    assert seen.repeats == pytest.approx(1.0 if divided else 2.0)


@pytest.mark.parametrize("own", [True, False])
def test_random_numbers_of_workers(own: bool) -> None:
    seen = watched(DataLoader(Augmented(own=own), 8, num_workers=2))
    assert seen.same_random == (("the data set's own generator",) if own else ())


def test_workers_that_a_script_seeds_alike() -> None:
    loader = DataLoader(Augmented(), 8, num_workers=2, worker_init_fn=lambda _: torch.manual_seed(7))
    assert watched(loader).same_random == ("torch",)


@pytest.mark.parametrize("in_order", [True, False])
def test_which_worker_gave_how_many(in_order: bool) -> None:
    assert watched(DataLoader(OneShard(), 8, num_workers=2, in_order=in_order), 2).batches_by_worker() == (40, 0)
    assert sum(watched(DataLoader(Augmented(), 8, num_workers=2, in_order=in_order)).batches_by_worker()) == 12


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epochs_start_in_parts(persistent: bool) -> None:
    loader = DataLoader(Augmented(), 8, sampler=SlowSampler(), num_workers=2, persistent_workers=persistent)
    epochs = watched(loader, 3).epochs()
    for one in epochs[1:]:
        assert one.sampler is not None and one.stop is not None
        assert 0.2 <= one.sampler <= one.opening
        assert one.stop <= one.wait
        assert one.first_made is None or one.first_made <= one.opening + one.first + 0.5


def test_without_a_watch_the_loader_is_as_it_was() -> None:
    import torch.utils.data.dataloader as home

    kinds: Any = (home._BaseDataLoaderIter, home._MultiProcessingDataLoaderIter)
    before = [(kind.__init__, kind._reset, kind._next_index, kind._process_data) for kind in kinds[1:]]
    with noticed(Watcher("none")):
        pass
    assert before == [(kind.__init__, kind._reset, kind._next_index, kind._process_data) for kind in kinds[1:]]
