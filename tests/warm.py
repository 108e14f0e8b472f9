"""Programs that are started quickly: forked from a process that has torch imported, which takes seconds each time.

What is forked is the command itself (or a script), with its own standard streams, environment and folder; its
measuring process is forked from it in turn, in a session of its own and with the signals of a new program.
A test of what happens while Python starts, or torch is imported, starts a real one (`commands.Started`, `cold`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import math
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, BinaryIO

import psutil
import typer.main

from loaderbench.neutral import environment

PRELOADED = (
    "torch", "torchvision", "pydantic", "jinja2", "PIL.JpegImagePlugin", "loaderbench.__main__",
    "loaderbench.commands.app", "loaderbench.decoders.pillow", "loaderbench.devices.emulated",
    "loaderbench.loaders.multiprocess", "loaderbench.loaders.threaded", "loaderbench.reporting.live",
    "loaderbench.reporting.report", "loaderbench.reporting.terminal", "loaderbench.running.child",
    "loaderbench.running.jobs.measure", "loaderbench.studies.compare", "loaderbench.studies.sweep",
    "loaderbench.workloads.emulated", "loaderbench.workloads.vision",
)  # fmt: skip
"""What most programs of the tests import."""
TEMPORARY = tempfile.gettempdir()
AT_START = ("PYTHON", "LD_PRELOAD", "OMP_", "MKL_", "CUDA_")
"""Variables that begin so are read when a program starts: where they differ, nothing can be forked. Of them PYTHONPATH
can be obeyed later too, for what is not imported yet. LD_LIBRARY_PATH is not among them: importing OpenCV sets it."""
ROOT = Path(__file__).resolve().parents[1]


def at_start(environ: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in environ if name.startswith(AT_START)}


@dataclass(frozen=True)
class Where:
    """What of its surroundings a program finds changed."""

    mounts: Sequence[str] = ()
    """Arguments of `mount`, run in turn where nobody else sees it (needs root)."""
    open_files: int | None = None
    """The soft limit."""
    hard: bool = False
    """The hard limit too."""
    session: bool = False
    """A session of its own."""
    whole_end: bool = False
    """The interpreter ends as it does otherwise: waits for threads, takes modules down."""

    def enter(self) -> None:
        if self.session:
            os.setsid()
        if self.mounts:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
            for arguments in ("--make-rprivate /", *self.mounts):
                subprocess.run(["mount", *arguments.split()], check=True)
        if self.open_files is not None:
            highest = self.open_files if self.hard else resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.open_files, highest))


CLONE_NEWNS = 0x20000
"""unshare(2)."""


class Warm:
    """The process to fork from, and the way to ask it."""

    def __init__(self) -> None:
        self._environ = self._known()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
        environ = os.environ | {"TMPDIR": TEMPORARY}  # torch makes a folder there when it is imported
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=(theirs.fileno(),), env=environ)
        theirs.close()
        self._socket, self.pid = ours, self._process.pid

    def can(self) -> bool:
        """Whether a program started now would find what the process found at its start."""
        return self._process.poll() is None and self._known() == self._environ

    @staticmethod
    def _known() -> dict[str, str]:
        return {name: value for name, value in at_start(os.environ.items()).items() if name != "PYTHONPATH"}

    def start(
        self, arguments: Sequence[str], *, script: str | None, folder: Path, where: Where | None = None
    ) -> WarmProcess:
        """`loaderbench ARGUMENTS`, or the Python program `script` with these."""
        out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        asked = {
            "arguments": [*arguments], "script": script, "folder": str(folder), "environ": dict(os.environ),
            **asdict(where or Where()),
        }  # fmt: skip
        socket.send_fds(self._socket, [b"s"], [out.fileno(), err.fileno()])
        send(self._socket, asked)
        return WarmProcess(self, receive(self._socket), out, err)

    def begin(
        self, command: list[str], *, pass_fds: tuple[int], env: dict[str, str], stdout: BinaryIO, **more: Any
    ) -> Forked | subprocess.Popen[bytes]:
        """A measuring process as a child of this process, in place of what `Popen` would start."""
        if not self.can() or at_start(env.items()) != at_start(environment(os.environ).items()):
            return subprocess.Popen(command, pass_fds=pass_fds, env=env, stdout=stdout, **more)
        socket.send_fds(self._socket, [b"m"], [pass_fds[0], stdout.fileno()])
        send(self._socket, {"command": command, "folder": more["cwd"], "environ": env})
        return Forked(receive(self._socket))

    def poll(self, pid: int) -> int | None:
        """The exit code of a process that was started, once it has ended."""
        self._socket.sendall(b"p")
        send(self._socket, pid)
        code: int | None = receive(self._socket)
        return code

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


class WarmProcess:
    """A process that was started; as a Popen with text pipes."""

    def __init__(self, warm: Warm, pid: int, out: IO[str], err: IO[str]) -> None:
        self.pid, self.returncode = pid, None
        self._warm, self._streams = warm, [out, err]
        self._texts: list[str] = []

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._warm.poll(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a warm process", timeout or 0)
            time.sleep(0.01)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Its output, once it has ended. Raises TimeoutExpired, and it is killed."""
        try:
            self.wait(timeout)
        finally:
            if self.poll() is None:
                self.kill()
            while self._streams:
                with self._streams.pop(0) as stream:
                    stream.seek(0)
                    self._texts.append(stream.read())
        return self._texts[0], self._texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def send(channel: socket.socket, message: Any) -> None:
    text = json.dumps(message).encode()
    channel.sendall(len(text).to_bytes(8, "big") + text)


def receive(channel: socket.socket) -> Any:
    def read(num_bytes: int) -> bytes:
        found = b""
        while len(found) < num_bytes:
            part = channel.recv(num_bytes - len(found))
            assert part, "the other process is gone"
            found += part
        return found

    return json.loads(read(int.from_bytes(read(8), "big")))


_warm: list[Warm] = []


def warm() -> Warm | None:
    """The process of this pytest process, begun with its first use; None where one cannot be used."""
    if not _warm:
        _warm.append(Warm())
        atexit.register(_warm[0].close)
    return _warm[0] if _warm[0].can() else None


def own_children() -> list[psutil.Process]:
    """The children of this process but the one to fork from."""
    ours = {one.pid for one in _warm}
    return [child for child in psutil.Process().children() if child.pid not in ours]


# -- in the process that is forked from ------------------------------------------------------------------


def serve(channel: socket.socket) -> None:
    """Fork one command after another, until the other side is closed."""
    for name in PRELOADED:
        import_module(name)
    prepare_command_line()
    gc.collect()
    gc.freeze()  # a collection in what is forked would look through all of torch, and copy its pages

    while True:
        head, descriptors, _, _ = socket.recv_fds(channel, 1, 2)
        if not head:
            return
        asked = receive(channel)
        if head == b"p":
            pid, status = os.waitpid(asked, os.WNOHANG)
            send(channel, os.waitstatus_to_exitcode(status) if pid else None)
            continue
        if head == b"m":
            pid = fork_for_parent(partial(begun, asked, descriptors), channel)
        elif (pid := os.fork()) == 0:
            channel.close()
            if asked["whole_end"]:
                sys.exit(program(asked, descriptors))
            weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # torch's libraries, taken down one by one
            as_program(partial(program, asked, descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        send(channel, pid)


COMMAND_LINE = ("typer", "loaderbench.commands")


def prepare_command_line() -> None:
    """Make the tree of commands and what reads their options, once for all that are forked."""
    from loaderbench.commands.app import app

    tree = typer.main.get_command(app)
    typer.main.get_command = lambda _: tree
    waiting = [tree]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for parameter in command.params:
            if (make := getattr(parameter, "get_runtime_param", None)) is not None:  # typer >= 0.20 makes them late
                make()


def forget_command_line() -> None:
    """As if none of it had been imported."""
    for name in [name for name in sys.modules if name.startswith(COMMAND_LINE)]:
        del sys.modules[name]


def as_program(main: Callable[[], Any]) -> None:
    """End as a program does that runs `main`."""
    code, interrupted = 1, False
    try:
        try:
            sys.exit(main())
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
        except KeyboardInterrupt as stop:
            interrupted = True
            sys.excepthook(KeyboardInterrupt, stop, stop.__traceback__)
        except BaseException:
            traceback.print_exc()
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        os._exit(code)


def fork_for_parent(main: Callable[[], Any], channel: socket.socket) -> int:
    """The pid of a process whose parent is this process's own, which takes orphans (prctl(2), CHILD_SUBREAPER)."""
    reader, writer = os.pipe()
    if (between := os.fork()) == 0:
        if pid := os.fork():
            os.write(writer, str(pid).encode())
            os._exit(0)
        channel.close()
        os.close(reader)
        os.close(writer)
        as_program(main)
    os.waitpid(between, 0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        return int(answer.read())


def begun(asked: dict[str, Any], descriptors: list[int]) -> int:
    """The measuring process that pytest's own process asked for."""
    found_in(asked)
    pipe, log = descriptors
    *begin_of_it, _, parent = asked["command"]
    command = [*begin_of_it, str(pipe), parent]
    while os.getppid() != int(parent):
        time.sleep(0.001)
    return measuring_process(command, pipe, log)


def found_in(asked: dict[str, Any]) -> None:
    """What a program finds where it is started."""
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    sys.path[:1] = [asked["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    tempfile.tempdir = None  # TMPDIR may be another


def program(asked: dict[str, Any], descriptors: list[int]) -> Any:
    from loaderbench.__main__ import main
    from loaderbench.running import process

    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate([null, *descriptors]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if asked["script"] is not None or asked["environ"].get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
        forget_command_line()  # which names the plug-ins that were found, and which a script need not import
    found_in(asked)
    Where(**{field.name: asked[field.name] for field in fields(Where)}).enter()
    process.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=begin, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    if asked["script"] is None:
        sys.argv = ["loaderbench", *asked["arguments"]]
        return main()
    sys.argv = [asked["script"], *asked["arguments"]]
    runpy.run_path(asked["script"], run_name="__main__")
    return 0


def begin(command: list[str], *, pass_fds: tuple[int], env: dict[str, str], stdout: BinaryIO, **more: Any) -> Any:
    """A measuring process, forked where that gives what starting it would."""
    if threading.active_count() > 1 or at_start(env.items()) != at_start(environment(os.environ).items()):
        return subprocess.Popen(command, pass_fds=pass_fds, env=env, stdout=stdout, **more)
    pid = os.fork()
    if pid == 0:
        os.environ.clear()
        os.environ.update(env)
        os.chdir(more["cwd"])
        as_program(lambda: measuring_process(command, pass_fds[0], stdout.fileno()))
    return Forked(pid)


def measuring_process(command: list[str], pipe: int, log: int) -> int:
    from loaderbench.running.child import main

    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # the parent's temporary folders are the parent's
    os.setsid()
    for number in {*signal.Signals} - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, log, log)):
        os.dup2(descriptor, number)
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if descriptor > 2 and descriptor != pipe:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    if "-P" in command:  # it does not look into the current folder
        sys.path[:] = [path for path in sys.path if path not in ("", str(Path.cwd()))]
    sys.argv = command[command.index("-m") + 1 :]
    return main()


class Forked:
    """What of a Popen the supervisor uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("the measuring process", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
