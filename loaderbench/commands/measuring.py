"""`run` and `sweep` share these steps: plan, measure one case after the other, show, store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from loaderbench.cases.options import Price
from loaderbench.cases.study import StudyOptions
from loaderbench.commands.options import OutputOptions
from loaderbench.commands.ranked import Asked, measure_on_ranks
from loaderbench.commands.terminal import check_json_target, end, progress, say, show_plan, view_of, write_json
from loaderbench.errors import ConfigError, LoaderbenchError

if TYPE_CHECKING:
    from loaderbench.cases.case import Case
    from loaderbench.recording.record import RunRecord
    from loaderbench.recording.studies import StudyRecord
    from loaderbench.running.process import Ahead
    from loaderbench.studies.sweep import SweepStudy


def measure(
    options: StudyOptions,
    dataset: str | Sequence[str] | None,
    output: OutputOptions,
    *,
    generated: Sequence[int] | None = None,
    dry_run: bool = False,
    verify: bool = False,
    resume: bool = False,
    tag: str | None = None,
    save_profile: Path | None = None,
    price: Price | None = None,
) -> None:
    """Measure the cases that the options ask for, show and store them: several as a study; under a launcher with the
    other ranks.

    `dataset`, `generated`: as in find_data_sets.
    """
    from loaderbench.running.ranks import rank_of

    rank = rank_of(os.environ)
    if rank is not None and rank.world_size > 1:
        given = {"--verify": verify, "--save-profile": save_profile is not None, "--price": price is not None}
        alone = [name for name, is_given in given.items() if is_given]
        measure_on_ranks(rank, Asked(options, dataset, generated, output, dry_run, resume, tag, alone))
        return
    options.require_one_process()
    from loaderbench.studies.refusals import planned
    from loaderbench.studies.request import find_data_sets

    with progress("preparing the data set") as on_progress:
        subjects = find_data_sets(dataset, options, generated=generated, progress=on_progress)
    cases = planned(options, subjects, on_note=lambda note: None if output.quiet else say(note))
    if save_profile is not None:  # whose times are to be known precisely, whatever limits the run
        cases = [case.changed(until_decided=False) for case in cases]
    if dry_run:
        show_plan(cases)
        return
    _check_outputs(output, tag, save_profile, cases[0])
    with _started(cases, output, resume=resume) as ahead:
        from loaderbench.recording.store import Store  # late: the process begins with its imports before
        from loaderbench.studies.sweep import SweepStudy

        store = Store(output.results)
        study = SweepStudy(cases, store, loaders=options.loader or (), resume=resume, tag=tag)
        if study.num_taken and not output.quiet:
            say(f"{output.results} already has {study.num_taken} of {len(cases)} cases; they are not measured again")
        ended = _run(study, output, verify=verify, ahead=ahead)
    go_on = "repeat the command with --resume to measure the rest" if len(cases) > 1 else ""
    records = study.at_price(price)
    unstored = _show(study, records, output, single=len(cases) == 1)
    if unstored is not None and not isinstance(ended, LoaderbenchError):
        raise unstored
    if save_profile and ended is None and records[0].status == "ok":
        from loaderbench.devices import profile

        profile.save(profile.from_record(records[0], save_profile), save_profile)
    end(records, len(cases), ended, go_on)
    if study.failed_turns:
        raise typer.Exit(1)


def _started(cases: Sequence[Case], output: OutputOptions, *, resume: bool) -> AbstractContextManager[Ahead | None]:
    """Print what will be measured and start the first case's process, unless `resume` may leave no case to measure."""
    from loaderbench import plugins
    from loaderbench.cases.study import expected_seconds
    from loaderbench.running.process import Ahead

    if resume:
        return nullcontext()
    if not output.quiet:
        seconds = sum(expected_seconds(case) for case in cases)
        what = cases[0].title if len(cases) == 1 else f"{len(cases)} cases"
        most = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
        limit = "until its cause is decided, at most" if cases[0].effort.until_decided else "about"
        say(f"measuring {what} ({limit} {most})")
    decoder = cases[0].feed.decoder
    needs_prefix = decoder is not None and plugins.DECODERS.find(decoder).traits.prefix is not None
    return nullcontext() if needs_prefix else Ahead()


def _check_outputs(output: OutputOptions, tag: str | None, save_profile: Path | None, case: Case) -> None:
    """Raises ConfigError where a result could not be written, or not found by that tag."""
    from loaderbench.recording.checks import check_tag, check_writable

    if save_profile:
        _check_profile(save_profile, case)
    check_json_target(output.json_out, save_profile)
    check_writable(output.results)
    check_tag(tag)


def _check_profile(path: Path, case: Case) -> None:
    """Raises ConfigError where the case gives no profile of a GPU, or the file cannot be written."""
    from loaderbench.devices.select import num_visible_gpus, nvml_ordinal

    if nvml_ordinal(case.step.device) is None:
        use = ": use --device cuda" if num_visible_gpus() else ", and this machine has none"
        raise ConfigError(f"--save-profile needs a real GPU{use}")
    check_json_target(str(path))


def _run(study: SweepStudy, output: OutputOptions, *, verify: bool, ahead: Ahead | None = None) -> BaseException | None:
    """Measure what is left and show the progress. Returns the exception that ended it early, or None."""
    from loaderbench.recording.progress import Phase
    from loaderbench.reporting.format import ended_line

    named = study.cases[0] if len(study.cases) == 1 else None
    with view_of(study.left, quiet=output.quiet, named=named) as view:

        def say_phase(case: Case, line: str) -> None:
            view.message(case, Phase(line))

        def finished(record: RunRecord) -> None:
            if len(study.cases) > 1 or output.quiet:  # the screen of a single run begins with its failure
                view.finished(record)
            if len(study.cases) > 1 and record.measured and not output.quiet:
                say(ended_line(record))

        try:
            study.measure(view.message, finished, ahead)
            if verify:
                study.verify(say_phase)
        except (KeyboardInterrupt, SystemExit, LoaderbenchError) as stop:
            return stop
    return None


def _show(
    study: SweepStudy, records: list[RunRecord], output: OutputOptions, *, single: bool
) -> LoaderbenchError | None:
    """Store the study of several runs, and show what was measured. Returns why the study could not be stored."""
    if not records:
        return None
    stored: StudyRecord | None = None
    unstored: LoaderbenchError | None = None
    if not single:
        try:
            stored = study.store_study()
        except LoaderbenchError as error:  # what was measured is shown first
            unstored = error
    if not output.quiet:
        _print(study, records, output, stored, single=single)
    if output.json_out is not None:
        try:
            write_json(records[0] if single else _as_json(study, stored, records), output.json_out)
        except ConfigError as error:
            runs = ", ".join(record.run_id for record in records)
            raise ConfigError(f"{error}; the result is kept in {output.results}: {runs}") from error
    return unstored


def _print(
    study: SweepStudy, records: list[RunRecord], output: OutputOptions, stored: StudyRecord | None, *, single: bool
) -> None:
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.studies import print_findings
    from loaderbench.reporting.terminal import print_run

    console = make_console(stderr=output.on_stderr)
    if single:
        print_run(records[0], console)
    else:
        study_id = None if stored is None else stored.study_id
        print_findings(study.facts, study.findings(), console, records, study_id=study_id)


def _as_json(study: SweepStudy, stored: StudyRecord | None, records: list[RunRecord]) -> dict[str, object]:
    from loaderbench.reporting.studies import as_json

    study_id = None if stored is None else stored.study_id
    return {"runs": records, "study": as_json(study.facts, study.findings(), study_id)}
