"""`--apply`: what it sets on a loader, what it refuses, and that the samples' order stays."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from loaderbench.watching.applying import Applier, set_arguments, why_not
from loaderbench.watching.data_loader import noticed, settings_of, source_of
from loaderbench.watching.seen import Seen
from loaderbench.watching.transforms import DRAWS, DRAWS_NONE, RANDOM, Times
from loaderbench.watching.watcher import Watcher

PERSISTENT = {"loader_options": {"persistent_workers": "True"}}


class Numbers(Dataset[tuple[int, float]]):
    def __init__(self, *, draws: bool = False) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random() if self.draws else 0.0


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Own(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


def seen_of(loader: Any, looked: int = DRAWS_NONE) -> Seen:
    times = Times(1, [])
    times.rows[0, RANDOM] = looked
    return Seen(source_of(loader), settings=settings_of(loader), times=[times])


@pytest.mark.parametrize(
    ("make", "change", "looked", "refusal"),
    [
        (lambda: DataLoader(Numbers(), 4, num_workers=1), {"workers": 2}, DRAWS, None),
        (lambda: DataLoader(Numbers(), 4), {"workers": 2}, DRAWS_NONE, None),
        (lambda: DataLoader(Numbers(), 4), {"workers": 2}, DRAWS, "draws random numbers"),
        (lambda: DataLoader(Numbers(), 4), {"workers": 2}, 0, "draws random numbers"),
        (lambda: DataLoader(Stream(), 4, num_workers=1), {"workers": 2}, DRAWS_NONE, "an order of its own"),
        (lambda: DataLoader(Stream(), 4, num_workers=1), {"prefetch": 8}, DRAWS_NONE, None),
        (lambda: DataLoader(Stream(), 4, num_workers=1), PERSISTENT, DRAWS_NONE, "an order of its own"),
        (lambda: DataLoader(Numbers(), 4, sampler=Own(), num_workers=1), {"workers": 2}, DRAWS_NONE, "its sampler"),
        (lambda: DataLoader(Numbers(), 4, num_workers=1), PERSISTENT, DRAWS_NONE, None),
        (lambda: DataLoader(Numbers(), 4), PERSISTENT, DRAWS_NONE, "needs workers"),
    ],
)
def test_what_would_change_the_order_is_refused(
    make: Callable[[], Any], change: Mapping[str, Any], looked: int, refusal: str | None
) -> None:
    loader = make()
    said = why_not(loader, change, seen_of(loader, looked))
    assert said is None if refusal is None else refusal in (said or "")


def test_arguments_are_set_on_a_loader_that_was_used() -> None:
    loader = DataLoader(Numbers(), 4)
    list(loader)
    set_arguments(loader, {"workers": 2})
    assert (loader.num_workers, loader.prefetch_factor) == (2, 2)
    set_arguments(loader, {"prefetch": 5})
    set_arguments(loader, PERSISTENT)
    assert (loader.prefetch_factor, loader.persistent_workers) == (5, True)
    assert [index for batch in loader for index in batch[0].tolist()] == list(range(320))
    stayed = loader._iterator
    set_arguments(loader, {"workers": 1})  # those that stayed are let go
    assert stayed is not None and loader._iterator is None
    set_arguments(loader, {"workers": 0})
    assert (loader.num_workers, loader.prefetch_factor) == (0, None)


def epochs(workers: int, applier: Applier | None = None, generator: torch.Generator | None = None) -> list[Any]:
    """Samples in order, with what a training draws between them, and the random state at the end."""
    torch.manual_seed(5)
    random.seed(5)
    loader = DataLoader(Numbers(), 4, shuffle=True, num_workers=workers, generator=generator)
    found: list[Any] = []

    def train() -> None:
        for _ in range(4):
            for index, _value in loader:
                found.append((index.tolist(), float(torch.rand(1))))  # as dropout does
        found.append((torch.rand(1).item(), random.random()))

    if applier is None:
        train()
    else:
        with noticed(Watcher("none"), applier):
            train()
    return found


@pytest.mark.parametrize(
    ("workers", "change"), [(0, {"workers": 2}), (1, {"workers": 2}), (1, {"prefetch": 6}), (1, PERSISTENT)]
)
@pytest.mark.parametrize("own_generator", [False, True])
def test_order_and_random_numbers_are_those_of_the_run_without_it(
    workers: int, change: Mapping[str, Any], own_generator: bool
) -> None:
    def generator() -> torch.Generator | None:
        return torch.Generator().manual_seed(9) if own_generator else None

    applier = Applier(lambda watcher: [change])
    bare, applied = epochs(workers, generator=generator()), epochs(workers, applier, generator())
    assert applied == bare
    assert applier.change == change and applier.epoch == 2
    assert applier.after is not None and applier.after != applier.source


def test_workers_that_were_made_to_stay_see_what_the_script_changes_between_epochs() -> None:
    class Numbered(Numbers):
        epoch = 0

        def __getitem__(self, index: int) -> Any:
            return index, self.epoch

    def train() -> list[list[int]]:
        torch.manual_seed(5)
        loader = DataLoader(data := Numbered(), 4, shuffle=True, num_workers=1)
        found = []
        for epoch in (0, 1, 1, 2):
            data.epoch = epoch
            found.append([value for batch in loader for part in batch for value in part.tolist()])
        return found

    applier = Applier(lambda watcher: [PERSISTENT])
    bare = train()
    with noticed(Watcher("none"), applier):
        applied = train()
    assert applier.change == PERSISTENT
    assert applied == bare


def test_a_loader_that_is_made_anew_is_changed_each_time() -> None:
    applier = Applier(lambda watcher: [{"workers": 2}])
    made = []
    with noticed(Watcher("none"), applier):
        for _ in range(3):
            loader = DataLoader(Numbers(), 4)
            list(loader)
            made.append(loader.num_workers)
    assert made == [0, 2, 2]


def test_why_nothing_was_applied_is_said() -> None:
    once = Applier(lambda watcher: [{"workers": 2}])
    with noticed(Watcher("none"), once):
        list(DataLoader(Numbers(), 4))
    assert "no second epoch" in once.why_nothing
    nothing = Applier(lambda watcher: [])
    refused = Applier(lambda watcher: [{"workers": 2}])
    for applier, draws in ((nothing, False), (refused, True)):
        loader = DataLoader(Numbers(draws=draws), 4)
        with noticed(Watcher("none"), applier):
            for _ in range(3):
                list(loader)
        assert applier.change is None
    assert "nothing was advised" in nothing.why_nothing
    assert "draws random numbers" in refused.why_nothing


def test_advice_that_fails_leaves_the_script_alone() -> None:
    def fail(watcher: Watcher) -> list[Any]:
        raise ZeroDivisionError("in the rules")

    applier = Applier(fail)
    loader = DataLoader(Numbers(), 4)
    with noticed(Watcher("none"), applier):
        assert [len(list(loader)) for _ in range(3)] == [80, 80, 80]
    assert applier.change is None and "in the rules" in applier.why_nothing
