"""A notebook: what the functions return is shown as a page, and `%loaderbench watch train.py` runs a command."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from loaderbench.cases.options import RESULTS
from loaderbench.commands.terminal import echo
from loaderbench.errors import ConfigError
from loaderbench.recording.kinds import KINDS, facts_of
from loaderbench.recording.store import Store
from loaderbench.reporting.result import Result

COLOURING, PLAIN = ("FORCE_COLOR", "CLICOLOR_FORCE"), {"NO_COLOR": "1", "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}
"""Variables of a kernel that ask for colours; those for text that a cell can show as it comes."""


def of_record(record: Any) -> Result:
    """Return a run as a result."""
    from loaderbench.reporting.format import cleaned
    from loaderbench.reporting.terminal import run_result

    return run_result(cleaned(record))


def of_run(run: Any) -> Result:
    """Return what the measured run says by today's rules."""
    from loaderbench.studies.again import analyze

    return of_record(analyze(run))


def of_sweep(sweep: Any) -> Result | None:
    """Return a sweep as a result."""
    return of_findings(sweep.findings, sweep.records)


def of_findings(findings: Any, records: Sequence[Any] = ()) -> Result | None:
    """Return a study as a result; None if its facts are not known, as of findings that you made."""
    from loaderbench.reporting.studies import result_of

    facts = facts_of(findings)
    return None if facts is None else result_of(facts, findings, records)


SHOWN: tuple[tuple[str, Callable[[Any], Result | None]], ...] = (
    ("recording.record:RunRecord", of_record),
    ("recording.facts:Run", of_run),
    ("studies.sweep:SweepResult", of_sweep),
    *((kind.findings_at, of_findings) for kind in KINDS.values()),
)
"""What functions return → what the notebook shows."""


def register() -> None:
    """Let the notebook show these as pages; none of them is imported for it."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    html = shell.display_formatter.formatters["text/html"]

    def page(value: Any, result: Callable[[Any], Result | None]) -> str | None:
        shown = result(value)
        return None if shown is None else shown._repr_html_()

    for place, result in SHOWN:
        module, _, name = place.partition(":")
        html.for_type_by_name(f"loaderbench.{module}", name, partial(page, result=result))


def add_magic(ipython: Any) -> None:
    """Add the line magic."""
    ipython.register_magic_function(loaderbench, "line")


def loaderbench(line: str) -> Result | None:
    """Run a command, print what it prints, and return the run or study that it stored."""
    words = shlex.split(line)
    store = Store(_results_of(words))
    before = _newest(store)
    plain = {name: value for name, value in os.environ.items() if name not in COLOURING} | PLAIN
    with subprocess.Popen(
        [sys.executable, "-m", "loaderbench", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, cwd=Path.cwd(), env=plain,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for said in process.stdout:
                echo(said.rstrip())
        except KeyboardInterrupt:  # the kernel's: the command keeps what was measured
            process.send_signal(signal.SIGINT)
            echo(process.stdout.read().rstrip())
    new = [one for one, was in zip(_newest(store), before, strict=True) if one is not None and one != was]
    if not new:
        return None
    from loaderbench.studies.again import show

    return show(new[0], store.root)  # a study, before its runs


def _newest(store: Store) -> tuple[str | None, str | None]:
    try:
        return store.newest_ids()
    except ConfigError:  # the folder cannot be read, as the command says
        return None, None


def _results_of(words: Sequence[str]) -> str:
    """Return the folder in which the command stores."""
    for at, word in enumerate(words):
        if word == "--results" and at + 1 < len(words):
            return words[at + 1]
        if word.startswith("--results="):
            return word.partition("=")[2]
    return RESULTS
