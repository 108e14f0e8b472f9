"""Packages that conflict with others, each built into a folder of its own.

pillow-simd installs the module `PIL`, as Pillow does: a process can have one of them. A case that wants it runs in a
process whose PYTHONPATH begins with its folder, so both can be measured in one study.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from loaderbench import native, neutral, plugins
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.images.files import check_own, make_own_folder, user_cache_folder
from loaderbench.temporary import temporary_folder

Say = Callable[[str], None]

PINNED = {
    "pillow-simd": "pillow-simd==12.1.1.post0 "
    "--hash=sha256:8e9694ec94c59d12f16753cbf48a3080266bdd704b0c51a630318c7a325625b1"
}
"""What is built, as a line of pip's requirements: another archive than the one that was tried is refused."""
BUILT_WITH = """\
setuptools==80.10.2 --hash=sha256:95b30ddfb717250edb492926c92b5221f7ef3fbcc2b07579bcd4a27da21d0173
pybind11==3.1.0 --hash=sha256:b8488090f8acffbcb6b5d6a85571a6827a0a2981ffb75e5a0b27b87c4a6b7dd0
"""
"""The build requirements. Without hashes pip would take any version of the index unchecked."""
HEADERS = {"jpeglib.h": "libjpeg62-turbo-dev", "zlib.h": "zlib1g-dev", "Python.h": "python3-dev"}
"""C header that the build includes → the Debian package that has it."""
SAY_EVERY_S = 5.0
PROOF = (
    "import json, PIL, PIL._imaging; from PIL import features; "
    "print(json.dumps([PIL.__version__, PIL._imaging.__file__, features.version('libjpeg_turbo')]))"
)


def _has_avx2() -> bool:
    try:
        return " avx2 " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def folder(name: str) -> Path:
    """Return the package's folder, by Python's ABI and instruction set, since machines may share a home."""
    instructions = "avx2" if _has_avx2() else "sse4"
    return user_cache_folder() / "prefixes" / f"{name}-{sysconfig.get_config_var('SOABI')}-{instructions}"


def prefix_of(decoder: str | None) -> Path | None:
    """The folder that must come first on the path of a process that uses the decoder.

    None: it needs no such folder, or the package is not installed (the decoder then says so).

    Raises:
        UnavailableError: others may change what is in the folder.
    """
    traits = plugins.DECODERS.known().get(decoder or "")
    if traits is None or traits.prefix is None:
        return None
    found = folder(traits.prefix)
    if not found.is_dir():
        return None
    check_own(found)
    return found


def no_pillow_simd() -> str | None:
    """Why the decoder pillow-simd cannot be used here."""
    if folder("pillow-simd").is_dir():
        try:
            check_own(folder("pillow-simd"))
        except UnavailableError as error:
            return str(error)
        return None
    if "pillow-simd" in plugins.packages():  # in Pillow's place
        return None
    return "it is not built here; run `loaderbench install pillow-simd`"


def with_prefix(prefix: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that finds the packages of `prefix` first."""
    if prefix is None:
        return dict(environ)
    paths = [str(prefix), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def install(name: str, say: Say) -> Path:
    """Build the package into its folder, unless it is there. The folder appears whole or not at all.

    Raises:
        ConfigError: no such package.
        UnavailableError: this machine lacks what the build needs, the build failed, or others may write the folder.
    """
    if name not in PINNED:
        raise ConfigError(f"loaderbench install builds {', '.join(PINNED)}, not '{name}': use pip install for others")
    target = folder(name)
    check_own(target)
    if target.is_dir():
        say(f"{name} is in {target}")
        return target
    flag = check_machine()
    try:
        make_own_folder(target.parent)
        with temporary_folder(target.parent) as scratch:
            made = scratch / "made"
            _build(name, made, flag, say)
            version = _prove(made)
            try:
                made.rename(target)
            except OSError:
                if not target.is_dir():  # another process was faster
                    raise
    except OSError as error:
        raise UnavailableError(f"cannot write {target.parent}: {error.strerror}; set XDG_CACHE_HOME") from error
    say(f"{name} {version} is in {target}")
    return target


def check_machine() -> str:
    """The compiler's flag for this processor.

    Raises:
        UnavailableError: pillow-simd has no code for it, or a compiler or header is missing; says what to install.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise UnavailableError(
            f"pillow-simd needs x86-64, and this machine is {platform.machine()}: use --decoder pillow"
        )
    command = native.compiler()
    include = sysconfig.get_path("include")
    missing = [header for header in HEADERS if not _has_header(command, header, include)]
    if missing:
        packages = " ".join(HEADERS[header] for header in missing)
        raise UnavailableError(f"building pillow-simd needs {', '.join(missing)}: `apt-get install {packages}`")
    return "-mavx2" if _has_avx2() else "-msse4"


def _has_header(command: list[str], header: str, include: str) -> bool:
    code = f"#include <stdio.h>\n#include <{header}>\n"
    looking = [*command, f"-I{include}", "-E", "-xc", "-"]
    done = subprocess.run(looking, input=code, capture_output=True, text=True, cwd=neutral.FOLDER)
    return done.returncode == 0


def _build(name: str, target: Path, flag: str, say: Say) -> None:
    """Let pip build the package, with tools that are there for this build alone."""
    compiler = shlex.join([*native.compiler(), flag])
    say(f"building {name} with {compiler}: about 25 s")
    tools = target.with_name("tools")
    _run_pip(name, ["--only-binary", ":all:"], BUILT_WITH, tools, dict(os.environ), say)
    environ = {**with_prefix(tools, os.environ), "CC": compiler}
    _run_pip(name, ["--no-build-isolation", "--no-binary", name], PINNED[name], target, environ, say)


def _run_pip(
    name: str, options: list[str], requirements: str, target: Path, environ: Mapping[str, str], say: Say
) -> None:
    """Let pip install what the requirements pin, and say every few seconds how long it has taken."""
    pinned = target.with_suffix(".txt")
    pinned.write_text(requirements)
    command = [
        sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-deps",
        "--require-hashes", *options, "--target", str(target), "-r", str(pinned),
    ]  # fmt: skip
    begun = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as log,
        # Not in a neutral folder: its options, which may be variables, name files. It imports nothing from there.
        subprocess.Popen(command, stdout=log, stderr=log, env=environ, umask=0o022, cwd=neutral.users_folder()) as pip,
    ):
        try:
            while True:
                try:
                    pip.wait(SAY_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    say(f"building {name}: {time.monotonic() - begun:.0f} s")
        except BaseException:
            pip.terminate()
            raise
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    if pip.returncode:
        raise UnavailableError(f"{name} could not be built: {reason(lines)}")


def reason(lines: list[str]) -> str:
    """The first line of pip's output that says why it failed: a missing header, a compiler error, an unreachable index.

    >>> reason(["Collecting x", "error: subprocess-exited-with-error", "cc: fatal error: no input files"])
    'cc: fatal error: no input files'
    """
    general = ("subprocess-exited-with-error", "note:", "hint:")
    telling = [one for one in lines if "error" in one.lower() and not any(word in one for word in general)]
    return (telling or lines[-1:] or ["pip printed no message"])[0]


def _prove(prefix: Path) -> str:
    """The version, as reported by a process that has the prefix first on its path and loaded the package from there.

    Raises:
        UnavailableError: it does not load, loads from elsewhere, or is not pillow-simd.
    """
    proving = [sys.executable, "-P", "-c", PROOF]
    environ = with_prefix(prefix, neutral.environment(os.environ))
    done = subprocess.run(proving, capture_output=True, text=True, env=environ, cwd=neutral.FOLDER)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise UnavailableError(f"pillow-simd was built but cannot be loaded: {lines[-1]}")
    version, core, _ = json.loads(done.stdout)
    if ".post" not in version or not Path(core).is_relative_to(prefix):
        raise UnavailableError(f"pillow-simd was built, but Python loads Pillow {version} from another folder")
    return str(version)
