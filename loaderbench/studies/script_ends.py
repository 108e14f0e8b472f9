"""How a watched script can end besides behind its last line: by a signal, or by `os._exit`. What was seen is stored
before, and then it ends just as it would have without the watch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from loaderbench import originals
from loaderbench.interrupts import interrupts_held
from loaderbench.watching.tracebacks import unseen

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end Python at once, where the script has no handler of its own."""
LEAVE_S = 10.0
"""For storing what was seen, where another thread than the main one calls `os._exit`."""


def let_workers_end() -> None:
    """A launcher, and Ctrl-C, end a loader's workers too. PyTorch then raises an error in the main thread, wherever
    that is: no more, once the script is over."""
    if callable(signal.getsignal(signal.SIGCHLD)) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def before_leaving(store: Callable[[], object]) -> None:
    """Store what was seen before `os._exit`. Another thread than the script's own may leave because something hangs,
    which may be what it is stored on: then it waits for LEAVE_S at most."""
    if threading.current_thread() is threading.main_thread():
        store()
        return
    storing = threading.Thread(target=store, name="loaderbench-leave", daemon=True)
    storing.start()
    storing.join(LEAVE_S)


class ScriptEnds:
    """The ends of one script, in its process alone: a forked one ends by itself.

    The handlers are not to be seen: a library that finds one chains it in (Lightning), and would be ended in the middle
    of an orderly end of its own. So `signal.getsignal` and `signal.signal` give the script what it would find without
    the watch.
    """

    def __init__(self, store: Callable[[], None], hurry: Callable[[], None] | None = None) -> None:
        """`store`: stores and says what was seen. `hurry`: called where a signal comes before or meanwhile."""
        self._store, self._hurry, self._pid = store, hurry, originals.os.getpid()
        self._python = os._exit, signal.signal, signal.getsignal
        self._is_finished = False
        self._handler = self._ended  # one object, which can be told from others

    def begin(self) -> None:
        os._exit = self._leave
        os.register_at_fork(after_in_child=self._forget)
        if threading.current_thread() is not threading.main_thread():
            return
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._handler)
        shown: Any = unseen(self._set_handler), unseen(self._get_handler)
        signal.signal, signal.getsignal = shown

    def finish(self) -> None:
        """Store and say what was seen, once. Signals have their effect behind it."""
        let_workers_end()
        self._show()
        with interrupts_held(self._hurry, others=True):
            if not self._is_finished:
                self._is_finished = True
                self._store()

    def end(self) -> None:
        """The script has ended: from now on signals end what is left of it."""
        self._forget()

    def _show(self) -> None:
        os._exit, signal.signal, signal.getsignal = self._python

    def _forget(self) -> None:
        self._show()
        for number in ENDING:
            if signal.getsignal(number) is self._handler:
                signal.signal(number, signal.SIG_DFL)

    def _leave(self, status: int) -> NoReturn:
        """In place of `os._exit`."""
        leave = self._python[0]
        try:
            if originals.os.getpid() == self._pid:
                before_leaving(self.finish)
        finally:
            leave(status)

    def _ended(self, number: int, frame: Any) -> None:
        """A signal that ends Python at once. Nothing is raised: a script may catch all, and would go on."""
        try:
            if self._hurry is not None:
                self._hurry()
            self.finish()
        finally:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            self._python[0](128 + number)  # the first process of a container does not end by a signal

    def _set_handler(self, number: int, handler: Any) -> Any:
        if number in ENDING and handler == signal.SIG_DFL and originals.os.getpid() == self._pid:
            handler = self._handler
        return self._as_without(self._python[1](number, handler))

    def _get_handler(self, number: int) -> Any:
        return self._as_without(self._python[2](number))

    def _as_without(self, handler: Any) -> Any:
        return signal.SIG_DFL if handler is self._handler else handler
