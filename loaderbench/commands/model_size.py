"""`loaderbench model size`: the devices that a rate or a latency needs, from measured batches."""

from __future__ import annotations

from typing import Annotated

import typer

from loaderbench.cases.options import ModelOptions, SizeOptions
from loaderbench.commands.kept import run_study, show_study
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target, counted


@with_options()
def size(
    *,
    model: Annotated[str, typer.Argument(help="A torchvision model, lenet, or package.module:factory")],
    options: ModelOptions,
    asked: SizeOptions,
    output: OutputOptions,
) -> None:
    """Find how many devices a rate or a latency needs, at which batch, and what the loader and storage must deliver."""
    from loaderbench.studies.size_plan import plan_size

    check_json_target(output.json_out)
    plan = plan_size(model, options, asked, output.results)
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.model_size import SizeStudy

    store = Store(output.results)
    store.check_writable()
    study = SizeStudy(plan, store)
    ended = run_study(study, output)
    show_study(study, output)
    if ended is not None:
        num_done = sum(bool(batch.rounds) for batch in study.batches)
        kept = counted(num_done, "batch size was measured and is", "batch sizes were measured and are")
        raise Interrupted(f"interrupted: {kept} kept", ended)
    if study.failed:
        raise typer.Exit(1)
