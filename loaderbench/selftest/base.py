"""What the beds share: the set speed, and a note on disk that lets the next run clean up after a killed one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loaderbench import neutral
from loaderbench.errors import CaseFailed, ConfigError, UnavailableError

DEBIAN_PACKAGES = ("e2fsprogs", "fuse3", "gcc", "iproute2", "libc6-dev", "mount", "user-mode-linux", "util-linux")
"""Debian packages (12 and later) that all three beds need, besides mfusepy (the extra `beds`)."""


@dataclass(frozen=True)
class Truth:
    """The speed that a bed was set to; None: not limited."""

    bytes_per_s: float | None = None
    iops: float | None = None
    """Read requests per second at the block device, as submitted."""
    latency_s: float | None = None
    """Added to each read request (`slow_fuse`) or to each round trip (`uml_nfs`)."""
    open_latency_s: float | None = None
    """Added to each open (`slow_fuse`)."""
    tail: tuple[float, float] | None = None
    """(part of the files, seconds that each read of such a file's first bytes takes more) (`slow_fuse`)."""
    stall: tuple[float, float] | None = None
    """(period in s, length in s): the last seconds of each period, all reads and opens stand still (`slow_fuse`)."""


def install_commands() -> list[list[str]]:
    """The commands, to be run as root, that install what the beds need on Debian."""
    return [
        ["apt-get", "update"],
        ["apt-get", "install", "--yes", "--no-install-recommends", *DEBIAN_PACKAGES],
    ]


def find_program(name: str, package: str) -> str:
    """Absolute path of a program, the sbin folders included (an ordinary user's PATH lacks them).

    Raises:
        UnavailableError: it is not installed; names the Debian package that brings it.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise UnavailableError(f"{name} is not installed; install the Debian package {package}")
    return found


def run_command(*command: str) -> str:
    """Run a set-up command and return its stdout.

    Raises:
        UnavailableError: it failed; the message holds its last line of stderr.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=neutral.FOLDER)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UnavailableError(f"`{' '.join(command[:3])} …` failed with status {done.returncode}: {said}")
    return done.stdout


def check_dataset_dir(dataset_dir: str | os.PathLike[str]) -> str:
    """The absolute path of the image tree that a bed copies.

    Raises:
        ConfigError: it is no folder.
    """
    path = Path(dataset_dir).absolute()
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; give the image tree for the test bed to serve")
    return str(path)


def start_time_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where there is no such process.

    Field 22 of /proc/PID/stat (proc(5)). Together with the pid, which may be reused, it identifies one process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = text.rpartition(")")[2].split()
    if after_name[0] in "ZX":
        return None
    return int(after_name[19])


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


@dataclass
class Resources:
    """Everything that a bed creates outside its own process; noted on disk before it is created."""

    bed: str
    owner_pid: int
    owner_start_ticks: int
    pid_namespace: str
    """The namespace of `owner_pid`: a container that shares the temporary folder has its own pids."""
    folder: str
    mounts: list[str] = field(default_factory=list)
    loop_images: list[str] = field(default_factory=list)
    cgroups: list[tuple[str, str]] = field(default_factory=list)
    """(the bed's group, the group that inherits processes still in it)."""
    sessions: list[int] = field(default_factory=list)
    """Sessions (setsid(2)) of helper processes, whose command lines all name `folder`."""

    @property
    def note(self) -> Path:
        """The file that holds this record while the bed exists."""
        return Path(self.folder + ".json")

    def save(self) -> None:
        """Write the note, atomically."""
        draft = self.note.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(self.note)

    def owner_lives(self) -> bool:
        return start_time_ticks(self.owner_pid) == self.owner_start_ticks


def beds_folder() -> Path:
    """This user's folder of existing beds, below the temporary folder (an image may be too big for a tmpfs).

    Raises:
        UnavailableError: another user owns a folder of that name.
    """
    folder = Path(tempfile.gettempdir(), f"loaderbench-beds-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UnavailableError(f"{folder} belongs to another user or is open to others; remove it or set TMPDIR")
    return folder


def mount_points() -> set[str]:
    """The mount points of this mount namespace (/proc/self/mountinfo, field 5, octal escapes undone)."""
    points = set()
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        escaped = line.split()[4]
        points.add(os.fsdecode(escaped.decode("unicode_escape").encode("latin-1")))
    return points


def _session_members(session: int, folder: str) -> list[int]:
    """The live processes of a session whose command line names `folder`, since session numbers may be reused."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                state, _, _, its_session = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
                named = os.fsencode(folder) in (entry / "cmdline").read_bytes()
                if named and int(its_session) == session and state not in "ZX":
                    members.append(int(entry.name))
    return members


def kill_session(session: int, folder: str) -> None:
    """SIGKILL a bed's helper processes and wait until they are gone. The first of them may be dead already."""
    deadline = time.monotonic() + 5
    while (members := _session_members(session, folder)) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _unmount(mount_point: str) -> None:
    """Detach a mount point: at once if it is not in use, else as soon as its last user is gone."""
    if mount_point not in mount_points():
        return
    if os.geteuid() == 0:
        run_command(find_program("umount", "mount"), "--lazy", mount_point)
    else:
        run_command(find_program("fusermount3", "fuse3"), "-u", "-z", mount_point)


def _detach_loops(image: str) -> None:
    losetup = find_program("losetup", "mount")
    listed = run_command(losetup, "--list", "--noheadings", "--output", "NAME", "--associated", image)
    for device in listed.split():
        run_command(losetup, "--detach", device)


def _remove_cgroup(group: str, heir: str) -> None:
    """Move the processes that are still in `group` to `heir`, then remove the group."""
    deadline = time.monotonic() + 5
    folder = Path(group)
    while folder.is_dir():
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                Path(heir, "cgroup.procs").write_text(pid)
        try:
            folder.rmdir()
        except OSError:  # busy until the kernel has taken the last process out
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def dismantle(resources: Resources) -> None:
    """Undo everything that a bed's note names. Missing parts are no error.

    Raises:
        CaseFailed: something could not be removed; the note stays, so that a later run tries again.
    """
    try:
        for mount_point in resources.mounts:
            _unmount(mount_point)
        for session in resources.sessions:
            kill_session(session, resources.folder)
        for image in resources.loop_images:
            _detach_loops(image)
        for group, heir in resources.cgroups:
            _remove_cgroup(group, heir)
        if any(point.startswith(resources.folder + os.sep) for point in mount_points()):
            raise CaseFailed(f"a file system is still mounted below {resources.folder}")
        if Path(resources.folder).is_dir():
            shutil.rmtree(resources.folder)
    except (OSError, UnavailableError) as error:
        raise CaseFailed(f"could not take down test bed {resources.folder}: {error}") from error
    resources.note.unlink(missing_ok=True)


def clean_leftovers() -> list[str]:
    """Take down the beds whose process is gone. Called whenever a bed is entered.

    Returns a line for each bed that was removed, or that could not be removed and why.
    """
    told = []
    folder = beds_folder()
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for note in sorted(folder.glob("*.json")):
            try:
                resources = Resources(**json.loads(note.read_text()))
            except FileNotFoundError:  # its owner took it down meanwhile
                continue
            if resources.pid_namespace != _pid_namespace() or resources.owner_lives():
                continue
            try:
                dismantle(resources)
            except CaseFailed as error:
                told.append(str(error))
            else:
                told.append(f"removed {resources.bed}, which process {resources.owner_pid} left")
    return told


@contextlib.contextmanager
def workspace(bed: str) -> Iterator[Resources]:
    """A folder for one bed, and the note of what it creates; both are removed at the end.

    A process killed by signal 9 cannot clean up: the next process to enter any bed does.
    """
    clean_leftovers()
    started = start_time_ticks(os.getpid())
    assert started is not None
    folder = beds_folder() / f"{bed}-{os.getpid()}-{time.monotonic_ns()}"
    resources = Resources(bed, os.getpid(), started, _pid_namespace(), str(folder))
    resources.save()
    folder.mkdir(0o700)
    try:
        yield resources
    finally:
        dismantle(resources)


@dataclass(frozen=True)
class _TreeSize:
    num_files: int
    num_folders: int
    blocks_bytes: int


def _measure_tree(root: str, block_bytes: int) -> _TreeSize:
    num_files = num_folders = blocks_bytes = 0
    for folder, _, files in os.walk(root):
        num_folders += 1
        blocks_bytes += block_bytes
        for name in files:
            num_files += 1
            size = os.lstat(os.path.join(folder, name)).st_size
            blocks_bytes += -(-size // block_bytes) * block_bytes
    return _TreeSize(num_files, num_folders, blocks_bytes)


def make_ext4_image(dataset_dir: str, image: str) -> None:
    """Write an ext4 image that holds a copy of a tree, without mounting anything (mkfs.ext4 -d). Needs no root.

    Raises:
        UnavailableError: e2fsprogs is missing, or the temporary folder is full.
    """
    block_bytes = 4096
    tree = _measure_tree(dataset_dir, block_bytes)
    num_inodes = tree.num_files + tree.num_folders + 64
    size_bytes = int(tree.blocks_bytes * 1.05) + num_inodes * 256 + (8 << 20)
    free_bytes = shutil.disk_usage(os.path.dirname(image)).free
    if free_bytes < size_bytes:
        raise UnavailableError(
            f"the test bed's image needs {size_bytes / 1e6:.0f} MB and {os.path.dirname(image)} has "
            f"{free_bytes / 1e6:.0f} MB free; use a smaller data set or set TMPDIR"
        )
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    make = [find_program("mkfs.ext4", "e2fsprogs"), "-q", "-F", "-O", "^has_journal", "-m", "0", "-b", str(block_bytes)]
    run_command(*make, "-N", str(num_inodes), "-d", dataset_dir, image)
    # It is not part of the data set, and not readable by all users.
    run_command(find_program("debugfs", "e2fsprogs"), "-w", "-R", "rmdir lost+found", image)
