"""Scripts that make it hard: each ends as it would without the watch, and what was seen is said in a line or kept."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from loaderbench.errors import ConfigError
from loaderbench.recording.store import Store
from tests.thinned import thinned
from tests.watching.test_watch_command import python, watched

LOADER = """
import os, signal, subprocess, sys, time
import torch
from torch.utils.data import DataLoader

def train(num=200, workers=1):
    loader = DataLoader(list(range(num)), 4, num_workers=workers)
    for batch in loader:
        time.sleep(0.001)
"""


def script(folder: Path, body: str) -> Path:
    path = folder / "bad.py"
    path.write_text(LOADER + textwrap.dedent(body))
    return path


def records(folder: Path) -> int:
    results = folder / "results"
    return sum(one.record is not None for one in Store(results).runs()) if results.is_dir() else 0


@pytest.mark.parametrize(
    ("body", "code", "out", "num", "said"),
    thinned([
        ("train(num=4); print('end')", 0, "end\n", 0, "too short: the script took 1 batch; "),
        (
            "for number in range(8): next(iter(DataLoader(list(range(40)), 4)))",
            0, "", 0, "a new iterator for each batch (8 batches in all)",
        ),
        ("train(num=0); print('end')", 0, "end\n", 0, "the script took no batch"),
        (
            "train()\nif os.fork() == 0:\n    train(); print('child'); sys.stdout.flush(); os._exit(7)\n"
            "print(os.waitstatus_to_exitcode(os.wait()[1]))",
            0, "child\n7\n", 1, None,
        ),
        (
            "train()\nif os.fork() == 0:\n    sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
            0, "5\n", 1, None,
        ),
        (
            "for number in range(3):\n    try:\n        train(); raise ValueError\n    except:\n"
            "        print('went on')",
            0, "went on\n" * 3, 1, None,
        ),
        (
            "signal.signal(signal.SIGTERM, lambda *_: (print('mine'), sys.exit(9)))\ntrain()\n"
            "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
            9, "mine\n", 1, None,
        ),
        ("train(workers=0)", 0, "", 1, None),
        (
            "def f(x: int): pass\n"
            "print(f.__annotations__['x'] is int, os.path.isabs(__file__), __builtins__.len is len)\ntrain()",
            0, "True True True\n", 1, None,
        ),
        (
            "sys.excepthook = lambda kind, *_: print('mine', kind.__name__)\ntrain()\nraise ValueError",
            1, "mine ValueError\n", 1, None,
        ),
        (
            "import multiprocessing\ntrain()\np = multiprocessing.Process(target=time.sleep, args=(60,))\n"
            "p.start(); time.sleep(0.3); p.terminate(); p.join(); print(p.exitcode)",
            0, "-15\n", 1, None,
        ),
        (
            "for number in range(200): next(iter(DataLoader(list(range(8)), 4)))\ntrain()\n"
            "print(len(os.listdir('/proc/self/fd')) < 100)",
            0, "True\n", 1, None,
        ),
        ("train()\nopen('results', 'w')\nsys.exit(3)", 3, "", 0, "loaderbench: "),
        ("import loaderbench\nfor b in loaderbench.watch(DataLoader(list(range(200)), 4)): pass\n", 0, "", 1, None),
    ], 3),
    ids=[
        "one batch", "an iterator each", "no batch", "forks and _exits", "forks and exits", "catches all",
        "own handler", "no workers", "as Python compiles it", "own hook", "ends a child",
        "opens no files", "no results", "nested",
    ],
)  # fmt: skip
def test_it_ends_as_it_would(tmp_path: Path, body: str, code: int, out: str, num: int, said: str | None) -> None:
    seen = watched(script(tmp_path, body), folder=tmp_path)
    assert (seen.code, seen.out) == (code, out), seen.err
    assert records(tmp_path) == num
    assert "Traceback" not in seen.err
    if said is not None:
        told = [line for line in seen.err.splitlines() if line.startswith("loaderbench:")]
        assert len(told) == 1 and said in told[0]


def test_the_number_of_threads_that_a_script_asks_for_is_heeded(tmp_path: Path) -> None:
    path = tmp_path / "threads.py"
    end = "train()\nprint(torch.get_num_threads())\n"
    path.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\n" + LOADER + end)
    assert watched(path, folder=tmp_path).out == "1\n"
    path.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\n" + LOADER + "torch.set_num_threads(3)\n" + end)
    assert watched(path, folder=tmp_path).out == "3\n"  # its own number


@pytest.mark.slow
def test_a_watched_script_may_start_a_watch_of_another_one(tmp_path: Path) -> None:
    inner = tmp_path / "inner.py"
    inner.write_text(LOADER + "train()\nprint('inner')\n")
    body = f"""
    train()
    done = subprocess.run([sys.executable, "-m", "loaderbench", "watch", "--results", "results", {str(inner)!r}])
    print(done.returncode)
    """
    seen = watched(script(tmp_path, body), folder=tmp_path)
    assert (seen.code, seen.out) == (0, "inner\n0\n"), seen.err
    assert records(tmp_path) == 2


def test_a_watch_within_a_watch_of_the_same_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loaderbench.studies import watch as module

    (tmp_path / "x.py").write_text("")
    monkeypatch.setattr(module._Watch, "current", object())
    with pytest.raises(ConfigError, match="already watched"):
        module.ScriptWatch(str(tmp_path / "x.py"), [], Store(tmp_path))


def test_a_notebook_ends_its_watch_itself_and_can_begin_another(tmp_path: Path) -> None:
    # What a cell does; the process goes on, as a kernel does.
    body = """
    import loaderbench
    with loaderbench.watch(DataLoader(list(range(400)), 4), results="results") as batches:
        for batch in batches:
            time.sleep(0.001)
    print("verdict" if "limits this run" in (batches.close() or "closed") else "closed")
    generator = loaderbench.watch((number for number in range(100)), results="results")
    total = sum(generator)
    record = generator.close()
    print(total, type(record).__name__, generator.close())
    """
    seen = python(script(tmp_path, body), folder=tmp_path)
    assert (seen.code, seen.out) == (0, "closed\n4950 RunRecord None\n"), seen.err
    assert records(tmp_path) == 2 and "watched" in seen.err


def test_what_is_watched_passes_for_what_it_is(tmp_path: Path) -> None:
    body = """
    import loaderbench
    class Batches:
        size = 3
        def __iter__(self): return Iterator()
        def __len__(self): return 3
    class Iterator:
        def __init__(self): self.at = 0
        def __iter__(self): return self
        def __next__(self):
            self.at += 1
            if self.at > 3: raise StopIteration
            return self.at
        def state(self): return self.at
    loader = DataLoader([1, 2], 1)
    assert isinstance(loaderbench.watch(loader), DataLoader)
    assert type(iter(loaderbench.watch(loader))) is type(iter(loader))
    batches = loaderbench.watch(Batches())
    assert isinstance(batches, Batches) and (batches.size, len(batches)) == (3, 3)
    iterator = iter(batches)
    assert isinstance(iterator, Iterator) and next(iterator) == 1 and iterator.state() == 1 and list(iterator) == [2, 3]
    """
    seen = python(script(tmp_path, body), folder=tmp_path)
    assert seen.code == 0, seen.err


def test_a_script_that_is_ended_from_outside_leaves_what_was_seen(tmp_path: Path) -> None:
    path = script(tmp_path, "train(); print('ready', flush=True)\ntime.sleep(60)")
    command = [sys.executable, "-m", "loaderbench", "watch", "--results", str(tmp_path / "results"), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        time.sleep(0.1)
        os.kill(running.pid, signal.SIGTERM)
        running.communicate(timeout=60)
        assert running.returncode == -signal.SIGTERM
    assert records(tmp_path) == 1
