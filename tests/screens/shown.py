"""How a screen is made: a command runs in this process, in a folder, at a terminal of a given width or at none."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from unittest import mock

from commands import Ended, call

from loaderbench import __version__
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.doctor import DEGRADED, MISSING, OK, Finding
from tests.made import make_environment
from tests.screens.facts import rounded

WIDEST = 1000
"""Columns in which nothing is wrapped or cut: what a screen says besides its words is read off there."""
COLOURS = {
    "0": "/", "1": "bold", "2": "dim", "3": "italic", "31": "red", "32": "green", "33": "yellow", "34": "blue",
    "35": "magenta", "36": "cyan", "37": "white",
}  # fmt: skip


STYLE = re.compile(r"\x1b\[[\d;]*m")
HERE = "/proc/self/cwd"
"""The current folder, by a name that is everywhere as long: where lines break depends on it."""
BLOCKS = r"p|div|section|h\d|li|ul|tr|table|caption|summary|details|header|figcaption|dt|dd|strong"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Look:
    """Where a command prints. `columns`: of a terminal; None: a pipe."""

    columns: int | None
    coloured: bool = False

    def environ(self) -> dict[str, str]:
        """All variables that the command sees but those of the machine."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        plain = {} if self.coloured else {"NO_COLOR": "1"}
        width = {} if self.columns is None else {"COLUMNS": str(self.columns), "LINES": "50"}
        return {**kept, **plain, **width, "TERM": "xterm-256color", "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}


LOOKS = {
    "40": Look(40), "80": Look(80), "120": Look(120), "colour": Look(80, coloured=True), "piped": Look(None),
}  # fmt: skip


def run(
    words: Sequence[str], folder: Path, look: Look, within: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Ended:
    """Run `loaderbench WORDS` in the folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, look.environ(), clear=True), _on_a_made_up_machine(), within():
            ended = call(*words, stream=io.StringIO if look.columns is None else Terminal)
    finally:
        os.chdir(before)
    if not look.coloured:  # bold is left where no colours are wanted
        ended = replace(ended, out=STYLE.sub("", ended.out), err=STYLE.sub("", ended.err))
    return ended


@contextmanager
def _on_a_made_up_machine() -> Iterator[None]:
    """What commands that only show look up there: where and how they were started, the machine on which all is stored,
    and what `doctor` finds."""
    findings = [
        Finding("memory", OK, "16.0 GB are free"),
        Finding("CPU", DEGRADED, "2 of 8 CPUs may be used: what more workers would give is not measured", "taskset"),
        Finding("NVIDIA GPU", MISSING, "no driver is loaded", "install NVIDIA's driver, or use --device emulated"),
    ]
    with (
        mock.patch("os.getcwd", lambda: HERE),
        mock.patch.object(sys.modules["__main__"], "__package__", None),  # usage says how Python was started
        mock.patch("loaderbench.machine.environment", make_environment),
        mock.patch("loaderbench.doctor.examine", lambda dataset: findings),
        mock.patch("loaderbench.selftest.doctor.examine_beds", list),
    ):
        yield


def typed(words: Sequence[str]) -> str:
    """The command line as in a shell."""
    return f"$ {shlex.join(['loaderbench', *words])}\n"


def as_text(words: Sequence[str], ended: Ended) -> str:
    """The screen: the command line, and what it printed."""
    return typed(words) + printed(ended)


def printed(ended: Ended) -> str:
    """What a command printed, and its exit code."""
    parts = [ended.out, "-- stderr --\n", ended.err] if ended.err else [ended.out]
    whole = "".join(part if part.endswith("\n") or not part else f"{part}\n" for part in parts)
    return same_everywhere(f"{whole}-- exit code {ended.code} --\n")


def same_everywhere(text: str) -> str:
    """The text without what is another's tomorrow: the versions of the program and of its rules, and the last digits of
    long numbers. Control codes can be read. Spaces at the end of a line, which nobody sees, are left out."""
    text = text.replace(f"loaderbench {__version__}", "loaderbench VERSION")
    text = re.sub(rf"\brules {RULES_VERSION}\b", "rules NN", text)  # as long, since lines break there
    text = re.sub(rf'(\brules_version"?: (?:\d+ → )?){RULES_VERSION}\b', r'\1"NN"', text)
    text = re.sub(r"\x1b\[([\d;]*)m", lambda code: f"⟦{_colour(code[1] or '0')}⟧", text)
    text = text.replace("\r\n", "\n").replace("\r", "␍").replace("\x1b", "␛")
    return re.sub(r"[ \t]+$", "", rounded(text), flags=re.MULTILINE)


def _colour(codes: str) -> str:
    if found := re.search(r"[34]8;5;(\d+)", codes):
        codes = codes.replace(found[0], f"colour {found[1]}")
    return " ".join(COLOURS.get(code, code) for code in codes.split(";"))


def page_text(html: str, *, data: bool = True) -> str:
    """What a reader of the page sees: no scripts, a line for each block. Not `data`: without the figures' tables."""
    html = html[html.index("<body") :]
    if not data:
        html = re.sub(r"(?<=</summary>)\s*<p class=.download.>.*?</details>", "", html, flags=re.DOTALL)
    html = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
    html = re.sub(r"</t[hd]>\s*<t[hd][^>]*>", " | ", html)
    html = re.sub(r"\s+", " ", html)
    html = re.sub(
        r"</?(p|div|section|h\d|li|ul|tr|table|caption|summary|details|header|figcaption|dt|dd|strong)\b[^>]*>",
        "\n",
        html,
    )
    text = unescape(re.sub(r"<[^>]+>", "", html))
    return "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())
