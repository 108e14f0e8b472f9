"""What a measuring process makes of a job: its answer and its messages typed, every failure with its kind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loaderbench.cases.arms import Arm
from loaderbench.errors import KINDS, CaseFailed, ConfigError, LoaderbenchError, OutOfMemory, UnavailableError
from loaderbench.recording.progress import Message, Phase, SegmentDone, StepsDone
from loaderbench.running.jobs.table import EXAMINE_DEVICE, FOLLOW_STEPS, MEASURE, TIME_STEPS, Job
from loaderbench.running.supervisor import Child, JobFailed, KeptChild
from loaderbench.selftest.jobs import DEVICE_SECONDS, LOADER_SECONDS, WALL_SECONDS

JOBS = """
import os, signal, sys, time
from loaderbench.cases.arms import Arm
from loaderbench.errors import *
from loaderbench.recording.progress import Phase, SegmentDone, StepsDone

TELLS = (Phase("looking"), StepsDone(3, 10), SegmentDone(Arm.REAL, 2, 40, 160, 5_000_000, 0.25))

class Odd(Exception):
    pass

def answers(request, report):
    for message in TELLS:
        report(message)
    return {"pid": os.getpid(), "given": request.given}

def raises(request, report):
    report(Phase("about to fail"))
    raise eval(request.given)

def dies(request, report):
    os.kill(os.getpid(), request.given)
    time.sleep(30)

def imports(request, report):
    return [__import__(name).__file__ for name in request.given.split()]

def unpicklable(request, report):
    return lambda: 0

def prints(request, report):
    print("said on the way", flush=True)
    sys.exit(7)
"""


def request(given: object = None) -> Any:
    """A request to one of JOBS."""
    return SimpleNamespace(given=given, waits_for="a test")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """JOBS as a module that the measuring process can import."""
    (tmp_path / "odd_jobs.py").write_text(JOBS)
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), inherited])))
    return "odd_jobs"


@pytest.fixture
def ask(module: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`ask(job, given, told)`: has one process do a job, keeping its messages in `told`."""
    with Child(tmp_path / "worker.log") as child:

        def ask(function: str, given: Any = None, told: list[Message] | None = None) -> Any:
            job: Job[Any, Any] = Job(module, function)
            return child.ask(job, request(given), [].append if told is None else told.append)

        yield ask


def test_an_answer_and_its_messages_arrive_as_they_were_sent(ask: Callable[..., Any]) -> None:
    told: list[Message] = []
    answer = ask("answers", {"a": (1, None)}, told)
    assert answer["given"] == {"a": (1, None)} and answer["pid"] != os.getpid()
    assert told == [Phase("looking"), StepsDone(3, 10), SegmentDone(Arm.REAL, 2, 40, 160, 5_000_000, 0.25)]
    assert [type(message) for message in told] == [Phase, StepsDone, SegmentDone]
    assert isinstance(told[2], SegmentDone) and told[2].arm is Arm.REAL
    # and the process does one job after another
    assert ask("answers")["pid"] == answer["pid"]


def test_nothing_is_imported_from_the_folder_that_one_stands_in(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a data set that somebody else can write."""
    planted, marks = tmp_path / "images", tmp_path / "imported"
    for name in ("psutil", "numpy", "PIL", "odd_jobs", "sitecustomize", "colorsys"):
        (planted / name).mkdir(parents=True)
        (planted / name / "__init__.py").write_text(f"open({str(marks)!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(planted)
    monkeypatch.setattr("loaderbench.running.process.subprocess", subprocess)  # a fork would have all imported
    with Child(tmp_path / "worker.log") as child:
        assert child.ask(Job[Any, Any](module, "answers"), request(), [].append)["given"] is None
        imported = child.ask(Job[Any, Any](module, "imports"), request("psutil numpy PIL colorsys"), [].append)
    assert not marks.exists() and not any(path.startswith(str(planted)) for path in imported)


@pytest.mark.parametrize("kind", [ConfigError, UnavailableError, CaseFailed, OutOfMemory])
def test_an_error_of_ours_keeps_its_kind_and_words(kind: type[LoaderbenchError], ask: Callable[..., Any]) -> None:
    told: list[Message] = []
    with pytest.raises(JobFailed, match=r"^too much: give less$") as failed:
        ask("raises", f"{kind.__name__}('too much: give less')", told)
    assert told == [Phase("about to fail")]
    assert (failed.value.failure.kind, failed.value.failure.message) == (kind.__name__, "too much: give less")
    assert type(failed.value.error) is kind
    assert failed.value.status == ("skipped" if kind is UnavailableError else "failed")
    assert ask("answers")["given"] is None  # it lives on


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        ("ValueError('first\\nsecond')", "ValueError", "ValueError: first (trace in worker.log)"),
        ("Odd()", "Odd", "Odd: no message (trace in worker.log)"),
        ("KeyError('x')", "KeyError", "KeyError: 'x' (trace in worker.log)"),
        ("MemoryError()", "MemoryError", "MemoryError: no message (trace in worker.log)"),
    ],
)
def test_any_other_error_is_a_failed_case_with_its_trace_in_the_log(
    raised: str, kind: str, says: str, ask: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(JobFailed) as failed:
        ask("raises", raised)
    assert (failed.value.failure.kind, failed.value.failure.message) == (kind, says)
    assert type(failed.value.error) is CaseFailed and failed.value.status == "failed"
    assert "raise eval(request.given)" in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (Job("odd_jobs", "nosuch"), "AttributeError: module 'odd_jobs' has no attribute 'nosuch'"),
        (Job("loaderbench.running.jobs.nosuch", "measure"), "ModuleNotFoundError: No module named"),
    ],
)
def test_an_unknown_job_is_named(job: Job[Any, Any], says: str, module: str, tmp_path: Path) -> None:
    with Child(tmp_path / "worker.log") as child:
        with pytest.raises(JobFailed, match=says) as failed:
            child.ask(job, request(), lambda message: None)
        assert type(failed.value.error) is CaseFailed
        known: Job[Any, Any] = Job(module, "answers")
        assert child.ask(known, request(1), lambda message: None)["given"] == 1


@pytest.mark.parametrize(
    ("number", "says"), [(signal.SIGKILL, "killed by SIGKILL (out of memory?"), (signal.SIGSEGV, "killed by SIGSEGV")]
)
def test_a_process_that_is_killed_says_by_what(number: int, says: str, ask: Callable[..., Any]) -> None:
    with pytest.raises(JobFailed) as failed:
        ask("dies", number)
    assert failed.value.failure.kind == "CaseFailed" and says in failed.value.failure.message
    # and there is nobody left to ask
    with pytest.raises(JobFailed, match=says.partition("(")[0].strip()):
        ask("answers")


@pytest.mark.parametrize(
    ("function", "says"),
    [("prints", "ended with status 7: said on the way"), ("unpicklable", "ended with status 1: .*pickle")],
)
def test_a_process_that_ends_says_how_and_its_last_words(function: str, says: str, ask: Callable[..., Any]) -> None:
    with pytest.raises(JobFailed, match=says) as failed:
        ask(function)
    assert failed.value.failure.kind == "CaseFailed"


def test_a_kept_process_is_replaced_after_its_end(module: str, tmp_path: Path) -> None:
    job: Job[Any, Any] = Job(module, "answers")
    with KeptChild(tmp_path / "worker.log") as kept:
        first, again = (kept.child(None).ask(job, request(), lambda message: None)["pid"] for _ in range(2))
        kept.end()
        other = kept.child(None).ask(job, request(), lambda message: None)["pid"]
    assert first == again != other


def test_the_table_names_functions_that_are_there() -> None:
    from importlib import import_module

    for job in (MEASURE, EXAMINE_DEVICE, TIME_STEPS, FOLLOW_STEPS, LOADER_SECONDS, DEVICE_SECONDS, WALL_SECONDS):
        assert callable(getattr(import_module(job.module), job.function)), job


def test_every_error_of_ours_crosses_the_pipe_by_its_name() -> None:
    def below(kind: type[LoaderbenchError]) -> set[type[LoaderbenchError]]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__() if one.__module__ == "loaderbench.errors"))

    assert set(KINDS.values()) == below(LoaderbenchError) - {LoaderbenchError}
