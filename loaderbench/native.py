"""Small C libraries that are built on this machine when first needed, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from loaderbench.errors import UnavailableError
from loaderbench.images.files import check_own, make_own_folder, user_cache_folder
from loaderbench.neutral import FOLDER, users_folder
from loaderbench.temporary import temporary_folder

PROBE_BYTES = 1 << 18
"""More than a library takes."""
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread")


def compiler() -> list[str]:
    """The command of the C compiler: $CC, else cc, gcc or clang.

    Raises:
        UnavailableError: there is none.
    """
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    for one in wanted:
        command = shlex.split(one)
        if os.sep in command[0]:
            command[0] = str(users_folder() / command[0])
        if shutil.which(command[0]):
            return command
    raise UnavailableError(f"no C compiler ({', '.join(wanted)} not found); `apt-get install gcc`")


def no_libjpeg() -> str | None:
    """Why libjpeg-turbo's own API is not available here, by a quick check; `doctor` builds the library to be sure."""
    try:
        compiler()
    except UnavailableError as error:
        return str(error)
    given = [os.environ.get(name, "").split(os.pathsep) for name in ("CPATH", "C_INCLUDE_PATH")]
    folders = [*itertools.chain(*given), "/usr/include", "/usr/local/include"]
    if any(Path(folder, "jpeglib.h").is_file() for folder in folders if folder):
        return not_kept("*jpeg")
    return "no jpeglib.h; `apt-get install libjpeg62-turbo-dev`"


def not_kept(stem: str) -> str | None:
    """Explain why no built library can be stored here; None if one can, or one of this stem (a pattern) exists."""
    try:
        folder = _folder()
        check_own(folder)
        if any(folder.glob(f"{stem}-*.so")):
            return None
        make_own_folder(folder)
        with temporary_folder(folder) as probe:
            (probe / "library").write_bytes(bytes(PROBE_BYTES))
    except UnavailableError as error:
        return str(error)
    except OSError as error:
        return f"cannot write to {folder}: {error.strerror}; set XDG_CACHE_HOME"
    return None


def _folder() -> Path:
    """Return the folder of the libraries. Raises UnavailableError without a home folder."""
    return user_cache_folder() / "native"


def processor() -> str:
    """A text that differs between processors with different instructions: the features that the kernel lists."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def build(source: Path, libraries: Sequence[str] = (), flags: Sequence[str] = ()) -> Path:
    """The shared library made from one C file, linked with `libraries`; built once for each content of the file.

    `flags` come after FLAGS. Several machines may share the cache, so the processor is part of the name.

    Processes that build it at the same time make the same file; the last one stays.

    Raises:
        UnavailableError: no compiler, it refuses the file (its first error is named), there is no cache to write to, or
            others may write there.
    """
    command = [*compiler(), *FLAGS, *flags]
    linked = [f"-l{name}" for name in libraries]
    key = hashlib.sha256(source.read_bytes())
    key.update("\0".join([*command, *linked, processor(), *platform.libc_ver()]).encode())
    target = _folder() / f"{source.stem}-{key.hexdigest()[:16]}.so"
    check_own(target)
    if target.exists():
        return target
    try:
        make_own_folder(target.parent)
        with temporary_folder(target.parent) as folder:
            made = folder / target.name
            building = [*command, str(source), "-o", str(made), *linked]
            done = subprocess.run(building, capture_output=True, text=True, cwd=FOLDER)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
                said = lines[0].replace(str(source), source.name) if lines else f"status {done.returncode}"
                raise UnavailableError(f"{command[0]} cannot build {source.name}: {said}")
            made.chmod(0o700)
            made.replace(target)
    except OSError as error:
        raise UnavailableError(
            f"cannot build {source.name} in {target.parent}: {error.strerror}; set XDG_CACHE_HOME"
        ) from error
    return target
