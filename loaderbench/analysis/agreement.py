"""How far training in one precision strays from the same training in fp32. Pure functions of recorded values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.studies import Deviation, InferenceAgreement, NumberFacts, TrainingAgreement

Values = Sequence[float] | NDArray[np.float64]

AGREES_WITHIN = 0.05
"""Mean loss deviation up to which a mode is said to agree with fp32; our own choice, see docs/precision.md."""
OWN_FACTOR = 3.0
"""Or this many times the deviation of fp32 from itself under another rounding, if larger; our own choice too."""


def deviation(values: Values, reference: Values) -> Deviation:
    """|value − reference| of each step, as fractions: first of its reference, mean and max of the mean |reference|.

    (Fractions of each step's own reference would say nothing where training brings the loss near zero.) Steps in
    which either is not finite are left out; num_steps counts the rest. Without any, first, mean and max are None;
    first is also None where the first step is left out.
    """
    mine, theirs = (np.asarray(one, dtype=np.float64) for one in (values, reference))
    usable = np.isfinite(mine) & np.isfinite(theirs)
    off, size = np.abs(mine[usable] - theirs[usable]), np.abs(theirs[usable])
    if not size.any():
        return Deviation(None, None, None, 0)
    return Deviation(
        first=float(off[0] / size[0]) if usable[0] and size[0] else None,
        mean=float(off.mean() / size.mean()),
        max=float(off.max() / size.mean()),
        num_steps=len(off),
    )


def training_agreement(mode: NumberFacts, fp32: NumberFacts, own_deviation: float = 0.0) -> TrainingAgreement:
    """A training run compared with fp32's.

    num_overflow_steps: steps whose gradient norm is not finite (a dynamic scale skips their update, a static one does
    not). agrees: every loss is finite, and the mean loss deviation is at most AGREES_WITHIN, or OWN_FACTOR times
    `own_deviation`, the deviation of fp32 from itself under another rounding.
    """
    assert mode.loss is not None and fp32.loss is not None, "not a training run"
    assert mode.gradient_norm is not None and fp32.gradient_norm is not None
    loss = deviation(mode.loss, fp32.loss)
    num_bad_losses = int((~np.isfinite(mode.loss)).sum())
    within = max(AGREES_WITHIN, OWN_FACTOR * own_deviation)
    return TrainingAgreement(
        loss_deviation=loss,
        gradient_norm_deviation=deviation(mode.gradient_norm, fp32.gradient_norm),
        num_overflow_steps=int((~np.isfinite(mode.gradient_norm)).sum()),
        num_nonfinite_losses=num_bad_losses,
        agrees=num_bad_losses == 0 and loss.mean is not None and loss.mean <= within,
    )


def inference_agreement(outputs: NDArray[np.float32], fp32: NDArray[np.float32]) -> InferenceAgreement:
    """Logits [N, classes] compared with fp32's of the same images.

    top1_fraction: images whose first class is the same. agrees: the deviation is at most AGREES_WITHIN; None where a
    logit is not finite.
    """
    mine, theirs = outputs.astype(np.float64), fp32.astype(np.float64)
    off = float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs))
    known = bool(np.isfinite(off))
    return InferenceAgreement(
        output_deviation=off if known else None,
        top1_fraction=float((mine.argmax(axis=1) == theirs.argmax(axis=1)).mean()),
        num_nonfinite_images=int((~np.isfinite(mine)).any(axis=1).sum()),
        agrees=known and off <= AGREES_WITHIN,
    )
