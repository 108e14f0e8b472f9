from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.plain import to_json
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import SCHEMA, SPAN_FIELDS, STEP_FIELDS, Run, Series
from loaderbench.recording.lines import RunLine
from loaderbench.recording.record import Estimate, RunRecord
from loaderbench.recording.schema import SCHEMA_FILE
from loaderbench.recording.store import RunFolder, Store, load_run
from loaderbench.recording.studies import StudyRecord, SweepFacts
from tests.made import make_case, make_record, make_run, make_segment

CASE = make_case(
    dataset="/data/photos/512", dataset_name="photos", resolution=512, batch_size=4, device="cpu"
)  # fmt: skip


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def record_of(folder: RunFolder, **changes: Any) -> RunRecord:
    return make_record(CASE, **{"run_id": folder.run_id, "started_at": folder.started_at, **changes})


def small_run() -> Run:
    steps = np.arange(3 * len(STEP_FIELDS), dtype=np.int64).reshape(3, -1)
    spans = np.arange(2 * len(SPAN_FIELDS), dtype=np.int64).reshape(2, -1)
    kernels = np.arange(10, dtype=np.int64).reshape(2, 5)
    segments = [
        make_segment(Arm.REAL, steps, spans, wall_s=np.float64(0.5)),
        make_segment(Arm.DEVICE, steps * 2, round=1, num_warmup=0, steady=False, kernels=kernels),
    ]
    series = [
        Series("bytes", "B", "counter", "/proc/diskstats", np.array([1, 2]), np.array([0.5, np.nan])),
        Series("empty", "B", "gauge", "x", np.array([], dtype=np.int64), np.array([], dtype=np.float64)),
    ]
    return make_run(CASE, segments, caveats=[Caveat("link_not_measured", {"reason": "b"})], series=series)


def test_raw_facts_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = Store(tmp_path).open_run(CASE)
    run = small_run()
    assert run.recording is not None

    folder.write_run(run)
    back = load_run(folder.path)

    assert back.case == CASE
    read = back.recording
    assert read is not None
    assert [segment.arm for segment in read.segments] == [Arm.REAL, Arm.DEVICE]
    for before, after in zip(run.recording.segments, read.segments, strict=True):
        assert after.steps.dtype == np.int64
        np.testing.assert_array_equal(after.steps, before.steps)
        assert (after.round, after.num_warmup, after.steady) == (before.round, before.num_warmup, before.steady)
    np.testing.assert_array_equal(read.segments[0].spans, run.recording.segments[0].spans)
    assert read.segments[1].spans is None
    assert read.segments[0].kernels is None
    np.testing.assert_array_equal(read.segments[1].kernels, run.recording.segments[1].kernels)
    assert read.segments[0].wall_s == 0.5
    assert read.facts == run.recording.facts
    assert read.caveats == run.recording.caveats
    assert [one.name for one in back.series] == ["bytes", "empty"]
    np.testing.assert_array_equal(back.series[0].value, run.series[0].value)  # NaN is at home in an npz


def test_a_run_is_running_then_finished(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "results")
    folder = store.open_run(CASE)
    assert [(run.status, run.title) for run in store.runs()] == [("running", CASE.title)]
    assert f"process {os.getpid()}" in str(store.runs()[0].problem)

    folder.write_record(record_of(folder))

    (run,) = store.runs()
    assert (run.status, run.problem, run.run_id) == ("ok", None, folder.run_id)
    assert to_json(run.record) == json.loads((folder.path / "run.json").read_text())
    assert run.record == record_of(folder)
    assert names(folder.path) == ["case.json", "run.json"]


def test_all_of_a_store_is_read_with_one_look_into_each_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        folder = store.open_run(CASE)
        folder.write_record(record_of(folder))
    study = store.new_study("sweep", ["a"])
    study.write(StudyRecord(SCHEMA, 1, study.study_id, "sweep", study.started_at, SweepFacts(2), None))
    alone = (store.runs(), store.lines(), store.studies())
    looks: list[str] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: looks.append(Path(path).name) or listdir(path))

    whole, lines = store.contents(), store.contents_in_lines(RunLine)

    assert (whole.runs, lines.runs, whole.studies) == alone and lines.studies == whole.studies
    assert len(alone[0]) == 2 and len(alone[2]) == 1
    assert sorted(looks) == sorted(2 * [tmp_path.name, *listdir(tmp_path)])


def test_run_ids_sort_by_time_and_name_the_case(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ids = [store.open_run(CASE).run_id for _ in range(5)]
    assert len(set(ids)) == 5
    # Of two in the same millisecond the order is free.
    times = [one.split("-512-")[0] for one in ids]
    assert times == sorted(times)
    assert [run.run_id for run in store.runs()] == sorted(ids)
    assert all("-512-multiprocess-w2-" in one and CASE.key[:8] in one for one in ids)


def test_a_name_from_the_file_system_cannot_leave_the_store(tmp_path: Path) -> None:
    case = Case.from_json({**CASE.to_json(), "dataset_name": "../../\udcff [red]\n" + "x" * 300, "resolution": None})
    folder = Store(tmp_path).open_run(case)
    assert folder.path.parent == tmp_path
    (tmp_path / folder.run_id / "facts.json").touch()
    assert Case.from_json(json.loads((folder.path / "case.json").read_text())) == case


KILLED = """
import os, signal, sys
from loaderbench.cases.case import Case
from loaderbench.recording.store import Store
import json
folder = Store(sys.argv[1]).open_run(Case.from_json(json.loads(sys.argv[2])))
(folder.path / ".run.json.half").write_text('{"sche')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_run_marked_and_the_others_readable(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finished = store.open_run(CASE)
    finished.write_record(record_of(finished))

    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), json.dumps(CASE.to_json())], check=False)

    assert done.returncode == -9
    assert [run.status for run in store.runs()] == ["ok", "crashed"]
    assert "ended before the result was written" in str(store.runs()[1].problem)
    assert store.find("latest").run_id == finished.run_id


BEGUN = """
import os, signal, sys
from loaderbench.recording.store import Store
folder = Store(sys.argv[1]).new_study("capacity", ["set"])
folder.begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_study_that_was_killed_before_it_was_stored_is_told_as_that_and_goes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    subprocess.run([sys.executable, "-c", BEGUN, str(tmp_path)], check=False)
    mine = store.new_study("capacity", ["set"])
    mine.begin()
    left, running = store.runs()
    assert (left.status, running.status) == ("crashed", "running")
    assert "ended before the result was written" in str(left.problem)
    assert call("rm", left.run_id, "--yes", "--results", tmp_path).code == 0 and not left.path.exists()
    mine.discard()
    assert store.runs() == [] and not mine.path.exists()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"process_start_ticks": 1}, "crashed"),  # another process got this pid
        ({"boot_id": "an earlier boot"}, "crashed"),
        ({"host": "elsewhere.example"}, "running"),  # nobody here can tell
    ],
)
def test_a_pid_alone_proves_nothing(tmp_path: Path, change: dict[str, object], status: str) -> None:
    store = Store(tmp_path)
    folder = store.open_run(CASE)
    marker = json.loads((folder.path / "running.json").read_text())
    (folder.path / "running.json").write_text(json.dumps({**marker, **change}))
    assert store.runs()[0].status == status


def test_broken_and_newer_runs_are_listed_with_the_reason(tmp_path: Path) -> None:
    store = Store(tmp_path)
    contents = [
        "{half",
        "[]",
        '{"schema": 1}',
        json.dumps({"schema": SCHEMA + 1, "case": {}, "status": "ok"}),
    ]
    for content in contents:
        (store.open_run(CASE).path / "run.json").write_text(content)
    (tmp_path / "reference").mkdir()
    (tmp_path / "notes.txt").touch()

    runs = store.runs()

    assert [run.status for run in runs] == ["unreadable"] * 4
    assert all(run.record is None for run in runs)
    assert sum("damaged" in str(run.problem) for run in runs) == 2
    assert sum("convert it once" in str(run.problem) for run in runs) == 1
    assert sum("upgrade loaderbench" in str(run.problem) for run in runs) == 1


def test_find(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(ConfigError, match="no finished run"):
        store.find("latest")
    folders = [store.open_run(CASE) for _ in range(2)]
    for folder in folders:
        folder.write_record(record_of(folder))

    assert store.find(folders[0].run_id).path == folders[0].path
    assert store.find("latest").run_id == max(folder.run_id for folder in folders)
    assert store.find(str(folders[1].path)).run_id == folders[1].run_id
    with pytest.raises(ConfigError) as ambiguous:
        store.find("20")
    assert all(folder.run_id in str(ambiguous.value) for folder in folders)
    with pytest.raises(ConfigError, match="begins with 'nothing'"):
        store.find("nothing")


def test_nan_becomes_null_and_says_so(tmp_path: Path) -> None:
    folder = Store(tmp_path).open_run(CASE)
    rate = Estimate(np.float32(1.5), float("nan"), np.inf, "samples/s", np.int64(3), "made up")  # type: ignore[arg-type]
    counts: Any = (np.int64(3), np.bool_(True), np.array([1.0, 2.0]))
    record = record_of(folder, throughput=rate, loader={"counts": counts})

    stored = folder.write_record(record)

    text = (folder.path / "run.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == to_json(stored)
    assert stored.throughput == Estimate(1.5, None, None, "samples/s", 3, "made up")
    assert stored.loader == {"counts": [3, True, [1.0, 2.0]]}
    (caveat,) = stored.caveats
    assert caveat.code == "not_finite"
    assert "throughput.low, throughput.high" in caveat.worded().message
    assert record.caveats == ()
    (run,) = Store(tmp_path).runs()
    assert run.record == stored


def test_a_figure_that_must_be_there_and_is_nan_does_not_make_the_run_unreadable(tmp_path: Path) -> None:
    folder = Store(tmp_path).open_run(CASE)
    rate = Estimate(float("nan"), None, None, "samples/s", 3, "made up")
    run = small_run()
    assert run.recording is not None
    run.wall_s = float("inf")

    folder.write_run(run)
    folder.write_record(record_of(folder, throughput=rate))

    (stored,) = Store(tmp_path).runs()
    assert (stored.status, stored.problem) == ("ok", None)
    assert stored.record is not None and stored.record.throughput is not None
    assert math.isnan(stored.record.throughput.value)
    back = load_run(folder.path)
    assert math.isnan(back.wall_s)
    assert [caveat.details for caveat in back.caveats] == [{"places": ["wall_s"]}]


def test_what_has_no_json_form_is_refused_by_its_place(tmp_path: Path) -> None:
    folder = Store(tmp_path).open_run(CASE)
    with pytest.raises(TypeError, match=r"loader\.lock cannot be written as JSON"):
        folder.write_record(record_of(folder, loader={"lock": object()}))


def write_many(root: str, count: int) -> None:
    for _ in range(count):
        folder = Store(root).open_run(CASE)
        folder.write_record(record_of(folder))


def test_two_processes_write_into_one_store_while_it_is_listed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(str(tmp_path), 40)) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen: set[str] = set()
    while any(writer.is_alive() for writer in writers):
        seen |= {run.status for run in Store(tmp_path).runs()}
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0

    runs = Store(tmp_path).runs()

    assert len(runs) == 80
    assert {run.status for run in runs} == {"ok"}
    assert seen <= {"ok", "running"}
    assert not [name for name in names(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("damage", ["missing", "truncated", "newer", "no_array", "half", "another_type", "a_field"])
def test_damaged_raw_facts_are_one_clear_line(tmp_path: Path, damage: str) -> None:
    folder = Store(tmp_path).open_run(CASE)
    folder.write_run(small_run())
    facts, arrays = folder.path / "facts.json", folder.path / "arrays.npz"
    stored = json.loads(facts.read_text())
    if damage == "missing":
        facts.unlink()
    elif damage == "truncated":
        arrays.write_bytes(arrays.read_bytes()[:300])
    elif damage == "newer":
        facts.write_text(json.dumps({**stored, "schema": SCHEMA + 1}))
    elif damage == "no_array":
        np.savez(arrays, other=np.zeros(1))
    elif damage == "half":
        facts.write_bytes(facts.read_bytes()[:1000])
    elif damage == "another_type":
        facts.write_text(json.dumps([stored]))
    else:
        del stored["recording"]["segments"][1]["steady"]
        facts.write_text(json.dumps(stored))
    says = {
        "missing": "has no raw facts",
        "newer": f"schema {SCHEMA + 1}.*upgrade loaderbench",
        "a_field": r"recording\.segments\[1\] lacks steady",
    }
    with pytest.raises(ConfigError, match=says.get(damage, "damaged")) as error:
        load_run(folder.path)
    assert "\n" not in str(error.value)


def test_a_store_below_a_file_or_in_proc_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    roots = [tmp_path / "file" / "results", tmp_path / "file", tmp_path / "link", tmp_path / ("x" * 300)]
    for root in (*roots, Path("/proc/results"), Path("/proc/a/b")):
        with pytest.raises(ConfigError, match="--results") as error:
            Store(root).check_writable()
        assert "\n" not in str(error.value)
        with pytest.raises(ConfigError, match="--results"):
            Store(root).open_run(CASE)


def test_checking_leaves_nothing_behind_and_the_first_result_makes_the_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "results")
    store.check_writable()
    assert names(tmp_path) == []
    folder = store.open_run(CASE)
    assert folder.path.parent == tmp_path / "deep" / "results"
    store.check_writable()
    assert names(folder.path.parent) == [folder.run_id]


def limited(root: str) -> None:
    """In a process that may write 1,000 bytes a file: as a disk that fills up."""
    folder = Store(root).open_run(CASE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with pytest.raises(ConfigError, match="cannot write results"):
        Store(root).check_writable()
    with pytest.raises(CaseFailed, match="cannot store the result") as error:
        folder.write_record(record_of(folder, loader={"long": "x" * 5000}))
    assert "\n" not in str(error.value)


def test_a_write_that_fails_half_way_leaves_no_half_record(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=limited, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == 0
    (run,) = Store(tmp_path).runs()
    assert run.status == "crashed"
    assert names(run.path) == ["case.json", "running.json"]
    assert names(tmp_path) == [run.run_id]


@pytest.mark.bed
def test_full_and_read_only_file_systems(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs needs root with CAP_SYS_ADMIN")
    try:
        store = Store(tmp_path)
        with pytest.raises(ConfigError, match="No space left on device"):
            store.check_writable()
        assert names(tmp_path) == []
        folder = store.open_run(CASE)
        run = small_run()
        assert run.recording is not None
        run.recording.segments[0].steps = np.random.default_rng(0).integers(0, 1 << 62, (100_000, len(STEP_FIELDS)))
        with pytest.raises(CaseFailed, match="No space left on device"):
            folder.write_run(run)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        with pytest.raises(ConfigError, match="Read-only file system"):
            store.check_writable()
        with pytest.raises(CaseFailed, match="Read-only file system"):
            folder.write_record(record_of(folder))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_importing_the_store_imports_no_torch_and_no_rich() -> None:
    code = "import sys, loaderbench.recording.store; sys.exit(bool({'torch', 'rich', 'jinja2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_schema_is_shipped_beside_the_store() -> None:
    assert json.loads(SCHEMA_FILE.read_text())["properties"]["schema"]["const"] == SCHEMA
