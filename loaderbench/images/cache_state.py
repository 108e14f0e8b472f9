"""The page cache under a data set: empty it, inspect it, lock files in it, or bypass it. Stdlib only.

Cost of each file, open and close included, measured on 320 files of 121 KB (ext4, kernel 6.18, one core
of a busy AMD EPYC): `residency` 7–9 µs by cachestat, 17 µs by mincore; `evict` 22–25 µs; `locked` 44 µs.

Sources for what is said here about kernels: mm/fadvise.c, mm/mincore.c and mm/filemap.c of Linux.
tests/images/test_cache_state.py checks it.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from loaderbench.errors import CaseFailed, UnavailableError
from loaderbench.images.filesystem import storage_behind
from loaderbench.images.listing import first_image
from loaderbench.images.over_files import over_files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loaderbench.images.index import ImageIndex

PAGE_BYTES = mmap.PAGESIZE
SYS_CACHESTAT = 451
"""cachestat(2), Linux 6.5; one number on every architecture (scripts/syscall.tbl)."""
CAP_FOWNER, CAP_IPC_LOCK = 3, 14
"""Bits of CapEff (linux/capability.h)."""
OVERLAYFS_SUPER_MAGIC = 0x794C7630
"""linux/magic.h"""
RAM_COPY_PREFIX = "loaderbench-ram"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.syscall.restype = ctypes.c_long
_MAP_FAILED = ctypes.c_void_p(-1).value


class _CachestatRange(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("num_cached", "num_dirty", "num_writeback", "num_evicted", "num_recently_evicted")
    )


@dataclass(frozen=True)
class Residency:
    """How much of some files is in the page cache."""

    resident_pages: int
    total_pages: int
    """Pages of the files that could be looked at."""
    num_files: int
    num_unknown: int
    """Files that could not be looked at; they count in neither figure of pages."""
    method: str
    """`cachestat`, `mincore`, both joined by `+`, or `none`."""
    reason: str | None = None
    """Why files are unknown: the first reason met."""

    @property
    def fraction(self) -> float | None:
        """Resident share of the pages, 0 … 1; None where no file could be looked at."""
        return self.resident_pages / self.total_pages if self.total_pages else None


def _num_pages(size: int) -> int:
    return -(-size // PAGE_BYTES)


def _error_text() -> str:
    return os.strerror(ctypes.get_errno())


@lru_cache(maxsize=1)
def _capabilities() -> int:
    """Effective capabilities of this process: the mask CapEff of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _has_capability(bit: int) -> bool:
    return bool(_capabilities() >> bit & 1)


def _is_overlay(fd: int) -> bool:
    status = ctypes.create_string_buffer(256)  # struct statfs is smaller everywhere; it begins with f_type
    if _libc.fstatfs(fd, status) != 0:
        raise OSError(ctypes.get_errno(), _error_text())
    return ctypes.c_long.from_buffer(status).value == OVERLAYFS_SUPER_MAGIC


def _may_look(fd: int, status: os.stat_result) -> bool:
    """Whether the kernel tells this process the truth about the file's pages.

    Both calls answer only processes that own the file or may write to it; to any other mincore says that everything
    is resident (can_do_mincore in mm/mincore.c), and cachestat fails with EPERM.
    """
    if status.st_uid == os.geteuid() or _has_capability(CAP_FOWNER):
        return True
    return os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=True)


def _cachestat(fd: int) -> int:
    """Pages of an open file that are cached.

    Raises:
        OSError: ENOSYS before Linux 6.5, EPERM for a non-owner.
    """
    everything, found = _CachestatRange(0, 0), _Cachestat()
    if _libc.syscall(SYS_CACHESTAT, fd, ctypes.byref(everything), ctypes.byref(found), 0) != 0:
        raise OSError(ctypes.get_errno(), _error_text())
    return int(found.num_cached)


def _mincore(fd: int, size: int) -> int:
    """Resident pages of an open file. Mapping it faults nothing in.

    Raises:
        OSError: the file cannot be mapped.
    """
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), _error_text())
    try:
        pages = ctypes.create_string_buffer(_num_pages(size))
        if _libc.mincore(address, size, pages) != 0:
            raise OSError(ctypes.get_errno(), _error_text())
        return sum(byte & 1 for byte in pages.raw)
    finally:
        _libc.munmap(address, size)


@lru_cache(maxsize=1)
def has_cachestat() -> bool:
    """Whether this kernel (and its seccomp filter) answers cachestat(2)."""
    with open("/proc/self/exe", "rb") as file:
        try:
            _cachestat(file.fileno())
        except OSError as error:
            return error.errno == errno.EPERM  # the call exists; another user owns this file
    return True


def _look(fd: int) -> tuple[int, int, str]:
    """(resident pages, pages, method) of an open file.

    Raises:
        OSError: the file cannot be looked at; strerror says why.
    """
    status = os.fstat(fd)
    if not _may_look(fd, status):
        raise OSError(errno.EPERM, "the kernel shows page residency only to a file's owner")
    num_pages = _num_pages(status.st_size)
    # overlayfs keeps the pages with the layer's file: cachestat on the overlay's sees none.
    if has_cachestat() and not _is_overlay(fd):
        return _cachestat(fd), num_pages, "cachestat"
    return (_mincore(fd, status.st_size) if num_pages else 0), num_pages, "mincore"


def _look_at(path: str) -> tuple[int, int, str]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO does not block
    try:
        return _look(fd)
    finally:
        os.close(fd)


def residency(paths: Iterable[str], *, until: float = math.inf, at_least: int = 0) -> Residency:
    """How much of the files is in the page cache now. Looking changes nothing there.

    By cachestat(2); by mincore(2) on overlayfs and on kernels before 6.5. A file of another user is
    unknown, since the kernel would answer falsely. Large sets: give a random sample.

    No file is looked at after `until` (seconds of perf_counter) beyond the first `at_least`: `num_files` tells how
    many were.
    """
    seen = over_files(_seen, paths, until=until, at_least=at_least)
    known = [one for one in seen if not isinstance(one, str)]
    return Residency(
        resident_pages=sum(in_cache for in_cache, _, _ in known),
        total_pages=sum(pages for _, pages, _ in known),
        num_files=len(seen),
        num_unknown=len(seen) - len(known),
        method="+".join(sorted({method for _, _, method in known})) or "none",
        reason=next((one for one in seen if isinstance(one, str)), None),
    )


def _seen(path: str) -> tuple[int, int, str] | str:
    """What `_look_at` tells, or why it cannot."""
    try:
        return _look_at(path)
    except OSError as error:
        return f"{path}: {error.strerror}"


def is_out(path: str) -> bool:
    """Whether a file has pages and none of them is in the page cache; False where that cannot be known."""
    seen = _seen(path)
    return not isinstance(seen, str) and seen[0] == 0 < seen[1]


def evict(path: str) -> None:
    """Ask the kernel to drop the file's clean pages from the page cache; dirty ones are written out first.

    posix_fadvise(POSIX_FADV_DONTNEED) leaves pages that are dirty, mapped or locked, and does nothing on
    tmpfs: check the result with `residency`. overlayfs does not write out a lower layer's file (ovl_fsync).

    Raises:
        OSError: the file cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _evict_open(fd)
    finally:
        os.close(fd)


def _evict_open(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    # fsync of a clean file still flushes the disk's own cache, so it is kept for files that need it.
    if _remains_resident(fd):
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _remains_resident(fd: int) -> bool:
    try:
        return _look(fd)[0] > 0
    except OSError:
        return False  # another user's file: this process did not write it, and cannot sync what it cannot see


def evict_files(paths: Iterable[str], on_evicted: Callable[[int, int], None] = lambda done, total: None) -> Residency:
    """Evict every file, then look: `fraction` is 0 where all pages were evicted.

    Files that cannot be opened count as unknown. `on_evicted` is called after each file with (evicted, all files).
    """
    kept = list(paths)
    over_files(evicted, kept, on_done=lambda num: on_evicted(num, len(kept)))
    return residency(kept)


def evicted(path: str) -> bool:
    """Evict a file; False where it cannot be opened: who reads it next meets the same error and names the file."""
    try:
        evict(path)
    except OSError:
        return False
    return True


def can_prove_cold(folder: str) -> bool:
    """Whether files of the folder can be evicted from the page cache, and the eviction can be seen.

    That proves a run cold by residency, and by bytes where counters see them. Tried with one file: read it, evict it,
    check it. OSError where it cannot be read.
    """
    path = first_image(folder)
    if path is None:
        from loaderbench.images.shards import first_container  # late: it needs numpy

        path = first_container(folder)
    if path is None:
        return False
    with open(path, "rb") as file:
        file.read()
    return evict_files([path]).fraction == 0


def memlock_limit_bytes() -> int | None:
    """How much this process may lock (RLIMIT_MEMLOCK); None: without limit (unlimited, or CAP_IPC_LOCK)."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY or _has_capability(CAP_IPC_LOCK) else limit


def _check_locking(num_files: int, num_bytes: int, budget_bytes: int) -> None:
    limit = memlock_limit_bytes()
    most_maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    if num_bytes > budget_bytes:
        raise UnavailableError(
            f"locking needs {num_bytes:,} bytes, the budget is {budget_bytes:,}: raise it or use a subset"
        )
    if limit is not None and num_bytes > limit:
        raise UnavailableError(
            f"locking needs {num_bytes:,} bytes, RLIMIT_MEMLOCK allows {limit:,}: raise it (ulimit -l) or use tmpfs"
        )
    if num_files > most_maps - 4096:  # the rest is for the process's own libraries and heaps
        raise UnavailableError(
            f"locking {num_files:,} files needs as many mappings, vm.max_map_count is {most_maps:,}: use a tmpfs copy"
        )


@contextmanager
def locked(
    paths: Sequence[str], budget_bytes: int, on_locked: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[None]:
    """Hold the files in the page cache (mmap + mlock) while the block runs.

    No process can evict locked pages. `on_locked` is called after each file with (files locked, all files).

    Raises:
        UnavailableError: more than the budget, RLIMIT_MEMLOCK or vm.max_map_count allow, or mlock failed.
        CaseFailed: a file cannot be read.
    """
    mapped: list[tuple[int, int]] = []

    def lock(file: tuple[str, int]) -> None:
        path, size = file
        if size:
            mapped.append((_lock_file(path, size), size))

    try:
        sizes = over_files(_size, paths)
        _check_locking(len(paths), sum(_num_pages(size) * PAGE_BYTES for size in sizes), budget_bytes)
        files = zip(paths, sizes, strict=True)
        over_files(lock, files, on_done=lambda done: on_locked(done, len(paths)))
        yield
    finally:
        for address, size in mapped:
            _libc.munmap(address, size)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError as error:
        raise CaseFailed(f"cannot read {path}: {error.strerror}") from error


def _lock_file(path: str, size: int) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CaseFailed(f"cannot read {path}: {error.strerror}") from error
    try:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    if address is None or address == _MAP_FAILED:
        raise UnavailableError(f"cannot map {path}: {_error_text()}; use a tmpfs copy")
    if _libc.mlock(address, size) != 0:
        reason = _error_text()
        _libc.munmap(address, size)
        raise UnavailableError(f"cannot lock {path} in memory: {reason}; use a tmpfs copy")
    return int(address)


def choose_subset(sizes: NDArray[np.int64], budget_bytes: int, seed: int = 0) -> NDArray[np.int64]:
    """Indices, ascending, of as many files as fit the budget, with the size distribution of all of them.

    Each file counts as whole pages. The files are split by size into as many classes as fit, and one is drawn from
    each; of sixteen such draws the one whose mean size is nearest to the mean of all files is taken.
    """
    import numpy as np  # late: refusals come without it

    pages = -(-sizes // PAGE_BYTES) * PAGE_BYTES
    if pages.sum() <= budget_bytes:
        return np.arange(len(sizes), dtype=np.int64)
    rng = np.random.default_rng(seed)
    order = np.argsort(sizes, kind="stable")
    num = int(budget_bytes / pages.mean())
    while num > 0:
        edges = np.arange(num + 1) * len(sizes) // num
        draws = [order[rng.integers(edges[:-1], edges[1:])] for _ in range(16)]
        fitting = [draw for draw in draws if pages[draw].sum() <= budget_bytes]
        if fitting:
            return np.sort(min(fitting, key=lambda draw: abs(sizes[draw].mean() - sizes.mean())))
        num -= max(1, num // 100)
    return np.empty(0, dtype=np.int64)


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to the process's start (/proc/PID/stat, field 22); None where it is not running."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])  # a zombie may wait long for a reaper


def _own_name() -> str:
    """A name that no other process will have: pid namespace, pid, start time."""
    return f"{RAM_COPY_PREFIX}-{Path('/proc/self/ns/pid').stat().st_ino}-{os.getpid()}-{_start_time(os.getpid())}"


def remove_leftovers(folder: str = "/dev/shm") -> list[str]:
    """Remove this user's RAM copies whose process is gone. Returns what was removed.

    Copies from another pid namespace (a container's) are left: this process cannot tell whether their owner lives.
    """
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    removed = []
    for entry in Path(folder).glob(f"{RAM_COPY_PREFIX}-{namespace}-*"):
        parts = entry.name.removeprefix(f"{RAM_COPY_PREFIX}-").split("-")
        try:
            owner = entry.lstat().st_uid
        except FileNotFoundError:  # another process has just removed it
            continue
        if owner == os.geteuid() and _start_time(int(parts[1])) != int(parts[2]):
            shutil.rmtree(entry, ignore_errors=True)
            removed.append(str(entry))
    return removed


def ram_copy(
    index: ImageIndex,
    budget_bytes: int,
    folder: str = "/dev/shm",
    *,
    seed: int = 0,
    on_copied: Callable[[int, int], None] = lambda done, total: None,
    evict_sources: bool = False,
    until: float = math.inf,
    at_least: int = 1,
) -> tuple[ImageIndex, Callable[[], None]]:
    """Copy the images to memory: an index of the copies, and the function that removes them.

    Where they do not fit the budget (or what is free in `folder`), a size-matched subset is copied. No copy begins
    after `until` (seconds of perf_counter) beyond `at_least` files; what is copied until then has the same mix of
    sizes too. `on_copied` is called after each file with (files copied, all files). `evict_sources`: drop the pages
    that copying brought in. Copies that killed processes left behind are removed first.

    Raises:
        UnavailableError: `folder` is no tmpfs, or not one image fits.
        CaseFailed: an image cannot be read, though it was listed.
    """
    import numpy as np  # late: refusals come without it

    if not Path(folder).is_dir() or not storage_behind(folder).is_memory:
        raise UnavailableError(f"{folder} is not a tmpfs; name one, or raise RLIMIT_MEMLOCK to lock files instead")
    remove_leftovers(folder)
    status = os.statvfs(folder)
    free_bytes = int(0.9 * status.f_bavail * status.f_frsize)  # others write there too
    chosen = choose_subset(index.sizes, min(budget_bytes, free_bytes), seed)
    if not len(chosen):
        raise UnavailableError(f"no image fits {min(budget_bytes, free_bytes):,} bytes of {folder}; raise the budget")
    root = _new_folder(folder)

    def cleanup() -> None:
        shutil.rmtree(root, ignore_errors=True)

    target = index.at_root(root)

    def copy(number: int) -> None:
        _copy_file(index.path(number), target.path(number), evict_source=evict_sources)

    order = spread_over_sizes(index.sizes, chosen, seed).tolist()
    try:
        done = over_files(
            copy, order, until=until, at_least=at_least, on_done=lambda num: on_copied(num, len(order))
        )  # fmt: skip
    except OSError as error:
        cleanup()
        raise CaseFailed(f"cannot copy {error.filename or index.root} to {folder}: {error.strerror}") from error
    except BaseException:
        cleanup()
        raise
    copied = np.sort(np.array(order[: len(done)], dtype=np.int64))
    return (target.select(copied) if len(copied) < len(index) else target), cleanup


COPY_BYTES = 1 << 20
"""Bytes that are read at a time."""


def _copy_file(source: str, target: str, *, evict_source: bool) -> None:
    """Raises OSError."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with open(source, "rb", buffering=0) as file, open(target, "wb", buffering=0) as copy:
        try:
            while part := file.read(COPY_BYTES):
                copy.write(part)
        except OSError as error:
            raise OSError(error.errno, error.strerror, source) from error
        if evict_source:
            _evict_open(file.fileno())


def spread_over_sizes(sizes: NDArray[np.int64], chosen: NDArray[np.int64], seed: int = 0) -> NDArray[np.int64]:
    """The chosen files in an order of which every beginning has the mix of sizes of all.

    Sorted by size, equal ones at random, then taken in the order of their reversed bits (van der Corput's sequence: of
    any 2ᵏ in a row one comes from each 2ᵏ-th part).
    """
    import numpy as np  # late: refusals come without it

    shuffled = np.random.default_rng(seed).permutation(chosen)
    by_size = shuffled[np.argsort(sizes[shuffled], kind="stable")]
    num_bits = max(1, (len(chosen) - 1).bit_length())
    places = np.arange(1 << num_bits)
    reversed_bits = np.zeros_like(places)
    for bit in range(num_bits):
        reversed_bits |= ((places >> bit) & 1) << (num_bits - 1 - bit)
    return by_size[reversed_bits[reversed_bits < len(chosen)]]


def _new_folder(folder: str) -> str:
    for number in range(1_000_000):
        root = Path(folder, f"{_own_name()}-{number}")
        try:
            root.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return str(root)
    raise UnavailableError(f"{folder} is full of this process's copies: remove some")
