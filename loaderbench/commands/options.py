"""Options on the command line: the groups of cases/options.py as flags, and what only a command line has."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from loaderbench.cases import options
from loaderbench.cases.options import PARSED, Pairs, base_type, flag_of, option
from loaderbench.plain import type_hints

F = TypeVar("F", bound=Callable[..., Any])

RESULTS = Path("results")
Dataset = Annotated[
    str | None, typer.Argument(help="Folder of images or name of a data set. Left out: a generated set, kept.")
]


@dataclass(frozen=True)
class OutputOptions:
    """Where results go, and what is shown."""

    results: Path = option("Where runs are kept", RESULTS)
    json_out: str | None = option("Write the record to FILE, or - for standard output", flag="--json")
    quiet: bool = option("No progress and no table", False, flag="--quiet")

    @property
    def on_stderr(self) -> bool:
        """Standard output is the JSON alone."""
        return self.json_out == "-"


UNCHANGED: Any = object()


@dataclass(frozen=True)
class Changed:
    """What differs for one command: an option's default, its help, or that it has none."""

    default: Any = UNCHANGED
    help: str | None = None


def with_options(*, without: tuple[str, ...] = (), **changed: Changed) -> Callable[[F], F]:
    """Lets a command take whole groups of options: each of its parameters that is annotated with such a dataclass
    becomes the flags of its fields.

    Args:
        without: options that this command has not; they keep their defaults.
        changed: option → what differs for this command.
    """

    def decorate(function: F) -> F:
        parameters: list[inspect.Parameter] = []
        groups: dict[str, type[Any]] = {}
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            kind = parameter.annotation
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                groups[parameter.name] = kind
                parameters += [
                    _flag(one, kind, changed.get(one.name))
                    for one in dataclasses.fields(kind)
                    if one.name not in without
                ]
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(function)
        def command(**given: Any) -> Any:
            made = {name: _group(kind, given) for name, kind in groups.items()}
            taken = {one.name for kind in groups.values() for one in dataclasses.fields(kind)}
            return function(**{name: value for name, value in given.items() if name not in taken}, **made)

        given: Any = command
        del given.__wrapped__  # Typer would look there for the parameters
        given.__signature__ = inspect.Signature(parameters)
        given.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return typing.cast(F, command)

    return decorate


def _flag(field: dataclasses.Field[Any], group: type[Any], changed: Changed | None) -> inspect.Parameter:
    """One option as Typer takes it."""
    kind = type_hints(group)[field.name]
    wanted, told = base_type(kind), field.metadata
    help_text = changed.help if changed is not None and changed.help is not None else told["help"]
    default = field.default if changed is None or changed.default is UNCHANGED else changed.default
    names = () if told["flag"] is None else (told["flag"],)
    settings: dict[str, Any] = {"help": help_text, "metavar": told["metavar"]}
    if wanted is Pairs:
        return _parameter(field.name, Annotated[list[str] | None, typer.Option(*names, **settings)], None)
    if wanted in PARSED:
        settings["parser"] = functools.partial(options.read, field.name, kind)
        settings["metavar"] = told["metavar"] or "<str>"
        settings["show_default"] = False
        if default:
            settings["help"] = f"{help_text}  [default: {_shown(default)}]"
    return _parameter(field.name, Annotated[kind, typer.Option(*names, **settings)], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shown(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _group(kind: type[Any], given: Mapping[str, Any]) -> Any:
    hints = type_hints(kind)
    names = [name for name in hints if name in given]
    return kind(**{name: options.read(name, hints[name], given[name]) for name in names})


def given_on_command_line(context: typer.Context) -> set[str]:
    """Names of the parameters that the user gave as flags."""
    return {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}


def one_of_each(command: str, **lists: tuple[Any, ...] | None) -> None:
    """Raises ConfigError where a list was given to a command that takes one value."""
    from loaderbench.errors import ConfigError

    for name, values in lists.items():
        if values is not None and len(values) > 1:
            raise ConfigError(f"{command} takes one {flag_of(name)}: use `loaderbench sweep` for a list")
