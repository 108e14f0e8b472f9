"""What stamps and counts name: epochs by hand, and pipelines with a known cause."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis import watched_counts
from loaderbench.analysis.watched_notes import Grown, private_growth
from loaderbench.cases.arms import Arm
from loaderbench.pipeline.gains import Replays
from loaderbench.pipeline.stages import Batches, Stages
from loaderbench.recording.facts import (
    WatchedAffinity,
    WatchedDelivery,
    WatchedEpoch,
    WatchedFacts,
    WatchedLoader,
    WatchedMemory,
    WatchedSeconds,
    WatchedSettings,
)

NO_SECONDS = WatchedSeconds(0, 0, 0, 0, 0, 0)
SETTINGS = WatchedSettings(
    persistent=False, pin_memory=False, collate="default_collate", sampler="Sampler", iterable=False, forked=True
)


def seen_of(settings: WatchedSettings = SETTINGS, epochs: tuple[WatchedEpoch, ...] = (), **loader: Any) -> WatchedFacts:
    main = WatchedLoader("DataLoader", "Photos", 100, 8, 2, 2, 1, 100, NO_SECONDS)
    return WatchedFacts(
        "train.py", (replace(main, **loader),), 10.0, 0.0, "burst", 0, 0.0, None, None, False,
        settings=settings, epochs=epochs,
    )  # fmt: skip


def replays_of(work: np.ndarray, issue: float, by: np.ndarray, *, workers: int = 2, **more: Any) -> Replays:
    num = len(work)
    columns = {"prep": work, "issue": np.full(num, issue), "cpu": np.full(num, more.pop("cpu", 0.0))}
    stages = Stages(
        workers, 2 * workers, True, 0, True, Batches.of(num, **columns), np.arange(num) // 100,
        np.ones(num, dtype=bool), np.full(num // 100, 0.02), 0.02, more.pop("processors", 4.0), worker=by, **more,
    )  # fmt: skip
    return Replays(SimpleNamespace(real=stages, arms={}))  # type: ignore[arg-type]


def words(replays: Replays | None, seen: WatchedFacts) -> dict[str, Any]:
    return {one.word: one for one in watched_counts.counted_details(replays, seen)}


BY = np.arange(400) % 2


# -- epochs ------------------------------------------------------------------------------------------------------


def epochs_of(**parts: float) -> tuple[WatchedEpoch, ...]:
    """Ten of 100 batches, 2 s without their starts."""
    one = WatchedEpoch(0.1, 0.1, 1.0, 1.0, 0.0, 100, 0.0, 0.0, None)
    return (replace(one, **parts),) * 10


def test_workers_that_are_made_anew() -> None:
    found = words(None, seen_of(epochs=epochs_of(opening=0.5, first=1.54, stop=0.2)))
    # an epoch of 4.04 s spares 0.5 + 0.2 + 1.54 less the 36 ms in which two workers make a batch
    spared = 0.5 + 0.2 + 1.54 - 2 * 1.8 / 100
    gain = found["epoch_start"].gain
    assert found["epoch_start"].figures["of"] == "workers"
    assert gain.value == pytest.approx(40.4 / (40.4 - 9 * spared), rel=0.01)
    assert gain.low < gain.value and gain.high >= 4.04 / (4.04 - spared) * 0.99  # later epochs alone


def test_a_samplers_start_stays_with_workers_that_stay() -> None:
    parts = epochs_of(opening=2.1, sampler=2.0)
    found = words(None, seen_of(epochs=parts))["epoch_start"]
    assert found.figures["of"] == "sampler"
    assert found.gain.value == pytest.approx(42 / (42 - 9 * 2.0), rel=0.01)
    kept = watched_counts.workers_start_s(parts, seen_of(epochs=parts))
    assert kept == pytest.approx([0.1 + 0.1 - 0.04] * 10)


def test_an_iterable_data_set_begins_anew_in_any_case() -> None:
    settings = replace(SETTINGS, iterable=True)
    parts = epochs_of(opening=0.05, first=3.0, first_made=2.9)
    kept = watched_counts.workers_start_s(parts, seen_of(settings, parts))
    assert kept == pytest.approx([0.05 + 0.1] * 10)


def test_persistent_workers_and_single_epochs_say_nothing() -> None:
    parts = epochs_of(opening=0.5, first=1.5)
    assert not words(None, seen_of(replace(SETTINGS, persistent=True), parts))
    assert not words(None, seen_of(epochs=parts[:1]))


# -- delivery, workers, order, affinity --------------------------------------------------------------------------


def test_many_objects_a_batch() -> None:
    late = np.full(400, 0.04)
    replays = replays_of(np.full(400, 0.001), 0.005, BY, late=late)
    found = words(replays, seen_of(delivered=WatchedDelivery(113, 8, 1000)))["delivery"]
    # a step of 45 ms would take 5 + 40 · 8 ÷ 113 ms; replayed against the pipeline as it is recorded, of 5 ms
    assert found.gain.value == pytest.approx(45 / (5 + 40 * 8 / 113), rel=0.02)
    assert not words(replays, seen_of(delivered=WatchedDelivery(3, 3, 1000)))


def test_threads_that_deliver_many_objects_hold_up_the_script_s_step() -> None:
    """Beside them it takes 20 ms; alone, in bursts, 5. Nearly all of the processors' work is delivering."""
    replays = replays_of(np.full(400, 0.001), 0.020, BY, late=np.full(400, 0.04), cpu=0.08)
    alone = replays.fitted.real.with_(issue=0.005)
    replays = Replays(SimpleNamespace(real=replays.fitted.real, arms={Arm.DEVICE: alone}))  # type: ignore[arg-type]
    found = words(replays, seen_of(delivered=WatchedDelivery(1000, 1, 1000)))["delivery"]
    assert found.gain.value == pytest.approx(60 / 5, rel=0.03)


def test_one_worker_that_is_slow() -> None:
    replays = replays_of(np.where(BY == 1, 0.04, 0.01), 0.002, BY)
    found = words(replays, seen_of(by_worker=(200, 200)))["one_worker"]
    assert (found.figures["slow"], found.figures["times"]) == (1, pytest.approx(4.0))
    assert found.gain.value == pytest.approx(20 / 5, rel=0.05)


def test_stragglers_and_their_order() -> None:
    random = np.random.default_rng(1)
    work = np.where(random.random(400) < 0.04, 0.4, 0.008)
    found = words(replays_of(work, 0.012, BY), seen_of(by_worker=(200, 200)))
    assert found["order"].gain.value > 1.3
    assert not words(replays_of(work, 0.012, BY), seen_of(replace(SETTINGS, in_order=False), by_worker=(200, 200)))
    alike = random.gamma(9.0, 0.002, 400)
    assert "order" not in words(replays_of(alike, 0.012, BY), seen_of(by_worker=(200, 200)))


def test_half_of_the_processors() -> None:
    replays = replays_of(np.full(400, 0.02), 0.001, BY, cpu=0.034, processors=1.0)
    seen = replace(seen_of(by_worker=(200, 200)), affinity=WatchedAffinity(1, 1, 2))
    found = words(replays, seen)["affinity"]
    assert found.gain.value == pytest.approx(2.0, rel=0.03)
    assert not words(replays, replace(seen, affinity=WatchedAffinity(2, 2, 2)))
    assert not words(replays, replace(seen, affinity=WatchedAffinity(1, 2, 2)))


# -- memory --------------------------------------------------------------------------------------------------------


def readings(*megabytes: int) -> list[WatchedMemory]:
    return [WatchedMemory(100 * number, 1, 1 << 30, one << 20, 2) for number, one in enumerate(megabytes)]


def test_private_memory_that_grows() -> None:
    assert private_growth(readings(100, 200, 300)) == Grown(100 << 20, 300 << 20, 1000 * (1 << 20), goes_on=True)
    assert private_growth(readings(100, 290, 300, 301, 301)) == Grown(
        100 << 20, 301 << 20, pytest.approx(1900 * (1 << 20)), goes_on=False
    )


@pytest.mark.parametrize("of", [(100, 110, 120), (100, 300, 100, 300), (100, 300), (10, 15, 20)])
def test_memory_that_does_not(of: tuple[int, ...]) -> None:
    assert private_growth(readings(*of)) is None
