"""Which script `loaderbench watch` is to run, and the right command where its words name something else."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from loaderbench.errors import ConfigError

PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
WATCH = ("-m", "loaderbench", "watch")
LAUNCHERS = {"torchrun": WATCH, "accelerate": WATCH, "deepspeed": ("--module", "loaderbench", "watch")}
"""Commands that start a script on several ranks, and the words that go between their options and the script."""
LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
MODULE_OPTIONS = ("-m", "--module")


def script_named(words: Sequence[str], *, as_module: bool) -> tuple[str, list[str], bool]:
    """The script or module to run, its arguments, and whether it is a module. `python` in front is left out.

    Raises:
        ConfigError: the words name no script that can be watched here; it says the command that can.
    """
    script, *arguments = words
    if as_module:
        return script, arguments, True
    if not Path(script).is_file() or Path(script).name in LAUNCHERS:
        if PYTHON.fullmatch(script):
            return _after_python(script, arguments)
        if script in LAUNCHERS or shutil.which(script) is not None or any(map(_is_python, arguments)):
            raise ConfigError(_of_program(words))
        raise ConfigError(f"there is no script {script}: give a Python file, or -m MODULE")
    if script.endswith(".ipynb"):
        raise ConfigError(
            f"{script} is a notebook: put `with loaderbench.watch(loader) as batches:` around its training loop and "
            f"iterate `batches`, or convert it by `jupyter nbconvert --to script {shlex.quote(script)}` and watch the "
            "script"
        )
    if script.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        raise ConfigError(_of_shell_script(script))
    return script, arguments, False


def _after_python(python: str, words: Sequence[str]) -> tuple[str, list[str], bool]:
    if not words or words[0].startswith("-"):
        if words[:1] == ["-m"] and len(words) > 1:
            if words[1] in LAUNCHER_MODULES:
                raise ConfigError(_of_program([python, *words]))
            return words[1], list(words[2:]), True
        if words[:1] == ["-c"]:
            raise ConfigError("`loaderbench watch` runs a file or a module: write the code to a file")
        options = " ".join(word for word in words if word.startswith("-"))
        raise ConfigError(
            f"give Python's own options to loaderbench's Python: {' '.join((python, options)).strip()} -m loaderbench "
            "watch SCRIPT"
        )
    script, *arguments = words
    return script_named([script, *arguments], as_module=False)


def _of_program(words: Sequence[str]) -> str:
    """Name the command that starts this program first, and the watch in each process that it starts."""
    called = f"{words[0]} is a program, not a Python script"
    name = words[0]
    if Path(name).name in ("bash", "sh", "zsh") and len(words) > 1:
        return _of_shell_script(words[1])
    pythons = [at for at, word in enumerate(words) if _is_python(word)]
    if pythons and name not in LAUNCHERS and not any(word in LAUNCHER_MODULES for word in words):
        after = pythons[0] + 1
        return f"{called}. Start it first: {shlex.join([*words[:after], *WATCH, *words[after:]])}"
    at = _place_of_script(words)
    if at is None:
        return f"{called}. Start it first, and in it the watch: {name} … python -m loaderbench watch SCRIPT"
    if name in LAUNCHERS or pythons:
        return f"{called}. Start it first: {shlex.join([*words[:at], *LAUNCHERS.get(name, WATCH), *words[at:]])}"
    return f"{called}. Start it first: {shlex.join([*words[:at], 'python', *WATCH, *words[at:]])}"


def _is_python(word: str) -> bool:
    return PYTHON.fullmatch(Path(word).name) is not None


def _place_of_script(words: Sequence[str]) -> int | None:
    """Index of the word that names the script of a launcher, or of the `-m` before its module."""
    launched = next((at + 1 for at, word in enumerate(words) if word in LAUNCHER_MODULES), 1)
    for at in range(launched, len(words)):
        if words[at].endswith(".py") or (words[at] in MODULE_OPTIONS and at + 1 < len(words)):
            return at
    return None


def _of_shell_script(script: str) -> str:
    return f"{script} is a shell script: in it, replace `python` before your script by `python -m loaderbench watch`"
