"""How User-Mode Linux is booted on each kind of processor: by kernels that a script plays, and by real registers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loaderbench import native
from loaderbench.doctor import MISSING, OK
from loaderbench.errors import UnavailableError
from loaderbench.selftest import uml
from loaderbench.selftest.doctor import examine_beds

RAN = "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000000"
PANICKED = "Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b"
LIBRARY = Path("/no/such/library.so")
BUILD = native.build

PTRACE_ATTACH, PTRACE_GETREGSET, PTRACE_SETREGSET, NT_X86_XSTATE = 0x10, 0x4204, 0x4205, 0x202
XMM0 = slice(160, 176)
"""Of the XSAVE area: the first vector register's lower half (Intel's manual, volume 1, 13.4)."""
USED_PARTS = slice(512, 520)
"""Of the XSAVE area: a bit for each part that is not in its first state; bit 1: the lower halves."""

Kernel = Callable[..., Path]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Installs a `linux.uml` that says one line without the library and one with it; returns the log of its boots."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ip", "tc", "mkfs.ext4"):
        (programs / name).touch(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(uml, "MODULES_FOLDER", str(tmp_path))
    monkeypatch.setattr(uml, "BOOT_ID", tmp_path / "boot_id")
    monkeypatch.setattr(native, "build", lambda source: LIBRARY)
    uml.BOOT_ID.write_text("first\n")
    log = tmp_path / "boots"

    def install(alone: str, with_library: str = RAN) -> Path:
        script = f'echo "$LD_PRELOAD" >> {log}\n[ -z "$LD_PRELOAD" ] && echo "{alone}" || echo "{with_library}"\n'
        (programs / "linux.uml").write_text("#!/bin/sh\n" + script)
        (programs / "linux.uml").chmod(0o755)
        return log

    return install


def boots(log: Path) -> list[str]:
    """What was preloaded at each boot so far."""
    return log.read_text().splitlines()


def bed_finding() -> tuple[str, str, str | None]:
    (finding,) = [one for one in examine_beds() if one.name == "test bed uml_nfs"]
    return finding.state, finding.what, finding.enable


def test_a_kernel_that_runs_by_itself_gets_no_library(kernel: Kernel) -> None:
    log = kernel(RAN, with_library=PANICKED)
    assert uml.preloaded() is None
    assert boots(log) == [""]
    assert bed_finding()[0] == OK


def test_a_kernel_that_panics_at_its_first_process_gets_the_library(kernel: Kernel) -> None:
    log = kernel(PANICKED)
    assert uml.preloaded() == LIBRARY
    assert boots(log) == ["", str(LIBRARY)]
    assert bed_finding()[0] == OK


def test_a_trial_holds_until_the_machine_starts_again_or_the_kernel_is_another(kernel: Kernel) -> None:
    log = kernel(PANICKED)
    for _ in range(3):
        assert uml.preloaded() == LIBRARY
    assert len(boots(log)) == 2
    uml.BOOT_ID.write_text("second\n")
    assert uml.preloaded() == LIBRARY
    assert len(boots(log)) == 4
    # a newer kernel, which does not need it
    kernel(RAN)
    assert uml.preloaded() is None
    assert len(boots(log)) == 5


def test_where_neither_way_works_the_reason_is_named_and_kept(kernel: Kernel) -> None:
    log = kernel(PANICKED, with_library=PANICKED)
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"does not run on this CPU .*exitcode=0x0000000b"):
            uml.check_available()
    assert len(boots(log)) == 2
    state, what, step = bed_finding()
    assert state == MISSING
    assert "does not run on this CPU" in what
    assert step is not None and "6.13" in step


def test_without_a_compiler_the_reason_names_its_package(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(PANICKED)
    monkeypatch.setattr(native, "build", BUILD)
    monkeypatch.setenv("CC", "no-such-cc")
    state, what, step = bed_finding()
    assert (state, step) == (MISSING, "`apt-get install gcc`")
    assert "needs a library" in what and "no-such-cc not found" in what
    # and it is tried again once there is one
    monkeypatch.setattr(native, "build", lambda source: LIBRARY)
    assert uml.preloaded() == LIBRARY


def test_a_kernel_that_did_not_come_so_far_is_tried_again(kernel: Kernel) -> None:
    # given a container that forbids tracing, until it no longer does
    log = kernel("check_ptrace : ptrace failed: Operation not permitted")
    with pytest.raises(UnavailableError, match="does not boot: check_ptrace : ptrace failed"):
        uml.check_available()
    assert "Operation not permitted" in bed_finding()[1]
    kernel(RAN)
    assert uml.preloaded() is None
    assert boots(log) == ["", "", ""]


class _Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t))


def _registers(ptrace: Callable[..., int], request: int, pid: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
    """Read or write a stopped process's registers; returns how many bytes of the buffer they take."""
    part = _Part(ctypes.addressof(buffer), len(buffer))
    if ptrace(request, pid, ctypes.c_void_p(NT_X86_XSTATE), ctypes.byref(part)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return part.num_bytes


@pytest.fixture
def stopped() -> Iterator[int]:
    """A process that this one traces."""
    with subprocess.Popen(["sleep", "60"]) as process:
        attached = ctypes.CDLL(None).ptrace(PTRACE_ATTACH, process.pid, None, None)
        if attached == 0:
            os.waitpid(process.pid, os.WUNTRACED)
            yield process.pid
        process.kill()
        process.wait()
        if attached != 0:
            pytest.skip("this container forbids tracing")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the registers of x86-64")
def test_the_library_writes_registers_of_which_only_the_first_bytes_are_given(stopped: int) -> None:
    try:
        library = native.build(uml.REGISTERS_SOURCE)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    plain, helped = (ctypes.CDLL(path, use_errno=True).ptrace for path in (None, str(library)))
    before = ctypes.create_string_buffer(1 << 16)
    num_bytes = _registers(plain, PTRACE_GETREGSET, stopped, before)
    # given all but the last of them, one changed: the host refuses them
    given = ctypes.create_string_buffer(before.raw[: num_bytes - 8], num_bytes - 8)
    given[USED_PARTS.start] = bytes([given.raw[USED_PARTS.start] | 0b10])
    given[XMM0] = b"sixteen bytes ok"
    with pytest.raises(OSError, match="Bad address"):
        _registers(plain, PTRACE_SETREGSET, stopped, given)
    # when the library writes them, then they are the process's, and the rest of its registers is as before
    ctypes.set_errno(0)
    _registers(helped, PTRACE_SETREGSET, stopped, given)
    assert ctypes.get_errno() == 0  # no try failed: what it said could be overwritten by an interrupt of the kernel's
    after = ctypes.create_string_buffer(1 << 16)
    assert _registers(helped, PTRACE_GETREGSET, stopped, after) == num_bytes
    assert after.raw[XMM0] == b"sixteen bytes ok"
    assert after.raw[576:num_bytes] == before.raw[576:num_bytes]
    # and what the host takes or refuses for other reasons is not changed
    with pytest.raises(OSError, match="No such process"):
        _registers(helped, PTRACE_SETREGSET, os.getpid(), given)
