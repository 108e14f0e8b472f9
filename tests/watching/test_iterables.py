"""`loaderbench.watch` around what iterates a DataLoader itself, and around loaders whose iterators are wrapped."""

import builtins
import copy
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset

from loaderbench.cases.arms import Arm
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import SPAN, STEP
from loaderbench.recording.store import Store
from loaderbench.studies.watch import OwnWatch, watch
from loaderbench.watching.data_loader import MOST_TIMED
from loaderbench.watching.iterator import samples_of
from loaderbench.watching.watcher import Watcher


class Slow(Dataset[int]):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return index


class Wrapped(DataLoader[int]):
    """As Accelerate's: its iterator is a generator around the DataLoader's own."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        yield from super().__iter__()


class Pipeline:
    """As WebDataset's WebLoader: stages, of which the first is a DataLoader."""

    def __init__(self, *stages: Any) -> None:
        self.pipeline = [*stages]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.pipeline[0])
        for stage in self.pipeline[1:]:
            batches = stage(batches)
        return batches  # type: ignore[no-any-return]


def worked_on(batches: Iterator[Any]) -> Iterator[Any]:
    """In the loop's own process, between the DataLoader and the loop."""
    for batch in batches:
        time.sleep(0.006)
        yield batch


def seen_of(given: Any, folder: Path) -> Watcher:
    """Two epochs, of which each batch is worked on for 2 ms."""
    watched = watch(given, results=folder, every=0)
    own = watched._watcher
    for _ in range(2):
        for _batch in watched:
            time.sleep(0.002)
    watched.close()
    return own


@pytest.mark.parametrize("make", [lambda: Wrapped(Slow(), 4, num_workers=1), lambda: Pipeline(DataLoader(Slow(), 4))])
def test_a_loader_that_is_only_handed_on_is_watched_as_the_data_loader_that_it_is(make: Any, tmp_path: Path) -> None:
    watcher = seen_of(make(), tmp_path)
    (only,) = watcher.seen.values()
    assert (only.source.kind, only.num_batches, only.num_iterators) == ("DataLoader", 80, 2)
    assert only.has_spans


def spinning(num: int, seconds: float = 0.004) -> Iterator[int]:
    for number in range(num):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        yield number


def read_from(pipe: int, num: int) -> Iterator[bytes]:
    for _ in range(num):
        yield os.read(pipe, 65_536)


def sleeping(num: int) -> Iterator[int]:
    for number in range(num):
        time.sleep(0.004)
        yield number


GENERATORS = """
import subprocess, sys
from pathlib import Path
import loaderbench
from test_iterables import *

script = "import os, time\\nwhile True: os.write(1, bytes(65536)); time.sleep(0.006)"
with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
    makes = {"spins": spinning(600), "reads": read_from(writer.stdout.fileno(), 600), "sleeps": sleeping(600)}
    watched = loaderbench.watch(makes[sys.argv[1]], results=Path(sys.argv[2]), every=0)
    for _ in watched:
        time.sleep(0.002)
    writer.kill()
print(watched.close().verdict.bottleneck)
"""
"""A batch takes 4 ms: computed, read from a pipe that gives one each 6 ms, or slept."""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("spins", "prep", marks=pytest.mark.slow),
        ("reads", "storage"),
        pytest.param("sleeps", "mixed", marks=pytest.mark.slow),
    ],
)
def test_a_generator_is_told_by_what_its_thread_does_in_next(what: str, said: str, tmp_path: Path) -> None:
    # In a process of its own: the more threads a process has, the fewer looks at them a short run affords.
    command = [sys.executable, "-c", GENERATORS, what, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.stdout.split() == [said], done.stderr


def test_a_generator_may_end_the_watch_that_it_is_in(tmp_path: Path) -> None:
    def batches() -> Iterator[int]:
        for number in range(100):
            if number == 60:
                watched.close()
            yield number

    watched = watch(batches(), results=tmp_path, every=0)
    assert list(watched) == list(range(100))


@pytest.mark.slow
def test_a_wait_that_was_looked_at_counts_as_the_others(tmp_path: Path) -> None:
    # given 20 ms of work for each batch: one wait in seven or eight is looked at
    watched = watch(spinning(120, 0.020), results=tmp_path, every=0)
    watcher = watched._watcher
    for _ in watched:
        time.sleep(0.002)
    watched.close()
    assert watcher.main is not None
    told = [one for one in watcher.main.segments if one.wait_cpu_s is not None]
    num = sum(len(one.window) for one in told)
    assert num > 100 and sum(one.wait_looks.num for one in told if one.wait_looks is not None) > 5
    assert sum(one.wait_cpu_s or 0.0 for one in told) == pytest.approx(num * 0.020, rel=0.03)


def test_an_iterator_that_outlives_its_watch_is_seen_no_more(tmp_path: Path) -> None:
    # given a watch that is stored each second, and ended behind half a second of three
    watched = watch(sleeping(600), results=tmp_path, every=1)
    watcher, num = watched._watcher, 0
    for num, _ in enumerate(watched, 1):
        if num == 120:
            watched.close()
    assert num == 600
    assert watcher.main is not None and watcher.main.num_batches == 120
    (run,) = Store(tmp_path).runs()
    assert run.record is not None and run.record.so_far_s is None and run.problem is None


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(80))


class Odd:
    """A batch whose shape is none."""

    def shape(self) -> int:
        return 4


def test_what_a_data_set_or_a_batch_does_not_tell_is_unknown(tmp_path: Path) -> None:
    chained = ChainDataset([Stream(), Stream()])
    with pytest.raises(TypeError):
        len(chained)
    watcher = seen_of(DataLoader(chained, 4), tmp_path)
    assert watcher.main is not None
    assert (watcher.main.source.num_samples, watcher.main.num_batches) == (None, 80)
    assert (samples_of(Odd()), samples_of([Odd(), torch.ones(3, 2)])) == (None, 3)


def test_little_of_a_batch_of_lists_is_looked_at() -> None:
    looked = []

    class Leaf:
        @property
        def shape(self) -> tuple[int, ...]:
            looked.append(self)
            return ()

    samples_of([[[Leaf()] * 100] * 100] * 100)
    assert 0 < len(looked) <= 8**3
    # a list that holds itself ends, too; what holds an array not too deep tells
    endless: list[object] = []
    endless.append(endless)
    assert samples_of(endless) is None
    assert samples_of({"a": [1, 2], "b": [{"c": torch.ones(5, 2)}]}) == 5


def test_workers_that_stay_are_known_behind_an_epoch_that_was_broken_off(tmp_path: Path) -> None:
    # given workers that stay, and epochs of which each is left at half of its batches
    loader = DataLoader(Slow(), 4, num_workers=2, persistent_workers=True)
    watched = watch(loader, results=tmp_path, every=0)
    watcher = watched._watcher
    for _ in range(4):
        for number, _batch in enumerate(watched):
            time.sleep(0.002)
            if number == 20:
                break
    watched.close()
    assert watcher.main is not None
    real = [one for one in watcher.main.segments if one.arm is Arm.REAL]
    assert len(real) == 4 and all(one.spans is not None for one in real)
    # and each batch is its own: it was ready when it was handed over, and begun behind its worker's one before it
    for before, after in pairwise(real):
        assert after.spans is not None and after.spans[0, SPAN["start_ns"]] > before.closed_ns
    for one in real:
        assert one.spans is not None
        assert (one.spans[:, SPAN["ready_ns"]] <= one.steps[:, STEP["returned_ns"]]).all()
        # 2 workers and 2 batches ahead of each: a fifth is asked for once the first one is
        assert (one.spans[4:, SPAN["start_ns"]] >= one.steps[:-4, STEP["called_ns"]]).all()
        for worker in range(2):
            made = one.spans[one.spans[:, SPAN["worker"]] == worker]
            assert (made[1:, SPAN["start_ns"]] >= made[:-1, SPAN["ready_ns"]]).all()


def test_loaders_that_are_taken_from_in_turn_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = OwnWatch.begin(tmp_path)
    for _ in zip(DataLoader(Slow(), 4), DataLoader(Slow(), 8), strict=False):
        pass
    assert own.end() is None
    assert "batches from several loaders" in " ".join(capsys.readouterr().err.split())


def test_what_cannot_be_stored_does_not_end_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ConfigError("the disk is full")

    monkeypatch.setattr("loaderbench.studies.watch.store_watched", fails)
    with watch(DataLoader(Slow(), 4), results=tmp_path, every=0) as batches:
        for _ in batches:
            pass
    assert capsys.readouterr().err == "loaderbench: the disk is full\n"


def test_many_short_iterators_keep_no_memory_of_their_own(tmp_path: Path) -> None:
    own = OwnWatch.begin(tmp_path)
    loader = DataLoader(list(range(8)), 4)
    for _ in range(3 * MOST_TIMED):
        next(iter(loader))
    (seen,) = own.watcher.seen.values()
    assert seen.num_iterators == 3 * MOST_TIMED and len(seen.times) == MOST_TIMED
    own.end()


def test_what_works_on_batches_before_the_loop_is_a_part_of_the_wait_for_them(tmp_path: Path) -> None:
    watcher = seen_of(Pipeline(DataLoader(Slow(), 4), worked_on), tmp_path)
    main = watcher.main
    assert main is not None and (main.source.kind, main.num_batches) == ("Pipeline", 80)
    assert sum(one.num_batches for one in watcher.seen.values()) == 80  # the loader within it is not counted again
    rows = [row for one in main.segments if one.arm is Arm.REAL for row in one.window]
    waits = [(row[STEP["returned_ns"]] - row[STEP["called_ns"]]) / 1e9 for row in rows]
    assert len(waits) > 50 and min(waits) > 0.009  # 4 samples of 1 ms, and 6 ms of work


OWN = """
import time, loaderbench
def batches():
    for number in range(4000):
        yield [number] * 4
for number, batch in enumerate(loaderbench.watch(batches(), results="results", every=1)):
    time.sleep(0.004)
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_killed_script_that_watches_itself_leaves_what_was_stored_as_it_went(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with subprocess.Popen([sys.executable, "own.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 700:  # 2.8 s
                process.kill()
    assert process.wait() == -signal.SIGKILL
    (run,) = Store(tmp_path / "results").runs()
    assert run.record is not None and run.record.so_far_s is not None and run.record.so_far_s > 1.0
    assert run.record.watched is not None and run.record.watched.script == "own.py"


@pytest.mark.slow
def test_a_script_that_is_ended_early_without_a_word_leaves_the_first_write(tmp_path: Path) -> None:
    # given one that says nothing of how often it is to be stored, and a first write behind 1 s in place of 30
    own = OWN.replace(", every=1", "").replace(
        "print(number, flush=True)", "if number == 700: os.kill(os.getpid(), signal.SIGTERM)"
    )
    sooner = "import os, signal, loaderbench.studies.watch_writing as writing\nwriting.FIRST_WRITE_S = 1.0\n"
    (tmp_path / "own.py").write_text(sooner + own)
    done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == -signal.SIGTERM  # the script's signals are its own
    (run,) = Store(tmp_path / "results").runs()
    assert run.record is not None and run.record.so_far_s is not None and 1.0 < run.record.so_far_s < 30.0


LEAVES = """
import os, sys, time
print("not flushed")  # so that it is lost, as os._exit loses it
def batches():
    for number in range(600):
        yield [number] * 4
for number, batch in enumerate(WATCH(batches())):
    time.sleep(0.001)
    if number == 100 and not os.fork():
        os._exit(5)
    if number == 100:
        print(os.waitstatus_to_exitcode(os.wait()[1]), file=sys.stderr)
    if number == 500:
        os._exit(3)
"""


@pytest.mark.slow
def test_a_script_that_ends_by_os_exit_leaves_all_that_was_seen_and_ends_as_ever(tmp_path: Path) -> None:
    buffered, ended = {**os.environ, "PYTHONUNBUFFERED": ""}, []
    for name, watch_it in (("bare.py", "iter"), ("own.py", "__import__('loaderbench').watch")):
        (tmp_path / name).write_text(LEAVES.replace("WATCH", watch_it))
        done = subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=buffered, check=False, timeout=60, capture_output=True, text=True
        )
        ended.append((done.returncode, done.stdout, done.stderr.splitlines()[0]))
    assert ended == [(3, "", "5")] * 2
    (run,) = Store(tmp_path / "results").runs()  # none of the forked process, which the script did not watch
    assert run.problem is None and run.record is not None and run.record.so_far_s is None
    assert run.record.watched is not None and run.record.watched.loaders[0].num_batches == 501
    assert done.stderr.count("own.py · ") == 1


def test_storing_too_often_is_refused_before_anything_is_watched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too often"):
        watch([1, 2], results=tmp_path, every=0.5)


def test_a_session_without_a_script_is_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    own = OwnWatch.begin(tmp_path)
    for _ in watch(DataLoader(Slow(), 4)):
        pass
    record = own.end()
    assert record is not None and record.watched is not None and record.watched.script == "session"


def test_in_a_notebook_what_was_seen_is_printed_on_stderr_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *given: shown.append(given))
    with watch(DataLoader(Slow(), 4), results=tmp_path, every=0) as batches:
        for _batch in batches:
            pass
    assert shown == [] and "Where the script's time went" in capsys.readouterr().err


class Epochs:
    """An iterable with state of its own, and iterators that tell their length."""

    def __init__(self, num: int = 6) -> None:
        self.num, self.epoch = num, 0

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index

    def __iter__(self) -> "Counting":
        return Counting(self)


class Counting:
    def __init__(self, data: Epochs) -> None:
        self.data, self.left = data, data.num

    def __iter__(self) -> "Counting":
        return self

    def __len__(self) -> int:
        return self.left

    def __next__(self) -> int:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.data[self.left]


def test_what_is_set_on_a_watched_iterable_is_set_on_it_and_copies_are_of_it(tmp_path: Path) -> None:
    given = Epochs()
    watched: Any = watch(given, results=tmp_path, every=0)
    watched.epoch = 3
    assert given.epoch == 3 and list(watched) == [305, 304, 303, 302, 301, 300]
    assert (watched[2], len(watched), repr(watched)) == (302, 6, repr(given))
    iterator = iter(watched)
    assert next(iterator) == 305 and len(iterator) == 5 and bool(iterator)
    iterator.left = 0
    assert list(iterator) == [] and not iterator
    watched.extra = 1
    del watched.extra
    assert not hasattr(given, "extra")
    for copied in (copy.copy(watched), copy.deepcopy(watched)):
        copied.epoch = 4
        assert given.epoch == 3 and next(iter(copied)) == 405
    assert sum(one.num_iterators for one in watched._watcher.seen.values()) == 4  # copies are watched, too
    sent = pickle.loads(pickle.dumps(watched))
    assert type(sent) is Epochs and sent.epoch == 3
    watched.close()


def test_a_generator_that_tells_no_length_is_still_true_and_a_list(tmp_path: Path) -> None:
    watched: Any = watch(sleeping(3), results=tmp_path, every=0)
    with pytest.raises(TypeError):
        len(watched)
    assert bool(watched) and bool(iter(watched)) and list(watched) == [0, 1, 2]
    watched.close()


def test_a_block_within_another_ends_no_watch_but_its_own(tmp_path: Path) -> None:
    with watch(DataLoader(Slow(), 4), results=tmp_path, every=0) as train:
        for _ in range(2):
            for _batch in train:
                time.sleep(0.002)
            with watch(DataLoader(Slow(), 8), results=tmp_path, every=0) as val:
                assert len(list(val)) == 20
            assert not Store(tmp_path).runs()
    (run,) = Store(tmp_path).runs()
    assert run.record is not None and run.record.watched is not None
    assert [(one.num_batches, one.batch_size) for one in run.record.watched.loaders] == [(80, 4), (40, 8)]
    # and behind it another one begins
    with watch(DataLoader(Slow(), 4), results=tmp_path, every=0) as again:
        list(again)
    assert len(Store(tmp_path).runs()) == 2
