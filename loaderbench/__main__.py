"""Entry of `loaderbench` and `python -m loaderbench`: a Ctrl-C while Python still imports ends quietly too."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Import the command line and run it."""
    try:
        from loaderbench.cli import main as run
    except KeyboardInterrupt:
        print("loaderbench: interrupted", file=sys.stderr, flush=True)
        # Not sys.exit: Python ends by SIGINT where the interrupt came inside an exec(), as dataclasses call it
        # (pythonrun.c, unhandled_keyboard_interrupt). There is nothing to clean up yet.
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
