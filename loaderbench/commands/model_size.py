"""`loaderbench model size`: the devices that a rate or a latency needs, from measured batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import ModelOptions, SizeOptions
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target, lines, write_json

if TYPE_CHECKING:
    from loaderbench.studies.model_size import SizeStudy


@with_options()
def size(
    *,
    model: Annotated[str, typer.Argument(help="A torchvision model, lenet, or package.module:factory for your own")],
    options: ModelOptions,
    asked: SizeOptions,
    output: OutputOptions,
) -> None:
    """How many devices a rate or a latency needs, at which batch, and what loader and storage must then deliver."""
    from loaderbench.recording.store import Store
    from loaderbench.studies.model_size import SizeStudy, plan_size

    check_json_target(output.json_out)
    store = Store(output.results)
    plan = plan_size(model, options, asked, store)
    store.check_writable()
    study = SizeStudy(plan, store)
    ended: BaseException | None = None
    try:
        with lines(quiet=output.quiet) as tell:
            study.run(tell)
    except (KeyboardInterrupt, SystemExit) as stop:
        ended = stop
    _show(study, output)
    if ended is not None:
        num_done = sum(bool(batch.rounds) for batch in study.batches)
        raise Interrupted(f"interrupted: {num_done} batches were measured and are kept", ended)
    if study.failed:
        raise typer.Exit(1)


def _show(study: SizeStudy, output: OutputOptions) -> None:
    """Store, print and write what was measured."""
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.studies import as_json, print_findings

    stored = study.store()
    assert stored.findings is not None
    if not output.quiet and study.batches:
        print_findings(stored.facts, stored.findings, make_console(stderr=output.on_stderr))
    if output.json_out is not None:
        write_json(as_json(stored.facts, stored.findings, stored.study_id), output.json_out)
