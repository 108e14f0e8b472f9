"""A profile file of a user's, made from one that comes with the package."""

from __future__ import annotations

import re

from loaderbench.devices.profile import SHIPPED

NAME = "h200-resnet50-train-fp32"


def profile_text(name: str = NAME) -> str:
    """Return the comment and the table of a shipped profile, as the text of a file of its own."""
    parts = (SHIPPED / f"{name.partition('-')[0]}.toml").read_text().split("\n\n\n")
    (part,) = (part for part in parts if f"\n[{name}]\n" in part)
    return re.sub(rf"^\[{name}\]\n", "", part, flags=re.MULTILINE).replace(f"[[{name}.steps]]", "[[steps]]")
