"""The stack of another process, read from its memory, is the one that Python would report there."""

import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loaderbench.samplers.stacks import Frame, Process, learn
from loaderbench.samplers.thread_states import ThreadFiles


@contextmanager
def running(code: str, folder: Path) -> Iterator[Process]:
    """A process that runs this program, which prints a line once it is at work."""
    path = folder / "prógram.py"
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        started.stdout.readline()
        process = Process(started.pid, learn())
        try:
            yield process
        finally:
            process.close()
            started.kill()


def main_frames(process: Process) -> tuple[Frame, ...]:
    return next(one.frames() for one in process.threads() if one.number == process.pid)


def test_a_waiting_stack_has_its_functions_lines_and_file(tmp_path: Path) -> None:
    code = """
    import time
    class Sätze:
        def inner(self):
            print(flush=True)
            time.sleep(
                100
            )
    def outer():
        return Sätze().inner()
    outer()
    """
    with running(code, tmp_path) as process:
        frames = main_frames(process)
    assert [(frame.function, frame.line) for frame in frames] == [("Sätze.inner", 6), ("outer", 10), ("<module>", 11)]
    assert {Path(frame.file).name for frame in frames} == {"prógram.py"}
    assert frames[0].span is not None and (frames[0].span.line, frames[0].span.end_line) == (6, 8)


def test_a_call_into_c_that_holds_the_gil_is_seen_at_its_line(tmp_path: Path) -> None:
    code = """
    numbers = list(range(3_000_000))
    print(flush=True)
    while True:
        sorted(numbers, key=None, reverse=True)
        [1]
    """
    with running(code, tmp_path) as process:
        lines: Counter[int] = Counter()
        for _ in range(50):
            lines[main_frames(process)[0].line] += 1
            time.sleep(0.005)
    assert lines[5] >= 45  # a reader that waits for the GIL would see the line behind it


def test_a_thread_that_waits_for_the_gil_is_known_by_the_address_of_its_lock(tmp_path: Path) -> None:
    code = """
    import sys, threading
    sys.setswitchinterval(10)
    def spin():
        while True:
            pass
    print(flush=True)
    threading.Thread(target=spin, daemon=True).start()
    while True:
        import time
        time.sleep(0)
    """
    with running(code, tmp_path) as process:
        time.sleep(0.3)
        files = ThreadFiles(process.pid, process.pid)
        looks = [(time.sleep(0.005), files.look())[1] for _ in range(20)]
        files.close()
        waits = [look for look in looks if look.state == "lock" and process.waits_for_gil(look.lock)]
    assert len(waits) >= 18


def test_a_lock_of_the_program_is_not_the_gil(tmp_path: Path) -> None:
    code = """
    import threading
    lock = threading.Lock()
    lock.acquire()
    print(flush=True)
    lock.acquire()
    """
    with running(code, tmp_path) as process:
        time.sleep(0.2)
        files = ThreadFiles(process.pid, process.pid)
        look = files.look()
        files.close()
        assert look.state == "lock" and look.lock
        assert not process.waits_for_gil(look.lock)


def test_stacks_of_a_busy_process_are_whole(tmp_path: Path) -> None:
    code = """
    def leaf(n):
        return n * n
    def middle():
        return sum(leaf(n) for n in range(200))
    def outer():
        print(flush=True)
        while True:
            middle()
    outer()
    """
    with running(code, tmp_path) as process:
        stacks = [main_frames(process) for _ in range(300)]
    whole = [frames for frames in stacks if frames and [one.function for one in frames[-2:]] == ["outer", "<module>"]]
    assert len(whole) >= 0.97 * len(stacks)


def test_threads_have_their_own_stacks() -> None:
    ready, leave = threading.Event(), threading.Event()
    numbers = []

    def waits_here() -> None:
        numbers.append(threading.get_native_id())
        ready.set()
        leave.wait()

    thread = threading.Thread(target=waits_here)
    thread.start()
    ready.wait()
    code = (
        "import sys; from loaderbench.samplers.stacks import *\n"
        f"p = Process({__import__('os').getpid()}, learn())\n"
        "for t in p.threads(): print(t.number, [f.function for f in t.frames()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    leave.set()
    thread.join()
    own = [line for line in done.stdout.splitlines() if line.startswith(f"{numbers[0]} ")]
    assert len(own) == 1 and "waits_here" in own[0]
