"""nvtx_times.c behind a stand-in for NVTX, and behind the real one that DALI brings."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loaderbench import native
from loaderbench.errors import UnavailableError
from loaderbench.loaders import nvtx_times

Push = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
Pop = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
OfText = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
Register = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
ExportTable = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
ModuleTable = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
)


class Callbacks(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("module_table", ModuleTable))


class Attributes(ctypes.Structure):
    """nvtxEventAttributes_t as nvToolsExt.h describes it: 48 bytes, the message last."""

    _fields_ = (
        ("version", ctypes.c_uint16), ("size", ctypes.c_uint16), ("category", ctypes.c_uint32),
        ("color_type", ctypes.c_int32), ("color", ctypes.c_uint32), ("payload_type", ctypes.c_int32),
        ("reserved", ctypes.c_int32), ("payload", ctypes.c_uint64), ("message_type", ctypes.c_int32),
        ("message", ctypes.c_void_p),
    )  # fmt: skip


class FakeNvtx:
    """What NVTX does with an injection library: hands it a table of slots, and calls what it puts there."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self._functions = (ctypes.c_void_p * 17)()
        self._slots = (ctypes.c_void_p * 17)(
            *(ctypes.addressof(self._functions) + number * ctypes.sizeof(ctypes.c_void_p) for number in range(17))
        )

        def module_table(
            module: int, table: ctypes._Pointer[ctypes.c_void_p], size: ctypes._Pointer[ctypes.c_uint]
        ) -> int:
            assert module == 5  # CORE2: the functions of domains
            table[0], size[0] = ctypes.addressof(self._slots), 16  # type: ignore[call-overload]
            return 1

        self._callbacks = Callbacks(ctypes.sizeof(Callbacks), ModuleTable(module_table))
        self._export = ExportTable(lambda table: ctypes.addressof(self._callbacks) if table == 1 else None)
        assert self.library.InitializeInjectionNvtx2(self._export) == 1
        self._push, self._pop = Push(self._functions[4]), Pop(self._functions[5])
        self.register, self.domain = Register(self._functions[10]), OfText(self._functions[12])

    def push(self, domain: int, text: bytes | None = None, registered: int | None = None) -> None:
        event = Attributes(3, 48)
        if registered is None:
            event.message_type, event.message = 1, ctypes.cast(text, ctypes.c_void_p)
        else:
            event.message_type, event.message = 3, registered
        self._push(domain, ctypes.addressof(event))

    def pop(self, domain: int) -> None:
        self._pop(domain)


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeNvtx]:
    """A copy of the library of this test's own, read by nvtx_times."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(nvtx_times.VARIABLE, "")  # so that what `inject` sets is taken back
    monkeypatch.delenv(nvtx_times.VARIABLE)
    try:
        library = native.build(nvtx_times.SOURCE)
    except UnavailableError as error:
        pytest.skip(str(error))
    assert nvtx_times.inject() is None
    yield FakeNvtx(library)


def test_times_and_counts_by_name_with_what_lies_within(nvtx: FakeNvtx) -> None:
    dali = nvtx.domain(b"DALI")
    for number in range(3):
        nvtx.push(dali, b"outer #%d" % number)
        time.sleep(0.01)
        nvtx.push(dali, b"inner")
        time.sleep(0.02)
        nvtx.pop(dali)
        nvtx.pop(dali)
    found = nvtx_times.read()
    assert set(found) == {"outer", "inner"}
    outer, inner = found["outer"], found["inner"]
    assert (outer.num_ranges, inner.num_ranges) == (3, 3)
    assert inner.ns >= 3 * 20_000_000
    assert outer.ns - inner.ns >= 3 * 10_000_000


def test_only_dalis_domain_counts_and_a_lonely_end_does_no_harm(nvtx: FakeNvtx) -> None:
    dali, other = nvtx.domain(b"DALI"), nvtx.domain(b"cuDNN")
    nvtx.pop(dali)
    nvtx.push(other, b"convolution")
    nvtx.push(dali, registered=nvtx.register(dali, b"registered"))
    nvtx.pop(other)
    nvtx.pop(dali)
    assert {name: one.num_ranges for name, one in nvtx_times.read().items()} == {"registered": 1}


def test_deep_nests_and_long_names_are_kept_in_bounds(nvtx: FakeNvtx) -> None:
    dali = nvtx.domain(b"DALI")
    for depth in (64, 100):
        for _ in range(depth):
            nvtx.push(dali, b"x" * 500)
        for _ in range(depth):
            nvtx.pop(dali)
        if depth == 64:
            assert {name: one.num_ranges for name, one in nvtx_times.read().items()} == {"x" * 95: 64}
    with pytest.raises(nvtx_times.LostRanges, match="36 of DALI's ranges"):
        nvtx_times.read()


def test_threads_that_meet_a_name_at_once_make_one_entry_and_lose_nothing(nvtx: FakeNvtx) -> None:
    dali, start = nvtx.domain(b"DALI"), threading.Barrier(8)

    def work() -> None:
        start.wait()
        for number in range(500):
            nvtx.push(dali, b"name %d" % (number % 50))
            nvtx.pop(dali)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: one.num_ranges for name, one in nvtx_times.read().items()} == {f"name {n}": 80 for n in range(50)}


def test_more_names_than_there_is_room_for_are_counted_as_lost(nvtx: FakeNvtx) -> None:
    dali = nvtx.domain(b"DALI")
    for number in range(1100):
        nvtx.push(dali, b"name %d" % number)
        nvtx.pop(dali)
        if number == 1023:
            assert len(nvtx_times.read()) == 1024
    with pytest.raises(nvtx_times.LostRanges, match="76 of DALI's ranges"):
        nvtx_times.read()


def test_another_receiver_and_a_missing_compiler_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-cc")
    assert "no C compiler" in str(nvtx_times.inject())
    monkeypatch.delenv("CC")
    monkeypatch.setenv(nvtx_times.VARIABLE, "/opt/nsight/receiver.so")
    assert "another tool" in str(nvtx_times.inject()) or "no C compiler" in str(nvtx_times.inject())


DALI_IN_ONE_THREAD = """
import json, sys, time
from loader_cases import build, context_for
loader = build("dali", context_for("dali", sys.argv[1], workers=1, input_size=64, output="float32"))
assert loader.no_stage_times is None, loader.no_stage_times
batches = loader.batches()
for _ in range(4): next(batches)
before, begun = loader.stage_times(), time.perf_counter_ns()
for _ in range(200): next(batches)
after, wall = loader.stage_times(), time.perf_counter_ns() - begun
batches.close()
loader.close()
print(json.dumps([{name: [after[name][n] - before[name][n] for n in (0, 1)] for name in after}, wall]))
"""


def test_dali_tells_its_stages(image_tree: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed: pip install 'loaderbench[dali]'")
    try:
        native.compiler()
    except UnavailableError as error:
        pytest.skip(str(error))
    # In a process of its own: NVTX looks for a receiver once.
    folder = Path(__file__).parent.parent / "conformance"
    environ = {name: value for name, value in os.environ.items() if name != nvtx_times.VARIABLE}
    command = [sys.executable, "-c", DALI_IN_ONE_THREAD, str(image_tree)]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stages, wall_ns = json.loads(done.stdout)
    assert set(stages) == {"read", "decode", "resize", "normalize"}
    assert all(abs(num - 200) <= 8 for num, _ in stages.values())  # what is ahead may differ at the two ends
    operators = sum(ns for name, (_, ns) in stages.items() if name != "read")
    assert 0.5 * wall_ns < operators < 1.05 * wall_ns
    assert stages["decode"][1] > stages["normalize"][1] > 0
