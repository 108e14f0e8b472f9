"""What a killed command leaves ends, even if it is stopped. Shells stand for the command and its measuring process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from loaderbench.running.guard import Guard
from loaderbench.temporary import TemporaryFolder, temporary_folder

STOPPED = psutil.STATUS_STOPPED
SLEEPS = ["sh", "-c", "sleep 100 & wait"]
"""A process with a worker; SIGTERM ends the first alone."""


def wait_until_stopped(pid: int) -> None:
    while {psutil.Process(pid).status(), *(one.status() for one in psutil.Process(pid).children())} != {STOPPED}:
        time.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Temporary files of a measuring process."""
    made = tmp_path / "its own"
    made.mkdir()
    (made / "socket").touch()
    return made


@pytest.mark.parametrize("stopped", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_group_ends_with_its_killed_command(stopped: bool, folder: Path) -> None:
    with subprocess.Popen(SLEEPS, start_new_session=True) as process:
        guard = Guard(process.pid, folder)
        assert guard._shell is not None and guard._shell.stdin is not None
        while not (workers := psutil.Process(process.pid).children()):
            time.sleep(0.01)
        if stopped:
            os.killpg(process.pid, signal.SIGSTOP)
            wait_until_stopped(process.pid)
        process.terminate()  # as the kernel does when its parent dies

        guard._shell.stdin.close()  # as the kernel does when the command dies

        assert process.wait(5) == -signal.SIGTERM
        guard._shell.wait(20)
        assert [one for one in workers if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert not folder.exists()


def test_a_command_that_ends_its_processes_itself_has_a_guard_that_does_nothing(folder: Path) -> None:
    with subprocess.Popen(SLEEPS, start_new_session=True) as process:
        guard = Guard(process.pid, folder)
        guard.end()
        assert process.poll() is None and folder.exists()
        os.killpg(process.pid, signal.SIGKILL)
    assert guard._shell is not None and guard._shell.returncode == 0


def test_a_guard_that_is_stopped_or_killed_holds_nothing_up(folder: Path) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):
        guard = Guard(2**22 + 1, folder)
        assert guard._shell is not None
        guard._shell.send_signal(number)
        guard.end()
        assert guard._shell.returncode == -signal.SIGKILL


def test_temporary_files_whose_process_is_gone_go_with_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    in_use = TemporaryFolder()
    made = "from loaderbench.temporary import TemporaryFolder as T; t = T(); import os; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", made], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    (tmp_path / "pymp-of-another-program").mkdir()
    assert len(list(tmp_path.iterdir())) == 3

    mine = TemporaryFolder()

    names = {in_use.path.name, mine.path.name, "pymp-of-another-program"}
    assert {path.name for path in tmp_path.iterdir()} == names
    mine.remove()
    in_use.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["pymp-of-another-program"]


def test_a_temporary_folder_beside_other_things_is_hidden_and_goes_the_same_way(tmp_path: Path) -> None:
    made = "from loaderbench.temporary import TemporaryFolder as T; from pathlib import Path; import os, sys\n"
    made += "(T(Path(sys.argv[1])).path / 'large').write_text('x'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", made, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".") and (left / "large").exists()
    with temporary_folder(tmp_path) as mine:
        assert [*tmp_path.iterdir()] == [mine]
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_was_taken_for_a_leftover_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = []

    def lock(folder: int, how: int) -> None:
        if not locks:  # another process had it first, and removes what it locked
            Path(f"/proc/self/fd/{folder}").readlink().rmdir()
        locks.append(how)

    monkeypatch.setattr("loaderbench.temporary.fcntl.flock", lock)
    with temporary_folder(tmp_path) as mine:
        assert mine.is_dir() and len(locks) == 2


def test_without_a_shell_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*arguments: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_more)
    Guard(os.getpid(), None).end()
