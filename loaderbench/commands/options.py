"""Options on the command line: what cases/ declares as flags, and what only a command line has."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from loaderbench import plugins
from loaderbench.cases import options
from loaderbench.cases.case import OPTIONS, PRECISIONS
from loaderbench.cases.inputs import DTYPE_BYTES
from loaderbench.cases.options import PARSED, Option, Pairs, base_type, option, options_of
from loaderbench.cases.study import StudyOptions, read_options

F = TypeVar("F", bound=Callable[..., Any])

Model = Annotated[str, typer.Argument(help="A torchvision classification model, lenet, or package.module:factory")]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of the device to assume: 16G (GiB)  [default: the device's own]"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the cases and their expected time, and exit")]
Tag = Annotated[str | None, typer.Option(metavar="NAME", help="Name to find the runs by: list NAME, report NAME")]
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
    """Lets a command take whole groups of options: each of its parameters that is annotated with StudyOptions, or with
    a dataclass of options, becomes their flags. An option of a study that such a dataclass also has is the dataclass's.

    Args:
        without: options that this command does not have; they keep their defaults.
        changed: option → what differs for this command.
    """

    def decorate(function: F) -> F:
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[Callable[[Mapping[str, object]], Any], list[str]]] = {}
        taken = inspect.signature(function, eval_str=True).parameters.values()
        own = {one.name for parameter in taken for one in _options_of(parameter.annotation)}
        for parameter in taken:
            kind = parameter.annotation
            make: Callable[[Mapping[str, object]], Any]
            found: Sequence[Option]
            if kind is StudyOptions:
                make, found = read_options, [one for one in OPTIONS.values() if one.name not in own]
            else:
                make, found = functools.partial(options.group, kind), _options_of(kind)
            if not found:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
                continue
            found = [one for one in found if one.name not in without]
            groups[parameter.name] = make, [one.name for one in found]
            parameters += [_flag(one, changed.get(one.name, Changed())) for one in found]

        @functools.wraps(function)
        def command(**given: Any) -> Any:
            made = {
                parameter: make({name: given.pop(name) for name in names if name in given})
                for parameter, (make, names) in groups.items()
            }
            return function(**given, **made)

        given: Any = command
        del given.__wrapped__  # Typer would look there for the parameters
        given.__signature__ = inspect.Signature(parameters)
        given.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return typing.cast(F, command)

    return decorate


def _options_of(annotation: Any) -> Sequence[Option]:
    """The options of a command's own group; none if the parameter is something else."""
    return options_of(annotation) if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else ()


def _flag(one: Option, changed: Changed) -> inspect.Parameter:
    """One option as Typer takes it."""
    kind, wanted = one.kind, base_type(one.kind)
    help_text = one.help if changed.help is None else changed.help
    help_text = help_text.format_map(_words()) if "{" in help_text else help_text
    default = one.default if changed.default is UNCHANGED else changed.default
    names = () if one.flag is None else (one.flag,)
    settings: dict[str, Any] = {"help": help_text, "metavar": one.metavar}
    if wanted is Pairs:
        kind = list[str] | None
    elif wanted in PARSED:
        settings["parser"] = functools.partial(options.read, one.name, kind)
        settings["metavar"] = one.metavar or "<str>"
        settings["show_default"] = False
        if default:
            settings["help"] = f"{help_text}  [default: {_shown(default)}]"
    annotation: Any = Annotated[kind, typer.Option(*names, **settings)]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@functools.cache
def _words() -> Mapping[str, str]:
    """What help texts say about plug-ins and precisions, from their tables."""
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
        "precisions": ", ".join(PRECISIONS),
        "devices": ", ".join(_form(name) for name in plugins.DEVICES.names()),
        "dtypes": ", ".join(DTYPE_BYTES),
        "models": "A torchvision classification model, or package.module:factory for your own",
    }


def _form(device: str) -> str:
    return plugins.DEVICES.find(device).traits.form if device in plugins.DEVICES.built_in else device


def _shown(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def given_on_command_line(context: typer.Context) -> set[str]:
    """Names of the parameters that the user gave as flags."""
    return {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
