"""Reads the trace files of torch.profiler (`export_chrome_trace`), in one pass and with little memory.

Format: "Trace Event Format" of the Chromium project, as libkineto's `output_json.cpp` fills it: one object whose
`traceEvents` lists the events; `ts` and `dur` are microseconds with three decimals, since `baseTimeNanoseconds`. The
text is read in chunks, and the standard library's C scanner decodes one event after another, so only a chunk and the
columns kept of each activity are in memory.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import zlib
from array import array
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from loaderbench.errors import ConfigError
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import COPY, KERNEL, MEMSET
from loaderbench.recording.trace_repair import LAST_EVENT, LONGEST_HEAD, NEXT_EVENT, repaired

ACTIVITY_FIELDS = (
    "begin_ns",
    "end_ns",
    "kind",  # KERNEL, COPY or MEMSET
    "device",
    "stream",
    "name",  # index into `names`
    "correlation",  # number of the call that launched it; -1 where unknown
)
ANNOTATION_FIELDS = ("begin_ns", "end_ns", "name")
LAUNCH_FIELDS = ("correlation", "begin_ns")

KINDS = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": MEMSET, "Kernel": KERNEL, "Memcpy": COPY, "Memset": MEMSET
}  # fmt: skip
"""Categories of what a device does; with a capital in traces of torch 1.8 to 1.11. (`gpu_user_annotation` and
`cuda_sync` are drawn on streams but occupy nothing.)"""
LAUNCHES = ("cuda_runtime", "cuda_driver", "Runtime")
RANGES = ("user_annotation",)
OPERATORS = ("Operator", "cpu_op")
"""Among the operators of old traces are the ranges of the host; only those with these names are kept."""
OLD_RANGES = ("ProfilerStep", "enumerate(DataLoader)#")
CHUNK_BYTES = 1 << 20
LONGEST_WORD = 16
"""Characters: a number, literal or escape that is cut by a chunk's end is noticed within this distance of the end."""
LARGEST_NS = 1 << 62
MOST_DIGITS = 19
"""Of a time in ns."""
MOST_VALUE_CHARS = 4 << 20
"""Longest event, or other single value: decoded, it takes up to 30 times its text."""
MOST_RATIO, LEAST_LIMIT = 100, 16 << 20
"""A gzipped trace's text may be so many times as long as its file, or LEAST_LIMIT bytes: traces shrink to a tenth, at
best to a fortieth."""
SPACE = re.compile(r"[ \t\n\r]*")
MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
"""Byte-order marks, and the encodings that they announce: what Windows tools write."""
LONGEST_MARK = 3
USED_MEMBER = re.compile(r'"(?:traceEvents"\s*:\s*\[|baseTimeNanoseconds"\s*:)')
LONGEST_KEY = 64
"""Characters of a match of USED_MEMBER, at most."""


@dataclass(frozen=True)
class KinetoTrace:
    """What a trace file tells about a device's work and the host's steps. All times are on the trace's own clock."""

    num_events: int
    """Events of every kind, including those not kept."""
    num_unusable: int
    """Device activities without a usable `ts` or `dur`: left out."""
    num_repaired: int
    """Events that are not JSON and could be read after a repair; `num_events` includes them."""
    num_malformed: int
    """Events that are not JSON and could not be repaired: left out."""
    base_ns: int | None
    """Unix time of the trace's 0; None where the file does not say (absolute times before torch 2.4)."""
    names: list[str]
    activities: NDArray[np.int64]
    """[N, len(ACTIVITY_FIELDS)] in order of `begin_ns`: kernels, copies and memsets of all devices and streams."""
    annotations: NDArray[np.int64]
    """[M, len(ANNOTATION_FIELDS)] in order of `begin_ns`: the host's `record_function` ranges and ProfilerStep#N."""
    launches: NDArray[np.int64]
    """[L, len(LAUNCH_FIELDS)] in order of `correlation`: the host's calls into the CUDA runtime and driver."""


def traces_in(folder: Path) -> list[Path]:
    """List the traces of a folder, the newest last: those of `tensorboard_trace_handler` below it, else all JSON in it.

    Raises:
        ConfigError: the folder has none, or cannot be read.
    """
    try:
        named = [path for end in (".pt.trace.json", ".pt.trace.json.gz") for path in folder.rglob(f"*{end}")]
        traces = named or [path for end in (".json", ".json.gz") for path in folder.glob(f"*{end}")]
        traces = [path for path in traces if path.is_file()]
        if traces:
            return sorted(traces, key=lambda path: (path.stat().st_mtime_ns, path.name))
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror or error}") from error
    raise ConfigError(f"{folder} has no trace: give a file, or the folder of torch.profiler.tensorboard_trace_handler")


def read_kineto(path: str | Path, progress: Callable[[int, int], None] | None = None) -> KinetoTrace:
    """Read a trace file, plain or gzipped. `progress(bytes read, bytes in all)` is called after each chunk.

    Raises:
        ConfigError: the file cannot be read, is not a trace, is damaged, or was cut off.
    """
    columns = _Columns()
    try:
        with open(path, "rb") as raw:
            text = _Text(raw, str(path), progress)
            _read_document(text, columns)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    return columns.finish(text.num_repaired, text.num_malformed)


class _Columns:
    """What is kept of each event, in flat arrays of int64."""

    def __init__(self) -> None:
        self.num_events = self.num_unusable = 0
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        """Events of a track that have begun (`ph` B) and not ended (E)."""
        self.base_ns: int | None = None
        self._names: dict[str, int] = {}
        self._activities, self._annotations, self._launches = array("q"), array("q"), array("q")

    def add(self, event: dict[str, Any]) -> None:
        """Keep the useful parts of one event."""
        phase = event.get("ph")
        if phase == "B" or phase == "E":
            ended = self._paired(event, begins=phase == "B")
            if ended is None:
                return
            event = ended
        category = _text(event.get("cat"))
        if category in KINDS:
            self._add_activity(event, KINDS[category])
        elif category in LAUNCHES:
            correlation = _whole(_args(event).get("correlation"))
            begin_ns = _ns(event.get("ts"))
            if correlation >= 0 and begin_ns is not None:
                self._launches.extend((correlation, begin_ns))
        elif category in RANGES or (category in OPERATORS and _text(event.get("name")).startswith(OLD_RANGES)):
            times = _times(event)
            if times is not None:
                self._annotations.extend((*times, self._name(event)))

    def _paired(self, event: dict[str, Any], *, begins: bool) -> dict[str, Any] | None:
        """Join an event's begin with its end to one of `ph` X; None until its end is there."""
        track = self._open.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
        if begins:
            track.append(event)
            return None
        begun = track.pop() if track else {}
        begin_ns, end_ns = _ns(begun.get("ts")), _ns(event.get("ts"))
        if begin_ns is None or end_ns is None:
            return begun
        return begun | {"ph": "X", "dur": Decimal(end_ns - begin_ns) / 1000}

    def _add_activity(self, event: dict[str, Any], kind: int) -> None:
        times, args = _times(event), _args(event)
        if times is None:
            self.num_unusable += 1
            return
        device = _whole(args.get("device", event.get("pid")))
        stream = _whole(args.get("stream", event.get("tid")))
        self._activities.extend((*times, kind, device, stream, self._name(event), _whole(args.get("correlation"))))

    def _name(self, event: dict[str, Any]) -> int:
        return self._names.setdefault(_text(event.get("name")), len(self._names))

    def finish(self, num_repaired: int, num_malformed: int) -> KinetoTrace:
        self.num_unusable += sum(_text(event.get("cat")) in KINDS for track in self._open.values() for event in track)
        return KinetoTrace(
            self.num_events,
            self.num_unusable,
            num_repaired,
            num_malformed,
            self.base_ns,
            list(self._names),
            _ordered(self._activities, len(ACTIVITY_FIELDS)),
            _ordered(self._annotations, len(ANNOTATION_FIELDS)),
            _ordered(self._launches, len(LAUNCH_FIELDS)),
        )


def _ordered(values: array[int], width: int) -> NDArray[np.int64]:
    table = np.frombuffer(values, dtype=np.int64).reshape(-1, width)
    return table[np.argsort(table[:, 0], kind="stable")]


def _times(event: dict[str, Any]) -> tuple[int, int] | None:
    """(begin_ns, end_ns) of a complete event; None where it has no usable time or duration."""
    begin_ns, length_ns = _ns(event.get("ts")), _ns(event.get("dur"))
    if event.get("ph") != "X" or begin_ns is None or length_ns is None or length_ns < 0:
        return None
    end_ns = begin_ns + length_ns
    return (begin_ns, end_ns) if end_ns < LARGEST_NS else None


def _ns(microseconds: Any) -> int | None:
    """Microseconds as in the file (`123.456`) → whole ns, without a double between: absolute times have 19 digits."""
    try:
        exact = Decimal(microseconds) * 1000
        if exact.adjusted() >= MOST_DIGITS:  # 1e999999 would become a number of a million digits
            return None
        value = round(exact)
    except (DecimalException, TypeError, ValueError, OverflowError):
        return None
    return value if abs(value) < LARGEST_NS else None


def _text(value: Any) -> str:
    """A name; "" for what is none."""
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    """A stream, device or correlation; -1 where it is missing."""
    return value if type(value) is int and abs(value) < LARGEST_NS else -1


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _read_document(text: _Text, columns: _Columns) -> None:
    """The whole file: an object with `traceEvents`, or the format's other form, the bare list of events."""
    found = False
    first = text.peek()
    if first == "[":
        _read_events(text, columns, open_end=True)
        return
    if first != "{":
        raise text.no_trace("it is empty" if not first else "it is not JSON")
    members = text.members()
    while True:
        try:
            for key in members:
                if key == "traceEvents" and text.peek() == "[":
                    found = True
                    _read_events(text, columns)
                elif key == "baseTimeNanoseconds":
                    columns.base_ns = _whole(text.value())
                else:
                    text.value()
            break
        except _Malformed:  # of a member that is not read, or was read to its end: the log in INFO, a device's name
            if not text.next_used():
                if not found:
                    raise
                break
            text.num_malformed += 1
            members = text.members(inside=True)
    if not found:
        raise text.no_trace("it has no list traceEvents")


def _read_events(text: _Text, columns: _Columns, *, open_end: bool = False) -> None:
    for event in text.elements(open_end=open_end):
        if not isinstance(event, dict):
            raise text.no_trace("its traceEvents are not objects")
        columns.num_events += 1
        text.num_events = columns.num_events + text.num_malformed
        columns.add(event)


class _Malformed(ConfigError):
    """A value that is not JSON."""


class _Text:
    """A position in a JSON text of any length; holds one chunk and the rest of the one before."""

    def __init__(self, raw: BinaryIO, path: str, progress: Callable[[int, int], None] | None) -> None:
        self.num_events = self.num_repaired = self.num_malformed = 0
        """Complete events so far, for messages; those that are not JSON and were repaired, or left out."""
        self._raw, self._path, self._progress = raw, path, progress
        self._size = os.fstat(raw.fileno()).st_size
        self._zipped, self._num_read = raw.read(2) == b"\x1f\x8b", 0
        raw.seek(0)
        self._file: Any = gzip.GzipFile(fileobj=raw) if self._zipped else raw
        self._decoder: IncrementalDecoder | None = None
        """Chosen by the first bytes."""
        # Numbers with a decimal point stay as they are written: times are converted exactly, the rest is not needed.
        # Not strict: Kineto leaves line ends and tabs in names unescaped.
        self._scan = json.JSONDecoder(parse_float=str, strict=False).raw_decode
        self._text, self._at, self._num_passed, self._ended = "", 0, 0, False

    def peek(self) -> str:
        """The next character that is not white space; "" at the end of the file."""
        while True:
            match = SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._refill():
                return ""

    def value(self) -> Any:
        """The JSON value that begins here; if the chunk's end cuts it, it is decoded again with more text."""
        self.peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if not isinstance(error, json.JSONDecodeError | RecursionError):  # of int()
                    digits = sys.get_int_max_str_digits()
                    raise self._damaged(f"a number of more than {digits:,} digits", self._at) from None
                message = getattr(error, "msg", str(error))
                place = getattr(error, "pos", self._at) - self._at  # from the value's begin, which a refill moves
                self._go_on(message, place)
                continue
            length = end - self._at
            if end < len(self._text) or not self._refill():  # a number may go on in the next chunk
                self._at += length
                return value

    def _go_on(self, message: str, place: int) -> None:
        """Read more text after a value that could not be decoded, unless `message` shows that more text cannot help."""
        if len(self._text) - self._at > MOST_VALUE_CHARS:
            raise ConfigError(str(self._damaged(f"a value of more than {MOST_VALUE_CHARS:,} characters", self._at)))
        unterminated = message.startswith("Unterminated string")
        if not unterminated and place <= len(self._text) - self._at - LONGEST_WORD:
            raise self._damaged(message, self._at + place)
        if self._refill():
            return
        rest = self._text.rstrip()
        if not unterminated and place < len(rest) and rest.endswith(("}", "]")):
            raise self._damaged(message, place)
        raise self._cut_off()

    def elements(self, *, open_end: bool = False) -> Iterator[Any]:
        """The values of the list that begins here. `open_end`: its bracket may be missing, as the format allows."""
        self._expect("[")
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield from self._element()
            if open_end and not self.peek():
                return
            ends = self._expect(",]") == "]"
            if not ends and self.peek() == "]":  # a comma after the last event, which writers in loops leave
                ends = bool(self._expect("]"))
            if ends or (open_end and not self.peek()):
                return

    def _element(self) -> Iterator[Any]:
        """The next value; nothing for one that is not JSON and cannot be repaired. Moves to what separates values."""
        self.peek()
        begin = self._num_passed + self._at
        try:
            value = self.value()
            found = self.peek()
            if not found or found in ",]":
                yield value
                return
            problem = self._damaged(f"found {found!r} instead of , or ]", self._at)  # a quote in a name ended it early
            if begin >= self._num_passed:  # still held: the whole event can be repaired
                self._at = begin - self._num_passed
        except _Malformed as malformed:
            problem = malformed
        event = self._repaired_event(problem)
        if event is None:
            self.num_malformed += 1
        else:
            self.num_repaired += 1
            yield event

    def _repaired_event(self, problem: _Malformed) -> JsonObject | None:
        """Move to the end of the event that begins here and is not JSON; the event, if it can be repaired."""
        while True:
            end = NEXT_EVENT.search(self._text, self._at)
            if end is not None and (self._ended or end.end() + LONGEST_HEAD < len(self._text)):
                break
            if len(self._text) - self._at > MOST_VALUE_CHARS:
                raise ConfigError(str(problem))
            if not self._refill():
                end = NEXT_EVENT.search(self._text, self._at) or self._last_end()
                break
        if end is None:
            raise ConfigError(str(problem))
        begin, self._at = self._at, end.start() + 1
        return repaired(self._text[begin : self._at])

    def _last_end(self) -> re.Match[str] | None:
        """The end of the file's last event, if the file is whole."""
        if not self._text.rstrip().endswith(("}", "]")):
            raise self._cut_off()
        return LAST_EVENT.search(self._text, self._at)

    def next_used(self) -> bool:
        """Move to the next member that is read, past one that is not JSON; False where the file has no more."""
        self._at += 1
        while True:
            found = USED_MEMBER.search(self._text, self._at)
            if found is not None:
                self._at = found.start()
                return True
            self._at = max(self._at, len(self._text) - LONGEST_KEY)
            if not self._refill():
                return False

    def members(self, *, inside: bool = False) -> Iterator[str]:
        """The keys of the object that begins or continues here; the caller takes the value after each key."""
        if not inside:
            self._expect("{")
            if self.peek() == "}":
                return
        while True:
            if self.peek() != '"':
                self._expect('"')
            key = self.value()
            self._expect(":")
            yield key
            if self._expect(",}") == "}":
                return

    def _expect(self, characters: str) -> str:
        found = self.peek()
        if not found:
            raise self._cut_off()
        if found not in characters:
            raise self._damaged(f"found {found!r} instead of {' or '.join(characters)}", self._at)
        self._at += 1
        return found

    def _refill(self) -> bool:
        """Append one more chunk to the text not taken yet; False at the end of the file."""
        if self._ended:
            return False
        try:
            chunk = self._file.read1(CHUNK_BYTES)
        except EOFError:  # gzip raises it for a file that was cut off
            chunk = b""
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ConfigError(
                f"{self._path} is damaged after event {self.num_events:,} ({error}); export or copy it again"
            ) from error
        while self._decoder is None and len(chunk) < LONGEST_MARK and (more := self._file.read1(CHUNK_BYTES)):
            chunk += more
        self._num_read += len(chunk)
        if self._zipped and self._num_read > max(LEAST_LIMIT, MOST_RATIO * self._size):
            raise ConfigError(
                f"{self._path} does not look like a trace of torch: its text is more than {MOST_RATIO} times as long "
                "as the file. Unpack it and give the .json"
            )
        self._ended = not chunk
        self._num_passed += self._at
        if self._decoder is None:
            encoding = next((name for mark, name in MARKS.items() if chunk.startswith(mark)), "utf-8")
            self._decoder = getincrementaldecoder(encoding)("replace")
        self._text = self._text[self._at :] + self._decoder.decode(chunk, self._ended)
        self._at = 0
        if self._progress is not None:
            self._progress(self._raw.tell(), self._size)
        return not self._ended

    def _cut_off(self) -> ConfigError:
        return ConfigError(
            f"{self._path} is cut off after event {self.num_events:,}: the trace was not written to its end "
            "(full disk, ended process, broken copy); export or copy it again"
        )

    def _damaged(self, message: str, position: int) -> _Malformed:
        at = self._num_passed + position
        return _Malformed(
            f"{self._path} is not valid JSON after event {self.num_events:,}, character {at:,} ({message}); export "
            "or copy it again"
        )

    def no_trace(self, why: str) -> ConfigError:
        return ConfigError(f"{self._path} is not a trace of torch.profiler (export_chrome_trace): {why}")
