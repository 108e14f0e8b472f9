"""Ctrl-C on a terminal: a shell's loop ends with the installed program that it ends."""

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest
from commands import LONG, TINY

PROGRAM = Path(sys.executable).with_name("loaderbench")
CTRL_C = b"\x03"


def looped(command: str, ready: str, folder: Path, *, after_s: float = 0.0, timeout_s: float = 100) -> tuple[int, str]:
    """(exit code of a shell that runs `command` three times on a terminal of its own, what was on the screen). Ctrl-C
    is typed once, so long after `ready` stands there."""
    shell, terminal = pty.fork()
    if shell == 0:
        os.chdir(folder)
        os.execvp("bash", ["bash", "-c", f"for n in 1 2 3; do {command}; echo it gave $?; done; echo behind the loop"])
    screen, typed, deadline = "", False, time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:  # the shell has ended
                break
            screen += part.decode(errors="replace")
        if not typed and ready in screen:
            time.sleep(after_s)
            os.write(terminal, CTRL_C)
            typed = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1]), screen


def test_a_watched_script_s_loop(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "import atexit, sys, time\natexit.register(print, 'atexit', sys.argv[1:])\n"
        "kept = open('kept', 'w')\nkept.write('flushed when Python ends')\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    code, screen = looped(f"{PROGRAM} watch loop.py $n", "ready", tmp_path)
    python, of_python = looped(f"{sys.executable} loop.py $n", "ready", tmp_path)
    assert (code, "it gave" in screen) == (python, "it gave" in of_python) == (-2, False), screen
    assert screen.count("atexit ['1']") == 1 and "the script was interrupted" not in screen
    assert screen.count("Traceback") == 1 and screen.count("KeyboardInterrupt") == 1
    assert (tmp_path / "kept").read_text() == "flushed when Python ends"


MEASUREMENTS = {"run": ("--res 96", LONG), "sweep": ("--res 96,128 --loader multiprocess --repeats 20", TINY)}


@pytest.mark.parametrize("command", ["run", pytest.param("sweep", marks=pytest.mark.slow)])
def test_a_measurement_s_loop(command: str, small_set: Path, tmp_path: Path) -> None:
    more, options = MEASUREMENTS[command]
    told = " ".join(option for option in options if option != "--quiet")
    line = f"{PROGRAM} {command} {small_set} {more} {told} --results {tmp_path}"
    code, screen = looped(line, "multiprocess", tmp_path, after_s=3.0)
    assert (code, "it gave" in screen) == (-2, False), screen
    assert screen.count("loaderbench: interrupted") == 1 and "Traceback" not in screen


def test_a_command_that_is_interrupted_while_it_imports(tmp_path: Path) -> None:
    # The commands are imported late: this one's Ctrl-C comes between Python's start and that.
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "typer.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    code, screen = looped(f"PYTHONPATH=slow {PROGRAM} list", "ready", tmp_path)
    assert (code, "it gave" in screen) == (-2, False), screen
    assert screen.count("loaderbench: interrupted") == 1 and "Traceback" not in screen
