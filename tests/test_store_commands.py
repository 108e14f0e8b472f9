"""What the commands say of a store: list, rm, trace, report of some runs; and of streams that are closed or narrow."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import commands
import pytest
from commands import call

from loaderbench.errors import ConfigError
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord, SweepFacts
from loaderbench.studies.sweep import SweepStudy
from tests.made import make_case, make_estimate, make_record

CASE = make_case()


def add_run(store: Store, *, tag: str | None = None) -> str:
    folder = store.open_run(CASE)
    rate = make_estimate(100.0, 0.1)
    folder.write_record(make_record(CASE, run_id=folder.run_id, throughput=rate, tag=tag))
    return folder.run_id


def add_study(store: Store, runs: Sequence[str]) -> str:
    folder = store.new_study("sweep", ["made-up"])
    folder.write(
        StudyRecord(SCHEMA, 1, folder.study_id, "sweep", folder.started_at, SweepFacts(len(runs)), None, tuple(runs))
    )
    return folder.study_id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def left(store: Store) -> set[str]:
    return set(os.listdir(store.root))  # noqa: PTH208


def remove(store: Store, *names: str) -> commands.Ended:
    return call("rm", *names, "--results", store.root)


def test_a_form_is_the_whole_result(store: Store) -> None:
    run = add_run(store)
    for option in (["--json", "-"], ["--caveats"], ["--all"]):
        assert call("show", run, "--format", "md", *option, "--results", store.root).code == 2
    assert call("show", run, "--format", "md", "--results", store.root).code == 0


# -- rm ----------------------------------------------------------------------------------------------------


def test_rm_removes_what_is_named_and_nothing_else(store: Store) -> None:
    one, other, tagged = add_run(store), add_run(store), add_run(store, tag="old")
    ended = remove(store, one, "old", "--yes")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == f"removed 2 runs, 0 studies from {store.root}"
    assert left(store) == {other} and tagged not in left(store)


def test_rm_asks_and_without_somebody_to_ask_does_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = add_run(store)
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        ended = remove(store, one)
    assert ended.code == 2 and "give --yes" in ended.lines[-1] and len(ended.lines) == 1
    assert left(store) == {one}


@pytest.mark.parametrize("answer", [True, False])
def test_rm_obeys_the_answer(answer: bool, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = add_run(store)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text: answer)
    assert remove(store, one).code == 0
    assert left(store) == (set() if answer else {one})


def test_rm_refuses_an_unknown_name_and_then_removes_nothing(store: Store) -> None:
    one = add_run(store)
    ended = remove(store, one, "nosuch", "--yes")
    assert (ended.code, len(ended.lines)) == (2, 1)
    assert "begins with 'nosuch'" in ended.err
    assert left(store) == {one}


def test_rm_of_a_study_takes_its_runs_unless_another_needs_them(store: Store) -> None:
    shared, own, beside = add_run(store), add_run(store), add_run(store)
    study, other = add_study(store, [shared, own]), add_study(store, [shared])
    ended = remove(store, study, "--yes")
    assert ended.code == 0
    assert f"kept {shared}: another study uses it" in ended.out
    assert left(store) == {shared, beside, other}
    assert f"{other} is kept but loses a run" in remove(store, shared, "--yes").out


def test_rm_leaves_a_run_that_is_being_measured(store: Store) -> None:
    folder = store.open_run(CASE)
    ended = remove(store, folder.run_id, "--yes")
    assert ended.code == 2 and f"being measured by process {os.getpid()}" in ended.err
    assert left(store) == {folder.run_id}


def test_rm_removes_what_is_damaged(store: Store) -> None:
    run, study = add_run(store), add_study(store, [])
    (store.root / run / "run.json").write_text("{")
    (store.root / study / "study.json").write_text("")
    assert remove(store, run, study, "--yes").code == 0
    assert left(store) == set()


# -- list, report, trace -----------------------------------------------------------------------------------


def test_list_tells_the_rates_and_the_tag(store: Store) -> None:
    plain, tagged = add_run(store), add_run(store, tag="nightly")
    listed = call("list", "--json", "-", "--results", store.root)
    entries = {entry["run_id"]: entry for entry in json.loads(listed.out)}
    assert [entries[run]["tag"] for run in (plain, tagged)] == [None, "nightly"]
    figures = [entries[plain][name] for name in ("images_per_s", "images_per_s_low", "images_per_s_high", "verdict")]
    assert figures == [100.0, 90.0, pytest.approx(110.0), None]
    assert "nightly" in call("list", "--results", store.root).out


def test_show_has_the_caveats_in_words_and_all_figures_where_asked(store: Store) -> None:
    folder = store.open_run(CASE)
    caveats = (Caveat("disk_shared", {"bytes": 3_000_000}), Caveat("cold_not_proven", {"resident_before": 0.5}))
    record = make_record(CASE, run_id=folder.run_id, throughput=make_estimate(100.0, 0.1), caveats=caveats)
    folder.write_record(record)
    study = add_study(store, [folder.run_id])
    brief, whole, alone = (
        call("show", folder.run_id, *options, "--results", store.root).out for options in ([], ["--all"], ["--caveats"])
    )
    assert "other programs read" not in brief and "disk_shared (in words" in brief
    assert "cold_not_proven: " in brief  # it changes the verdict
    assert all("other programs read 3.0 MB" in " ".join(text.split()) for text in (whole, alone))
    assert "overhead" in whole and "images/s" not in alone
    of_study = " ".join(call("show", study, "--caveats", "--results", store.root).out.split())
    assert "other programs read 3.0 MB" in of_study and "images/s" not in of_study


def test_a_damaged_run_and_a_study_without_content_are_listed_with_their_reason(store: Store) -> None:
    run, study = add_run(store), add_study(store, [])
    (store.root / run / "case.json").unlink()
    (store.root / study / "study.json").write_text("")
    text = " ".join(call("list", "--results", store.root).out.split())
    assert "case.json is missing" in text and "study.json" not in text.partition("Without a result")[0]
    assert study in text and "damaged" in text


@pytest.mark.parametrize("tag", ["", " ", "a\nb", "x" * 81, "\x1b[31m"])
def test_a_tag_is_a_short_name(tag: str, store: Store) -> None:
    with pytest.raises(ConfigError, match="--tag must be a name") as error:
        SweepStudy([CASE], store, tag=tag)
    assert "\n" not in str(error.value)


def test_a_report_of_a_tag(store: Store) -> None:
    add_run(store)
    tagged = add_run(store, tag="nightly")
    ended = call("report", "nightly", "--format", "csv", "--out", "-", "--results", store.root)
    rows = ended.out.splitlines()
    assert len(rows) == 2 and rows[1].startswith(tagged) and rows[1].endswith("nightly")


def test_a_trace_of_a_study_or_a_folder_says_what_to_name(store: Store, tmp_path: Path) -> None:
    run = add_run(store)
    study = add_study(store, [run])
    of_study = call("trace", study, "--results", store.root)
    of_its_folder = call("trace", store.root / study, "--results", store.root)
    of_folder = call("trace", tmp_path, "--results", store.root)
    for ended in (of_study, of_its_folder, of_folder):
        assert (ended.code, len(ended.lines)) == (2, 1)
    for ended in (of_study, of_its_folder):
        assert f"is a study, not a run; name one of its runs: {run}" in ended.err
    assert f"{tmp_path} holds no run" in of_folder.err


# -- files and streams -------------------------------------------------------------------------------------


def closing(streams: str) -> tuple[str, ...]:
    return ("sh", "-c", f'"$@" {streams}', "sh")


@pytest.mark.parametrize(("streams", "code"), [("2>&-", 2), (">&- 2>&- <&-", 2)])
def test_closed_streams_change_nothing_but_what_is_said(streams: str, code: int, tmp_path: Path) -> None:
    ended = commands.run("show", "nosuch", "--results", tmp_path, wrapper=closing(streams))
    assert (ended.code, ended.out, ended.err) == (code, "", "")


@pytest.mark.slow
def test_a_run_whose_error_stream_is_closed_is_measured(small_set: Path, tmp_path: Path) -> None:
    arguments = ("run", small_set, "--res", "96", *commands.TINY, "--loader", "synthetic", "--results", tmp_path)
    ended = commands.run(*arguments, wrapper=closing("2>&-"))
    assert ended.code == 0
    assert [record["status"] for record in commands.records(tmp_path)] == ["ok"]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_that_lacks_characters_breaks_nothing(
    encoding: str, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    named = shutil.copytree(small_set / "96", tmp_path / "图像 – →")
    ended = commands.run("run", named, *commands.DEVICE, "--workers", "1", "--dry-run", wrapper=("env",))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("?? ? ? multiprocess" if encoding == "latin-1" else "")
