"""Looks at training processes from outside, at random times, and counts what their counters grew.

Nothing is written to a process, none is stopped, no code enters it. Gaps between looks are exponential, so that looks
do not beat with periodic work; their mean is as long as it must be for looking to cost COST_FRACTION of one processor.
"""

from __future__ import annotations

import random
import re
import shlex
import socket
import statistics
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench.attach.facts import (
    UNKNOWN,
    FileSystemSeen,
    GpuUse,
    Io,
    JobFacts,
    Processors,
    Rights,
    ThreadUse,
)
from loaderbench.attach.find import TICKS_PER_S, Process, process_of, rank_of, workers_of
from loaderbench.attach.names import Names
from loaderbench.errors import UnavailableError
from loaderbench.images.filesystem import choose_mount, parse_mountinfo
from loaderbench.machine import cpu_quota, quota_counters
from loaderbench.originals import os, time
from loaderbench.recording.thread_samples import Role, SampledThread, SampleRows
from loaderbench.samplers.connections import INFO_BYTES, RECEIVED_AT
from loaderbench.samplers.cpu import cpu_times_now, parse_pressure
from loaderbench.samplers.cpu_window import throttled_between, throttling_by
from loaderbench.samplers.nvml import open_nvml
from loaderbench.samplers.process_io import children_of, parse_io
from loaderbench.samplers.procfile import read_text, stat_fields
from loaderbench.samplers.thread_states import PRIVATE_LOCK, SHARED_LOCK, Look, ThreadFiles

COST_FRACTION = 0.012
"""Of one processor, that looking may take once names are known: the first looks at a function read its code."""
LEAST_GAP_S, MOST_GAP_S = 0.01, 0.5
RECENT = 15
"""Looks whose median cost sets the next gap: a mean would hold the first ones, which read what is then known."""
FIRST_COST_S = 5e-4
SCAN_S = 1.0
"""Between two searches for new threads and processes."""
SCAN_FRACTION = 0.004
"""Of one processor, that these searches may take."""
MOST_WORKERS = 8
"""Workers looked at at once; of more, as many drawn at random. So many are asked for names: a worker's first names read
its code, and all run the same."""
INDEX = "index"
"""Detail of a pipe that leads to the main process: the worker waits for indices."""
NVIDIA = re.compile(r"/dev/nvidia(\d+)$")


@dataclass
class _Thread:
    """One thread that is looked at."""

    number: int
    """In the samples."""
    process: int
    thread: int
    is_main: bool
    files: ThreadFiles
    worker: int | None
    ran_s: float = 0.0
    queued_s: float = 0.0
    wakes: int = 0
    faults: int = 0
    begun: tuple[int, ...] = ()
    """Counters of `schedstat` and faults when it was first seen."""
    last: tuple[int, ...] = ()


@dataclass
class _Calls:
    """Read and write calls of one thread so far."""

    reads: int
    writes: int
    first_reads: int
    first_writes: int

    @property
    def only_writes(self) -> int:
        """Messages of a thread that only sends; 0 for others."""
        return self.writes - self.first_writes if self.reads == self.first_reads else 0


class Job:
    """One training process with its workers, while it is looked at."""

    def __init__(self, process: Process, *, with_calls: bool = True, with_names: bool = True) -> None:
        self.process = process
        self._with_calls = with_calls
        self._rows = SampleRows()
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._by_process: dict[int, list[_Thread]] = {}
        self._workers: dict[int, int] = {}
        """PID → number, in the order in which they were seen."""
        self._first_workers = 0
        self._most_workers = 0
        self._details: dict[str, int] = {}
        self._files: dict[FileSystemSeen, int] = {}
        self._more: list[tuple[int, int]] = []
        """Detail and file of each row."""
        self._main_waits: dict[str, float] = {}
        """State of the main thread → seconds, for the live line."""
        self._calls: dict[tuple[int, int], _Calls] = {}
        self._io: dict[int, tuple[dict[str, int], dict[str, int]]] = {}
        self._pipes: set[str] = set()
        self._mounts = parse_mountinfo(read_text(f"/proc/{process.pid}/mountinfo") or "")
        self._folders: dict[str, FileSystemSeen | None] = {}
        self._connected: dict[int, bool] = {}
        self._names = Names(process.pid, enabled=with_names)
        self._named: list[int] = []
        """Workers that are asked for names."""
        self._ended = False
        self._begun_s = time.monotonic()
        self._last_s = self._begun_s
        self._received: dict[int, tuple[int, int]] = {}
        self._cpus = _affinity(process.pid)
        self._machine = cpu_times_now(self._cpus)
        quota = cpu_quota(pid=process.pid)
        self._quota, self._counters = None if quota is None else quota.cpus, quota_counters(pid=process.pid)
        self._throttling = throttling_by(self._counters)
        self._pressure = _pressure_s()
        self.scan()
        self._first_workers = len(self._workers)

    @property
    def ended(self) -> bool:
        return self._ended

    # -- looking -----------------------------------------------------------------------------------------

    def scan(self) -> None:
        """Find new workers and threads, and read the counters that are read seldom."""
        now = process_of(self.process.pid)
        if now is None or now.begun_ticks != self.process.begun_ticks or now.state in "ZX":
            self._ended = True
            return
        alive = [one.pid for one in workers_of(_with_children(now))]
        for pid in alive:
            self._workers.setdefault(pid, len(self._workers))
        self._most_workers = max(self._most_workers, len(alive))
        for pid in [self.process.pid, *alive]:
            self._scan_threads(pid)
            with suppress(OSError, ValueError):
                io = parse_io(Path(f"/proc/{pid}/io").read_bytes())
                self._io[pid] = (self._io[pid][0] if pid in self._io else io, io)
        for pid in [one for one in self._by_process if one not in alive and one != self.process.pid]:
            for thread in self._by_process.pop(pid):
                thread.files.close()
        self._pipes = _pipes_of(self.process.pid)
        self._connected.clear()
        self._count_received({self.process.pid, *alive})

    def _scan_threads(self, pid: int) -> None:
        try:
            found = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
        except OSError:
            return
        known = self._by_process.setdefault(pid, [])
        for thread in found:
            if (pid, thread) not in self._threads:
                made = self._opened(pid, thread)
                if made is not None:
                    self._threads[pid, thread] = made
                    known.append(made)
            with suppress(OSError, ValueError):
                io = parse_io(Path(f"/proc/{pid}/task/{thread}/io").read_bytes())
                seen = self._calls.setdefault(
                    (pid, thread), _Calls(0, 0, *((io["syscr"], io["syscw"]) if self._is_first else (0, 0)))
                )
                seen.reads, seen.writes = io["syscr"], io["syscw"]
            if (pid, thread) in self._threads:
                with suppress(OSError, ValueError):
                    self._count(self._threads[pid, thread])

    @property
    def _is_first(self) -> bool:
        return self._last_s == self._begun_s

    def _opened(self, pid: int, thread: int) -> _Thread | None:
        name = (read_text(f"/proc/{pid}/task/{thread}/comm") or "").strip()
        worker = self._workers.get(pid)
        role: Role = "worker" if worker is not None else "consumer"
        if pid != thread:
            role = "pin" if name == "pt_data_pin" else "autograd" if name.startswith("pt_autograd") else "other"
        try:
            files = ThreadFiles(pid, thread, with_calls=self._with_calls)
        except (OSError, ValueError):
            return None
        number = self._rows.add_thread(SampledThread(role, worker, name))
        return _Thread(number, pid, thread, pid == thread, files, worker)

    def _count(self, one: _Thread) -> None:
        folder = Path(f"/proc/{one.process}/task/{one.thread}")
        words, fields = (folder / "schedstat").read_text().split(), stat_fields((folder / "stat").read_bytes())
        now = (*(int(word) for word in words), int(fields[9]), int(fields[12]))
        if not one.begun:
            one.begun = now if self._is_first else (0,) * len(now)
        one.last = now

    def look(self, weight_s: float, draw: random.Random) -> None:
        """Look at the main threads of all processes; at a process's others where its main thread waits for a lock."""
        self._last_s = now = time.monotonic()
        pids = [pid for pid in self._by_process if pid != self.process.pid]
        scale = 1.0
        if len(pids) > MOST_WORKERS:
            scale = len(pids) / MOST_WORKERS
            pids = draw.sample(pids, MOST_WORKERS)
        self._named = [pid for pid in self._named if pid in self._by_process]
        self._named += pids[: MOST_WORKERS - len(self._named)]
        may_be_named = [pid for pid in pids if pid in self._named]
        named = {self.process.pid, *([draw.choice(may_be_named)] if may_be_named else [])}
        for pid in [self.process.pid, *pids]:
            threads = self._by_process.get(pid, [])
            main = next((one for one in threads if one.is_main), None)
            if main is None:
                continue
            weight = weight_s * (scale if pid != self.process.pid else 1.0)
            state = self._look_at(main, now, weight, named=pid in named)
            pinned = pid == self.process.pid
            for one in threads:
                if not one.is_main and (state == "lock" or (pinned and self._rows.threads[one.number].role == "pin")):
                    self._look_at(one, now, weight)

    def _look_at(self, one: _Thread, now: float, weight_s: float, *, named: bool = False) -> str | None:
        try:
            seen = one.files.look()
            place = self._names.of(one.process, one.thread) if named else None
        except (OSError, ValueError):  # it has ended: the next scan drops it
            return None
        detail, file = self._seen_in(one, seen)
        numbers = (
            self._details.setdefault(detail, len(self._details)),
            UNKNOWN if file is None else self._files.setdefault(file, len(self._files)),
        )
        if one.process == self.process.pid and one.is_main:
            self._main_waits[seen.state] = self._main_waits.get(seen.state, 0.0) + weight_s
        is_gil = seen.detail == PRIVATE_LOCK and self._names.waits_for_gil(one.process, seen.lock)
        for state, fraction in (("gil", 1.0),) if is_gil else seen.parts():
            if fraction > 0:
                self._rows.add(now, one.number, state, weight_s * fraction, place)
                self._more.append(numbers)
        return "lock" if seen.state == "lock" and seen.detail != SHARED_LOCK else None

    def _seen_in(self, one: _Thread, seen: Look) -> tuple[str, FileSystemSeen | None]:
        """(detail, file system) of what it waits for."""
        if seen.target in self._pipes and one.worker is not None:
            return INDEX, None
        if seen.state == "other" and seen.detail == "poll":
            if one.process not in self._connected:
                self._connected[one.process] = _has_connections(one.process)
            if not self._connected[one.process]:
                return INDEX, None  # a queue's poll: it has no connection to wait for
        if seen.state in ("file", "fault") and seen.target.startswith("/"):
            return seen.detail, self._file_system(seen.target)
        return seen.detail, None

    def _file_system(self, path: str) -> FileSystemSeen | None:
        folder = os.path.dirname(path)
        if folder not in self._folders:
            mount = choose_mount(self._mounts, path, "")
            self._folders[folder] = None if mount is None else FileSystemSeen(mount.mount_point, mount.type)
        return self._folders[folder]

    # -- counters ----------------------------------------------------------------------------------------

    def _count_received(self, pids: set[int]) -> None:
        counted = received_by_socket()
        if counted is None:
            return
        for pid in pids:
            total = sum(counted.get(inode, 0) for inode in _sockets_of(pid))
            first = self._received.get(pid, (total, total))[0]
            self._received[pid] = (first, max(total, self._received.get(pid, (0, 0))[1]))

    def _growth(self, pids: Sequence[int]) -> Io | None:
        pairs = [self._io[pid] for pid in pids if pid in self._io]
        if not pairs:
            return None
        syscr, read, asked = (
            sum(now[name] - before[name] for before, now in pairs) for name in ("syscr", "read_bytes", "rchar")
        )
        return Io(syscr, read, asked)

    def _batches(self) -> int | None:
        """Batches that were asked of the workers: a queue's feeding thread writes one message for each, and no other
        thread only writes. Workers write as many, or a multiple: a call more for each array that they share."""
        main = self.process.pid
        asked = sum(one.only_writes for (pid, thread), one in self._calls.items() if pid == main and thread != main)
        sent = sum(
            one.only_writes for (pid, thread), one in self._calls.items() if pid in self._workers and thread != pid
        )
        slack = 4 + 4 * len(self._workers)
        calls = max(1, round(sent / asked)) if asked else 1
        return asked if asked and abs(sent / calls - asked) <= slack + 0.05 * asked else None

    def _processors(self) -> Processors:
        now = cpu_times_now(self._cpus)
        before = self._machine
        throttled = throttled_between(self._throttling, throttling_by(self._counters))
        pressure = _pressure_s()
        return Processors(
            usable=len(self._cpus),
            machine=os.cpu_count() or len(self._cpus),
            quota=self._quota,
            throttled_s=None if throttled is None else throttled.stopped_s,
            busy_s=now.busy_s - before.busy_s if now and before else None,
            stolen_s=now.steal_s - before.steal_s if now and before else None,
            pressure_s=None if pressure is None or self._pressure is None else pressure - self._pressure,
        )

    def facts(self, gpus: tuple[GpuUse, ...] = ()) -> JobFacts:
        """All that was seen so far."""
        if not self._ended:
            self.scan()
        window_s = time.monotonic() - self._begun_s
        more = np.array(self._more, np.int64).reshape(-1, 2)
        rank, world = rank_of(self.process.pid)
        main = self._threads.get((self.process.pid, self.process.pid))
        uses = [self._use(one) for one in self._threads.values() if one.last]
        workers = [pid for pid in self._io if pid in self._workers]
        received = [now - first for pid, (first, now) in self._received.items() if pid in self._workers or not workers]
        return JobFacts(
            pid=self.process.pid, command=shlex.join(self.process.words) or self.process.command,
            age_s=self.process.age_s, window_s=window_s,
            workers=self._most_workers, workers_started=len(self._workers) - self._first_workers,
            rights=Rights(
                main is not None and main.files.sees_calls, self.process.pid in self._io, self._names.problem
            ),
            samples=self._rows.samples(), detail=more[:, 0], details=tuple(self._details), file=more[:, 1],
            files=tuple(self._files), uses=tuple(uses),
            processors=self._processors(), consumer_io=self._growth([self.process.pid]),
            workers_io=self._growth(workers), received_bytes=sum(received) if self._received else None,
            batches=self._batches() if self._workers else None, consumer_waited_s=last_ran_s(self.process.pid),
            gpus=gpus, rank=rank, world=world, ended=self._ended,
        )  # fmt: skip

    def _use(self, one: _Thread) -> ThreadUse:
        ran, queued, wakes, faults, system = (max(0, now - old) for now, old in zip(one.last, one.begun, strict=True))
        thread = self._rows.threads[one.number]
        return ThreadUse(
            thread.role, one.worker, thread.name, one.is_main, ran / 1e9, queued / 1e9, wakes, faults,
            system / TICKS_PER_S,
        )  # fmt: skip

    def so_far(self) -> str:
        """What was seen, in a few words for the live line."""
        waits = sum(weight for state, weight in self._main_waits.items() if state in ("pipe", "lock"))
        whole = sum(self._main_waits.values())
        share = f"waits {waits / whole:.0%}" if whole and self._workers else "looking"
        return f"PID {self.process.pid}: {share}, {len(self._workers)} workers"

    def close(self) -> None:
        """Close the files of its threads."""
        for thread in self._threads.values():
            thread.files.close()
        self._names.close()


def _with_children(job: Process) -> Process:
    """With those that it has now, and those of its fork server."""
    job.children = _children(job)
    for child in job.children:
        if "forkserver" in child.command:
            child.children = _children(child)
    return job


def _children(process: Process) -> list[Process]:
    return [child for pid in children_of(process.pid) if (child := process_of(pid)) is not None]


def _affinity(pid: int) -> frozenset[int]:
    with suppress(OSError):
        return frozenset(os.sched_getaffinity(pid))
    return frozenset(os.sched_getaffinity(0))


def _pressure_s() -> float | None:
    try:
        return parse_pressure(Path("/proc/pressure/cpu").read_bytes())
    except (OSError, ValueError):
        return None


def _links(pid: int) -> list[str]:
    """What its open files are."""
    found = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _pipes_of(pid: int) -> set[str]:
    return {link for link in _links(pid) if link.startswith("pipe:")}


def _sockets_of(pid: int) -> list[int]:
    return [int(link[len("socket:[") : -1]) for link in _links(pid) if link.startswith("socket:[")]


def _has_connections(pid: int) -> bool:
    inodes = {str(inode) for inode in _sockets_of(pid)}
    if not inodes:
        return False
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in (read_text(f"/proc/{pid}/net/{name}") or "").splitlines()[1:]:
            if line.split()[9] in inodes:
                return True
    return False


def last_ran_s(pid: int) -> float | None:
    """How long ago the main thread last began to run (`se.exec_start` of /proc/PID/sched); None where the kernel does
    not say."""
    own, other = (read_text(f"/proc/{which}/sched") or "" for which in ("self", pid))
    found = [re.search(r"se\.exec_start\s*:\s*([\d.]+)", text) for text in (own, other)]
    if found[0] is None or found[1] is None:
        return None
    return max(0.0, (float(found[0][1]) - float(found[1][1])) / 1e3)


# -- connections: sock_diag(7) ---------------------------------------------------------------------------

SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, NLMSG_DONE, NLMSG_ERROR = 20, 0x301, 3, 2
INET_DIAG_INFO, ALL_STATES = 2, 0xFFF
NETLINK_SOCK_DIAG = 4
HEADER_BYTES, DIAG_BYTES, INODE_AT = 16, 72, 68
"""Of nlmsghdr and inet_diag_msg, and where the inode stands in it (include/uapi/linux/inet_diag.h)."""


def received_by_socket() -> dict[int, int] | None:
    """Inode → bytes that a TCP connection of this network namespace received; None where the kernel does not say."""
    found: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
            link.settimeout(1.0)
            for family in (socket.AF_INET, socket.AF_INET6):
                body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ALL_STATES)
                size = HEADER_BYTES + len(body)
                link.send(struct.pack("=IHHII", size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 0, 0) + body)
                while _take(link.recv(1 << 18), found):
                    pass
    except OSError:
        return None
    return found


def _take(data: bytes, found: dict[int, int]) -> bool:
    """Whether more follows."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        if kind in (NLMSG_DONE, NLMSG_ERROR) or size < HEADER_BYTES:
            return False
        (inode,) = struct.unpack_from("=I", data, at + HEADER_BYTES + INODE_AT)
        place, end = at + HEADER_BYTES + DIAG_BYTES, at + size
        while place + 4 <= end:
            length, name = struct.unpack_from("=HH", data, place)
            if name == INET_DIAG_INFO and length >= 4 + INFO_BYTES:
                (found[inode],) = struct.unpack_from("=Q", data, place + 4 + RECEIVED_AT)
            place += (max(length, 4) + 3) & ~3
        at += (size + 3) & ~3
    return True


# -- the loop --------------------------------------------------------------------------------------------


@dataclass
class Looked:
    """What a round of looking cost."""

    jobs: list[Job]
    cpu_s: float = 0.0
    wall_s: float = 0.0
    interrupted: bool = False
    refused: list[str] = field(default_factory=list)


def watch_jobs(jobs: list[Job], seconds: float, tell: Callable[[float, Looked], None]) -> Looked:
    """Look until the time is over, all jobs have ended, or Ctrl-C; `tell` is called once a second with the part of the
    time that has passed."""
    looked = Looked(jobs)
    begun_cpu, begun = time.process_time(), time.monotonic()
    draw = random.Random()
    scanned, scan_s = begun, 0.0
    costs: deque[float] = deque([FIRST_COST_S], RECENT)
    try:
        while (now := time.monotonic()) - begun < seconds and not all(job.ended for job in jobs):
            if now - scanned >= max(SCAN_S, scan_s / SCAN_FRACTION):
                scanned, before = now, time.process_time()
                for job in jobs:
                    if not job.ended:
                        job.scan()
                scan_s = time.process_time() - before
                tell((now - begun) / seconds, looked)
            gap_s = min(max(statistics.median(costs) / COST_FRACTION, LEAST_GAP_S), MOST_GAP_S)
            time.sleep(min(draw.expovariate(1 / gap_s), max(0.0, begun + seconds - now)))
            before = time.process_time()
            for job in jobs:
                if not job.ended:
                    job.look(gap_s, draw)
            costs.append(time.process_time() - before)
    except KeyboardInterrupt:
        looked.interrupted = True
    looked.cpu_s, looked.wall_s = time.process_time() - begun_cpu, time.monotonic() - begun
    return looked


def gpu_numbers(pid: int) -> list[int]:
    """The GPUs that a process has open."""
    return sorted({int(found[1]) for link in _links(pid) if (found := NVIDIA.search(link))})


class Gpus:
    """How busy the GPUs are that jobs have open, by NVML; unknown where it is not there."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._numbers = {pid: gpu_numbers(pid) for pid in pids}
        self._nvml: Any = None
        self._busy: dict[int, list[float]] = {}
        self._names: dict[int, str] = {}
        if any(self._numbers.values()):
            with suppress(UnavailableError):
                self._nvml = open_nvml()

    def read(self) -> None:
        """Take one reading of each."""
        if self._nvml is None:
            return
        for number in {number for numbers in self._numbers.values() for number in numbers}:
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
                self._busy.setdefault(number, []).append(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0)
                self._names.setdefault(number, str(self._nvml.nvmlDeviceGetName(handle)))
            except self._nvml.NVMLError:  # not known of this one: it stays without a figure
                continue

    def of(self, pid: int) -> tuple[GpuUse, ...]:
        """The job's GPUs, and how busy they were on average."""
        return tuple(
            GpuUse(
                self._names.get(number, f"GPU {number}"),
                float(np.mean(self._busy[number])) if number in self._busy else None,
            )
            for number in self._numbers.get(pid, [])
        )

    def close(self) -> None:
        """May be called twice."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None
