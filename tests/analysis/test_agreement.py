"""How far one training run strays from another, against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loaderbench.analysis.agreement import deviation, inference_agreement, training_agreement
from loaderbench.recording.studies import Deviation, NumberFacts

NAN, INF = float("nan"), float("inf")


def numbers(loss: list[float], gradient_norm: list[float]) -> NumberFacts:
    return NumberFacts(loss=np.array(loss), gradient_norm=np.array(gradient_norm))


def test_deviations_are_relative_to_the_reference() -> None:
    # off by 0.7, 1 and 0.1; the reference is 7 at first and 4 on average
    found = deviation([7.7, 3.5, 0.6], [7.0, 4.5, 0.5])
    assert (found.first, found.mean, found.max) == pytest.approx((0.1, 0.6 / 4, 0.25))
    assert found.num_steps == 3


def test_steps_without_a_number_are_left_out_and_not_zero() -> None:
    assert deviation([NAN, 3.0, 1.0], [7.0, 4.0, INF]) == Deviation(None, 0.25, 0.25, 1)
    assert deviation([NAN], [7.0]) == Deviation(None, None, None, 0)


def test_overflows_are_counted_and_do_not_spoil_the_rest() -> None:
    # given two overflows that a dynamic scale skipped: the losses stay numbers
    fp32 = numbers([7.0, 6.9, 6.8, 6.7], [2.0, 2.0, 2.0, 2.0])
    skipped = numbers([7.0, 7.0, 7.0, 6.9], [INF, NAN, 2.0, 2.2])
    found = training_agreement(skipped, fp32)
    assert (found.num_overflow_steps, found.num_nonfinite_losses, found.agrees) == (2, 0, True)
    assert found.gradient_norm_deviation.mean == pytest.approx(0.05)
    # but losses that are none anywhere disagree, however close the others
    lost = numbers([7.0, 6.9, 6.8, NAN], [2.0, 2.0, INF, NAN])
    assert not training_agreement(lost, fp32).agrees


def test_a_mode_need_not_be_closer_to_fp32_than_fp32_is_to_itself() -> None:
    fp32 = numbers([1.0, 1.0], [1.0, 1.0])
    strayed = numbers([1.15, 1.05], [1.0, 1.0])  # 10 % on average
    assert not training_agreement(strayed, fp32).agrees
    assert not training_agreement(strayed, fp32, own_deviation=0.03).agrees
    assert training_agreement(strayed, fp32, own_deviation=0.04).agrees


def test_logits_are_compared_as_a_whole_and_by_their_first_class() -> None:
    fp32 = np.array([[3.0, 0.0], [0.0, 4.0]], dtype=np.float32)
    # 3-4-5: the difference has length 0.5, the whole 5
    close = inference_agreement(np.array([[3.0, 0.3], [0.4, 4.0]], dtype=np.float32), fp32)
    assert close.output_deviation == pytest.approx(0.1)
    assert (close.top1_fraction, close.num_nonfinite_images, close.agrees) == (1.0, 0, False)
    lost = inference_agreement(np.array([[NAN, INF], [0.0, 4.0]], dtype=np.float32), fp32)
    assert (lost.output_deviation, lost.num_nonfinite_images, lost.agrees) == (None, 1, False)
