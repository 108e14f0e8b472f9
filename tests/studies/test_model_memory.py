"""The memory studies: commands with real measurements on the CPU, and made-up processes for what goes wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import INTERRUPTED, call

from loaderbench.analysis.memory import peak_bytes
from loaderbench.analysis.model_memory import fit_of, outcome_of
from loaderbench.cases.options import ModelOptions
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_memory import ModelFitFacts, TrialFacts
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.studies import memory as memory_module
from loaderbench.studies import model_fit as fit_module
from loaderbench.studies.fit_plan import plan_fit
from loaderbench.studies.memory import MemoryStudy, predict_peaks, predict_traces
from loaderbench.studies.memory_plan import plan_memory
from loaderbench.studies.model_fit import FitStudy
from tests.studies.here import Here
from tests.studies.kept import assert_kept, only_study

LENET = ModelOptions(device="cpu", seed=1)
KILLED = Failure("CaseFailed", "the measuring process was killed by SIGKILL (out of memory?)")
HUNG = Failure("CaseFailed", "no sign of life for 900 s: does the device cpu hang?")
TOO_LARGE = Failure("OutOfMemory", "does not fit: tensors need more than the cap")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> type[Here]:
    """Jobs in this process, with a cache folder of the tests' own."""

    class Own(Here):
        pass

    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))
    monkeypatch.setattr(memory_module, "Child", Own)
    monkeypatch.setattr(fit_module, "Child", Own)
    return Own


# -- model memory ----------------------------------------------------------------------------------------


def test_the_command_predicts_measures_and_keeps_what_it_found(tmp_path: Path, here: type[Here]) -> None:
    results = tmp_path / "results"
    done = call(
        "model", "memory", "lenet", "--device", "cpu", "--batch-size", "2,16", "--json", "-", "--results", results
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    small, large = found["batches"]
    assert (small["batch_size"], large["batch_size"], large["mode"]) == (2, 16, "train")
    assert large["predicted"]["parameters_bytes"] == 4 * 20192 and abs(large["error_fraction"]) <= 0.02
    kinds = ("parameters", "gradients", "optimizer", "activations", "temporary")
    assert sum(large["predicted"][f"{kind}_bytes"] for kind in kinds) == large["predicted"]["peak_live_bytes"]
    assert large["measured"]["peak_reserved_bytes"] is None and large["measured"]["missing"]["peak_reserved_bytes"]
    assert "16" in done.err and "conv1" in done.err
    study = assert_kept(results, "model_memory", num_runs=0)
    listed = call("list", "--results", results)
    assert study.study_id[:19] in listed.out
    page = call("report", "--results", results, "--format", "md", "--out", "-")
    assert page.code == 0 and "Memory of lenet" in page.out and "affine1" in page.out


def test_the_report_draws_the_peaks_and_the_course_and_has_no_empty_sections(tmp_path: Path, here: type[Here]) -> None:
    results, page = tmp_path / "results", tmp_path / "report.html"
    assert call("model", "memory", "lenet", "--device", "cpu", "--batch-size", "2,16", "--results", results).code == 0
    assert call("report", "--results", results, "--out", page).code == 0
    text = page.read_text()
    assert text.count("<svg") == 3 and "Peak memory by kind" in text and "Memory over the step, batch 16" in text
    assert "Measured ÷ predicted" in text  # the third: these peaks in the ledger
    assert "1 study" in text
    assert not any(f'id="{section}"' in text for section in ("runs", "caveats", "method"))
    assert "Not recorded" not in text and "Linux" in text  # the studies' own environment


def test_a_batch_that_fails_is_told_and_the_others_are_kept(tmp_path: Path, here: type[Here]) -> None:
    here.failing = staticmethod(
        lambda request: TOO_LARGE if getattr(getattr(request, "step", None), "batch_size", 0) == 4 else None
    )
    study = MemoryStudy(plan_memory("lenet", LENET, [2, 4, 8], measure=True), Store(tmp_path))
    study.run(lambda line, keep: None)
    assert [one.status for one in study.batches] == ["ok", "failed", "ok"]
    failed = study.batches[1]
    assert failed.failure == TOO_LARGE and failed.trace is not None and failed.measured is None
    shown = call("show", study.store().study_id, "--results", tmp_path)
    assert "tensors need more than the cap" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("at", "says"), [(2, "interrupted: No batch was predicted yet."), (4, "interrupted: Batch 2 needs")]
)
def test_an_interrupted_study_is_listed_as_that(at: int, says: str, tmp_path: Path, here: type[Here]) -> None:
    def interrupts(request: Any) -> None:
        steps = getattr(request, "steps", None) or [request.step]
        if steps[0].batch_size == at:
            raise KeyboardInterrupt

    here.failing = staticmethod(interrupts)
    done = call("model", "memory", "lenet", "--device", "cpu", "--batch-size", "2,4", "--results", tmp_path)
    assert done.code == INTERRUPTED
    lists = call("list", "--results", tmp_path)
    assert says[:25] in lists.out and "could be predicted" not in lists.out
    here.failing = staticmethod(lambda request: None)
    whole = tmp_path / "whole"
    assert call("model", "memory", "lenet", "--device", "cpu", "--batch-size", "2", "--results", whole).code == 0
    assert "interrupted" not in call("list", "--results", whole).out


def test_without_measuring_there_is_a_reason_and_no_figure(tmp_path: Path, here: type[Here]) -> None:
    done = call(
        "model", "memory", "lenet", "--device", "cpu", "--no-measure", "--batch-size", "3", "--results", tmp_path
    )
    assert done.code == 0 and "--no-measure was given" in " ".join(done.out.split())
    facts = only_study(tmp_path).facts
    assert facts.batches[0].measured is None and facts.batches[0].status == "skipped"  # type: ignore[union-attr]


@pytest.mark.slow
def test_an_emulated_device_is_predicted_and_says_why_nothing_is_measured(tmp_path: Path, here: type[Here]) -> None:
    emulated = ("--device", "emulated", "--input-size", "64", "--results", tmp_path)
    done = call("model", "memory", "resnet50", "--batch-size", "2", *emulated)
    assert done.code == 0 and "an emulated device builds no model" in " ".join(done.out.split())
    study = only_study(tmp_path)
    (batch,) = study.findings.batches
    assert batch.predicted_reserved_bytes >= batch.predicted.peak_live_bytes
    assert "reserved, predicted" in " ".join(done.out.split())
    fit = call("model", "fit", "resnet50", "--json", "-", *emulated)
    found = json.loads(fit.out)
    assert fit.code == 0 and found["how"] == "prediction" and found["trials"] == [] and not found["confirmed"]
    assert found["memory_bytes"] == 139 * 2**30 and found["largest_batch"] > 1000


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("memory", "resnet5"), "close names: resnet50"),
        (("memory", "lenet", "--batch-size", "0"), "--batch-size must be at least 1"),
        (("memory", "lenet", "--batch-size", "x"), "--batch-size takes whole numbers"),
        (("memory", "vgg16", "--input-size", "16"), "takes images of 32×32 or larger"),
        (("fit", "lenet", "--memory", "16Q"), "--memory takes a size such as 16G"),
        (("fit", "lenet", "--how", "magic"), "--how"),
        (("fit", "nothing_there:factory"), "there is no module nothing_there"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    args: tuple[str, ...], said: str, tmp_path: Path, here: type[Here]
) -> None:
    done = call("model", *args, "--device", "cpu", "--results", tmp_path)
    assert done.code == 2 and said in done.lines[-1]
    assert [*tmp_path.glob("2*")] == []


def test_a_step_has_its_predicted_peak(tmp_path: Path, here: type[Here]) -> None:
    planned = plan_memory("lenet", LENET, [1], measure=False)
    peaks = predict_peaks(here(tmp_path), planned.step, [1, 2, 9])  # type: ignore[arg-type]
    assert 4 * 20192 * 3 < peaks[1] < peaks[2] < peaks[9]
    # batch 9, by the line through others, is that of its own trace
    (trace,) = predict_traces(here(tmp_path), planned.step, [9])  # type: ignore[arg-type]
    assert peaks[9] == peak_bytes(trace)


# -- model fit -------------------------------------------------------------------------------------------


def trial(batch: int, failure: Failure | None = None, kills: int | None = None) -> TrialFacts:
    return TrialFacts(batch, "ledger", 3, failure, None, kills)


@pytest.mark.parametrize(
    ("failure", "kills", "outcome"),
    [
        (None, 0, "fits"),
        (TOO_LARGE, 0, "out_of_memory"),
        (Failure("RuntimeError", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), 0, "out_of_memory"),
        (KILLED, 1, "killed"),
        (KILLED, None, "killed"),
        (KILLED, 0, "unknown"),  # somebody else killed it
        (HUNG, 0, "unknown"),
        (Failure("ValueError", "ValueError: it broke"), 0, "unknown"),
    ],
)
def test_how_a_trial_ended(failure: Failure | None, kills: int | None, outcome: str) -> None:
    assert outcome_of(trial(4, failure, kills)) == outcome


def fit_study(tmp_path: Path, memory: str, *, resume: bool = False) -> FitStudy:
    return FitStudy(plan_fit("lenet", LENET, memory, None), Store(tmp_path), resume=resume)


def test_the_largest_batch_is_confirmed_by_the_profilers_peaks(tmp_path: Path, here: type[Here]) -> None:
    study = fit_study(tmp_path, "1500K")
    study.run(lambda line, keep: None)
    found = study.findings()
    # given the peaks of the batches that fitted, by the profiler, and of the first that did not, by the prediction
    peaks = {one.batch_size: one.peak_live_bytes for one in found.trials if one.outcome == "fits"}
    largest = found.largest_batch
    assert largest is not None and found.confirmed and found.num_search_trials <= 3
    assert (peaks[largest] or 0) <= found.memory_bytes < (found.needs_bytes or 0)
    assert len(found.trials) == 4 + found.num_search_trials and found.line_holds
    study.store()
    assert_kept(tmp_path, "model_fit", num_runs=0)
    page = call("report", "--results", tmp_path, "--format", "md", "--out", "-")
    assert "Largest batch of lenet" in page.out


def test_batch_one_does_not_fit(tmp_path: Path, here: type[Here]) -> None:
    done = call("model", "fit", "lenet", "--device", "cpu", "--memory", "250K", "--results", tmp_path)
    assert done.code == 1
    assert "Batch 1 does not fit: needs about" in " ".join(done.out.split())
    study = only_study(tmp_path)
    assert study.findings.largest_batch == 0  # type: ignore[union-attr]


def test_a_fit_that_the_prediction_refutes_by_far_is_refused_without_a_trial(
    tmp_path: Path, here: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FitStudy, "_try", lambda *_: pytest.fail("a trial was run"))
    done = call("model", "fit", "lenet", "--device", "cpu", "--memory", "100K", "--results", tmp_path, "--quiet")
    assert (done.code, done.out, len(done.lines)) == (2, "", 1)
    assert "lenet is predicted to need 367" in done.err and "of 100.0 KiB" in done.err
    assert not list(tmp_path.iterdir())


def test_an_interrupted_fit_keeps_its_trials_and_goes_on(tmp_path: Path, here: type[Here]) -> None:
    asked: list[int] = []

    def third_is_interrupted(request: Any) -> Failure | None:
        if hasattr(request, "cap_bytes"):
            asked.append(request.step.batch_size)
            if len(asked) == 3:
                raise KeyboardInterrupt
        return None

    here.failing = staticmethod(third_is_interrupted)
    command = ("model", "fit", "lenet", "--device", "cpu", "--seed", "1", "--memory", "1500K", "--results", tmp_path)
    first = call(*command)
    assert first.code == INTERRUPTED and "2 trials are kept; --resume continues" in first.lines[-1]
    again = call(*command, "--resume")
    assert again.code == 0 and "2 trials are reused" in again.err
    # no trial was done twice for it: four in all, besides the one that was interrupted
    study: StudyRecord = only_study(tmp_path)
    assert isinstance(study.facts, ModelFitFacts) and not study.facts.interrupted
    assert len(study.facts.trials) == len(asked) - 1 and fit_of(study.facts).confirmed


@pytest.mark.parametrize("num_trials", [0, 1])
def test_a_fit_that_still_runs_is_not_continued_beside_it(tmp_path: Path, here: type[Here], num_trials: int) -> None:
    command = ("model", "fit", "lenet", "--device", "cpu", "--seed", "1", "--memory", "1500K", "--results", tmp_path)
    beside: list[Any] = []

    def is_looked_at(request: Any) -> Failure | None:
        is_trial = hasattr(request, "cap_bytes")  # without a trial: while it predicts
        if is_trial == (num_trials > 0) and not beside and len(only_study(tmp_path).facts.trials) == num_trials:  # type: ignore[union-attr]
            beside.append(call(*command, "--resume"))
        return None

    here.failing = staticmethod(is_looked_at)
    first = call(*command)
    (refused,) = beside
    assert refused.code == 2 and "is in use by another process" in refused.lines[-1]
    assert first.code == 0
    facts = only_study(tmp_path).facts  # the first one's trials are all there, and nobody else's
    assert isinstance(facts, ModelFitFacts) and not facts.interrupted and fit_of(facts).confirmed
    again = call(*command, "--resume")
    assert again.code == 0 and "no interrupted fit with these options" in again.err


def test_a_fit_of_a_model_that_is_refused_leaves_nothing(tmp_path: Path, here: type[Here]) -> None:
    done = call("model", "fit", "no_such_model", "--device", "cpu", "--memory", "1500K", "--results", tmp_path)
    assert done.code == 2 and [*tmp_path.glob("2*")] == []


def test_a_trial_that_ends_above_the_limit_keeps_its_peak(tmp_path: Path, here: type[Here]) -> None:
    """In inference max pooling makes indices that no tensor shows: the profiler alone sees them."""
    study = FitStudy(plan_fit("lenet", replace(LENET, mode="infer"), "900K", None), Store(tmp_path))
    study.run(lambda line, keep: None)
    above = [one for one in study.trials if one.failure is not None and one.peak_live_bytes is not None]
    assert all((one.peak_live_bytes or 0) > 900 * 2**10 and outcome_of(one) == "out_of_memory" for one in above)
    assert above and study.findings().confirmed


def test_a_limit_on_the_cpu_alone_has_a_way() -> None:
    with pytest.raises(ConfigError, match="--how"):
        plan_fit("resnet50", ModelOptions(device="emulated"), "1G", "ledger")
