"""Find what limits a training or inference run, and what fixing it gains.

Python offers what the command line does (docs/python.md):

    import loaderbench

    record = loaderbench.run("/data/imagenet/train", workers=8)
    print(record.verdict.summary)

Each name is imported when it is first used.
"""

from __future__ import annotations

import builtins
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaderbench.offloading.hooks import offload
    from loaderbench.studies.again import analyze, load_run, show
    from loaderbench.studies.compare import compare_data_sets as compare
    from loaderbench.studies.sweep import run, sweep
    from loaderbench.studies.tune import tune
    from loaderbench.studies.watch import watch
    from loaderbench.studies.whatif import whatif

__version__ = "0.2.0"
__all__ = [
    "__version__", "analyze", "compare", "load_run", "offload", "run", "show", "sweep", "tune", "watch", "whatif",
]  # fmt: skip

_FACE = {
    "run": "studies.sweep:run",
    "sweep": "studies.sweep:sweep",
    "compare": "studies.compare:compare_data_sets",
    "tune": "studies.tune:tune",
    "watch": "studies.watch:watch",
    "load_run": "studies.again:load_run",
    "analyze": "studies.again:analyze",
    "show": "studies.again:show",
    "whatif": "studies.whatif:whatif",
    "offload": "offloading.hooks:offload",
}
"""Name → where its function is."""


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module 'loaderbench' has no attribute '{name}'")
    if hasattr(builtins, "__IPYTHON__"):
        importlib.import_module("loaderbench.notebook").register()
    module, _, function = _FACE[name].partition(":")
    try:
        return getattr(importlib.import_module(f"loaderbench.{module}"), function)
    except ModuleNotFoundError as error:
        from loaderbench.lacking import extra

        raise extra(f"loaderbench.{name}", "run", error) from error


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext loaderbench`: the line magic `%loaderbench`, and results as pages."""
    notebook = importlib.import_module("loaderbench.notebook")
    notebook.register()
    notebook.add_magic(ipython)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FACE})
