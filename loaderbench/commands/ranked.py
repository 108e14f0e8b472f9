"""`run` and `sweep` under a launcher: the same command on every rank, and rank 0 shows what all found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from loaderbench.cases.study import StudyOptions
from loaderbench.commands.kept import print_study, write_study
from loaderbench.commands.options import OutputOptions
from loaderbench.commands.terminal import Interrupted, check_json_target, say, show_plan, view_of
from loaderbench.errors import CaseFailed, ConfigError, LoaderbenchError

if TYPE_CHECKING:
    from loaderbench.cases.case import Case
    from loaderbench.recording.ranks import RankEnd
    from loaderbench.recording.record import RunRecord
    from loaderbench.running.meeting import Meeting
    from loaderbench.running.ranks import Rank
    from loaderbench.studies.ranks import RanksStudy


@dataclass(frozen=True)
class Asked:
    """Holds the arguments of the command."""

    options: StudyOptions
    dataset: str | Sequence[str] | None
    generated: Sequence[int] | None
    output: OutputOptions
    dry_run: bool
    resume: bool
    tag: str | None
    alone: Sequence[str] = ()
    """Options that were given, and are for one process."""


def check_for_ranks(asked: Asked) -> None:
    """Raises ConfigError for what several ranks cannot do."""
    from loaderbench import plugins

    if asked.alone:
        raise ConfigError(f"{' and '.join(asked.alone)} works in one process only: run it without the launcher")
    for name in asked.options.loader or ():
        if plugins.LOADERS.find(name).traits.format is not None:
            raise ConfigError(f"--loader {name} reads container files, which ranks cannot share: use another loader")


def measure_on_ranks(rank: Rank, asked: Asked) -> None:
    """One rank's part. Raises what ends the command, on the rank that speaks for all with the reason."""
    from loaderbench.running.meeting import Meeting

    study: RanksStudy | None = None
    with Meeting(rank, os.environ) as meeting:
        try:
            check_for_ranks(asked)
            cases = _cases(asked, meeting)
            if asked.dry_run:
                if meeting.rank == 0:
                    show_plan(cases)
                return
            study = _study(cases, asked, meeting)
            _run(study, asked.output, meeting)
        except (LoaderbenchError, KeyboardInterrupt, SystemExit) as stop:
            end = meeting.settle(stop)
            if not meeting.is_to_speak():
                raise typer.Exit(
                    stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 1
                ) from stop
            if study is not None and study.begun:
                study.ended(end)
                _show(study, asked.output, meeting)
            raise _reason(stop, end, study) from stop
        except Exception as error:
            meeting.settle(error)
            raise
        _show(study, asked.output, meeting)


def _reason(stop: BaseException, end: RankEnd | None, study: RanksStudy | None) -> LoaderbenchError:
    from loaderbench.running.meeting import sentence

    kept = ""
    if study is not None:
        kept = f"; {study.num_finished} of {len(study.cases)} cases finished and are kept"
        if len(study.cases) > 1:
            kept += "; repeat the command with --resume to measure the rest"
    if study is None and end is not None and isinstance(stop, ConfigError) and str(stop).rstrip(".") == end.what:
        return stop  # refused before anything began, most often by all ranks
    if end is not None:
        kind = ConfigError if isinstance(stop, ConfigError) else CaseFailed
        return kind(f"{sentence(end)}{kept}")
    if isinstance(stop, LoaderbenchError):
        return CaseFailed(f"{stop}{kept}")
    return Interrupted(f"interrupted{kept}", stop)


def _cases(asked: Asked, meeting: Meeting) -> list[Case]:
    from loaderbench.machine import usable_cpus
    from loaderbench.studies.ranks import cases_of_rank, check_same
    from loaderbench.studies.refusals import planned
    from loaderbench.studies.request import find_data_sets

    def note(line: str) -> None:
        if meeting.rank == 0 and not asked.output.quiet:
            say(line)

    meeting.doing("preparing the data set")
    subjects = meeting.behind_rank_0(
        "planned", lambda: find_data_sets(asked.dataset, asked.options, generated=asked.generated)
    )
    cpus = max(1, usable_cpus() // meeting.num_local)  # the ranks of a node share its CPUs
    cases = planned(asked.options, subjects, on_note=note, cpus=cpus)
    cases = cases_of_rank(cases, meeting, device=asked.options.device)
    check_same(cases, meeting)
    return cases


def _study(cases: Sequence[Case], asked: Asked, meeting: Meeting) -> RanksStudy:
    from loaderbench.recording.store import Store
    from loaderbench.studies.ranks import RanksStudy

    store = Store(asked.output.results)
    store.check_writable()
    if meeting.rank == 0:
        check_json_target(asked.output.json_out)
    study = RanksStudy(cases, store, meeting, resume=asked.resume, tag=asked.tag)
    if study.num_taken and meeting.rank == 0 and not asked.output.quiet:
        say(f"{asked.output.results} already has {study.num_taken} of {len(cases)} cases; they are not measured again")
    return study


def _run(study: RanksStudy, output: OutputOptions, meeting: Meeting) -> None:
    quiet = output.quiet or meeting.rank > 0
    with view_of(study.cases, quiet=quiet) as view:

        def finished(record: RunRecord) -> None:
            if len(study.cases) > 1 and not quiet:
                view.finished(record)

        study.measure(view.message, finished)


def _show(study: RanksStudy, output: OutputOptions, meeting: Meeting) -> None:
    """Store, print and write what all ranks found: on rank 0, which keeps the study."""
    if meeting.rank:
        return
    stored = study.keep()
    print_study(stored, output)
    if not output.quiet:
        say(f"study {stored.study_id}")
    write_study(stored, output)
