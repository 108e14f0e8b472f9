"""`loaderbench model`: what a model costs: its layers, its memory, its devices, and a batch over several of them."""

from __future__ import annotations

import typer

from loaderbench.commands.command import help_alone

app = typer.Typer(
    help="Measure what a model costs: its layers, memory, largest batch and devices.",
    invoke_without_command=True,
    callback=help_alone,
)
