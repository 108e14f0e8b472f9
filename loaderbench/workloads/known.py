"""Check a `--model` text without importing PyTorch: the `check` functions of the workloads' traits."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from loaderbench.cases.case import Step
from loaderbench.cases.inputs import words_of
from loaderbench.devices.select import traits_of
from loaderbench.errors import ConfigError

LENET_MIN_SIDE = 16
"""Side of LeNet's images; its second pooling reduces smaller ones to size 0."""
REGISTERED = re.compile(r"^@register_model\(\)\n(?:@.*\n)*def (\w+)", re.MULTILINE)
"""How torchvision's sources declare a model."""


def check_torchvision(name: str, step: Step) -> None:
    """Raises ConfigError for a name that none of torchvision's classification models has."""
    known = torchvision_models()
    if known and name not in known:
        raise unknown_model(name, known)


@functools.cache
def torchvision_models() -> frozenset[str]:
    """Names of torchvision's classification models, read from its sources; none where these are not there."""
    spec = importlib.util.find_spec("torchvision")
    folders = () if spec is None else spec.submodule_search_locations or ()
    sources = [source for folder in folders for source in Path(folder, "models").glob("*.py")]
    return frozenset(name for one in sources for name in REGISTERED.findall(one.read_text(encoding="utf-8")))


def unknown_model(name: str, known: Collection[str]) -> ConfigError:
    """The error for a model that torchvision does not have."""
    close = difflib.get_close_matches(name, sorted(known), n=5, cutoff=0.4)
    names = f"close names: {', '.join(close)}" if close else "resnet50 is one of torchvision's"
    return ConfigError(f"unknown model '{name}'; {names}; for your own model give package.module:factory")


def check_factory(path: str, step: Step) -> None:
    """Raises ConfigError if there is no such module, without importing it."""
    check_path(path, "--model")


def check_path(path: str, flag: str) -> None:
    """Raises ConfigError if `package.module:name` names no module, without importing it."""
    module, _, name = path.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        made = "factory, such as my_models:make" if flag == "--model" else "function, such as my_models:loss"
        raise ConfigError(f"{flag} {path}: give package.module:{made}")
    if not _is_there(module):
        raise ConfigError(f"{flag} {path}: there is no module {module}; run in its folder, or set PYTHONPATH")


def _is_there(module: str) -> bool:
    """Check if Python would find the module: in the current folder last, as workloads/factory.py does."""
    name, spec, places = "", None, None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        spec = _found(name, places)
        if spec is None:
            return False
        places = list(spec.submodule_search_locations or ())
    return True


def _found(name: str, places: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if (spec := finder.find_spec(name, places)) is not None:
            return spec
    return PathFinder.find_spec(name, [str(Path.cwd())]) if places is None else None


def check_lenet(detail: str, step: Step) -> None:
    """Raises ConfigError for images that are too small, and for other inputs."""
    if step.inputs is not None:
        raise ConfigError(f"lenet takes square images, not {words_of(step.inputs)}: give --input-shape 1,28,28")
    side = step.input_size
    if side is not None and side < LENET_MIN_SIDE:
        raise ConfigError(
            f"lenet takes images of {LENET_MIN_SIDE}x{LENET_MIN_SIDE} or larger, not {side}: give --input-size 28"
        )


def check_emulated(detail: str, step: Step) -> None:
    """Raises ConfigError for the emulated step on a device that computes."""
    if traits_of(step.device).workload is None:
        raise ConfigError(f"--model {step.model} is the step of an emulated device, not a model: name a model")
