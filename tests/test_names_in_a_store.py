"""What a run is called: the folder's name, for every command; what is named otherwise harms nothing else."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from commands import Ended, call

from loaderbench.cases.case import Case
from loaderbench.errors import ConfigError
from loaderbench.machine import environment
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.selection import select
from loaderbench.recording.store import Store, StoredStudy, load_run
from loaderbench.recording.studies import StudyRecord, SweepFacts
from loaderbench.running.meeting import Meeting
from loaderbench.studies.measure import finished_records, judged
from loaderbench.studies.ranks import RanksStudy
from loaderbench.studies.sweep import SweepStudy
from tests import convert_schema1
from tests.made import make_case, make_estimate, make_record

SCHEMA1 = Path(__file__).parent / "data" / "schema1"
ORIGINAL = next(path.parent for path in sorted(SCHEMA1.glob("*/arrays.npz")) if "threaded" in path.parent.name)


def add_run(store: Store, tag: str | None = None, seed: int = 0) -> str:
    """A run of this machine with facts and a record, as measuring leaves it."""
    run = convert_schema1.load_run(ORIGINAL)
    run = replace(run, case=run.case.changed(seed=seed), environment=environment())
    folder = store.open_run(run.case)
    folder.write_record(
        replace(judged(folder.write_run(replace(run, run_id=folder.run_id, started_at=folder.started_at))), tag=tag)
    )
    return folder.run_id


def add_study(store: Store, *runs: str) -> str:
    folder = store.new_study("sweep", ["made-up"])
    folder.write(StudyRecord(SCHEMA, 1, folder.study_id, "sweep", folder.started_at, SweepFacts(1), None, runs))
    return folder.study_id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def do(*arguments: str | Path, store: Store) -> Ended:
    ended = call(*arguments, "--results", store.root)
    assert "Traceback" not in ended.err, ended.err
    return ended


def left(store: Store) -> set[str]:
    return set(os.listdir(store.root))  # noqa: PTH208


def reported(store: Store) -> list[str]:
    text = do("report", "--format", "csv", "--out", "-", store=store).out
    return [row["run_id"] for row in csv.DictReader(io.StringIO(text))]


# -- a folder and its files that disagree ------------------------------------------------------------------


def renamed(store: Store, run: str) -> str:
    (store.root / run).rename(store.root / "mine")
    return "mine"


def foreign(store: Store, run: str) -> str:
    path = store.root / run / "run.json"
    path.write_text(path.read_text().replace(run, "../../20250101-000000-000-of-another"))
    return run


def copied(store: Store, run: str) -> str:
    shutil.copytree(store.root / run, store.root / f"{run}-copy")
    return f"{run}-copy"


def linked(store: Store, run: str) -> str:
    (store.root / "best").symlink_to(run)
    return "best"


def in_capitals(store: Store, run: str) -> str:
    shutil.copytree(store.root / run, store.root / run.upper())
    return run.upper()


def oddly(store: Store, run: str) -> str:
    name = "zz [red]\x1b[31m\n\udcff é"
    (store.root / run).rename(store.root / name)
    return name


@pytest.mark.parametrize("change", [renamed, foreign, copied, linked, in_capitals, oddly])
def test_a_run_under_another_name_is_named_and_counts_nowhere(
    change: Callable[[Store, str], str], store: Store, tmp_path: Path
) -> None:
    first, second, third = (add_run(store, seed=seed) for seed in range(3))
    odd = change(store, second)
    whole = {first, second, third} - ({odd} if odd == second else set())
    whole = {run for run in whole if (store.root / run).exists()}

    entries = {one["run_id"]: one for one in json.loads(do("list", "--json", "-", store=store).out)}
    assert {run for run, entry in entries.items() if entry["problem"] is None} == whole
    assert "rename the folder to that, or remove it if it is a copy" in entries[odd]["problem"]
    assert do("list", store=store).code == 0
    assert sorted(reported(store)) == sorted(whole)
    assert do("report", "--format", "md", "--out", tmp_path / "page", store=store).code == 0
    assert do("ledger", "--all", store=store).code == 0

    for command in ("show", "report"):
        ended = do(command, odd, *(["--format", "csv"] if command == "report" else []), store=store)
        assert (ended.code, len(ended.lines)) == (2, 1)
    for arguments in (("compare", odd, first), ("compare", "--baseline", odd, first), ("forecast", odd)):
        assert do(*arguments, store=store).code == 2
    all_again = json.loads(do("analyze", "--all", "--json", "-", "--quiet", store=store).out)
    assert {one["name"] for one in all_again if one["problem"] is None} == whole
    cases = [load_run(store.root / run).case for run in (first, third)]
    assert {one.run_id for one in finished_records(store, cases).values()} == {first, third}
    of_second = json.loads((store.root / odd / "case.json").read_text())
    assert bool(finished_records(store, [Case.from_json(of_second)])) == (second in whole)
    assert json.loads(do("show", "latest", "--json", "-", store=store).out)["run_id"] == max(whole)

    assert do("rm", str(store.root / odd), "--yes", store=store).code == 0
    assert left(store) == whole


def test_a_run_is_its_folders_name_even_where_that_begins_another(store: Store) -> None:
    run = add_run(store)
    copied(store, run)
    assert json.loads(do("show", run, "--json", "-", store=store).out)["run_id"] == run
    assert do("analyze", run, store=store).code == 0
    assert do("rm", run, "--yes", store=store).code == 0
    assert left(store) == {f"{run}-copy"}


def test_facts_of_another_run_are_not_judged_as_this_ones(store: Store) -> None:
    one, other = add_run(store), add_run(store)
    for name in ("facts.json", "arrays.npz"):
        shutil.copy(store.root / one / name, store.root / other / name)
    before = (store.root / other / "run.json").read_bytes()
    ended = do("analyze", other, "--save", store=store)
    assert ended.code == 1 and f"belongs to {one}" in " ".join(ended.out.split())
    assert (store.root / other / "run.json").read_bytes() == before
    assert do("trace", other, "--out", store.root.parent / "x.gz", store=store).code == 2
    assert do("report", "--format", "md", "--out", store.root.parent / "page", store=store).code == 0


def test_a_copied_study_does_not_take_the_originals_runs_with_it(store: Store) -> None:
    run = add_run(store)
    study = add_study(store, run)
    copied(store, study)
    problems = {one.study_id: one.problem for one in store.studies()}
    assert problems[study] is None and f"belongs to {study}" in str(problems[f"{study}-copy"])
    assert do("rm", f"{study}-copy", "--yes", store=store).code == 0
    assert left(store) == {run, study}


@pytest.mark.parametrize("name", ["../elsewhere", "", ".hidden", "a/b"])
def test_a_study_that_names_what_no_run_is_called_is_damaged(name: str, store: Store) -> None:
    add_study(store, name)
    (stored,) = store.studies()
    assert stored.study is None and f"no run can be called {name!r}" in str(stored.problem)


def test_what_lies_deeper_is_not_in_the_store(store: Store) -> None:
    outer, inner = add_run(store), add_run(store)
    shutil.move(store.root / inner, store.root / outer / inner)
    assert [run.run_id for run in store.runs()] == [outer]
    assert do("show", inner, store=store).code == 2
    by_path = do("show", store.root / outer / inner, "--json", "-", store=store)
    assert json.loads(by_path.out)["run_id"] == inner


def test_a_folder_outside_may_be_called_anything(store: Store, tmp_path: Path) -> None:
    run, other = add_run(store), add_run(store)
    baseline = Path(shutil.move(store.root / run, tmp_path / "baseline"))
    link = tmp_path / "link"
    link.symlink_to(baseline)
    for place in (baseline, link, baseline / ".", tmp_path / "results" / ".." / "baseline"):
        assert json.loads(do("show", str(place), "--json", "-", store=store).out)["run_id"] == run
        assert do("analyze", str(place), store=store).code == 0
    assert do("compare", "--baseline", baseline, other, "--threshold", "0.9", store=store).code == 0
    assert do("rm", baseline, "--yes", store=store).code == 2
    assert baseline.exists() and left(store) == {other}


def test_a_run_that_was_moved_and_linked_is_a_run_of_the_store(store: Store, tmp_path: Path) -> None:
    run = add_run(store)
    shutil.move(store.root / run, tmp_path / run)
    (store.root / run).symlink_to(tmp_path / run)
    assert [(one.run_id, one.problem) for one in store.runs()] == [(run, None)]
    assert do("rm", run, "--yes", store=store).code == 0
    assert left(store) == set(), "not even a link"
    assert (tmp_path / run / "run.json").exists(), "what it linked to is not of the store"


# -- names -------------------------------------------------------------------------------------------------


def test_a_tag_is_never_taken_for_latest_or_an_id(store: Store) -> None:
    oldest = add_run(store)
    decoys = [add_run(store, tag="latest"), add_run(store, tag=oldest), add_run(store, tag=oldest[:22])]
    newest = add_run(store)
    for name, run in (("latest", newest), (oldest, oldest), (oldest[:22], oldest), (str(store.root / oldest), oldest)):
        assert [one.run_id for one in select(store, [name]).runs] == [run]
        report = do("report", name, "--format", "csv", "--out", "-", store=store).out
        assert [row["run_id"] for row in csv.DictReader(io.StringIO(report))] == [run]
    for name in ("latest", oldest):
        assert do("rm", name, "--yes", store=store).code == 0
    assert left(store) == {*decoys}


def test_a_folder_called_latest_is_not_the_newest_run(store: Store, tmp_path: Path, monkeypatch: Any) -> None:
    older, run = add_run(store), add_run(store)
    study = add_study(store)
    (store.root / older).rename(store.root / "latest")
    (store.root / study).rename(store.root / "latest-study")
    (tmp_path / "latest").mkdir()  # of the current folder
    monkeypatch.chdir(tmp_path)
    for command in (["show"], ["analyze"], ["trace", "--out", "x.gz"], ["compare", run]):
        ended = do(*command, "latest", store=store)
        assert ended.code == 0, ended.err
    assert do("rm", "latest", "--yes", store=store).code == 0
    assert left(store) == {"latest", "latest-study"}
    assert do("rm", "results/latest", "--yes", store=store).code == 0
    assert left(store) == {"latest-study"}


def test_a_tag_that_also_begins_other_ids_is_refused(store: Store) -> None:
    first = add_run(store)
    day = first[:8]
    tagged = add_run(store, tag=day)
    ended = do("rm", day, "--yes", store=store)
    assert (ended.code, len(ended.lines)) == (2, 1)
    assert f"'{day}' is a tag and the ids of other runs begin with it: give whole ids" in ended.err
    assert left(store) == {first, tagged}
    do("rm", first, "--yes", store=store)
    assert [run.run_id for run in select(store, [day]).runs] == [tagged], "both mean the same"


def test_a_start_of_a_run_and_of_a_study_names_neither(store: Store) -> None:
    run = add_run(store)
    study = f"{run[:19]}-study"
    (store.root / add_study(store, run)).rename(store.root / study)
    path = store.root / study / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "study_id": study}))
    assert isinstance(store.named(study), StoredStudy)
    for command in ("show", "analyze", "trace", "forecast", "whatif", "rm", "report"):
        ended = do(command, run[:15], *(("--workers", "2") if command == "whatif" else ()), store=store)
        assert ended.code == 2 and run in ended.err and study in ended.err, command


@pytest.mark.parametrize("tag", ["latest", "Latest", "all", "20260101-120000-000", "20260101-120000-000-512-x"])
def test_a_tag_that_means_something_else_is_refused_in_a_line(tag: str, store: Store) -> None:
    for refused in (
        lambda: SweepStudy([make_case()], store, tag=tag),
        lambda: RanksStudy([make_case()], store, cast(Meeting, None), tag=tag),
    ):
        with pytest.raises(ConfigError, match=f"^--tag {tag} .*: give another name$"):
            refused()


def test_the_name_of_any_run_or_study_is_no_tag(store: Store) -> None:
    run, study = add_run(store), add_study(store)
    (store.root / run).rename(store.root / "mine")
    for name in ("mine", study):
        with pytest.raises(ConfigError, match="is the id of a run, or looks like one"):
            store.check_tag(name)
    for name in (None, "nightly", "20260101", "min", "mine2", "a/b"):
        store.check_tag(name)


# -- how much is read --------------------------------------------------------------------------------------

_opened: list[str] | None = None


def _note_opens(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        path = Path(str(arguments[0]))
        if path.name == "run.json" and path.exists():
            _opened.append(str(path))


@pytest.fixture(scope="module")
def opens() -> Iterator[Callable[..., int]]:
    """Runs a command and counts the records that it opens, however it does that."""
    sys.addaudithook(_note_opens)  # it cannot be taken away again

    def count(*arguments: str | Path, store: Store) -> int:
        global _opened
        _opened = []
        try:
            ended = do(*arguments, store=store)
            assert ended.code == 0, ended.err
            return len(_opened)
        finally:
            _opened = None

    yield count


def test_a_command_about_one_run_reads_one_record(opens: Callable[..., int], store: Store, tmp_path: Path) -> None:
    runs = [add_run(store) for _ in range(6)]
    (store.root / "20991231-235959-000-not-a-run").mkdir()  # unreadable, and the newest
    run, short, out = runs[2], runs[2][:19], tmp_path / "x"
    for name in ("latest", run, short, str(store.root / run)):
        assert opens("show", name, store=store) == 1, name
        assert opens("analyze", name, store=store) == 1, name
        assert opens("trace", name, "--out", out, store=store) == 1, name
        assert opens("report", name, "--format", "csv", "--out", out, store=store) == 1, name
    assert opens("compare", runs[0], runs[1], store=store) == 2
    assert opens("compare", "--baseline", runs[0], "--threshold", "0.9", store=store) == 2
    study = add_study(store, *runs[:3])
    assert opens("show", study, store=store) == 3
    assert opens("list", store=store) == opens("list", "--json", "-", store=store) == len(runs)
    assert opens("ledger", store=store) == len(runs)
    assert opens("rm", run, "--yes", store=store) == 1
    assert opens("rm", "latest", "--yes", store=store) == 1
    assert left(store) == {*runs[:2], *runs[3:5], study, "20991231-235959-000-not-a-run"}


def test_resuming_reads_in_whole_only_what_it_may_take(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [add_run(store) for _ in range(3)]
    folder = store.open_run(make_case())
    folder.write_record(make_record(make_case(), run_id=folder.run_id, throughput=make_estimate(100.0, 0.1)))
    read: list[str] = []
    whole = Store.run
    monkeypatch.setattr(Store, "run", lambda self, run_id: read.append(run_id) or whole(self, run_id))
    case = load_run(store.root / runs[0]).case
    assert finished_records(store, [case])[case.key].run_id == runs[2]
    assert read == runs
