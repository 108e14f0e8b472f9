"""Commands that are started for real and watched from outside: what is left of them, whatever ended them."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from commands import COMMAND

MARK = "LOADERBENCH_CAMPAIGN"
"""Variable in the environment of everything that a command starts."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Watched:
    """How a command ended, and what it said."""

    code: int | None
    """None: it did not end in its time."""
    out: str
    err: str
    token: str
    wall_s: float

    @property
    def told(self) -> str:
        return f"exit {self.code} after {self.wall_s:.0f} s\n{self.out[-1500:]}\n{self.err[-1500:]}"


class Command:
    """One command in a session of its own."""

    def __init__(
        self, arguments: Sequence[object], *, wrapper: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self.token, self._begun = secrets.token_hex(8), time.monotonic()
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {}), MARK: self.token}
        self.process = subprocess.Popen(
            [*wrapper, *COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            env=environ, start_new_session=True,
        )  # fmt: skip

    def end(self, timeout_s: float) -> Watched:
        """Wait for the command's end; after `timeout_s` it is killed."""
        code: int | None = None
        try:
            out, err = self.process.communicate(timeout=timeout_s)
            code = self.process.returncode
        except subprocess.TimeoutExpired:
            kill_all(self.token)
            self.process.kill()
            out, err = self.process.communicate()
        return Watched(code, out, err, self.token, time.monotonic() - self._begun)


def alive(token: str) -> list[psutil.Process]:
    """The processes with this mark, dead ones that nobody reaped left out."""
    found, mark = [], f"{MARK}={token}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes():
                process = psutil.Process(int(entry.name))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        except (OSError, psutil.NoSuchProcess):  # it ended meanwhile
            continue
    return found


def kill_all(token: str) -> None:
    for process in alive(token):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def left(token: str, seconds: float) -> list[str]:
    """The command lines of what is still there after that time; it is killed then."""
    deadline = time.monotonic() + seconds
    while (processes := alive(token)) and time.monotonic() < deadline:
        time.sleep(0.1)
    told = []
    for process in processes:
        try:
            told.append(" ".join(process.cmdline())[:120])
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return told


def send(process: psutil.Process, number: int) -> bool:
    """Send a signal; False where the process is gone."""
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


# -- an ordinary user ----------------------------------------------------------------------------------------

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")


def as_nobody() -> tuple[str, ...]:
    """A wrapper that runs a command as the user nobody. Where Python lies in a folder that only root may enter, nobody
    sees that folder as an empty one with Python alone in it."""
    home = Path(sys.executable).resolve().parent
    closed = [folder for folder in (*reversed(home.parents), home) if not folder.stat().st_mode & 0o001]
    if not closed:
        return NOBODY
    kept = Path(sys.base_prefix)
    script = (
        f"mount --bind {kept} /mnt && mount -t tmpfs -o mode=755 none {closed[0]} && mkdir -p {kept} && "
        f'mount --bind /mnt {kept} && umount /mnt && exec "$@"'
    )
    return ("unshare", "--mount", "sh", "-c", script, "sh", *NOBODY)


def can_be_nobody() -> bool:
    """Whether this machine lets the tests run something as another user."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        return False
    command = [*as_nobody(), sys.executable, "-c", "import os; print(os.geteuid())"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() == "65534"


def one_clear_line(ended: Watched, codes: Sequence[int], *, lines: int = 1) -> str | None:
    """What is wrong with how a command ended: with another exit code, a traceback, or many lines; None: nothing."""
    if ended.code is None:
        return f"it hung: {ended.told}"
    if ended.code not in codes:
        return f"not one of {codes}: {ended.told}"
    said = ended.out + ended.err
    if "Traceback (most recent call last)" in said:
        return f"a traceback: {ended.told}"
    told = [line for line in ended.err.splitlines() if line.strip()]
    if ended.code in (1, 2) and len(told) > lines:
        return f"more than {lines} lines: {ended.told}"
    return None
