"""Scripts that change what they share with the watch: plain and watched they end alike, say the same, and see the same
samples in the same order; and what was seen of them is said, or one line why not."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from loaderbench.recording.store import Store
from tests.thinned import thinned
from tests.watching.test_script_ends import bare
from tests.watching.test_watch_command import record, watched

TRAIN = """
import atexit, builtins, json, locale, os, random, resource, signal, sys, threading, time, warnings
import numpy as np
import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)
loss, order = 0.0, []

def train(num=480, workers=0):
    global loss
    for batch in DataLoader(list(range(num)), 4, shuffle=True, num_workers=workers):
        order.extend(batch.tolist())
        loss = (loss * 1.7 + float(batch.float().mean())) % 1000.0
        sum(range(5000))

train()
train(workers=2)
print(loss.hex(), order)
"""
ENDS = {
    "cuts sys.path": "sys.path[:] = []",
    "cuts all of the import": "sys.path[:] = []; sys.meta_path[:] = []; sys.path_hooks[:] = []",
    "clears sys.modules": "sys.modules.clear()",
    "removes libraries": "for name in [*sys.modules]:\n    if name.startswith(('rich', 'json')): del sys.modules[name]",
    "replaces open": "def refuse(*_, **__): raise RuntimeError('mine')\nbuiltins.open = refuse",
    "replaces builtins": "builtins.sorted = builtins.min = builtins.max = builtins.any = None",
    "replaces json and time": "json.dumps = json.loads = time.time = time.perf_counter_ns = time.monotonic = None",
    "replaces calls of the system": "os.write = os.open = os.replace = os.getpid = os.stat = None",
    "a low recursion limit": "sys.setrecursionlimit(60)",
    "its folder is gone": "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    "closes stdout": "print('last', flush=True); sys.stdout.close()",
    "no stdout": "sys.stdout.flush(); sys.stdout = None",
    "a timer": "signal.signal(signal.SIGALRM, lambda *_: print('rang', flush=True))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.02)\ntime.sleep(0.5)\n"
    "signal.signal(signal.SIGALRM, lambda *_: 1 / 0)\nsignal.setitimer(signal.ITIMER_REAL, 0.15)\n"
    "atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)",
    "strict": "warnings.simplefilter('error'); np.seterr(all='raise')",
    "a profiler": "calls = []\nsys.setprofile(lambda frame, event, argument: calls.append(event))",
    "few files": "resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
    "a thread goes on": "threading.Thread(target=lambda: (time.sleep(0.5), print('later'))).start()",
    "clears its variables": "os.environ.clear()",
    "a locale": "locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "exits": "sys.path[:] = []; sys.exit(3)",
    "no hook": "sys.excepthook = None\nraise ValueError('x')",
    "a hook that fails": "def hook(*_): raise KeyError('hook')\nsys.excepthook = hook\nraise ValueError('x')",
}


def program(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """A real `loaderbench watch`, in which nothing is imported that it does not import itself."""
    return bare("-m", "loaderbench", "watch", *arguments, folder=folder)


@pytest.mark.parametrize("end", thinned(ENDS, 5))
def test_it_ends_as_plain_python_and_what_was_seen_is_said(tmp_path: Path, end: str) -> None:
    (tmp_path / "script.py").write_text(TRAIN + ENDS[end])
    python = bare("script.py", folder=tmp_path)
    done = program("--json", "record.json", "script.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (python.returncode, python.stdout), done.stderr
    assert done.stderr.startswith(python.stderr) and done.stderr.count("Traceback") == python.stderr.count("Traceback")
    assert "Where the script's time went" in done.stderr
    assert record(tmp_path)["watched"]["loaders"][0]["num_batches"] == 120


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE, (3, 3)", "RLIMIT_AS, (1 << 20, 1 << 20)", "RLIMIT_FSIZE, (10, 10)"])
def test_where_it_cannot_be_stored_one_line_says_so(tmp_path: Path, limit: str) -> None:
    (tmp_path / "script.py").write_text(
        TRAIN + f"sys.stdout.flush()\nresource.setrlimit(resource.{limit})\nsys.exit(7)"
    )
    command = [sys.executable, "-m", "loaderbench", "watch", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 7 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("loaderbench: ") and "Traceback" not in done.stderr


@pytest.mark.slow
def test_nothing_is_imported_behind_the_script(tmp_path: Path) -> None:
    late = "before = {*sys.modules}\natexit.register(lambda: print({*sys.modules} - before))"
    (tmp_path / "script.py").write_text(TRAIN + late)
    done = program("--json", "record.json", "script.py", folder=tmp_path)
    assert done.stdout.endswith("\nset()\n"), done.stderr


# -- a clock of its own --------------------------------------------------------------------------------------

CLOCK = """
import sys, time
names = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
for name in names:
    setattr(time, name, lambda: 1.0)
    setattr(time, name + "_ns", lambda: 1)
time.sleep = lambda seconds: None
# as freezegun does: in every module that has one of them
import loaderbench.watching.iterator, loaderbench.watching.watcher
for module in list(sys.modules.values()):
    for name, value in list(vars(module).items()) if hasattr(module, "__dict__") else ():
        if getattr(value, "__module__", None) == "time" and getattr(value, "__name__", None) in names:
            setattr(module, name, lambda: 1.0)
"""


def test_a_script_s_fake_clock_is_its_own(tmp_path: Path) -> None:
    body = TRAIN + "print(time.perf_counter(), time.time_ns())\n"
    (tmp_path / "script.py").write_text(CLOCK + body)
    python = bare("script.py", folder=tmp_path)
    seen = watched("script.py", folder=tmp_path)
    assert (seen.code, seen.out) == (python.returncode, python.stdout) == (0, python.stdout), seen.err
    found = record(tmp_path)["watched"]
    main = found["loaders"][0]
    assert 0.001 < sum(main["seconds"].values()) < found["wall_s"] < 60
    assert record(tmp_path)["started_at"][:2] == "20" and "Error" not in seen.err


# -- its files -----------------------------------------------------------------------------------------------

CLOSES = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index): return torch.full((3,), float(index))

class Closes(Samples):
    def __getitem__(self, index):
        for number in set(map(int, os.listdir("/proc/self/fd"))) - known:
            try: os.close(number)
            except OSError: pass
        return super().__getitem__(index)

class Replaces(Samples):
    def __getitem__(self, index):
        for number in set(map(int, os.listdir("/proc/self/fd"))) - known:
            try: os.dup2(log, number)
            except OSError: pass
        return super().__getitem__(index)

def total(loader):
    found = 0
    for number, batch in enumerate(loader): found = (31 * found + int(batch.sum()) * number) % 1000003
    return found

torch.manual_seed(0)
log = os.open("log", os.O_CREAT | os.O_RDWR)
os.write(log, b"mine")
"""
BODIES = {
    "as a daemon": "print(total(DataLoader(Samples(), 4)))\nos.closerange(3, 300)\n"
    "for _ in range(2): print(total(DataLoader(Samples(), 4, num_workers=2, shuffle=True)))",
    "by each sample": "known = {*range(3), log}\nprint(total(DataLoader(Closes(), 4)))",
    "for its own": "known = {*range(3), log}\nprint(total(DataLoader(Replaces(), 4)))\nprint(open('log').read())",
}


@pytest.mark.parametrize("probes", ["burst", "shadow"])
@pytest.mark.parametrize("body", BODIES)
def test_a_script_may_close_our_files_and_use_their_numbers(tmp_path: Path, body: str, probes: str) -> None:
    (tmp_path / "script.py").write_text(CLOSES + BODIES[body])
    python = bare("script.py", folder=tmp_path)
    assert python.returncode == 0, python.stderr
    (tmp_path / "log").unlink()
    seen = watched("--probes", probes, "script.py", folder=tmp_path)
    assert (seen.code, seen.out) == (0, python.stdout), seen.err
    assert "Traceback" not in seen.err and (tmp_path / "log").read_bytes() == b"mine"
    assert [one.record is not None for one in Store(tmp_path / "results").runs()] == [True]


@pytest.mark.parametrize(
    "body",
    [
        "os.close(2)\nassert os.open('mine', os.O_CREAT | os.O_WRONLY) == 2\nos.write(2, b'mine')",
        "os.dup2(os.open('mine', os.O_CREAT | os.O_WRONLY), 2)\nos.write(2, b'mine')",
    ],
    ids=["closed and opened", "dup2"],
)
def test_what_is_said_goes_into_no_file_of_the_script_s_in_place_of_stderr(tmp_path: Path, body: str) -> None:
    (tmp_path / "script.py").write_text(TRAIN + body)
    done = program("--json", "record.json", "script.py", folder=tmp_path)
    assert done.returncode == 0 and done.stderr == "" and (tmp_path / "mine").read_bytes() == b"mine"
    assert record(tmp_path)["verdict"] is not None


# -- its errors ----------------------------------------------------------------------------------------------

RAISES = """
import sys, traceback
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

where, workers = sys.argv[1], int(sys.argv[2])

class Bad(Exception): pass

def fail(): raise Bad(f"in {where}")

def transform(sample):
    if where == "transform" and sample == 21: fail()
    return sample

class Samples(Dataset):
    def __init__(self): self.transform = transform
    def __len__(self): return 400
    def __getitem__(self, index):
        if where == "sample" and index == 50:
            try: {}[index]
            except KeyError as error: raise Bad("chained") from error
        return self.transform(index)

class Stream(IterableDataset):
    def __iter__(self):
        if where == "begin": fail()
        for number in range(400):
            if where == "stream" and number == 50: fail()
            yield number

class Order(Sampler):
    def __len__(self): return 400
    def __iter__(self):
        for number in range(400):
            if where == "sampler" and number == 200: fail()
            yield number

def collate(samples):
    if where == "collate" and 50 in samples: fail()
    return torch.tensor(samples)

def init(worker):
    if where == "init": fail()

def batches():
    for number in range(300):
        if where == "generator" and number == 200: fail()
        yield number

def main():
    options = {"num_workers": workers, "collate_fn": collate, "worker_init_fn": init}
    if where in ("begin", "stream"): loader = DataLoader(Stream(), 4, **options)
    elif where == "generator":
        import loaderbench
        loader = loaderbench.watch(batches()) if watched else batches()
    else: loader = DataLoader(Samples(), 4, sampler=Order(), **options)
    for number, batch in enumerate(loader):
        if where == "loop" and number == 80: fail()

watched = "loaderbench" in sys.modules
try: main()
except Exception: traceback.print_exc()
if workers: raise SystemExit(5)  # what Python says of workers at its end has numbers of its own
main()
"""
IN_LINE = ("sample", "transform", "collate", "sampler", "stream", "begin", "loop", "generator")
IN_WORKERS = ("sample", "transform", "collate", "stream", "begin", "init")


def without_lines(text: str) -> str:
    """A traceback without the lines of its code: the watched script's is the same but for `loaderbench.watch(…)`."""
    return re.sub(r"0x[0-9a-f]+", "0x", text)


@pytest.mark.parametrize(
    ("where", "workers"),
    thinned([*((where, 0) for where in IN_LINE), *((where, 1) for where in IN_WORKERS)], 5),
)
def test_an_error_s_traceback_is_the_plain_one_for_the_script_and_at_its_end(
    tmp_path: Path, where: str, workers: int
) -> None:
    (tmp_path / "script.py").write_text(RAISES)
    python = bare("script.py", where, str(workers), folder=tmp_path)
    done = program("script.py", where, str(workers), folder=tmp_path)
    assert (done.returncode, done.stdout) == (python.returncode, python.stdout)
    assert "Bad: " in python.stderr
    assert without_lines(done.stderr).startswith(without_lines(python.stderr)), done.stderr
    assert f"{Path('loaderbench') / 'watching'}" not in done.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('x')", "the script failed (ValueError) before it iterated a watched loader"),
        ("for batch in DataLoader(Fails(0), 4): pass", "the script failed (KeyError) after 0 batches, too few for a"),
        ("for batch in DataLoader(Fails(4), 4): pass", "the script failed (KeyError) after 1 batch, too few for a v"),
        (
            "for batch in DataLoader(Fails(900), 4): pass",
            "the script failed (KeyError) after 225 batches; the result covers those",
        ),
        (
            "for batch in DataLoader(Fails(0), 4, num_workers=2): pass",
            "the script failed (KeyError) after 0 batches, too few for a verdict",
        ),
    ],
    ids=["before", "first sample", "few", "many", "in a worker"],
)
def test_its_last_words_are_about_the_error(tmp_path: Path, body: str, said: str) -> None:
    fails = """
    import time
    from torch.utils.data import DataLoader, Dataset
    class Fails(Dataset):
        def __init__(self, at): self.at = at
        def __len__(self): return 1000
        def __getitem__(self, index):
            if index >= self.at: raise KeyError(index)
            time.sleep(0.0003)
            return index
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(fails) + body)
    seen = watched("script.py", folder=tmp_path)
    (told,) = [line for line in seen.lines if line.startswith("loaderbench:")]
    assert seen.code == 1 and said in told and "took no batch" not in seen.err
    assert ("Where the script's time went" in seen.err) is said.endswith("those")
