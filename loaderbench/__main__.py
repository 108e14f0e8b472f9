"""Entry of `loaderbench` and `python -m loaderbench`. A signal during the imports ends it quietly too."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Import the command line and run it."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _terminate)
        from loaderbench.commands.app import main as run
    except (KeyboardInterrupt, SystemExit) as stop:
        print("loaderbench: interrupted", file=sys.stderr, flush=True)
        # Not sys.exit: Python ends by SIGINT where the interrupt came inside an exec(), as dataclasses call it
        # (pythonrun.c, unhandled_keyboard_interrupt). There is nothing to clean up yet.
        os._exit(stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130)
    run()


if __name__ == "__main__":
    main()
