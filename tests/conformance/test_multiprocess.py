"""Worker processes: how they die, what they need, and that nothing stays behind."""

from __future__ import annotations

import collections
import faulthandler
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from commands import run_script, start_script
from loader_cases import build, context_for, open_loader, take

from loaderbench import plugins
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.loaders import multiprocess
from loaderbench.loaders.multiprocess import _begin_worker
from loaderbench.samplers.process_io import runqueue_off_reason, threads_of_tree
from loaderbench.selftest.injections import Injection
from tests.garbage import Tensor
from tests.warm import own_children


@pytest.mark.parametrize("when", ["waiting", "elsewhere"])
def test_a_killed_worker_fails_the_case_promptly(image_tree: Path, when: str) -> None:
    before = own_children()  # multiprocessing's own, of other tests
    with open_loader("multiprocess", image_tree, batch_size=24, input_size=224) as loader:
        stream = loader.batches()
        next(stream)
        pids = loader.worker_pids()  # type: ignore[attr-defined]
        victim = pids[1]
        if when == "elsewhere":
            os.kill(victim, signal.SIGKILL)
            time.sleep(0.3)  # the signal must not raise in the consumer's own code
        begun = time.perf_counter()
        with pytest.raises(CaseFailed, match=rf"worker 1 \(pid {victim}\) was killed by signal 9 \(out of memory\?\)"):
            for number in range(10_000):
                next(stream)
                if number == 3 and when == "waiting":
                    os.kill(victim, signal.SIGKILL)
        assert time.perf_counter() - begun < 3
        assert [path for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")] == []
        assert set(own_children()) <= set(before)


@pytest.fixture
def no_handler_of_torch() -> Iterator[None]:
    """Any DataLoader of another test leaves torch's handler of SIGCHLD, which raises wherever a worker dies."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("no_handler_of_torch")
def test_a_worker_that_dies_while_the_stream_is_idle_is_found_at_the_next_use(image_tree: Path) -> None:
    with open_loader("multiprocess", image_tree) as loader:
        take(loader, 1)
        victim = loader.worker_pids()[0]  # type: ignore[attr-defined]
        os.kill(victim, signal.SIGKILL)
        time.sleep(0.2)
        begun = time.perf_counter()
        with pytest.raises(CaseFailed, match="signal 9"):
            take(loader, 1)
        assert time.perf_counter() - begun < 8


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"free(): invalid pointer\n", r"free\(\): invalid pointer"),
        (
            b"terminate called after throwing an instance of 'c10::Error'\n"
            b"  what():  CUDA error: initialization error\n"
            b"Exception raised from c10_cuda_check_implementation\nframe #0: c10::Error::Error(c10::SourceLocation)\n",
            "CUDA error: initialization error",
        ),
    ],
)
def test_a_worker_that_aborts_says_why(image_tree: Path, tmp_path: Path, said: bytes, told: str) -> None:
    faulthandler.disable()  # pytest's; a measuring process has none
    kept = os.dup(2)
    try:
        with (tmp_path / "worker.log").open("ab") as log:
            os.dup2(log.fileno(), 2)
            os.write(2, b"said before there was a loader\n")
            with open_loader("multiprocess", image_tree, batch_size=24, input_size=224) as loader:
                stream = loader.batches()
                next(stream)
                os.write(2, said)  # as a worker does, whose stderr is this one
                os.kill(loader.worker_pids()[0], signal.SIGABRT)  # type: ignore[attr-defined]
                with pytest.raises(CaseFailed, match=rf"was killed by signal 6: {told}$"):
                    collections.deque(stream, maxlen=0)
            with open_loader("multiprocess", image_tree, batch_size=24, input_size=224) as loader:
                stream = loader.batches()
                next(stream)
                os.write(2, said)
                os.kill(loader.worker_pids()[0], signal.SIGTERM)  # type: ignore[attr-defined]
                with pytest.raises(CaseFailed, match=r"was killed by signal 15$"):
                    collections.deque(stream, maxlen=0)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        faulthandler.enable()


@pytest.mark.timeout(60)
def test_a_worker_that_cannot_hand_over_its_batches_fails_the_case(
    image_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as where `ulimit -u` leaves a worker one thread too few
    ours, start = os.getpid(), threading.Thread.start

    def start_if_allowed(thread: threading.Thread) -> None:
        if os.getpid() != ours and "_serve" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
    with open_loader("multiprocess", image_tree) as loader, pytest.raises(CaseFailed, match="can't start new thread"):
        take(loader, 4)


class Collecting(Injection):
    """Workers that collect garbage with each batch. A batch needs a collector that is on."""

    def collate(self) -> None:
        assert gc.isenabled()
        gc.collect()


def test_workers_do_not_collect_the_garbage_of_their_parent(
    image_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, start, collects = tmp_path / "ended", multiprocess._MultiProcessingDataLoaderIter.__init__, []

    def started(*arguments: Any) -> None:
        collects.append(gc.isenabled())
        start(*arguments)

    monkeypatch.setattr(multiprocess._MultiProcessingDataLoaderIter, "__init__", started)
    for enabled in (False, True):
        gc.disable()
        try:
            Tensor(log)  # garbage now
            with open_loader("multiprocess", image_tree, slowdown=Collecting()) as loader:
                if enabled:
                    gc.enable()
                take(loader, 4)
                assert gc.isenabled() is enabled
        finally:
            gc.enable()
    gc.collect()
    assert collects == [False, False]
    assert set(log.read_text().split()) == {str(os.getpid())}


def test_signal_handlers_are_put_back(image_tree: Path) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    with open_loader("multiprocess", image_tree) as loader:
        take(loader, 2)
        assert signal.getsignal(signal.SIGCHLD) is before


SCRIPT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from loader_cases import build, context_for
if __name__ == "__main__":
    loader = build("multiprocess", context_for("multiprocess", Path(sys.argv[2]), workers=int(sys.argv[3])))
    stream = loader.batches()
    next(stream)
    told = Path(sys.argv[4])
    told.with_suffix(".part").write_text(json.dumps(loader.worker_pids()))
    told.with_suffix(".part").rename(told)
    time.sleep(60)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "consumer.py"
    path.write_text(SCRIPT)
    return path


def wait_until_gone(pids: list[int], seconds: float) -> list[int]:
    """The processes that still live after so many seconds at most."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pids = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not pids:
            break
        time.sleep(0.05)
    return pids


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(script: Path, image_tree: Path, tmp_path: Path, number: signal.Signals) -> None:
    told = tmp_path / "pids"
    with start_script(script, Path(__file__).parent, image_tree, "2", told) as consumer:
        deadline = time.monotonic() + 60
        while not told.exists():
            assert consumer.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        pids = json.loads(told.read_text())
        if number is signal.SIGINT:
            os.killpg(consumer.pid, number)  # as the terminal does it
        else:
            consumer.send_signal(number)
        consumer.wait(20)
        left = wait_until_gone(pids, 5)
    assert len(pids) == 2
    assert left == []


@pytest.mark.parametrize(("start_method", "ended"), [("fork", 1), ("spawn", 1), ("forkserver", 0)])
def test_a_worker_whose_parent_was_killed_before_it_began_ends(start_method: str, ended: int) -> None:
    """Its parent is another process then: the supervisor, which takes orphans in."""
    killed = subprocess.Popen(["true"])
    killed.wait()
    fork = multiprocessing.get_context("fork")
    for parent_pid, code in ((killed.pid, ended), (os.getpid(), 0)):
        worker = fork.Process(target=_begin_worker, args=(parent_pid, start_method, "file_descriptor", 0))
        worker.start()
        worker.join()
        assert worker.exitcode == code


def test_too_little_shared_memory_is_refused_with_advice(image_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def docker_default(path: str) -> Any:
        return SimpleNamespace(f_bavail=16384, f_frsize=4096) if path == "/dev/shm" else real(path)  # 64 MiB

    monkeypatch.setattr(os, "statvfs", docker_default)
    with pytest.raises(ConfigError, match=r"need 147 MiB.*64 MiB free.*--shm-size=1g.*--loader threaded"):
        build("multiprocess", context_for("multiprocess", image_tree, batch_size=146, input_size=224))
    build("multiprocess", context_for("multiprocess", image_tree, batch_size=60, input_size=224)).close()


def test_too_few_open_files_are_refused_and_a_low_soft_limit_is_raised(image_tree: Path, tmp_path: Path) -> None:
    script = tmp_path / "few.py"
    script.write_text("""
import resource, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from loader_cases import build, context_for, take
from loaderbench.errors import ConfigError
context = context_for("multiprocess", Path(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 4096))
loader = build("multiprocess", context)
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 4096
take(loader, 3)
loader.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
try:
    build("multiprocess", context)
except ConfigError as error:
    print(error)
""")
    done = run_script(script, Path(__file__).parent, image_tree, folder=tmp_path, timeout_s=60)
    assert (done.code, done.err) == (0, "")
    assert "the limit is 60" in done.out
    assert "sharing=file_system" in done.out


def test_a_fork_that_fails_leaves_no_child(image_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_fork, num_forks = os.fork, 0

    def fork() -> int:
        nonlocal num_forks
        num_forks += 1
        if num_forks == 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real_fork()

    monkeypatch.setattr(os, "fork", fork)
    with open_loader("multiprocess", image_tree, workers=4) as loader:
        with pytest.raises(CaseFailed, match="could not start 4 worker processes: Resource temporarily unavailable"):
            take(loader, 1)
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("options", [{"persistent_workers": False}, {"sharing": "file_system"}])
def test_options_change_the_way_and_not_the_batches(image_tree: Path, options: dict[str, Any]) -> None:
    with open_loader("multiprocess", image_tree) as loader:
        expected = take(loader, 3)
    with open_loader("multiprocess", image_tree, options) as loader:
        for _ in range(2):
            found = take(loader, 3)
            assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(found, expected, strict=True))
    torch.multiprocessing.set_sharing_strategy("file_descriptor")


@pytest.mark.slow
def test_workers_may_be_spawned(image_tree: Path) -> None:
    with open_loader("multiprocess", image_tree) as loader:
        expected = take(loader, 2)
    with open_loader("multiprocess", image_tree, {"start_method": "spawn"}) as loader:
        found = take(loader, 2)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(found, expected, strict=True))


@pytest.mark.skipif(runqueue_off_reason() is not None, reason=str(runqueue_off_reason()))
def test_workers_use_one_thread_each(image_tree: Path) -> None:
    with open_loader("multiprocess", image_tree, batch_size=24, input_size=224) as loader:
        stream = loader.batches()
        for _ in range(8):
            next(stream)
        for pid in loader.worker_pids():  # type: ignore[attr-defined]
            # The others are its queue's feeder and torch's server of file descriptors: they hand batches over.
            most, *others = sorted((ran for ran, _ in threads_of_tree(pid).values()), reverse=True)
            assert most > 0 and sum(others) <= 0.3 * most
        stream.close()  # type: ignore[attr-defined]


def test_unknown_option_values_are_refused() -> None:
    module = plugins.LOADERS.load("multiprocess")
    for options in ({"start_method": "vfork"}, {"sharing": "telepathy"}):
        with pytest.raises(ConfigError, match="known:"):
            plugins.parse_options(module, options)
