"""`loaderbench show`: one stored run or study again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import write_json, write_out
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    from loaderbench.recording.store import Store
    from loaderbench.recording.studies import StudyRecord


@with_options(without=("quiet",))
def show(
    *,
    run_id: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Id of a run or study, a unique prefix of it, or latest"),
    ],
    caveats: Annotated[bool, typer.Option("--caveats", help="Print only the caveats, as full sentences")] = False,
    whole: Annotated[bool, typer.Option("--all", help="Print all figures, evidence, advice and caveats")] = False,
    form: Annotated[str, typer.Option("--format", help="text, md, csv or html (a piece of a page)")] = "text",
    output: OutputOptions,
) -> None:
    """Print one stored run or study."""
    from loaderbench.cases.study import check_choice

    if check_choice("--format", form, ("text", "md", "csv", "html")) != "text":
        if output.json_out is not None or caveats or whole:
            raise ConfigError(f"--format {form} writes the whole result: leave --json, --caveats and --all out")
        from loaderbench.reporting.forms import FORMS
        from loaderbench.studies.again import show as shown

        write_out(FORMS[form](shown(run_id, output.results)).encode(), "-")
        return
    from loaderbench.recording.checks import LATEST
    from loaderbench.recording.store import Store, StoredStudy
    from loaderbench.reporting.terminal import print_caveats_of, print_run

    store = Store(output.results)
    stored = store.latest() if run_id == LATEST else None
    if stored is None:
        stored = store.named(run_id)
    if isinstance(stored, StoredStudy):
        if stored.study is None:
            raise ConfigError(stored.problem)
        _show_study(stored.study, store, output.json_out, caveats=caveats, whole=whole)
        return
    if stored.record is None:
        raise ConfigError(f"{stored.run_id} has no result: {stored.problem}")
    if output.json_out is not None:
        write_json(stored.record, output.json_out)
        return
    if caveats:
        print_caveats_of([stored.record])
    else:
        print_run(stored.record, whole=whole)


def _show_study(study: StudyRecord, store: Store, json_out: str | None, *, caveats: bool, whole: bool) -> None:
    """Its findings, by today's rules, from its runs' records."""
    from loaderbench.analysis.studies import senseless
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.studies import as_json, print_findings
    from loaderbench.reporting.terminal import print_caveats_of
    from loaderbench.studies.again import findings_of, records_of

    records = records_of(study, store)
    try:
        findings = findings_of(study, records)
    except Exception as error:  # a record that was edited by hand
        raise ConfigError(f"{study.study_id} cannot be shown: {senseless(error)}") from error
    runs = list(records.values())
    if json_out is not None:
        write_json(as_json(study.facts, findings, study.study_id), json_out)
    elif caveats and runs:
        print_caveats_of(runs)
    else:
        print_findings(study.facts, findings, make_console(), runs, whole=whole or caveats)
        if whole and runs:
            print_caveats_of(runs)
