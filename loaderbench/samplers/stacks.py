"""Reads the Python stacks of another process from its memory, without a stop and without its GIL.

The reader must be run by the same Python binary as the process that it reads: it learns where that binary keeps its
threads, frames and code objects from itself, by looking for addresses that it knows, and checks what it learned on a
stack of its own. So it needs no table of versions; a binary that it cannot learn is refused with the reason.

A stack that changes while it is read may be torn: a frame whose code object is none ends the reading, which is tried
again. What a C function does is seen at the line that called it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import NamedTuple

WORD = 8
MOST_FRAMES = 256
FRAME_BYTES, STATE_BYTES, INTERPRETER_BYTES, RUNTIME_BYTES = 192, 1024, 1 << 18, 1 << 20
"""Bytes that are searched for a known address: of a frame, a thread's state, an interpreter, the runtime."""
TRIES = 3
CHUNK_BYTES = 8192
"""Around the innermost frame, read at once: frames lie one after another, and change the less meanwhile."""


class CannotLearn(Exception):
    """This Python keeps its frames in a way that is not understood."""


class Unreadable(Exception):
    """What was read is not a stack: the process ran meanwhile, or has ended."""


class Span(NamedTuple):
    """Where an expression stands in its file: lines from 1, columns in bytes from 0."""

    line: int
    end_line: int
    column: int
    end_column: int


class Frame(NamedTuple):
    """One call of a Python function."""

    file: str
    function: str
    line: int
    span: Span | None
    """Of the expression that it is at; None where the code does not hold it."""


class PythonThread:
    """One thread of a process that runs Python."""

    def __init__(self, process: Process, number: int, state: int) -> None:
        self.number, self._process, self._state = number, process, state
        """`number`: its own in the kernel."""

    def frames(self) -> tuple[Frame, ...]:
        """Its stack, the innermost call first; empty where it cannot be read, after some tries."""
        return self._process.frames_of(self._state)


class Memory:
    """The memory of a process."""

    def __init__(self, pid: int | str) -> None:
        """Raises OSError where it may not be read."""
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """Raises Unreadable where there is none, or less."""
        try:
            found = os.pread(self._file, size, address)
        except (OSError, OverflowError) as error:
            raise Unreadable from error
        if len(found) < size:
            raise Unreadable
        return found

    def upto(self, address: int, size: int) -> bytes:
        """As much as there is, up to `size` bytes."""
        try:
            return os.pread(self._file, size, address)
        except (OSError, OverflowError):
            return b""

    def word(self, address: int) -> int:
        return int.from_bytes(self.read(address, WORD), "little")

    def close(self) -> None:
        os.close(self._file)


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // WORD}Q", data[: len(data) // WORD * WORD])


def _offset_of(value: int, data: bytes, what: str) -> int:
    """Where a word of this value is first. Raises CannotLearn."""
    for number, word in enumerate(_words(data)):
        if word == value:
            return number * WORD
    raise CannotLearn(f"{what} was not found")


@dataclass(frozen=True)
class Layout:
    """Offsets, in bytes, of what is followed from the runtime to the line of a frame."""

    interpreter: int
    """In the runtime: its first interpreter."""
    head: int
    """In an interpreter: the state of its newest thread."""
    next_thread: int
    native_id: int
    """In a thread's state."""
    frame: tuple[int, ...]
    """From a thread's state to its innermost frame: one offset a pointer."""
    code: int
    previous: int
    instruction: int
    """In a frame."""
    instructions: int
    """In a code object: the first of its instructions."""
    filename: int
    qualname: int
    lines: int
    first_line: int


# -- learning ----------------------------------------------------------------------------------------------------


def learn() -> Layout:
    """The layout of this process's own Python. Raises CannotLearn, OSError."""
    api, memory = ctypes.pythonapi, Memory("self")
    for name in ("PyInterpreterState_Get", "PyThreadState_Get"):
        getattr(api, name).restype = ctypes.c_void_p
    api.PyThreadState_Next.restype, api.PyThreadState_Next.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    interpreter = int(api.PyInterpreterState_Get())
    found: list[tuple[int, int]] = []
    ready, leave = threading.Event(), threading.Event()

    def newest() -> None:
        found.append((int(api.PyThreadState_Get()), threading.get_native_id()))
        ready.set()
        leave.wait()

    thread = threading.Thread(target=newest, daemon=True)
    thread.start()
    ready.wait()
    try:
        of_frames = _outermost(memory, int(api.PyThreadState_Get()))
        newest_state, number = found[0]
        of_threads = int(api.PyThreadState_Get()), newest_state, int(api.PyThreadState_Next(newest_state))
        layout = _learned(memory, interpreter, of_threads, number, of_frames)
        _check(layout, memory, found[0][1])
        return layout
    except Unreadable as error:
        raise CannotLearn("its own memory cannot be read") from error
    finally:
        leave.set()
        thread.join()
        memory.close()


def _learned(
    memory: Memory, interpreter: int, of_threads: tuple[int, int, int], native_id: int,
    of_frames: tuple[tuple[int, ...], ...],
) -> Layout:  # fmt: skip
    """`of_threads`: the states of this thread, of the newest one, and of that before it."""
    (own_state, newest, before) = of_threads
    path, (code, previous, instruction, lasti) = of_frames[0], of_frames[1]
    own, another = Process.threads.__code__, _check.__code__
    state, other_state = memory.upto(own_state, STATE_BYTES), memory.upto(newest, STATE_BYTES)
    own_id = threading.get_native_id()
    ids = zip(_words(state), _words(other_state), strict=False)
    native = [number * WORD for number, pair in enumerate(ids) if pair == (own_id, native_id)]
    if not native:
        raise CannotLearn("the number of a thread was not found")
    text, size = memory.upto(id(own), own.__sizeof__()), own.__sizeof__()
    first_lines = [
        at for at in range(0, min(size, 256), 4)
        if int.from_bytes(text[at : at + 4], "little") == own.co_firstlineno
        and int.from_bytes(memory.read(id(another) + at, 4), "little") == another.co_firstlineno
    ]  # fmt: skip
    if not first_lines:
        raise CannotLearn("the first line of a function was not found")
    runtime = memory.upto(_runtime(), RUNTIME_BYTES)
    return Layout(
        _offset_of(interpreter, runtime, "the interpreter"),
        _offset_of(newest, memory.upto(interpreter, INTERPRETER_BYTES), "the newest thread"),
        _offset_of(before, other_state, "the next thread"), native[0], path, code, previous, instruction, lasti,
        _offset_of(id(own.co_filename), text, "a file's name"), _offset_of(id(own.co_qualname), text, "a name"),
        _offset_of(id(own.co_linetable), text, "the table of lines"), first_lines[0],
    )  # fmt: skip


def _outermost(memory: Memory, state: int) -> tuple[tuple[int, ...], ...]:
    return _middle(memory, state)


def _middle(memory: Memory, state: int) -> tuple[tuple[int, ...], ...]:
    return _innermost(memory, state)


def _innermost(memory: Memory, state: int) -> tuple[tuple[int, ...], ...]:
    """(path to the innermost frame, offsets of its code, the frame before it, its instruction, a code object's first
    instruction). All in one function, which calls none of Python's: its own frame is the innermost one meanwhile."""
    codes = [id(_innermost.__code__), id(_middle.__code__), id(_outermost.__code__)]
    pread, file, unpack = os.pread, memory._file, struct.unpack
    caller, size = sys._getframe(1), _middle.__code__.__sizeof__()
    pending: list[tuple[tuple[int, ...], int]] = [((at,), word) for at, word in zip(range(0, STATE_BYTES, WORD), unpack(
        f"<{STATE_BYTES // WORD}Q", pread(file, STATE_BYTES, state)), strict=True)]  # fmt: skip
    while pending:
        path, address = pending.pop(0)
        if address < 1 << 16 or address % WORD or address >> 47:
            continue
        try:
            words = unpack(f"<{FRAME_BYTES // WORD}Q", pread(file, FRAME_BYTES, address))
        except (OSError, struct.error):
            continue
        for number, word in enumerate(words):
            if word & ~7 != codes[0]:
                if len(path) == 1 and number < 4:
                    pending.append(((path[0], number * WORD), word))
                continue
            for back, before in enumerate(words):
                try:
                    second = unpack(f"<{FRAME_BYTES // WORD}Q", pread(file, FRAME_BYTES, before))
                    third = unpack(f"<{FRAME_BYTES // WORD}Q", pread(file, FRAME_BYTES, second[back]))
                except (OSError, OverflowError, struct.error):
                    continue
                if second[number] & ~7 != codes[1] or third[number] & ~7 != codes[2]:
                    continue
                for at, within in enumerate(second):
                    if codes[1] < within < codes[1] + size:
                        start = within - caller.f_lasti - codes[1]
                        return path, (number * WORD, back * WORD, at * WORD, start)
    raise CannotLearn("no frame was found")


def _check(layout: Layout, memory: Memory, thread: int) -> None:
    """Compare the stack of a waiting thread with what Python says of it. Raises CannotLearn."""
    ident = next(one.ident for one in threading.enumerate() if one.native_id == thread)
    assert ident is not None
    expected, frame = [], sys._current_frames()[ident]
    while frame is not None:
        code, at = frame.f_code, frame.f_lasti // 2
        span = _span(*next(islice(code.co_positions(), at, None)))
        expected.append(Frame(code.co_filename, code.co_qualname, frame.f_lineno, span))
        frame = frame.f_back  # type: ignore[assignment]
    process = Process(os.getpid(), layout)
    read = next((one.frames() for one in process.threads() if one.number == thread), ())
    process.close()
    if list(read) != expected:
        raise CannotLearn("a stack that was read is not the one that Python reports")


def _runtime() -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))


# -- reading -----------------------------------------------------------------------------------------------------


class Process:
    """A process of the same Python, forked or started by itself."""

    def __init__(self, pid: int, layout: Layout) -> None:
        """Raises OSError where its memory may not be read, CannotLearn where it is of another Python."""
        self.pid, self._layout = pid, layout
        self.runtime = _runtime_of(pid)
        self._memory = Memory(pid)
        self._codes: dict[int, _Code] = {}
        self._roots: dict[int, str] = {}
        """State of a thread → the function that its stack began with."""
        moved = _base_of(pid) - _base_of("self")
        self._is_code, self._is_none = id(CodeType) + moved, id(type(None)) + moved

    def close(self) -> None:
        self._memory.close()

    def waits_for_gil(self, address: int) -> bool:
        """Whether a futex at this address is the GIL's: it lies in the runtime."""
        return self.runtime <= address < self.runtime + RUNTIME_BYTES

    def threads(self) -> Iterator[PythonThread]:
        """Those that run Python now."""
        layout, memory = self._layout, self._memory
        try:
            state = memory.word(memory.word(self.runtime + layout.interpreter) + layout.head)
        except Unreadable:  # it has ended
            return
        for _ in range(MOST_FRAMES):
            if not state:
                return
            try:
                fields = memory.read(state, STATE_BYTES // 2)
                thread = int.from_bytes(fields[layout.native_id : layout.native_id + WORD], "little")
                following = int.from_bytes(fields[layout.next_thread : layout.next_thread + WORD], "little")
            except Unreadable:
                return
            yield PythonThread(self, thread, state)
            state = following

    def frames_of(self, state: int) -> tuple[Frame, ...]:
        """A torn stack ends early: one that ends in the function that the thread began with is preferred."""
        frames: tuple[Frame, ...] = ()
        for _ in range(TRIES):
            try:
                frames = tuple(self._walk(state))
            except Unreadable:
                continue
            if frames and frames[-1].function == self._roots.setdefault(state, frames[-1].function):
                return frames
        if frames:
            self._roots[state] = frames[-1].function
        return frames

    def _walk(self, state: int) -> Iterator[Frame]:
        layout, memory = self._layout, self._memory
        address = state
        for offset in layout.frame:
            address = memory.word(address + offset)
        begin = max(0, address - CHUNK_BYTES + FRAME_BYTES)
        chunk = memory.upto(begin, CHUNK_BYTES)
        for _ in range(MOST_FRAMES):
            if not address:
                return
            at = address - begin
            if not 0 <= at <= len(chunk) - FRAME_BYTES:
                chunk, begin, at = memory.read(address, FRAME_BYTES), address, 0
            code, previous, instruction = (
                int.from_bytes(chunk[at + offset : at + offset + WORD], "little")
                for offset in (layout.code, layout.previous, layout.instruction)
            )
            known = self._code(code & ~7)
            if known is not None:
                yield known.frame_at(instruction - (code & ~7) - layout.instructions)
            address = previous

    def _code(self, address: int) -> _Code | None:
        """None for a frame between C and Python, which is no function's."""
        if not address:
            return None
        known = self._codes.get(address)
        kind = self._memory.word(address + WORD)
        if kind != self._is_code:
            self._codes.pop(address, None)
            if kind != self._is_none:
                raise Unreadable
            return None
        lines = self._memory.word(address + self._layout.lines)
        if known is None or known.lines_at != lines:  # another function lies where one was
            known = self._codes[address] = self._read_code(address, lines)
        return known

    def _read_code(self, address: int, lines_at: int) -> _Code:
        layout, memory = self._layout, self._memory
        first = int.from_bytes(memory.read(address + layout.first_line, 4), "little")
        return _Code(
            _text(memory, memory.word(address + layout.filename)),
            _text(memory, memory.word(address + layout.qualname)), first, lines_at, _bytes(memory, lines_at),
        )  # fmt: skip


class _Code:
    """A function's names, and where each of its instructions stands."""

    def __init__(self, file: str, function: str, first: int, lines_at: int, table: bytes) -> None:
        self.file, self.function, self.lines_at, self._first = file, function, lines_at, first
        self._table = table
        self._at: dict[int, Frame] = {}

    def frame_at(self, offset: int) -> Frame:
        """Raises Unreadable where the function has no such instruction."""
        found = self._at.get(offset)
        if found is None:
            if not 0 <= offset < MOST_BYTES:
                raise Unreadable
            try:
                code = _TEMPLATE.replace(
                    co_linetable=self._table, co_firstlineno=self._first, co_code=bytes(offset + 2)
                )
                positions = next(islice(code.co_positions(), offset // 2, None))
            except (ValueError, IndexError, StopIteration) as error:
                raise Unreadable from error
            line = positions[0] or self._first
            found = self._at[offset] = Frame(self.file, self.function, line, _span(*positions))
        return found


_TEMPLATE = (lambda: None).__code__


def _span(line: int | None, end_line: int | None, column: int | None, end_column: int | None) -> Span | None:
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return Span(line, end_line, column, end_column)


MOST_BYTES = 1 << 20


def _size(memory: Memory, address: int) -> int:
    size = memory.word(address + object.__basicsize__)
    if size > MOST_BYTES:
        raise Unreadable
    return size


def _bytes(memory: Memory, address: int) -> bytes:
    return memory.read(address + bytes.__basicsize__ - 1, _size(memory, address))


def _text(memory: Memory, address: int) -> str:
    """A string, as its state says that it is kept."""
    state = memory.read(address + _STATE_AT, 4)
    kept = _KEPT.get(_masked(state))
    if kept is None:
        raise Unreadable
    header, width, encoding = kept
    return memory.read(address + header, _size(memory, address) * width).decode(encoding, "replace")


_STATE_AT = object.__basicsize__ + 2 * WORD
"""In a string: after its length and hash."""


def _own_bytes(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def _masked(state: bytes) -> int:
    """Its kind and whether it is compact and ASCII: `PyASCIIObject.state` (cpython/unicodeobject.h); how it is interned
    stands before these, in two bits, since 3.14 in two bytes."""
    return state[2] & 0x1F if sys.version_info >= (3, 14) else state[0] & 0x7C


def _kept() -> dict[int, tuple[int, int, str]]:
    """State of a string → (bytes before its characters, bytes of each, encoding)."""
    found = {}
    for character, width, encoding in (("a", 1, "ascii"), ("\xe9", 1, "latin-1"), ("\u0416", 2, "utf-16-le"),
                                       ("\U0001f600", 4, "utf-32-le")):  # fmt: skip
        text = character * 7
        header = sys.getsizeof(text) - (len(text) + 1) * width
        found[_masked(_own_bytes(id(text) + _STATE_AT, 4))] = header, width, encoding
    return found


_KEPT = _kept()


# -- where the runtime is ----------------------------------------------------------------------------------------


def _runtime_of(pid: int) -> int:
    """Raises CannotLearn where the process runs another Python, OSError where it may not be looked at."""
    return _runtime() + _base_of(pid) - _base_of("self")


def _base_of(pid: int | str) -> int:
    """Where the file that holds the runtime is loaded. Raises CannotLearn, OSError."""
    inside = _file_of_runtime()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if (fields[3], fields[4]) == inside:
            return int(fields[0].partition("-")[0], 16)
    raise CannotLearn("the process runs another Python")


_found_file: list[tuple[str, str]] = []


def _file_of_runtime() -> tuple[str, str]:
    """(device, inode) of the binary, or of libpython."""
    if _found_file:
        return _found_file[0]
    address, last = _runtime(), ("", "0")
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        begin, end = (int(side, 16) for side in fields[0].split("-"))
        if fields[4] != "0":
            last = fields[3], fields[4]
        if begin <= address < end:  # its zeroed part lies after the file's
            _found_file.append(last)
            return last
    raise CannotLearn("the runtime was not found")
