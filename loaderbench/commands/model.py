"""`loaderbench model`: what a model costs: its layers, its memory, its devices, and a batch over several of them."""

from __future__ import annotations

import typer

from loaderbench.commands import model_fit, model_io, model_layers, model_memory, model_offload, model_size, model_split
from loaderbench.commands.command import Command, help_alone

app = typer.Typer(
    help="Measure what a model costs: its layers, memory, largest batch and devices.",
    invoke_without_command=True,
    callback=help_alone,
)
app.command("layers", cls=Command)(model_layers.layers)
app.command("memory", cls=Command)(model_memory.memory)
app.command("fit", cls=Command)(model_fit.fit)
app.command("size", cls=Command)(model_size.size)
app.command("offload", cls=Command)(model_offload.offload)
app.command("split", cls=Command)(model_split.split)
app.command("io", cls=Command)(model_io.io)
