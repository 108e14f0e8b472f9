"""Finds training processes and their workers, by /proc alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from loaderbench.errors import ConfigError
from loaderbench.originals import os
from loaderbench.samplers.process_io import parse_stat
from loaderbench.samplers.procfile import read_text, stat_fields

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PYTHON = re.compile(r"(^|/)(python[\d.]*t?|pypy[\d.]*)$|libpython")
FRAMEWORKS = re.compile(r"libtorch|libtensorflow|_pywrap_tensorflow|jaxlib|libdali|mxnet|libpaddle|mindspore|oneflow")
"""Libraries, as they are mapped, of what trains."""
WORKER_NAME = "pt_data_worker"
"""Of a worker's main thread, as PyTorch names it since 2.6."""
SPAWNED = re.compile(r"from multiprocessing\.spawn import spawn_main|--multiprocessing-fork")
FORK_SERVER = re.compile(r"from multiprocessing\.forkserver import main")
TRACKER = re.compile(r"from multiprocessing\.resource_tracker import main")
RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
STATES = {"Z": "has ended (a zombie)", "X": "is ending", "T": "is stopped by a signal", "t": "is stopped by a debugger"}


@dataclass
class Process:
    """One process, as it was when it was listed."""

    pid: int
    parent: int
    state: str
    comm: str
    begun_ticks: int
    """Since boot: with the PID it names the process for good."""
    words: tuple[str, ...]
    """Its command; empty: a thread of the kernel, or a zombie."""
    children: list[Process] = field(default_factory=list)

    @property
    def command(self) -> str:
        return " ".join(self.words) or f"[{self.comm}]"

    @property
    def age_s(self) -> float:
        return uptime_s() - self.begun_ticks / TICKS_PER_S

    @property
    def is_python(self) -> bool:
        if PYTHON.search(self.words[0] if self.words else ""):
            return True
        return bool(PYTHON.search(_exe(self.pid))) or "libpython" in _maps(self.pid)

    def descendants(self) -> Iterator[Process]:
        for child in self.children:
            yield child
            yield from child.descendants()

    def is_there(self) -> bool:
        """Whether the PID is still this process's."""
        now = process_of(self.pid)
        return now is not None and now.begun_ticks == self.begun_ticks


def uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def _exe(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _maps(pid: int) -> str:
    return read_text(f"/proc/{pid}/maps") or ""


def process_of(pid: int) -> Process | None:
    """None: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0")
    except OSError:
        return None
    times, begun = parse_stat(text), int(stat_fields(text)[19])
    comm = text[text.index(b"(") + 1 : text.rindex(b")")].decode(errors="replace")
    return Process(pid, times.parent_pid, times.state, comm, begun, tuple(words.split("\0")) if words else ())


def all_processes() -> dict[int, Process]:
    """PID → process, with children."""
    found = {int(name): process_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    known = {pid: one for pid, one in found.items() if one is not None}
    for one in known.values():
        if one.parent in known:
            known[one.parent].children.append(one)
    return known


def is_worker_of(parent: Process, child: Process) -> bool:
    """Whether it is a loader's worker, by its thread's name, or forked or spawned by Python's multiprocessing."""
    if not child.words or TRACKER.search(child.command) or FORK_SERVER.search(child.command):
        return False
    if child.comm == WORKER_NAME or SPAWNED.search(child.command):
        return True
    return child.words == parent.words and child.state not in "ZX"


def workers_of(job: Process) -> list[Process]:
    """Its workers, the oldest first; those of a fork server too."""
    found = []
    for child in job.children:
        if FORK_SERVER.search(child.command):
            found += [one for one in child.children if one.state not in "ZX"]
        elif is_worker_of(job, child):
            found.append(child)
    return sorted(found, key=lambda one: (one.begun_ticks, one.pid))


def _mine() -> set[int]:
    """This process and those that started it."""
    found, pid = set(), os.getpid()
    while pid > 1:
        found.add(pid)
        one = process_of(pid)
        pid = 0 if one is None else one.parent
    return found


def jobs_among(processes: dict[int, Process]) -> list[Process]:
    """Training processes: Python with a framework loaded or with a loader's workers, and neither a worker nor a
    launcher of others."""
    mine, found = _mine(), []
    for one in processes.values():
        if one.pid in mine or one.state in "ZX" or not one.words or not one.is_python:
            continue
        parent = processes.get(one.parent)
        if parent is not None and (is_worker_of(parent, one) or FORK_SERVER.search(parent.command)):
            continue
        if TRACKER.search(one.command) or FORK_SERVER.search(one.command):
            continue
        has_workers = any(child.comm == WORKER_NAME for child in one.children)
        if has_workers or FRAMEWORKS.search(_maps(one.pid)):
            found.append(one)
    launchers = {one.pid for one in found if any(child in found and rank_of(child.pid)[0] is not None
                                                 for child in one.children)}  # fmt: skip
    return sorted((one for one in found if one.pid not in launchers), key=lambda one: one.pid)


def rank_of(pid: int) -> tuple[int | None, int | None]:
    """(rank, ranks) by the variables that launchers set."""
    text = read_text(f"/proc/{pid}/environ") or ""
    values = dict(item.split("=", 1) for item in text.split("\0") if "=" in item)
    rank, world = (values.get(name, "") for name in RANK_NAMES[:2])
    return (int(rank) if rank.isdigit() else None, int(world) if world.isdigit() else None)


def chosen(pid: int, processes: dict[int, Process]) -> list[Process]:
    """The job of a PID: of a worker its parent, of a launcher its ranks.

    Raises:
        ConfigError: one line that says why it cannot be looked at.
    """
    one = processes.get(pid)
    if one is None:
        raise ConfigError(f"no process has PID {pid} here: `loaderbench attach` lists the training processes")
    if one.state in STATES:
        raise ConfigError(f"PID {pid} ({one.comm}) {STATES[one.state]}: it cannot be measured")
    if not may_see(pid):
        raise ConfigError(hidden(one))
    if not one.words or not one.is_python:
        descendants = [*one.descendants()]
        below = [job for job in jobs_among(processes) if job in descendants]
        if len(below) == 1 or (below and all(rank_of(job.pid)[0] is not None for job in below)):
            return below  # of a shell, `timeout` or `srun`
        several = f"; of the trainings that it started choose one: {', '.join(str(job.pid) for job in below[:5])}"
        raise ConfigError(
            f"PID {pid} ({one.comm}) is not a training that I know: it runs no Python{several if below else ''}"
        )
    parent = processes.get(one.parent)
    while parent is not None and (is_worker_of(parent, one) or FORK_SERVER.search(parent.command)):
        one, parent = parent, processes.get(parent.parent)
    if rank_of(one.pid)[0] is not None:
        return [one]
    trainings = jobs_among(processes)
    ranks = [child for child in one.descendants() if child in trainings and rank_of(child.pid)[0] is not None]
    return ranks or [one]


def may_see(pid: int) -> bool:
    """Whether the kernel gives what reading takes (PTRACE_MODE_READ, ptrace(2)): its counters and its files. The same
    user's process may be refused, too: one that has capabilities which this process lacks."""
    try:
        os.listdir(f"/proc/{pid}/fd")
        Path(f"/proc/{pid}/io").read_bytes()
    except FileNotFoundError:  # a kernel without these counters
        return True
    except OSError:
        return False
    return True


def hidden(one: Process) -> str:
    """What to do about a process that may not be seen."""
    return (
        f"PID {one.pid} ({one.comm}) may not be seen: it is another user's, has more capabilities, or is in another "
        f"namespace: run loaderbench as user {_owner(one.pid)}, or as root with CAP_SYS_PTRACE"
    )


def _owner(pid: int) -> str:
    try:
        return str(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "its owner"


def of_slurm(job: str, processes: dict[int, Process]) -> list[Process]:
    """Training processes of a Slurm job on this node, by control group or environment."""
    group = re.compile(rf"/job_{re.escape(job)}(/|$)", re.MULTILINE)
    wanted = f"SLURM_JOB_ID={job}"
    return [
        one
        for one in jobs_among(processes)
        if group.search(read_text(f"/proc/{one.pid}/cgroup") or "")
        or wanted in (read_text(f"/proc/{one.pid}/environ") or "").split("\0")
    ]


def of_container(name: str, processes: dict[int, Process]) -> list[Process]:
    """Training processes of a container, by the id (or its first 6 digits or more) in their control group."""
    if not re.fullmatch(r"[0-9a-f]{6,64}", name):
        raise ConfigError(
            f"--container takes an id of 6 to 64 hexadecimal digits, as `docker ps` lists it, not '{name}'"
        )
    group = re.compile(rf"[/-]{name}")
    return [one for one in jobs_among(processes) if group.search(read_text(f"/proc/{one.pid}/cgroup") or "")]
