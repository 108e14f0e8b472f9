"""`loaderbench model`: what a model costs, layer by layer, in memory and in devices."""

from __future__ import annotations

import typer

from loaderbench.commands.model_fit import fit
from loaderbench.commands.model_memory import memory

app = typer.Typer(help="What a model costs: its layers, memory, largest batch, and devices.", no_args_is_help=True)
app.command("memory")(memory)
app.command("fit")(fit)
