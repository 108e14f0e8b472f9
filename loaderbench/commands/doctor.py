"""`loaderbench doctor`: what this machine can measure."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Annotated

import typer

from loaderbench.commands.options import OutputOptions, with_options
from loaderbench.commands.terminal import echo, write_json

LEAST_COLUMNS = 30


@with_options(without=("quiet", "results"))
def doctor(
    *,
    dataset: Annotated[str | None, typer.Argument(help="Folder of images, to check its storage too")] = None,
    output: OutputOptions,
) -> None:
    """Show what this machine can measure and how to enable the rest."""
    from loaderbench.doctor import examine
    from loaderbench.selftest.doctor import examine_beds

    findings = [*examine(dataset), *examine_beds()]
    if output.json_out is not None:
        write_json({"findings": findings}, output.json_out)
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        lines = [finding.what, *([f"→ {finding.enable}"] if finding.enable else [])]
        for number, line in enumerate(part for text in lines for part in _wrapped(text, 9 + width + 2)):
            begin = (finding.state, finding.name) if not number else ("", "")
            echo(f"{begin[0]:<9}{begin[1]:<{width}}  {line}")


def _wrapped(text: str, indent: int) -> list[str]:
    """Wrap the text next to a column of `indent` characters; keep one line if no terminal shows it."""
    if not sys.stdout.isatty():
        return [text]
    columns = max(shutil.get_terminal_size().columns - indent, LEAST_COLUMNS)
    return textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)
