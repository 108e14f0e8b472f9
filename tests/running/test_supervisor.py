"""The supervisor with children that misbehave. The case's own work is tests/integration's."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import psutil
import pytest

from loaderbench.cases.case import Case, Step
from loaderbench.recording.facts import Failure, Recording, Run
from loaderbench.recording.progress import Message
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import RunFolder, Store
from loaderbench.running import process as starting
from loaderbench.running import supervisor
from loaderbench.running.jobs.table import MEASURE, OPEN_MEMBER, MeasureRequest, MemberRequest
from loaderbench.running.process import PR_SET_CHILD_SUBREAPER, end_session, session_members
from loaderbench.running.supervisor import Child, JobFailed, Kept, supervise
from loaderbench.studies import measure
from tests.made import make_case, make_facts


def case_of(dataset: Path) -> Case:
    return make_case(
        dataset=str(dataset), dataset_name="set", resolution=None, loader="serial", workers=0, batch_size=4,
        device="emulated:h200-resnet50-train-fp32",
    )  # fmt: skip


def ask(child: Child, dataset: Path) -> object:
    """Let the child measure the data set."""
    return child.ask(MEASURE, MeasureRequest(case_of(dataset)), quiet)


def quiet(message: Message) -> None:
    pass


ANSWER = "from loaderbench.running.jobs.table import Answer; pipe.send(Answer(0))"


def replace_child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Lets `code` run instead of the measuring process; it has the pipe as `pipe`."""
    start = subprocess.Popen
    begin = "import os, signal, sys, time; from multiprocessing.connection import Connection; pipe = Connection("

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        if "loaderbench.running.child" in command:
            command = [sys.executable, "-c", f"{begin}{command[-2]}); pipe.recv(); {code}"]
        return start(command, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(starting.subprocess, "Popen", popen)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "out of memory?"),
        ("print('the last words', file=sys.stderr); sys.exit(3)", "ended with status 3: the last words"),
        ("sys.exit(0)", "ended with status 0"),
    ],
)
def test_a_death_is_told_by_how_it_died(code: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replace_child(monkeypatch, code)
    with Child(tmp_path / "log") as child, pytest.raises(JobFailed, match=says):
        ask(child, tmp_path)


def test_what_may_spare_memory_is_what_the_command_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replace_child(monkeypatch, "os.kill(os.getpid(), signal.SIGKILL)")
    with Child(tmp_path / "log") as child, pytest.raises(JobFailed, match="try fewer --workers or a smaller --batch"):
        ask(child, tmp_path)
    with Child(tmp_path / "log") as child, pytest.raises(JobFailed, match="try a smaller --batch-size"):
        child.ask(OPEN_MEMBER, MemberRequest(Step("lenet", "infer", "fp32", "cpu:1", 1, 28), 0), lambda message: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_child_is_started_ends_it(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started, start = [], subprocess.Popen

    def popen(*command: object, **options: object) -> subprocess.Popen[bytes]:
        process = start(*command, **options)  # type: ignore[call-overload]
        started.append(process)
        signal.raise_signal(number)  # with the process there, and nobody yet who has its number
        return process  # type: ignore[no-any-return]

    monkeypatch.setattr(starting.subprocess, "Popen", popen)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Child(tmp_path / "log"):
            raise AssertionError("the interrupt was lost")
    finally:
        signal.signal(number, before)
    assert session_members(started[0].pid, zombies=True) == []


def test_a_child_that_hangs_is_ended_though_a_thread_of_it_tells_something(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "HANG_S", 1.5)
    rough = "SoFar(Verdict('undetermined'), 7.0, 'no batch yet')"
    replace_child(
        monkeypatch,
        "from loaderbench.recording.progress import SoFar; from loaderbench.recording.record import Verdict\n"
        f"while True: pipe.send({rough}); time.sleep(0.1)",
    )
    with Child(tmp_path / "log") as child:
        monkeypatch.setattr(starting, "GRACE_S", 0.2)
        with pytest.raises(JobFailed, match="no sign of life"):
            ask(child, tmp_path)


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(supervisor, "HANG_S", 0.3)
    replace_child(monkeypatch, "time.sleep(1000)")
    with Child(tmp_path / "log") as child:
        monkeypatch.setattr(starting, "GRACE_S", 0.2)
        with pytest.raises(JobFailed, match="no sign of life"):
            ask(child, tmp_path)
    assert session_members(child.process.pid, zombies=True) == []


def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(starting, "GRACE_S", 1.0)
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); os.fork()"
    replace_child(monkeypatch, f"{stubborn}; {ANSWER}; time.sleep(1000)")
    with Child(tmp_path / "log") as child:
        ask(child, tmp_path)
    assert session_members(child.process.pid, zombies=True) == []


def test_a_killed_child_that_stays_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stopped process stands in for one that waits in the kernel: it neither answers nor goes away by itself.
    replace_child(monkeypatch, "os.kill(os.getpid(), signal.SIGSTOP)")
    begun = time.monotonic()
    with (
        pytest.raises(JobFailed, match="does not end because it waits for its storage"),
        Child(tmp_path / "log") as child,
    ):
        child.ask(MEASURE, MeasureRequest(case_of(tmp_path)), quiet, lambda: time.monotonic() - begun > 1)
    assert time.monotonic() - begun < 4  # GRACE_S would be 5 more
    assert child.process.poll() is not None


def test_end_session_ends_orphans_of_a_dead_child() -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    process.stdout.close()
    process.wait()
    assert psutil.pid_exists(orphan)

    end_session(process)

    assert session_members(process.pid) == []


def test_a_data_set_that_is_not_there_fails_the_run_and_raises_nothing(tmp_path: Path) -> None:
    case = case_of(tmp_path / "nosuch")
    run = supervise(case, Store(tmp_path / "results").open_run(case), quiet, kept=Kept())
    assert (run.status, run.recording) == ("failed", None)
    assert run.failure is not None
    assert run.failure.kind == "ConfigError" and "cannot read the data set folder" in run.failure.message


def test_a_measured_case_is_stored_though_ctrl_c_comes_while_it_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Given a run that ended, and a Ctrl-C in the middle of its analysis
    case = case_of(tmp_path)
    finished: list[RunRecord] = []

    def ended(case: Case, folder: RunFolder, on_message: object, judge: object, **ranks: object) -> Run:
        failure = Failure("CaseFailed", "why")
        return Run(folder.run_id, case, "failed", folder.started_at, 1.0, None, failure=failure)

    analyse = measure.analyze

    def analyse_interrupted(run: Run) -> RunRecord:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return analyse(run)

    monkeypatch.setattr(measure, "supervise", ended)
    monkeypatch.setattr(measure, "analyze", analyse_interrupted)

    with pytest.raises(KeyboardInterrupt):
        measure.measure_case(case, Store(tmp_path), lambda case, message: None, finished.append)

    (stored,) = Store(tmp_path).runs()
    assert stored.status == "failed"
    assert [record.run_id for record in finished] == [stored.run_id]


class Finished:
    """A measuring process that has given its answer, and a Ctrl-C that comes while it ends."""

    process, started_ns = SimpleNamespace(pid=os.getpid()), 0

    def __init__(self, *given: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        raise KeyboardInterrupt

    def ask(self, *given: object) -> Recording:
        return Recording([], make_facts(), [])


def test_a_case_whose_answer_is_there_is_stored_as_measured_though_ctrl_c_comes_before_its_process_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case, finished, parts = case_of(tmp_path), list[RunRecord](), list[RunRecord]()
    monkeypatch.setattr(supervisor, "Child", Finished)
    with pytest.raises(KeyboardInterrupt):
        measure.measure_case(
            case, Store(tmp_path), lambda case, message: None, finished.append, on_interrupted=parts.append
        )
    (stored,) = Store(tmp_path).runs()
    assert (stored.status, parts, [one.run_id for one in finished]) == ("ok", [], [stored.run_id])
    assert stored.record is not None and stored.record.failure is None and stored.record.environment is not None


def test_processes_whose_names_are_cut_within_a_letter_or_hidden_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_bytes("7 (тренировк".encode()[:-1] + b") S 1 7 7 0\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "stat").mkdir()  # reading it fails, as reading another user's may
    monkeypatch.setattr(starting, "Path", lambda path: tmp_path if path == "/proc" else Path(path))
    assert session_members(7) == [7]


def test_memory_that_a_killed_worker_left_is_removed() -> None:
    """A process that dies between torch's naming of shared memory and its unlinking."""
    command = "import os, time; open(f'/dev/shm/torch_{os.getpid()}_1_0', 'w'); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    left = Path(f"/dev/shm/torch_{process.pid}_1_0")
    assert left.exists()
    end_session(process)
    process.stdout.close()
    assert not left.exists()


def test_memory_is_removed_of_a_worker_that_died_with_its_parent() -> None:
    """It is dead before anybody looks: only its zombie tells which memory was its own."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    worker = "import os, sys; open(f'/dev/shm/torch_{os.getpid()}_1_0', 'w'); print(os.getpid(), flush=True); input()"
    command = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {worker!r}], stdin=subprocess.PIPE)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{command}.wait()"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()  # the worker's standard input ends with it, and so does the worker
    process.wait()
    while session_members(process.pid):
        time.sleep(0.01)
    assert session_members(process.pid, zombies=True) == [pid]
    assert Path(f"/dev/shm/torch_{pid}_1_0").exists()

    end_session(process)

    process.stdout.close()
    assert not Path(f"/dev/shm/torch_{pid}_1_0").exists()
    assert session_members(process.pid, zombies=True) == []


def test_a_process_that_ends_does_what_was_registered_and_takes_no_module_apart(tmp_path: Path) -> None:
    code = """
import atexit, threading, time
from loaderbench.running import child

class Kept:
    def __del__(self): print("taken apart")

kept = Kept()
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
child._end(3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout.split("\n"), done.returncode) == (["thread", "registered", ""], 3)
