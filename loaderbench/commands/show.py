"""`loaderbench show`: one stored run or study again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import Price, PriceOptions
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
    cost: PriceOptions,
    output: OutputOptions,
) -> None:
    """Print one stored run or study."""
    from loaderbench.cases.study import check_choice

    if check_choice("--format", form, ("text", "md", "csv", "html")) != "text":
        if output.json_out is not None or caveats or whole:
            raise ConfigError(f"--format {form} writes the whole result: leave --json, --caveats and --all out")
        from loaderbench.reporting.forms import FORMS
        from loaderbench.studies.again import show as shown

        write_out(FORMS[form](shown(run_id, output.results, price=cost.price)).encode(), "-")
        return
    from loaderbench.recording.selection import find_with_folder
    from loaderbench.recording.store import Store
    from loaderbench.recording.studies import StudyRecord

    store = Store(output.results)
    stored = find_with_folder(store, run_id)
    from loaderbench.reporting.terminal import print_caveats_of, print_run  # late: refusals come without it
    from loaderbench.studies.again import at_price

    found = at_price(*stored, cost.price)
    if isinstance(found, StudyRecord):
        _show_study(found, store, output.json_out, cost.price, caveats=caveats, whole=whole)
    elif output.json_out is not None:
        write_json(found, output.json_out)
    elif caveats:
        print_caveats_of([found])
    else:
        print_run(found, whole=whole)


def _show_study(
    study: StudyRecord, store: Store, json_out: str | None, price: Price | None, *, caveats: bool, whole: bool
) -> None:
    """Its findings, by today's rules, from its runs' records."""
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.studies import as_json, print_findings
    from loaderbench.reporting.terminal import print_caveats_of
    from loaderbench.studies.again import judged_study

    if json_out is not None and price is not None:
        raise ConfigError("--json of a study has no price: name one of its runs, or leave one of both out")
    findings, runs = judged_study(study, store, price)
    if json_out is not None:
        write_json(as_json(study.facts, findings, study.study_id), json_out)
    elif caveats and runs:
        print_caveats_of(runs)
    else:
        print_findings(study.facts, findings, make_console(), runs, whole=whole or caveats, study_id=study.study_id)
        if whole and runs:
            print_caveats_of(runs)
