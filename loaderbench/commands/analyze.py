"""`loaderbench analyze`: stored runs judged by today's rules."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, progress, say, write_json
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    from loaderbench.analysis.again import Again
    from loaderbench.recording.store import Store


@with_options()
def analyze(
    *,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Id of a run or study, a unique prefix of it, or latest")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All stored runs and studies")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print each value that changes")] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Replace the stored records with today's; the facts stay unchanged")
    ] = False,
    output: OutputOptions,
) -> None:
    """Judge stored runs again from their facts. This neither measures nor needs torch or a GPU.

    The same rules give each run the same record; with newer rules you see what changed. Exit code 1 if the same
    rules give another record, or if facts are missing or damaged.
    """
    from loaderbench.recording.store import Store

    if every == (run is not None):
        raise ConfigError("`loaderbench analyze` needs a RUN; try `loaderbench analyze latest`, or --all")
    check_json_target(output.json_out)
    store = Store(output.results)
    found = _every(store, quiet=output.quiet) if run is None else [_one(store, run)]
    if not found:
        raise ConfigError(f"there are no runs in {output.results}; measure one with `loaderbench run`")
    if save:
        _save(found, quiet=output.quiet)
    if output.json_out is not None:
        write_json([as_json(one) for one in found], output.json_out)
    if not output.quiet:
        from loaderbench.reporting.again import print_again
        from loaderbench.reporting.console import make_console

        print_again(found, make_console(stderr=output.on_stderr), diff=diff, single=run is not None)
    if any(one.broken for one in found):
        raise typer.Exit(1)


def _save(found: Sequence[Again], *, quiet: bool) -> None:
    from loaderbench.studies import again

    for one in found:
        if not one.differences:
            continue
        if one.folder is not None:
            again.save(one)
        elif not quiet:
            say(f"{one.name} is a study, so --save left it unchanged")


def _one(store: Store, name: str) -> Again:
    from loaderbench.recording.store import StoredStudy

    stored = store.named(name)
    from loaderbench.studies.again import run_again, study_again  # late: refusals come without it

    if not isinstance(stored, StoredStudy):
        return run_again(stored)
    if stored.study is None:
        raise ConfigError(stored.problem)
    return study_again(stored.study, store)


def _every(store: Store, *, quiet: bool) -> list[Again]:
    """Runs first, then runs that only a study needs, then the studies."""
    from loaderbench.analysis.again import Again
    from loaderbench.studies.again import run_again, study_again

    stored_here = store.contents()
    runs, studies = stored_here.runs, stored_here.studies
    for stored in studies:
        if stored.study is not None:
            runs += store.open_study(stored.study).runs.runs()
    found: list[Again] = []
    with contextlib.nullcontext(_unseen) if quiet else progress("judging") as on_progress:
        for number, run in enumerate(runs):
            on_progress(number, len(runs) + len(studies))
            if run.record is None and run.status in ("running", "crashed"):
                continue  # it has no facts, and `list` says so
            found.append(run_again(run))
        for number, stored in enumerate(studies, len(runs)):
            on_progress(number, len(runs) + len(studies))
            if stored.study is None:
                found.append(Again(stored.study_id, None, problem=stored.problem))
            else:
                found.append(study_again(stored.study, store))
    return found


def _unseen(done: int, total: int) -> None:
    pass


def as_json(one: Again) -> dict[str, object]:
    """One line of `analyze --json`."""
    return {
        "name": one.name,
        "rules_version": one.rules_version,
        "reproduced": not one.differences and one.problem is None,
        "only_rounding": one.only_rounding and bool(one.differences),
        "problem": one.problem,
        "differences": one.differences,
        "record": one.record,
    }
