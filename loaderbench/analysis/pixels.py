"""What `--decode-scale auto` changes of the pixels."""

from __future__ import annotations

import numpy as np

from loaderbench.recording.facts import ScaleProbe
from loaderbench.recording.record import PixelDifference


def pixel_difference(probe: ScaleProbe) -> PixelDifference | None:
    """How far the samples differ from those decoded at full size; None where none could be decoded."""
    if not probe.difference:
        return None
    each = np.asarray(probe.difference)
    return PixelDifference(float(each.mean()), float(each.max()), float((each > 0).mean()), len(each))
