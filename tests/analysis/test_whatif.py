"""What-ifs against simulated runs, whose changed selves are simulated too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loaderbench.analysis.price import saved
from loaderbench.analysis.whatif import whatif_of
from loaderbench.cases.options import Price, WhatifOptions
from loaderbench.cases.study import check_whatif
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import DecoderProbe, PrepProbe, RankRecording, Run
from loaderbench.recording.rank_place import RankPlace
from loaderbench.recording.record import Estimate
from loaderbench.recording.store import Store
from loaderbench.recording.whatif import Whatif, WhatifFacts
from loaderbench.reporting.whatif import saves_words
from loaderbench.studies.measure import judged
from loaderbench.studies.whatif import predicted
from tests.analysis.event_model import FILE_BYTES, NUM_SAMPLES, Pipeline, true_step_ms
from tests.analysis.judging import run_of

BATCH_BYTES = NUM_SAMPLES * FILE_BYTES
PREP = Pipeline(tells_more=True, workers=2, decode_ms=120, latency_ms=10, busy_ms=20, jitter=0.1)
LATENCY = Pipeline(tells_more=True, workers=2, decode_ms=20, latency_ms=150, busy_ms=20, jitter=0.1)
SHARED = Pipeline(tells_more=True, workers=2, decode_ms=60, storage_ms=15, busy_ms=10, jitter=0.1)
BOUND = Pipeline(tells_more=True, workers=4, decode_ms=20, storage_ms=40, busy_ms=10, jitter=0.1)
FED = Pipeline(tells_more=True, workers=4, decode_ms=60, busy_ms=40, jitter=0.1)


def facts(run: Run, **options: Any) -> WhatifFacts:
    return predicted(run, judged(run), WhatifOptions(**options), Store("nowhere"))


def whatif(run: Run, **options: Any) -> Whatif:
    return whatif_of(facts(run, **options))


def then_ms(found: Whatif) -> float:
    return found.then.step_s.value * 1e3


@pytest.mark.parametrize(
    ("pipe", "workers", "limit"),
    [
        (PREP, 4, "prep"),
        (PREP, 1, "prep"),
        (PREP, 16, "compute"),
        (LATENCY, 4, "storage"),
        (LATENCY, 16, "compute"),
        (SHARED, 3, "prep"),
        (SHARED, 8, "storage"),
        (BOUND, 2, "storage"),
        (BOUND, 8, "storage"),
        (FED, 2, "compute"),
        (FED, 1, "prep"),
    ],
)
def test_other_workers_take_what_a_simulation_of_them_takes(pipe: Pipeline, workers: int, limit: str) -> None:
    found, truth_ms = whatif(run_of(pipe), workers=workers), true_step_ms(pipe, workers=workers)
    # What few readers tell of many is known less well: the simulated runs have no probe of their storage.
    assert then_ms(found) == pytest.approx(truth_ms, rel=0.05 if workers <= 8 else 0.1)
    assert found.then.step_s.low is not None and found.then.step_s.high is not None
    assert found.then.step_s.low * 1e3 <= truth_ms <= found.then.step_s.high * 1e3
    assert found.gain.value == pytest.approx(true_step_ms(pipe) / truth_ms, rel=0.1)
    assert limit in (found.limit.bottleneck, *found.limit.joint)


def test_a_deeper_queue_is_filled_before_it_is_timed() -> None:
    # 256 workers of 2 batches each: what they have made ahead must not pass for what they make.
    pipe = Pipeline(tells_more=True, workers=4, decode_ms=20, storage_ms=40, busy_ms=10)
    assert then_ms(whatif(run_of(pipe), workers=256, prefetch=4)) == pytest.approx(40.0, rel=0.1)


def test_a_slower_storage_takes_as_much_longer() -> None:
    run = run_of(BOUND)
    rate = BATCH_BYTES / (true_step_ms(BOUND) / 1e3)
    found = whatif(run, storage=f"{rate / 2e6:.3f}MB/s")
    assert found.gain.value == pytest.approx(0.5, rel=0.05)
    assert found.limit.bottleneck == "storage"


def test_a_faster_storage_gives_no_more_than_the_rest_takes() -> None:
    run = run_of(BOUND)
    found = whatif(run, storage="1000GB/s")
    assert then_ms(found) == pytest.approx(true_step_ms(BOUND, storage_ms=0.0), rel=0.1)
    assert whatif(run, storage="1000x").gain.value == pytest.approx(found.gain.value, rel=0.1)


def test_the_device_s_time_is_taken_and_what_feeds_it_stays() -> None:
    run = run_of(FED)
    assert then_ms(whatif(run, device="100ms")) == pytest.approx(100.0, rel=0.02)
    fast = whatif(run, device="1ms")
    assert then_ms(fast) == pytest.approx(true_step_ms(FED, busy_ms=1.0), rel=0.05)
    assert fast.limit.bottleneck == "prep"


def test_several_changes_are_one() -> None:
    found = whatif(run_of(PREP), workers=8, device="60ms")
    assert then_ms(found) == pytest.approx(true_step_ms(PREP, workers=8, busy_ms=60.0), rel=0.05)


def test_equal_ranks_wait_for_nobody_and_share_a_storage_that_they_are_given() -> None:
    run = run_of(Pipeline(tells_more=True, workers=2, decode_ms=20, busy_ms=40))
    found = whatif(run, ranks=64)
    assert found.ranks is not None and found.ranks.waits_fraction.value < 0.01
    assert found.gain.value == pytest.approx(64, rel=0.02)
    rate = 64 * BATCH_BYTES / 0.080
    shared = whatif(run, ranks=64, storage=f"{rate / 1e9:.4f}GB/s")
    assert then_ms(shared) == pytest.approx(80.0, rel=0.05)
    assert any("each gets" in line for line in shared.assumed)


def test_uneven_ranks_wait_for_the_slowest() -> None:
    # The more ranks, the slower the slowest; what lies ready evens out a part (equal work: test_replay.py).
    pipe = Pipeline(tells_more=True, workers=0, decode_ms=60, busy_ms=1, jitter=0.5)
    run = run_of(pipe)
    few, many = (whatif(run, ranks=ranks).ranks for ranks in (4, 256))
    assert few is not None and many is not None
    assert 0 < few.waits_fraction.value < many.waits_fraction.value < 0.5
    assert many.alone_s.value * 1e3 == pytest.approx(true_step_ms(pipe), rel=0.05)


def test_what_can_be_measured_is_wanted_of_the_ledger() -> None:
    run = run_of(PREP)
    wanted = facts(run, workers=4, prefetch=3).wanted
    assert wanted == run.case.changed(workers=4, prefetch=3)
    alone = facts(run, device="12ms")
    assert alone.wanted is None and "wanted" in alone.missing
    assert facts(run, ranks=2).wanted is None


def test_a_decoder_costs_what_the_probe_of_the_run_says() -> None:
    run = run_of(PREP)
    assert run.recording is not None
    half = {"pillow": DecoderProbe((0.002,) * 8, None), "turbojpeg": DecoderProbe((0.001,) * 8, None)}
    handed = {"float32": {"private": 0.0, "shared": 0.0}}
    run.recording.facts = replace(run.recording.facts, prep_probe=PrepProbe(2, half, handed))
    found = whatif(run, decoder="turbojpeg")
    assert found.gain.value == pytest.approx(true_step_ms(PREP) / true_step_ms(PREP, decode_ms=60.0), rel=0.08)
    assert found.wanted is not None and found.wanted.feed.decoder == "turbojpeg"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "say what to change"),
        ({"workers": 0}, "in the main process"),
        ({"workers": -1}, "at least 0"),
        ({"workers": 9999}, "at most 1024"),
        ({"prefetch": 0}, "at least 1"),
        ({"ranks": 1}, "at least 2"),
        ({"decoder": "nosuch"}, "unknown decoder"),
        ({"decoder": "turbojpeg"}, "did not time this decoder"),
        ({"device": "emulated:nosuch"}, "nosuch"),
        ({"device": "cpu"}, "nothing tells its times"),
        ({"storage": "quick"}, "a rate such as 500M/s"),
        ({"storage": "0x"}, "a factor from"),
        ({"storage": "0B/s"}, "from 1B/s"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    run = run_of(PREP)
    with pytest.raises(ConfigError, match=says):
        check_whatif(WhatifOptions(**options))
        predicted(run, judged(run), WhatifOptions(**options), Store(tmp_path))


def test_a_loader_that_tells_nothing_is_refused_with_the_reason() -> None:
    run = run_of(Pipeline(tells_more=True, workers=2, decode_ms=120, busy_ms=20, tells_spans=False))
    with pytest.raises(ConfigError, match="does not tell when a worker began and ended a batch"):
        facts(run, workers=4)
    assert whatif(run, ranks=4).ranks is not None


def test_a_run_that_was_one_of_several_ranks_is_no_rank_of_others() -> None:
    run = run_of(PREP)
    assert run.recording is not None
    run.recording.rank = RankRecording(RankPlace(0, 4, 0, "one", "torchrun"), ())
    with pytest.raises(ConfigError, match="itself one of 4 ranks"):
        facts(run, ranks=8)
    assert whatif(run, workers=4).gain.value > 1.5


@pytest.mark.parametrize(
    ("gain", "hour", "sentence"),
    [
        # 2.40 × (1 − 1 ÷ 2), in 730 hours 876; half as fast takes as much again
        (2.0, 1.2, "At 2.40 an hour, the same work would save 1.20 (0.80–1.44) an hour, 876 a month."),
        (0.5, -2.4, "At 2.40 an hour, the same work would cost 2.40 (1.44–3.36) an hour more, 1,752 a month."),
    ],
)
def test_what_a_change_saves_at_a_price(gain: float, hour: float, sentence: str) -> None:
    low, high = {2.0: (1.5, 2.5), 0.5: (1 / 2.4, 1 / 1.6)}[gain]
    saves = saved(2.4, Estimate(gain, low, high, "ratio", 9, "made up"))
    assert saves.hour.value == pytest.approx(hour) and saves.month.value == pytest.approx(730 * hour)
    assert saves_words(Price(2.4), saves) == sentence
