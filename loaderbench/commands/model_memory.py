"""`loaderbench model memory`: predicted and measured memory of a step, by kind and by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import ModelOptions, Numbers, read
from loaderbench.commands.kept import run_study, write_study
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target

if TYPE_CHECKING:
    from loaderbench.studies.memory import MemoryStudy


@with_options()
def memory(
    *,
    model: Annotated[str, typer.Argument(help="A torchvision classification model, lenet, or package.module:factory")],
    batch_size: Annotated[str, typer.Option(help="Samples per step, comma separated")] = "1,8",
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Also measure on the device")] = True,
    every: Annotated[bool, typer.Option("--all/--no-all", "--layers", help="Print every layer")] = False,
    options: ModelOptions,
    output: OutputOptions,
) -> None:
    """Predict and measure the memory that a step of a model needs, by kind and by layer."""
    from loaderbench.studies.memory_plan import plan_memory

    check_json_target(output.json_out)
    plan = plan_memory(model, options, read("batch_size", Numbers, batch_size), measure=measure)
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.memory import MemoryStudy

    store = Store(output.results)
    store.check_writable()
    study = MemoryStudy(plan, store)
    ended = run_study(study, output)
    _show(study, output, every=every)
    statuses = [one.status for one in study.batches]
    if ended is not None:
        done = sum(one.status not in ("interrupted", "skipped") for one in study.batches)
        raise Interrupted(
            f"interrupted: {done} of {len(plan.batch_sizes)} batch sizes were measured and are kept", ended
        )
    if "failed" in statuses or any(one.trace is None for one in study.batches):
        raise typer.Exit(1)


def _show(study: MemoryStudy, output: OutputOptions, *, every: bool) -> None:
    """Store, print and write what is known."""
    from loaderbench.reporting.console import make_console
    from loaderbench.reporting.studies import print_findings

    stored = study.store()
    if not output.quiet and study.batches:
        assert stored.findings is not None
        print_findings(stored.facts, stored.findings, make_console(stderr=output.on_stderr), whole=every)
    write_study(stored, output)
