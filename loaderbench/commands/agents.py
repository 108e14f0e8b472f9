"""`loaderbench agents`: the page for coding agents."""

from __future__ import annotations

from pathlib import Path

from loaderbench.commands.terminal import write_out

PAGE = Path(__file__).parent / "help" / "agents.md"
"""docs/agents.md is a copy, which a test compares."""


def agents() -> None:
    """Print the page for coding agents: commands, JSON, exit codes, how to apply advice."""
    write_out(PAGE.read_bytes(), "-")
