"""What a thread is doing at this instant, from /proc: for threads of this process and of others.

Four files of /proc/PID/task/TID are kept open. `schedstat` and `stat` may be read by anyone; `wchan` needs the right to
read the process (ptrace(2), PTRACE_MODE_READ: the same user), `syscall` the right to attach to it, which Yama
(`ptrace_scope` 1) and containers without SYS_PTRACE refuse. With `syscall`, the call and its file are known; with
`wchan` alone, the function of the kernel that waits; with neither, the letter of the state.

The kernel does not say of another process's thread whether it runs or is queued for a processor: a thread that is ready
to run is split by what its counters grew since the look before (`ran_s`, `queued_s`). Where calls are not seen, a page
fault and a read wait in the same functions: they differ by the thread's count of major faults.

Cost (2 busy processors): 8 µs for a thread that runs, 14 for one that waits, 17 to 23 where its file is looked up.

Fields: proc(5); Documentation/filesystems/proc.rst and Documentation/scheduler/sched-stats.rst of the Linux kernel.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaderbench.originals import os, time
from loaderbench.samplers.procfile import ProcFile, stat_fields

if TYPE_CHECKING:  # it needs numpy, and a process that only samples does not
    from loaderbench.recording.thread_samples import State

READS = {
    "x86_64": {0, 17, 19, 295, 327}, "aarch64": {63, 65, 67, 69, 286},
}  # fmt: skip
"""read, readv, pread64, preadv, preadv2: the first argument is a file (asm/unistd_64.h, asm-generic/unistd.h)."""
WRITES = {
    "x86_64": {1, 18, 20, 40, 74, 75, 277, 296, 328}, "aarch64": {64, 66, 68, 70, 71, 82, 83, 84, 287},
}  # fmt: skip
"""write, writev, pwrite64, pwritev, pwritev2, sendfile, fsync, fdatasync, sync_file_range."""
PATHS = {
    "x86_64": {2, 3, 4, 5, 6, 8, 21, 78, 82, 83, 87, 89, 217, 257, 262, 263, 264, 267, 269, 316, 332, 437, 439},
    "aarch64": {34, 35, 38, 43, 44, 48, 56, 57, 61, 62, 78, 79, 80, 276, 291, 437, 439},
}
"""open, openat, close, stat, access, readlink, getdents, rename, unlink, mkdir and their like."""
SOCKETS = {
    "x86_64": {42, 43, 44, 45, 46, 47, 288, 299, 307},
    "aarch64": {202, 203, 206, 207, 211, 212, 242, 243, 269},
}
"""connect, accept, sendto, recvfrom, sendmsg, recvmsg, accept4, recvmmsg, sendmmsg."""
POLLS = {"x86_64": {7, 271}, "aarch64": {73}}
SELECTS = {"x86_64": {23, 270}, "aarch64": {72}}
EPOLLS = {"x86_64": {232, 281, 441}, "aarch64": {22, 441}}
FUTEXES = {"x86_64": {202, 449, 455}, "aarch64": {98, 449, 455}}
LOCKS = {"x86_64": {72, 73}, "aarch64": {25, 32}}
"""fcntl (F_SETLKW), flock."""
SLEEPS = {"x86_64": {34, 35, 230}, "aarch64": {101, 115}}
"""pause, nanosleep, clock_nanosleep."""
IOCTL = {"x86_64": 16, "aarch64": 29}
MOST_POLLED = 64
"""Files of a poll that are looked at."""
POLLED = struct.Struct("ihh")
"""struct pollfd of poll(2)."""
SHARED_LOCK = "shared"
"""Detail of a lock between processes: a futex without FUTEX_PRIVATE_FLAG (futex(2))."""
PRIVATE_LOCK = "private"
FUTEX_PRIVATE_FLAG = 128
SLOW_FILE = re.compile(
    r"request_wait_answer|fuse_|nfs|rpc_|ceph|cifs|smb|9p_|lustre|cl_sync|^ll_|gpfs|folio_wait|wait_on_page|io_schedule"
    r"|filemap|blk|bio_|submit_bio|iomap|jbd2|ext4|xfs|btrfs|balance_dirty|lookup_slow|d_alloc_parallel|wait_on_buffer"
)
"""Kernel functions that wait for a file's data or name, by the names that Linux 4.18 to 6.18 give them."""
WAITS: tuple[tuple[State, str, re.Pattern[str]], ...] = (
    ("lock", "", re.compile(r"^(do_)?futex")),
    ("sleep", "", re.compile(r"nanosleep|^do_pause")),
    ("socket", "unix", re.compile(r"^(__)?unix_|^skb_wait_for_more")),
    ("socket", "tcp", re.compile(r"^wait_woken|^sk_wait|^tcp_|^inet_|^__?sk_stream|^udp_|^sk_stream_wait")),
    ("pipe", "", re.compile(r"^(anon_)?pipe_|^wait_for_partner|^eventfd_")),
    ("gpu", "", re.compile(r"nvidia|^_?nv_|^uvm_|^os_acquire|amdgpu|^kfd_")),
    ("other", "poll", re.compile(r"poll|^do_select|^ep_")),
)
"""State and detail by `wchan`, where the call is unknown. A poll may be of anything."""
STATE_OF_LETTER: dict[str, State] = {"R": "running", "D": "file"}
FAULTS_LAST_S = 1.0
"""So long after a major fault a wait for a file is taken for a fault, where calls are not seen."""
STOPPED, ENDED = "stopped", "ended"
"""Details of `other`: a signal or a debugger stopped it; it is a zombie."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a thread was doing, and what its counters grew since the look before (0 in the first)."""

    state: State
    """`running` for one that is ready to run: whether it runs is in `ran_s` and `queued_s`."""
    detail: str = ""
    """Of a lock PRIVATE_LOCK or SHARED_LOCK; of a socket `tcp` or `unix`; `poll`, STOPPED, ENDED; else the call or the
    kernel's function; empty where unknown."""
    target: str = ""
    """The file, as /proc/PID/fd names it; empty where unknown."""
    ran_s: float = 0.0
    queued_s: float = 0.0
    major_faults: int = 0
    wakes: int = 0
    """How often it was given a processor."""
    lock: int = 0
    """Address of the futex that it waits for; 0: none, or unknown."""

    def parts(self) -> tuple[tuple[State, float], ...]:
        """The states and the part of the look that each stands for."""
        return split_by_counters(self.state, self.ran_s, self.queued_s)


def split_by_counters(state: State, ran_s: float, queued_s: float) -> tuple[tuple[State, float], ...]:
    """States and the part of each. One that is ready to run is split by what its counters grew."""
    whole_s = ran_s + queued_s
    if state != "running" or not whole_s > 0:
        return ((state, 1.0),)
    return ("running", ran_s / whole_s), ("runnable", queued_s / whole_s)


class ThreadFiles:
    """The files of one thread, kept open: they stay tied to that very thread after another has its number."""

    def __init__(self, pid: int, thread: int, *, with_calls: bool = True) -> None:
        """`with_calls=False` leaves `syscall` alone, as without the right to read it.

        Raises:
            OSError: it has ended, or may not be seen.
        """
        self.pid, self.thread = pid, thread
        folder = f"/proc/{pid}/task/{thread}"
        self._machine = os.uname().machine
        self._stat = ProcFile(f"{folder}/stat")
        self._sched = _opened(f"{folder}/schedstat")
        self._wchan = _opened(f"{folder}/wchan")
        self._call = _opened(f"{folder}/syscall") if with_calls and self._machine in READS else None
        self._counters = self._counted(self._sched_numbers(), self._stat_fields())
        self._faulted_until_s = 0.0
        self._sockets: dict[str, bool] = {}
        self.sees_calls = self._call is not None and self._call_text() is not None

    def look(self) -> Look:
        """Raises OSError where it has ended."""
        fields = self._stat_fields()
        before, now = self._counters, self._counted(self._sched_numbers(), fields)
        self._counters = now
        ran_ns, queued_ns, wakes, faults = (max(0, new - old) for new, old in zip(now, before, strict=True))
        if faults:
            self._faulted_until_s = time.monotonic() + FAULTS_LAST_S
        self._lock = 0
        state, detail, target = self._waits_for(fields[0].decode())
        return Look(state, detail, target, ran_ns / 1e9, queued_ns / 1e9, faults, wakes, self._lock)

    def close(self) -> None:
        """May be called twice."""
        for file in (self._stat, self._sched, self._wchan, self._call):
            if file is not None:
                file.close()

    def _stat_fields(self) -> list[bytes]:
        return stat_fields(self._stat.read_short())

    def _sched_numbers(self) -> list[int]:
        return [0, 0, 0] if self._sched is None else [int(word) for word in self._sched.read_short().split()]

    def _counted(self, sched: list[int], fields: list[bytes]) -> tuple[int, ...]:
        return (*sched, int(fields[9]))

    def _call_text(self) -> str | None:
        try:
            return None if self._call is None else self._call.read_short().decode()
        except PermissionError:
            return None

    def _waits_for(self, letter: str) -> tuple[State, str, str]:
        if letter in ("R", "Z", "X", "T", "t"):
            state: State = "running" if letter == "R" else "other"
            return state, "" if letter == "R" else ENDED if letter in "ZX" else STOPPED, ""
        call = self._call_text() if self.sees_calls else None
        words = ["running"] if call is None else call.split()
        wchan = self._wchan_text()
        if words[0] == "running":  # it was woken since `stat` was read, or the call may not be seen
            return (
                ("running", "", "")
                if call is not None
                else by_wchan(wchan, letter, time.monotonic() < self._faulted_until_s)
            )
        if words[0] == "-1":  # blocked outside of a call: the memory that it touched is not there
            return "fault", wchan, ""
        return self._by_call(int(words[0]), [int(word, 16) for word in words[1:7]], wchan)

    def _wchan_text(self) -> str:
        try:
            return "" if self._wchan is None else self._wchan.read_short().decode().strip().removeprefix("0")
        except PermissionError:
            return ""

    def _by_call(self, number: int, arguments: list[int], wchan: str) -> tuple[State, str, str]:
        machine = self._machine
        first = arguments[0] if arguments else 0
        if number in READS[machine] | WRITES[machine] | SOCKETS[machine]:
            return self._by_files([first], "socket" if number in SOCKETS[machine] else "file", wchan)
        if number in FUTEXES[machine]:
            self._lock = first
            return "lock", PRIVATE_LOCK if arguments[1] & FUTEX_PRIVATE_FLAG else SHARED_LOCK, ""
        if number in PATHS[machine]:
            return "file", wchan, ""
        if number in SLEEPS[machine]:
            return "sleep", "", ""
        if number in POLLS[machine] | SELECTS[machine] | EPOLLS[machine]:
            files = self._polled(number, arguments)
            if files is None:
                return "other", "poll", ""
            return self._by_files(files, "pipe", wchan) if files else ("sleep", "", "")
        if number == IOCTL[machine]:
            return self._by_files([first], "other", wchan)
        return ("lock", "file", "") if number in LOCKS[machine] else by_wchan(wchan, "S", False)

    def _by_files(self, files: list[int], otherwise: State, wchan: str) -> tuple[State, str, str]:
        """By what the files are: a connection among them counts for all."""
        names = [self._name_of(file) for file in files[:MOST_POLLED]]
        for name in names:
            if name.startswith("socket:"):
                if name not in self._sockets:
                    self._sockets[name] = self._is_unix(name)
                return "socket", "unix" if self._sockets[name] else "tcp", name
        name = names[0]
        if name.startswith(("pipe:", "anon_inode:[eventfd")):
            return "pipe", wchan, name
        if name.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
            return "gpu", wchan, name
        return otherwise, wchan, name

    def _name_of(self, file: int) -> str:
        try:
            return os.readlink(f"/proc/{self.pid}/fd/{file}")
        except OSError:  # closed meanwhile, or not ours to see
            return ""

    def _is_unix(self, name: str) -> bool:
        """Whether a socket is of this machine alone; others are of TCP or UDP."""
        inode = name[len("socket:[") : -1]
        try:
            with open(f"/proc/{self.pid}/net/unix", encoding="utf-8", errors="replace") as file:
                return any(line.split()[6] == inode for line in file if line.count(" ") >= 6)
        except OSError:
            return False

    def _polled(self, number: int, arguments: list[int]) -> list[int] | None:
        """The files that a poll, select or epoll waits for; empty: none, it sleeps; None: not to be seen."""
        machine = self._machine
        try:
            if number in EPOLLS[machine]:
                with open(f"/proc/{self.pid}/fdinfo/{arguments[0]}", encoding="utf-8") as file:
                    return [int(line.split()[1]) for line in file if line.startswith("tfd:")] or None
            if number in POLLS[machine]:
                num = min(arguments[1], MOST_POLLED)
                return [POLLED.unpack_from(self._memory(arguments[0], POLLED.size * num), POLLED.size * at)[0]
                        for at in range(num)]  # fmt: skip
            num = arguments[0]
            text = self._memory(arguments[1], (num + 7) // 8) if arguments[1] else b""
            return [at for at in range(min(num, 8 * len(text))) if text[at // 8] >> at % 8 & 1]
        except (OSError, struct.error):
            return None

    def _memory(self, address: int, num_bytes: int) -> bytes:
        if num_bytes == 0:
            return b""
        descriptor = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, num_bytes, address)
        finally:
            os.close(descriptor)


def _opened(path: str) -> ProcFile | None:
    try:
        return ProcFile(path)
    except PermissionError:
        return None


def by_wchan(wchan: str, letter: str, faulted: bool) -> tuple[State, str, str]:
    """State, detail and target of a thread that waits in this function of the kernel. Pure.

    `faulted`: it had a page fault lately that needed the storage; this wait is taken for another.
    """
    if letter == "D" or SLOW_FILE.search(wchan):
        return "fault" if faulted else "file", wchan, ""
    for state, detail, pattern in WAITS:
        if pattern.search(wchan):
            return state, detail or wchan, ""
    return STATE_OF_LETTER.get(letter, "other"), wchan, ""
