"""`loaderbench precision`: one model in every precision, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from loaderbench.cases.case import PRECISIONS
from loaderbench.commands.kept import run_study, show_study
from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import Interrupted, check_json_target, say


@with_options()
def precision(
    *,
    model: Annotated[str, typer.Option(help="A torchvision classification model")] = "resnet50",
    mode: Annotated[str, typer.Option(help="train or infer")] = "train",
    precisions: Annotated[
        str | None, typer.Option(help="Precisions, comma separated; fp32 always runs  [default: all]")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps to time, and the same number to compare with fp32  [default: 100; 30 on the CPU]"),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step  [default: 64; 8 on the CPU]")] = None,
    input_size: Annotated[int | None, typer.Option(help="Side of the images  [default: 224; 64 on the CPU]")] = None,
    loss_scale: Annotated[
        str | None,
        typer.Option(
            help="Loss scale for training in fp16: dynamic, or a whole number  [default: 128; amp-fp16: dynamic]"
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto (cuda, else cpu), cpu[:THREADS], cuda[:N], xpu[:N]")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the weights and batches")] = 0,
    output: OutputOptions,
) -> None:
    """Run a model in every precision: time, memory, and whether its numbers still agree with fp32."""
    from loaderbench.studies.precision_plan import PrecisionRequest, plan_precision

    check_json_target(output.json_out)
    wanted = PRECISIONS if precisions is None else [name.strip() for name in precisions.split(",")]
    request = PrecisionRequest(model, mode, device, wanted, steps, batch_size, input_size, loss_scale, seed)
    plan = plan_precision(request)
    if plan.note and not output.quiet:
        say(plan.note)
    from loaderbench.recording.store import Store  # late: refusals come without it
    from loaderbench.studies.precision import PrecisionStudy

    store = Store(output.results)
    store.check_writable()
    study = PrecisionStudy(plan, store)
    ended = run_study(study, output)
    show_study(study, output)
    if ended is not None:
        num_done = sum(mode.status != "interrupted" for mode in study.modes)
        raise Interrupted(f"interrupted: {num_done} of {len(plan.steps)} precisions finished and are kept", ended)
    statuses = [one.status for one in study.modes]
    if "failed" in statuses or all(status == "skipped" for status in statuses):
        raise typer.Exit(1)
