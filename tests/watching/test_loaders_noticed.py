"""Loaders that are noticed: within others, out of order, with batches that fail, of shapes that do not tell a size."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from loaderbench.recording.facts import STEP
from loaderbench.studies.watch import OwnWatch
from loaderbench.studies.watched import nothing_seen
from loaderbench.watching import iterator as stamps_of_one
from loaderbench.watching import watcher as stamps
from loaderbench.watching.data_loader import MARK, DataLoaderQueue, noticed
from loaderbench.watching.iterable import WatchedBatches
from loaderbench.watching.seen import Source
from loaderbench.watching.watcher import Watcher
from tests.watching.test_doses import Clock, NoCpuClock


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


class OneFile(IterableDataset[int]):
    """All is the first worker's."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        return iter(range(10_000) if worker is None or worker.id == 0 else ())


def test_a_queue_holds_nothing_of_a_worker_that_has_ended() -> None:
    iterator: Any = iter(DataLoader(OneFile(), 4, num_workers=2, prefetch_factor=3))
    for _ in range(8):  # behind the end of the other one's shard
        next(iterator)
    wait_until_full(iterator)
    there = DataLoaderQueue(iterator).size()
    assert 0 < there <= iterator._data_queue.qsize() + sum(len(one) > 1 for one in iterator._task_info.values())
    alive = [worker for worker, works in enumerate(iterator._workers_status) if works]
    assert alive == [0]
    taken = [next(iterator) for _ in range(there)]
    assert [int(batch[0]) for batch in taken] == [4 * (8 + number) for number in range(there)]


def test_batches_that_come_out_of_order_are_of_the_worker_that_gave_them() -> None:
    class Unlike(Numbers):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.5 * (index == 0))
            return index

    with noticed(Watcher("none")):
        iterator: Any = iter(DataLoader(Unlike(), 4, num_workers=2, in_order=False))
        watched = iterator.__dict__[MARK]
        first = next(iterator).tolist()
        assert first != [0, 1, 2, 3]  # the other worker's was sooner
        wait_until_full(iterator)
        assert list(watched.by) == [1]
        assert sum(len(batch) for batch in iterator) == 60
        assert [watched.by.count(worker) for worker in (0, 1)] == watched.ring.made()


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
        pytest.param([torch.ones(20, 16)] * 2, 16, 32, marks=pytest.mark.slow),  # time first
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


class Stream(IterableDataset[int]):
    """Has no length, as webdataset's."""

    def __init__(self, num: int = 8) -> None:
        self.num = num

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.num))


def batches_of(script: Callable[[Watcher], object]) -> list[tuple[str | None, int, int]]:
    """Of each loader that was told apart: what the trainer told, its iterators and its batches."""
    watcher = Watcher("none")
    watcher.follows_device = False
    with noticed(watcher):
        script(watcher)
    return [(one.phase, one.num_iterators, one.num_batches) for one in watcher.seen.values()]


@pytest.mark.parametrize("make", [Stream, Numbers])
def test_two_data_sets_that_look_alike_are_two_loaders(make: Callable[[], Any]) -> None:
    train, held_out = make(), make()
    num = len(list(DataLoader(train, 4)))

    def script(_: Watcher) -> None:
        for _epoch in range(3):
            list(DataLoader(train, 4))  # made anew, over the same data set
            list(DataLoader(held_out, 4))

    assert batches_of(script) == [(None, 3, 3 * num)] * 2


def test_a_data_set_that_is_made_anew_for_each_epoch_is_one_loader_s() -> None:
    def script(_: Watcher) -> None:
        for _epoch in range(5):
            train = DataLoader(Stream(), 4)
            list(train)
            held_out = DataLoader(Stream(), 4)
            list(held_out)

    assert batches_of(script) == [(None, 5, 10)] * 2


def test_data_sets_that_are_kept_for_each_epoch_are_no_loader_each() -> None:
    kept = [Stream() for _ in range(50)]
    found = batches_of(lambda _: [list(DataLoader(one, 4)) for one in kept])
    assert found == [(None, 1, 2)] * 3 + [(None, 47, 94)]


def test_a_length_that_changes_each_epoch_splits_no_loader() -> None:
    class Growing(Numbers):
        num = 8

        def __len__(self) -> int:
            return self.num

    def script(_: Watcher) -> None:
        data = Growing()
        for data.num in (8, 12, 20):
            list(DataLoader(data, 4))

    assert batches_of(script) == [(None, 3, 10)]


def test_a_trainer_s_phase_tells_loaders_apart_that_share_a_data_set() -> None:
    def script(watcher: Watcher) -> None:
        data = Stream()
        for phase in ("train", "evaluate", "train"):
            watcher.phase = lambda: phase  # noqa: B023
            list(DataLoader(data, 4))
        watcher.phase = None
        list(DataLoader(data, 4))  # what follows is the first one's

    assert batches_of(script) == [("train", 3, 6), ("evaluate", 1, 2)]


def test_lists_of_one_length_are_told_apart_while_their_loaders_live() -> None:
    def script(_: Watcher) -> None:
        numbers = [1] * 8
        train, held_out = (DataLoader(one, 4) for one in (numbers, [2] * 8))  # type: ignore[arg-type]
        for _epoch in range(3):
            list(train)
            list(held_out)
        again = DataLoader(numbers, 4)  # type: ignore[arg-type] # over the same list
        list(again)
        del train
        list(DataLoader([3] * 8, 4))  # type: ignore[arg-type] # a third one

    assert batches_of(script) == [(None, 4, 8), (None, 3, 6), (None, 1, 2)]


def test_lists_of_one_length_are_one_loader_s_where_loaders_are_made_anew() -> None:
    def script(_: Watcher) -> None:
        for numbers in ([1] * 8, [2] * 8):
            list(DataLoader(numbers, 4))  # type: ignore[arg-type]

    assert batches_of(script) == [(None, 2, 4)]


class Rounds:
    """Workers on a virtual clock, which begin together and take `batch_ms` for a batch; each makes its next batch when
    it was asked for it."""

    def __init__(self, clock: Clock, workers: int, prefetch: int, batch_ms: float) -> None:
        self.clock, self.workers, self.depth, self.batch_ns = clock, workers, workers * prefetch, round(batch_ms * 1e6)
        self.asked, self.ready = [clock.now] * self.depth, list[int]()

    def take(self, _: object) -> list[int]:
        number = len(self.ready)
        before = self.ready[number - self.workers] if number >= self.workers else 0
        self.ready.append(max(self.asked[number], before) + self.batch_ns)
        self.clock.now = max(self.clock.now, self.ready[number]) + 50_000
        self.asked.append(self.clock.now)
        return [0]

    def is_full(self) -> bool:
        return False

    def size(self) -> int:
        return 0

    def pids(self) -> list[int]:
        return []


def short_epochs(
    monkeypatch: pytest.MonkeyPatch, num: int, *, workers: int, batch_ms: float, step_ms: float, epochs: int = 30
) -> Watcher:
    """Epochs of `num` batches, one of which is left behind its first batch."""
    clock = Clock()
    monkeypatch.setattr(stamps, "time", clock)
    monkeypatch.setattr(stamps_of_one, "time", clock)
    watcher = Watcher("burst")
    watcher.clock, watcher.follows_device = NoCpuClock(), False  # type: ignore[assignment]
    source = Source("DataLoader", "Files", 4 * num, 4, workers, 2, "RandomSampler")
    for epoch in range(epochs):
        loader = Rounds(clock, workers, 2, batch_ms)
        one = watcher.opened(source, clock.now, None, (), loader)
        assert one is not None
        for _ in range(1 if epoch == 4 else num):
            one.step(loader.take, None)
            clock.now += round(step_ms * 1e6)
        with pytest.raises(StopIteration):
            one.step(next, iter(()))
    watcher.close()
    monkeypatch.undo()
    return watcher


@pytest.mark.parametrize(("workers", "num"), [(8, 20), (8, 12), (8, 9), (4, 12), (6, 20), (2, 7)])
def test_short_epochs_are_seen_as_long_ones_would_be(workers: int, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A loader that gives a batch each 10 ms beside steps of 2 ms, and beside steps of 15 ms
    for step_ms, wait in ((2.0, 8.0), (15.0, 0.05)):
        watcher = short_epochs(monkeypatch, num, workers=workers, batch_ms=10.0 * workers, step_ms=step_ms)
        (seen,) = watcher.seen.values()
        rows = np.concatenate([one.window for one in seen.segments])
        assert len(rows) >= (num // 2) * (len(seen.segments)) and len(seen.segments) >= 20
        waits = rows[:, STEP["returned_ns"]] - rows[:, STEP["called_ns"]]
        assert waits.mean() / 1e6 == pytest.approx(wait, rel=0.1)


def test_of_epochs_with_no_more_batches_than_workers_it_says_why_nothing_can_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = short_epochs(monkeypatch, 8, workers=8, batch_ms=80.0, step_ms=2.0, epochs=100)
    assert watcher.main is not None and not watcher.main.segments
    assert "its epochs have 8 batches for 8 workers" in nothing_seen(watcher)
    once = short_epochs(monkeypatch, 8, workers=8, batch_ms=80.0, step_ms=2.0, epochs=1)
    assert nothing_seen(once).startswith("too short: the script took 8 batches")


def in_thread(name: str, work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def test_batches_that_another_thread_takes_are_handed_on_and_told(tmp_path: Path) -> None:
    # as DataLoaderX and prefetch_generator do: the iterator is made here, and a thread takes from it
    own = OwnWatch.begin(tmp_path)
    watcher = own.watcher
    iterator = iter(DataLoader(Numbers(), 4))
    taken: list[Any] = []
    in_thread("prefetch", lambda: taken.extend(iterator))
    assert [int(batch[0]) for batch in taken] == list(range(0, 64, 4))
    assert watcher.seen and not any(one.num_batches for one in watcher.seen.values())
    assert "the thread 'prefetch' takes the batches" in nothing_seen(watcher)
    held_out = iter(DataLoader(Numbers(), 8))
    next(held_out)
    in_thread("other", lambda: list(iterator))  # ends no window of this thread's
    left = [*held_out]
    (main,) = [one for one in watcher.seen.values() if one.num_batches]
    assert len(left) == 7 and main.num_batches == 8 and watcher.num_broken == 0
    assert all(one.times_ns["opening"] < 0.5e9 for one in watcher.seen.values())
    own.end()


def test_where_a_helper_thread_takes_all_batches_the_output_says_that_it_is_about_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = OwnWatch.begin(tmp_path)
    in_thread("reader", lambda: [list(DataLoader(Numbers(), 2)) for _ in range(4)])
    record = own.end()
    assert record is not None and record.watched is not None and record.watched.thread == "reader"
    assert "thread 'reader', which dequeues the batches" in " ".join(capsys.readouterr().err.split())


class ByItself(DataLoader[int]):
    """Its iterator is not PyTorch's."""

    def __iter__(self) -> Any:
        return iter([torch.zeros(4)] * 16)


class Ahead(DataLoader[int]):
    """As Accelerate's: PyTorch's iterator within a generator."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


class ByThread(DataLoader[int]):
    """As the DataLoaderX that many scripts have: a thread takes the batches."""

    def __iter__(self) -> Any:
        inner = super().__iter__()
        batches: queue.Queue[Any] = queue.Queue(2)
        threading.Thread(target=lambda: [batches.put(one) for one in (*inner, None)], daemon=True).start()
        return iter(batches.get, None)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ByItself, {("ByItself", 3, 47)}),  # it was not known before its first batch
        (Ahead, {("DataLoader", 3, 48)}),
        (ByThread, {("ByThread", 3, 47), ("DataLoader", 3, 0)}),
        (DataLoader, {("DataLoader", 3, 48)}),
    ],
)
def test_a_data_loader_with_an_iter_of_its_own_is_seen_behind_watch(
    kind: type[DataLoader[int]], expected: set[tuple[str, int, int]], tmp_path: Path
) -> None:
    loader = kind(Numbers(), 4)
    own = OwnWatch.begin(tmp_path)
    for _epoch in range(3):
        assert sum(len(batch) for batch in WatchedBatches(loader, own.watcher)) == 64
    found = {(one.source.kind, one.num_iterators, one.num_batches) for one in own.watcher.seen.values()}
    assert found == expected
    own.end()


@pytest.mark.filterwarnings("ignore:'set_vital'")
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_torchdata_s_stateful_loader_is_noticed_as_the_data_loader_that_it_is(
    workers: int, persistent: bool, tmp_path: Path
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    before = stateful.__iter__
    own = OwnWatch.begin(tmp_path)
    loader = stateful(Numbers(), 2, num_workers=workers, persistent_workers=persistent)
    found = [batch.tolist() for _epoch in range(3) for batch in loader]
    assert found == [[number, number + 1] for number in range(0, 64, 2)] * 3
    (seen,) = own.watcher.seen.values()
    assert (seen.source.kind, seen.num_iterators, seen.num_batches) == ("DataLoader", 3, 96)
    assert seen.has_spans and loader.state_dict()
    own.end()
    assert stateful.__iter__ is before
