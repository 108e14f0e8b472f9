"""Studies that measured too little for a picture."""

from __future__ import annotations

import pytest

from loaderbench.analysis.capacity import capacity_of
from loaderbench.analysis.model_split import split_of
from loaderbench.analysis.offload import offload_of
from loaderbench.analysis.sizing import sized
from loaderbench.recording.kinds import kind_of
from loaderbench.reporting.shown import shown_as
from tests import offload_facts, split_facts
from tests.analysis import test_sizing as sizing
from tests.capacity_facts import au_look, capacity_facts

TOO_LITTLE = {
    "one number of ranks": capacity_of(capacity_facts(au_look(1, 1.0))),
    "one setting": offload_of(offload_facts.study(settings=offload_facts.CURVE[:1])),
    "no split and no times": split_of(split_facts.split_facts(searches=(), chosen=None, turns=None, times=())),
    "no batch": sized(sizing.facts(sizing.out_of_memory(1))),
}


@pytest.mark.parametrize("found", TOO_LITTLE.values(), ids=TOO_LITTLE)
def test_a_page_has_no_picture_of_too_little(found: object) -> None:
    assert shown_as(kind_of(found)).result(None, found).draw() == []
