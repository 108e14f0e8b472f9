"""Bursts of several ranks: at the same steps whatever each one's time, and what is done where that fails."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from loaderbench.running.beside import Beside
from loaderbench.running.ranks import rank_of
from loaderbench.watching.seen import Source
from loaderbench.watching.watcher import Watcher

SOURCE = Source("DataLoader", "Photos", 4000, 4, 2, 2, "RandomSampler")
OTHER = Source("DataLoader", "Held out", 400, 4, 2, 2, "SequentialSampler")


class Full:
    """A queue that is always full."""

    def is_full(self) -> bool:
        return True

    def size(self) -> int:
        return SOURCE.depth

    def pids(self) -> list[int]:
        return []


class Rank:
    """The others, who come, or do not come to one burst; and at which batch this rank was held."""

    def __init__(self, missing_at: int | None = None) -> None:
        self.missing_at, self.problem = missing_at, None
        self.taken, self.held_at = 0, list[int]()

    def all_here(self, number: int, seconds: float) -> bool:
        self.held_at.append(self.taken)
        if number == self.missing_at:
            self.problem = "one did not come"  # type: ignore[assignment]
        return self.problem is None

    def all_ready(self, number: int, *, full: bool) -> bool:
        return full


def trained(rank: Rank, *, every: int = 0, epochs: int = 3, steps: int = 300) -> Watcher:
    """A training with a validation behind each epoch; `every`: a window is closed by the time so often."""
    watcher = Watcher(others=rank)
    watcher.follows_device = False
    for _ in range(epochs):
        for source, num in ((SOURCE, steps), (OTHER, 40)):
            watched = watcher.opened(source, 0, None, (), Full())
            assert watched is not None
            for step in range(num):
                if every and step % every == 0:
                    watcher.closes_by_ns = 0
                watched.step(lambda _: [0, 0, 0, 0], None)
                watcher.closes_by_ns = 2**62
                rank.taken += 1
            watched.ended()
    return watcher


def test_all_ranks_are_held_at_the_same_steps_whenever_their_windows_end() -> None:
    ranks = [Rank() for _ in range(3)]
    watchers = [trained(rank, every=every) for rank, every in zip(ranks, (0, 37, 101), strict=True)]
    assert len(ranks[0].held_at) > 10
    assert ranks[1].held_at == ranks[0].held_at == ranks[2].held_at
    assert {watcher.num_bursts for watcher in watchers} == {len(ranks[0].held_at)}
    assert all(at % 340 < 300 for at in ranks[0].held_at)  # the training's loader alone


def test_later_bursts_become_rare() -> None:
    rank = Rank()
    trained(rank, epochs=1, steps=6000)
    distances = [after - before for before, after in zip(rank.held_at, rank.held_at[1:], strict=False)]
    assert max(distances[:18]) < 60 and distances[-1] > 400


def test_where_a_rank_does_not_come_there_are_no_bursts_any_more_and_the_reason_is_kept() -> None:
    rank = Rank(missing_at=2)
    watcher = trained(rank)
    assert (len(rank.held_at), watcher.num_bursts, watcher.no_burst) == (3, 2, "one did not come")


# -- the place where they meet -----------------------------------------------------------------------------------


def free_port() -> int:
    """One whose next one is free too."""
    while True:
        with socket.socket() as one, socket.socket() as following:
            one.bind(("127.0.0.1", 0))
            try:
                following.bind(("127.0.0.1", one.getsockname()[1] + 1))
            except OSError:
                continue
            return int(one.getsockname()[1])


def launched(variables: Mapping[str, str]) -> Beside:
    rank = rank_of(variables)
    assert rank is not None
    return Beside(rank, variables)


def two(**more: str) -> list[Beside]:
    """Two ranks of a Slurm step, in one process."""
    common = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS_PER_NODE": "2", **more}
    return [launched({**common, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}) for rank in "01"]


def at_once(ranks: list[Beside], call: Callable[[Beside], Any]) -> list[Any]:
    found: dict[int, Any] = {}

    def one(beside: Beside) -> None:
        found[beside.place.rank] = call(beside)

    threads = [threading.Thread(target=one, args=(beside,)) for beside in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[beside.place.rank] for beside in ranks]


def test_ranks_meet_beside_the_script_s_own_port_and_hand_over_what_they_saw() -> None:
    port = free_port()
    ranks = two(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with socket.socket() as of_script:
        of_script.bind(("127.0.0.1", port))  # it is left to the script's own group
    assert [rank.num_local for rank in ranks] == [2, 2]
    assert at_once(ranks, lambda rank: rank.all_here(0, 5.0)) == [True, True]
    assert at_once(ranks, lambda rank: rank.all_ready(0, full=True)) == [True, True]
    assert ranks[1].hand_over(b"one") == ([], None)
    ranks[1].failed("its script ended with ValueError: no such class", "batch 60")
    ranks[0].failed("its script ended with RuntimeError: connection closed", "batch 60")
    parts, ended = ranks[0].hand_over(b"zero")
    assert parts == [b"zero", b"one"] and ended is not None
    assert (ended.rank, ended.what) == (1, "its script ended with ValueError: no such class")


def test_a_rank_that_stays_away_or_is_not_ready_ends_the_bursts_of_all() -> None:
    first, second = two(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    assert not first.all_here(0, 0.2)
    assert first.problem is not None and "not all reached burst 1" in first.problem
    assert not second.all_here(0, 5.0) and second.problem == first.problem
    first.patience_s = 0.1
    parts, _ = first.hand_over(b"zero")
    assert parts == [b"zero", None]
    ranks = two(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    assert at_once(ranks, lambda rank: rank.all_ready(0, full=rank.place.rank == 0)) == [False, False]
    assert {rank.problem for rank in ranks} == {"the queue of rank 1 did not fill in time"}


@pytest.mark.parametrize("variables", [{}, {"MASTER_ADDR": "127.0.0.1"}])
def test_without_a_place_each_is_watched_by_itself(variables: dict[str, str]) -> None:
    (first, _) = two(**variables)
    assert first.cut_off is not None and "MASTER_PORT" in first.cut_off
    assert not first.all_here(0, 1.0) and first.hand_over(b"") == ([], None)


CLOSES = """
import os, sys
from loaderbench.running.beside import Beside
from loaderbench.running.ranks import rank_of

variables = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": sys.argv[1]}
beside = Beside(rank_of(variables), variables)
os.closerange(3, 300)
pipes = [os.pipe() for _ in range(20)]
for reader, _ in pipes:
    os.set_blocking(reader, False)
beside.failed("x", "y")
print(beside.all_here(0, 1.0), beside.hand_over(b"part"), beside.cut_off)
for reader, writer in pipes:
    os.write(writer, b"whole")
    print(os.read(reader, 100).decode(), end=" ")
sys.stdout.flush()
os._exit(0)
"""


def test_a_script_that_closes_the_connection_of_the_ranks_finds_nothing_in_its_own_files() -> None:
    command = [sys.executable, "-c", CLOSES, str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    alone = "False ([], None) the script closed the connection between the watched ranks\n"
    assert done.stdout == alone + "whole " * 20, done.stderr
