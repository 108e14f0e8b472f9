"""A store in which one thing is damaged, full, or of another run: it is named, and the rest is as it was."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from commands import call

from loaderbench.analysis.precision import compare_precisions
from loaderbench.cases.arms import Arm
from loaderbench.errors import ConfigError
from loaderbench.plain import to_json
from loaderbench.recording import files, spill
from loaderbench.recording.facts import SCHEMA, STEP_FIELDS, Run, WatchedFacts
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import NotStored, Store, StoredRun, load_run
from loaderbench.recording.studies import NumberFacts, PrecisionFacts, StudyRecord, SweepFacts
from loaderbench.studies.measure import Spilled, stored
from tests import convert_schema1
from tests.filled import filled
from tests.made import make_case, make_environment, make_record, make_run, make_segment

CASE = make_case(dataset="/data/photos/512", dataset_name="photos", resolution=512, device="cpu")


def finished(store: Store, **figures: Any) -> Path:
    folder = store.open_run(CASE)
    folder.write_record(make_record(CASE, run_id=folder.run_id, started_at=folder.started_at, **figures))
    return folder.path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two finished runs, of which the tests spoil the second."""
    made = Store(tmp_path / "results")
    finished(made)
    finished(made)
    return made


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def second(store: Store) -> StoredRun:
    """The second run as it is listed; the first is whole."""
    first, found = store.runs()
    assert (first.status, first.problem) == ("ok", None)
    return found


DEEP = "[" * 900 + "]" * 900
"""Python reads it; what walks through it would run out of stack."""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"wall_s": 60.0', '"wall_s": NaN', "NaN is not JSON"),
        ('"wall_s": 60.0', '"wall_s": 1e999', "wall_s must be a finite number"),
        ('"wall_s": 60.0', '"wall_s": 1' + "0" * 400, "wall_s must be a finite number"),
        ('"workers": 2', '"workers": 9' + "9" * 400, "workers must be a finite number"),
        ('"workers": 2,', "", "lacks workers"),
        ('"status": "ok"', '"status": "fine"', "status must be one of ok"),
        ('"loader": null', f'"loader": {{"a": {DEEP}}}', "nested deeper than 50 levels"),
        ('"loader": null', f'"loader": {"[" * 99_999}', "nested too deeply"),
        ('"loader": null', '"loader": {"a": [NaN]}', "NaN is not JSON"),
        (f'"schema": {SCHEMA}', '"schema": -1', "schema -1 does not exist"),
        ('"batch_size": 64', '"batch_size": 0', "case.batch_size must be above 0"),
        ('"wall_s": 60.0', '"wall_s": 1e200', "wall_s is not a possible figure of a run"),
        ('"wall_s": 60.0', '"wall_s": 1e-200', "wall_s is not a possible figure of a run"),
    ],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_a_record_that_breaks_the_schema_is_listed_with_its_reason(store: Store, old: str, new: str, says: str) -> None:
    replaced(store.runs()[1].path / "run.json", old, new)
    run = second(store)
    assert (run.status, run.record) == ("unreadable", None)
    assert says in str(run.problem) and len(str(run.problem)) < 400


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device"])
def test_what_is_no_file_is_named_and_not_waited_for(store: Store, kind: str) -> None:
    path = store.runs()[1].path / "run.json"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("run.json" if kind == "loop" else "/dev/zero")
    run = second(store)
    assert run.status == "unreadable"
    assert re.search(r"run\.json is not a regular file|cannot read .*run\.json", str(run.problem))


def test_a_folder_that_cannot_be_read_is_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may read every folder, so the refusal is made up
    closed, listdir = store.runs()[1].path, os.listdir

    def refusing(path: Any) -> list[str]:
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refusing)
    run = second(store)
    assert (run.status, run.problem) == ("unreadable", f"cannot read {closed}: Permission denied")


def test_a_run_without_its_case_keeps_its_result_and_says_so(store: Store) -> None:
    folder = store.runs()[1].path
    (folder / "case.json").unlink()
    run = second(store)
    assert run.status == "ok" and run.record is not None
    assert run.problem == "case.json is missing; run.json holds the case too"
    (folder / "run.json").unlink()
    (folder / "facts.json").touch()
    assert second(store).problem == "the folder has neither case.json nor run.json"
    (folder / "facts.json").unlink()
    assert second(store).status == "unreadable", "an empty folder with a run's name"


def test_a_case_of_another_run_is_noticed(store: Store) -> None:
    changed(store.runs()[1].path / "case.json", lambda case: case.update(workers=7))
    assert "belongs to another run" in str(second(store).problem)


def study(store: Store, facts: Any, kind: Any = "sweep") -> Path:
    folder = store.new_study(kind, ["made-up"])
    folder.write(StudyRecord(SCHEMA, 1, folder.study_id, kind, folder.started_at, facts, None, ()))
    return folder.path


def make_precision(loss: float) -> PrecisionFacts:
    from loaderbench.recording.studies import ModeFacts

    modes = (ModeFacts("fp32", "ok", numbers=NumberFacts(loss=np.array([loss, 1.0]))),)
    return PrecisionFacts("resnet18", "train", "cpu", 2, 4, 64, 0, make_environment(), modes=modes)


@pytest.mark.parametrize("content", [b"", b"[]", b"NaN", b'{"schema": 2, "kind": []}', b"[" * 99_999])
def test_an_empty_or_broken_study_is_listed_with_its_reason(store: Store, content: bytes) -> None:
    whole, broken = study(store, SweepFacts(1)), study(store, SweepFacts(1))
    (broken / "study.json").write_bytes(content)
    studies = {one.path: one for one in store.studies()}
    assert studies[whole].problem is None
    assert studies[broken].study is None and "damaged" in str(studies[broken].problem)
    assert len(store.runs()) == 2


def test_a_study_of_an_unknown_kind_is_a_newer_ones(store: Store) -> None:
    whole, newer = study(store, SweepFacts(1)), study(store, SweepFacts(1))
    value = json.loads((newer / "study.json").read_text())
    (newer / "study.json").write_text(json.dumps(value | {"kind": "model_mind"}))
    studies = {one.path: one for one in store.studies()}
    assert studies[whole].problem is None
    assert "of the kind 'model_mind', which this loaderbench does not know" in str(studies[newer].problem)
    assert "damaged" not in str(studies[newer].problem)


def test_a_study_of_an_older_version_is_said_to_be_one(store: Store) -> None:
    older = study(store, make_precision(0.5), "precision")
    changed(older / "study.json", lambda value: value["facts"].pop("seed"))
    (stored,) = store.studies()
    assert stored.study is None and stored.problem == (
        f"{older.name} was made by an older version of loaderbench: it lacks seed; measure it again"
    )


def test_figures_that_an_older_version_did_not_store_are_computed_again(store: Store) -> None:
    facts = make_precision(0.5)
    folder = store.new_study("precision", ["made-up"])
    findings = compare_precisions(facts)
    folder.write(StudyRecord(SCHEMA, 1, folder.study_id, "precision", folder.started_at, facts, findings, ()))
    assert [one.study.findings for one in store.studies() if one.study is not None] == [findings]
    changed(folder.path / "study.json", lambda value: value["findings"].pop("caveats"))
    (stored,) = store.studies()
    assert stored.problem is None and stored.study is not None and stored.study.findings is None
    assert call("show", folder.study_id, "--results", store.root).code == 0


# -- the digest --------------------------------------------------------------------------------------------


def measured(store: Store, seed: int) -> Path:
    """A stored run whose tables are those of any other, but for their content."""
    folder = store.open_run(CASE)
    steps = np.random.default_rng(seed).integers(0, 10**6, (3, len(STEP_FIELDS)))
    folder.write_run(make_run(CASE, [make_segment(Arm.REAL, steps)]))
    return folder.path


def test_the_tables_of_another_run_are_noticed(tmp_path: Path) -> None:
    one, other = measured(Store(tmp_path), 1), measured(Store(tmp_path), 2)
    assert load_run(one).recording is not None
    shutil.copy(other / "arrays.npz", one / "arrays.npz")
    with pytest.raises(ConfigError, match=r"arrays\.npz is damaged or belongs to another run") as error:
        load_run(one)
    assert "\n" not in str(error.value)
    assert load_run(other).recording is not None


def tables(folder: Path) -> dict[str, Any]:
    with np.load(folder / "arrays.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def test_one_changed_number_is_noticed(tmp_path: Path) -> None:
    folder = measured(Store(tmp_path), 1)
    found = tables(folder)
    next(iter(found.values()))[1, 2] += 1
    np.savez_compressed(folder / "arrays.npz", **found)
    with pytest.raises(ConfigError, match="digest"):
        load_run(folder)


def test_the_same_tables_otherwise_compressed_or_with_more_beside_them_are_taken(tmp_path: Path) -> None:
    # a process that dies between writing the tables and the facts of another turn leaves more tables than facts
    folder = measured(Store(tmp_path), 1)
    np.savez(folder / "arrays.npz", **tables(folder), later=np.zeros(3))
    assert load_run(folder).recording is not None


def test_facts_without_a_digest_load_as_they_did(tmp_path: Path) -> None:
    folder = measured(Store(tmp_path), 1)
    changed(folder / "facts.json", lambda facts: facts.pop(files.DIGEST))
    assert load_run(folder).recording is not None


def test_the_digest_does_not_come_from_the_file(tmp_path: Path) -> None:
    first, again = measured(Store(tmp_path), 1), measured(Store(tmp_path), 1)
    digests = [json.loads((one / "facts.json").read_bytes())[files.DIGEST] for one in (first, again)]
    assert digests[0] == digests[1] and re.fullmatch("[0-9a-f]{64}", digests[0])


def test_the_tables_of_a_study_have_a_digest_too(store: Store) -> None:
    one, other = study(store, make_precision(0.5), "precision"), study(store, make_precision(0.25), "precision")
    assert {one.problem for one in store.studies()} == {None}
    shutil.copy(other / "arrays.npz", one / "arrays.npz")
    problems = {found.path: found.problem for found in store.studies()}
    assert problems[other] is None and "digest" in str(problems[one])


# -- a store that fills up ---------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that takes what the store does not."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    monkeypatch.setattr(spill, "PLACES", (lambda: tmp_path / "not there", lambda: place))
    monkeypatch.setattr(spill, "_opened", [])
    return place


def fill(monkeypatch: pytest.MonkeyPatch, full: Path, name: str = "") -> None:
    """From now on there is no space for a file of this name below `full`; without a name, for none."""
    real = files.write_atomic

    def write_atomic(path: Path, data: bytes) -> None:
        if path.is_relative_to(full) and name in ("", path.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, data)

    monkeypatch.setattr("loaderbench.recording.files.write_atomic", write_atomic)
    monkeypatch.setattr("loaderbench.recording.store.write_atomic", write_atomic)


def real_run(run_id: str) -> Run:
    run = convert_schema1.load_run(next(path for path in SCHEMA1.iterdir() if (path / "arrays.npz").exists()))
    run.run_id = run_id
    return run


SCHEMA1 = Path(__file__).parents[1] / "data" / "schema1"


@pytest.mark.parametrize("name", ["arrays.npz", "facts.json", "run.json"])
def test_what_a_full_store_does_not_take_is_kept_elsewhere_and_said(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = Store(tmp_path / "results")
    folder = store.open_run(CASE)
    folder.log_path.write_text("what it printed\n")
    run = real_run(folder.run_id)
    fill(monkeypatch, store.root, name)

    with pytest.raises(Spilled) as error:
        stored(folder, run)

    (root,) = elsewhere.iterdir()
    said = str(error.value)
    assert "\n" not in said and "No space left on device" in said and f"--results {root}" in said
    assert error.value.exit_code == 1
    (kept,) = Store(root).runs()
    assert (kept.run_id, kept.problem) == (folder.run_id, None) and kept.record is not None
    assert (kept.record.throughput, kept.record.verdict) == (
        error.value.record.throughput, error.value.record.verdict,
    )  # fmt: skip
    back = load_run(kept.path).recording
    assert back is not None and run.recording is not None
    for before, after in zip(run.recording.segments, back.segments, strict=True):
        np.testing.assert_array_equal(before.steps, after.steps)
    assert (kept.path / "worker.log").read_text() == "what it printed\n"
    (left,) = store.runs()
    assert left.status == "crashed" and str(root) in str(left.problem), "the store itself says where it is"


def test_all_of_a_process_is_kept_in_one_place(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "results")
    folders = [store.open_run(CASE) for _ in range(2)]
    fill(monkeypatch, store.root, "facts.json")
    for folder in folders:
        with pytest.raises(Spilled):
            stored(folder, make_run(CASE, None, run_id=folder.run_id, status="failed"))
    fill(monkeypatch, store.root, "study.json")
    with pytest.raises(Exception, match=r"No space left.* kept in"):
        study(store, make_precision(0.5), "precision")
    (root,) = elsewhere.iterdir()
    assert [run.run_id for run in Store(root).runs()] == [folder.run_id for folder in folders]
    (kept,) = Store(root).studies()
    assert kept.study is not None and kept.study.kind == "precision"


def test_where_there_is_room_nowhere_what_is_there_already_stays(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "results")
    folder = store.open_run(CASE)
    fill(monkeypatch, tmp_path, "run.json")
    run = make_run(CASE, None, run_id=folder.run_id, status="failed")
    with pytest.raises(Spilled, match="no other folder has room") as error:
        stored(folder, run)
    assert isinstance(error.value.record, RunRecord)
    assert load_run(folder.path).status == "failed"
    assert list(elsewhere.iterdir()) == []


DOCUMENTED = (Path(__file__).parents[2] / "docs" / "stored-runs.md").read_text().splitlines()
WAY_BACK = next(line for line in DOCUMENTED if "FOLDER/." in line)
"""As docs/stored-runs.md has it."""


def bring_back(kept: Path, store: Store) -> None:
    """By the command of the documentation, to the letter."""
    command = WAY_BACK.replace("FOLDER", str(kept)).replace(" results/", f" {store.root}/")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def listed(store: Store) -> str:
    return "".join(call("list", "--results", store.root).out.split())


def test_a_disk_without_any_room_still_says_where_its_results_are_and_takes_them_back(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "results")
    folders = [store.open_run(CASE) for _ in range(2)]
    with monkeypatch.context() as full:
        fill(full, store.root)
        for folder in folders:
            with pytest.raises(Spilled):
                stored(folder, real_run(folder.run_id))
        with pytest.raises(NotStored, match="kept in"):
            study(store, make_precision(0.5), "precision")
    (root,) = elsewhere.iterdir()
    lost = store.runs()
    assert [run.status for run in lost] == ["crashed"] * 3, "two runs, and a study of which nothing was stored"
    assert all(f"kept in {root} " in str(run.problem) for run in lost)
    assert listed(store).count(f"keptin{root}(") == 3

    bring_back(root, store)

    assert [(run.run_id, run.problem) for run in store.runs()] == [(folder.run_id, None) for folder in folders]
    assert [one.problem for one in store.studies()] == [None]
    assert "keptin" not in listed(store) and not root.exists()
    assert call("analyze", "--all", "--results", store.root, "--quiet").code == 0
    assert call("trace", folders[0].run_id, "--out", tmp_path / "x.gz", "--results", store.root).code == 0


def test_a_newer_result_that_went_elsewhere_is_said_of_the_stored_one(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a run that is verified, a watched one that was stored while it went on, and a study of which some is done
    store = Store(tmp_path / "results")
    case = real_run("").case
    verified, watched = store.open_run(case), store.open_run(case)
    stored(verified, real_run(verified.run_id))
    so_far = replace(make_record(case, run_id=watched.run_id), watched=filled(WatchedFacts, Random(0), whole=True))
    watched.write_record(so_far, goes_on=True)
    begun = store.new_study("precision", ["made-up"])
    first = StudyRecord(SCHEMA, 1, begun.study_id, "precision", begun.started_at, make_precision(0.5), None, ())
    begun.write(first)

    # When the disk is full at their ends
    with monkeypatch.context() as full:
        fill(full, store.root)
        for folder in (verified, watched):
            with pytest.raises(Spilled):
                stored(folder, real_run(folder.run_id))
        with pytest.raises(NotStored):
            begun.write(replace(first, facts=make_precision(0.25)))

    # Then each still has its result, and says that there is a newer one, until that is back
    (root,) = elsewhere.iterdir()
    for one in (*store.runs(), *store.studies()):
        assert f"a newer result could not be written here: what was measured is kept in {root} " in str(one.problem)
    assert [run.status for run in store.runs()] == ["ok", "ok"]
    assert listed(store).count(f"keptin{root}(") == 3
    bring_back(root, store)
    assert {one.problem for one in (*store.runs(), *store.studies())} == {None}
    (back,) = store.studies()
    assert back.study is not None and isinstance(back.study.facts, PrecisionFacts)
    assert to_json(back.study.facts) == to_json(make_precision(0.25))


def test_what_was_kept_elsewhere_and_is_gone_is_said_to_be(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "results")
    folder = store.open_run(CASE)
    with monkeypatch.context() as full, pytest.raises(Spilled):
        fill(full, store.root)
        stored(folder, real_run(folder.run_id))
    (root,) = elsewhere.iterdir()
    shutil.rmtree(root)
    (run,) = store.runs()
    assert run.problem == f"its result could not be written here: it was kept in {root}, which does not exist"


def test_notes_of_earlier_versions_are_read(store: Store) -> None:
    folder = store.open_run(CASE)
    changed(folder.path / "running.json", lambda marker: marker.update(spilled="it is kept in /elsewhere"))
    assert store.runs()[-1].problem == "its result could not be written here: it is kept in /elsewhere"


@pytest.mark.bed
@pytest.mark.parametrize("mounting", ["-t tmpfs -o size=6m tmpfs", "-o loop {image}"], ids=["tmpfs", "ext4"])
def test_a_real_disk_that_fills_up_says_where_the_result_is_and_takes_it_back(
    mounting: str, tmp_path: Path, elsewhere: Path
) -> None:
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    mounted = subprocess.run(["mount", *mounting.format(image=image).split(), place], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a file system needs root with CAP_SYS_ADMIN")
    try:
        store = Store(place / "results")
        folder = store.open_run(CASE)
        with suppress(OSError), (place / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        with pytest.raises(OSError, match="No space left"):
            (place / "more").write_bytes(bytes(4096))
        with pytest.raises(Spilled, match="No space left on device"):
            stored(folder, real_run(folder.run_id))
        (root,) = elsewhere.iterdir()
        assert f"keptin{root}(" in listed(store)
        (place / "filler").unlink()
        bring_back(root, store)
        assert [(run.status, run.problem) for run in store.runs()] == [("ok", None)]
        assert call("analyze", "latest", "--results", store.root, "--quiet").code == 0
    finally:
        subprocess.run(["umount", place], check=True)
