"""A notebook: what the functions return is shown as a page, and `%loaderbench watch train.py` runs a command."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loaderbench.cases.options import RESULTS
from loaderbench.commands.terminal import echo
from loaderbench.reporting.result import Result

MEASURES = ("run", "watch", "demo")
"""Commands after which the newest run is shown."""
COLOURING, PLAIN = ("FORCE_COLOR", "CLICOLOR_FORCE"), {"NO_COLOR": "1", "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}
"""Variables of a kernel that ask for colours; those for text that a cell can show as it comes."""


def of_record(record: Any) -> Result:
    """Return a run as a result."""
    from loaderbench.reporting.format import cleaned
    from loaderbench.reporting.terminal import run_result

    return run_result(cleaned(record))


def of_sweep(found: Any) -> Result:
    """Return a sweep as a result."""
    from loaderbench.reporting.studies import result_of

    return result_of(found.findings, found.findings, found.records)


def of_comparison(found: Any) -> Result:
    """Return a comparison as a result; its sides are named after their data sets."""
    from loaderbench.recording.studies import CompareFacts, SideName
    from loaderbench.reporting.studies import result_of

    labels: dict[SideName, str] = {"a": "a", "b": "b"}
    for side in labels:
        if record := found.record(side):
            labels[side] = str(record.case.subject.dataset_name)
    return result_of(CompareFacts(labels, len(found.pairs)), found)


SHOWN: tuple[tuple[str, str, Callable[[Any], Result]], ...] = (
    ("loaderbench.recording.record", "RunRecord", of_record),
    ("loaderbench.studies.sweep", "SweepResult", of_sweep),
    ("loaderbench.recording.studies", "Comparison", of_comparison),
)
"""Module and name of what functions return → what it shows."""


def register() -> None:
    """Let the notebook show these as pages; none of them is imported for it."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    html = shell.display_formatter.formatters["text/html"]
    for module, name, result in SHOWN:
        html.for_type_by_name(module, name, lambda one, result=result: result(one)._repr_html_())


def add_magic(ipython: Any) -> None:
    """Add the line magic."""
    ipython.register_magic_function(loaderbench, "line")


def loaderbench(line: str) -> Result | None:
    """Run a command, print what it prints, and return the run that it measured."""
    words = shlex.split(line)
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
    if process.returncode or not words or words[0] not in MEASURES:
        return None
    from loaderbench.studies.again import show

    folder = words[words.index("--results") + 1] if "--results" in words[:-1] else RESULTS
    return show("latest", folder)
