"""User-Mode Linux, a kernel that runs as an ordinary process: how this machine can boot it. The tests' NFS bed does.

Kernels before 6.13 end at their first process on processors whose registers take more room than they allow for (Intel
with AMX). There a small C library, preloaded, helps them (uml_registers.c). Which of the two ways a machine needs is
tried with a first process that does nothing, once after each start of the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from loaderbench import native, neutral
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.images.files import exclusive, replace_file
from loaderbench.interrupts import interrupts_held
from loaderbench.selftest.base import Resources, beds_folder, find_program, kill_session, workspace

MODULES_FOLDER = "/usr/lib/uml/modules"
"""Where Debian's user-mode-linux keeps its kernel modules, by release."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
REGISTERS_SOURCE = Path(__file__).with_name("uml_registers.c")
TRIAL_PROCESS = "/bin/true"
TRIAL_SUCCEEDED = "Attempted to kill init! exitcode=0x00000000"
"""The panic of any Linux whose first process ended well (kernel/exit.c)."""
TRIAL_TIMEOUT_S = 60.0


def check_available() -> None:
    """Check that this machine can boot User-Mode Linux, by booting it.

    Raises:
        UnavailableError: a missing package, or a processor that it does not exist for or does not run on.
    """
    if os.uname().machine not in ("x86_64", "i686"):
        raise UnavailableError(f"uml_nfs needs an x86 CPU: User-Mode Linux does not exist for {os.uname().machine}")
    find_program("linux.uml", "user-mode-linux")
    if not Path(MODULES_FOLDER).is_dir():
        raise UnavailableError(f"uml_nfs needs {MODULES_FOLDER}; install the Debian package user-mode-linux")
    for program, package in (
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("mkfs.ext4", "e2fsprogs"),
        ("setpriv", "util-linux"),
    ):
        find_program(program, package)
    preloaded()


def preloaded() -> Path | None:
    """The library that User-Mode Linux needs on this machine; None where it runs by itself.

    Raises:
        UnavailableError: it runs neither way, or the library cannot be built.
    """
    kept = beds_folder() / "uml-trial"
    with exclusive(kept.with_suffix(".lock")):
        key = _trial_key()
        found = json.loads(kept.read_text()) if kept.exists() else {}
        if found.get("key") != key:
            found = {"key": key} | _try_both_ways()
            with replace_file(kept) as file:
                file.write(json.dumps(found).encode())
    if found["panic"] is not None:
        raise UnavailableError(
            f"User-Mode Linux does not run on this CPU ({found['panic']}); install user-mode-linux 6.13 or "
            "newer, or use another machine"
        )
    return _build_library() if found["preload"] else None


def _trial_key() -> list[str]:
    """What a trial's result holds for: this boot of the machine, this kernel, this library."""
    kernel = find_program("linux.uml", "user-mode-linux")
    file = Path(kernel).stat()
    library = hashlib.sha256(REGISTERS_SOURCE.read_bytes()).hexdigest()
    return [BOOT_ID.read_text().strip(), kernel, str(file.st_size), str(file.st_mtime_ns), library]


def _try_both_ways() -> dict[str, str | bool | None]:
    """{"preload": whether the library is needed, "panic": what the kernel said at its end, if neither way works}."""
    if _panic_of_trial(None) is None:
        return {"preload": False, "panic": None}
    return {"preload": True, "panic": _panic_of_trial(_build_library())}


def _build_library() -> Path:
    try:
        return native.build(REGISTERS_SOURCE)
    except UnavailableError as error:
        raise UnavailableError(
            f"User-Mode Linux needs a library on this CPU, and it cannot be built: {error}"
        ) from error


def _panic_of_trial(library: Path | None) -> str | None:
    """Boot to a first process that does nothing. Returns None if it ran, else the kernel's last words.

    Raises:
        UnavailableError: neither is known, since the kernel did not get as far.
    """
    with workspace("uml") as resources:
        try:
            console = boot(resources, [f"init={TRIAL_PROCESS}"], "64M", TRIAL_TIMEOUT_S, library)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"User-Mode Linux did not boot within {TRIAL_TIMEOUT_S:g} s") from None
        said = console.read_text(errors="replace")
        if TRIAL_SUCCEEDED in said:
            return None
        panics = [line.strip() for line in said.splitlines() if "Kernel panic" in line]
        if not panics:
            raise UnavailableError(f"User-Mode Linux does not boot: {last_line(console)}")
        return panics[0]


def memory_bytes(memory: str) -> int:
    """`4G` or `512M` in bytes. Raises ConfigError for anything else."""
    units = {"M": 1 << 20, "G": 1 << 30}
    if not memory[:-1].isdigit() or memory[-1:] not in units:
        raise ConfigError(f"memory of uml_nfs must look like 4G or 512M, not '{memory}'")
    return int(memory[:-1]) * units[memory[-1]]


def last_line(console: Path) -> str:
    lines = [line for line in console.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def boot(resources: Resources, arguments: Sequence[str], memory: str, timeout_s: float, library: Path | None) -> Path:
    """Run the kernel to its end on the host's root tree, read-only; returns the file of its console's output.

    Raises:
        subprocess.TimeoutExpired: it did not end by itself.
    """
    folder = Path(resources.folder)
    console = folder / "console.txt"
    kernel = [find_program("linux.uml", "user-mode-linux"), f"mem={memory}", "rootfstype=hostfs", "rootflags=/", "ro"]
    kernel += [f"uml_dir={folder}", "con0=null,fd:1", "con=null", "ssl=null", "quiet", *arguments]
    # The guest's memory is a file; on a disk every page of it would be written back.
    big_enough = Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > memory_bytes(memory)
    environment = os.environ | {"TMPDIR": "/dev/shm" if big_enough else str(folder)}
    if library is not None:
        environment["LD_PRELOAD"] = ":".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    # Raised within Popen, an interrupt would leave a process that nobody knows.
    with interrupts_held(), console.open("wb") as output:
        uml = subprocess.Popen(
            [find_program("setpriv", "util-linux"), "--pdeathsig", "KILL", *kernel],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
            cwd=neutral.FOLDER,
        )
        resources.sessions.append(uml.pid)
        resources.save()
    try:
        uml.wait(timeout_s)
    finally:
        kill_session(uml.pid, str(folder))  # UML leaves its I/O threads behind when it is killed itself
        uml.wait()
        resources.sessions.clear()
        resources.save()
    return console
