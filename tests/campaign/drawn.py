"""How much is drawn at random, and from which seed."""

from __future__ import annotations

import os

SEED = int(os.environ.get("LOADERBENCH_CAMPAIGN_SEED", "20260"))
TIMES = int(os.environ.get("LOADERBENCH_CAMPAIGN_TIMES", "1"))
"""How many times as much as usual."""
