"""The four tables of plug-ins: loaders, decoders, devices, workloads.

A line is a name, its traits (loaderbench/cases/traits.py) and the module that does the work, which is imported only
when a case needs it. Another package adds a line through an entry point in the group `loaderbench.loaders`
(`.decoders`, `.devices`, `.workloads`) that names a `Plugin`, an object that can be imported without torch:
docs/plug-ins.md.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from loaderbench import lacking
from loaderbench.cases.case import PRECISIONS, Feed, Step
from loaderbench.cases.traits import (
    FORMAT_NAMES,
    FORMATS,
    DecoderChoice,
    DecoderTraits,
    DeviceTraits,
    Format,
    LoaderChoice,
    LoaderTraits,
    Needs,
    WorkloadTraits,
    format_names,
)
from loaderbench.decoders import examples
from loaderbench.errors import ConfigError, UnavailableError

Traits = TypeVar("Traits", LoaderTraits, DecoderTraits, DeviceTraits, WorkloadTraits, covariant=True)


@dataclass(frozen=True)
class Plugin(Generic[Traits]):
    """A line of a table, and what an entry point names."""

    traits: Traits
    module: str
    """Loaders and decoders: has an `Options` dataclass and `build(options, context)`. Devices and workloads: has
    `build` (their base.py gives its arguments)."""


@dataclass(frozen=True)
class Table(Generic[Traits]):
    """One kind of plug-in."""

    kind: str
    """The kind's name in the singular."""
    traits: type[Traits]
    built_in: Mapping[str, Plugin[Traits]]
    members: tuple[str, ...] = ("build",)
    """What a module must have."""
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def group(self) -> str:
        return f"loaderbench.{self.kind}s"

    def names(self) -> list[str]:
        """All known names, built-in ones first."""
        return [*self.built_in, *sorted(set(self._entries()) - set(self.built_in))]

    def _entries(self) -> Mapping[str, EntryPoint]:
        return _entries(self.group, tuple(sys.path))

    def check_name(self, name: str) -> None:
        """Raises ConfigError for an unknown name; the message lists the known ones."""
        if name in self.names():
            return
        other = next((table for table in TABLES if table is not self and name in table.names()), None)
        hint = "" if other is None else f" (it is a {other.kind}: --{other.kind} {name})"
        raise ConfigError(f"unknown {self.kind} '{name}'{hint}; known: {', '.join(self.names())}")

    def find(self, name: str) -> Plugin[Traits]:
        """The line of this name.

        Raises:
            ConfigError: there is none, or the entry point names something else.
            UnavailableError: the entry point cannot be imported.
        """
        self.check_name(name)
        built_in = self.built_in.get(name)
        if built_in is not None:
            return built_in
        return _from_entry(self, self._entries()[name])

    def known(self) -> dict[str, Traits]:
        """Name → traits of all plug-ins that load. A broken one of another package matters only if a user names it."""
        found = {}
        for name in self.names():
            with contextlib.suppress(ConfigError, UnavailableError):
                found[name] = self.find(name).traits
        return found

    def load(self, name: str) -> ModuleType:
        """Import the module that does the work.

        Raises:
            ConfigError: no such plug-in, or its module lacks a required member.
            UnavailableError: what it needs is not installed.
        """
        plugin = self.find(name)
        try:
            module = importlib.import_module(plugin.module)
        except ImportError as error:
            why = f"{self.kind} '{name}' is not available: {error}{lacking.memory_for(error)}"
            raise UnavailableError(why) from error
        missing = [member for member in self.members if not hasattr(module, member)]
        if missing:
            lacks = f"{module.__name__} lacks {' and '.join(missing)}"
            raise ConfigError(f"{self.kind} '{name}': {lacks}, which each {self.kind} needs")
        return module


@functools.cache
def _entries(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Name → entry point. Kept for `path`, Python's search path: looking costs 15 ms."""
    return {entry.name: entry for entry in reversed([*entry_points(group=group)])}


@functools.cache
def _imported(entry: EntryPoint) -> object:
    return entry.load()


def _from_entry(table: Table[Traits], entry: EntryPoint) -> Plugin[Traits]:
    try:
        found: Any = _imported(entry)
    except Exception as error:  # another package's code, which may be for another version of loaderbench
        raise UnavailableError(f"{table.kind} '{entry.name}' is not available: {error}") from error
    if not isinstance(found, Plugin) or not isinstance(found.traits, table.traits):
        wanted = f"Plugin({table.traits.__name__}(…), module)"
        raise ConfigError(f"entry point {table.group}:{entry.name} must name a {wanted} of loaderbench.plugins")
    return found


def _extra(name: str, package: str | None = None) -> Needs:
    return Needs((package or name,), f"pip install 'loaderbench[{name}]'")


def _loader(module: str, traits: LoaderTraits) -> Plugin[LoaderTraits]:
    return Plugin(traits, f"loaderbench.loaders.{module}")


LOADERS: Table[LoaderTraits] = Table(
    "loader",
    LoaderTraits,
    {
        "serial": _loader(
            "serial",
            LoaderTraits("in line", handover="private", as_torchvision=True, self_tested=True, is_data_loader=True),
        ),
        "multiprocess": _loader(
            "multiprocess",
            LoaderTraits("processes", handover="shared", as_torchvision=True, self_tested=True, is_data_loader=True),
        ),
        "threaded": _loader(
            "threaded",
            LoaderTraits(
                "threads", decoder="fastest", output="uint8", handover="reused", reads_ahead=True, self_tested=True
            ),
        ),
        "dali": _loader(
            "dali",
            LoaderTraits(
                "threads",
                decodes="own",
                shared_queue=True,
                readers=1,
                formats=FORMATS,
                extra_work_in_line=True,
                self_tested=True,
                needs=_extra("dali", "nvidia-dali-cuda*"),
            ),
        ),
        "synthetic": _loader("synthetic", LoaderTraits("threads", decodes="nothing", reads_files=False)),
        "cached": _loader("cached", LoaderTraits("threads", reads_files=False)),
        "torchdata": _loader("torchdata", LoaderTraits("threads", needs=_extra("torchdata"))),
        "grain": _loader("grain", LoaderTraits("threads", needs=_extra("grain"))),
        "spdl": _loader("spdl", LoaderTraits("threads", decodes="own", needs=_extra("spdl"))),
        "webdataset": _loader("webdataset", LoaderTraits("processes", format="wds", needs=_extra("webdataset"))),
        "litdata": _loader(
            "litdata", LoaderTraits("processes", format="litdata", can_be_cold=False, needs=_extra("litdata"))
        ),
        "ffcv": _loader(
            "ffcv",
            LoaderTraits(
                "threads",
                decodes="own",
                format="ffcv",
                can_be_cold=False,
                shared_queue=True,
                needs=_extra("ffcv"),
            ),
        ),
        "hf-datasets": _loader("hf_datasets", LoaderTraits("processes", needs=_extra("hf-datasets", "datasets"))),
        "ray": _loader("ray", LoaderTraits("processes", can_be_cold=False, needs=_extra("ray"))),
        "tf-data": _loader(
            "tf_data",
            LoaderTraits("threads", decodes="own", needs=_extra("tf-data", "tensorflow*")),
        ),
        "nvjpeg": _loader("nvjpeg", LoaderTraits("threads", decodes="own", shared_queue=True, needs_gpu=True)),
    },
    members=("Options", "build"),
)
IN_LINE_LOADER = "serial"
"""Without workers: the default where many loaders share a machine."""
DEFAULT_LOADER = "multiprocess"
"""The usual choice of PyTorch users."""


def _decoder(module: str, traits: DecoderTraits) -> Plugin[DecoderTraits]:
    return Plugin(traits, f"loaderbench.decoders.{module}")


DECODERS: Table[DecoderTraits] = Table(
    "decoder",
    DecoderTraits,
    {
        "pillow": _decoder(
            "pillow",
            DecoderTraits(
                rank=60,
                formats=FORMATS,
                gives_pil=True,
                example=examples.PILLOW,
                needs=_extra("run", "pillow"),
            ),
        ),
        "turbojpeg": _decoder(
            "turbojpeg",
            DecoderTraits(rank=20, example=examples.TURBOJPEG, needs=_extra("run", "simplejpeg")),
        ),
        "torchvision": _decoder(
            "torchvision",
            DecoderTraits(
                rank=30,
                formats=FORMATS,
                example=examples.TORCHVISION,
                probed_as="turbojpeg",
                needs=_extra("run", "torchvision"),
            ),
        ),
        "libjpeg": _decoder(
            "libjpeg",
            DecoderTraits(
                rank=10,
                scales=True,
                needs=Needs(
                    install="apt-get install gcc libjpeg62-turbo-dev",
                    check="loaderbench.native:no_libjpeg",
                    prove="loaderbench.decoders.libjpeg:prove",
                ),
            ),
        ),
        "pillow-simd": _decoder(
            "pillow_simd",
            DecoderTraits(
                rank=50,
                formats=FORMATS,
                gives_pil=True,
                example=examples.PILLOW,
                prefix="pillow-simd",
                needs=Needs(
                    ("pillow-simd",), "loaderbench install pillow-simd", check="loaderbench.prefixes:no_pillow_simd"
                ),
            ),
        ),
        "opencv": _decoder(
            "opencv",
            DecoderTraits(
                rank=40,
                formats=FORMATS,
                example=examples.OPENCV,
                needs=Needs(("opencv-python-headless", "opencv-python"), "pip install opencv-python-headless"),
            ),
        ),
    },
    members=("Options", "build"),
    aliases={"simplejpeg": "turbojpeg"},
)
NULL_LOADER = "synthetic"
"""Costs no time, so that any device must be fully used with it."""
USUAL_DECODER = "pillow"
"""What torchvision's own data sets decode with."""

DEVICES: Table[DeviceTraits] = Table(
    "device",
    DeviceTraits,
    {
        "cpu": Plugin(
            DeviceTraits(
                "fp32",
                "cpu[:THREADS]",
                lacks={
                    "tf32": "TF32 is a mode of NVIDIA's tensor cores",
                    **{name: "fp16 is slow and incomplete on it" for name in PRECISIONS if name.endswith("fp16")},
                },
                on_host_cpus=True,
                choose="loaderbench.devices.select:choose_cpu",
            ),
            "loaderbench.devices.cpu",
        ),
        "cuda": Plugin(
            DeviceTraits(
                "amp-bf16", "cuda[:N]", pins_memory=True, is_gpu=True, choose="loaderbench.devices.select:choose_gpu"
            ),
            "loaderbench.devices.cuda",
        ),
        "xpu": Plugin(
            DeviceTraits(
                "fp32",
                "xpu[:N]",
                lacks={"tf32": "TF32 is a mode of NVIDIA's tensor cores"},
                choose="loaderbench.devices.select:choose_xpu",
            ),
            "loaderbench.devices.xpu",
        ),
        "emulated": Plugin(
            DeviceTraits(
                "amp-bf16",
                "emulated[:PROFILE][xF]",
                computes=False,
                workload="emulated",
                times="loaderbench.devices.profile:named",
                choose="loaderbench.devices.profile:choose",
            ),
            "loaderbench.devices.emulated",
        ),
    },
)

WORKLOADS: Table[WorkloadTraits] = Table(
    "workload",
    WorkloadTraits,
    {
        "vision": Plugin(
            WorkloadTraits(
                _extra("run", "torchvision"),
                channels=3,
                check="loaderbench.workloads.known:check_torchvision",
            ),
            "loaderbench.workloads.vision",
        ),
        "factory": Plugin(
            WorkloadTraits(check="loaderbench.workloads.known:check_factory"), "loaderbench.workloads.factory"
        ),
        "lenet": Plugin(WorkloadTraits(check="loaderbench.workloads.known:check_lenet"), "loaderbench.workloads.lenet"),
        "emulated": Plugin(
            WorkloadTraits(channels=3, check="loaderbench.workloads.known:check_emulated"),
            "loaderbench.workloads.emulated",
        ),
    },
)
TABLES: tuple[Table[Any], ...] = (LOADERS, DECODERS, DEVICES, WORKLOADS)


def workload_of(model: str, device: DeviceTraits) -> tuple[str, str]:
    """(name of the workload, the part of the model's text that is for it).

    In this order: the device's own workload, if it has one; the workload that the text names (`name` or `name:detail`);
    the user's own model for `package.module:factory`; torchvision's models.
    """
    if device.workload is not None:
        return device.workload, model
    name, colon, detail = model.partition(":")
    if name in WORKLOADS.names():
        return name, detail
    return ("factory", model) if colon else ("vision", model)


def check_model(step: Step, device: DeviceTraits) -> None:
    """Raises ConfigError for a model that is wrong without building it. `device`: it may have a workload
    of its own."""
    name, detail = workload_of(step.model, device)
    traits = WORKLOADS.find(name).traits
    if reason := missing(traits.needs):
        raise ConfigError(f"--model {step.model}: {reason}: {traits.needs.install}")
    if traits.check is not None:
        function(traits.check)(detail, step)


# -- what can be used here -------------------------------------------------------------------------------


@functools.cache
def packages() -> Mapping[str, str]:
    """Name → version of the distributions that are installed."""
    found: dict[str, str] = {}
    for distribution in distributions():
        # NAME-VERSION.dist-info tells both; reading the metadata of all packages takes 0.2 s.
        folder = Path(getattr(distribution, "_path", ""))
        if folder.suffix == ".dist-info" and (folder / "METADATA").is_file():
            name, _, version = folder.stem.partition("-")
        else:
            told = distribution.metadata.json  # its keys are lower case
            name, version = str(told.get("name", "")), str(told.get("version", ""))
        if name:  # there is none where a package was removed in part
            found.setdefault(name.lower().replace("_", "-"), version)
    return found


def brought_by(needs: Needs) -> list[str]:
    """`package version` of each installed package that satisfies `needs`."""
    return [
        f"{name} {version}"
        for wanted in needs.packages
        for name, version in packages().items()
        if fnmatch(name, wanted)
    ]


def missing(needs: Needs) -> str | None:
    """Explain why a plug-in cannot be used here; None if it can. Does not import it."""
    if needs.check is not None:
        try:
            reason: str | None = function(needs.check)()
        except Exception as error:  # another package's code
            return f"{needs.check} failed to say what is missing: {error}"
        return reason
    if needs.packages and not brought_by(needs):
        return f"{' or '.join(name.rstrip('*-') for name in needs.packages)} is not installed"
    return None


def function(path: str) -> Any:
    """Import the function that `module:function` names. Raises ConfigError if it does not exist."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"a plug-in names {path}, which does not exist: {error}") from error


def installed_decoders(formats: Iterable[str] = ("jpeg",)) -> list[DecoderChoice]:
    """Decoders that can be used here and read these formats, the fastest first; without those that need a process with
    a prefix."""
    choices = [DecoderChoice(name, traits) for name, traits in DECODERS.known().items()]
    suitable = [one for one in choices if one.traits.prefix is None and set(formats) <= set(one.traits.formats)]
    return sorted((one for one in suitable if missing(one.traits.needs) is None), key=lambda one: one.traits.rank)


def check_formats(feed: Feed, formats: Mapping[Format, int], root: str) -> None:
    """Raises ConfigError where what decodes does not read all formats of the data set: no rate may be that of the
    files that happen to be readable."""
    loader = LOADERS.find(feed.loader).traits
    if loader.decodes == "nothing":
        return
    ours = loader.decodes == "ours" and feed.decoder is not None
    reads = DECODERS.find(str(feed.decoder)).traits.formats if ours else loader.formats
    others = {kind: number for kind, number in formats.items() if kind not in reads}
    if not others:
        return
    held = ", ".join(f"{number:,} {FORMAT_NAMES[kind]}" for kind, number in others.items())
    what = f"--decoder {feed.decoder}" if ours else f"--loader {feed.loader}"
    usable = [one.name for one in installed_decoders(formats)]
    use = f"--decoder {' or '.join(usable)}" if usable else lacking.RUN_EXTRA
    use = use if ours else f"--loader {DEFAULT_LOADER}"
    raise ConfigError(f"{what} reads {format_names(reads)} only, and {root} holds {held} files: use {use}")


def installed_loaders(*, with_gpu: bool) -> list[LoaderChoice]:
    """Loaders that read a tree of images and can be used here, with or without a GPU."""
    usable = []
    for name, traits in LOADERS.known().items():
        suits = traits.reads_files and traits.format is None and (with_gpu or not traits.needs_gpu)
        if suits and missing(traits.needs) is None:
            usable.append(loader_choice(name))
    return usable


def predictable_loaders() -> dict[str, LoaderTraits]:
    """Map name → traits of the loaders whose cost follows from decoder and delivery: advice may propose these."""
    known = LOADERS.known().items()
    return {name: one for name, one in known if one.handover is not None and missing(one.needs) is None}


def decoder_choice(name: str) -> DecoderChoice:
    """The decoder of this name, or alias. Raises ConfigError where there is none."""
    name = DECODERS.aliases.get(name, name)
    return DecoderChoice(name, DECODERS.find(name).traits)


def loader_choice(name: str, formats: Iterable[str] = ("jpeg",)) -> LoaderChoice:
    """The loader of this name with the decoder that is its default here, for images of these formats. Raises
    ConfigError where there is none."""
    traits = LOADERS.find(name).traits
    decoder = None
    if traits.decodes == "ours":
        usual = decoder_choice(USUAL_DECODER)
        decoder = usual if traits.decoder == "usual" else next(iter(installed_decoders(formats)), usual)
    return LoaderChoice(name, traits, decoder)


def passed_over(choice: LoaderChoice) -> str | None:
    """Why the loader's default decoder is not the fastest, where that one cannot be built or kept here; else None."""
    if choice.decoder is None or choice.traits.decoder != "fastest":
        return None
    for name, traits in DECODERS.known().items():
        built_here = traits.prefix is None and traits.needs.prove is not None
        if built_here and traits.rank < choice.decoder.traits.rank and (reason := missing(traits.needs)):
            return f"{choice.name} decodes with {choice.decoder.name}, because {name} cannot be used: {reason}"
    return None


def loader_of_format(format_name: str) -> str | None:
    """The loader that reads what `dataset convert --to FORMAT` makes."""
    return next((name for name, traits in LOADERS.known().items() if traits.format == format_name), None)


# -- options of a plug-in --------------------------------------------------------------------------------

OPTION_TYPES = {"int": int, "float": float, "str": str}
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def check_options(table: Table[Any], name: str, given: Mapping[str, str]) -> None:
    """Raises ConfigError for options that `parse_options` would refuse, as far as the plug-in's source shows: the
    module itself, and the library that it drives, are not imported."""
    declared = declared_options(table.find(name).module)
    if declared is not None:
        try:
            _read(name, declared, given)
        except ConfigError as error:
            raise ConfigError(f"--{table.kind}-option: {error}") from error


def declared_options(module: str) -> dict[str, str] | None:
    """Option → its type, as the source of a plug-in's module declares them; None where it does not say."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.ClassDef) and node.name == "Options" and not node.bases:
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            return {ast.unparse(one.target): ast.unparse(one.annotation) for one in fields}
    return None


def parse_options(module: ModuleType, given: Mapping[str, str]) -> Any:
    """Turn `key=value` texts into the plug-in's `Options` dataclass.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or none of those that a Literal lists.
    """
    types = {one.name: one.type for one in dataclasses.fields(module.Options)}
    declared = {name: one if isinstance(one, str) else one.__name__ for name, one in types.items()}
    return module.Options(**_read(module.__name__.rpartition(".")[2], declared, given))


def _read(plugin: str, declared: Mapping[str, str], given: Mapping[str, str]) -> dict[str, Any]:
    """The values of the options. `declared`: option → its type. Raises ConfigError as `parse_options`."""
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in declared:
            known = ", ".join(declared) or "none"
            raise ConfigError(f"unknown option '{key}' of {plugin}; known: {known}")
        kind = declared[key]
        if kind.startswith("Literal["):
            known = ast.literal_eval(kind.removeprefix("Literal"))
            if text not in known:
                raise ConfigError(f"{key}={text} of {plugin} is unknown; known: {', '.join(known)}")
            values[key] = text
            continue
        try:
            values[key] = TRUTHS[text.lower()] if kind == "bool" else OPTION_TYPES.get(kind, str)(text)
        except (KeyError, ValueError) as error:
            raise ConfigError(f"option '{key}' needs a value of type {kind}, not '{text}'") from error
    return values
