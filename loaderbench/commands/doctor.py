"""`loaderbench doctor`: what this machine can measure."""

from __future__ import annotations

from typing import Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import echo, write_json


@with_options(without=("quiet", "results"))
def doctor(
    *,
    dataset: Annotated[str | None, typer.Argument(help="A data set's folder, to look at its storage too")] = None,
    output: OutputOptions,
) -> None:
    """Say what this machine can measure, what it cannot, and the one step that enables it."""
    from loaderbench.doctor import examine
    from loaderbench.selftest.doctor import examine_beds

    findings = [*examine(dataset), *examine_beds()]
    if output.json_out is not None:
        write_json({"findings": findings}, output.json_out)
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        echo(f"{finding.state:<9}{finding.name:<{width}}  {finding.what}")
        if finding.enable:
            echo(f"{'':<9}{'':<{width}}  → {finding.enable}")
