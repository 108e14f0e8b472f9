"""Read files of an NFS mount with several numbers of readers and say what the mount's counters saw.

`python tests/beds/nfs_probe.py PATH --readers 1,4,8` prints one JSON object a line and stage.
A rate that grows with the readers is latency-bound; one that stays is bandwidth-bound.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loaderbench.errors import ConfigError
from loaderbench.plain import JsonObject
from loaderbench.samplers.nfs import NfsMount, delta, find_mount, parse_mountstats

READ_BYTES = 1 << 20


def _evict(path: str) -> None:
    """Drop the file's pages from the client's page cache, so that they must come from the server."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _read(path: str) -> int:
    """Read one file to its end; returns the bytes."""
    num_bytes = 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(READ_BYTES):
            num_bytes += len(chunk)
    return num_bytes


def mount_at(mount_point: str) -> NfsMount:
    """What the mount's counters say now. Raises ConfigError where it is no NFS mount point."""
    mount = find_mount(parse_mountstats(Path("/proc/self/mountstats").read_text()), mount_point)
    if mount is None:
        raise ConfigError(f"{mount_point} is no NFS mount point; see /proc/self/mountstats")
    return mount


def run_stage(mount_point: str, paths: Sequence[str], readers: int) -> JsonObject:
    """Read all files once, evicted before, by `readers` threads. Times of operations are per operation."""
    for path in paths:
        _evict(path)
    before = mount_at(mount_point)
    begun_s = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        num_bytes = sum(pool.map(_read, paths))
    wall_s = time.perf_counter() - begun_s
    seen = delta(before, mount_at(mount_point), wall_s)
    return {
        "readers": readers,
        "num_files": len(paths),
        "wall_s": wall_s,
        "bytes": num_bytes,
        "bytes_per_s": num_bytes / wall_s,
        "serverread_bytes": seen.read_bytes,
        "mean_rpcs_in_flight": seen.mean_rpcs_in_flight,
        "ops": {
            name: {
                "ops": op.ops,
                "retransmits": op.retransmits,
                "queue_ms": op.queue_ms_per_op,
                "rtt_ms": op.rtt_ms_per_op,
                "exe_ms": op.exe_ms_per_op,
            }
            for name, op in seen.ops.items()
        },
    }


def main() -> None:
    """Parse the command line, run the stages, print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="the mount point")
    parser.add_argument("--readers", default="1,4,8", help="numbers of reader threads, one stage each")
    parser.add_argument("--num-files", type=int, default=None, help="read only so many files")
    given = parser.parse_args()
    paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(given.path) for name in names)
    for readers in given.readers.split(","):
        print(json.dumps(run_stage(given.path, paths[: given.num_files], int(readers))), flush=True)


if __name__ == "__main__":
    main()
