"""However a watched script ends, it ends as Python ends it, and what was seen is stored and said. What Python does is
asked of Python: the same lines run without the watch."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from commands import run, run_script

from loaderbench.recording.store import Store
from tests.thinned import thinned
from tests.warm import Where
from tests.watching.test_watch_command import loaderbench, watched

HEAD = "import atexit, os, signal, sys, threading, time\n"
TRAINS = """
from torch.utils.data import DataLoader
for batch in DataLoader(list(range(400)), 4):
    time.sleep(0.001)
"""


def bare(*command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Python alone."""
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=folder, timeout=120
    )


def is_stored(folder: Path) -> bool:
    return [one.record is not None for one in Store(folder / "results").runs()] == [True]


# -- a module ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("--epochs", "3", "--every", "5", "--json", "x", "--apply", "-m", "y"), ("--", "--results", "z"), ("-h",), ()],
    ids=["options of both", "behind dashes", "help", "none"],
)
def test_all_behind_a_module_s_name_is_the_module_s(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nprint(sys.argv, __name__, __spec__.name, sys.path[0] != '')\nsys.exit(len(sys.argv))\n"
    )
    python = bare("-m", "package.train", *arguments, folder=tmp_path)
    seen = watched("-m", "package.train", *arguments, folder=tmp_path, whole_end=False)
    assert (seen.code, seen.out) == (python.returncode, python.stdout) == (1 + len(arguments), python.stdout)
    assert "the script took no batch" in seen.err and len(seen.lines) == 1


@pytest.mark.parametrize(
    "arguments",
    [("-mtrain", "--epochs", "3", "--apply", "-my"), ("-mtrain",), ("-mtrain", "--", "-m"), ("-m=train",), ("-m-h",)],
    ids=" ".join,
)
def test_a_module_s_name_may_follow_without_a_blank_as_python_takes_it(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv, __name__)\nsys.exit(7)\n")
    python = bare(*arguments, folder=tmp_path)
    seen = watched("--every", "5", *arguments, folder=tmp_path, whole_end=False)
    assert (seen.code, seen.out) == (python.returncode, python.stdout), seen.err
    assert python.returncode == (7 if arguments[0] == "-mtrain" else 1)


def test_what_looks_like_a_module_is_an_option_s_value_and_behind_a_script_the_script_s_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n")
    seen = loaderbench("watch", "--results", "-mnosuch", "train.py", "-mnosuch", folder=tmp_path)
    assert (seen.code, seen.out) == (0, bare("train.py", "-mnosuch", folder=tmp_path).stdout), seen.err


def test_a_module_that_is_not_there_is_one_line_and_one_that_fails_to_import_another_its_own_error(
    tmp_path: Path,
) -> None:
    seen = watched("-m", "nosuch", "--epochs", "3", folder=tmp_path, whole_end=False)
    assert seen.code == bare("-m", "nosuch", folder=tmp_path).returncode == 1
    assert seen.lines == ["loaderbench: No module named nosuch"]
    (tmp_path / "imports.py").write_text("import nosuch\n")
    seen = watched("-m", "imports", folder=tmp_path)
    assert seen.code == 1 and 'imports.py", line 1' in seen.err and "ModuleNotFoundError" in seen.err


# -- its end -------------------------------------------------------------------------------------------------

ENDS = {
    "closes its log": "sys.stdout = open('log', 'w')\nprint('x')\nsys.stdout.close()",
    "closes stderr": "sys.stderr.close()",
    "no stderr": "sys.stderr = None\nsys.exit('why')",
    "text": "sys.exit('why')",
    "an object": "sys.exit(('a', 1))",
    "130": "sys.exit(130)",
    "143": "sys.exit(143)",
    "a thread goes on": "threading.Timer(0.3, lambda: print('later')).start()\nprint('last line')",
    "Ctrl-C": "atexit.register(print, 'atexit')\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)",
    "Ctrl-C, own hook": "sys.excepthook = lambda kind, *_: print(kind.__name__)\nos.kill(os.getpid(), signal.SIGINT)\n"
    "time.sleep(5)",
    "Ctrl-C, caught": "try:\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(5)\n"
    "except KeyboardInterrupt: print('caught')",
    "SIGTERM": "atexit.register(print, 'atexit')\nprint('lost')\n"
    "while True:\n    try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(5); print('went on')\n    except: continue",
    "SIGTERM, made default": "print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)\n"
    "print(signal.signal(signal.SIGTERM, signal.SIG_IGN) == signal.SIG_DFL, flush=True)\n"
    "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(5)",
    "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP)\ntime.sleep(5)",
    "SIGTERM in atexit": "atexit.register(lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(5)))",
    "_exit": "print('lost')\nos._exit(4)",
    "_exit in a thread": "threading.Timer(0.1, os._exit, (6,)).start()\ntime.sleep(5)",
}


@pytest.mark.parametrize("end", thinned(ENDS, 3))
def test_it_ends_as_python_does_and_what_was_seen_is_stored_written_and_said(tmp_path: Path, end: str) -> None:
    script = tmp_path / "ends.py"
    script.write_text(HEAD + ENDS[end])
    python = bare("ends.py", folder=tmp_path)
    script.write_text(HEAD + TRAINS + ENDS[end])
    seen = watched(script, folder=tmp_path)
    assert (seen.code, seen.out) == (python.returncode, python.stdout), seen.err
    assert is_stored(tmp_path)
    assert json.loads((tmp_path / "record.json").read_text())["watched"]["script"] == "ends.py"
    assert "faster" in seen.err and "interrupted" not in seen.err
    told = python.stderr.splitlines()[-1:]
    assert all(line in seen.lines for line in told)
    assert seen.err.count("Traceback") == python.stderr.count("Traceback")


@pytest.mark.parametrize(
    "child",
    thinned(
        [
            "print('child'); sys.exit(3)",
            "atexit.register(print, 'atexit'); sys.exit('text')",
            "print('child')",
            "raise ValueError('of the child')",
            "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
            "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
        ],
        3,
    ),
)
def test_a_forked_child_ends_as_python_ends_it_and_stores_nothing(tmp_path: Path, child: str) -> None:
    end = f"if (pid := os.fork()) == 0:\n    {child}\nelse: print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    script = tmp_path / "forks.py"
    script.write_text(HEAD + end)
    python = bare("forks.py", folder=tmp_path)
    script.write_text(HEAD + TRAINS + end)
    seen = watched(script, folder=tmp_path)
    assert (seen.code, seen.out) == (python.returncode, python.stdout), seen.err
    assert is_stored(tmp_path) and seen.err.count("Where the script's time went") == 1
    assert all(line in seen.lines for line in python.stderr.splitlines()[-1:])


# -- where it stores and speaks ------------------------------------------------------------------------------


def test_files_are_those_of_the_folder_in_which_it_was_started(tmp_path: Path) -> None:
    for name in ("out", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "moves.py").write_text("import os, time\nos.chdir('elsewhere')\n" + TRAINS)
    options = ("--json", "out/record.json", "--results", "out/results")
    seen = run("watch", *options, "moves.py", folder=tmp_path, where=Where(whole_end=True))
    assert seen.code == 0, seen.err
    found = json.loads((tmp_path / "out" / "record.json").read_text())
    assert found["case"]["dataset"] == str((tmp_path / "moves.py").resolve())
    assert Store(tmp_path / "out" / "results").find("latest").record is not None
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("how", ["the command", "from within"])
def test_a_script_may_make_the_results_folder_itself(tmp_path: Path, how: str) -> None:
    body = HEAD + "import loaderbench\nbatches = loaderbench.watch([1] * 300)\nos.makedirs('results')\n"
    (tmp_path / "makes.py").write_text(body + "for batch in batches: time.sleep(0.001)\n")
    if how == "the command":
        assert watched("makes.py", folder=tmp_path).code == 0
    else:
        assert run_script(tmp_path / "makes.py", folder=tmp_path, whole_end=True).code == 0
    assert is_stored(tmp_path)


def test_a_record_that_cannot_be_written_is_one_line_and_the_exit_code_is_the_script_s(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "ends.py").write_text(HEAD + TRAINS + "os.rmdir('out')\nsys.exit(3)")
    seen = run("watch", "--json", "out/record.json", "ends.py", folder=tmp_path, where=Where(whole_end=True))
    told = [line for line in seen.lines if line.startswith("loaderbench:")]
    assert seen.code == 3 and len(told) == 1 and "cannot write" in told[0] and "Traceback" not in seen.err
    assert is_stored(tmp_path)


@pytest.mark.slow
def test_where_nobody_reads_stderr_output_and_exit_code_stay_and_the_record_is_written(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(HEAD + TRAINS + "atexit.register(print, 'atexit')\nsys.exit(5)")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "loaderbench", "watch", "--json", "record.json", "ends.py"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, check=False, cwd=tmp_path, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stdout) == (5, b"atexit\n")
    assert is_stored(tmp_path) and (tmp_path / "record.json").exists()


def test_a_signal_to_all_processes_ends_the_workers_too_and_what_was_seen_is_stored(tmp_path: Path) -> None:
    body = TRAINS.replace("range(400)), 4", "range(200_000)), 4, num_workers=2")
    (tmp_path / "goes_on.py").write_text(
        "import time\nnum = 0\n" + body + "    num += 1\n    if num == 200: print('ready', flush=True)\n"
    )
    command = [sys.executable, "-m", "loaderbench", "watch", "goes_on.py"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        os.killpg(running.pid, signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert running.returncode == -signal.SIGTERM and is_stored(tmp_path), said
    assert "Traceback" not in said and "faster" in said


def test_what_is_said_does_not_go_into_the_script_s_log(tmp_path: Path) -> None:
    body = """
    log = sys.stderr = open("log", "w", buffering=1)
    print("mine", file=sys.stderr)
    atexit.register(lambda: print("end", sys.stderr is log, file=sys.stderr))
    """
    (tmp_path / "logs.py").write_text(HEAD + TRAINS + textwrap.dedent(body))
    seen = watched("logs.py", folder=tmp_path)
    assert (tmp_path / "log").read_text() == "mine\nend True\n"
    assert seen.code == 0 and "faster" in seen.err


CHILD = """
import multiprocessing, os, sys, time
import loaderbench

def train(number):
    for batch in loaderbench.watch([number] * 300):
        time.sleep(0.002)
    if number == 2:
        raise ValueError("of the child")

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=train, args=(number,)) for number in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print([child.exitcode for child in children])
"""


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_watch_that_a_process_of_multiprocessing_begins_is_stored_at_that_process_s_end(
    tmp_path: Path, start: str
) -> None:
    (tmp_path / "children.py").write_text(CHILD)
    done = bare("children.py", start, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n"), done.stderr
    assert [one.record is not None for one in Store(tmp_path / "results").runs()] == [True, True]
    assert done.stderr.count("Where the script's time went") == 2


STARTS = {
    "no process": ("pass", False),
    "a process of multiprocessing": (
        "one = multiprocessing.Process(target=sum, args=([1],))\none.start()\none.join()",
        True,
    ),
    "one that goes on": ("multiprocessing.Process(target=time.sleep, args=(2,)).start()", True),
    "a program": ("subprocess.run(['true'])", True),
}


@pytest.mark.parametrize("start", STARTS)
def test_where_nothing_was_seen_and_the_script_started_processes_it_says_what_to_do(tmp_path: Path, start: str) -> None:
    line, told = STARTS[start]
    (tmp_path / "starts.py").write_text(f"import multiprocessing, subprocess, time\n{line}\n")
    seen = watched("starts.py", folder=tmp_path, whole_end=False)
    assert seen.code == 0 and len(seen.lines) == 1 and ("took no batch" in seen.err or told)
    assert ("processes that it started are not watched" in seen.err) is told
    assert ("torchrun" in seen.err) is told
