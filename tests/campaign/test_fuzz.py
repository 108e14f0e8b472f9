"""Spoilt JPEGs in every decoder that is installed: an image or a named error, never a crash or a hang."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import commands
import pytest

from loaderbench.plugins import installed_decoders
from tests.campaign.drawn import SEED, TIMES

NUM_DECODES = 24_000 * TIMES
PARTS = 8 * TIMES
SCRIPT = Path(__file__).with_name("decode_fuzzed.py")
HANGS_S = 300
"""Seconds for a part, which takes a few."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_spoilt_picture_is_an_image_or_a_named_error(part: int, tmp_path: Path) -> None:
    num_decoders = len(installed_decoders())
    number = -(-NUM_DECODES // (PARTS * num_decoders))
    place = tmp_path / "place"
    arguments = [str(value) for value in (SEED, part * number, number, place)]
    print(f"seed {SEED}, pictures {part * number} to {(part + 1) * number - 1}, {num_decoders} decoders")
    try:
        ended = commands.run_script(SCRIPT, *arguments, folder=tmp_path, timeout_s=HANGS_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"seed {SEED}: hangs at {place.read_text()}")
    assert ended.code == 0, f"seed {SEED}: died at {place.read_text()}: {ended.code} {ended.err[-500:]}"
    found = json.loads(ended.out.splitlines()[-1])
    outcomes = Counter(found["outcomes"])
    print(dict(outcomes))
    assert found["wrong"] == []
    assert sum(outcomes.values()) == number * num_decoders
    assert {name.partition(":")[0] for name in outcomes} == {one.name for one in installed_decoders()}
