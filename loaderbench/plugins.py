"""Name → plug-in module, imported only when a case needs it.

A plug-in is one module with an ``Options`` dataclass and a ``build(options, context)`` function.
Built-in ones stand in the tables below; another package adds one through an entry point in the
group ``loaderbench.loaders`` (or ``.decoders``), whose value is the module.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from loaderbench.errors import ConfigError, UnavailableError

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "loaders": {
        "serial": "loaderbench.loaders.serial",
        "multiprocess": "loaderbench.loaders.multiprocess",
        "threaded": "loaderbench.loaders.threaded",
        "dali": "loaderbench.loaders.dali",
        "synthetic": "loaderbench.loaders.synthetic",
        "cached": "loaderbench.loaders.cached",
        "torchdata": "loaderbench.loaders.torchdata",
        "grain": "loaderbench.loaders.grain",
        "spdl": "loaderbench.loaders.spdl",
        "webdataset": "loaderbench.loaders.webdataset",
        "litdata": "loaderbench.loaders.litdata",
        "ffcv": "loaderbench.loaders.ffcv",
        "hf-datasets": "loaderbench.loaders.hf_datasets",
        "ray": "loaderbench.loaders.ray",
        "tf-data": "loaderbench.loaders.tf_data",
        "nvjpeg": "loaderbench.loaders.nvjpeg",
    },
    "decoders": {
        "pillow": "loaderbench.decoders.pillow",
        "turbojpeg": "loaderbench.decoders.turbojpeg",
        "torchvision": "loaderbench.decoders.torchvision",
        "libjpeg": "loaderbench.decoders.libjpeg",
        "pillow-simd": "loaderbench.decoders.pillow_simd",
        "opencv": "loaderbench.decoders.opencv",
    },
}
ALIASES: Mapping[str, str] = {"simplejpeg": "turbojpeg"}
"""Other names of decoders: `turbojpeg` decodes with the package simplejpeg."""


def names(kind: str) -> list[str]:
    """All known plug-in names of ``kind`` ("loaders" or "decoders"), built-in ones first."""
    found = list(BUILT_IN[kind])
    found += sorted(entry.name for entry in entry_points(group=f"loaderbench.{kind}") if entry.name not in found)
    return found


def check_name(kind: str, name: str) -> None:
    """Raise ConfigError, naming the known ones, where ``name`` is no plug-in of ``kind``."""
    if name not in names(kind):
        other = next((one for one in BUILT_IN if one != kind and name in names(one)), None)
        hint = f" (it is a {other[:-1]}: --{other[:-1]} {name})" if other else ""
        raise ConfigError(f"unknown {kind[:-1]} '{name}'{hint}; known: {', '.join(names(kind))}")


def load(kind: str, name: str) -> ModuleType:
    """Import the plug-in module ``name``.

    Raises:
        ConfigError: no such plug-in.
        UnavailableError: the plug-in's own dependency is not installed.
    """
    check_name(kind, name)
    try:
        built_in = BUILT_IN[kind].get(name)
        if built_in is not None:
            return importlib.import_module(built_in)
        entry = next(iter(entry_points(group=f"loaderbench.{kind}", name=name)))
        module = entry.load()
    except ImportError as error:
        raise UnavailableError(f"{kind[:-1]} '{name}' is not available: {error}") from error
    if not isinstance(module, ModuleType):
        raise ConfigError(f"entry point loaderbench.{kind}:{name} must name a module")
    if not (hasattr(module, "Options") and hasattr(module, "build")):
        raise ConfigError(
            f"{kind[:-1]} '{name}': {module.__name__} lacks `Options` or `build`, see docs/add-a-loader.md"
        )
    return module


def parse_options(module: ModuleType, given: Mapping[str, str]) -> Any:
    """Turn ``key=value`` texts into the plug-in's ``Options`` dataclass.

    Raises:
        ConfigError: an unknown key or a value of the wrong type.
    """
    fields = {field.name: field for field in dataclasses.fields(module.Options)}
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise ConfigError(f"unknown option '{key}' of {module.__name__.rpartition('.')[2]}; known: {known}")
        kind = str(fields[key].type)
        try:
            if kind == "bool":
                values[key] = {"true": True, "1": True, "false": False, "0": False}[text.lower()]
            elif kind == "int":
                values[key] = int(text)
            elif kind == "float":
                values[key] = float(text)
            else:
                values[key] = text
        except (KeyError, ValueError) as error:
            raise ConfigError(f"option '{key}' wants a value of type {kind}, not '{text}'") from error
    return module.Options(**values)
