"""`--apply`: what it sets on a loader, what it refuses, and that the samples' order stays."""

import functools
import logging
import random
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset

from loaderbench.watching.applying import Applier, set_arguments, why_not
from loaderbench.watching.data_loader import noticed, settings_of, source_of
from loaderbench.watching.seen import Seen
from loaderbench.watching.transforms import DRAWS, DRAWS_NONE, RANDOM, Times
from loaderbench.watching.watcher import Watcher
from tests.thinned import thinned

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
        (lambda: DataLoader(Numbers(), 4), {"workers": 2}, DRAWS, "draw random numbers"),
        (lambda: DataLoader(Numbers(), 4), {"workers": 2}, 0, "draw random numbers"),
        (lambda: DataLoader(Stream(), 4, num_workers=1), {"workers": 2}, DRAWS_NONE, "its own order"),
        (lambda: DataLoader(Stream(), 4, num_workers=1), {"prefetch": 8}, DRAWS_NONE, None),
        (lambda: DataLoader(Stream(), 4, num_workers=1), PERSISTENT, DRAWS_NONE, "its own order"),
        (lambda: DataLoader(Numbers(), 4, sampler=Own(), num_workers=1), {"workers": 2}, DRAWS_NONE, "its sampler"),
        (
            lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(Own(), 4, drop_last=False), num_workers=1),
            {"workers": 2}, DRAWS_NONE, "its sampler",
        ),
        (
            lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(range(9), 4, drop_last=False), num_workers=1),
            {"workers": 2}, DRAWS_NONE, None,
        ),
        (lambda: DataLoader(Numbers(), 4, num_workers=1), PERSISTENT, DRAWS_NONE, None),
        (lambda: DataLoader(Numbers(), 4), PERSISTENT, DRAWS_NONE, "needs workers"),
    ],
)  # fmt: skip
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
@pytest.mark.parametrize("own_generator", thinned([False, True], 2))
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
    assert "only one epoch" in once.why_nothing
    nothing = Applier(lambda watcher: [])
    refused = Applier(lambda watcher: [{"workers": 2}])
    for applier, draws in ((nothing, False), (refused, True)):
        loader = DataLoader(Numbers(draws=draws), 4)
        with noticed(Watcher("none"), applier):
            for _ in range(3):
                list(loader)
        assert applier.change is None
    assert "no advice was one" in nothing.why_nothing
    assert "draw random numbers" in refused.why_nothing


def test_advice_that_fails_leaves_the_script_alone() -> None:
    def fail(watcher: Watcher) -> list[Any]:
        raise ZeroDivisionError("in the rules")

    applier = Applier(fail)
    loader = DataLoader(Numbers(), 4)
    with noticed(Watcher("none"), applier):
        assert [len(list(loader)) for _ in range(3)] == [80, 80, 80]
    assert applier.change is None and "in the rules" in applier.why_nothing


class Holding(Numbers):
    """A data set with something among its attributes."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        vars(self).update(held)


def with_and_without(
    make: Callable[[], Any], workers: int, change: Mapping[str, Any], between: Callable[[Any, int], None] | None = None
) -> tuple[Any, Any, Applier]:
    """Samples of three epochs, bare and with `--apply`; `between`: what the script does before each."""

    def train() -> list[Any]:
        torch.manual_seed(5)
        random.seed(5)
        loader, found = DataLoader(data := make(), 4, shuffle=True, num_workers=workers), []
        for epoch in range(3):
            if between is not None:
                between(data, epoch)
            found += [[part.tolist() for part in batch] for batch in loader]
        return [found, torch.rand(1).item()]

    applier = Applier(lambda watcher: [change])
    bare = train()
    with noticed(Watcher("none"), applier):
        applied = train()
    return bare, applied, applier


class FromFile(Numbers):
    """Samples of one open file: two forked processes would move each other's position."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.write_bytes(np.arange(320, dtype=np.int64).tobytes())
        self.kept = {"files": [path.open("rb")]}

    def __getitem__(self, index: int) -> Any:
        file = self.kept["files"][0]
        file.seek(8 * index)
        return index, int.from_bytes(file.read(8), "little")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("wrapped", [lambda data: data, lambda data: Subset(ConcatDataset([data]), range(320))])
def test_a_data_set_with_an_open_file_gets_no_other_workers(tmp_path: Path, workers: int, wrapped: Any) -> None:
    bare, applied, applier = with_and_without(lambda: wrapped(FromFile(tmp_path / "n")), workers, {"workers": 2})
    assert applied == bare and all(index == value for batch in applied[0] for index, value in zip(*batch, strict=True))
    assert applier.change is None and "open file or connection (_io.BufferedReader)" in applier.why_nothing


def refused(change: Mapping[str, Any], *, workers: int = 1, collate: Any = None, **held: Any) -> str | None:
    loader = DataLoader(Holding(**held), 4, num_workers=workers, collate_fn=collate)
    return why_not(loader, change, seen_of(loader))


def test_other_handles_are_known_and_what_is_none_does_not_matter(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", "a")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert "open file" in (refused({"workers": 2}, archive=archive) or "")
        assert refused(PERSISTENT, archive=archive) is None
    assert refused({"workers": 2}, archive=archive) is None  # closed
    connection = sqlite3.connect(":memory:")
    assert "sqlite3.Connection" in (refused({"workers": 2}, parts=[{"db": connection}]) or "")
    connection.close()
    logger = logging.getLogger("of the data set")
    with (tmp_path / "log").open("w") as log:
        assert refused({"workers": 2}, log=log, logger=logger, out=sys.stdin, path=tmp_path) is None


GLOBAL = np.random.RandomState(3)


class Drawn(Numbers):
    """Draws from a global generator of the script."""

    def __getitem__(self, index: int) -> Any:
        return index, GLOBAL.rand()


class Noise:
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __call__(self, index: int) -> float:
        return float(self.rng.random())


class Transformed(Numbers):
    def __init__(self, transform: Callable[[int], float]) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return index, self.transform(index)


def made_drawing(kind: str) -> Any:
    if kind == "numpy":
        return Transformed(Noise(np.random.default_rng(0)))
    if kind == "closure":
        own = random.Random(0)
        return Transformed(lambda index: own.random())
    if kind == "partial":
        generator = torch.Generator().manual_seed(0)
        return Transformed(functools.partial(lambda rng, index: float(torch.rand(1, generator=rng)), generator))
    GLOBAL.seed(3)
    return Drawn()


@pytest.mark.parametrize("kind", ["numpy", "closure", "partial", "global"])
@pytest.mark.parametrize(("workers", "change"), thinned([(0, {"workers": 2}), (1, {"workers": 2}), (1, PERSISTENT)], 3))
def test_a_data_set_with_random_numbers_of_its_own_draws_those_that_it_drew(
    kind: str, workers: int, change: Mapping[str, Any]
) -> None:
    bare, applied, applier = with_and_without(lambda: made_drawing(kind), workers, change)
    assert applied == bare
    assert applier.change is None and "their own random generator" in applier.why_nothing


class OnDevice:
    """As a tensor of CUDA is, on a machine without one."""

    is_cuda = True


def moved(samples: Any) -> Any:
    return samples, OnDevice()


def to_device(samples: Any) -> Any:
    return [torch.tensor(sample).cuda() for sample in samples]


def test_samples_that_are_made_with_cuda_get_no_workers_that_are_forked() -> None:
    loader = DataLoader(Numbers(), 4, collate_fn=moved)
    applier = Applier(lambda watcher: [{"workers": 2}])
    with noticed(Watcher("none"), applier):
        assert [len(list(loader)) for _ in range(3)] == [80] * 3
    assert applier.change is None and "made with CUDA" in applier.why_nothing
    for held in ({"weights": [OnDevice()]}, {"device": torch.device("cuda")}, {"collate": to_device}):
        assert "made with CUDA" in (refused({"workers": 2}, workers=0, **held) or "")
        assert refused({"workers": 4}, workers=2, **held) is None  # these had it, and were not in its way
    assert refused({"workers": 2}, workers=0, device=torch.device("cpu"), weight=torch.ones(2)) is None


def sized(size: int) -> Callable[[int], float]:
    return lambda index: float(size)


class Size:
    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 1

    def __call__(self, index: int) -> float:
        return float(self.size)


class Wrapper(Numbers):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.table, self.array = inner, {"epoch": [0]}, np.zeros(2)

    def __getitem__(self, index: int) -> Any:
        number, value = self.inner[index]
        return number, value + self.table["epoch"][0] + float(self.array[1])


def change_size(data: Any, epoch: int) -> None:
    data.inner.transform.size = epoch // 2


def change_list(data: Any, epoch: int) -> None:
    data.table["epoch"][0] = epoch // 2


def change_array(data: Any, epoch: int) -> None:
    data.array[1] = epoch // 2


def change_closure(data: Any, epoch: int) -> None:
    data.inner.transform = sized(epoch // 2)


@pytest.mark.parametrize("between", thinned([change_size, change_list, change_array, change_closure], 2))
def test_workers_that_stay_see_what_the_script_changes_deep_within(between: Callable[[Any, int], None]) -> None:
    bare, applied, applier = with_and_without(lambda: Wrapper(Transformed(Size())), 1, PERSISTENT, between)
    assert applied == bare and applied[0][0] != applied[0][-1]
    assert applier.change == PERSISTENT


def test_workers_stay_where_nothing_changes_also_with_many_files_and_not_where_nobody_can_tell() -> None:
    def stayed(data: Any) -> bool:
        loader: Any = DataLoader(data, 4, num_workers=1)
        set_arguments(loader, PERSISTENT)
        workers = []
        with noticed(Watcher("none"), Applier(lambda watcher: [])):
            for _ in range(2):
                list(loader)
                workers.append(loader._iterator._workers[0].pid)
        return workers[0] == workers[1]

    files = [(f"{number}.jpg", number) for number in range(100_000)]
    assert stayed(Holding(samples=files, targets=list(range(100_000)), transform=Size()))
    many = [{"boxes": [number]} for number in range(30_000)]
    assert not stayed(Holding(annotations=many))
    assert "too large to see" in (refused(PERSISTENT, annotations=many) or "")
