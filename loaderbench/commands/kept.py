"""Run a study without runs until its end or an interrupt, then show and write its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderbench.commands.options import OutputOptions
from loaderbench.commands.terminal import lines, write_json
from loaderbench.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from loaderbench.recording.studies import StudyRecord
    from loaderbench.studies.kept import KeptStudy


def run_study(study: KeptStudy, output: OutputOptions) -> BaseException | None:
    """Run it; returns what ended it early, so that what was finished can be shown first. What is refused leaves no
    folder.

    Raises as `study.run`.
    """
    try:
        with lines(quiet=output.quiet) as tell:
            study.run(tell)
    except (KeyboardInterrupt, SystemExit) as stop:
        return stop
    except (ConfigError, UnavailableError):
        study.discard()
        raise
    return None


def show_study(study: KeptStudy, output: OutputOptions) -> None:
    """Store, print and write what is known."""
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.studies import print_findings

    stored = study.store()
    assert stored.findings is not None
    if not output.quiet and study.begun:
        print_findings(stored.facts, stored.findings, make_console(stderr=output.on_stderr))
    write_study(stored, output)


def write_study(stored: StudyRecord, output: OutputOptions) -> None:
    """Write `--json`, where it was asked for."""
    from loaderbench.reporting.studies import as_json

    assert stored.findings is not None
    if output.json_out is not None:
        write_json(as_json(stored.facts, stored.findings, stored.study_id), output.json_out)
