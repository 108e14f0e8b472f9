"""First process inside User-Mode Linux: serve an ext4 image over NFS to itself, run one command, power off.

Run by the UML kernel as `python -I -S uml_init.py CONFIG.json` on the host's own root tree, mounted
read-only; uses nothing but the standard library, ip and tc. What it finds out goes to files in the
output folder, which is the host's.

The kernel's NFS server needs no user-space program here. Its three caches, which rpc.mountd would fill
on demand, are written once (the line formats are parsed by fs/nfsd/export.c and net/sunrpc/svcauth_unix.c),
and its listening socket is handed over by number (fs/nfsd/nfsctl.c, portlist).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

MS_RDONLY = 1
LINUX_REBOOT_CMD_POWER_OFF = 0x4321FEDC
SYS_FINIT_MODULE = 313 if sys.maxsize > 1 << 32 else 350  # UML exists for x86-64 and i386 only
MODULES = ("nfsv4", "nfsd", "sch_netem", "sch_tbf")
NFS_PORT = 2049
NUM_SERVER_THREADS = 8
MAX_BLOCK_BYTES = 1 << 20
"""Largest read: the server would offer less in a small memory."""
END_GRACE = "/proc/fs/nfsd/v4_end_grace"
SHORTEST_GRACE_S = 10
FOREVER_S = 2**31 - 1
"""Expiry of a cache entry, in seconds since 1970."""
EXPORT_FLAGS = 0x0001 | 0x0002 | 0x0400 | 0x2000
"""NFSEXP_READONLY, _INSECURE_PORT, _NOSUBTREECHECK, _FSID (include/uapi/linux/nfsd/export.h)."""
NOBODY = 65534

_libc = ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2), making the mount point first."""
    Path(target).mkdir(parents=True, exist_ok=True)
    _check(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode() or None), target)


def put(path: str, text: str) -> None:
    """One write(2) to a kernel file: each write is one command."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)


def insert_modules(folder: str) -> None:
    """Insert MODULES and what they need, in the order of modules.dep."""
    needs = {}
    for line in Path(folder, "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[Path(path).name.partition(".")[0]] = [path, *others.split()]
    inserted = set()
    for module in MODULES:
        for path in reversed(needs.get(module, [])):  # built into the kernel where it is not listed
            if path not in inserted:
                inserted.add(path)
                descriptor = os.open(os.path.join(folder, path), os.O_RDONLY)
                _check(_libc.syscall(SYS_FINIT_MODULE, descriptor, b"", 0), path)
                os.close(descriptor)


def start_server(export: str) -> None:
    """Serve `export` as the root of an NFS 4 tree on the loopback."""
    mount("nfsd", "/proc/fs/nfsd", "nfsd")
    if Path("/proc/fs/nfsd/nfsv4recoverydir").exists():
        Path("/run/loaderbench/recovery").mkdir()
        put("/proc/fs/nfsd/nfsv4recoverydir", "/run/loaderbench/recovery\n")
    else:  # Debian 13's kernel
        put("/proc/fs/nfsd/nfsv4gracetime", f"{SHORTEST_GRACE_S}\n")
    put("/proc/fs/nfsd/max_block_size", f"{MAX_BLOCK_BYTES}\n")
    put("/proc/fs/nfsd/versions", "-3 +4 +4.1 +4.2\n")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", NFS_PORT))
        listener.listen(64)
        put("/proc/fs/nfsd/portlist", f"{listener.fileno()}\n")
    put("/proc/fs/nfsd/threads", f"{NUM_SERVER_THREADS}\n")
    end_grace()
    put("/proc/net/rpc/auth.unix.ip/channel", f"nfsd 127.0.0.1 {FOREVER_S} bed\n")
    put("/proc/net/rpc/nfsd.export/channel", f"bed {export} {FOREVER_S} {EXPORT_FLAGS} {NOBODY} {NOBODY} 0\n")
    put("/proc/net/rpc/nfsd.fh/channel", f"bed 1 \\x00000000 {FOREVER_S} {export}\n")


def end_grace() -> None:
    """End the 90 s in which the server waits for clients of a former life, and the first open with it.

    A kernel that has nowhere to keep its clients refuses, and the shortest time allowed has to pass.
    """
    try:
        put(END_GRACE, "Y\n")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        deadline_s = time.monotonic() + 2 * SHORTEST_GRACE_S
        while Path(END_GRACE).read_text().strip() != "Y":
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the grace period did not end in {2 * SHORTEST_GRACE_S} s") from error
            time.sleep(0.1)


def set_speed(bits_per_s: float | None, latency_s: float | None) -> None:
    """Cap the loopback, and delay each direction by half of `latency_s`."""
    set_root = ["tc", "qdisc", "replace", "dev", "lo", "root"]
    rate = [] if bits_per_s is None else ["rate", f"{round(bits_per_s)}bit"]
    if latency_s is not None:
        delay = ["delay", f"{round(latency_s / 2 * 1e6)}us", "limit", "100000"]
        subprocess.run([*set_root, "netem", *delay, *rate], check=True)
    elif rate:
        subprocess.run([*set_root, "tbf", *rate, "burst", "128kb", "latency", "500ms"], check=True)


def _prepare(config: dict[str, Any]) -> None:
    """Mount what a Linux needs, then the server, then the client."""
    mount("proc", "/proc", "proc")
    mount("sys", "/sys", "sysfs")
    mount("shm", "/dev/shm", "tmpfs")
    mount("run", "/run", "tmpfs")
    mount("none", config["inside_out"], "hostfs", 0, config["out_dir"])
    insert_modules(os.path.join(config["modules"], os.uname().release))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    mount("/dev/ubda", config["inside_export"], "ext4", MS_RDONLY)
    start_server(config["inside_export"])
    address = "addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.2,proto=tcp"
    mount("127.0.0.1:/", config["inside_path"], "nfs4", MS_RDONLY, address)
    set_speed(config["bits_per_s"], config["latency_s"])


def _run_command(config: dict[str, Any], out: Path) -> int:
    """Run the command with its output and the mount's counters around it in files; returns its status."""
    (out / "mountstats_before.txt").write_text(Path("/proc/self/mountstats").read_text())
    with (out / "stdout.txt").open("wb") as stdout, (out / "stderr.txt").open("wb") as stderr:
        command = subprocess.Popen(
            config["command"], stdout=stdout, stderr=stderr, env=config["environment"], cwd=config["folder"]
        )
        while True:  # the first process inherits, and has to reap, everybody's orphans
            pid, status = os.wait()
            if pid == command.pid:
                break
    command.returncode = os.waitstatus_to_exitcode(status)
    (out / "mountstats_after.txt").write_text(Path("/proc/self/mountstats").read_text())
    return command.returncode


def main() -> None:
    """argv[1]: JSON written by `uml_nfs`. Always ends in power-off."""
    begun_s = time.monotonic()
    result: dict[str, Any] = {"rc": None, "error": None}
    config = json.loads(Path(sys.argv[1]).read_text())
    out = Path(config["inside_out"])
    os.environ["PATH"] = config["environment"]["PATH"]
    try:
        _prepare(config)
        ready_s = time.monotonic()
        result["rc"] = _run_command(config, out)
        result["prepare_s"] = ready_s - begun_s
        result["command_s"] = time.monotonic() - ready_s
    except BaseException as error:
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
    finally:
        (out / "uml.json").write_text(json.dumps(result))
        sys.stdout.flush()
        os.sync()
        _libc.reboot(LINUX_REBOOT_CMD_POWER_OFF)


if __name__ == "__main__":
    main()
