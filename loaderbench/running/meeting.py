"""Where the commands of all ranks meet: they know of each other's life, hand over what they measured, and end together.

The place is torch's TCPStore, which torchrun's agent serves already; without one rank 0 serves it. Each rank writes a
sign of life there twice a second. Whoever finds one missing writes down once, for all, whose fault the end is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from loaderbench import neutral
from loaderbench.cases.options import is_count
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.interrupts import interrupts_held
from loaderbench.recording.facts import Failure
from loaderbench.recording.progress import Alive, Message, Phase, SegmentDone
from loaderbench.recording.rank_place import RankPlace
from loaderbench.recording.ranks import RankEnd
from loaderbench.running.file_waits import FileWaits
from loaderbench.running.peers import PeerGone, Seat
from loaderbench.running.ranks import Rank

T = TypeVar("T")

BEAT_S = 0.5
STALE_S = 5.0
"""Without a sign of life a rank is gone."""
SILENT_S, STOPPED_S = 6.0, 3.0
"""Without one of its measuring process, and with that stopped."""
OVERDUE_S, OVERDUE = 6.5, 20.0
"""A step hangs that takes so long, and so many times as long as any before it."""
FILE_S, LOOK_FROM_S = 5.0, 1.0
"""A storage hangs that does not answer one call for so long; after how long without a step it is looked at."""
DIES_S = 1.0
"""A killed process that is still there waits in the kernel, for a storage that does not answer."""
JOIN_S = 300.0
"""For all ranks to come."""
ABSENT_S = 1.0
"""A thread that was away for longer cannot tell who else was."""
NOTHING = b"-"


class RankGone(CaseFailed):
    """The launch has ended, by one of its ranks."""

    def __init__(self, end: RankEnd) -> None:
        super().__init__(sentence(end))
        self.end = end


def sentence(end: RankEnd) -> str:
    """`rank 1 on node7 ended the run: … (it was last: …)`"""
    if end.rank is None:
        return end.what
    last = f"; its last action: {end.last}" if end.last else ""
    return f"rank {end.rank} on {end.node} ended the run: {end.what}{last}"


def address_of(variables: Mapping[str, str], rank: Rank) -> tuple[str, int]:
    """Where the ranks meet. Raises ConfigError where the launcher does not say."""
    host, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT", "")
    if host is None or not is_count(port):
        raise ConfigError(
            f"{rank.launcher} started {rank.world_size} ranks but no address where they meet: set MASTER_ADDR "
            "to the name of rank 0's node and MASTER_PORT to a free port there"
        )
    return host, int(port)


@dataclass
class _Heard:
    """Of another rank."""

    text: bytes = b""
    at: float = 0.0
    state: str = "works"
    doing: str = ""
    looks_gone: int = 0
    """Looks in a row at which its process was not there, on this node."""


class Meeting:
    """One rank of a launch. A context manager."""

    def __init__(self, rank: Rank, variables: Mapping[str, str]) -> None:
        """Raises ConfigError where the launcher does not say where to meet."""
        self.rank, self.ranks = rank.rank, rank.world_size
        self._of_launcher = rank
        self.host, self.port = address_of(variables, rank)
        self._serves = rank.rank == 0 and variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._prefix = f"loaderbench/{variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self.ended: RankEnd | None = None
        """Why the launch ends early."""
        self._ended_at = 0.0
        self._state, self._doing, self._count = "works", "starting", 0
        self._process: subprocess.Popen[bytes] | None = None
        self._alive: Alive | None = None
        self._alive_at = self._stopped_since = 0.0
        self._file_waits = FileWaits()
        self._heard = [_Heard() for _ in range(self.ranks)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch_others, daemon=True)
        self._server: Any = None
        self.nodes: list[str] = []
        self._pids: list[tuple[int, int | None]] = []

    def __enter__(self) -> Meeting:
        """Meet all ranks. Raises CaseFailed where they do not come."""
        with neutral.standing_in():
            from torch import distributed

        timeout = timedelta(seconds=JOIN_S)
        try:
            if self._serves:
                self._server = distributed.TCPStore(  # type: ignore[attr-defined]
                    self.host, self.port, is_master=True, wait_for_workers=False, timeout=timeout
                )
            self._store, self._own_store = self._connect(), self._connect()
            self._store.compare_set("ended", "", NOTHING.decode())
            self._beat(self._store)
            pid = os.getpid()
            hello = {"node": socket.gethostname(), "pid": pid, "started": _started(pid)}
            self._store.set(f"hello/{self.rank}", json.dumps(hello))
            hellos = [json.loads(text) for text in self._taken("hello", JOIN_S)]
        except RuntimeError as error:
            said = (str(error).strip().splitlines() or ["no message"])[0]
            raise CaseFailed(f"the ranks cannot meet at {self.host}:{self.port}: {said[:200]}") from error
        self.nodes = [hello["node"] for hello in hellos]
        self._pids = [(hello["pid"], hello["started"]) for hello in hellos]
        now = time.monotonic()
        self._heard = [_Heard(at=now) for _ in range(self.ranks)]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say that this rank leaves. Who serves the place stays until the others have left."""
        with interrupts_held(drop=True):
            self._state = "left"
            until = time.monotonic() + STALE_S + 1
            while self._serves and time.monotonic() < until and not all(self._is_away(n) for n in self._others):
                time.sleep(0.1)
            self._over.set()
            if self._thread.is_alive():
                self._thread.join(STALE_S)
            with suppress(RuntimeError):  # the place is gone: there is nobody to tell
                self._beat(self._store)

    # -- who is here -----------------------------------------------------------------------------------------

    @property
    def place(self) -> RankPlace:
        one = self._of_launcher
        return RankPlace(one.rank, one.world_size, one.local_rank, self.nodes[self.rank], one.launcher)

    @property
    def num_local(self) -> int:
        """Ranks on this node."""
        return self.nodes.count(self.nodes[self.rank])

    def seat(self, number: int) -> Seat:
        """Of the measuring process of case `number`."""
        return Seat(self.place, self.host, self.port, f"{self._prefix}/case{number}", self.num_local)

    @property
    def _others(self) -> list[int]:
        return [number for number in range(self.ranks) if number != self.rank]

    def _is_away(self, number: int) -> bool:
        heard = self._heard[number]
        return heard.state == "left" or time.monotonic() - heard.at > STALE_S

    # -- agreeing --------------------------------------------------------------------------------------------

    def gather(self, name: str, data: bytes) -> list[bytes]:
        """Everybody's data, by rank; waits for all. Raises RankGone."""
        self._store.set(f"{name}/{self.rank}", data)
        return self._taken(name, None)

    def behind_rank_0(self, name: str, make: Callable[[], T]) -> T:
        """Rank 0 makes it first, so that what is made once is made by one. Raises what `make` raises, and RankGone."""
        if self.rank:
            self._wait([f"{name}/0"], None)
        made = make()
        if not self.rank:
            self._store.set(f"{name}/0", b"made")
        return made

    def _taken(self, name: str, seconds: float | None) -> list[bytes]:
        keys = [f"{name}/{number}" for number in range(self.ranks)]
        self._wait(keys, seconds)
        return [bytes(value) for value in self._store.multi_get(keys)]

    def _wait(self, keys: list[str], seconds: float | None) -> None:
        """Raises RankGone where the launch has ended; CaseFailed after `seconds`."""
        from torch import distributed

        begun = time.monotonic()
        while True:
            if self.ended is not None:
                raise RankGone(self.ended)
            try:
                self._store.wait(keys, timedelta(seconds=1))
                return
            except distributed.DistStoreError:  # not there yet
                if seconds is not None and time.monotonic() - begun > seconds:
                    gone = [key.rpartition("/")[2] for key in keys if not self._store.check([key])]
                    raise CaseFailed(
                        f"the ranks {', '.join(gone)} of {self.ranks} did not arrive within {seconds:.0f} s"
                    ) from None
            except RuntimeError as error:
                self._end(self._no_place(error))

    # -- what this rank does ---------------------------------------------------------------------------------

    def doing(self, what: str) -> None:
        """What it does now, for whoever has to say what it did last."""
        self._doing = what

    def hears(self, message: Message) -> None:
        """A message of its measuring process."""
        if isinstance(message, Alive):
            self._alive, self._alive_at = message, time.monotonic()
        elif isinstance(message, Phase):
            self._doing = message.text
        elif isinstance(message, SegmentDone):
            self._doing = f"a window of `{message.arm.value}` in round {message.round} was done"

    @contextmanager
    def watching(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Its measuring process, for the block: killed where the launch ends, as it may wait for one that is gone."""
        self._alive, self._stopped_since, self._process = None, 0.0, process
        self._file_waits = FileWaits()
        try:
            yield
        except BaseException:
            process.kill()
            raise
        finally:
            self._process = None

    def is_over(self) -> bool:
        """Whether the launch has ended, and its measuring process should be gone."""
        return self.ended is not None and time.monotonic() - self._ended_at > DIES_S

    def cause_of(self, failure: Failure) -> Failure:
        """A failure of its measuring process: by itself, or because the launch has ended."""
        until = time.monotonic() + STALE_S + 2
        while failure.kind == PeerGone.__name__ and self.ended is None and time.monotonic() < until:
            time.sleep(0.05)
        if self.ended is None or self.ended.rank == self.rank:
            return failure
        return Failure(PeerGone.__name__, sentence(self.ended))

    # -- the end ---------------------------------------------------------------------------------------------

    def settle(self, stop: BaseException) -> RankEnd | None:
        """Why the launch ends, of which `stop` is this rank's part. None: it was interrupted from outside."""
        interrupted = isinstance(stop, KeyboardInterrupt | SystemExit)
        with interrupts_held(drop=True):
            if interrupted:
                self._state = "interrupted"
            elif not isinstance(stop, PeerGone | RankGone):
                self._declare(RankEnd(self.rank, self.nodes[self.rank], str(stop).rstrip("."), self._doing))
            until = time.monotonic() + STALE_S + 2
            while self.ended is None and time.monotonic() < until:
                if interrupted and all(self._heard[n].state in ("interrupted", "left") for n in self._others):
                    break
                time.sleep(0.05)
            return self.ended

    def is_to_speak(self) -> bool:
        """Whether this rank speaks for all: the first that lives. The others wait until it has left, since a launcher
        ends all ranks when the first one leaves."""
        until = time.monotonic() + STALE_S + 1
        while time.monotonic() < until:
            before = self._heard[: self.rank]
            if any(heard.state == "left" for heard in before):
                return False
            if all(time.monotonic() - heard.at > STALE_S for heard in before):
                return True
            time.sleep(0.05)
        return False

    def _declare(self, end: RankEnd) -> None:
        """Write it down, unless another end was written before: that one counts."""
        try:
            told = self._own_store.compare_set("ended", NOTHING.decode(), json.dumps(asdict(end)))
        except RuntimeError as error:
            self._end(self._no_place(error) if end.rank != self.rank else end)
            return
        self._end(RankEnd(**json.loads(told)))

    def _end(self, end: RankEnd) -> None:
        if self.ended is None:
            self.ended, self._ended_at = end, time.monotonic()
            process = self._process
            if process is not None:
                process.kill()
            if end.rank is not None and end.rank != self.rank and end.node == self.nodes[self.rank]:
                self._kill_if_stopped(end.rank)

    def _kill_if_stopped(self, number: int) -> None:
        """A command that is stopped hears no signal but this one, and would stay."""
        pid, started = self._pids[number]
        if started is not None and _started(pid) == started and _state(pid) in ("T", "t"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _no_place(self, error: Exception) -> RankEnd:
        said = (str(error).strip().splitlines() or ["no message"])[0][:120]
        served = "rank 0's command" if self._of_launcher.launcher != "torchrun" else "torchrun's agent or rank 0"
        what = f"the server that connects the ranks, {self.host}:{self.port}, is gone ({said}): did {served} end?"
        return RankEnd(None, None, what, "")

    # -- the thread ------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        from torch import distributed

        store = distributed.TCPStore(  # type: ignore[attr-defined]
            self.host, self.port, is_master=False, timeout=timedelta(seconds=JOIN_S)
        )
        return distributed.PrefixStore(self._prefix, store)  # type: ignore[attr-defined]

    def _beat(self, store: Any) -> None:
        self._count += 1
        store.set(f"beat/{self.rank}", json.dumps({"n": self._count, "state": self._state, "doing": self._doing[:200]}))

    def _watch_others(self) -> None:
        store, last = self._connect(), time.monotonic()
        keys = [*(f"beat/{number}" for number in range(self.ranks)), "ended"]
        while not self._over.wait(BEAT_S):
            try:
                self._beat(store)
                *beats, ended = [bytes(value) for value in store.multi_get(keys)]
            except RuntimeError as error:
                self._end(self._no_place(error))
                return
            now = time.monotonic()
            if now - last > BEAT_S + ABSENT_S:
                for heard in self._heard:
                    heard.at = now
                self._alive_at, self._stopped_since = now, 0.0
            last = now
            self._note(beats, now)
            if ended != NOTHING:
                self._end(RankEnd(**json.loads(ended)))
            elif (end := self._own_trouble(now) or self._missing(now)) is not None:
                self._declare(end)

    def _note(self, beats: list[bytes], now: float) -> None:
        for heard, text in zip(self._heard, beats, strict=True):
            if text != heard.text:
                said = json.loads(text)
                heard.text, heard.at, heard.state, heard.doing = text, now, said["state"], said["doing"]

    def _missing(self, now: float) -> RankEnd | None:
        for number in self._others:
            heard, (pid, started) = self._heard[number], self._pids[number]
            local = self.nodes[number] == self.nodes[self.rank] and started is not None
            heard.looks_gone = heard.looks_gone + 1 if local and _started(pid) != started else 0
            if heard.state != "left" and heard.looks_gone > 1:  # at the first, its last word may be on its way
                return RankEnd(number, self.nodes[number], "its command is gone (killed?)", heard.doing)
            if heard.state != "left" and now - heard.at > STALE_S:
                what = f"no sign of life for {STALE_S:.0f} s (killed, stopped, or cut off from the network)"
                return RankEnd(number, self.nodes[number], what, heard.doing)
        return None

    def _own_trouble(self, now: float) -> RankEnd | None:
        """What is wrong with this rank's measuring process, if anything is."""
        process, alive = self._process, self._alive
        if process is None:
            return None
        what = None
        if _state(process.pid) in ("T", "t"):
            self._stopped_since = self._stopped_since or now
            if now - self._stopped_since > STOPPED_S:
                what = "its measuring process was stopped"
        else:
            self._stopped_since = 0.0
            looks = alive is None or alive.waits_s is None or alive.waits_s > LOOK_FROM_S
            file_wait = self._file_waits.look(process.pid) if looks else None
            if file_wait is not None and file_wait.seconds > FILE_S:
                what = (
                    f"its measuring process has waited {file_wait.seconds:.0f} s for one file ({file_wait.call}): "
                    "does its storage hang?"
                )
            elif alive is not None and now - self._alive_at > SILENT_S:
                what = f"no sign of life of its measuring process for {SILENT_S:.0f} s"
            elif alive is not None and (alive.waits_s or 0.0) > max(OVERDUE_S, OVERDUE * alive.longest_s):
                what = (
                    f"its current step has taken {alive.waits_s:.0f} s, and no earlier one took more than "
                    f"{alive.longest_s:.2g} s: does its storage hang?"
                )
        return None if what is None else RankEnd(self.rank, self.nodes[self.rank], what, self._doing)


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _state(pid: int) -> str | None:
    """R, S, D, T … of proc_pid_stat(5); None where it is gone."""
    fields = _stat(pid)
    return None if fields is None else fields[0]


def _started(pid: int) -> int | None:
    """When it started, in ticks since the boot: no later process of the same number has that."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])
