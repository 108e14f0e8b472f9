"""Which samplers a case gets, and what to do about missing ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from loaderbench.errors import UnavailableError
from loaderbench.images.filesystem import FileSystem, storage_behind
from loaderbench.recording.caveats import Caveat
from loaderbench.samplers.base import Sampler
from loaderbench.samplers.cpu import CpuSampler, PressureSampler
from loaderbench.samplers.diskstats import DiskSampler
from loaderbench.samplers.nfs import NfsSampler
from loaderbench.samplers.nvml import NvmlSampler
from loaderbench.samplers.process_io import ProcessTreeSampler

FILES_LOOKED_AT = 32
"""Files of a data set whose file system is asked for: links and mounts may lead to others."""


def storage_sampler(file_system: FileSystem) -> DiskSampler | NfsSampler:
    """The counters of the device or NFS mount that holds the files.

    Raises:
        UnavailableError: no counter exists; the message says why and what to do instead.
    """
    if file_system.is_nfs:
        return NfsSampler(file_system.mount_point)
    if file_system.device is not None:
        return DiskSampler(file_system.device)
    if file_system.is_memory:
        raise UnavailableError(
            f"storage bytes are not counted: {file_system.mount_point} is {file_system.type}, which is in "
            "memory; put the data set on a disk or NFS to measure storage"
        )
    if file_system.is_fuse:
        raise UnavailableError(
            f"storage bytes are not counted: {file_system.mount_point} is served by a FUSE daemon, and no "
            "kernel counter assigns its reads to this run (/proc/PID/io shows 0); mount the store with NFS, "
            "or read the daemon's own statistics"
        )
    raise UnavailableError(
        f"storage bytes are not counted: {file_system.reason or 'the path has no device'}; put the data "
        "set on a local disk or an NFS mount that this process can see"
    )


class StorageCounter:
    """Exact readings of what the storage behind a path has moved, taken at both ends of a window.

    A reading costs about 20 µs for a disk and 0.1 ms for NFS. A disk's counters include the reads of all
    programs, an NFS mount's those of all programs on this client.
    """

    source: str | None
    """Where the counters are read; None where there are none."""
    reason: str | None
    """Why there are no counters and what to do about it; None where `read` works."""
    whole_pages: bool
    """Whether a cold read of a file moves whole pages. NFS moves exact bytes (`serverread` of samplers/nfs.py)."""
    file_system: FileSystem

    def __init__(self, path: str | Path, files: Sequence[str] = ()) -> None:
        """`files`: some of those below `path` that are read: links and mounts may lead to another file system.

        Never raises for missing counters; OSError where the path does not exist.
        """
        self._sampler: DiskSampler | NfsSampler | None = None
        self.source = self.reason = None
        self.whole_pages = True
        self.file_system = _behind_all(files) if files else storage_behind(path)
        try:
            self._sampler = storage_sampler(self.file_system)
            self.source = self._sampler.source
            self.whole_pages = not isinstance(self._sampler, NfsSampler)
        except UnavailableError as error:
            self.reason = str(error)

    def read(self) -> dict[str, int] | None:
        """The counters now; None where there are none (`reason`).

        `read_bytes` and `reads` always; `io_ticks_ms` for a disk; `rpcs`, `queue_ms`, `rtt_ms`, `exe_ms`,
        `retransmits` (over all operations) for NFS. Subtract two readings.

        Raises:
            UnavailableError: the device or mount has gone since.
        """
        return None if self._sampler is None else self._sampler.counters()

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()


def _behind_all(files: Sequence[str]) -> FileSystem:
    """The file system of all of them; one of which nothing is known where there are several."""
    by_device = {}
    for path in files:
        with contextlib.suppress(OSError):  # whoever reads it says so
            by_device[os.stat(path).st_dev] = path  # noqa: PTH116
    if not by_device:
        return storage_behind(Path(files[0]).parent)
    # btrfs and overlays give files device numbers of their own.
    found = {storage_behind(path) for path in by_device.values()}
    if len(found) == 1:
        return found.pop()
    points = ", ".join(sorted(one.mount_point for one in found))
    return FileSystem("several", "several", None, "", "", (), f"the files are on several file systems ({points})")


def samplers_for(case_path: str | Path, root_pid: int, gpu: int | None) -> tuple[list[Sampler], list[Caveat]]:
    """The samplers for one case, and a caveat with the way to enable it for each source that is missing.

    `case_path`: the tree that is read, or one of its files. `root_pid`: the measuring process; its descendants count
    with it. `gpu`: CUDA's number of the device, for NVML; None: the device is not a GPU.
    """
    samplers: list[Sampler] = []
    caveats: list[Caveat] = []

    def add(build: Callable[[], Sampler]) -> Sampler | None:
        try:
            sampler = build()
        except (UnavailableError, OSError) as error:
            caveats.append(Caveat("sampler_missing", {"reason": str(error)}))
            return None
        samplers.append(sampler)
        return sampler

    add(lambda: storage_sampler(storage_behind(case_path)))
    tree = add(lambda: ProcessTreeSampler(root_pid))
    add(CpuSampler)
    add(PressureSampler)
    if gpu is not None:
        pids = tree.pids if isinstance(tree, ProcessTreeSampler) else tuple
        add(lambda: NvmlSampler(gpu, pids))
    return samplers, caveats
