"""Command lines in a process that can neither import a large library nor start a measuring process.

Run as a program: reads command lines from stdin, prints how each ended, both as JSON.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

LARGE = {"torch", "torchvision", "nvidia", "tensorflow", "ray", "datasets", "grain", "spdl", "litdata", "ffcv", "cv2"}
MEASURES, IMPORTS, MAKES = "measures", "imports", "makes"


@dataclass(frozen=True)
class Planned:
    """How a command line ended."""

    words: list[str]
    code: int | str
    """The exit code; MEASURES: it came as far as starting a process or a script; IMPORTS: it wanted a large library;
    MAKES: it wanted to make the data set of those who name none."""
    out: str
    err: str
    stored: list[str]
    """What it left in the folder of results."""

    @property
    def is_taken(self) -> bool:
        return self.code in (0, 1, MEASURES)

    def __str__(self) -> str:
        return f"loaderbench {' '.join(self.words)} → {self.code}: {self.err.strip()[:300]}"


def planned(lines: Sequence[Sequence[str]], folder: Path) -> list[Planned]:
    """How each of the command lines ends, in `folder`."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-P", __file__], input=json.dumps([*map(list, lines)]), capture_output=True, text=True,
        cwd=folder, env=environ, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [Planned(**one) for one in json.loads(done.stdout)]


class _Stopped(BaseException):
    """No code of ours catches it."""


class _Guarded:
    """Lets large libraries be found, and not imported."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in LARGE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> NoReturn:
        raise _Stopped(IMPORTS)

    def exec_module(self, module: ModuleType) -> NoReturn:
        raise _Stopped(IMPORTS)


def _measures(*anything: Any, **more: Any) -> NoReturn:
    raise _Stopped(MEASURES)


def _makes(*anything: Any, **more: Any) -> NoReturn:
    raise _Stopped(MAKES)


def _end(words: list[str]) -> Planned:
    from loaderbench.commands import app
    from loaderbench.interrupts import INTERRUPTS

    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["loaderbench", *words]
    code: object = "did not end"
    try:
        with redirect_stdout(out), redirect_stderr(err):
            app.main()
    except SystemExit as ended:
        code = ended.code
    except _Stopped as stopped:
        code = str(stopped)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    stored = sorted(one.name for one in Path("results").glob("*"))
    shutil.rmtree("results", ignore_errors=True)
    shutil.rmtree("made", ignore_errors=True)
    assert isinstance(code, int | str)
    return Planned(words, code, out.getvalue(), err.getvalue(), stored)


def main() -> None:
    sys.meta_path.insert(0, _Guarded())  # type: ignore[arg-type]
    import typer.main

    from loaderbench.images import manifest
    from loaderbench.running import process, supervisor
    from loaderbench.studies import watch

    process.Ahead._start = lambda ahead: None  # type: ignore[method-assign]
    supervisor.Child.__enter__ = _measures  # type: ignore[method-assign]
    manifest.make_dataset = _makes
    watch.ScriptWatch.run = _measures  # type: ignore[method-assign]
    typer.main.get_command = cache(typer.main.get_command)
    print(json.dumps([asdict(_end(words)) for words in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
