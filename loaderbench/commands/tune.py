"""`loaderbench tune`: the fastest loader, decoder, workers and prefetch for a data set and device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import TUNE_BUDGET_S, Numbers
from loaderbench.cases.study import LEFT_OUT, StudyOptions
from loaderbench.commands.kept import print_study, write_study
from loaderbench.commands.options import Changed, Dataset, OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target, echo, progress, say

if TYPE_CHECKING:
    from loaderbench.studies.tune import Tune


@with_options(
    without=LEFT_OUT["tune"],
    loader=Changed(help="Loaders to try, comma separated  [default: all installed]"),
    decode_scale=Changed(help="Scaled decoding: off or auto  [default: try both]"),
    decoder=Changed(help="Decoders to try, comma separated  [default: all installed]"),
    workers=Changed(help="Worker counts to try, comma separated  [default: half, all, twice the CPUs]"),
    prefetch=Changed(Numbers((2, 4)), "Prefetch depths to try, comma separated"),
)
def tune(
    *,
    dataset: Dataset = None,
    budget: Annotated[float, typer.Option(help="Seconds for the whole search, finals included")] = TUNE_BUDGET_S,
    options: StudyOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings and their expected time, and exit")
    ] = False,
    output: OutputOptions,
) -> None:
    """Find the fastest loader, decoder, workers and prefetch for a data set and device."""
    from loaderbench.studies.tune_plan import check_tuning, describe, plan_tuning

    check_tuning(options, budget)
    tell = (lambda line: None) if output.quiet else say
    with progress("preparing the data set") as on_progress:
        cases, default = plan_tuning(options, dataset, on_note=tell, progress=on_progress)
    if dry_run:
        for case in cases:
            echo(describe(case))
        echo(f"{len(cases)} settings, at most {budget / 60:.1f} minutes")
        return
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.tune import Tune

    store = Store(output.results)
    store.check_writable()
    check_json_target(output.json_out)
    search = Tune(cases, default, budget, store, tell)
    try:
        study = search.run()
    except (KeyboardInterrupt, SystemExit) as stop:
        raise Interrupted(f"interrupted: {_so_far(search)}", stop) from None
    print_study(study, output)
    write_study(study, output)
    if search.num_failed:
        raise typer.Exit(1)


def _so_far(search: Tune) -> str:
    """Describe the best setting of an interrupted search."""
    from loaderbench.reporting.words import flags

    best = search.best_so_far()
    if best is None:
        return "no setting was measured yet"
    case, rate, by = best
    return f"the fastest so far is {flags(case.feed.setting)}: {rate:,.0f} images/s by {by}"
