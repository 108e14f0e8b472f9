"""A real NFS client reading from a real NFS server, both of the Linux kernel, inside User-Mode Linux.

UML is a kernel that runs as an ordinary process: no root, no kernel module, no network of the host's.
It boots on the host's own root tree (read-only), so the host's Python and packages run inside, on one
CPU and several times slower; torch wants `memory="4G"` or more. For storage to be the limit there, cap
the bandwidth low (20 Mbit/s). What is exact is the byte count (mountstats' serverread); the rate reached
is within about 25 % of the one set: read it from the probe.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.selftest import uml
from loaderbench.selftest.base import Resources, Truth, check_dataset_dir, make_ext4_image, workspace

INSIDE = "/run/loaderbench"
INSIDE_PATH = f"{INSIDE}/nfs"
"""Where a command inside finds the image tree, mounted over NFS."""
INSIDE_OUT = f"{INSIDE}/out"
"""Where a command inside finds the output folder, which is the host's."""
PASSED_ENVIRONMENT = ("LANG", "LC_ALL", "PATH", "VIRTUAL_ENV", "USER")
DEFAULT_MEMORY = "4G"


@dataclass(frozen=True)
class UmlResult:
    """What a command inside left. `out_dir` also holds mountstats_before.txt and mountstats_after.txt."""

    rc: int
    """Exit status; negative: the signal that ended it."""
    stdout: str
    stderr: str
    out_dir: Path
    command_s: float
    """Wall time of the command alone."""
    total_s: float
    """Wall time with boot, server, mount and power-off."""


def _inside_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: a few of ours, scratch space in memory (the root tree is read-only)."""
    environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
    path = environment.get("PATH", os.defpath)
    package_root = str(Path(__file__).parents[2])
    python_path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {
        "PATH": f"{path}:/usr/sbin:/sbin:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(python_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/dev/shm",
        "TMPDIR": "/dev/shm",
        "LOADERBENCH_BED_PATH": INSIDE_PATH,
        "LOADERBENCH_BED_OUT": INSIDE_OUT,
    }
    return environment | dict(extra)


@dataclass(frozen=True)
class UmlNfsBed:
    """An image tree on an NFS server that exists while a command runs."""

    path: str
    """Where the tree is mounted, as a command inside sees it."""
    truth: Truth
    memory: str
    _resources: Resources

    def run(
        self,
        command: Sequence[str],
        *,
        out_dir: str | os.PathLike[str],
        timeout_s: float = 300.0,
        environment: Mapping[str, str] | None = None,
    ) -> UmlResult:
        """Boot, mount, run `command` in the current folder, power off.

        The command sees the host's files read-only, the tree at INSIDE_PATH and `out_dir`, writable, at INSIDE_OUT.

        Raises:
            CaseFailed: UML or the server inside did not come up, or the time ran out.
        """
        out = Path(out_dir).absolute()
        out.mkdir(parents=True, exist_ok=True)
        (out / "uml.json").unlink(missing_ok=True)
        begun_s = time.monotonic()
        console = self._boot(self._write_init(command, out, environment or {}), timeout_s)
        if not (out / "uml.json").exists():
            raise CaseFailed(f"User-Mode Linux ended before the command did: {uml.last_line(console)}")
        found = json.loads((out / "uml.json").read_text())
        if found["error"] is not None:
            raise CaseFailed(f"the NFS server inside User-Mode Linux did not come up: {found['error']}")
        return UmlResult(
            rc=found["rc"],
            stdout=(out / "stdout.txt").read_text(errors="replace"),
            stderr=(out / "stderr.txt").read_text(errors="replace"),
            out_dir=out,
            command_s=found["command_s"],
            total_s=time.monotonic() - begun_s,
        )

    def _write_init(self, command: Sequence[str], out: Path, environment: Mapping[str, str]) -> str:
        """Write what the first process inside needs; returns the path of its start script."""
        folder = Path(self._resources.folder)
        rate = self.truth.bytes_per_s
        config = {
            "command": list(command),
            "environment": _inside_environment(environment),
            "folder": str(Path.cwd()),
            "out_dir": str(out),
            "modules": uml.MODULES_FOLDER,
            "inside_export": f"{INSIDE}/export",
            "inside_path": self.path,
            "inside_out": INSIDE_OUT,
            "bits_per_s": None if rate is None else rate * 8,
            "latency_s": self.truth.latency_s,
        }
        (folder / "config.json").write_text(json.dumps(config))
        init = folder / "init"
        script = str(Path(__file__).with_name("uml_init.py"))
        init.write_text(
            f"#!/bin/sh\nexec {shlex.join([sys.executable, '-I', '-S', script, str(folder / 'config.json')])}\n"
        )
        init.chmod(0o700)
        return str(init)

    def _boot(self, init: str, timeout_s: float) -> Path:
        """Run the UML kernel to its end; returns the file of its console's output."""
        folder = Path(self._resources.folder)
        arguments = [f"ubd0r={folder / 'image'}", f"init={init}"]
        try:
            return uml.boot(self._resources, arguments, self.memory, timeout_s, uml.preloaded())
        except subprocess.TimeoutExpired:
            raise CaseFailed(
                f"the command inside User-Mode Linux did not end within {timeout_s:g} s; raise the time limit"
                f" (its console said: {uml.last_line(folder / 'console.txt')})"
            ) from None


@contextlib.contextmanager
def uml_nfs(
    dataset_dir: str | os.PathLike[str],
    *,
    bandwidth_bits_per_s: float | None = None,
    latency_s: float | None = None,
    memory: str = DEFAULT_MEMORY,
) -> Iterator[UmlNfsBed]:
    """An NFS server holding a copy of an image tree; the wire carries `bandwidth_bits_per_s` and a round trip
    takes `latency_s` longer (None: no limit).

    Raises:
        UnavailableError: what the machine lacks (see `uml.check_available`).
        ConfigError: `dataset_dir` is no folder, or a limit is not positive.
    """
    for name, value in (("bandwidth_bits_per_s", bandwidth_bits_per_s), ("latency_s", latency_s)):
        if value is not None and value <= 0:
            raise ConfigError(f"{name} of uml_nfs must be positive, not {value}")
    uml.memory_bytes(memory)
    tree = check_dataset_dir(dataset_dir)
    uml.check_available()
    rate = None if bandwidth_bits_per_s is None else bandwidth_bits_per_s / 8
    with workspace("uml_nfs") as resources:
        make_ext4_image(tree, os.path.join(resources.folder, "image"))
        yield UmlNfsBed(INSIDE_PATH, Truth(bytes_per_s=rate, latency_s=latency_s), memory, resources)


def run_in_uml_nfs(
    dataset_dir: str | os.PathLike[str],
    command: Sequence[str],
    *,
    bandwidth_bits_per_s: float | None = None,
    latency_s: float | None = None,
    memory: str = DEFAULT_MEMORY,
    timeout_s: float = 300.0,
    out_dir: str | os.PathLike[str],
) -> UmlResult:
    """Run one command with an image tree on NFS at INSIDE_PATH; see `uml_nfs` and `UmlNfsBed.run`."""
    with uml_nfs(dataset_dir, bandwidth_bits_per_s=bandwidth_bits_per_s, latency_s=latency_s, memory=memory) as bed:
        return bed.run(command, out_dir=out_dir, timeout_s=timeout_s)


def probe_command(readers: Sequence[int], num_files: int | None = None) -> list[str]:
    """The command that measures, inside, how fast this tree can be read (see `nfs_probe`)."""
    command = [sys.executable, str(Path(__file__).with_name("nfs_probe.py")), INSIDE_PATH]
    command += ["--readers", ",".join(str(count) for count in readers)]
    return command if num_files is None else [*command, "--num-files", str(num_files)]
