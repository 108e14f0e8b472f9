"""Forecasts as commands: from simulated runs whose step is known, from a real run that is then checked, and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.cases.options import ForecastOptions
from loaderbench.errors import ConfigError
from loaderbench.machine import environment
from loaderbench.plugins import LOADERS, LoaderTraits
from loaderbench.recording.facts import CacheFacts, Segment, Series, StartupFacts
from loaderbench.recording.forecast import Forecast, ForecastFacts
from loaderbench.recording.progress import EpochDone, Report
from loaderbench.recording.record import Range
from loaderbench.recording.store import Store
from loaderbench.studies.forecast import ForecastStudy, find_source, parse_change, past_of, plan_forecast
from loaderbench.studies.measure import stored
from tests.analysis.simulate import ASKED, Pipeline, run, segment, step_seconds
from tests.ledger_records import checked, forecast_study, keep_study
from tests.made import make_case, make_facts, make_run
from tests.studies.kept import assert_kept

SLOW, FAST = Pipeline(decode=0.1, workers=2), Pipeline(decode=0.05, workers=4)


def store_run(
    root: Path,
    pipeline: Pipeline = SLOW,
    *,
    resident: float = 0.0,
    segments: list[Segment] | None = None,
    **changes: Any,
) -> str:
    """A simulated run of this machine in the store, its files in memory or not; its id."""
    given = {name: changes.pop(name) for name in ("status", "series", "environment") if name in changes}
    case: Case = make_case(**{"workers": pipeline.workers, "cache": "as-is", **changes})
    store = Store(root)
    folder = store.open_run(case)
    segments = run(pipeline) if segments is None else segments
    for one in segments:
        if one.storage is not None:
            one.storage = replace(one.storage, residency_before=resident, residency_after=1.0)
    facts = make_facts(
        cache=CacheFacts(case.subject.cache, measured_once=False), startup=StartupFacts({Arm.REAL: 0.5}, 2.0, 1.0)
    )
    made = make_run(case, segments, facts=facts, run_id=folder.run_id, **{"environment": environment(), **given})
    return stored(folder, made).run_id


def forecast(root: Path, *options: object) -> dict[str, Any]:
    ended = call("forecast", *options, "--results", root, "--quiet", "--json", "-")
    assert (ended.code, ended.err) == (0, "")
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_a_training_takes_its_steps(tmp_path: Path) -> None:
    name = store_run(tmp_path, resident=1.0)
    found = forecast(tmp_path, name, "--images", 64_000, "--epochs", 3)
    expected = 3 * 1000 * step_seconds(SLOW)
    assert found["parts"]["steps"]["value"] == pytest.approx(expected, rel=0.03)
    assert found["training_s"]["low"] < found["training_s"]["value"] < found["training_s"]["high"]
    assert found["parts"]["start_up"]["value"] == pytest.approx(3.5)
    assert found["epoch_s"]["cold"] is None and "--cache cold" in found["left_out"]["cold"]
    assert_kept(tmp_path, "forecast")


def test_the_other_state_is_taken_from_another_run_of_the_setting(tmp_path: Path) -> None:
    warm = store_run(tmp_path, SLOW, resident=1.0, cache="warm")
    cold = store_run(tmp_path, Pipeline(decode=0.1, read=0.2, workers=2), resident=0.0)
    one = find_source(cold, Store(tmp_path))
    assert one.cold is not None and one.warm is not None
    assert (one.cold.run_id, one.cold.origin) == (cold, "measured")
    # A simulated storage is of an unknown kind: it may be asked at each open, which the arm `ram` does not see.
    assert (one.warm.run_id, one.warm.origin) == (warm, "other_run")
    other = find_source(warm, Store(tmp_path))
    assert other.cold is not None and (other.cold.run_id, other.cold.origin) == (cold, "other_run")


def test_after_a_change_a_stored_run_tells(tmp_path: Path) -> None:
    base, more = store_run(tmp_path, SLOW, resident=1.0), store_run(tmp_path, FAST, resident=1.0)
    for then in ("workers=4", more):
        found = forecast(tmp_path, base, "--epochs", 2, "--then", then)
        before, after = (one["parts"]["steps"]["value"] for one in (found["training"], found["after"]))
        assert after / before == pytest.approx(step_seconds(FAST) / step_seconds(SLOW), rel=0.05)
    refused = call("forecast", base, "--then", "workers=64", "--results", tmp_path)
    assert refused.code == 2 and "measure one with `loaderbench run … --workers 64`" in refused.err


def test_what_cannot_tell_is_refused_with_the_reason(tmp_path: Path) -> None:
    hot = Series(
        "gpu_clocks_event_reasons", "bitmask", "gauge", "made up",
        np.arange(0, 10**12, 10**9, dtype=np.int64), np.full(1000, 0x40, dtype=np.float64),
    )  # fmt: skip
    elsewhere = replace(environment(), cpu_model="another processor")
    for changes, word in (
        ({"status": "interrupted"}, "interrupted"),
        ({"resident": 0.4}, "cache state"),
        ({"series": [hot]}, "throttled"),
        ({"environment": elsewhere}, "another machine"),
    ):
        name = store_run(tmp_path / word, **{"resident": 1.0, **changes})
        refused = call("forecast", name, "--results", tmp_path / word)
        assert refused.code == 2 and word in refused.err and refused.err.count("\n") == 1
    named = store_run(tmp_path / "taken", resident=1.0, environment=elsewhere)
    assert call("forecast", named, "--on-this-machine", "--results", tmp_path / "taken", "--quiet").code == 0


def test_one_block_of_steps_is_too_short(tmp_path: Path) -> None:
    """Its interval has no width, which is no exactness."""
    once = [segment(arm, SLOW, steps=2, warmup=10, number=0) for arm in ASKED]
    store_run(tmp_path, resident=1.0, segments=once)
    refused = call("forecast", "latest", "--results", tmp_path)
    assert (refused.code, len(refused.lines)) == (2, 1)
    assert "is too short for a forecast: its step time was measured in one block, which gives no" in refused.err
    assert "run it again with --duration " in refused.err


def test_a_loader_that_decodes_before_the_first_batch_is_refused(tmp_path: Path) -> None:
    (name,) = [one for one in LOADERS.built_in if _decodes_first(LOADERS.built_in[one].traits)]
    store_run(tmp_path, resident=1.0, loader=name)
    refused = call("forecast", "latest", "--results", tmp_path)
    assert refused.code == 2 and "decodes all images before the first batch" in refused.err


def _decodes_first(traits: LoaderTraits) -> bool:
    return traits.decodes != "nothing" and not traits.reads_files


def test_before_and_after_tell_of_the_same_epochs(tmp_path: Path) -> None:
    """A run from memory does not tell what the change does for the first epoch, from the storage."""
    cold = store_run(tmp_path, Pipeline(decode=0.1, read=0.2, workers=2))
    warm = store_run(tmp_path, FAST, resident=1.0, cache="warm")
    refused = call("forecast", cold, "--epochs", 2, "--then", warm, "--results", tmp_path)
    assert refused.code == 2 and "first epoch" in refused.err
    found = forecast(tmp_path, warm, "--epochs", 2, "--then", cold)
    assert found["training"]["epoch_s"]["cold"] is None and found["after"]["epoch_s"]["cold"] is None


def test_a_validation_is_found_by_its_data_set_and_setting(tmp_path: Path) -> None:
    store_run(tmp_path, SLOW, resident=1.0, mode="infer", dataset="/elsewhere",
              device="emulated:card-resnet50-infer-fp32")  # fmt: skip
    train = store_run(tmp_path, SLOW, resident=1.0, device="emulated:card-resnet50-train-fp32", optimizer="adam")
    asked = (train, "--epochs", 2, "--val-images", 640)
    assert "data set" in forecast(tmp_path, *asked)["left_out"]["validation"]
    infer = store_run(tmp_path, FAST, resident=1.0, mode="infer", device="emulated:card-resnet50-infer-fp32",
                      workers=SLOW.workers)  # fmt: skip
    found = forecast(tmp_path, *asked)
    assert found["training"]["validation_s"]["warm"]["run_id"] == infer
    steps = found["training"]["validation_s"]["warm"]["parts"]["steps"]
    assert steps["value"] == pytest.approx(10 * step_seconds(FAST), rel=0.05)


def test_the_text_says_what_stands_in_the_figures(tmp_path: Path) -> None:
    base = store_run(tmp_path, Pipeline(decode=0.1, read=0.2, workers=2))
    ended = call("forecast", base, "--images", 6400, "--epochs", 2, "--then", base, "--results", tmp_path)
    said = " ".join(ended.out.split())
    assert "the first epoch" in said and "from the storage, later ones" in said and "from memory." in said
    assert "training" in said and "(1.00×)" in said  # after no change
    assert f"steps of the epoch from the storage: {base}" in said and "its arm `ram`" in said
    assert "no forecast with an emulated device was checked on this machine yet" in said
    assert "10 % that the machine is assumed to drift by" in said


def test_epochs_with_emulated_and_with_real_devices_are_learned_from_apart(tmp_path: Path) -> None:
    store, here = Store(tmp_path), environment()
    for emulated, error in ((True, 1.0), (False, 1.2)):
        study = forecast_study([checked(Range(10.0, 9.0, 11.0), 10.0 * error)])
        assert isinstance(study.facts, ForecastFacts) and isinstance(study.findings, Forecast)
        findings = replace(study.findings, emulated=emulated)
        keep_study(store, replace(study, facts=replace(study.facts, environment=here), findings=findings))
    for emulated, error in ((True, 0.0), (False, 1 / 1.2 - 1)):
        assert past_of(store, here, emulated=emulated).errors == pytest.approx((error,))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--epochs", 0), "--epochs"),
        (("--val-run", "latest"), "--val-images"),
        (("--checkpoint-to", "."), "--checkpoint-every"),
        (("--then", "workers=many"), "whole number"),
        (("--then", "workers=²"), "whole number"),
        (("--then", "overlap=perhaps"), "true or false"),
        (("--then", "sandwiches=2"), "sandwiches"),
    ],
)
def test_bad_options_are_one_line(tmp_path: Path, options: tuple[object, ...], word: str) -> None:
    store_run(tmp_path, resident=1.0)
    ended = call("forecast", "latest", *options, "--results", tmp_path)
    assert ended.code == 2 and word in ended.err and ended.err.count("\n") == 1


def test_changes_are_read() -> None:
    assert parse_change("workers=16, decoder=pillow") == {"workers": 16, "decoder": "pillow"}
    assert parse_change("input-size=160,overlap=false") == {"input_size": 160, "overlap": False}
    with pytest.raises(ConfigError, match="fields"):
        parse_change("dataset=/elsewhere")


def test_an_interrupted_check_keeps_the_epochs_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_child: object, _job: object, _request: object, on_message: Report) -> None:
        on_message(EpochDone(64, 3.0, 1.0, 6.0))
        raise KeyboardInterrupt

    monkeypatch.setattr("loaderbench.studies.forecast.Child.ask", interrupted)
    store = Store(tmp_path)
    store_run(tmp_path, SLOW, resident=1.0)
    study = ForecastStudy(plan_forecast("latest", ForecastOptions(epochs=3, check=True), store), store)
    with pytest.raises(KeyboardInterrupt):
        study.run(lambda _line, _lasting: None)
    (told,) = [one.study for one in Store(tmp_path).studies()]
    assert told is not None and isinstance(told.findings, Forecast)
    (epoch,) = told.findings.checked
    assert (epoch.measured_s, epoch.num_images, epoch.state) == (3.0, 64, "warm")


@pytest.mark.alone
def test_a_real_run_is_forecast_checked_and_scored(tmp_path: Path, small_set: Path) -> None:
    """Emulated steps of known length: the epoch follows from arithmetic, whatever the machine does."""
    options = ("--device", "emulated:h200x0.2", "--loader", "serial", "--batch-size", 4, "--input-size", 64)
    ended = call("run", small_set, "--res", 96, *options, "--duration", 6, "--cache", "warm", "--no-kernels",
                 "--results", tmp_path, "--quiet")  # fmt: skip
    assert ended.code == 0
    found = forecast(tmp_path, "latest", "--epochs", 2, "--check", "--checkpoint-every", 1)
    (checked,) = found["checked"]
    assert checked["not_scored"] is None and checked["measured_s"] > 0 and checked["score"] is not None
    assert "no model" in found["left_out"]["checkpoints"]
    again = forecast(tmp_path, found["source_id"], "--epochs", 1)
    assert again["ledger"]["num"] == 1
    scored = call("ledger", "--kind", "epoch", "--json", "-", "--results", tmp_path)
    (entry,) = json.loads(scored.out)["entries"]
    assert entry["measured"] == pytest.approx(checked["measured_s"])
