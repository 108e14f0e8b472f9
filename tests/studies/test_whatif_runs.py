"""`loaderbench whatif` on stored runs: what it prints, keeps and refuses, and how a later run scores it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import call

import loaderbench
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import Run, StorageFacts
from loaderbench.recording.store import Store
from loaderbench.recording.whatif import WhatifFacts
from loaderbench.studies.ledger import collect
from loaderbench.studies.measure import judged
from tests.analysis.event_model import FILE_BYTES, NUM_SAMPLES, Pipeline, true_step_ms
from tests.analysis.judging import run_of
from tests.made import make_probe, make_stage

PIPE = Pipeline(tells_more=True, workers=2, decode_ms=120, latency_ms=10, busy_ms=20, jitter=0.1)
BATCH_BYTES = NUM_SAMPLES * FILE_BYTES


def keep(run: Run, root: Path) -> str:
    """The id under which a store has the run and its record."""
    folder = Store(root).open_run(run.case)
    kept = folder.write_run(replace(run, run_id=folder.run_id, started_at=folder.started_at))
    folder.write_record(judged(kept))
    return folder.run_id


def with_probe(run: Run, *stages: tuple[int, float]) -> Run:
    """The run on a storage whose probe found these (readers, bytes/s)."""
    assert run.recording is not None
    probe = make_probe(*(make_stage(readers, rate) for readers, rate in stages))
    storage = StorageFacts(num_images=1000, image_bytes=35_000_000, source="test", reason=None, ceiling=probe)
    return replace(run, recording=replace(run.recording, facts=replace(run.recording.facts, storage=storage)))


def ask(root: Path, *words: object) -> dict[str, Any]:
    ended = call("whatif", *words, "--results", root, "--json", "-", "--quiet")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_it_is_printed_kept_and_shown_again(tmp_path: Path) -> None:
    run_id = keep(run_of(PIPE), tmp_path)
    printed = call("whatif", run_id, "--workers", 4, "--results", tmp_path)
    assert printed.code == 0 and "With 4 workers this run would take" in printed.out
    assert "the model explains this run to" in " ".join(printed.out.split())
    (stored,) = Store(tmp_path).studies()
    assert stored.study is not None and isinstance(stored.study.facts, WhatifFacts)
    shown = call("show", stored.study_id, "--results", tmp_path)
    assert shown.out.split() == printed.out.split()
    found = json.loads(call("show", stored.study_id, "--results", tmp_path, "--json", "-").out)
    assert found["then"]["step_s"]["value"] * 1e3 == pytest.approx(true_step_ms(PIPE, workers=4), rel=0.05)
    assert found["gain"]["low"] < found["gain"]["value"] < found["gain"]["high"]
    assert found["limit"]["bottleneck"] == "prep"


def test_latest_is_the_newest_run_and_a_folder_is_a_run_too(tmp_path: Path) -> None:
    run_id = keep(run_of(PIPE), tmp_path / "a")
    first = ask(tmp_path / "a", "latest", "--workers", 4)
    assert ask(tmp_path / "a", "latest", "--workers", 4)["source_id"] == first["source_id"] == run_id
    assert ask(tmp_path / "b", tmp_path / "a" / run_id, "--workers", 4)["then"] == first["then"]


def test_python_gives_the_same_figures(tmp_path: Path) -> None:
    run_id = keep(run_of(PIPE), tmp_path)
    asked = ask(tmp_path, run_id, "--workers", 4, "--prefetch", 3)
    for run in (run_id, loaderbench.load_run(run_id, tmp_path)):
        found = loaderbench.whatif(run, workers=4, prefetch=3, results=tmp_path)
        assert found.then.step_s.value == pytest.approx(asked["then"]["step_s"]["value"])
    assert len(Store(tmp_path).studies()) == 3
    with pytest.raises(ConfigError, match="say what to change"):
        loaderbench.whatif(run_id, results=tmp_path)
    with pytest.raises(TypeError, match="no option 'wokers'"):
        loaderbench.whatif(run_id, results=tmp_path, wokers=4)


def test_a_later_run_of_it_scores_it(tmp_path: Path) -> None:
    run_id = keep(run_of(PIPE), tmp_path)
    ask(tmp_path, run_id, "--workers", 4)
    ask(tmp_path, run_id, "--device", "50ms")
    assert collect(Store(tmp_path)).entries == ()
    keep(run_of(replace(PIPE, workers=4)), tmp_path)
    (entry,) = collect(Store(tmp_path)).entries
    assert entry.kind == "whatif" and entry.held and abs(entry.error_fraction) < 0.05


def test_another_run_s_storage(tmp_path: Path) -> None:
    # 20 ms for a batch, one reader or many: the storage of the other run serves one batch after the other.
    slow = Pipeline(tells_more=True, workers=2, decode_ms=20, storage_ms=20, busy_ms=5)
    rate = BATCH_BYTES / 0.020
    other = keep(with_probe(run_of(slow), (1, rate), (2, rate), (4, rate)), tmp_path)
    quick = replace(slow, storage_ms=2.0, decode_ms=20)
    run_id = keep(with_probe(run_of(quick), (1, 10 * rate), (2, 10 * rate), (4, 10 * rate)), tmp_path)
    found = ask(tmp_path, run_id, "--storage", other)
    assert found["then"]["step_s"]["value"] * 1e3 == pytest.approx(true_step_ms(slow), rel=0.1)
    assert any(f"that of {other}" in line for line in found["assumed"])
    refused = call("whatif", run_id, "--storage", "nosuch", "--results", tmp_path)
    assert refused.code == 2 and "a rate such as 500M/s, a factor such as 2x, or a stored run" in refused.err


def test_an_emulated_device_takes_its_profile_s_time(tmp_path: Path) -> None:
    run = run_of(PIPE)
    run_id = keep(replace(run, case=run.case.changed(precision="amp-fp16")), tmp_path)
    found = ask(tmp_path, run_id, "--workers", 16, "--device", "emulated:a100")
    (line,) = [one for one in found["assumed"] if "emulated profile" in one]
    assert found["wanted"]["device"].startswith("emulated:a100-resnet50")
    step_ms = float(line.partition(" takes ")[2].partition(" ms")[0])
    assert found["then"]["step_s"]["value"] * 1e3 == pytest.approx(step_ms, rel=0.1)
    refused = call("whatif", run_id, "--device", "emulated:nosuch", "--results", tmp_path)
    assert refused.code == 2 and "no device profile 'nosuch'" in refused.err
