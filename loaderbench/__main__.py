"""Entry of `loaderbench` and `python -m loaderbench`: a Ctrl-C while Python still imports ends quietly too."""

from __future__ import annotations

import sys


def main() -> None:
    """Import the command line and run it."""
    try:
        from loaderbench.cli import main as run
    except KeyboardInterrupt:
        print("loaderbench: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
