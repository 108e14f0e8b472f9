"""The ranks of a script that is not ours, beside each other: they agree on the steps at which all are held, and hand
over what each saw. The script's own process group is never touched.

The place is torch's TCPStore: torchrun's agent serves one to all of its processes, and a prefix of our own keeps apart
what the script's group writes there. Without one a process beside rank 0 serves another, at the port behind
MASTER_PORT, which the script's own group takes itself; in rank 0's own process PyTorch's server aborts a script that
closes inherited files. Nothing here ends a script: where the ranks do not come together, they go on alone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, NoReturn

from loaderbench.cases.options import is_count
from loaderbench.forks import apart, end_with, pidfd_of
from loaderbench.originals import os, time
from loaderbench.recording.rank_place import RankPlace
from loaderbench.recording.ranks import RankEnd
from loaderbench.running.ranks import Rank
from loaderbench.watching.kept import Kept, open_numbers
from loaderbench.watching.own_files import as_its_own

CONNECT_S = 30.0
SERVES = b"serves"
READY_S = 6.0
"""In which the slowest rank's queue is full, or known not to be."""
NUM_LOCAL = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
"""Variables that tell how many ranks a node has."""


class Beside:
    """One rank's place among the others."""

    def __init__(self, rank: Rank, variables: Mapping[str, str]) -> None:
        self.place = RankPlace(rank.rank, rank.world_size, rank.local_rank, socket.gethostname(), rank.launcher)
        self.num_local = next((int(variables[one]) for one in NUM_LOCAL if is_count(variables.get(one, ""))), None)
        """Ranks on this node; None where the launcher does not tell."""
        self.problem: str | None = None
        """Why there are no bursts (any more)."""
        self.cut_off: str | None = None
        """Why the ranks cannot hand anything over."""
        self.patience_s = READY_S
        """For which rank 0 waits for what the others hand over; it may become less meanwhile."""
        self._store: Any = None
        self._left: Any = None
        """The store, where the script has closed its files: its end would close others of the script's."""
        before = open_numbers()
        self._join(variables)
        self._files = [Kept(number) for number in open_numbers() - before]

    def _join(self, variables: Mapping[str, str]) -> None:
        from torch import distributed

        host, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT", "")
        if host is None or not is_count(port):
            self._lost("the launcher sets no address where the ranks meet: set MASTER_ADDR and MASTER_PORT")
            return
        of_agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        number, timeout = int(port) + (not of_agent), timedelta(seconds=CONNECT_S)
        try:
            if not of_agent and self.place.rank == 0:
                _serve_beside(host, number)
            store = distributed.TCPStore(host, number, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
            prefix = f"loaderbench/watch/{variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            self._store = distributed.PrefixStore(prefix, store)  # type: ignore[attr-defined]
        except RuntimeError as error:
            self._lost(f"the ranks cannot meet at {host}:{number} ({_said(error)})")

    def _lost(self, why: str) -> None:
        self._store, self.cut_off, self.problem = None, why, self.problem or why

    def _meeting(self) -> Any:
        """The store, where the ranks can meet; None where they cannot (any more)."""
        if self._store is not None and any(one.number is None for one in self._files):
            self._left = self._store
            self._lost("the script closed the connection between the watched ranks")
        return self._store

    # -- bursts ----------------------------------------------------------------------------------------------

    def all_here(self, number: int, seconds: float) -> bool:
        """Whether all ranks come to burst `number` within so many seconds. Where they do not, there are no bursts any
        more: the ranks do not take the same steps."""
        if self.problem is None and self._stopped():
            return False
        return self._agree(f"here/{number}", seconds, f"not all reached burst {number + 1} within {seconds:.3g} s")

    def all_ready(self, number: int, *, full: bool) -> bool:
        """Whether the queues of all ranks are full; all go on together. `full`: this rank's."""
        if not full:
            self.stop(f"the queue of rank {self.place.rank} did not fill in time")
        agreed = self._agree(f"ready/{number}", READY_S, f"not all were ready in burst {number + 1}")
        return agreed and not self._stopped() and full

    def stop(self, why: str) -> None:
        """No bursts any more, on any rank."""
        self.problem = self.problem or why
        if self._meeting() is not None:
            try:
                self._store.set("stop", why)
            except RuntimeError as error:
                self._lost(f"the server that connected the ranks is gone ({_said(error)})")

    def _stopped(self) -> bool:
        try:
            if self._meeting() is not None and self._store.check(["stop"]):
                self.problem = self.problem or bytes(self._store.get("stop")).decode()
        except RuntimeError as error:
            self._lost(f"the server that connected the ranks is gone ({_said(error)})")
        return self.problem is not None

    def _agree(self, name: str, seconds: float, otherwise: str) -> bool:
        from torch import distributed

        if self._meeting() is None:
            return False
        try:
            if self._store.add(f"{name}/num", 1) == self.place.ranks:
                self._store.set(f"{name}/all", b"1")
            else:
                self._store.wait([f"{name}/all"], timedelta(seconds=seconds))
        except distributed.DistStoreError:
            self.stop(f"the ranks do not take the same steps: {otherwise}")
            return False
        except RuntimeError as error:
            self._lost(f"the server that connected the ranks is gone ({_said(error)})")
            return False
        return True

    # -- the end ---------------------------------------------------------------------------------------------

    def failed(self, what: str, last: str) -> None:
        """This rank's script ended with an error; the first that says so counts."""
        end = RankEnd(self.place.rank, self.place.node, what, last)
        if self._meeting() is not None:
            try:
                self._store.compare_set("ended", "", json.dumps(asdict(end)))
            except RuntimeError as error:
                self._lost(f"the server that connected the ranks is gone ({_said(error)})")

    def hand_over(self, part: bytes) -> tuple[list[bytes | None], RankEnd | None]:
        """Give what this rank saw to rank 0. There: what each gave, None where it did not within `patience_s`, and
        whose script ended first with an error; elsewhere nothing."""
        if self._meeting() is None:
            return [], None
        try:
            self._store.set(f"part/{self.place.rank}", part)
            if self.place.rank:
                return [], None
            keys, begun = [f"part/{number}" for number in range(self.place.ranks)], time.monotonic()
            while not self._store.check(keys) and time.monotonic() < begun + self.patience_s:
                time.sleep(0.05)
            parts = [bytes(self._store.get(key)) if self._store.check([key]) else None for key in keys]
            ended = bytes(self._store.get("ended")) if self._store.check(["ended"]) else None
        except RuntimeError as error:
            self._lost(f"the server that connected the ranks is gone ({_said(error)})")
            return [], None
        return parts, None if ended is None else RankEnd(**json.loads(ended))


def _said(error: RuntimeError) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:120]


def _serve_beside(host: str, port: int) -> None:
    """Serve a store in a process that ends with this one. RuntimeError: why it cannot."""
    script, (told, tell) = pidfd_of(os.getpid()), os.pipe()
    if script is None:
        raise RuntimeError("this needs Linux 5.3 or later")

    def serve() -> NoReturn:
        from torch import distributed

        as_its_own(keep=(tell, script))
        try:
            _server = distributed.TCPStore(  # type: ignore[attr-defined]
                host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_S)
            )
        except RuntimeError as error:
            os.write(tell, _said(error).encode())
            os._exit(1)
        os.write(tell, SERVES)
        os.close(tell)
        end_with(script)

    apart(serve)
    for number in (tell, script):
        os.close(number)
    with open(told, "rb") as answer:
        said = answer.read()
    if said != SERVES:
        raise RuntimeError(said.decode() or "the server for the ranks did not start")
