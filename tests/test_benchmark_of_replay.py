"""The benchmark of the replay: its questions and sums, with an answer that is always the recorded step."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.pipeline.simulated import TYPICAL


@pytest.fixture
def replay(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("replay")


def test_a_recording_of_the_pipelines_own_crew_is_asked_all(replay: ModuleType) -> None:
    asked = [one.what for one in replay.questions(TYPICAL["tail"], TYPICAL["tail"].workers)]
    assert {what: asked.count(what) for what in replay.ASKED} == {
        "as it is": 1, "workers": 3, "prefetch": 2, "storage rate": 2, "gains": 5, "together": 2,
    }  # fmt: skip
    assert [one.what for one in replay.questions(TYPICAL["tail"], 8)] == ["as it is", *3 * ["workers"]]
    serial = [one.what for one in replay.questions(TYPICAL["serial"], 0)]
    assert serial.count("workers") == 4 and "prefetch" not in serial


def test_sums_tell_errors_intervals_and_what_was_not_answered(replay: ModuleType) -> None:
    rows = [{"error": error, "held": held} for error, held in ((0.1, True), (-0.2, False), (0.0, None), (None, None))]
    found = replay.summary(rows)
    assert (found["asked"], found["unanswered"], found["held_fraction"]) == (4, 1, 0.5)
    assert (found["median"], found["worst"], found["signed"]) == (pytest.approx(0.1), pytest.approx(0.2), 0.0)
    assert replay.summary([])["median"] is None


def test_the_recorded_step_is_the_true_one_as_it_is_and_no_prediction(
    replay: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    options = ["--by", "recorded", "--num", "1", "--kinds", "latency,serial", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["replay.py", *options])
    assert replay.main() == 0
    told = json.loads(out.read_text())
    found = {(one["what"], one["kind"]): one for one in told["summaries"]}
    assert found["as it is", "all"]["worst"] < 0.03
    assert found["workers", "latency"]["median"] > 0.5
    assert found["gains", "of storage"]["asked"] == 2
    assert all(row["predicted_gain"] == 1.0 for row in told["rows"] if row["cause"] is not None)
    assert "as it is" in capsys.readouterr().out


def test_a_replay_is_held_against_the_truth(replay: ModuleType) -> None:
    def knows(change: object) -> object:
        true_s = replay.true_s(TYPICAL["cpu"], change)
        return replay.Figure(1.1 * true_s, true_s, 1.2 * true_s)

    for one in replay.questions(TYPICAL["cpu"], 4):
        row = replay._held_against(TYPICAL["cpu"], one, knows(one.change), knows(replay.AS_IT_IS))
        assert row["held"] is True
        assert row["error"] == pytest.approx(0.0 if one.cause else 0.1)
