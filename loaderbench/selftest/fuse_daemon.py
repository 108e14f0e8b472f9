"""The file system of `slow_fuse`, in its own process: a read-only passthrough with a set speed.

Started as a script by `slow_fuse` with one JSON argument; imports nothing from loaderbench, so that it
starts in a tenth of a second.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mfusepy

PR_SET_PDEATHSIG = 1
"""linux/prctl.h: the signal that a process gets when the thread that started it ends."""
MAX_READ_BYTES = 1 << 20
MAX_REQUESTS = 256
"""Most requests in flight: more than any reader pool here, so that latency alone sets the rate."""
METADATA_TIMEOUT_S = 3600.0
"""The tree does not change: the kernel may cache names and sizes, so that only reads reach this process."""


class Pacer:
    """One clock for all readers: each read gets the next slot of the capped channel, then waits its latency.

    `stall`: (period, length) in seconds. In the last `length` of each period nothing ends and the channel rests.
    """

    def __init__(self, bytes_per_s: float | None, latency_s: float, stall: tuple[float, float] | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._stall = stall
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def wait_for_service(self) -> None:
        """Sleep while the whole storage stands still."""
        if self._stall is not None:
            period_s, length_s = self._stall
            left_s = period_s - time.monotonic() % period_s
            if left_s <= length_s:
                time.sleep(left_s)

    def wait(self, num_bytes: int, extra_s: float) -> None:
        """Sleep until this read's bytes have passed: its slot of the channel, plus the latency and `extra_s`."""
        self.wait_for_service()
        now = time.monotonic()
        due = now
        if self._bytes_per_s is not None:
            with self._lock:
                self._free_at_s = max(self._free_at_s, now) + num_bytes / self._bytes_per_s
                due = self._free_at_s
        delay = due + self._latency_s + extra_s - time.monotonic()
        if delay > 0:
            time.sleep(delay)
        self.wait_for_service()


class SlowTree(mfusepy.Operations):  # type: ignore[misc]  # mfusepy has no type information
    """Serves `root` read-only. `counters` is shared memory: int64 [bytes served, reads served]."""

    use_ns = True

    def __init__(
        self, root: str, pacer: Pacer, open_latency_s: float, tail: tuple[float, float], counters: memoryview
    ) -> None:
        """`tail`: (part of the files that are slow, seconds that each takes more)."""
        self._root = root
        self._pacer = pacer
        self._open_latency_s = open_latency_s
        self._slow_below, self._slow_s = tail[0] * 2**32, tail[1]
        self._counters = counters
        self._lock = threading.Lock()

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:
        """FUSE_INIT. The kernel's default of 12 read-ahead requests in flight would cap a latency-bound tree."""
        conn_info.max_background = MAX_REQUESTS
        conn_info.congestion_threshold = MAX_REQUESTS
        if mfusepy.fuse_version_major >= 3:
            conn_info.max_read = MAX_READ_BYTES  # libfuse 3 wants it here and in the mount options

    def _real(self, path: str) -> str:
        return self._root + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int | float]:
        status = os.lstat(self._real(path))
        return {
            "st_mode": status.st_mode & ~0o222,
            "st_nlink": status.st_nlink,
            "st_size": status.st_size,
            "st_uid": status.st_uid,
            "st_gid": status.st_gid,
            "st_mtime": status.st_mtime_ns,
            "st_ctime": status.st_ctime_ns,
            "st_atime": status.st_atime_ns,
        }

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        with os.scandir(self._real(path)) as entries:
            yield from (".", "..", *(entry.name for entry in entries))

    def readlink(self, path: str) -> str:
        return str(Path(self._real(path)).readlink())

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise mfusepy.FuseOSError(errno.EROFS)
        if self._open_latency_s:
            time.sleep(self._open_latency_s)
        self._pacer.wait_for_service()
        return os.open(self._real(path), os.O_RDONLY | os.O_CLOEXEC)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        data = os.pread(fh, size, offset)
        is_slow = offset == 0 and zlib.crc32(os.fsencode(path)) < self._slow_below
        self._pacer.wait(len(data), self._slow_s if is_slow else 0.0)
        with self._lock:
            self._counters[0] += len(data)
            self._counters[1] += 1
        return data

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


def _die_with(parent_pid: int) -> None:
    """Let the kernel end this process (libfuse unmounts on SIGTERM) when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        sys.exit("the process that made this mount is gone")


def main() -> None:
    """Mount and serve until SIGTERM or unmount. argv[1]: JSON of the fields used below."""
    setup = json.loads(sys.argv[1])
    _die_with(setup["parent_pid"])
    with open(setup["counters"], "r+b") as file:
        counters = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    options: dict[str, Any] = {}
    if (mfusepy.fuse_version_major, mfusepy.fuse_version_minor) >= (3, 12):
        options["max_threads"] = MAX_REQUESTS  # libfuse 2 has no limit, libfuse 3.12 and later has 10
    mfusepy.FUSE(
        SlowTree(
            setup["root"],
            Pacer(setup["bytes_per_s"], setup["latency_s"] or 0.0, setup["stall"]),
            setup["open_latency_s"] or 0.0,
            setup["tail"] or (0.0, 0.0),
            counters,
        ),
        setup["mount_point"],
        foreground=True,
        ro=True,
        fsname="loaderbench-slow",
        max_read=MAX_READ_BYTES,
        kernel_cache=True,  # pages stay cached between opens, as on any disk: the tree does not change
        attr_timeout=METADATA_TIMEOUT_S,
        entry_timeout=METADATA_TIMEOUT_S,
        **options,
    )


if __name__ == "__main__":
    main()
