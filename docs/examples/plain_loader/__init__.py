"""The line that a package of its own adds to the table of loaders. Its entry point, in pyproject.toml:

    [project.entry-points."loaderbench.loaders"]
    plain = "plain_loader:PLUGIN"

Nothing here imports torch: every `loaderbench --help` reads it.
"""

from __future__ import annotations

from loaderbench.cases.traits import LoaderTraits
from loaderbench.plugins import Plugin

PLUGIN = Plugin(LoaderTraits("threads"), "plain_loader.loader")
