"""`loaderbench analyze`: real runs judged again, as they were stored, tampered with, and robbed of their facts."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from commands import DEVICE, TINY, Ended, call

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.recording.store import Store


@pytest.fixture(scope="module")
def measured(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run, and with a sweep of two."""
    results = tmp_path_factory.mktemp("measured")
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--loader", "threaded", "--results", results)
    assert (ended.code, ended.err) == (0, "")
    sweep = ("sweep", small_set, "--res", "96", "--loader", "synthetic,serial", *TINY, "--arms", "device,real")
    ended = commands.run(*sweep, "--results", results)
    assert (ended.code, ended.err) == (0, "")
    return results


@pytest.fixture
def results(measured: Path, tmp_path: Path) -> Path:
    """The store, to be spoilt."""
    return Path(shutil.copytree(measured, tmp_path / "results"))


def first_run(results: Path) -> Path:
    """The folder of the run of all arms."""
    return sorted(path.parent for path in results.glob("*/run.json"))[0]


def analyze(results: Path, *arguments: str) -> Ended:
    return call("analyze", *arguments, "--results", results)


def as_json(results: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and entries."""
    ended = analyze(results, *arguments, "--json", "-", "--quiet")
    assert ended.err == ""
    return ended.code, json.loads(ended.out)


def unwrapped(ended: Ended) -> str:
    """What was printed, its lines joined."""
    return " ".join(ended.out.split())


def change_record(folder: Path, **values: Any) -> dict[str, Any]:
    """Set fields of run.json; the record before."""
    before: dict[str, Any] = json.loads((folder / "run.json").read_bytes())
    (folder / "run.json").write_text(json.dumps({**before, **values}))
    return before


def change_table(folder: Path, name: str, change: Any) -> None:
    """Replace a table of arrays.npz by `change(table)`."""
    with np.load(folder / "arrays.npz") as stored:
        tables = {place: stored[place] for place in stored.files}
    tables[name] = change(tables[name].copy())
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **tables)
    (folder / "arrays.npz").write_bytes(buffer.getvalue())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# -- as it was stored ----------------------------------------------------------------------------------------


def test_a_run_is_reproduced_exactly(measured: Path) -> None:
    before = {folder: contents(folder) for folder in measured.iterdir()}
    for name in ("latest", first_run(measured).name, first_run(measured).name[:19]):
        ended = analyze(measured, name)
        assert (ended.code, ended.err) == (0, "")
        assert f"reproduced exactly by rules {RULES_VERSION}" in unwrapped(ended)
    # the record itself is printed, as `show` does
    shown = call("show", first_run(measured).name, "--results", measured)
    assert analyze(measured, first_run(measured).name).out.startswith(shown.out)
    assert {folder: contents(folder) for folder in measured.iterdir()} == before


def test_all_counts_runs_and_studies(measured: Path) -> None:
    ended = analyze(measured, "--all")
    assert ended.code == 0
    assert unwrapped(ended) == f"4 of 4 are reproduced exactly by rules {RULES_VERSION}"
    code, entries = as_json(measured, "--all")
    study = next(path.parent.name for path in measured.glob("*/study.json"))
    runs = sorted(path.parent.name for path in measured.glob("*/run.json"))
    assert code == 0 and [entry["name"] for entry in entries] == [*runs, study]
    for entry in entries:
        assert entry["reproduced"] is True and entry["differences"] == [] and entry["problem"] is None
        assert entry["rules_version"] == RULES_VERSION
        if entry["name"] in runs:
            assert entry["record"] == json.loads((measured / entry["name"] / "run.json").read_bytes())


def test_a_study_is_reproduced_from_its_runs_facts(results: Path) -> None:
    study = next(results.glob("*/study.json"))
    ended = analyze(results, study.parent.name)
    assert (ended.code, ended.err) == (0, "") and "reproduced exactly" in unwrapped(ended)
    # a figure of one of its runs is not taken from the run's record …
    for run in json.loads(study.read_bytes())["runs"]:
        change_record(results / run, throughput=None)
    assert analyze(results, study.parent.name).code == 0
    # … and a figure of its own is held against theirs
    value = json.loads(study.read_bytes())
    rate = value["findings"]["rows"][0]["rate"]["value"]
    value["findings"]["rows"][0]["rate"]["value"] = 1.5
    study.write_text(json.dumps(value))
    ended = analyze(results, study.parent.name, "--diff")
    assert ended.code == 1 and f"rows[0].rate.value: 1.5 → {rate}" in unwrapped(ended)
    # … which stays, and is said to
    before = study.read_bytes()
    assert (
        f"{study.parent.name} is a study, so --save left it unchanged"
        in analyze(results, study.parent.name, "--save").err
    )
    assert study.read_bytes() == before


def test_it_imports_no_torch(measured: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "loaderbench", "analyze", "--all", "--results", str(measured)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"loaderbench.analysis.record", "numpy"} <= imported
    assert not {name.partition(".")[0] for name in imported} & {"torch", "torchvision", "matplotlib", "PIL"}


# -- what was changed ----------------------------------------------------------------------------------------


def test_a_changed_figure_is_found(results: Path) -> None:
    folder = first_run(results)
    before = change_record(
        folder, throughput={**json.loads((folder / "run.json").read_bytes())["throughput"], "value": 98765.4321}
    )
    ended = analyze(results, folder.name, "--diff")
    assert (ended.code, ended.err) == (1, "")
    assert "1 value differ" in unwrapped(ended) and "the facts, the record or the code changed" in unwrapped(ended)
    assert f"throughput.value: 98765.4321 → {before['throughput']['value']}" in unwrapped(ended)
    # without --diff the places are not told, but that there are some
    assert "98765.4321" not in analyze(results, folder.name).out
    code, (entry,) = as_json(results, folder.name)
    assert code == 1 and entry["reproduced"] is False and entry["only_rounding"] is False
    assert entry["differences"] == [
        {"place": "throughput.value", "stored": 98765.4321, "today": before["throughput"]["value"]}
    ]
    # of all it is the only one, beside the study, which is judged by the facts
    code, entries = as_json(results, "--all")
    assert code == 1 and [entry["name"] for entry in entries if not entry["reproduced"]] == [folder.name]
    counted = analyze(results, "--all")
    assert counted.code == 1 and "3 of 4 are reproduced exactly" in unwrapped(counted)
    assert "1 differ (--diff shows where)" in unwrapped(counted)


def test_a_changed_array_is_found(results: Path) -> None:
    # given steps of the real arm that end twice as late as they did
    folder, stored = first_run(results), json.loads((first_run(results) / "run.json").read_bytes())
    facts = json.loads((folder / "facts.json").read_bytes())
    place = next(one["steps"] for one in facts["recording"]["segments"] if one["arm"] == "real")

    def slower(steps: Any) -> Any:
        times = steps[:, :7]
        known = times >= 0
        times[known] = times[times > 0].min() + 2 * (times[known] - times[times > 0].min())
        return steps

    change_table(folder, place, slower)
    code, (entry,) = as_json(results, folder.name)
    assert code == 1 and "its digest differs from the stored one" in entry["problem"]
    # and the figures would tell too, as they do for runs from before there was a digest
    del facts["arrays_sha256"]
    (folder / "facts.json").write_text(json.dumps(facts))
    code, (entry,) = as_json(results, folder.name)
    assert code == 1 and entry["problem"] is None
    found = {one["place"]: (one["stored"], one["today"]) for one in entry["differences"]}
    before, today = found["throughput.value"]
    assert before == stored["throughput"]["value"] == pytest.approx(2 * today, rel=0.01)
    assert entry["record"]["throughput"]["value"] == today
    ended = analyze(results, folder.name, "--diff")
    assert ended.code == 1 and f"throughput.value: {before} → {today}" in unwrapped(ended)


def test_the_last_digits_are_another_processor_s(results: Path) -> None:
    folder = first_run(results)
    rate = json.loads((folder / "run.json").read_bytes())["throughput"]
    change_record(folder, throughput={**rate, "value": rate["value"] * (1 + 1e-12)})
    ended = analyze(results, folder.name)
    assert ended.code == 0 and "except the last digits of 1 values" in unwrapped(ended)
    code, (entry,) = as_json(results, folder.name)
    assert (code, entry["reproduced"], entry["only_rounding"]) == (0, False, True)
    # ten times what rounding may make is no rounding
    change_record(folder, throughput={**rate, "value": rate["value"] * (1 + 1e-8)})
    assert analyze(results, folder.name).code == 1


def test_older_rules_may_differ_and_the_difference_is_shown(results: Path) -> None:
    folder = first_run(results)
    rate = json.loads((folder / "run.json").read_bytes())["throughput"]
    change_record(folder, rules_version=RULES_VERSION - 1, throughput={**rate, "value": 12.5})
    ended = analyze(results, folder.name, "--diff")
    assert (ended.code, ended.err) == (0, "")
    assert f"2 values differ by rules {RULES_VERSION}, stored by rules {RULES_VERSION - 1}" in unwrapped(ended)
    assert f"rules_version: {RULES_VERSION - 1} → {RULES_VERSION}" in unwrapped(ended)
    assert f"throughput.value: 12.5 → {rate['value']}" in unwrapped(ended)
    code, (entry,) = as_json(results, folder.name)
    assert (code, entry["rules_version"], entry["reproduced"]) == (0, RULES_VERSION - 1, False)
    assert [one["place"] for one in entry["differences"]] == ["rules_version", "throughput.value"]


@pytest.mark.parametrize("arguments", [("latest",), ("--all",)])
def test_save_puts_today_s_record_in_place_and_leaves_the_facts(arguments: tuple[str, ...], results: Path) -> None:
    folder = sorted(path.parent for path in results.glob("*/run.json"))[-1]
    before = contents(folder)
    change_record(folder, rules_version=RULES_VERSION - 1, throughput=None, verdict=None)
    ended = analyze(results, *arguments, "--save")
    assert ended.code == 0
    again = analyze(results, *arguments)
    assert again.code == 0 and "reproduced exactly" in unwrapped(again) and "differ" not in unwrapped(again)
    # today's rules are those that it was stored with: it is what it was, to the byte
    assert contents(folder) == before
    assert set(before) == {"case.json", "facts.json", "arrays.npz", "run.json", "worker.log"}


def test_save_reaches_the_runs_that_only_a_study_has(results: Path) -> None:
    # given a study with a run in its own folder, as tune and selftest have them
    study, run = next(results.glob("*/study.json")).parent, first_run(results)
    (study / "runs").mkdir()
    own = Path(shutil.copytree(run, study / "runs" / run.name))
    value = json.loads((study / "study.json").read_bytes())
    (study / "study.json").write_text(json.dumps({**value, "own_runs": [run.name]}))
    before = contents(own)
    shutil.rmtree(run)
    change_record(own, rules_version=RULES_VERSION - 1, throughput=None)
    assert analyze(results, "--all", "--save").code in (0, 1)  # the study has one run more than it was judged with
    assert contents(own) == before and not run.exists()


def test_save_changes_nothing_where_nothing_differs(results: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in results.rglob("*") if path.is_file()}
    assert analyze(results, "--all", "--save").code == 0
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in results.rglob("*") if path.is_file()}
    assert after == before


def test_a_run_is_found_by_its_folder_too(results: Path, tmp_path: Path) -> None:
    elsewhere = Path(shutil.move(first_run(results), tmp_path / "elsewhere"))
    before = contents(elsewhere)
    assert call("analyze", elsewhere, "--results", results).code == 0
    change_record(elsewhere, rules_version=RULES_VERSION - 1)
    assert call("analyze", elsewhere, "--results", results, "--save").code == 0
    assert contents(elsewhere) == before


# -- what is missing -----------------------------------------------------------------------------------------


def without(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Any:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (without("facts.json"), "has no raw facts to analyse: facts.json is missing"),
        (without("arrays.npz"), "are damaged: recording.segments"),
        (cut("facts.json"), "are damaged: facts.json is not valid JSON"),
        (cut("arrays.npz"), "are damaged: its file of tables is not an archive"),
        (lambda folder: (folder / "facts.json").write_text("[]"), "are damaged"),
        (lambda folder: (folder / "facts.json").write_text('{"schema": 99}'), "reads up to 2: upgrade loaderbench"),
    ],
)
def test_a_run_without_whole_facts_is_a_problem_in_one_line(spoil: Any, says: str, results: Path) -> None:
    folder = first_run(results)
    spoil(folder)
    code, (entry,) = as_json(results, folder.name)
    assert code == 1 and entry["record"] is None and entry["reproduced"] is False
    assert "\n" not in entry["problem"] and folder.name in entry["problem"] and says in entry["problem"]
    ended = analyze(results, folder.name)
    assert (ended.code, ended.err) == (1, "") and says in unwrapped(ended) and "Traceback" not in ended.out
    # the others are judged all the same
    every = analyze(results, "--all")
    assert every.code == 1
    assert f"3 of 4 are reproduced exactly by rules {RULES_VERSION}; 1 cannot be judged" in unwrapped(every)
    # and nothing is put in the place of what it was judged to be when it had them
    record = (folder / "run.json").read_bytes()
    assert analyze(results, folder.name, "--save").code == 1
    assert (folder / "run.json").read_bytes() == record


def test_a_study_without_one_of_its_runs_is_a_problem(results: Path) -> None:
    study = next(results.glob("*/study.json"))
    run = json.loads(study.read_bytes())["runs"][0]
    shutil.rmtree(results / run)
    code, (entry,) = as_json(results, study.parent.name)
    assert code == 1 and run in entry["problem"]


def test_runs_without_a_record_are_told_of(results: Path) -> None:
    folder = first_run(results)
    (folder / "run.json").unlink()
    ended = analyze(results, folder.name)
    assert ended.code == 1 and "ended before its result was written" in unwrapped(ended)
    assert "images/s" in ended.out, "its facts are there, and are judged"
    (folder / "run.json").write_text("{")
    ended = analyze(results, folder.name)
    assert ended.code == 1 and "damaged" in unwrapped(ended)


def test_a_run_that_is_being_measured_or_crashed_is_not_judged_with_all(results: Path, small_set: Path) -> None:
    case = Store(results).load_run(first_run(results).name).case
    Store(results).open_run(case)  # by this process, which lives
    crashed = Store(results).open_run(case)
    (crashed.path / "running.json").unlink()
    ended = analyze(results, "--all")
    assert ended.code == 0 and unwrapped(ended).startswith("4 of 4 are reproduced exactly")
    alone = analyze(results, crashed.run_id)
    assert alone.code == 1 and "has no raw facts to analyse" in unwrapped(alone)


@pytest.mark.parametrize("arguments", [(), ("latest", "--all")])
def test_a_run_or_all_and_not_both(arguments: tuple[str, ...], measured: Path) -> None:
    ended = analyze(measured, *arguments)
    assert (ended.code, ended.out) == (2, "") and "needs a RUN; try `loaderbench analyze latest`, or --all" in ended.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nosuch",), "begins with 'nosuch'"),
        (("--all", "--json", "nosuch/x.json"), "there is no folder nosuch"),
    ],
)
def test_what_is_not_there_is_refused(arguments: tuple[str, ...], says: str, measured: Path) -> None:
    ended = analyze(measured, *arguments)
    assert (ended.code, ended.out, len(ended.lines)) == (2, "", 1) and says in ended.err


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    ended = analyze(tmp_path, "--all")
    assert ended.code == 2 and "measure one with `loaderbench run`" in ended.lines[-1]


def test_a_failed_run_is_reproduced_too(small_set: Path, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(small_set / "96", tmp_path / "set"))
    for image in tree.rglob("*.jpg"):
        image.write_bytes(image.read_bytes()[:600])
    failed = commands.run("run", tree, *DEVICE, *TINY, "--loader", "threaded", "--results", tmp_path / "r")
    assert failed.code == 1
    (record,) = commands.records(tmp_path / "r")
    ended = analyze(tmp_path / "r", "--all")
    assert record["status"] == "failed" and ended.code == 0 and "1 of 1" in unwrapped(ended)
