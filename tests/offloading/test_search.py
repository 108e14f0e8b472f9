"""The search for the best thresholds, against the full sweep of the replay."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from offload_traces import chain

from loaderbench.cases.case import Mode, Step
from loaderbench.offloading.plan import least_cap, ledger, plan_for
from loaderbench.offloading.replay import OPERATOR, replay
from loaderbench.offloading.search import Choice, Search, candidate, candidates, thresholds
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.recording.offload_study import OffloadSetting
from loaderbench.running.offload_trace import saved_trace

STEP_S = 0.02


@cache
def traced(model: str, mode: Mode, batch_size: int, input_size: int) -> SavedTrace:
    step = Step(model, mode, "fp32", "cpu", batch_size, input_size)
    return saved_trace(step, 0, on_accelerator=True)


@cache
def choice_of(trace_key: tuple[str, Mode, int, int], part: float) -> Choice:
    """The settings in a memory between the least there must be (0) and what the batch needs by itself (1)."""
    trace = traced(*trace_key)
    full, least = ledger(trace, plan_for(trace)).peak_bytes, least_cap(trace)
    memory = round(least + part * (full - least))
    return candidates(trace, memory, memory)


def other_card(trace: SavedTrace, seed: int) -> SavedTrace:
    """The same step where operators take other times than their FLOPs say: those without a formula some too."""
    rows, ran = trace.rows.copy(), trace.rows[:, 0] == OPERATOR
    strays = np.random.default_rng(seed).lognormal(0, 0.5, int(ran.sum()))
    rows[ran, 1] = (rows[ran, 1] * strays + 0.02 * rows[ran, 1].max()).astype(np.int64)
    return replace(trace, rows=rows)


def searched(trace: SavedTrace, truth: SavedTrace, choice: Choice, ratio: float) -> tuple[float, int]:
    """(the chosen setting's time ÷ the best of the full sweep, settings that were timed) on a card where copying all
    saved bytes takes `ratio` steps."""
    rate = int(trace.saved[:, 0].sum()) / STEP_S / ratio
    sweep = {one.setting: replay(truth, one.plan, step_s=STEP_S, link_bytes_per_s=rate).step_s for one in choice.found}
    search, seconds = Search(trace, choice, hides=True), {}
    while (one := search.next(seconds)) is not None:
        assert one.setting not in seconds
        seconds[one.setting] = sweep[one.setting]
    return min(seconds.values()) / min(sweep.values()), len(seconds)


QUICK: list[tuple[str, Mode, int, int]] = [("squeezenet1_1", "train", 32, 96), ("vgg11", "infer", 8, 64)]
SLOW: list[tuple[str, Mode, int, int]] = [
    ("resnet18", "train", 64, 224), ("resnet18", "train", 256, 128), ("resnet50", "train", 64, 224),
    ("vgg16", "train", 32, 224), ("densenet121", "train", 16, 224), ("squeezenet1_1", "train", 128, 224),
    ("vgg16", "infer", 8, 224), ("resnet18", "infer", 64, 224),
]  # fmt: skip


def check(trace_key: tuple[str, Mode, int, int], part: float, ratio: float) -> None:
    trace, choice = traced(*trace_key), choice_of(trace_key, part)
    above, num_timed = searched(trace, trace, choice, ratio)
    assert above <= 1.03 and num_timed <= max(2, choice.num_settings / 3)


@pytest.mark.parametrize("trace_key", QUICK, ids=str)
@pytest.mark.parametrize("part", [0.05, 0.4, 0.8])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_the_chosen_setting_is_the_sweeps_best_for_a_third_of_its_trials(
    trace_key: tuple[str, Mode, int, int], part: float, ratio: float
) -> None:
    check(trace_key, part, ratio)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trace_key", SLOW, ids=str)
def test_so_it_is_for_larger_models_batches_and_caps(trace_key: tuple[str, Mode, int, int]) -> None:
    for part in (0.05, 0.3, 0.7):
        for ratio in (0.3, 1.0, 3.0):
            check(trace_key, part, ratio)


@pytest.mark.parametrize("seed", range(3))
def test_a_card_that_strays_from_the_flops_costs_little(seed: int) -> None:
    """The replays that lead the search are then wrong, and the times correct them."""
    key = QUICK[0]
    trace, choice = traced(*key), choice_of(key, 0.4)
    above, num_timed = searched(trace, other_card(trace, seed), choice, 1.0)
    assert above <= 1.05 and num_timed <= choice.num_settings / 3


def test_where_copies_hide_nowhere_the_least_moved_is_the_best() -> None:
    key = QUICK[0]
    trace, choice = traced(*key), choice_of(key, 0.4)
    search, seconds = Search(trace, choice, hides=False), {}
    while (one := search.next(seconds)) is not None:
        seconds[one.setting] = STEP_S + one.moved_bytes / 1e9
    least = min(choice.found, key=lambda one: one.moved_bytes)
    assert seconds[least.setting] == min(seconds.values()) and len(seconds) <= choice.num_settings / 3


def test_a_setting_that_fails_is_not_tried_again() -> None:
    trace = chain([50, 30, 80, 60, 40, 90], [3, 1, 4, 1, 5, 9])
    choice = candidates(trace, 200, 200)
    search, seconds = Search(trace, choice, hides=True), {}
    while (one := search.next(seconds)) is not None:
        seconds[one.setting] = None
    assert len(seconds) == choice.budget


def test_thresholds_rise_from_all_to_none_and_each_reaches_less() -> None:
    trace = chain([1500, 3000, 3500, 10_000, 20_000], [1, 1, 1, 1, 1])
    assert thresholds(trace) == (0, 2048, 4096, 16384, None)  # 1,024 reaches all, 8,192 what 4,096 does


def test_settings_of_one_plan_count_once() -> None:
    trace = chain([100, 100, 100], [1, 1, 1])
    choice = candidates(trace, 10_000, 10_000)  # everything fits, so that late thresholds move nothing, as none does
    assert choice.num_settings > len(choice.found)
    assert choice.found[0].setting == OffloadSetting(None, 0.0) and choice.found[0].moved_bytes == 0
    assert choice.found[1].setting == OffloadSetting(0, 0.0)
    plans = [one.plan for one in choice.found]
    assert all(plan not in plans[:number] for number, plan in enumerate(plans))


def test_a_setting_sets_in_at_its_fraction_of_the_memory() -> None:
    trace = chain([100, 100, 100, 100], [1, 1, 1, 1])
    moved = [candidate(trace, OffloadSetting(0, after), 400, 400).ledger.num_evicted for after in (0.0, 0.5, 1.0)]
    assert moved[0] > moved[1] > moved[2]
