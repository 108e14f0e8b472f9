"""Tables of numbers in an .npz file, each read when it is asked for, and never more than the file's size allows.

Deflate makes a gigabyte of zeros out of a megabyte. What loaderbench measures shrinks to a third at best, so all tables
that are read of a file may take MOST_RATIO times its size, or MOST_BYTES where that is more; what would take more is
written without compression. Each table must be as long as its own header and the archive's directory say.
"""

from __future__ import annotations

import io
import math
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_BYTES, MOST_RATIO = 64 << 20, 20
MOST_DIRECTORY_BYTES = 16 << 20
"""Most bytes of an archive's directory: a table has about 100."""
KINDS = "biuf"
"""numpy's kinds of numbers (`dtype.kind`): no objects, which would be unpickled, and nothing of size 0."""
CHUNK_BYTES = 1 << 20
END, ZIP64 = 22, 20
"""Bytes of the record that ends an archive without a comment, and of the one before it that leads to 64-bit figures
(APPNOTE.TXT 4.3.15 and 4.3.16)."""


class Tables(Mapping[str, "NDArray[Any]"]):
    """The tables of a file, by their places; remembers those that were taken. A file may hold more than belongs to the
    facts beside it, where a process died between writing the two."""

    def __init__(self, archive: zipfile.ZipFile | None, most_bytes: int) -> None:
        """`archive`: None where there is no file."""
        self._archive, self._most, self._left = archive, most_bytes, most_bytes
        names = [] if archive is None else archive.namelist()
        self._places = dict.fromkeys(name.removesuffix(".npy") for name in names if name.endswith(".npy"))
        self.taken: dict[str, NDArray[Any]] = {}

    def __getitem__(self, place: str) -> NDArray[Any]:
        """Raises KeyError, ValueError, and anything else where the table is damaged."""
        if place not in self.taken:
            if self._archive is None or place not in self._places:
                raise KeyError(place)
            self.taken[place] = self._read(self._archive, self._archive.getinfo(f"{place}.npy"))
        return self.taken[place]

    def __contains__(self, place: object) -> bool:
        return place in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _read(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename} has a compression that loaderbench never uses")
        with archive.open(member) as file:
            shape, by_columns, dtype = _header(file)
            if dtype.kind not in KINDS or min(shape, default=0) < 0:
                raise ValueError(f"{member.filename} is not a table of numbers")
            # An empty table counts by its other sides: what walks along them would not end.
            self._left -= dtype.itemsize * math.prod(max(side, 1) for side in shape)
            if self._left < 0:
                raise ValueError(f"its tables exceed {self._most:,} bytes, the limit for a file of its size")
            data = _exactly(file, dtype.itemsize * math.prod(shape), member.filename)
        return data.view(dtype).reshape(shape, order="F" if by_columns else "C")


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether columns come first, type) of a table."""
    import numpy as np  # late: refusals come without it

    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"a table has the unknown version {version}")


def _exactly(file: Any, size: int, name: str) -> NDArray[np.uint8]:
    """The rest of a member, which has `size` bytes. Raises ValueError where it has not."""
    import numpy as np  # late: refusals come without it

    data, at = np.empty(size, np.uint8), 0
    while at < size:
        chunk = file.read(min(CHUNK_BYTES, size - at))
        if not chunk:
            raise ValueError(f"{name} is shorter than its header says")
        data[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
        at += len(chunk)
    if file.read(1):
        raise ValueError(f"{name} is longer than its header says")
    return data


def open_descriptor(path: str | Path) -> tuple[int, int]:
    """(descriptor, bytes) of a file, opened to be read. Raises OSError, and ValueError for what is no file: a pipe
    would never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise ValueError(f"{os.path.basename(path)} is not a regular file")
    return descriptor, found.st_size


@contextmanager
def open_tables(path: Path) -> Iterator[Tables]:
    """The tables of a file; none where it is missing. Raises OSError, and anything else where it is damaged."""
    if not os.path.lexists(path):
        yield Tables(None, 0)
        return
    descriptor, size = open_descriptor(path)
    with open(descriptor, "rb") as file:
        _check_directory(file, size)
        with zipfile.ZipFile(file) as archive:
            yield Tables(archive, _most_bytes(size))


def _most_bytes(size: int) -> int:
    """Most bytes of all tables in a file of `size` bytes."""
    return max(MOST_BYTES, MOST_RATIO * size)


def _check_directory(file: BinaryIO, size: int) -> None:
    """Raises ValueError where the archive's directory, all of which is read, is larger than any of ours."""
    file.seek(max(0, size - END - ZIP64))
    tail = file.read()
    end, before = tail[-END:], tail[: len(tail) - END]
    if len(end) < END or not end.startswith(b"PK\5\6") or end[-2:] != b"\0\0":
        raise ValueError("its file of tables is not an archive, or is cut off")
    if before.startswith(b"PK\6\7") or int.from_bytes(end[12:16], "little") > MOST_DIRECTORY_BYTES:
        raise ValueError("its file of tables holds more tables than any run has")


def to_bytes(tables: Mapping[str, NDArray[Any]]) -> bytes:
    """The file that holds the tables, compressed where `open_tables` takes it so."""
    import numpy as np  # late: refusals come without it

    named: dict[str, Any] = {**tables}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **named)
    if sum(table.nbytes for table in tables.values()) > _most_bytes(buffer.tell()):
        buffer = io.BytesIO()
        np.savez(buffer, **named)
    return buffer.getvalue()
