"""A FUSE passthrough with a bandwidth cap and latencies. Needs no root: /dev/fuse, libfuse and mfusepy.

All readers share one channel: each read waits for its slot of the bandwidth, then for the latency. So under a
bandwidth cap the rate does not grow with the readers, under a latency it does. The kernel asks for at most
128 KiB at a time (its read-ahead window) however large the file is; the latency is paid for each request
that was not read ahead. /proc/PID/io shows nothing of reads through FUSE: `bytes_served` does.

The daemon is a Python process on the same CPUs as the workers it serves (`daemon_cpu_s`).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from loaderbench import lacking, neutral
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.interrupts import interrupts_held
from loaderbench.selftest.base import (
    Truth,
    check_dataset_dir,
    find_program,
    mount_points,
    workspace,
)

START_TIMEOUT_S = 20.0


def check_available() -> None:
    """Check that this machine can make the bed.

    Raises:
        UnavailableError: no /dev/fuse, no libfuse, or a missing package.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise UnavailableError(
            "slow_fuse needs read and write access to /dev/fuse (in a container: --device /dev/fuse)"
        )
    try:
        importlib.import_module("mfusepy")
    except ImportError as error:
        install = "install loaderbench with the extra `beds`"
        raise lacking.package("mfusepy, which slow_fuse needs,", error, install) from error
    except OSError as error:  # importing mfusepy loads libfuse
        raise UnavailableError(f"slow_fuse needs libfuse ({error}); install Debian's package fuse3") from error
    if os.geteuid() != 0:
        find_program("fusermount3", "fuse3")


@dataclass(frozen=True)
class SlowFuseBed:
    """A bed that is mounted."""

    path: str
    """The mounted tree, read-only; only the user who made it may read it."""
    truth: Truth
    daemon_pid: int
    _counters: str

    def daemon_cpu_s(self) -> float:
        """CPU seconds that the daemon has used so far, user and system, all its threads."""
        times = psutil.Process(self.daemon_pid).cpu_times()
        return times.user + times.system

    def _served(self) -> tuple[int, int]:
        num_bytes, num_reads = struct.unpack("qq", Path(self._counters).read_bytes()[:16])
        return num_bytes, num_reads

    def bytes_served(self) -> int:
        """Bytes that the daemon has delivered so far."""
        return self._served()[0]

    def reads_served(self) -> int:
        """Read requests that the daemon has answered so far."""
        return self._served()[1]


def _start_daemon(folder: str, tree: str, truth: Truth) -> subprocess.Popen[bytes]:
    setup = {
        "parent_pid": os.getpid(),
        "root": tree,
        "mount_point": os.path.join(folder, "mount"),
        "counters": os.path.join(folder, "counters"),
        "bytes_per_s": truth.bytes_per_s,
        "latency_s": truth.latency_s,
        "open_latency_s": truth.open_latency_s,
        "tail": truth.tail,
        "stall": truth.stall,
    }
    script = str(Path(__file__).with_name("fuse_daemon.py"))
    with open(os.path.join(folder, "daemon.log"), "wb") as log:
        # In its own session, so that Ctrl-C at a terminal does not reach it directly.
        return subprocess.Popen(
            [sys.executable, "-P", script, json.dumps(setup)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=neutral.environment(os.environ),
            cwd=neutral.FOLDER,
            start_new_session=True,
        )


def _wait_for_mount(daemon: subprocess.Popen[bytes], folder: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while os.path.join(folder, "mount") not in mount_points():
        if daemon.poll() is not None or time.monotonic() > deadline:
            said = Path(folder, "daemon.log").read_text(errors="replace").strip() or "no message"
            raise UnavailableError(f"slow_fuse could not mount: {said.splitlines()[-1]}")
        time.sleep(0.02)


@contextlib.contextmanager
def slow_fuse(
    dataset_dir: str | os.PathLike[str],
    *,
    bytes_per_s: float | None = None,
    latency_s: float | None = None,
    open_latency_s: float | None = None,
    tail: tuple[float, float] | None = None,
    stall: tuple[float, float] | None = None,
) -> Iterator[SlowFuseBed]:
    """Mount an image tree whose reads each take `latency_s` more and together `bytes_per_s` at most (None: no limit).

    Its opens each take `open_latency_s` more: they reach the daemon though the file's pages are in memory.
    `tail=(part, seconds)`: that part of the files takes so much more where their first bytes are read, always the
    same files: those with crc32(path below the mount, with its leading /) < part × 2³². `stall=(period_s, length_s)`:
    for the last `length_s` of each period (of time.monotonic, so any process knows when) no read or open ends.

    Enter it in a thread that outlives the bed: the daemon ends with the thread that started it.

    Raises:
        UnavailableError: what the machine lacks (see `check_available`).
        ConfigError: `dataset_dir` is no folder, a limit is not positive, `tail` has a part over 1, or a `stall` is
            not shorter than its period.
    """
    truth = Truth(bytes_per_s, latency_s=latency_s, open_latency_s=open_latency_s, tail=tail, stall=stall)
    for name, value in asdict(truth).items():
        if value is not None and min(value if isinstance(value, tuple) else (value,)) <= 0:
            raise ConfigError(f"{name} of slow_fuse must be positive, not {value}")
    if tail is not None and tail[0] > 1:
        raise ConfigError(f"the fraction of files in tail of slow_fuse must be at most 1, not {tail[0]}")
    if stall is not None and stall[1] >= stall[0]:
        raise ConfigError(f"a stall of slow_fuse must be shorter than its period, unlike {stall}")
    tree = check_dataset_dir(dataset_dir)
    check_available()
    daemon = None
    try:
        with workspace("slow_fuse") as resources:
            bed = SlowFuseBed(
                os.path.join(resources.folder, "mount"), truth, 0, os.path.join(resources.folder, "counters")
            )
            Path(bed.path).mkdir()
            Path(bed._counters).write_bytes(bytes(mmap.PAGESIZE))
            resources.mounts.append(bed.path)
            resources.save()
            with interrupts_held():  # an exception raised within Popen would leave a process without a handle
                daemon = _start_daemon(resources.folder, tree, truth)
                resources.sessions.append(daemon.pid)
                resources.save()
            _wait_for_mount(daemon, resources.folder)
            yield replace(bed, daemon_pid=daemon.pid)
    finally:
        if daemon is not None:
            daemon.wait()  # it is dead by now: the workspace took the bed down
