"""The figures of the layers, from times that are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.model_layers import LEAST_LAG_S, layers_of
from loaderbench.cases.case import Step
from loaderbench.machine import environment
from loaderbench.recording.model_layers import PARTS, AloneTimes, CallFacts, LayersFacts, LayersResult, LayerTimes

ROUNDS, STEPS = 5, 4
FORWARD_S, BACKWARD_S = (0.010, 0.002, 0.004), (0.020, np.nan, 0.008)
PARTS_S = {
    "load": 0.0, "copy_inputs": 0.003, "copy_targets": 0.001, "zero_grad": 0.002, "forward": 0.017, "backward": 0.029,
    "update": 0.005, "monitor": 0.001,
}  # fmt: skip
"""Forward and backward have a millisecond each that is no call's."""
WHOLE_S = sum(PARTS_S.values())
ROWS_S = WHOLE_S - 0.002


def call(name: str, kind: str, **changes: Any) -> CallFacts:
    facts = CallFacts(name, kind, 1, (8, 4), 100, 1, 7, 1000, 2000, False)
    return replace(facts, **changes)


CALLS = (
    call("conv", "Conv2d", num_consumers=2),
    call("flatten", "Flatten", reshapes=True, parameters=0, forward_flops=0, backward_flops=0),
    call("conv", "Conv2d", call=2, parameters=0, num_consumers=0),
)


def over(values: Any) -> Any:
    """The same in each step of each round."""
    return np.broadcast_to(np.array(values, dtype=float), (ROUNDS, STEPS, *np.shape(values))).copy()


def facts(**changes: Any) -> LayersFacts:
    times = LayerTimes(
        load_s=np.zeros((ROUNDS, 2 * STEPS)),
        plain_s=over(WHOLE_S),
        timed_s=over(WHOLE_S),
        parts_s=over(list(PARTS_S.values())),
        forward_s=over(FORWARD_S),
        backward_s=over(BACKWARD_S),
        first_s=np.array([0.110, 0.001, 0.004]),
        lag_s=None,
    )
    step = Step("lenet", "train", "fp32", "cpu", 8, 28, channels=1)
    return LayersFacts(
        step, 0, environment(), input_bytes=50, calls=CALLS, times=replace(times, **changes), status="ok"
    )


def rows(result: LayersResult) -> dict[tuple[str, str, int], Any]:
    return {(row.phase, row.name, row.call): row for row in result.rows}


def test_rows_come_in_the_order_of_an_iteration_and_sum_to_the_whole() -> None:
    result = layers_of(facts())
    assert [row.phase for row in result.rows] == [
        "load", "copy_inputs", "copy_targets", *["set_up"] * 3, *["forward"] * 3, "zero_grad", *["backward"] * 2,
        "update", "monitor", "rest",
    ]  # fmt: skip
    found = rows(result)
    assert found["forward", "conv", 1].in_step_s.value == pytest.approx(0.010)
    assert found["backward", "conv", 2].in_step_s.value == pytest.approx(0.008)
    assert ("backward", "flatten", 1) not in found  # it had no backward of its own
    assert [row.name for row in result.rows if row.phase == "backward"] == ["conv", "conv"]
    assert [row.call for row in result.rows if row.phase == "backward"] == [2, 1]
    assert found["rest", "rest", 1].in_step_s.value == pytest.approx(0.002)
    shares = [row.share_fraction for row in result.rows if row.share_fraction is not None]
    assert sum(shares) == pytest.approx(1.0)
    assert result.layers_over_whole is not None and result.timed_over_untimed is not None
    assert result.layers_over_whole.value == pytest.approx(ROWS_S / WHOLE_S)
    assert result.timed_over_untimed.value == pytest.approx(1.0)
    assert not result.disturbed and result.caveats == ()


def test_sums_over_types_and_calls() -> None:
    result = layers_of(facts())
    conv, flatten = result.types
    assert (conv.type, conv.num_calls, flatten.type, flatten.backward_s) == ("Conv2d", 2, "Flatten", None)
    assert (conv.forward_s, conv.backward_s) == (pytest.approx(0.014), pytest.approx(0.028))
    assert conv.share_fraction == pytest.approx(0.042 / WHOLE_S)
    assert (conv.parameters, conv.flops, result.flops, result.num_parameters) == (7, 6000, 6000, 7)
    assert result.required_bytes == 50 + 100 * 3 + 0 + 100
    assert (result.forward_s, result.backward_s) != (None, None)
    assert result.forward_backward_s is not None and result.forward_backward_s.value == pytest.approx(0.046)


def test_set_up_is_what_the_first_call_took_longer() -> None:
    found = rows(layers_of(facts()))
    assert found["set_up", "conv", 1].in_step_s.value == pytest.approx(0.100)
    assert found["set_up", "flatten", 1].in_step_s.value == 0.0  # never below it
    assert found["set_up", "conv", 1].share_fraction is None


def test_without_a_data_set_loading_is_unknown_and_not_nothing() -> None:
    result = layers_of(facts())
    assert rows(result)["load", "load_dataset", 1].in_step_s is None
    assert result.missing == {"load_dataset": "no data set given (--data)", "alone": "it was interrupted"}


def test_a_device_that_was_held_is_compared_with_itself() -> None:
    """An iteration as it runs takes half again as long as the device's part, for the host issues slower."""
    times = {"plain_s": over(1.5 * WHOLE_S), "held_s": over(WHOLE_S), "timed_s": over(1.02 * WHOLE_S)}
    result = layers_of(facts(**times, load_s=np.zeros((ROUNDS, 4 * STEPS))))
    assert result.step_s is not None and result.step_s.value == pytest.approx(1.5 * WHOLE_S)
    assert result.device_s is not None and result.device_s.value == pytest.approx(WHOLE_S)
    assert result.layers_over_whole is not None and result.timed_over_untimed is not None
    assert result.layers_over_whole.value == pytest.approx(ROWS_S / WHOLE_S)
    assert result.timed_over_untimed.value == pytest.approx(1.02) and not result.disturbed
    assert [one.code for one in result.caveats] == ["issuing_takes_longer"]
    shares = sum(row.share_fraction for row in result.rows if row.share_fraction is not None)
    assert shares == pytest.approx(1.02)  # of the device's part; the rest is by the stopwatch
    assert layers_of(facts()).device_s is None


@pytest.mark.parametrize(
    ("plain_s", "timed_s", "codes"),
    [
        (ROWS_S / 0.951, ROWS_S / 0.951, []),
        (ROWS_S / 0.949, ROWS_S / 0.949, ["layers_do_not_sum"]),
        (ROWS_S / 1.049, ROWS_S / 1.049, []),
        (ROWS_S / 1.051, ROWS_S / 1.051, ["layers_do_not_sum"]),
        (WHOLE_S, WHOLE_S * 1.049, []),
        (WHOLE_S, WHOLE_S * 1.051, ["stopwatch_takes_time"]),
    ],
)
def test_rows_that_cannot_be_trusted_are_marked(plain_s: float, timed_s: float, codes: list[str]) -> None:
    result = layers_of(facts(plain_s=over(plain_s), timed_s=over(timed_s)))
    assert ([caveat.code for caveat in result.caveats], result.disturbed) == (codes, bool(codes))


def test_rows_that_wait_for_the_host_are_marked() -> None:
    lag_s = np.array([[1e-3, LEAST_LAG_S / 2, 1e-3], [1e-3, np.nan, 1e-3]])
    result = layers_of(facts(lag_s=lag_s))
    found = rows(result)
    assert found["forward", "flatten", 1].waits_for_host and not found["backward", "conv", 1].waits_for_host
    assert [caveat.code for caveat in result.caveats] == ["layers_hold_gaps"] and not result.disturbed
    assert rows(layers_of(facts()))["forward", "flatten", 1].waits_for_host is None


def test_the_alone_column() -> None:
    seconds = np.full((3, 5), 0.003)
    unknown = np.full((3, 5), np.nan)
    parts_s = np.full((len(PARTS), 5), np.nan)
    parts_s[PARTS.index("update")] = 0.001
    alone = AloneTimes(seconds, unknown, parts_s, np.array([[100, 50, 5], [0, 0, 0]]), 0.5)
    result = layers_of(replace(facts(), alone=alone))
    found = rows(result)
    assert found["forward", "conv", 1].alone_s.value == pytest.approx(0.003)
    assert found["backward", "conv", 1].alone_s is None and found["zero_grad", "prepare_backward", 1].alone_s is None
    assert found["update", "update", 1].alone_s.value == pytest.approx(0.001)
    assert (result.alone_num_calls, result.alone_limit_s) == ((5, 100), 0.5)
    assert "alone" not in result.missing


def test_an_interval_covers_its_mean_under_noise() -> None:
    """Steps with 20 % noise: the 95 % interval of a row's mean misses the truth in about 5 % of 60 studies."""
    random = np.random.default_rng(7)
    missed = 0
    for _ in range(60):
        noisy = over(FORWARD_S) * (1 + 0.2 * random.standard_normal((ROUNDS, STEPS, 3)))
        row = rows(layers_of(facts(forward_s=noisy)))["forward", "conv", 1].in_step_s
        missed += not row.low <= 0.010 <= row.high
    assert missed <= 0.15 * 60


def test_nothing_measured_yet() -> None:
    result = layers_of(replace(facts(), calls=(), times=None, status="interrupted"))
    assert (result.rows, result.types, result.step_s, result.layers_over_whole) == ((), (), None, None)
