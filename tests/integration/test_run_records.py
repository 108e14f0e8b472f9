"""A tiny run of every loader, all the way: its record is valid and says what happened."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import commands
import pytest
from commands import DEVICE, TINY

from loaderbench.cases.arms import Arm
from loaderbench.errors import UnavailableError
from loaderbench.images.cache_state import evict
from loaderbench.recording.store import load_run, record_json
from loaderbench.selftest import slow_fuse
from loaderbench.studies.measure import judged
from tests.shipped_schema import shipped

LOADERS = ("synthetic", "cached", "serial", "multiprocess", "threaded", "dali")
needs_dali = pytest.mark.skipif(find_spec("nvidia.dali") is None, reason="DALI is not installed: pip install .[dali]")
ALL_LOADERS = [pytest.param(name, marks=needs_dali if name == "dali" else ()) for name in LOADERS]


def truncate_images(root: Path, num: int) -> list[Path]:
    broken = sorted(root.rglob("*.jpg"))[:num]
    for path in broken:
        path.write_bytes(path.read_bytes()[:600])
    return broken


@pytest.mark.parametrize("loader", ALL_LOADERS)
def test_every_loader_leaves_a_valid_record(loader: str, small_set: Path, tmp_path: Path) -> None:
    ended = commands.run(
        "run", small_set, "--res", "96", *TINY, "--loader", loader, "--json", "-", "--results", tmp_path
    )

    assert (ended.code, ended.err) == (0, "")
    record = json.loads(ended.out)  # standard output is the JSON alone
    shipped().validate(record)
    assert [record] == commands.records(tmp_path)
    assert record["status"] == "ok" and record["case"]["loader"] == loader
    assert record["throughput"]["value"] > 0
    known = [share["value"] for share in record["shares"].values() if share is not None]
    if all(share is not None for share in record["shares"].values()):
        assert sum(known) == pytest.approx(1, abs=1e-6)
    run = load_run(tmp_path / record["run_id"])
    assert run.recording is not None
    assert run.case.feed.loader == loader
    assert {segment.arm for segment in run.recording.segments} >= {Arm.DEVICE, Arm.REAL}
    # and is what its facts give by today's rules
    assert record_json(judged(run))[0] == record


def test_the_table_and_the_progress_leave_standard_output_to_the_json(small_set: Path, tmp_path: Path) -> None:
    options = [option for option in TINY if option != "--quiet"]
    ended = commands.run(
        "run", small_set, "--res", "96", *options, "--loader", "synthetic", "--json", "-", "--results", tmp_path
    )
    assert ended.code == 0
    assert json.loads(ended.out)["status"] == "ok"
    assert "show" in ended.err and "--all" in ended.err  # where the rest of the screen is


def test_a_few_broken_images_are_counted_and_named(small_set: Path, tmp_path: Path) -> None:
    own = shutil.copytree(small_set / "96", tmp_path / "set")
    (broken,) = truncate_images(own, 1)

    ended = commands.run(
        "run", own, *TINY, "--steps", "24", "--loader", "threaded", "--max-failures", "0.5", "--results", tmp_path / "r"
    )

    assert ended.code == 0
    (record,) = commands.records(tmp_path / "r")
    assert record["num_failures"] >= 1
    assert [failure["path"] for failure in record["failures"]] == [str(broken)]
    assert "images_failed" in [caveat["code"] for caveat in record["caveats"]]


@pytest.mark.parametrize("how_many", ["some", "all"])
def test_too_many_broken_images_fail_the_case_with_the_list(how_many: str, small_set: Path, tmp_path: Path) -> None:
    own = shutil.copytree(small_set / "96", tmp_path / "set")
    broken = truncate_images(own, 9 if how_many == "some" else 48)

    ended = commands.run("run", own, *TINY, "--steps", "40", "--results", tmp_path / "r")

    assert ended.code == 1
    assert len(ended.lines) == 1
    assert any(str(path.relative_to(own)) in ended.err for path in broken)
    assert "/dev/shm" not in ended.err  # names within the set, not paths of the copies in memory
    assert how_many == "all" or "--max-failures" in ended.err
    (record,) = commands.records(tmp_path / "r")
    assert record["status"] == "failed" and record["failure"]["kind"] == "CaseFailed"


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ended = commands.run("run", tmp_path / "empty", *TINY, "--results", tmp_path / "r")
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "no images" in ended.err and "dataset make" in ended.err


def test_a_folder_of_other_images_says_which_were_seen_by_the_users_own_path(tmp_path: Path) -> None:
    (tmp_path / "real" / "cats").mkdir(parents=True)
    for name in ("a.bmp", "b.bmp", "notes.txt"):
        (tmp_path / "real" / "cats" / name).write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    ended = commands.run("run", tmp_path / "link", *TINY, "--results", tmp_path / "r")
    assert ended.code == 2 and len(ended.lines) == 1
    assert f"no images in {tmp_path / 'link'}: it holds other files (2 .bmp, 1 .txt)" in ended.err
    assert "real" not in ended.err
    assert commands.records(tmp_path / "r") == []  # nothing was started


def test_the_commands_own_process_imports_no_torch(small_set: Path, tmp_path: Path) -> None:
    done = commands.run(
        "run",
        small_set,
        "--res",
        "96",
        *TINY,
        "--loader",
        "synthetic",
        "--results",
        tmp_path,
        wrapper=("env", "PYTHONPROFILEIMPORTTIME=1"),
    )
    assert done.code == 0
    imported = {line.rpartition("|")[2].strip() for line in done.err.splitlines() if line.startswith("import time:")}
    assert "loaderbench.running.supervisor" in imported
    assert not {name for name in imported if name.partition(".")[0] in ("torch", "torchvision")}


@pytest.mark.bed
def test_what_the_cache_holds_now_can_be_measured_once_alone(small_set: Path, tmp_path: Path) -> None:
    for path in sorted((small_set / "96").rglob("*.jpg")):
        evict(path)

    ended = commands.run(
        "run", small_set, "--res", "96", *TINY, "--cache", "as-is", "--arms", "real", "--results", tmp_path
    )

    assert (ended.code, ended.err) == (0, "")
    (record,) = commands.records(tmp_path)
    assert record["num_steps"] == 6 and list(record["arms"]) == ["real"]
    assert record["storage"]["cache_state"] == "as-is" and record["stopped_by"] == "measured_once"
    assert record["storage"]["residency_fraction"]["before"] < 0.5


@pytest.mark.alone
def test_no_more_than_max_bytes_leaves_the_storage(small_set: Path, tmp_path: Path) -> None:
    try:
        slow_fuse.check_available()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    limit = 12_000_000
    options = ("--device", "emulated", "--batch-size", "4", "--workers", "2", "--duration", "4", "--quiet")
    # given storage whose own daemon counts what it served
    with slow_fuse.slow_fuse(small_set / "96", bytes_per_s=20e6) as bed:
        ended = commands.run(
            "run", bed.path, *options, "--cache", "cold", "--max-bytes", "12M", "--results", tmp_path / "r"
        )
        served = bed.bytes_served()
    assert (ended.code, ended.err) == (0, "")
    assert 0.1 * limit < served <= limit
    (record,) = commands.records(tmp_path / "r")
    assert record["case"]["max_bytes"] == limit
    assert record["verdict"]["speedup_if_removed"]["storage"] is not None


@pytest.mark.parametrize("size", ["10k", "0", "much"])
def test_a_limit_of_bytes_that_allows_nothing_says_what_would(size: str, small_set: Path, tmp_path: Path) -> None:
    ended = commands.run(
        "run", small_set, "--res", "96", *TINY, "--cache", "cold", "--max-bytes", size, "--results", tmp_path
    )
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "--max-bytes" in ended.err


@pytest.mark.slow  # tests/studies/test_sweep.py has it with simulated runs
def test_a_sweep_goes_on_where_it_was_interrupted(small_set: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f"[study]\ndataset = '{small_set}'\nres = [96, 128]\nloader = 'synthetic'\nworkers = [1]\n")
    options = ("sweep", study, *DEVICE, "--steps", "6", "--warmup", "2", "--duration", "2", "--quiet")
    store = ("--results", tmp_path / "r", "--json", tmp_path / "out.json")
    # given a study of which one case is measured
    first = commands.run(*options, "--res", "96", *store)
    assert (first.code, first.err) == (0, "")
    (kept,) = commands.records(tmp_path / "r")

    second = commands.run(*options, *store, "--resume")

    assert second.code == 0
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [one["case"]["resolution"] for one in runs] == [96, 128]
    assert runs[0]["run_id"] == kept["run_id"]  # not measured again
    assert len(commands.records(tmp_path / "r")) == 2
    # and the study is stored, under a name that prints it again
    study_id = json.loads((tmp_path / "out.json").read_text())["study"]["study_id"]
    assert study_id[:19] in commands.run("list", "--results", tmp_path / "r").out
    again = commands.run("show", study_id[:19], "--results", tmp_path / "r")
    assert again.code == 0
    assert "time of 6 steps" in again.out
    # and reported in every form
    for kind in ("html", "md", "csv", "svg"):
        ended = commands.run("report", "--format", kind, "--results", tmp_path / "r")
        assert (ended.code, len(ended.out.splitlines())) == (0, 1)
    made = {path.name for path in (tmp_path / "r").iterdir()}
    assert {"report.html", "report.md", "report.csv", "figures"} <= made
    assert list((tmp_path / "r" / "figures").glob("*.svg"))
    assert commands.run("report", "--format", "pdf", "--results", tmp_path / "r").code == 2
