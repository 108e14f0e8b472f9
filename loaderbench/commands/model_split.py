"""`loaderbench model split`: one batch over several devices, and the table of times that its search goes by."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from loaderbench.cases.options import ModelOptions
from loaderbench.commands.kept import measure_kept
from loaderbench.commands.options import Changed, Model, OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, write_json

if TYPE_CHECKING:
    from loaderbench.splitting.table import TimesTable


@with_options(
    without=("mode", "optimizer"),
    device=Changed("", "Two devices or more, required to measure: cpu,cuda:0 · cpu:1,cpu:1 · cpu:2,emulated:h200"),
    precision=Changed(
        help="Precision on all devices: fp32, tf32, bf16, fp16, amp-bf16, …  [default: fp32 if one is a CPU]"
    ),
)
def split(
    *,
    model: Model,
    batch_size: Annotated[int, typer.Option(help="Images to split")] = 100,
    turns: Annotated[
        int | None,
        typer.Option(help="Turns of the split and of the fastest device alone  [default: 10, more if turns are short]"),
    ] = None,
    show_table: Annotated[bool, typer.Option("--show-table", help="Print the stored times and exit")] = False,
    set_times: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="DEVICE,BATCH=MS",
            help="Store a time for this --device and exit",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="DEVICE[,BATCH]", help="Remove stored times and exit"),
    ] = None,
    remeasure: Annotated[
        bool, typer.Option("--remeasure", help="Measure again the times that are already stored")
    ] = False,
    options: ModelOptions,
    output: OutputOptions,
) -> None:
    """Split one batch over unlike devices: time each part, find the best split, and compare it with the fastest."""
    from loaderbench.studies.split_plan import edit_table, plan_split

    check_json_target(output.json_out)
    if show_table or set_times or drop:
        table = edit_table(model, options, output.results, set_times or (), drop or ())
        _show(table, output, edited=bool(set_times or drop))
        return
    plan = plan_split(model, options, batch_size, output.results, turns=turns, remeasure=remeasure)
    from loaderbench.studies.model_split import SplitStudy  # late: refusals come without it

    measure_kept(partial(SplitStudy, plan), output)


def _show(table: TimesTable, output: OutputOptions, *, edited: bool) -> None:
    """Print a table of times, or write it as JSON. Raises ConfigError where there is none to show; an edit may leave
    none."""
    from loaderbench.errors import ConfigError
    from loaderbench.reporting.console import make_console, print_table_of
    from loaderbench.reporting.format import cleaned
    from loaderbench.reporting.model_split import times_table

    if output.json_out is not None:
        write_json({"table": str(table.path), "times": list(table.entries)}, output.json_out)
    elif not table.entries and not edited:
        raise ConfigError(f"{table.path} has no times yet: run `loaderbench model split` with at least two devices")
    else:
        print_table_of(times_table(cleaned(tuple(table.entries))), make_console())
