"""`loaderbench gaps`: idle time of the device in a trace file of torch.profiler."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import check_json_target, progress, say, write_json


@with_options(without=("results",))
def gaps(
    *,
    trace_file: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A torch.profiler trace: .json, .json.gz or a folder of them")
    ],
    device: Annotated[int | None, typer.Option(help="Number of the GPU in the trace  [default: the only one]")] = None,
    output: OutputOptions,
) -> None:
    """Show the device's busy and idle time in a torch.profiler trace, and the gaps between its kernels."""
    from dataclasses import replace

    from loaderbench.analysis.trace_gaps import device_of, summarize
    from loaderbench.recording.kineto import read_kineto, traces_in

    check_json_target(output.json_out)
    if trace_file.is_dir():
        traces = traces_in(trace_file)
        if len(traces) > 1:
            say(f"{trace_file} has {len(traces)} traces; this is the newest, {traces[-1].relative_to(trace_file)}")
        trace_file = traces[-1]
    with contextlib.nullcontext() if output.quiet else progress(f"reading {trace_file.name}, bytes") as on_progress:
        recorded = read_kineto(trace_file, on_progress)
    summary = summarize(recorded, device_of(recorded, device))
    summary = replace(summary, caveats=tuple(caveat.worded() for caveat in summary.caveats))
    if output.json_out is not None:
        write_json(summary, output.json_out)
    if not output.quiet and not output.on_stderr:
        from loaderbench.reporting.gaps import print_gaps

        print_gaps(summary)
