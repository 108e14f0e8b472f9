"""Commands and groups of commands share this: how they parse what the user types."""

from __future__ import annotations

import itertools
from typing import Any

import typer
from typer.core import TyperCommand

from loaderbench.commands.terminal import write_out
from loaderbench.errors import ConfigError
from loaderbench.lacking import require_run
from loaderbench.recording.checks import LATEST

EXAMPLES = {"RUN": LATEST, "TRACE": "trace.json.gz", "MODEL": "resnet50", "FOLDER": "photos", "SRC": "photos"}
"""Argument → one that can be given."""


def help_alone(context: typer.Context) -> None:
    """Print the help of a group of commands that was typed without one of them."""
    if context.invoked_subcommand is None:
        write_out(f"{context.get_help()}\n".encode(), "-")


def missing_argument(error: Exception) -> str | None:
    """Name the missing argument or option with its help. None if the error is another
    one."""
    wanted = getattr(error, "param", None)
    if type(error).__name__ != "MissingParameter" or wanted is None or not wanted.help:
        return None
    is_option = wanted.param_type_name == "option"
    name = wanted.opts[0] if is_option else wanted.metavar or wanted.name.upper()
    command = error.ctx.command_path  # type: ignore[attr-defined]
    example = EXAMPLES.get(name.rstrip("…."))
    say = "" if example is None or wanted.nargs == -1 else f"; try `{command} {example}`"
    say += "; `loaderbench list` shows them" if example == LATEST else ""
    return f"`{command}` needs {name}: {wanted.help[0].lower()}{wanted.help[1:]}{say}"


class Command(TyperCommand):
    """A command that takes no empty text: as a path it would mean the current folder, as a name any of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for before, text in itertools.pairwise(["", *self.own_part(args)]):
            if text and not (text.startswith("--") and text.endswith("=")):
                continue
            name = text.rstrip("=") or (before if before.startswith("-") else "an argument")
            raise ConfigError(f"{name} is empty: give it a value, or leave it out")
        return super().parse_args(ctx, args)

    def own_part(self, args: list[str]) -> list[str]:
        """The words that are for this command: all of them."""
        return args


class MeasuringCommand(Command):
    """A command that measures, for which the extra `run` must be installed."""

    def invoke(self, ctx: Any) -> Any:
        require_run(ctx.command_path)
        return super().invoke(ctx)
