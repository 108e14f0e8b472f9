"""Advice that was run: rates compared per sample, what cannot be run named with its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from loaderbench.cases.case import Case
from loaderbench.recording.store import SCHEMA_FILE, Store
from loaderbench.recording.types import STEP_FIELDS
from loaderbench.studies import verify
from loaderbench.studies.verify import rate_ratio, verify_record
from tests.analysis.simulate import Pipeline, segment, step_seconds


def predicted(value: float) -> dict[str, Any]:
    return {"value": value, "low": value * 0.9, "high": value * 1.1, "unit": "ratio", "n": 4, "method": "made up"}


def case(dataset: Path) -> Case:
    return Case(
        dataset=str(dataset), dataset_name="small", resolution=96, loader="serial", decoder="pillow", workers=0,
        prefetch=2, batch_size=4, model="resnet50", mode="train", precision="fp32",
        device="emulated:h200-resnet50-train-fp32", input_size=64, cache="warm",
    )  # fmt: skip


def record_of(
    asked: Case, store: Store, advice: list[dict[str, Any]], storage: dict[str, Any] | None
) -> dict[str, Any]:
    folder = store.open_run(asked)
    verdict = {"bottleneck": "prep", "summary": "made up", "advice": advice}
    record = {"schema": 1, "run_id": folder.run_id, "status": "ok", "case": asked.to_json(), "failure": None,
              "started_at": folder.started_at, "verdict": verdict, "storage": storage, "caveats": []}  # fmt: skip
    return folder.write_record(record)


def test_rates_are_compared_per_sample() -> None:
    # given a launch-bound step, and one of twice the samples in 1.25 times the time
    launching, doubled = Pipeline(device=0.008, issue=0.030), Pipeline(device=0.0375, issue=0.030)
    before = [segment("real", launching, number=number) for number in range(3)]
    after = [segment("real", doubled, number=number) for number in range(3)]
    for one in after:
        one.steps[:, STEP_FIELDS.index("num_samples")] *= 2
    found = rate_ratio(before, after)
    assert found is not None
    assert found.value == pytest.approx(2 * step_seconds(launching) / step_seconds(doubled), rel=0.01)
    assert found.low <= found.value <= found.high


def test_the_interval_knows_turns_that_differ() -> None:
    base = [segment("real", Pipeline(decode=0.2), number=number) for number in range(4)]
    steady = [segment("real", Pipeline(decode=0.1), number=number) for number in range(4)]
    drifting = [segment("real", Pipeline(decode=0.1 if number % 2 else 0.14), number=number) for number in range(4)]
    narrow, wide = rate_ratio(base, steady), rate_ratio(base, drifting)
    assert narrow is not None and wide is not None
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_without_a_complete_step_there_is_no_ratio() -> None:
    empty = segment("real", Pipeline(), steps=0)
    assert rate_ratio([segment("real", Pipeline())], [empty]) is None


def test_a_cache_state_that_is_gone_is_not_compared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    advice = [{"action": "try it", "change": {"workers": 2}, "predicted_speedup": predicted(2.0)}]
    storage = {"cache_state": "as-is", "residency_fraction": {"before": 0.4, "after": 1.0}}
    asked = replace(case(tmp_path), cache="as-is")
    record, (check,) = verify_record(record_of(asked, store, advice, storage), store, print)
    assert check.measured is None and check.error is None
    assert "--cache cold or --cache warm" in record["verdict"]["advice"][0]["not_verified"]


def test_advice_is_run_and_stored(small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given advice that can be run, advice that cannot, and advice in words
    monkeypatch.setattr(verify, "SECONDS", 0.5)
    store = Store(tmp_path)
    advice = [
        {"action": "threads", "change": {"loader": "threaded", "workers": 1}, "predicted_speedup": predicted(2.0)},
        {"action": "none", "change": {"loader": "multiprocess"}, "predicted_speedup": predicted(2.0)},
        {"action": "buy a disk", "change": None, "predicted_speedup": None},
    ]
    record = record_of(case(small_set / "96"), store, advice, None)
    # when it is verified
    record, checks = verify_record(record, store, print)
    # then the first has a rate, the second a reason, and both are in the stored record
    assert [check.action for check in checks] == ["threads", "none"]
    assert checks[0].measured is not None and checks[0].measured.value > 0
    assert checks[0].error == pytest.approx(2.0 / checks[0].measured.value - 1)
    assert checks[1].measured is None and "--workers of at least 1" in str(checks[1].reason)
    stored = store.find(record["run_id"]).record
    assert stored is not None
    kept = stored["verdict"]["advice"]
    assert kept[0]["measured_speedup"]["value"] == checks[0].measured.value
    assert kept[1]["measured_speedup"] is None and kept[1]["not_verified"] == checks[1].reason
    assert "measured_speedup" not in kept[2]
    parts = json.loads(SCHEMA_FILE.read_text())
    jsonschema.validate(kept, {**parts["properties"]["verdict"]["properties"]["advice"], "$defs": parts["$defs"]})
    assert np.isfinite(checks[0].measured.high)
