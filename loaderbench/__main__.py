"""Entry of `loaderbench` and `python -m loaderbench`. A signal during the imports ends it quietly too; a stream may be
closed, or take few characters."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType


def _prepare_streams() -> None:
    """A closed standard stream (`2>&-`) becomes the null device: else the next file that is opened takes its number and
    place, in the processes that are started too. What an encoding lacks is printed as `?`."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Import the command line and run it; what is printed without it comes first, in a tenth of the time."""
    _prepare_streams()
    from loaderbench.commands.first import first_text, print_first

    text = first_text(sys.argv[1:])
    if text is not None:
        sys.exit(print_first(text))
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _terminate)
        from loaderbench.commands.app import main as run
    except (KeyboardInterrupt, SystemExit) as stop:
        print("loaderbench: interrupted", file=sys.stderr, flush=True)
        # There is nothing to clean up yet.
        if isinstance(stop, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)  # a shell's loop ends with a program that ends by it
        os._exit(stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130)
    run()


if __name__ == "__main__":
    main()
