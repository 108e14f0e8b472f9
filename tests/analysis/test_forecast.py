"""Forecasts against closed forms, and the part of a set that memory serves against a simulated LRU."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

from loaderbench.analysis.forecast import calibrated, forecast_of, held_fraction, hits, score_of, widened
from loaderbench.machine import environment
from loaderbench.recording.forecast import (
    After,
    Asked,
    CheckFacts,
    CheckpointTimes,
    EpochRun,
    ForecastFacts,
    Memory,
    Past,
    SourceFacts,
    Starts,
    StateSteps,
    StepOrigin,
)
from loaderbench.recording.record import Estimate, Range

HERE = environment()
NOTHING = Past((), (), ())


def steps(
    value: float, half: float, origin: StepOrigin = "measured", run_id: str = "run", starts: Starts | None = None
) -> StateSteps:
    """A step in one state. `half`: half width as a fraction."""
    return StateSteps(Range(value, value * (1 - half), value * (1 + half)), origin, run_id, starts)


def source(**changes: object) -> SourceFacts:
    made = SourceFacts(
        kind="run",
        source_id="run",
        case=None,
        model="resnet50",
        mode="train",
        batch_size=100,
        device="a device",
        emulated=True,
        environment=HERE,
        cold=steps(0.5, 0.02, "measured", "run"),
        warm=steps(0.2, 0.01, "memory_arm", "run"),
        image_bytes=1000.0,
        num_images=1050,
        storage_kind="local",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def facts(asked: Asked, one: SourceFacts | None = None, **changes: object) -> ForecastFacts:
    made = ForecastFacts(asked, one or source(), HERE, Memory(10**12, "test"), NOTHING)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_training_is_the_sum_of_its_parts() -> None:
    asked = Asked(1050, 10, val_images=200, val_every=5, checkpoint_every=2)
    one = source(
        cold=steps(0.5, 0.02, "measured", "run", Starts((1.5, 0.9, 0.9), (2.0, 0.9, 0.9))),
        warm=steps(0.2, 0.01, "memory_arm", "run", Starts((5.0, 0.4, 0.6), (9.0, 0.7, 0.5))),
        process_s=2.0, open_s=1.0, build_s=0.5, first_steps_s=0.25,
    )  # fmt: skip
    validation = source(mode="infer", cold=steps(0.3, 0.0, "measured", "v"), warm=steps(0.1, 0.0, "measured", "v"))
    training = forecast_of(
        facts(asked, one, validation=validation, checkpoints=CheckpointTimes(1, (1.0, 2.0, 3.0)))
    ).training
    cold, warm = training.epoch_s["cold"], training.epoch_s["warm"]
    assert cold is not None and warm is not None and training.own is not None
    assert cold.own.value == pytest.approx(
        10 * 0.5 + 0.25 + 1.75
    )  # 50 images of the last batch, the first window's start
    assert warm.own.value == pytest.approx(10 * 0.2 + 0.10 + 0.45)  # 0.4 and 0.5: no more than the first batch
    assert (cold.own.low, cold.own.high) != (cold.own.value, cold.own.value)
    validated = (2 * 0.3) + (2 * 0.1)  # two of 200 images, the first from the storage
    expected = 3.5 + cold.own.value + 9 * warm.own.value + validated + 5 * 2.0
    assert training.own.value == pytest.approx(expected)
    assert training.parts["checkpoints"] == Range(10.0, 5.0, 15.0)
    assert sum(part.value for part in training.parts.values()) == pytest.approx(expected)


def test_a_start_costs_no_more_than_the_wait_for_its_first_batch() -> None:
    def starts(extra: float, *, epochs: int = 1, first_steps_s: float | None = 0.0) -> Range:
        one = steps(0.2, 0.01, "measured", "run", Starts((extra,), (0.1,)))
        asked = facts(Asked(1000, epochs), source(cold=one, warm=one, first_steps_s=first_steps_s))
        return forecast_of(asked).training.parts["epoch_starts"]

    assert starts(0.8) == Range(0.1, 0.1, 0.8)
    assert starts(-0.8).value == 0
    assert starts(0.8, first_steps_s=None) == Range(0.8, 0.1, 0.8)  # what is longer may be the device's first steps
    assert starts(0.8, epochs=2) == Range(0.2, 0.1, 1.6)  # the only window also started the workers


def test_from_memory_alone_the_workers_are_started_once() -> None:
    one = steps(0.2, 0.01, "measured", "run", Starts((3.0, 0.5), (3.0, 0.5)))
    training = forecast_of(facts(Asked(1000, 4), source(cold=None, warm=one, first_steps_s=0.0))).training
    assert training.first is not None and training.epoch_s["cold"] is None
    assert training.first.own.value == pytest.approx(10 * 0.2 + 3.0)
    assert training.parts["epoch_starts"].value == pytest.approx(3.0 + 3 * 0.5)


def simulated(held: float, num: int = 4000, epochs: int = 6) -> float:
    """Part of the reads that an LRU cache of `held` of the images serves, from the third epoch on."""
    random, cache, found, reads = np.random.default_rng(7), OrderedDict[int, None](), 0, 0
    for epoch in range(epochs):
        for image in random.permutation(num).tolist():
            if epoch >= 2:
                reads += 1
                found += image in cache
            cache[image] = None
            cache.move_to_end(image)
            if len(cache) > held * num:
                cache.popitem(last=False)
    return found / reads


@pytest.mark.parametrize("held", [0.1, 0.3, 0.5, 0.8, 0.95])
def test_what_an_lru_cache_serves_is_the_low_end(held: float) -> None:
    value, low, high = hits(held)
    assert low == pytest.approx(simulated(held), abs=0.02)
    assert high == held and low <= value <= high


def test_a_set_that_memory_holds_in_part_lies_between_both_epochs() -> None:
    asked = Asked(1_000_000, 5)  # 1 GB
    training = forecast_of(facts(asked, memory=Memory(500_000_000, "test"))).training
    cold, warm = training.epoch_s["cold"], training.epoch_s["warm"]
    assert cold is not None and warm is not None
    low = 0.5 + 0.5 * math.log(0.5)
    assert (warm.from_memory.low, warm.from_memory.high) == pytest.approx((low, 0.5))
    assert 10_000 * 0.2 < warm.own.value < cold.own.value
    assert warm.own.value == pytest.approx(10_000 * (0.2 + (1 - (low + 0.5) / 2) * 0.3))


@pytest.mark.parametrize(("memory", "expected"), [(None, None), (500, 0.5), (5000, 1.0)])
def test_part_that_memory_holds(memory: int | None, expected: float | None) -> None:
    assert held_fraction(Memory(memory, "test"), 10, 100.0) == expected
    assert held_fraction(Memory(memory, "test"), 10, None) is None


def test_storages_that_are_asked_at_each_open_reach_to_the_cold_step() -> None:
    own = {}
    for kind in ("local", "nfs"):
        epoch = forecast_of(facts(Asked(1000, 2), source(storage_kind=kind))).training.epoch_s["warm"]
        assert epoch is not None
        own[kind] = epoch.own.high
        assert epoch.s.high is not None and epoch.own.high is not None
        assert epoch.s.high == pytest.approx(
            epoch.own.value * math.exp(math.hypot(math.log(epoch.own.high / epoch.own.value), 0.10))
        )  # no more than the drift beyond it
    assert own["local"] == pytest.approx(10 * 0.2 * 1.01) and own["nfs"] == pytest.approx(10 * 0.5 * 1.02)


def test_what_is_not_known_is_none() -> None:
    no_warm = forecast_of(facts(Asked(1000, 2), source(warm=None))).training
    assert no_warm.epoch_s["warm"] is None and no_warm.s is None and no_warm.parts == {}
    once = forecast_of(facts(Asked(1000, 1), source(warm=None))).training
    assert once.s is not None
    unknown_size = forecast_of(facts(Asked(1000, 2), source(image_bytes=None))).training
    assert unknown_size.epoch_s["warm"] is None and unknown_size.s is None
    same = steps(0.5, 0.02, "no_files", "run")
    no_files = forecast_of(facts(Asked(1000, 2), source(cold=same, warm=same, image_bytes=None)))
    assert no_files.training.s is not None and no_files.held is None
    no_cold = forecast_of(facts(Asked(1000, 3), source(cold=None))).training
    assert no_cold.epoch_s["cold"] is None and no_cold.own is not None
    assert no_cold.own.value == pytest.approx(3 * 10 * 0.2)


# -- intervals -------------------------------------------------------------------------------------------


def test_drift_is_assumed_until_enough_epochs_were_run_here() -> None:
    own = Range(100.0, 97.0, 104.0)
    wide = widened(own, None)
    assert wide.low == pytest.approx(100 * math.exp(-math.hypot(math.log(100 / 97), 0.10)))
    assert wide.high == pytest.approx(100 * math.exp(math.hypot(math.log(1.04), 0.10)))
    assert calibrated(Past((1.0,) * 18, (0.0,) * 18, (True,) * 18)) is None
    assert calibrated(Past((3.0, *(1.0,) * 18), (0.0,) * 19, (True,) * 19)) == 3.0
    narrow = widened(own, 2.0)
    assert narrow.high == pytest.approx(100 * math.exp(2 * (math.log(1.04) + 0.01)))


def test_the_factor_is_the_split_conformal_quantile() -> None:
    scores = tuple(float(number) for number in range(1, 40))  # ⌈40 · 0.95⌉ = 38th of 39
    assert calibrated(Past(scores, (0.0,) * 39, (True,) * 39)) == 38.0


def test_calibrated_intervals_hold_as_often_as_they_say() -> None:
    random = np.random.default_rng(3)
    held = []
    for _ in range(300):
        spread = random.uniform(0.005, 0.05, 61)
        truth = np.exp(random.standard_t(4, 61) * (spread + 0.01))
        owns = [Range(1.0, 1 - one, 1 + one) for one in spread]
        scores = [score_of(own, float(value)) for own, value in zip(owns, truth, strict=True)]
        past = tuple(one for one in scores[:60] if one is not None)
        interval = widened(owns[60], calibrated(Past(past, (0.0,) * 60, (True,) * 60)))
        assert interval.low is not None and interval.high is not None
        held.append(interval.low <= truth[60] <= interval.high)
    assert 0.91 <= np.mean(held) <= 0.99


def test_a_score_uses_the_side_on_which_it_missed() -> None:
    own = Range(10.0, 9.0, 12.0)
    assert score_of(own, 10 * math.e) == pytest.approx(1 / (math.log(1.2) + 0.01))
    assert score_of(own, 10 / math.e) == pytest.approx(1 / (math.log(10 / 9) + 0.01))
    assert score_of(own, 0.0) is None


# -- after a change, and the check -------------------------------------------------------------------------


def test_advice_shortens_the_steps_of_its_state() -> None:
    gain = Estimate(2.0, 1.6, 2.5, "ratio", 5, "test")
    found = forecast_of(facts(Asked(1000, 2), after=After("workers 16", speedup=gain, state="cold")))
    assert found.after is not None and found.after_label == "workers 16"
    cold, warm = found.after.epoch_s["cold"], found.after.epoch_s["warm"]
    assert cold is not None and warm is not None
    assert cold.own.value == pytest.approx(10 * 0.25)
    assert cold.own.high is not None and cold.own.high >= 10 * 0.25 * 1.25
    assert warm.own.low is not None and warm.own.high is not None  # from as much to nothing
    assert 0 < warm.own.low <= 10 * 0.2 / 2.5 and warm.own.high >= 10 * 0.2


def test_a_gain_that_is_hardly_known_makes_no_negative_times() -> None:
    gain = Estimate(5.0, 1.1, 20.0, "ratio", 5, "test")
    found = forecast_of(facts(Asked(1000, 2), after=After("workers 16", speedup=gain, state="cold"))).after
    assert found is not None and found.s is not None and found.s.low is not None and found.own is not None
    assert 0 < found.s.low < found.own.value


def test_a_first_epoch_is_scored_only_where_memory_was_emptied() -> None:
    runs = (
        EpochRun("train", 1050, 6.0, 0.0, "cold"),
        EpochRun("train", 1050, 2.1, 1.0, "warm"),
        EpochRun("train", 1050, 6.0, 0.4, "cold"),
        EpochRun("train", 1050, 6.0, 0.4, "warm"),
    )
    check = CheckFacts(runs, num_images=1050, training_s=20.0)
    found = forecast_of(facts(Asked(9_999_999, 2), source(process_s=1.0, open_s=1.0), check=check))
    cold, warm, emptied, lost = found.checked
    assert cold.predicted is not None and cold.predicted.own.value == pytest.approx(5.25)  # of the set's own size
    wide = math.log((10 * 0.5 * 1.02 + 0.5 * 1.02) / 5.25)  # the short batch takes at most a whole step
    assert cold.score == pytest.approx(math.log(6.0 / 5.25) / (wide + 0.01))
    assert warm.score is not None and warm.not_scored is None
    assert emptied.score is None and "still held" in (emptied.not_scored or "")
    assert lost.score is not None and lost.not_scored is None  # that memory holds the set is part of the forecast
    assert found.checked_training is None  # two of its epochs say nothing


def test_a_check_is_predicted_for_the_images_that_it_ran() -> None:
    """A data set that has grown since the run."""
    runs = (EpochRun("train", 2100, 11.0, 0.0, "cold"), EpochRun("train", 2100, 4.0, 1.0, "warm"))
    check = CheckFacts(runs, num_images=1050, training_s=20.0)
    found = forecast_of(facts(Asked(1050, 2), source(process_s=1.5, open_s=0.5), check=check))
    assert [one.predicted.own.value for one in found.checked if one.predicted] == pytest.approx([10.5, 4.2])
    assert found.checked_training is not None
    predicted, measured = found.checked_training
    assert (predicted.value, measured) == pytest.approx((1.5 + 0.5 + 10.5 + 4.2, 20.0))


def test_a_first_epoch_without_a_view_of_memory_is_not_scored() -> None:
    runs = (EpochRun("train", 1050, 6.0, None, "cold"),)
    found = forecast_of(facts(Asked(1050, 1), check=CheckFacts(runs, num_images=1050)))
    assert found.checked[0].score is None and "is unknown" in (found.checked[0].not_scored or "")
    same = steps(0.5, 0.02, "no_files", "run")
    without_files = source(cold=same, warm=same, image_bytes=None)
    found = forecast_of(facts(Asked(1050, 1), without_files, check=CheckFacts(runs, num_images=1050)))
    assert found.checked[0].score is not None


def test_the_validation_shares_the_memory() -> None:
    validation = source(mode="infer")
    asked = Asked(1000, 2, val_images=1000)
    found = forecast_of(facts(asked, validation=validation, memory=Memory(1_000_000, "test")))
    assert found.held is not None and found.held.high == pytest.approx(0.5)
    warm = found.training.epoch_s["warm"]
    assert warm is not None and warm.from_memory == found.held
