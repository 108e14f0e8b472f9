"""`loaderbench install`: packages that conflict with others."""

from __future__ import annotations

from typing import Annotated

import typer

from loaderbench.commands.terminal import say


def install(
    package: Annotated[str, typer.Argument(help="pillow-simd, built for this CPU in its own folder")],
) -> None:
    """Build a package that conflicts with others into its own folder."""
    from loaderbench import prefixes

    prefixes.install(package, say)
