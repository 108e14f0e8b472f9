"""Bytes read, CPU time, memory and run-queue delay of a process and its descendants, from /proc/PID.

**Children that end.** A parent's `io`, `cutime` and `cstime` take over a child's totals when it waits
for it, so the sum over the living is right as long as each tick sees a child either alive or taken
over: parents are read before their children, and a tick during which a process vanished is read
again. A process that nobody in the tree waited for (SIGCHLD ignored, parent gone first) takes its
totals with it: an offset then keeps the sums from going backwards.

**Cost.** Files stay open. Each tick reads `io` and `stat` of every process: 0.1 ms for nine processes
(psutil: 1.7 ms), 0.2 ms with cold CPU caches. New processes and the run-queue delay of every thread
are searched every SCAN_INTERVAL_S, since counters lose nothing if read late. `smaps_rollup`
walks the page tables under the process's mmap lock (about 10 ms a gigabyte): it is read every
PSS_INTERVAL_S. Both are spaced out further where they would cost more than RARE_COST_FRACTION.

Fields: Documentation/filesystems/proc.rst, Documentation/scheduler/sched-stats.rst of the Linux
kernel, proc(5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from loaderbench.errors import UnavailableError
from loaderbench.originals import os, time
from loaderbench.recording.caveats import Caveat
from loaderbench.samplers.base import Channel
from loaderbench.samplers.procfile import ProcFile, stat_fields

SCAN_INTERVAL_S = 1.0
PSS_INTERVAL_S = 5.0
PSS_DELAY_S = 2.0
"""Seconds before the first reading, so that the workers have started."""
MOST_PASSES = 20
"""Tries to read all of a tree while none of its processes ends."""
LEAST_CUT = 4000
"""Bytes of a read below which a list of children is whole: the kernel fills a page, of 4 KiB or more."""
RARE_COST_FRACTION = 0.001
"""At most this fraction of one core is used to find processes, and as much to read `smaps_rollup`."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessTimes:
    """From /proc/PID/stat. CPU times include the children that were waited for."""

    state: str
    """`Z`: ended, not yet waited for."""
    parent_pid: int
    major_faults: int
    """Pages that it had to wait for; those of children that were waited for included."""
    user_s: float
    system_s: float
    rss_bytes: int
    """Resident pages, those shared with other processes included."""


def parse_stat(text: bytes) -> ProcessTimes:
    """/proc/PID/stat → times and memory. Pure."""
    fields = stat_fields(text)
    return ProcessTimes(
        state=fields[0].decode(),
        parent_pid=int(fields[1]),
        major_faults=int(fields[9]) + int(fields[10]),
        user_s=(int(fields[11]) + int(fields[13])) / _TICKS_PER_S,
        system_s=(int(fields[12]) + int(fields[14])) / _TICKS_PER_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def parse_io(text: bytes) -> dict[str, int]:
    """/proc/PID/io → rchar, wchar, syscr, syscw, read_bytes, write_bytes, cancelled_write_bytes. Pure.

    `rchar` is what read calls returned, from the page cache too, and misses mmapped reads.
    `read_bytes` is what was fetched from a block device on the process's behalf; it is 0 on FUSE and
    tmpfs and only a hint on NFS.
    """
    values = {}
    for line in text.decode().splitlines():
        name, _, value = line.partition(":")
        values[name] = int(value)
    return values


def parse_schedstat(text: bytes) -> int:
    """/proc/PID/task/TID/schedstat → ns the thread was runnable but waited for a CPU. Pure."""
    return int(text.split()[1])


def runqueue_off_reason(path: str = "/proc/self/schedstat") -> str | None:
    """Why the kernel does not account run-queue delay, with the way to enable it; None where it does.

    With its accounting off the kernel writes "0 0 0" for every process, though this one has run.
    """
    try:
        num_runs = int(_read_file(path).split()[2])
    except (OSError, ValueError, IndexError):
        return f"{path} is missing; use a kernel with CONFIG_SCHED_INFO"
    if num_runs == 0:
        return f"{path} holds only zeros; enable it with `sysctl kernel.task_delayacct=1` or boot with `delayacct`"
    return None


def parse_pss(text: bytes) -> int:
    """/proc/PID/smaps_rollup → proportional set size in bytes: shared pages divided among their users. Pure.

    Raises:
        ValueError: no such line (a zombie has no memory map).
    """
    for line in text.splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("smaps_rollup has no Pss line")


def pss_of(pids: Sequence[int]) -> tuple[int | None, str | None]:
    """(PSS of the processes together, None) or (None, why it is not known). Pages that they share count once."""
    total = 0
    for pid in pids:
        path = f"/proc/{pid}/smaps_rollup"
        try:
            total += parse_pss(_read_file(path))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            return None, f"{path}: {why}; run as the user who owns the process, on Linux 4.14 or newer"
    return total, None


class _Process:
    """One live process of the tree, its files kept open."""

    def __init__(self, pid: int, with_io: bool, with_runqueue: bool, with_children: bool) -> None:
        self.pid = pid
        self.with_children = with_children
        self.with_runqueue = with_runqueue
        self.stat = ProcFile(f"/proc/{pid}/stat")
        self.io: ProcFile | None = None
        self._runqueue_ns_by_thread: dict[int, int] = {}
        self._ended_threads_runqueue_ns = 0
        try:
            if with_io:
                self.io = ProcFile(f"/proc/{pid}/io")
        except OSError:
            self.stat.close()
            raise

    def scan(self) -> list[int]:
        """Update the run-queue delay of each thread; returns the pids of the children.

        A thread's files are opened and closed: the number of threads has no limit, that of file descriptors has.
        """
        children: list[int] = []
        delays_ns: dict[int, int] = {}
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            folder = f"/proc/{self.pid}/task/{thread}"
            try:
                if self.with_runqueue:
                    delays_ns[int(thread)] = parse_schedstat(_read_file(f"{folder}/schedstat"))
                if self.with_children:
                    children += _children_in(folder)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread ended after it was listed
        for thread_id, last_ns in self._runqueue_ns_by_thread.items():
            if delays_ns.get(thread_id, -1) < last_ns:  # ended; another thread may have its number now
                self._ended_threads_runqueue_ns += last_ns
        self._runqueue_ns_by_thread = delays_ns
        return children

    @property
    def runqueue_ns(self) -> int:
        """Run-queue delay as of the last scan; a thread that has ended counts with its last known value."""
        return sum(self._runqueue_ns_by_thread.values()) + self._ended_threads_runqueue_ns

    def close(self) -> None:
        self.stat.close()
        if self.io is not None:
            self.io.close()


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)


def _children_in(folder: str) -> list[int]:
    """The pids in a thread's `children` (proc(5)), of which the kernel hands out about a page a call."""
    descriptor, text = os.open(f"{folder}/children", os.O_RDONLY | os.O_CLOEXEC), b""
    try:
        while True:
            part = os.read(descriptor, 65536)
            text += part
            if len(part) < LEAST_CUT:
                return [int(pid) for pid in text.split()]
    finally:
        os.close(descriptor)


def _children_of_all() -> dict[int, list[int]]:
    """Parent → children over all processes of the machine: for kernels without CONFIG_PROC_CHILDREN."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            parent = parse_stat(_read_file(f"/proc/{name}/stat")).parent_pid
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(name))
    return children


def tree_read_bytes(root_pid: int) -> int | None:
    """`read_bytes` of a process and its descendants now (tree_io); None where unknown."""
    return tree_io(root_pid, "read_bytes")


def tree_io(root_pid: int, name: str) -> int | None:
    """A figure of proc(5), io, of a process and its descendants now, those that were waited for included; None where
    unknown.

    A pass in which a process ends is made again: whether its parent's total has its bytes by then cannot be told.
    """
    of_all = None if _tells_children() else _children_of_all()
    for _ in range(MOST_PASSES):
        total, waiting = 0, [root_pid]
        try:
            while waiting:
                pid = waiting.pop()
                total += parse_io(_read_file(f"/proc/{pid}/io"))[name]
                waiting += of_all.get(pid, []) if of_all is not None else children_of(pid)
            return total
        except (FileNotFoundError, ProcessLookupError):
            continue
        except (OSError, KeyError):
            return None
    return None


def tree_cpu_s(root_pid: int) -> list[float]:
    """CPU seconds of a process and of each of its descendants now, each with children that it waited for. Those that
    end meanwhile are left out."""
    of_all = None if _tells_children() else _children_of_all()
    found, waiting = list[float](), [root_pid]
    while waiting:
        pid = waiting.pop()
        try:
            times = parse_stat(_read_file(f"/proc/{pid}/stat"))
            waiting += of_all.get(pid, []) if of_all is not None else children_of(pid)
        except OSError:
            continue
        found.append(times.user_s + times.system_s)
    return found


def asked_for(pids: Collection[int]) -> tuple[int, int] | None:
    """(bytes that read calls of these processes returned, major page faults) until now; None where one does not tell.
    Both hold those of children that were waited for."""
    asked_bytes = faults = 0
    try:
        for pid in pids:
            asked_bytes += parse_io(_read_file(f"/proc/{pid}/io"))["rchar"]
            faults += parse_stat(_read_file(f"/proc/{pid}/stat")).major_faults
    except (OSError, KeyError):
        return None
    return asked_bytes, faults


def wanted_processors_s() -> float | None:
    """For how long the process's first thread has run on a processor or waited for one; None where the kernel does not
    count that."""
    if runqueue_off_reason() is not None:
        return None
    return sum(_ran_and_queued("/proc/self/schedstat")) / 1e9


def _ran_and_queued(path: str) -> tuple[int, int]:
    """A thread's ns on a processor, and runnable without one (proc(5), schedstat: fields 1 and 2)."""
    ran, queued, _ = _read_file(path).split()
    return int(ran), int(queued)


def threads_of_tree(root_pid: int) -> dict[tuple[int, int], tuple[int, int]]:
    """(process, thread) → (ns on a processor, ns runnable without one) of a process and its descendants; all zeros
    where the kernel does not count them (`runqueue_off_reason`). Threads and processes that end meanwhile are left
    out."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    of_all = None if _tells_children() else _children_of_all()
    waiting = [root_pid]
    while waiting:
        pid = waiting.pop()
        folder = f"/proc/{pid}/task"
        try:
            threads = os.listdir(folder)
        except (FileNotFoundError, ProcessLookupError):
            continue
        waiting += [] if of_all is None else of_all.get(pid, [])
        for name in threads:
            try:
                found[pid, int(name)] = _ran_and_queued(f"{folder}/{name}/schedstat")
                if of_all is None:
                    waiting += _children_in(f"{folder}/{name}")
            except (FileNotFoundError, ProcessLookupError):
                continue  # this thread ended: what is left of its process and below it is there
    return found


@lru_cache(maxsize=1)
def _tells_children() -> bool:
    """Whether this kernel tells the children of a thread (CONFIG_PROC_CHILDREN)."""
    return Path("/proc/thread-self/children").exists()


def children_of(pid: int) -> list[int]:
    """The pids of a process's children now, on kernels that tell them (CONFIG_PROC_CHILDREN)."""
    children: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            children += _children_in(f"/proc/{pid}/task/{thread}")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return children


class _Growing:
    """Sums that never go backwards: an offset makes up for the totals of a vanished process."""

    def __init__(self, num: int) -> None:
        self._last = [0.0] * num
        self._offset = [0.0] * num

    def update(self, sums: Sequence[float]) -> list[float]:
        for at, value in enumerate(sums):
            missing = self._last[at] - (value + self._offset[at])
            if missing > 0:
                self._offset[at] += missing
            self._last[at] = value + self._offset[at]
        return list(self._last)


class ProcessTreeSampler:
    """A process with all its descendants: bytes, CPU seconds, memory, run-queue delay, number of processes.

    `caveats` tells which of the channels this kernel cannot fill and how to enable them.
    """

    def __init__(self, root_pid: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Raises UnavailableError where there is no such process or its /proc files may not be read."""
        self.root_pid = root_pid
        self._clock = clock
        self.caveats: list[Caveat] = []
        folder = f"/proc/{root_pid}"
        try:
            _read_file(f"{folder}/stat")
        except OSError as error:
            raise UnavailableError(
                f"{folder} cannot be read ({error.strerror}); check that process {root_pid} runs"
            ) from error
        self._with_io = self._probe(
            f"{folder}/io",
            parse_io,
            "process bytes are not counted",
            "run as the user who owns the process, on a kernel with CONFIG_TASK_IO_ACCOUNTING",
        )
        off = runqueue_off_reason()
        self._with_runqueue = off is None
        if off is not None:
            self.caveats.append(Caveat("sampler_missing", {"reason": f"the run-queue delay is not counted: {off}"}))
        self._with_pss = self._probe(
            f"{folder}/smaps_rollup",
            parse_pss,
            "memory without double counting (PSS) is unknown, only RSS is known",
            "run as the user who owns the process, on Linux 4.14 or newer",
        )
        self._with_children_files = _tells_children()
        self._processes: dict[int, _Process] = {}
        self._counted = _Growing(4)
        self._ended_runqueue_ns = 0
        self._scan_due_s = -float("inf")
        self._pss_due_s = self._clock() + PSS_DELAY_S
        self.channels: Sequence[Channel] = (
            Channel("process_rchar_bytes", "bytes", "counter", "/proc/PID/io rchar, process tree"),
            Channel("process_read_bytes", "bytes", "counter", "/proc/PID/io read_bytes, process tree"),
            Channel("process_cpu_user_s", "s", "counter", "/proc/PID/stat utime + cutime, process tree"),
            Channel("process_cpu_system_s", "s", "counter", "/proc/PID/stat stime + cstime, process tree"),
            Channel("process_rss_bytes", "bytes", "gauge", "/proc/PID/stat rss, process tree, shared pages in each"),
            Channel("num_processes", "processes", "gauge", "/proc/PID/task/TID/children"),
            Channel("process_runqueue_s", "s", "counter", "/proc/PID/task/TID/schedstat field 2, process tree"),
            Channel("process_pss_bytes", "bytes", "gauge", "/proc/PID/smaps_rollup Pss, process tree"),
        )

    def _probe(self, path: str, parse: Callable[[bytes], object], loss: str, enable: str) -> bool:
        try:
            parse(_read_file(path))
        except (OSError, ValueError, IndexError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self.caveats.append(Caveat("sampler_missing", {"reason": f"{loss}: {path}: {why}; {enable}"}))
            return False
        return True

    def pids(self) -> list[int]:
        """The tree's processes at the last scan, parents before children."""
        return list(self._processes)

    def _add(self, pid: int) -> bool:
        if pid in self._processes:
            return True
        try:
            self._processes[pid] = _Process(pid, self._with_io, self._with_runqueue, self._with_children_files)
        except (FileNotFoundError, ProcessLookupError):
            return False  # it has ended already: its parent's totals include it
        return True

    def _drop(self, pid: int) -> None:
        process = self._processes.pop(pid)
        self._ended_runqueue_ns += process.runqueue_ns
        process.close()

    def _scan(self) -> None:
        """Find new processes, breadth first so that parents come before their children."""
        of_all = None if self._with_children_files else _children_of_all()
        self._add(self.root_pid)
        queue = list(self._processes)
        while queue:
            pid = queue.pop(0)
            try:
                children = self._processes[pid].scan()
            except (FileNotFoundError, ProcessLookupError):
                continue  # gone: the next tick notices it
            if of_all is not None:
                children = of_all.get(pid, [])
            for child in children:
                if child not in self._processes and self._add(child):
                    queue.append(child)

    def _read_all(self) -> list[tuple[ProcessTimes, dict[str, int]]]:
        """Times and io of every living process, from one pass in which none vanished."""
        while True:
            rows = []
            gone = []
            for pid, process in self._processes.items():
                try:
                    times = parse_stat(process.stat.read_short())
                    rows.append((times, parse_io(process.io.read_short()) if process.io is not None else {}))
                except (ProcessLookupError, FileNotFoundError):
                    gone.append(pid)
            if not gone:
                return rows
            for pid in gone:
                self._drop(pid)

    def _runqueue_s(self) -> float:
        alive = sum(process.runqueue_ns for process in self._processes.values())
        return (alive + self._ended_runqueue_ns) / 1e9

    def _pss(self, now_s: float) -> int | None:
        """The tree's PSS where a reading is due and every process gives one, else None."""
        if not self._with_pss or now_s < self._pss_due_s:
            return None
        begun_ns = time.thread_time_ns()
        total: int | None = 0
        for pid in self._processes:
            try:
                total = (total or 0) + parse_pss(_read_file(f"/proc/{pid}/smaps_rollup"))
            except (OSError, ValueError):
                total = None  # a process is ending: better no sum this time than a wrong one
                break
        cost_s = (time.thread_time_ns() - begun_ns) / 1e9
        self._pss_due_s = now_s + max(PSS_INTERVAL_S, cost_s / RARE_COST_FRACTION)
        return total

    def read(self) -> Sequence[float | None]:
        now_s = self._clock()
        runqueue_s = None
        if now_s >= self._scan_due_s:
            begun_ns = time.thread_time_ns()
            self._scan()
            cost_s = (time.thread_time_ns() - begun_ns) / 1e9
            self._scan_due_s = now_s + max(SCAN_INTERVAL_S, cost_s / RARE_COST_FRACTION)
            runqueue_s = self._runqueue_s() if self._with_runqueue else None
        rows = self._read_all()
        if not rows:
            return (None,) * len(self.channels)
        sums = [
            sum(io.get("rchar", 0) for _, io in rows),
            sum(io.get("read_bytes", 0) for _, io in rows),
            sum(times.user_s for times, _ in rows),
            sum(times.system_s for times, _ in rows),
        ]
        rchar, read_bytes, user_s, system_s = self._counted.update(sums)
        return (
            rchar if self._with_io else None,
            read_bytes if self._with_io else None,
            user_s,
            system_s,
            sum(times.rss_bytes for times, _ in rows),
            sum(times.state != "Z" for times, _ in rows),
            runqueue_s,
            self._pss(now_s),
        )

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
