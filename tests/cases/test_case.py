"""A case in four parts: flat in JSON, changed by field, known by a key."""

from __future__ import annotations

import json
from random import Random

import pytest

from loaderbench.cases.arms import ARMS, Arm
from loaderbench.cases.case import FIELDS, PARTS, Case
from loaderbench.plain import PlainError
from loaderbench.plugins import LOADERS
from tests.filled import filled
from tests.made import CASE, make_case


def test_its_json_form_is_flat_and_comes_back() -> None:
    stored = CASE.to_json()
    assert stored["loader"] == "multiprocess" and stored["device"] == "emulated:x"
    assert stored["arms"] == ["device", "host", "ram", "real", "free", "fetch"]
    assert set(stored) == set(FIELDS) and not set(stored) & set(PARTS)
    assert Case.from_json(json.loads(json.dumps(stored))) == CASE
    for seed in range(20):
        case = filled(Case, Random(seed))
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_defaults_may_be_left_out_and_unknown_fields_are_dropped() -> None:
    needed = {
        name: value for name, value in CASE.to_json().items() if name not in ("arms", "prefetch", "cache", "seed")
    }
    assert Case.from_json({**needed, "later": 1}) == CASE
    del needed["loader"]
    with pytest.raises(PlainError, match="it lacks loader"):
        Case.from_json(needed)


def test_fields_are_changed_whichever_part_holds_them() -> None:
    changed = make_case(cache="cold", workers=7, batch_size=8, arms=(Arm.REAL,))
    assert (changed.subject.cache, changed.feed.workers, changed.step.batch_size) == ("cold", 7, 8)
    assert changed.effort.arms == (Arm.REAL,) and CASE.effort.arms == ARMS
    assert changed.changed(cache="as-is", workers=2, batch_size=64, arms=ARMS) == CASE
    assert CASE.changed() == CASE
    with pytest.raises(TypeError, match="a case has no field 'worker'"):
        CASE.changed(worker=7)


def test_the_key_tells_cases_apart_and_is_the_same_for_equal_ones() -> None:
    assert make_case().key == CASE.key and len(CASE.key) == 12
    keys = {
        make_case(**{name: value}).key
        for name, value in (("workers", 3), ("seed", 1), ("repeat", 1), ("kernels", False))
    }
    assert len(keys | {CASE.key}) == 5


@pytest.mark.parametrize(
    ("loader", "workers", "lanes", "buffer_batches"),
    [("serial", 0, 1, 0), ("multiprocess", 4, 4, 12), ("threaded", 1, 1, 3), ("dali", 4, 4, 3)],
)
def test_what_is_prepared_ahead(loader: str, workers: int, lanes: int, buffer_batches: int) -> None:
    feed = make_case(loader=loader, workers=workers, prefetch=3).feed
    assert (feed.lanes, LOADERS.find(loader).traits.buffer_batches(feed)) == (lanes, buffer_batches)


def test_the_title_names_what_a_reader_looks_for() -> None:
    assert CASE.title == "data/256 multiprocess+pillow w2 b64 emulated:x"
    assert make_case(resolution=None, decoder=None, loader="dali").title == "data dali w2 b64 emulated:x"
