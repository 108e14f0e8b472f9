"""A measuring process that is started before its job is known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loaderbench.recording.progress import Message
from loaderbench.running import process as starting
from loaderbench.running.jobs.table import Job
from loaderbench.running.process import Ahead, session_members
from loaderbench.running.supervisor import Child, JobFailed

WORK: Job[str, str] = Job("job_to_come", "work")
DOES = "\ndef work(request, report):\n    print('late words', flush=True)\n    return request + ' is done'\n"


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module that a process imports ahead, to be written."""
    monkeypatch.setattr(starting, "MEASURING", WORK.module)
    monkeypatch.setattr("loaderbench.running.process.subprocess", subprocess)  # a fork would have its own modules
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(starting.__file__).parents[2]}")
    return tmp_path / f"{WORK.module}.py"


def quiet(message: Message) -> None:
    pass


def test_a_process_that_was_started_ahead_does_the_job_and_prints_into_its_log(imports: Path, tmp_path: Path) -> None:
    # Given a process that prints something while it imports
    imports.write_text(f"print('early words', flush=True)\n{DOES}")
    with Ahead() as ahead:
        begun = ahead.process.pid
        # When a job comes
        with Child(tmp_path / "log", ahead=ahead) as child:
            assert child.ask(WORK, "it", quiet) == "it is done"
            assert child.process.pid == begun
        # Then the next job gets a process of its own
        with Child(tmp_path / "other", ahead=ahead) as child:
            assert child.ask(WORK, "it", quiet) == "it is done"
            assert child.process.pid != begun
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["early words", "late words"]
    assert (tmp_path / "other").read_text().splitlines() == ["early words", "late words"]


def test_one_that_nobody_needs_ends_at_once_in_the_middle_of_its_imports(imports: Path) -> None:
    imports.write_text("import time; time.sleep(1000)")
    with Ahead() as ahead:
        folder = ahead._temporary
    assert ahead.process.returncode is not None
    assert session_members(ahead.process.pid, zombies=True) == []
    assert folder is not None and not folder.path.exists()


def test_one_that_has_died_is_replaced(imports: Path, tmp_path: Path) -> None:
    imports.write_text(DOES)
    with Ahead() as ahead:
        ahead.process.kill()
        ahead.process.wait()
        with Child(tmp_path / "log", ahead=ahead) as child:
            assert child.ask(WORK, "it", quiet) == "it is done"


def test_what_one_said_before_it_died_of_its_imports_is_in_the_failure(imports: Path, tmp_path: Path) -> None:
    imports.write_text("import os, time; print('the last words', flush=True); time.sleep(1); os._exit(3)")
    with (
        Ahead() as ahead,
        Child(tmp_path / "log", ahead=ahead) as child,
        pytest.raises(JobFailed, match="ended with status 3: the last words"),
    ):
        child.ask(WORK, "it", quiet)


def test_a_failed_import_is_the_answer_though_another_attempt_would_do(imports: Path, tmp_path: Path) -> None:
    first = "import pathlib; mark = pathlib.Path(__file__ + '.tried')\nif not mark.exists():\n    mark.touch()\n"
    imports.write_text(f"{first}    raise ImportError('no such library')\n{DOES}")
    with (
        Ahead() as ahead,
        Child(tmp_path / "log", ahead=ahead) as child,
        pytest.raises(JobFailed, match="no such library"),
    ):
        child.ask(WORK, "it", quiet)


def test_it_is_started_without_what_takes_long_to_import() -> None:
    code = (
        "import sys; from loaderbench.running.process import Ahead\n"
        "with Ahead() as ahead: print(ahead.process.poll(), *{'numpy', 'PIL', 'rich', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None"]
