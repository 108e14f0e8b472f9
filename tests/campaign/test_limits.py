"""Little of everything: memory, descriptors, processes, space. One clear line, no hang, and nobody is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from commands import TINY

from loaderbench.recording.store import Store
from tests.campaign.watching import Command, as_nobody, can_be_nobody, left, one_clear_line

HANGS_S = 150
NO_MOUNTS = shutil.which("unshare") is None or os.geteuid() != 0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Limit:
    """One thing that is short. `script` runs before the command, in a shell of its own; {…} are folders of the test."""

    name: str
    script: str
    codes: Sequence[int] = (0, 1, 2)
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    mounts: bool = False
    nobody: bool = False
    lines: int = 1
    redirect: str = ""


MULTI, THREADED = ("--loader", "multiprocess"), ("--loader", "threaded")
LIMITS = [
    *(
        Limit(f"memory {size} kB", f"ulimit -v {size}", options=MULTI, lines=3)
        for size in (300_000, 1_000_000, 3_000_000)
    ),
    Limit("memory 1.5 GB, threads", "ulimit -v 1500000", options=THREADED, lines=3),
    *(Limit(f"{number} open files", f"ulimit -n {number}", options=MULTI) for number in (12, 24, 64, 128)),
    Limit("24 open files, threads", "ulimit -n 24", options=THREADED),
    *(Limit(f"files of {blocks} blocks", f"ulimit -f {blocks}", options=MULTI) for blocks in (0, 16, 8200, 9000)),
    *(Limit(f"{number} processes", f"ulimit -u {number}", options=MULTI, nobody=True) for number in (1, 3, 8, 14)),
    Limit("20 processes, threads", "ulimit -u 20", options=THREADED, nobody=True),
    Limit("1 s of processor", "ulimit -t 1", codes=(0, 1, 2, -24, -9), options=MULTI),
    Limit("4 s of processor", "ulimit -t 4", codes=(0, 1, 2, -24, -9), options=MULTI),
    Limit("a stack of 128 kB", "ulimit -s 128", options=MULTI),
    Limit("no core, no locked memory", "ulimit -l 0; ulimit -c 0", codes=(0,), options=MULTI),
    Limit("results of 64 kB", "mount -t tmpfs -o size=64k none {results}", codes=(2,), mounts=True),
    Limit(
        "results that fill up",
        "mount -t tmpfs -o size=5m none {results}; "
        "(until [ -e {results}/*/worker.log ]; do sleep 0.05; done; cat /dev/zero >{results}/.filler 2>/dev/null) & :",
        codes=(1,),
        mounts=True,
    ),
    Limit("read-only results", "mount -t tmpfs -o ro none {results}", codes=(2,), mounts=True),
    Limit("1 MB of shared memory", "mount -t tmpfs -o size=1m none /dev/shm", options=MULTI, mounts=True),
    Limit("no shared memory, threads", "mount -t tmpfs -o size=4k none /dev/shm", options=THREADED, mounts=True),
    Limit(
        "a full temporary folder",
        "mount -t tmpfs -o size=4k none {tmp}; cat /dev/zero >{tmp}/f 2>/dev/null; :",
        options=MULTI,
        variables={"TMPDIR": "{tmp}"},
        mounts=True,
    ),
    Limit(
        "a read-only temporary folder",
        "mount -t tmpfs -o ro none {tmp}",
        options=MULTI,
        variables={"TMPDIR": "{tmp}"},
        mounts=True,
    ),
    Limit(
        "a read-only cache",
        "mount -t tmpfs -o ro none {tmp}",
        codes=(0,),
        options=THREADED,
        variables={"XDG_CACHE_HOME": "{tmp}/cache"},
        mounts=True,
    ),
    Limit(
        "a cache that is a file",
        "touch {tmp}/cache",
        codes=(0,),
        options=THREADED,
        variables={"XDG_CACHE_HOME": "{tmp}/cache"},
    ),
    Limit("no home", ":", codes=(0,), options=THREADED, variables={"HOME": "/nonexistent/home"}),
    Limit("no path", ":", codes=(0,), options=MULTI, variables={"PATH": ""}),
    Limit("latin-1", ":", codes=(0,), options=MULTI, variables={"PYTHONIOENCODING": "latin-1"}),
    Limit(
        "the locale C",
        ":",
        codes=(0,),
        options=MULTI,
        variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    Limit("a closed stderr", ":", codes=(0,), options=MULTI, redirect="2>&-"),
    Limit("closed streams", ":", codes=(0,), options=MULTI, redirect="<&- >&- 2>&-"),
    Limit("a full stdout", ":", codes=(0, 1), options=(*MULTI, "--json", "-"), redirect=">/dev/full"),
    Limit("a full stderr", ":", codes=(0, 1), options=MULTI, redirect="2>/dev/full"),
    Limit("results below a file", "touch {tmp}/file", codes=(2,), options=("--results", "{tmp}/file/results")),
    Limit("results in /proc", ":", codes=(2,), options=("--results", "/proc/results")),
]


def test_there_are_enough() -> None:
    assert len(LIMITS) >= 25 and len({limit.name for limit in LIMITS}) == len(LIMITS)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_what_is_short_is_said_in_one_line(limit: Limit, small_set: Path, open_folder: Path) -> None:
    if limit.mounts and NO_MOUNTS:
        pytest.skip("needs root to mount file systems")
    if limit.nobody and not can_be_nobody():
        pytest.skip("needs root, to be an ordinary user")
    folders = {"results": open_folder / "results", "tmp": open_folder / "tmp"}
    for folder in folders.values():
        folder.mkdir()
        folder.chmod(0o777)
    images = shutil.copytree(small_set / "96", open_folder / "images")
    script = f'{limit.script.format(**folders)} || exit 99; exec "$@" {limit.redirect}'
    wrapper = [*(("unshare", "--mount") if limit.mounts else ()), *(as_nobody() if limit.nobody else ())]
    options = [option.format(**folders) for option in limit.options]
    results = [] if "--results" in options else ["--results", folders["results"]]
    variables = {"TMPDIR": str(open_folder)}  # what has no place in the results is spilled there
    variables |= {name: value.format(**folders) for name, value in limit.variables.items()}
    if limit.nobody:
        variables.setdefault("HOME", str(folders["tmp"]))

    # ulimit is a built-in of the shell: bash's knows -u and -l
    shell = shutil.which("bash") or "sh"
    command = Command(
        ["run", images, *TINY, *options, *results],
        wrapper=[*wrapper, shell, "-c", script, "sh"], variables=variables,
    )  # fmt: skip
    ended = command.end(HANGS_S)

    print(f"{limit.name}: exit {ended.code}, {ended.wall_s:.0f} s: {(ended.err.strip() or ended.out.strip())[-300:]}")
    assert left(ended.token, 12) == []
    assert one_clear_line(ended, limit.codes, lines=limit.lines) is None
    for run in Store(folders["results"]).runs():
        assert run.status != "unreadable", run.problem
