"""The command line as a process: started, watched in the process table, signalled."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import typer.main

from loaderbench.commands import app
from loaderbench.interrupts import INTERRUPTS
from tests.warm import WarmProcess, Where, warm

INTERRUPTED = -signal.SIGINT
"""Exit code of a command that Ctrl-C ended, as Python gives it; a shell's is 130."""
ENDED_BY = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: 143}
"""Signal → exit code of the command that it ended."""
COMMAND = (sys.executable, "-m", "loaderbench")
DEVICE = ("--device", "emulated", "--precision", "fp32", "--batch-size", "4")
TINY = (*DEVICE, "--workers", "2", "--steps", "6", "--warmup", "2", "--duration", "0.5", "--quiet")
"""The shortest run that still goes all the way."""
LONG = (*DEVICE, "--workers", "2", "--duration", "100", "--ci-target", "0.0001", "--quiet")
"""A run that does not end by itself within a test."""
GONE_S = 8.0
"""What a killed command leaves is ended by others, the last of it after 6 s."""


@dataclass
class Ended:
    """What a command left: exit code and output."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.strip().splitlines()


def run(
    *args: str | Path,
    wrapper: Sequence[str] = (),
    where: Where | None = None,
    folder: Path | None = None,
    timeout_s: float = 90,
) -> Ended:
    """Run `loaderbench ARGS` to its end, as a process of its own: forked from a warm one where that is the same."""
    if not wrapper and (forked_from := warm()) is not None:
        at = folder or Path.cwd()
        return _ended(forked_from.start([*map(str, args)], script=None, folder=at, where=where), timeout_s)
    assert where in (None, Where(whole_end=True)), "only a forked process can be put there"
    command = [*wrapper, *COMMAND, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=folder)
    return Ended(done.returncode, done.stdout, done.stderr)


_command_tree = cache(typer.main.get_command)
"""Made of a hundred options, and the same each time."""


def call(*args: str | Path, stream: type[io.StringIO] = io.StringIO) -> Ended:
    """Run `loaderbench ARGS` in this process: quicker, for commands that only read or refuse. `stream`: of what kind
    its standard streams are."""
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    before, hook = sys.argv, sys.excepthook
    out, err = stream(), stream()
    sys.argv = ["loaderbench", *map(str, args)]
    code: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err), mock.patch("typer.main.get_command", _command_tree):
            app.main()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        sys.argv, sys.excepthook = before, hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert isinstance(code, int)
    return Ended(code, out.getvalue(), err.getvalue())


def run_script(script: Path, *args: str | Path, folder: Path, whole_end: bool = False, timeout_s: float = 170) -> Ended:
    """Run a Python program to its end, in `folder`. `whole_end`: the interpreter's end is a part of the test."""
    if (forked_from := warm()) is not None:
        where = Where(whole_end=whole_end)
        arguments = [*map(str, args)]
        return _ended(forked_from.start(arguments, script=str(script), folder=folder, where=where), timeout_s)
    command = [sys.executable, str(script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=folder)
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def start_script(script: Path, *args: str | Path) -> Iterator[WarmProcess | subprocess.Popen[str]]:
    """A Python program in a session of its own, which is killed at the end."""
    if (forked_from := warm()) is not None:
        where = Where(session=True)
        process: Any = forked_from.start([*map(str, args)], script=str(script), folder=Path.cwd(), where=where)
    else:
        command = [sys.executable, str(script), *map(str, args)]
        process = subprocess.Popen(command, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _ended(process: WarmProcess, timeout_s: float) -> Ended:
    out, err = process.communicate(timeout_s)
    return Ended(process.wait(), out, err)


class Started:
    """A command that is running. Remembers every session it was seen to start; a context manager that kills it.

    Forked from a warm process where that is the same, but not where `cold`: then Python starts and imports.
    """

    def __init__(self, *args: str | Path, cold: bool = False, mounts: Sequence[str] = ()) -> None:
        self._shm = set(os.listdir("/dev/shm"))  # noqa: PTH208
        self.process: subprocess.Popen[str] | WarmProcess
        if not cold and (forked_from := warm()) is not None:
            where = Where(mounts, session=True)
            self.process = forked_from.start([*map(str, args)], script=None, folder=Path.cwd(), where=where)
        else:
            assert not mounts, "only a forked process can be put there"
            self.process = subprocess.Popen(
                [*COMMAND, *map(str, args)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        self.sessions = {self.process.pid}

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self.alive():
            psutil.Process(pid).kill()
        self.process.communicate(timeout=30)

    def takes_signals(self) -> bool:
        """The command has come so far that it takes SIGTERM itself; the rest of it is not imported yet."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)  # proc(5)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def child(self) -> int | None:
        """The measuring process, once it is there: it is started before the shell that guards it."""
        leaders = []
        for process in psutil.Process(self.process.pid).children():
            if os.getsid(process.pid) == process.pid:  # between fork and setsid it is still of our session
                self.sessions.add(process.pid)
                leaders.append(process)
        measuring = [process for process in leaders if process.name() != "sh"]
        return min(measuring, key=psutil.Process.create_time).pid if measuring else None

    def loader_workers(self) -> list[int]:
        """The measuring process's own children, once it has copied the images to memory."""
        child = self.child()
        if child is None or not any(f"-{child}-" in name for name in os.listdir("/dev/shm")):  # noqa: PTH208
            return []
        return [worker.pid for worker in psutil.Process(child).children()]

    def wait_until_gone(self) -> None:
        """Until the last of its processes has ended."""
        deadline = time.monotonic() + GONE_S
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.alive() == []

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 40) -> Any:
        """Wait until `condition()` is true and return it."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert self.process.poll() is None, f"ended too early: {self.process.communicate()}"
            assert time.monotonic() < deadline, "did not come to pass"
            time.sleep(0.02)
        return found

    def end(self, timeout_s: float = 30) -> Ended:
        """Wait for the end of the command itself."""
        out, err = self.process.communicate(timeout=timeout_s)
        return Ended(self.process.returncode, out, err)

    def alive(self) -> list[int]:
        """Pids of all processes, dead but not reaped ones left out, in a session that the command began."""
        alive = []
        for process in psutil.process_iter(["status"]):
            try:
                if os.getsid(process.pid) in self.sessions and process.info["status"] != psutil.STATUS_ZOMBIE:
                    alive.append(process.pid)
            except ProcessLookupError:
                continue
        return alive

    def copies_left(self) -> set[str]:
        """The copies of images that the command left in /dev/shm."""
        return {name for name in self._new_in_memory() if any(f"-{pid}-" in name for pid in self.sessions)}

    def shared_memory_left(self) -> set[str]:
        """What the command left in /dev/shm: copies of images, torch's batches."""
        return self.copies_left() | {name for name in self._new_in_memory() if name.startswith("torch_")}

    def _new_in_memory(self) -> set[str]:
        return set(os.listdir("/dev/shm")) - self._shm  # noqa: PTH208


def records(results: Path) -> list[dict[str, Any]]:
    """All records of a store, oldest first."""
    return [json.loads(path.read_bytes()) for path in sorted(results.glob("*/run.json"))]
