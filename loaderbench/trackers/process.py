"""The process of one tracker (delivery.py). It is no child of the script, which may wait for all of its own, and ends
soon after it.

    in, on stdin:     a message a line (messages.py)
    out, on stdout:   `pid` its number · `done` after each message · `problem` what failed · `closed` at its end
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from loaderbench import plain
from loaderbench.forks import pidfd_of
from loaderbench.neutral import users_folder
from loaderbench.plain import JsonObject
from loaderbench.trackers.messages import Caller, what_failed
from loaderbench.trackers.tracker import TRACKERS, Target

LEAVE_S = 30.0
"""For closing the run where the script was killed: a library that hangs must not keep this process."""
NICE = 5
"""The script's own threads go first: on a full machine the kernel gives this a third of what it gives one of them
(sched(7))."""
CHUNK_BYTES = 1 << 16


def main() -> None:
    """Serve one tracker until it is closed, or the script has ended."""
    given = json.loads(sys.argv[1])
    sys.argv = [given["target"]["name"]]  # what libraries note of the program
    if os.fork():
        os._exit(0)
    asked, say = _private_streams()
    os.nice(NICE)
    _say(say, {"pid": os.getpid()})
    script = pidfd_of(given["script"])
    if script is not None:
        threading.Thread(target=_leave_after, args=(script,), daemon=True).start()
    try:
        _serve(given["name"], plain.from_json(Target, given["target"]), asked, say, script)
    except (Exception, SystemExit) as error:
        _say(say, {"problem": what_failed(error)})
    _say(say, {"closed": True})
    os._exit(0)  # whatever a library's threads still do


def _private_streams() -> tuple[int, int]:
    """(what is asked, where to answer): the library finds neither, no terminal, and a place for what it prints."""
    asked, say = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    return asked, say


def _serve(name: str, target: Target, asked: int, say: int, script: int | None) -> None:
    opens = TRACKERS[name].load()
    with suppress(OSError):  # it was removed
        os.chdir(users_folder())
    caller = Caller(opens.open_run(target))
    _say(say, {"done": True})
    problem = None
    for message in _messages(asked, script):
        goes_on = caller.heed(message)
        if caller.problem != problem:
            problem = caller.problem
            _say(say, {"problem": problem})
        _say(say, {"done": True})
        if not goes_on:
            return
    caller.close(failed=True)


def _messages(asked: int, script: int | None) -> Iterator[JsonObject]:
    """Yield what the script says, until it has ended: its workers may hold the pipe open."""
    rest = b""
    while True:
        ready, _, _ = select.select([one for one in (asked, script) if one is not None], [], [])
        if asked not in ready:
            return
        found = os.read(asked, CHUNK_BYTES)
        if not found:
            return
        *lines, rest = (rest + found).split(b"\n")
        yield from map(json.loads, lines)


def _leave_after(script: int) -> None:
    """End LEAVE_S after the script, whatever the library does."""
    select.select([script], [], [])
    threading.Event().wait(LEAVE_S)
    os._exit(1)


def _say(number: int, said: JsonObject) -> None:
    with suppress(OSError):  # the script has ended
        os.write(number, json.dumps(said).encode() + b"\n")
