"""`loaderbench model`: what a model costs: its layers, its memory, its devices, and a batch over several of them."""

from __future__ import annotations

import typer

from loaderbench.commands import model_fit, model_io, model_layers, model_memory, model_offload, model_size, model_split

app = typer.Typer(help="What a model costs: its layers, memory, largest batch, and devices.", no_args_is_help=True)
app.command("layers")(model_layers.layers)
app.command("memory")(model_memory.memory)
app.command("fit")(model_fit.fit)
app.command("size")(model_size.size)
app.command("offload")(model_offload.offload)
app.command("split")(model_split.split)
app.command("io")(model_io.io)
