"""Tuning: how many settings fit into a budget, what the search finds and keeps, and snippets that run."""

from __future__ import annotations

import io
import json
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import run_script
from rich.console import Console

from loaderbench import plugins
from loaderbench.analysis.tuning import tuned as judged_tuning
from loaderbench.cases.case import Case
from loaderbench.cases.study import read_options
from loaderbench.commands import run as run_command
from loaderbench.errors import CaseFailed
from loaderbench.machine import environment
from loaderbench.recording.facts import Failure
from loaderbench.recording.record import Advice, Estimate, PixelDifference, Verdict
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord, TuneFacts, TuneScreen, Tuning
from loaderbench.reporting.snippet import snippet
from loaderbench.reporting.studies import as_json, print_findings
from loaderbench.running.supervisor import JobFailed
from loaderbench.selftest.injections import Injection
from loaderbench.studies.again import records_of
from loaderbench.studies.likely import fair_order, likely, ranked, representatives
from loaderbench.studies.measure import measure_case, unwatched
from loaderbench.studies.request import find_data_sets, plan
from loaderbench.studies.tune import Tune, _search_s, num_that_fit
from loaderbench.studies.tune_plan import describe, plan_tuning
from tests.analysis.simulate import Pipeline
from tests.made import make_case, make_estimate, make_record
from tests.studies.kept import assert_kept, only_study
from tests.studies.machine import Machine, broken

BASE = make_case(cache="warm", batch_size=8, device="cpu", input_size=64)


def test_the_rungs_take_what_their_trials_take() -> None:
    # 8 trials of 2 + 2.5 s, 4 of 4 + 2.5
    assert _search_s(8) == pytest.approx(8 * 4.5 + 4 * 6.5)
    assert _search_s(2) == pytest.approx(2 * 4.5)


def test_a_small_budget_tries_each_loader_and_decoder_before_more_of_one() -> None:
    kinds = [("multiprocess", "pillow"), ("multiprocess", "turbojpeg"), ("threaded", "turbojpeg"), ("dali", None)]
    cases = [
        BASE.changed(loader=loader, decoder=decoder, workers=workers, prefetch=prefetch)
        for loader, decoder in kinds
        for workers in (1, 2, 4)
        for prefetch in (2, 4)
    ]
    assert fair_order(cases, 0) != cases and num_that_fit(len(cases), 1000.0) == len(cases)
    few = fair_order(cases, 0)[: num_that_fit(len(cases), _search_s(4))]
    assert sorted((case.feed.loader, case.feed.decoder) for case in few if case.feed.decoder) == kinds[:3]
    assert len(few) == 4 and len({describe(case) for case in few}) == 4
    assert num_that_fit(len(cases), 0.0) == 2


@pytest.mark.parametrize(
    ("loader", "decoder", "output", "workers"),
    [
        ("multiprocess", "pillow", "float32", 1),
        pytest.param("serial", "turbojpeg", "uint8", 0, marks=pytest.mark.slow),
        pytest.param("multiprocess", "torchvision", "uint8", 1, marks=pytest.mark.slow),
        ("threaded", "turbojpeg", "uint8", 2),
    ],
)
def test_the_snippet_runs_and_gives_the_batches_it_promises(
    loader: str, decoder: str, output: str, workers: int, small_set: Path, tmp_path: Path
) -> None:
    case = BASE.changed(dataset=str(small_set / "96"), loader=loader, decoder=decoder, output=output, workers=workers)
    code = snippet(case)
    if "LoaderContext" not in code:
        code += "\nif __name__ == '__main__':\n    inputs, targets = next(iter(loader))\n"
        code += "    print(tuple(inputs.shape), inputs.dtype, len(targets))\n"
    else:
        code += "\nprint(tuple(inputs.shape), inputs.dtype, len(targets))\n"
    script = tmp_path / "train.py"
    script.write_text(code)
    ended = run_script(script, folder=tmp_path)
    assert ended.code == 0, ended.err
    assert ended.out.split() == f"(8, 3, 64, 64) torch.{output} 8".split()


# -- the search, on a machine that is simulated ------------------------------------------------------------------

DECODE_S = {"pillow": 0.120, "turbojpeg": 0.080, "torchvision": 0.090, "opencv": 0.100}
"""Worker seconds a batch."""
SETTINGS = [
    BASE.changed(decoder=decoder, workers=workers) for decoder in DECODE_S for workers in (1, 2)
]  # fmt: skip
DEFAULT = BASE.changed(decoder="pillow", workers=2)


def pipeline_of(case: Case, injection: Injection) -> Pipeline:
    """Bound by preparation: a step takes decode ÷ workers."""
    return Pipeline(device=0.010, decode=DECODE_S[case.feed.decoder or ""], workers=case.feed.workers)


def tuned(results: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Search SETTINGS; the lines."""
    lines: list[str] = []
    machine.install(monkeypatch)
    Tune(SETTINGS, DEFAULT, 120.0, Store(results), lines.append).run()
    return lines


def test_the_fastest_setting_wins_and_all_that_was_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    results = tmp_path / "results"
    lines = tuned(results, Machine(pipeline_of), monkeypatch)
    # 8 settings, then the fastest 4; three rounds of two finalists and the default
    study = assert_kept(results, "tune", num_runs=8 + 4 + 9)
    assert (len(study.own_runs), len(study.runs)) == (12, 9)
    facts, found = study.facts, study.findings
    assert isinstance(facts, TuneFacts) and isinstance(found, Tuning)
    assert (facts.num_settings, facts.num_rungs, facts.budget_s) == (8, 2, 120.0) and facts.spent_s > 0
    assert found.winner is not None and (found.winner.feed.decoder, found.winner.feed.workers) == ("turbojpeg", 2)
    # the gains are those of the simulation
    assert found.over_default is not None and found.over_default.value == pytest.approx(120 / 80, rel=0.02)
    assert found.over_second is not None and found.over_second.value == pytest.approx(90 / 80, rel=0.02)
    assert found.rate is not None and found.rate.value == pytest.approx(64 / 0.040, rel=0.02)
    # each setting's rates are those of its rungs, in the order of the rungs
    rungs = {(trial.case.feed.decoder, trial.case.feed.workers): len(trial.rates) for trial in found.trials}
    assert sorted(rungs.values()) == [1, 1, 1, 1, 2, 2, 2, 2]
    assert {kind for kind, number in rungs.items() if number == 2} == {(decoder, 2) for decoder in DECODE_S}
    for trial in found.trials:
        step_s = DECODE_S[trial.case.feed.decoder or ""] / trial.case.feed.workers
        assert trial.rates == pytest.approx([64 / step_s] * len(trial.rates), rel=0.02)
    assert [(final.case.feed.decoder, final.is_default, len(final.runs)) for final in facts.finals] == [
        ("turbojpeg", False, 3), ("torchvision", False, 3), ("pillow", True, 3)
    ]  # fmt: skip
    assert sum(line.startswith("rung 1") for line in lines) == 8
    assert sum(line.startswith("final, round") for line in lines) == 9
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_setting_that_cannot_be_measured_is_kept_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: Case) -> None:
        if case.feed.decoder == "turbojpeg":
            raise JobFailed(Failure("CaseFailed", "the decoder is gone"))

    tuned(tmp_path, Machine(pipeline_of, before=fail), monkeypatch)
    found = assert_kept(tmp_path, "tune").findings
    assert isinstance(found, Tuning) and found.winner is not None and found.winner.feed.decoder == "torchvision"
    # the look at its loader alone failed, so no time was spent on its trials
    facts = only_study(tmp_path).facts
    assert isinstance(facts, TuneFacts)
    failed = [one for one in facts.screens if one.failure is not None]
    assert [(one.case.feed.decoder, one.failure, one.samples_per_s) for one in failed] == [
        ("turbojpeg", "the decoder is gone", None)
    ] * 2
    assert {trial.case.feed.decoder for trial in found.trials} == {"pillow", "torchvision", "opencv"}
    assert facts.untried == ()


def test_a_trial_that_fails_is_kept_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(case: Case) -> None:
        if case.feed.decoder == "turbojpeg" and len(machine.screened) == len(SETTINGS):
            raise JobFailed(Failure("CaseFailed", "the decoder is gone"))

    machine = Machine(pipeline_of, before=fail)
    tuned(tmp_path, machine, monkeypatch)
    found = assert_kept(tmp_path, "tune").findings
    assert isinstance(found, Tuning) and found.winner is not None and found.winner.feed.decoder == "torchvision"
    failed = [trial for trial in found.trials if trial.failure is not None]
    assert {(trial.case.feed.decoder, trial.failure, trial.rates) for trial in failed} == {
        ("turbojpeg", "the decoder is gone", ())
    }
    # as failed runs of its own they lie in its folder
    own = Store(tmp_path / only_study(tmp_path).study_id / "runs").runs()
    assert sorted(run.status for run in own if run.status != "ok") == ["failed"] * 2


def test_a_default_that_fails_is_said_where_it_fails_and_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a default that is none of the settings, and cannot be measured
    def fail(case: Case) -> None:
        if case.feed.decoder == "pillow":
            raise JobFailed(Failure("ConfigError", "unknown option 'scale' of pillow"))

    Machine(pipeline_of, before=fail).install(monkeypatch)
    lines: list[str] = []
    search = Tune(
        [case for case in SETTINGS if case.feed.decoder != "pillow"], DEFAULT, 120.0, Store(tmp_path), lines.append
    )
    study = search.run()
    assert "the default failed: unknown option 'scale' of pillow" in lines
    assert search.num_failed == 3  # once a round
    text = " ".join(shown(study).split())
    assert "over default the default failed: unknown option 'scale' of pillow" in text
    assert "it is the default" not in text


def test_a_search_that_failed_in_part_exits_with_1(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: Case) -> None:
        if case.feed.decoder == "turbojpeg":
            raise JobFailed(Failure("CaseFailed", "the decoder is gone"))

    asked = ("tune", small_set, "--res", "96", *commands.DEVICE, "--loader", "multiprocess", "--workers", "1,2",
             "--prefetch", "2", "--quiet", "--results", tmp_path)  # fmt: skip
    Machine(pipeline_of, before=fail).install(monkeypatch)
    assert commands.call(*asked, "--decoder", "pillow,turbojpeg").code == 1
    Machine(pipeline_of).install(monkeypatch)
    assert commands.call(*asked, "--decoder", "pillow,turbojpeg").code == 0


def shown(study: StudyRecord) -> str:
    out = io.StringIO()
    assert study.findings is not None
    print_findings(study.facts, study.findings, Console(file=out, width=200))
    return out.getvalue()


# -- what is tried first -----------------------------------------------------------------------------------------


def test_what_stored_runs_found_fast_is_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a sweep in the same results folder, in which one of 8 settings was the fastest …
    store = Store(tmp_path)
    Machine(pipeline_of).install(monkeypatch)
    for case in (SETTINGS[3], SETTINGS[5], SETTINGS[0]):
        measure_case(case, store, unwatched)
    # … and runs of another step and another data set, which say nothing
    for other in ({"batch_size": 16}, {"dataset": "/elsewhere"}, {"model": "vit_b_16"}):
        measure_case(SETTINGS[7].changed(**other), store, unwatched)
    first = likely(SETTINGS, store)
    assert [(case.feed.decoder, case.feed.workers) for case in first[:2]] == [("turbojpeg", 2), ("torchvision", 2)]
    # then it is among the two that the smallest budget measures, whatever its loader alone seems to do
    order = ranked(fair_order(SETTINGS, 0), first, [TuneScreen(SETTINGS[6], 1e9)])
    assert [case.key for case in order[:2]] == [first[0].key, first[1].key]
    assert len(order) == len(SETTINGS)


def test_what_a_stored_run_advises_is_tried_before_what_it_measured(tmp_path: Path) -> None:
    gain = Estimate(3.0, 2.5, 3.5, "ratio", 12, "made up")
    advised = Advice("other_decoder", "prep", {"decoder": "turbojpeg"}, gain)
    record = make_record(
        SETTINGS[1], throughput=make_estimate(500.0), verdict=Verdict("prep", advice=(advised,)),
        environment=environment(),
    )  # fmt: skip
    folder = Store(tmp_path).open_run(record.case)
    folder.write_record(replace(record, run_id=folder.run_id))
    first = likely(SETTINGS, Store(tmp_path))
    assert [(case.feed.decoder, case.feed.workers) for case in first] == [("turbojpeg", 2), ("pillow", 2)]


def test_the_fastest_loaders_alone_come_first_and_others_of_their_kind_follow() -> None:
    cases = [case.changed(prefetch=prefetch) for case in SETTINGS for prefetch in (2, 4)]
    assert len(representatives(cases)) == len(SETTINGS)
    screens = [TuneScreen(SETTINGS[2], 300.0), TuneScreen(SETTINGS[0], 100.0), TuneScreen(SETTINGS[4], None, "gone")]
    order = ranked(cases, (), screens)
    # turbojpeg's (300), one of each kind not looked at, turbojpeg's others, pillow's (100)
    assert [case.feed.decoder for case in order[:3]] == ["turbojpeg", "torchvision", "opencv"]
    assert [case.feed.decoder for case in order[3:10]] == ["turbojpeg"] * 3 + ["pillow"] * 4
    # torchvision with one worker is known to fail
    assert len(order) == 14 and all(case.feed.decoder != "torchvision" or case.feed.workers == 2 for case in order)


def test_a_kind_that_was_not_looked_at_is_tried_before_more_of_one_that_was() -> None:
    order = ranked(SETTINGS, (), [TuneScreen(SETTINGS[2], 300.0), TuneScreen(SETTINGS[3], 400.0)])
    kinds = [case.feed.decoder for case in order]
    assert kinds == ["turbojpeg", "pillow", "torchvision", "opencv", "turbojpeg", "pillow", "torchvision", "opencv"]
    assert order[0].feed.workers == 2


@pytest.mark.slow
def test_what_was_not_tried_is_said_and_the_winner_is_not_called_the_fastest_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [case.changed(prefetch=prefetch) for case in SETTINGS for prefetch in (2, 4, 8, 16)]
    Machine(pipeline_of).install(monkeypatch)
    study = Tune(many, DEFAULT, 60.0, Store(tmp_path), lambda line: None).run()
    facts, found = study.facts, study.findings
    assert isinstance(facts, TuneFacts) and isinstance(found, Tuning)
    num = len(found.trials)
    assert 2 <= num < 32 and len(facts.screens) == 8
    measured = {final.case.key for final in facts.finals} | {trial.case.key for trial in facts.trials}
    assert len(facts.untried) == 32 - len(measured & {case.key for case in many})
    # the fastest of all is among those that were tried
    assert found.winner is not None and (found.winner.feed.decoder, found.winner.feed.workers) == ("turbojpeg", 2)
    text = " ".join(shown(study).split())
    assert f"fastest of the {num} settings tried, of 32: --loader" in text and "8 by the loader alone" in text
    told = " ".join(text.split())
    assert "Not tried " in told and " of multiprocess" in told and "; a larger --budget tries more" in told
    assert_kept(tmp_path, "tune")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), pytest.param(SystemExit(143), marks=pytest.mark.slow)])
@pytest.mark.parametrize("moment", ["in the first rung", "in the second rung", "in the finals"])
def test_an_interrupted_search_keeps_what_was_measured(
    moment: str, stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_before = {"in the first rung": 3, "in the second rung": 8 + 2, "in the finals": 8 + 4 + 5}[moment]

    def interrupt(case: Case) -> None:
        if len(machine.measured) == num_before:
            raise stop

    machine = Machine(pipeline_of, before=interrupt)
    with pytest.raises(type(stop)):
        tuned(tmp_path, machine, monkeypatch)
    study = assert_kept(tmp_path, "tune")
    assert isinstance(study.facts, TuneFacts) and isinstance(study.findings, Tuning)
    assert sum(record.status == "ok" for record in records_of(study, Store(tmp_path)).values()) == num_before
    assert study.facts.num_rungs == {"in the first rung": 0, "in the second rung": 1, "in the finals": 2}[moment]
    assert (study.findings.winner is None) == (moment != "in the finals")
    # an unfinished rung compares nothing
    assert max(len(trial.rates) for trial in study.findings.trials) == max(study.facts.num_rungs, 1)


@pytest.mark.parametrize(
    ("num_before", "by"),
    [(0, None), (3, "a short measurement (rung 1)"), (10, "a short measurement"), (17, "the finals so far")],
)
def test_an_interrupted_search_gives_the_best_so_far(
    num_before: int, by: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(case: Case) -> None:
        if len(machine.measured) == num_before:
            raise KeyboardInterrupt

    machine = Machine(pipeline_of, before=interrupt).install(monkeypatch)
    search = Tune(SETTINGS, DEFAULT, 120.0, Store(tmp_path), lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    best = search.best_so_far()
    if by is None:
        assert best is None
        return
    assert best is not None and best[2].startswith(by)
    # of all that was measured it is the one that the simulation made fastest
    step_s = min(DECODE_S[case.feed.decoder or ""] / case.feed.workers for case in machine.measured)
    assert DECODE_S[best[0].feed.decoder or ""] / best[0].feed.workers == step_s
    assert best[1] == pytest.approx(64 / step_s, rel=0.02)


def test_where_nothing_can_be_measured_that_is_said_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaseFailed, match="no setting could be measured: the disk is gone"):
        tuned(tmp_path, Machine(pipeline_of, before=broken), monkeypatch)
    found = assert_kept(tmp_path, "tune", num_runs=0).findings
    assert isinstance(found, Tuning) and found.winner is None and found.rate is None


def test_finalists_that_break_off_are_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(case: Case) -> None:
        if len(machine.measured) >= 12:
            raise JobFailed(Failure("CaseFailed", "the disk is gone"))

    machine = Machine(pipeline_of, before=fail)
    with pytest.raises(CaseFailed, match="no finalist could be measured; see `loaderbench list`"):
        tuned(tmp_path, machine, monkeypatch)
    study = assert_kept(tmp_path, "tune")
    assert isinstance(study.findings, Tuning) and study.findings.winner is None and len(study.runs) == 9


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_smallest_budget_searches_and_keeps_everything(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, results = tmp_path / "tmp", tmp_path / "results"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    ended = commands.run(
        "tune", small_set, "--res", "96", *commands.DEVICE, "--loader", "serial,threaded", "--decoder", "pillow",
        "--workers", "1", "--prefetch", "2", "--budget", "60", "--quiet", "--json", "-", "--results", results,
        timeout_s=240,
    )  # fmt: skip
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    study = assert_kept(results, "tune")
    assert found["study_id"] == study.study_id
    assert json.loads(commands.call("show", study.study_id, "--results", results, "--json", "-").out) == found
    assert len(found["finalists"]) in (2, 3) and found["winner"]["loader"] in ("serial", "threaded", "multiprocess")
    assert {run for final in found["finalists"] for run in final["run_ids"]} == set(study.runs)
    assert found["rate"]["n"] == 3 and "--loader" in found["flags"] and found["snippet"]
    # serial with Pillow, the same with samples straight into their batch, threaded with Pillow
    assert found["num_settings"] == 3 and len(study.own_runs) == sum(len(trial["rates"]) for trial in found["trials"])
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("seed", range(6))
def test_the_default_is_what_a_user_of_pytorch_has_whatever_the_order(seed: int, small_set: Path) -> None:
    loaders = ["threaded", "multiprocess"]
    asked = read_options({"res": 96, "loader": loaders, "workers": 2, "device": "emulated", "seed": seed})
    _, default = plan_tuning(asked, str(small_set), on_note=lambda line: None, progress=lambda done, of: None)
    feed = default.feed
    assert (feed.loader, feed.decoder, feed.decode_scale, feed.output) == ("multiprocess", "pillow", None, "float32")
    assert (feed.loader_options, feed.decoder_options) == ({}, {})


# -- ways of a decoder and a loader ------------------------------------------------------------------------------

SCALED = [BASE.changed(decoder="libjpeg", decode_scale=scale, workers=workers, prefetch=2)
          for scale in ("off", "auto") for workers in (1, 2)]  # fmt: skip
needs_libjpeg = pytest.mark.skipif(
    plugins.missing(plugins.DECODERS.built_in["libjpeg"].traits.needs) is not None, reason="libjpeg cannot be built"
)


@needs_libjpeg
@pytest.mark.parametrize(
    ("size", "decode_scale", "scales"),
    [(32, None, {"off", "auto"}), (32, "off", {"off"}), (32, "auto", {"auto"}), (64, None, {"off"})],
    ids=["large pictures", "refused", "nothing else", "small pictures"],
)
def test_every_way_of_a_decoder_and_a_loader_is_a_setting(
    size: int, decode_scale: str | None, scales: set[str], small_set: Path
) -> None:
    asked = read_options(
        {
            "res": 96, "loader": "multiprocess,threaded", "decoder": "pillow,libjpeg", "workers": 1, "prefetch": 2,
            "device": "emulated", "input_size": size, "decode_scale": decode_scale,
        },
        of="tune",
    )  # fmt: skip
    cases, _ = plan_tuning(asked, str(small_set), on_note=lambda line: None, progress=lambda done, of: None)
    pillows = {("multiprocess", ""), ("multiprocess", "direct"), ("threaded", "")}
    feeds = [one.feed for one in cases]
    by_pillow = [(one.loader, one.loader_options.get("samples", "")) for one in feeds if one.decoder == "pillow"]
    by_libjpeg = [(one.loader, one.decode_scale) for one in feeds if one.decoder == "libjpeg"]
    both = {(loader, scale) for loader in ("multiprocess", "threaded") for scale in scales}
    assert set(by_pillow) == pillows and set(by_libjpeg) == both
    assert len({describe(one) for one in cases}) == len(cases) == len(pillows) + len(both)


def scaled_pipeline(case: Case, injection: Injection) -> Pipeline:
    """Scaled decoding takes two thirds."""
    took = 0.060 if case.feed.decode_scale == "off" else 0.040 if case.feed.decode_scale == "auto" else 0.120
    return Pipeline(device=0.010, decode=took, workers=case.feed.workers)


def test_a_winner_that_changes_pixels_says_by_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(scaled_pipeline).install(monkeypatch)
    study = Tune(SCALED, DEFAULT, 120.0, Store(tmp_path), lambda line: None).run()
    found = assert_kept(tmp_path, "tune").findings
    assert isinstance(found, Tuning) and found.winner is not None
    assert (found.winner.feed.decode_scale, found.winner.feed.workers) == ("auto", 2)
    assert found.over_second is not None and found.over_second.value == pytest.approx(1.5, rel=0.02)
    # asked once, of the decoder, before the finals
    assert [case.feed.decode_scale for case in machine.compared] == ["auto"]
    assert found.pixels == PixelDifference(2.0, 5.0, 0.75, 4) and found.no_pixels is None
    text = " ".join(shown(study).split())
    assert "changes pixels by 2.00 of 255 levels on average, and by 5.00 in the most changed of 4 samples; 75%" in text
    assert "--decode-scale off searches without it" in text
    told = as_json(study.facts, found, study.study_id)
    assert told["pixels"] == {"mean": 2.0, "most": 5.0, "scaled_fraction": 0.75, "num_samples": 4}
    assert "--decode-scale auto" in str(told["flags"])
    # and where the winner decodes at full size nothing is said of pixels
    facts = study.facts
    assert isinstance(facts, TuneFacts)
    others = tuple(final for final in facts.finals if final.case.feed.decode_scale != "auto")
    full = judged_tuning(replace(facts, finals=others), records_of(study, Store(tmp_path)))
    assert full.winner is not None and full.pixels is None and full.no_pixels is None


def test_pixels_that_could_not_be_compared_are_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: Case) -> None:
        if len(machine.measured) == len(SCALED) and not failed:  # behind the only rung
            failed.append(case)
            raise JobFailed(Failure("CaseFailed", "the disk is gone"))

    failed: list[Case] = []
    machine = Machine(scaled_pipeline, before=fail).install(monkeypatch)
    study = Tune(SCALED, DEFAULT, 120.0, Store(tmp_path), lambda line: None).run()
    found = study.findings
    assert isinstance(found, Tuning) and found.winner is not None and found.winner.feed.decode_scale == "auto"
    assert (found.pixels, found.no_pixels) == (None, "the disk is gone")
    assert "--decode-scale auto not compared: the disk is gone" in " ".join(shown(study).split())


def test_what_a_stored_run_advises_of_the_scale_is_tried_first(tmp_path: Path) -> None:
    gain = Estimate(3.0, 2.5, 3.5, "ratio", 12, "made up")
    advised = (
        Advice("scaled_decode", "prep", {"decode_scale": "auto"}, gain),
        Advice("direct_samples", "prep", {"loader_options": {"samples": "direct"}}, gain),
    )
    record = make_record(
        SCALED[1], throughput=make_estimate(500.0), verdict=Verdict("prep", advice=advised), environment=environment()
    )
    folder = Store(tmp_path).open_run(record.case)
    folder.write_record(replace(record, run_id=folder.run_id))
    first = likely(SCALED, Store(tmp_path))
    # samples=direct is none of these settings
    assert [(case.feed.decode_scale, case.feed.workers) for case in first] == [("auto", 2), ("off", 2)]


def test_a_kind_is_looked_at_with_each_of_its_ways() -> None:
    order = ranked(SCALED, (), [TuneScreen(SCALED[0], 300.0)])
    assert [case.feed.decode_scale for case in order] == ["off", "auto", "off", "auto"]


@needs_libjpeg
def test_the_command_that_measures_the_winner_again_says_all_that_was_asked(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a search of another step than the default's
    monkeypatch.chdir(tmp_path)
    asked = read_options(
        {
            "res": 96, "loader": "multiprocess", "decoder": "libjpeg,pillow", "workers": "1,2", "prefetch": 2,
            "device": "emulated", "input_size": 32, "batch_size": 8, "overlap": False, "seed": 3, "mode": "infer",
            "max_failures": 0.5,
        },
        of="tune",
    )  # fmt: skip
    cases, default = plan_tuning(asked, str(small_set), on_note=lambda line: None, progress=lambda done, of: None)
    Machine(scaled_pipeline).install(monkeypatch)
    study = Tune(cases, default, 120.0, Store(tmp_path), lambda line: None).run()
    assert isinstance(study.findings, Tuning) and study.findings.winner is not None
    winner = study.findings.winner
    (line,) = [line for line in shown(study).splitlines() if line.startswith("loaderbench run ")]
    # when a user enters it
    taken: list[tuple[Any, Any]] = []
    monkeypatch.setattr(run_command, "measure", lambda given, sets, *rest, **more: taken.append((given, sets)))
    assert commands.call(*shlex.split(line)[1:]).code == 0
    ((given, sets),) = taken
    (again,) = plan(given, find_data_sets(sets, given))
    # then it is the same case
    assert winner.feed.decode_scale == "auto"
    assert (again.feed, again.step, again.subject.cache) == (winner.feed, winner.step, winner.subject.cache)
    assert (again.effort.seed, again.effort.max_failure_fraction) == (3, 0.5)


def test_code_for_samples_straight_into_their_batch_is_that_of_our_loader(small_set: Path) -> None:
    case = BASE.changed(dataset=str(small_set / "96"), loader_options={"samples": "direct"})
    assert "ImageFolder" in snippet(case.changed(loader_options={}))
    assert "ImageFolder" not in snippet(case) and "{'samples': 'direct'}" in snippet(case)
