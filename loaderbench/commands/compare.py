"""`loaderbench compare`: two storages measured in turn, two stored runs, or a run and its baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import COMPARE_ROUNDS
from loaderbench.cases.study import LEFT_OUT, StudyOptions
from loaderbench.commands.options import Changed, DryRun, OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, echo, end, progress, say, show_plan, view_of, write_json
from loaderbench.errors import ConfigError, LoaderbenchError
from loaderbench.lacking import require_run

if TYPE_CHECKING:
    from loaderbench.recording.record import RunRecord
    from loaderbench.recording.store import Store
    from loaderbench.recording.studies import CompareFacts, Comparison
    from loaderbench.studies.compare import ComparisonStudy


@with_options(
    without=LEFT_OUT["compare"],
    res=Changed(help="Stored resolution: variant N of both data sets"),
    workers=Changed(help="Worker counts, comma separated  [default: usable CPUs]"),
    cache=Changed(help="cold, warm, as-is, comma separated  [default: those of cold and warm that work here]"),
    duration=Changed(help="Seconds for each combination of side, workers and cache, over all rounds"),
    max_bytes=Changed(help="Most bytes to read from each storage, over all runs: 20G  [default: no limit]"),
)
def compare(
    *,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B", help="NAME=DATASET twice to measure both in turn; or two stored runs; or RUN with --baseline"
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Compare RUN (default: the latest) with this one; exit 1 on a regression"),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Loss of images/s that still passes, as a fraction of the baseline's")
    ] = 0.05,
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Compare even if the baseline did other work")
    ] = False,
    rounds: Annotated[int, typer.Option(help="Rounds; each one measures both sides")] = COMPARE_ROUNDS,
    options: StudyOptions,
    dry_run: DryRun = False,
    output: OutputOptions,
) -> None:
    """Compare two storages that hold the same files, measured in turn; or two stored runs."""
    given = targets or []
    named = [text for text in given if "=" in text]
    check_json_target(output.json_out)
    if not 0 <= threshold < 1:
        raise ConfigError(f"--threshold must be a fraction such as 0.05, not {threshold:g}")
    if baseline is not None and len(given) < 2 and not named:
        run = given[0] if given else "latest"
        _with_baseline(baseline, run, threshold, output, allow_different=allow_different)
    elif baseline is None and len(given) == 2 and len(named) == 2:
        _data_sets(given, options, rounds, output, dry_run=dry_run)
    elif baseline is None and len(given) == 2 and not named:
        _runs(given, output)
    else:
        raise ConfigError(
            "compare needs two data sets (nvme=/data/set nfs=/mnt/nfs/set), two stored runs, or --baseline RUN [RUN]"
        )


def _data_sets(targets: list[str], options: StudyOptions, rounds: int, output: OutputOptions, *, dry_run: bool) -> None:
    """Check that both hold the same files, measure them in turn, show, store."""
    require_run("loaderbench compare")
    from loaderbench.studies.compare_plan import ONE_OF_EACH, parse_targets, plan_data_sets, title

    options.require_single("compare", *ONE_OF_EACH)
    tell = (lambda line: None) if output.quiet else say
    with progress("preparing the data set") as on_progress:
        plan = plan_data_sets(parse_targets(targets), options, rounds, on_note=tell, progress=on_progress)
    for one in plan.notes:
        tell(one.text())
    if dry_run:
        show_plan(plan.cases, title)
        return
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.compare import ComparisonStudy

    store = Store(output.results)
    store.check_writable()
    study = ComparisonStudy(plan, store)
    ended = _measure(study, output)
    if study.records:
        _show(study.facts, study.findings(), output, study.study_id)
    end(study.records, len(plan.cases), ended)


def _measure(study: ComparisonStudy, output: OutputOptions) -> BaseException | None:
    """Measure both sides and show the progress. Returns the exception that ended it early, or None."""
    from loaderbench.studies.compare_plan import title

    with view_of(study.cases, quiet=output.quiet, title=title) as view:
        try:
            study.measure(view.message, view.finished)
        except (KeyboardInterrupt, SystemExit, LoaderbenchError) as stop:
            return stop
    return None


def _stored(store: Store, text: str) -> RunRecord:
    """Find the record that `text` names. Raises ConfigError for a run without measurements."""
    from loaderbench.recording.checks import LATEST
    from loaderbench.recording.store import CASE_FILE

    if text != LATEST and Path(text).is_dir() and not (Path(text) / CASE_FILE).exists():
        raise ConfigError(f"{text} is a folder, not a stored run. To measure two data sets, name them: a={text} b=…")
    stored = store.find(text)
    record = stored.record
    if record is None:
        raise ConfigError(f"{stored.run_id} has no result: {stored.problem}")
    if not record.measured:
        reason = record.failure.message if record.failure is not None else "see `loaderbench show`"
        raise ConfigError(f"{stored.run_id} has no measurement to compare ({stored.status}): {reason}")
    return record


def _runs(given: list[str], output: OutputOptions) -> None:
    from loaderbench.analysis.comparison import compare_two
    from loaderbench.recording.store import Store
    from loaderbench.recording.studies import CompareFacts

    store = Store(output.results)
    a, b = (_stored(store, text) for text in given)
    _show(CompareFacts({"a": "A", "b": "B"}, 2), compare_two(a, b), output)


def _with_baseline(baseline: str, run: str, threshold: float, output: OutputOptions, *, allow_different: bool) -> None:
    from loaderbench.analysis.comparison import compare_two, is_regression, unlike
    from loaderbench.recording.store import Store
    from loaderbench.recording.studies import CompareFacts
    from loaderbench.reporting.comparison import print_regression, unlike_line
    from loaderbench.reporting.console import make_console

    store = Store(output.results)
    before, now = _stored(store, baseline), _stored(store, run)
    if before.run_id == now.run_id:
        raise ConfigError(f"{run} is the baseline itself: measure another run first, or name one")
    if not allow_different and (others := unlike(before, now)):
        raise ConfigError(unlike_line(before.run_id, now.run_id, others))
    comparison = compare_two(before, now, factor=[])
    assert comparison.ratio is not None
    regression = is_regression(comparison.ratio, threshold)
    facts = CompareFacts({"a": "baseline", "b": "run"}, 2)
    _show(facts, comparison, output, extra={"threshold": threshold, "regression": regression})
    if not output.quiet:
        print_regression(comparison, threshold, regression, make_console(stderr=output.on_stderr))
    if regression:
        raise typer.Exit(1)


def _show(
    facts: CompareFacts,
    comparison: Comparison,
    output: OutputOptions,
    study_id: str | None = None,
    extra: dict[str, object] | None = None,
) -> None:
    if not output.quiet:
        from loaderbench.reporting.console import make_console
        from loaderbench.reporting.studies import print_findings

        print_findings(facts, comparison, make_console(stderr=output.on_stderr), study_id=study_id)
        if study_id is not None:
            echo("", err=output.on_stderr)
            echo(f"kept as {study_id} in {output.results}", err=output.on_stderr)
    if output.json_out is not None:
        from loaderbench.reporting.studies import as_json

        write_json({**as_json(facts, comparison, study_id), **(extra or {})}, output.json_out)
