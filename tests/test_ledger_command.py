"""`loaderbench ledger`, and the section of the report that shows the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import call

from loaderbench.machine import environment
from loaderbench.recording.facts import Environment
from loaderbench.recording.files import json_bytes
from loaderbench.recording.ledger import LEDGER_KINDS
from loaderbench.recording.record import Range
from loaderbench.recording.store import Store
from loaderbench.reporting import figures
from loaderbench.reporting.anonymous import Anonymous
from loaderbench.reporting.html import render_html
from loaderbench.reporting.ledger import FILLED_BY, MEANS, error_text, ledger_figure, value_text
from loaderbench.reporting.markdown import render_markdown
from loaderbench.reporting.report import read_report
from loaderbench.studies.ledger import collect
from tests.ledger_records import (
    MIB,
    batch_memory,
    checked,
    forecast_study,
    gain,
    keep_run,
    keep_study,
    make_entry,
    memory_study,
    verified_run,
)
from tests.made import CASE, make_environment, make_record


@pytest.fixture
def here() -> Environment:
    return environment()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def shown(store: Store, *more: str) -> str:
    """What the command prints, its tables' rows on one line each: blanks joined."""
    ended = call("ledger", *more, "--results", store.root)
    assert (ended.code, ended.err) == (0, "")
    return "\n".join(" ".join(line.split()) for line in ended.out.splitlines())


def as_json(store: Store, *more: str) -> dict[str, Any]:
    ended = call("ledger", "--json", "-", *more, "--results", store.root)
    assert (ended.code, ended.err) == (0, "")
    found: dict[str, Any] = json.loads(ended.out)
    return found


# -- the tables --------------------------------------------------------------------------------------------


def test_scores_by_kind_and_the_entries_behind_them(
    store: Store, here: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    held, missed = gain(1.5, 1.4, 1.6, 1.53), gain(2.0, 1.8, 2.2, 2.4, change={"decoder": "turbojpeg"})
    keep_run(store, verified_run(held, missed, environment=here, started_at="2026-03-02T10:20:30+00:00"))
    keep_study(store, memory_study(batch_memory(8, 200 * MIB, 201 * MIB), environment=here))
    text = shown(store)
    # errors of −2.0 and −16.7 %: the median of two is their mean
    assert "gain gain of a piece of advice 2 9.3 % – -9.3 % 1 of 2" in text
    assert "memory peak of live memory of a step 1 0.5 % – -0.5 % –" in text
    assert "--workers 4 1.50× (1.40× – 1.60×) 1.53× -2.0 % yes" in text
    assert "--decoder turbojpeg 2.00× (1.80× – 2.20×) 2.40× -16.7 % no" in text
    assert "batch 8 on cpu 200 MiB 201 MiB -0.5 % –" in text
    assert re.search(r"^2026-03-02 10:20 gain", text, re.M)
    assert text.index("2026-03-02") < text.index("2026-01-01"), "the newest come first"
    assert "Not shown" not in text


def test_the_newest_are_shown_and_all_are_counted(store: Store, here: Environment) -> None:
    for day in range(1, 25):
        keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=here, started_at=f"2026-01-{day:02}T00:00"))
    text = shown(store)
    assert len(re.findall(r"2026-01-\d\d", text)) == 20 and "2026-01-24" in text and "2026-01-04" not in text
    assert "4 older entries; the scores count them; --last 24 shows all" in text and "24 of 24" in text
    assert "2026-01-01" in shown(store, "--last", "24") and "older" not in shown(store, "--last", "24")
    assert "23 older entries" in shown(store, "--last", "1")


def test_other_machines_count_only_where_they_are_asked_for(store: Store, here: Environment) -> None:
    keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=replace(here, packages={}, python="3.0")))
    keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 9.0), environment=make_environment(cpu_model="elsewhere")))
    keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 9.0), environment=None))
    text = shown(store)
    assert "1 of 1" in text and "9.00×" not in text and "2 entries of other machines; --all counts them" in text
    every = shown(store, "--all")
    assert "1 of 3" in every and "9.00×" in every and "other machines" not in every
    assert as_json(store)["num_elsewhere"] == 2 and as_json(store, "--all")["num_elsewhere"] == 0


def test_some_kinds_alone(store: Store, here: Environment) -> None:
    keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=here))
    keep_study(store, memory_study(batch_memory(8, 200 * MIB, 201 * MIB), environment=here))
    assert set(as_json(store, "--kind", "memory")["scores"]) == {"memory"}
    assert set(as_json(store, "--kind", "memory", "--kind", "gain")["scores"]) == {"memory", "gain"}
    text = shown(store, "--kind", "fit")
    assert text.startswith("No measured prediction of the kind fit is stored.") and "model fit" in text


def test_an_empty_ledger_says_what_fills_it(store: Store) -> None:
    text = " ".join(shown(store).split())
    assert text.startswith("No measured prediction is stored.")
    for maker in ("forecast --check", "run --verify", "model memory", "model fit", "model split"):
        assert f"`loaderbench {maker}`" in text
    assert as_json(store) == {"scores": {}, "entries": [], "num_elsewhere": 0, "num_unreadable": 0}
    assert set(MEANS) == set(FILLED_BY) == set(LEDGER_KINDS)


def test_an_empty_ledger_of_a_store_with_others_entries_says_so(store: Store) -> None:
    keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=make_environment(cpu_model="elsewhere")))
    text = " ".join(shown(store).split())
    assert "stored for this machine" in text and "1 entry of other machines" in text


def test_json_has_the_figures_and_where_they_are_from(store: Store, here: Environment, tmp_path: Path) -> None:
    study = forecast_study([checked(Range(10.0, 9.0, 11.0), 12.5)])
    name = keep_study(store, replace(study, facts=replace(study.facts, environment=here)))
    target = tmp_path / "ledger.json"
    ended = call("ledger", "--json", target, "--results", store.root)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    found = json.loads(target.read_text())
    (entry,) = found["entries"]
    assert (entry["source_id"], entry["kind"], entry["unit"]) == (name, "epoch", "s")
    assert (entry["predicted"], entry["low"], entry["high"], entry["measured"]) == (10.0, 9.0, 11.0, 12.5)
    assert entry["error_fraction"] == pytest.approx(-0.2) and (entry["held"], entry["score"]) == (False, 0.5)
    machine = entry["machine"]
    assert (machine["cpu_model"], machine["cpus_usable"]) == (here.cpu_model, here.cpus_usable)
    assert len(machine["gpus"]) == len(here.gpus) and len(machine) == 3
    assert found["scores"]["epoch"]["coverage_fraction"] == 0 and found["scores"]["epoch"]["num_intervals"] == 1


# -- what a store may hold ---------------------------------------------------------------------------------


def test_what_cannot_be_read_is_left_out_and_counted(store: Store, here: Environment) -> None:
    good, bad = (keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=here)) for _ in range(2))
    whole, damaged, newer = (
        keep_study(store, memory_study(batch_memory(8, 200 * MIB, 201 * MIB), environment=here)) for _ in range(3)
    )
    (store.root / bad / "run.json").write_text('{"schema": 2, "run')
    (store.root / damaged / "study.json").write_text("")
    value = json.loads((store.root / newer / "study.json").read_text())
    (store.root / newer / "study.json").write_text(json.dumps({**value, "kind": "of the future"}))
    found = collect(store)
    assert {entry.source_id for entry in found.entries} == {whole, good}
    assert found.num_unreadable == 3
    assert "3 runs and studies that cannot be read; `loaderbench list` says why" in shown(store)
    assert as_json(store)["num_unreadable"] == 3


def test_a_run_is_read_in_whole_where_a_gain_was_measured(store: Store, here: Environment) -> None:
    measured = keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=here))
    others = [keep_run(store, record) for record in (verified_run(gain(1.5, 1.4, 1.6, None)), make_record(CASE))]
    for run in (measured, *others):  # what tells of no gain
        spoil(store, run, wall_s="long")
    found = collect(store)
    assert (found.entries, found.num_unreadable) == ((), 1)
    for run in others:
        spoil(store, run, verdict=3)
    assert collect(store).num_unreadable == 3


def spoil(store: Store, run: str, **fields: Any) -> None:
    path = store.root / run / "run.json"
    path.write_bytes(json_bytes({**json.loads(path.read_bytes()), **fields}))


def test_a_run_without_a_record_is_not_damaged(store: Store) -> None:
    store.open_run(CASE)  # it is being measured
    assert collect(store).num_unreadable == 0 and collect(Store(store.root / "nosuch")).entries == ()


def test_no_raw_facts_are_needed(store: Store, here: Environment) -> None:
    run = keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=here))
    for name in ("facts.json", "arrays.npz"):
        (store.root / run / name).write_text("damaged")
    found = collect(store)
    assert len(found.entries) == 1 and found.num_unreadable == 0


def test_what_is_removed_is_gone_from_the_ledger_too(store: Store, here: Environment) -> None:
    keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=here))
    study = keep_study(store, memory_study(batch_memory(8, 200 * MIB, 201 * MIB), environment=here))
    assert set(as_json(store)["scores"]) == {"gain", "memory"}
    assert call("rm", study, "--yes", "--results", store.root).code == 0
    assert set(as_json(store)["scores"]) == {"gain"}


# -- the report --------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[Any], str]] = {"html": render_html, "md": render_markdown}


@pytest.mark.parametrize("form", FORMS)
def test_a_report_shows_the_scores_of_what_it_shows(form: str, store: Store) -> None:
    run = keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.8), case=CASE.changed(workers=3)))
    study = keep_study(store, memory_study(batch_memory(8, 200 * MIB, 201 * MIB)))
    whole = FORMS[form](read_report(store))
    assert "Predictions" in whole and "gain of a piece of advice" in whole and "peak of live memory" in whole
    assert "2 predictions were measured; median error: gain 16.7 %, memory 0.5 %; 0 of 1 interval held." in whole
    for name, has, lacks in (
        (run, "gain of a piece of advice", "peak of live memory of a step"),
        (study, "peak of live memory of a step", "gain of a piece of advice"),
    ):
        some = FORMS[form](read_report(store, names=[name]))
        assert has in some and lacks not in some and "1 prediction was measured" in some


def test_a_report_of_runs_that_predict_nothing_has_no_such_section(store: Store) -> None:
    keep_run(store, verified_run(gain(1.5, 1.4, 1.6, None)))
    report = read_report(store)
    assert report.predictions is None and "ledger-predictions" not in {figure.name for figure in report.figures}
    assert "Predictions" not in render_html(report) and "Predictions" not in render_markdown(report)


def test_a_report_says_that_entries_are_of_several_machines(store: Store) -> None:
    for environment_ in (make_environment(), make_environment(), make_environment(64)):
        keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5), environment=environment_))
    report = read_report(store)
    assert report.predictions is not None
    assert report.predictions.tables[0].note.endswith("The entries are of 2 machines.")


def test_the_figure_is_written_with_the_others(store: Store, tmp_path: Path) -> None:
    keep_run(store, verified_run(gain(1.5, 1.4, 1.6, 1.5)))
    ended = call("report", "--format", "svg", "--out", tmp_path / "figures", "--results", store.root)
    assert ended.code == 0 and "gain: 1 prediction" in (tmp_path / "figures" / "ledger-predictions.svg").read_text()


@pytest.mark.parametrize("form", FORMS)
def test_an_anonymous_report_leaks_nothing_through_it(form: str, store: Store) -> None:
    case = CASE.changed(
        dataset="/srv/projekt-x/photos", dataset_name="photos", device="emulated:/srv/secret-9/card.toml",
        model="resnet50",
    )  # fmt: skip
    advice = gain(1.5, 1.4, 1.6, 1.5, change={"cache": "warm", "dataset": "/srv/projekt-x/photos"})
    keep_run(store, verified_run(advice, case=case))
    keep_study(store, forecast_study([checked(Range(1.0, 0.9, 1.1), 1.0)], setting="gpu-node-417: /srv/projekt-x/a"))
    report = read_report(store, anonymous=Anonymous())
    assert report.predictions is not None
    rows = [str(row) for figure in report.figures_of_predictions for row in figure.rows]
    hidden = FORMS[form](report) + "".join(rows)
    assert len(rows) == 2 and any("data set 1" in row for row in rows)
    assert [token for token in ("projekt", "photos", "secret-9", "gpu-node", str(store.root)) if token in hidden] == []
    open_rows = str([figure.rows for figure in read_report(store).figures if figure.name == "ledger-predictions"])
    assert all(token in open_rows for token in ("projekt", "secret-9", "gpu-node"))


@pytest.mark.parametrize("ratios", [[1.0], [1.0003] * 3, [0.9, 1.1] * 100, [30.0, 1.0], [1e-150, 1e150]])
def test_any_number_of_entries_can_be_drawn(ratios: list[float]) -> None:
    entries = [
        make_entry(kind, 1.0, ratio, low=low, high=1.1)
        for kind in LEDGER_KINDS
        for ratio in ratios
        for low in (None, -0.5, 0.9)
    ]
    figure = ledger_figure(entries)
    drawn = figures.svg(figure)
    assert all(f"{kind}: {3 * len(ratios)} predictions" in drawn for kind in LEDGER_KINDS)
    over = figure.columns.index("measured_over_predicted")
    assert [row[over] for row in figure.rows] == [entry.measured for entry in entries]
    assert {row[-1] for row in figure.rows} >= {"no interval"}


# -- words -------------------------------------------------------------------------------------------------


def test_values_have_the_unit_that_their_command_gives_them() -> None:
    assert [value_text(*one) for one in ((1.84, "s"), (1.6, "ratio"), (200.0 * MIB, "bytes"), (1024.0, "images"))] == [
        "1.84 s", "1.60×", "200 MiB", "1,024",
    ]  # fmt: skip


def test_an_error_is_as_fine_as_it_is_small() -> None:
    assert [error_text(one, signed=True) for one in (0.062, -0.062, 0.0003, 0.0, 0.000001, 2.5)] == [
        "+6.2 %", "-6.2 %", "+0.03 %", "0 %", "0.00 %", "+250 %",
    ]  # fmt: skip
    assert error_text(None) == "–" and error_text(0.1) == "10.0 %"
