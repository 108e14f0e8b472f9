"""Simulated pipelines are what their kind says, by what is true of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipeline import truths
from tests.pipeline.simulated import KINDS, RANDOM, TYPICAL, WORKERS, drawn, pipelines
from tests.pipeline.truths import AS_IT_IS, Changed, causes_of, crews, true_gain, true_s

LIMITS = {"bandwidth": "storage", "latency": "storage", "cpu": "prep", "oversubscribed": "prep", "others": "others",
          "tail": "tail", "stalls": "stalls", "device": "compute", "launch": "launch", "transfer": "transfer",
          "serial": "prep", "threads": "prep", "delivery": "prep"}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_typical_pipeline_gains_by_its_cause(kind: str) -> None:
    pipe = TYPICAL[kind]
    assert true_gain(pipe, LIMITS[kind]) > 1.2
    # compute and what it hides, or a part of the cause, are worth as much at most
    parts = {"storage", "prep", "compute"} if kind in ("tail", "stalls", "others", "transfer", "serial") else set()
    for cause in set(causes_of(pipe)) - {LIMITS[kind]} - parts:
        assert true_gain(pipe, cause) < true_gain(pipe, LIMITS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_random_pipelines_are_of_their_kind_and_drawn_again_alike(kind: str) -> None:
    assert set(RANDOM) == set(KINDS)
    for number in range(3):
        pipe = drawn(kind, number)
        assert pipe == drawn(kind, number) and pipe != drawn(kind, number + 1) and pipe != drawn(kind, number, seed=1)
        assert pipe.tells_all and pipe.workers == (0 if kind == "serial" else WORKERS)
        assert true_s(pipe) > 0
        assert LIMITS[kind] in causes_of(pipe)
    assert len(list(pipelines(2))) == 2 * len(KINDS)


def test_workers_help_where_they_wait_and_not_where_they_share() -> None:
    twice = {kind: true_s(TYPICAL[kind]) / true_s(TYPICAL[kind], Changed(workers=8)) for kind in KINDS}
    assert twice["latency"] == pytest.approx(2.0, rel=0.02)
    for kind in ("bandwidth", "oversubscribed", "device", "launch", "transfer"):
        assert twice[kind] == pytest.approx(1.0, rel=0.02)
    assert all(twice[kind] > 1.1 for kind in ("cpu", "others", "tail", "stalls", "threads"))
    assert crews(TYPICAL["serial"]) == (0, 1, 2, 4, 8)


def test_a_storage_of_twice_the_rate() -> None:
    bound = TYPICAL["bandwidth"]
    assert true_s(bound, Changed(storage=2.0)) == pytest.approx(true_s(bound) / 2, rel=0.02)
    assert true_s(bound, Changed(storage=0.5)) == pytest.approx(true_s(bound) * 2, rel=0.02)
    few = Changed(storage=2.0).of(TYPICAL["tail"])
    assert few.tail == TYPICAL["tail"].tail and few.latency_ms == TYPICAL["tail"].latency_ms / 2


def test_more_batches_ahead_bridge_what_is_uneven() -> None:
    for kind in ("tail", "stalls", "delivery"):
        pipe = TYPICAL[kind]
        assert true_s(pipe, Changed(prefetch=4)) < 0.95 * true_s(pipe, Changed(prefetch=1))
    assert Changed(prefetch=2).of(TYPICAL["cpu"]) == AS_IT_IS.of(TYPICAL["cpu"])


def test_changes_are_made_together() -> None:
    made = Changed(workers=8, storage=2.0, without=frozenset({"others", "prep"})).of(TYPICAL["others"])
    assert (made.workers, made.latency_ms, made.decode_ms, made.neighbours) == (8, 2.0, 0.0, 0)


def test_truths_are_kept_while_the_code_that_told_them_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = true_s(TYPICAL["cpu"])
    truths.write_known(tmp_path / "known.json")
    monkeypatch.setattr(truths, "_KNOWN", {})
    assert truths.read_known(tmp_path / "known.json") >= 1
    assert true_s(TYPICAL["cpu"]) == told
    kept = json.loads((tmp_path / "known.json").read_text())
    (tmp_path / "known.json").write_text(json.dumps({**kept, "source": "another"}))
    assert truths.read_known(tmp_path / "known.json") == 0 and truths.read_known(tmp_path / "none.json") == 0
