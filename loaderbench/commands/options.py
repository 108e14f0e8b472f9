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

from loaderbench import plugins
from loaderbench.cases import options
from loaderbench.cases.options import PARSED, Pairs, base_type, option
from loaderbench.plain import type_hints

F = TypeVar("F", bound=Callable[..., Any])

Dataset = Annotated[
    str | None, typer.Argument(help="Folder of images or name of a data set. Default: a generated set, kept.")
]


@dataclass(frozen=True)
class OutputOptions:
    """Where results go, and what is shown."""

    results: Path = option("Where runs are kept", Path(options.RESULTS))
    json_out: str | None = option("Write the record to FILE, or - for standard output", flag="--json")
    quiet: bool = option("No progress and no table", False, flag="--quiet")

    @property
    def on_stderr(self) -> bool:
        """Whether text goes to stderr, because standard output carries only the JSON."""
        from loaderbench.recording.output import is_standard_output

        return is_standard_output(self.json_out)


UNCHANGED: Any = object()


@dataclass(frozen=True)
class Changed:
    """What differs for one command: an option's default or its help."""

    default: Any = UNCHANGED
    help: str | None = None


def with_options(*, without: tuple[str, ...] = (), **changed: Changed) -> Callable[[F], F]:
    """Lets a command take whole groups of options: each of its parameters that is annotated with such a dataclass
    becomes the flags of its fields.

    Args:
        without: options that this command does not have; they keep their defaults.
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
    help_text = help_text.format_map(_words()) if "{" in help_text else help_text
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


@functools.cache
def _words() -> Mapping[str, str]:
    """What help texts say about plug-ins, from their tables."""
    loaders = {name: plugins.LOADERS.find(name).traits for name in plugins.LOADERS.built_in}
    decoders = {name: plugins.DECODERS.find(name).traits for name in plugins.DECODERS.built_in}
    usual, own = plugins.USUAL_DECODER, [name for name, traits in loaders.items() if traits.decoder == "fastest"]
    other = [name for name, traits in loaders.items() if traits.output != "float32"]
    return {
        "loaders": ", ".join(plugins.LOADERS.names()),
        "default_loader": plugins.DEFAULT_LOADER,
        "decoders": ", ".join(plugins.DECODERS.names()),
        "default_decoder": f"{usual}; {', '.join(own)}: the fastest",
        "scaling_decoders": ", ".join(name for name, traits in decoders.items() if traits.scales),
        "ahead_loaders": ", ".join(name for name, traits in loaders.items() if traits.reads_ahead),
        "default_output": f"float32; {', '.join(other)}: uint8",
        "devices": ", ".join(_form(name) for name in plugins.DEVICES.names()),
        "models": "A torchvision classification model, or package.module:factory for your own",
    }


def _form(device: str) -> str:
    return plugins.DEVICES.find(device).traits.form if device in plugins.DEVICES.built_in else device


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
