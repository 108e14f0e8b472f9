"""A comparison as it is planned, measured in turn, kept and shown."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import DEVICE, LONG, Started

from loaderbench.cases.case import Case, Subject
from loaderbench.cases.study import read_options
from loaderbench.errors import ConfigError
from loaderbench.recording.store import Store
from loaderbench.recording.studies import Comparison
from loaderbench.studies.compare_plan import in_turn, parse_targets, plan_rounds
from tests.shipped_schema import shipped
from tests.studies.kept import assert_kept

TINY = (*DEVICE, "--workers", "1", "--steps", "6", "--warmup", "2", "--duration", "0.5", "--quiet")


def planned(max_bytes: int | None = None) -> list[Case]:
    options = read_options({"loader": "multiprocess", "workers": [8, 1], "device": "cpu", "duration": 60.0})
    sides = [Subject("/a/96", "nvme", 96), Subject("/b/96", "nfs", 96)]
    return in_turn(plan_rounds(options, sides, 3), sides, ["cold", "warm"], max_bytes)


def test_the_sides_take_turns_in_every_round_cache_state_and_number_of_workers() -> None:
    cases = planned()
    assert len(cases) == 3 * 2 * 2 * 2
    order = [
        (case.effort.repeat, case.subject.cache, case.feed.workers, case.subject.dataset_name) for case in cases[:8]
    ]
    assert order == [
        (0, cache, workers, name) for cache in ("cold", "warm") for workers in (1, 8) for name in ("nvme", "nfs")
    ]
    assert [case.effort.repeat for case in cases] == sorted(case.effort.repeat for case in cases)
    # the time is that of all rounds of a configuration
    assert {case.effort.duration_s for case in cases} == {20.0}


def test_the_byte_limit_is_that_of_a_storage_s_runs_together() -> None:
    cases = planned(max_bytes=12_000)
    each_side = [
        sum(case.effort.max_bytes or 0 for case in cases if case.subject.dataset_name == name)
        for name in ("nvme", "nfs")
    ]
    assert each_side == [12_000, 12_000]


def test_targets_are_named() -> None:
    assert parse_targets(["nvme=/data/x", "nfs=/mnt/a=b"]) == [("nvme", "/data/x"), ("nfs", "/mnt/a=b")]
    for wrong in (["a=/x"], ["a=/x", "a=/y"], ["a=/x", "=/y"], ["a=/x", "b="]):
        with pytest.raises(ConfigError, match="nvme=/data/set nfs=/mnt/nfs/set"):
            parse_targets(wrong)


@pytest.fixture(scope="module")
def compared(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[commands.Ended, Path]:
    """A comparison of a set with its copy, warm, in two rounds."""
    folder = tmp_path_factory.mktemp("compared")
    shutil.copytree(small_set, folder / "copy")
    targets = (f"one={small_set}", f"two={folder / 'copy'}")
    options = ("--res", "96", "--cache", "warm", "--rounds", "2", "--loader", "threaded", "--arms", "real")
    ended = commands.run("compare", *targets, *options, *TINY, "--results", folder / "results", "--json", "-")
    return ended, folder / "results"


def test_a_comparison_is_measured_and_kept(compared: tuple[commands.Ended, Path]) -> None:
    ended, results = compared
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["labels"] == {"a": "one", "b": "two"}
    assert found["same_files"]["num_images"] == 48
    assert found["differs"] == []
    for side in ("a", "b"):
        shipped().validate(found[side])
    assert found["ratio"]["n"] == 2 and found["ratio"]["low"] <= found["ratio"]["value"] <= found["ratio"]["high"]
    assert found["outcome"] == "from_memory"  # of two storages nothing follows, and neither is ranked
    shown = commands.run("show", found["comparison_id"], "--results", compared[1]).out
    assert "one and two answered from memory (warm, 1 worker); measure with --cache cold" in " ".join(shown.split())
    (pair,) = found["pairs"]
    # its runs lie in the store as any other, taken in turn
    names = [one["case"]["dataset_name"] for one in commands.records(results)]
    assert names == ["one", "two", "one", "two"]
    assert sorted([*pair["a"]["runs"], *pair["b"]["runs"]]) == [one["run_id"] for one in commands.records(results)]
    # by hand: the ratio is the geometric mean of the rounds'
    rates = [one["throughput"]["value"] for one in commands.records(results)]
    assert found["ratio"]["value"] == pytest.approx((rates[1] / rates[0] * rates[3] / rates[2]) ** 0.5)
    study = assert_kept(results, "compare", num_runs=4)
    assert list(study.runs) == [one["run_id"] for one in commands.records(results)]
    kept = json.loads((results / study.study_id / "study.json").read_bytes())
    assert kept["study_id"] == found["comparison_id"]
    assert {**kept["facts"], **kept["findings"]} == {
        **{name: value for name, value in found.items() if name not in ("comparison_id", "answer")},
        "a": None,
        "b": None,
    }
    assert len(json.loads(commands.run("list", "--results", results, "--json", "-").out)) == 4


def test_two_stored_runs_are_compared(compared: tuple[commands.Ended, Path]) -> None:
    results = compared[1]
    first, second = (one["run_id"] for one in commands.records(results)[:2])
    ended = commands.run("compare", first, second, "--results", results, "--json", "-")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert (found["a"]["run_id"], found["b"]["run_id"]) == (first, second)
    assert found["factor"] == ["dataset", "dataset_name"] and found["differs"] == []
    assert max(map(len, ended.lines)) <= 80


def with_rate(results: Path, factor: float, **case: Any) -> str:
    """Store the first run once more, `factor` times as fast: MADE UP."""
    record = json.loads((sorted(results.glob("*/run.json"))[0]).read_bytes())
    rate = record["throughput"]
    ends = {"value": 1.0, "low": 0.99, "high": 1.01}
    made = {**rate, **{end: 1000 * factor * width for end, width in ends.items()}, "n": 12}
    folder = results / f"made-{len(list(results.iterdir()))}"
    folder.mkdir()
    record |= {"run_id": folder.name, "throughput": made, "case": {**record["case"], **case}}
    (folder / "case.json").write_text(json.dumps(record["case"]))
    (folder / "run.json").write_text(json.dumps(record))
    return folder.name


def test_a_baseline_is_held_against_the_latest_run(compared: tuple[commands.Ended, Path], tmp_path: Path) -> None:
    results = Path(shutil.copytree(compared[1], tmp_path / "results"))
    baseline = with_rate(results, 1.0)
    slower, hardly = with_rate(results, 0.9), with_rate(results, 0.94, workers=8)

    bad = commands.run("compare", "--baseline", baseline, slower, "--results", results)
    near = commands.run("compare", "--baseline", baseline, "--results", results, "--json", "-")  # latest by name
    loose = commands.run("compare", "--baseline", baseline, slower, "--threshold", "0.2", "--results", results)

    assert (bad.code, bad.err) == (1, "")
    assert "regression: 0.90× (0.89–0.91) of the baseline" in bad.out
    found = json.loads(near.out)
    # 0.94 is below 0.95, but its interval is not clear of it; and it was fed by more workers
    assert (near.code, found["b"]["run_id"], found["regression"], found["outcome"]) == (0, hardly, False, "slower")
    assert [one["field"] for one in found["differs"]] == ["workers"]
    assert (loose.code, "no regression" in loose.out) == (0, True)


OTHER_WORK = {
    "dataset": "/other/96", "resolution": 512, "cache": "cold", "batch_size": 8, "model": "vit_b_16", "mode": "infer",
    "precision": "bf16", "device": "cpu", "input_size": 96,
}  # fmt: skip


@pytest.mark.parametrize("field", OTHER_WORK)
def test_a_baseline_of_other_work_is_refused_unless_the_user_insists(
    field: str, compared: tuple[commands.Ended, Path], tmp_path: Path
) -> None:
    results = Path(shutil.copytree(compared[1], tmp_path / "results"))
    baseline = with_rate(results, 1.0)
    there = json.loads((results / baseline / "run.json").read_bytes())["case"][field]
    other = with_rate(results, 0.5, **{field: OTHER_WORK[field]}, decoder="turbojpeg")
    ended = commands.call("compare", "--baseline", baseline, other, "--results", results)
    assert (ended.code, ended.out, len(ended.lines)) == (2, "", 1)
    assert f"{field} {there} there, {OTHER_WORK[field]} here" in ended.err and "--allow-different" in ended.err
    # what may differ is not among it
    assert "turbojpeg" not in ended.err
    insisted = commands.call("compare", "--baseline", baseline, other, "--allow-different", "--results", results)
    assert (insisted.code, insisted.err) == (1, "") and "regression: 0.50×" in insisted.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a=/x"], "compare needs two data sets"),
        (["a=/x", "run"], "compare needs two data sets"),
        ([], "compare needs two data sets"),
        (["--baseline", "nosuch"], "no run in"),
        (["nosuch", "other"], "no run in"),
        (["a=/nosuch/x", "b=/nosuch/y"], "no data set '/nosuch/x'"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    ended = commands.run("compare", *arguments, "--device", "emulated", "--quiet", "--results", tmp_path)
    assert (ended.code, ended.out, len(ended.lines)) == (2, "", 1)
    assert says in ended.err


def test_unlike_data_sets_are_refused_before_anything_is_measured(small_set: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_set, tmp_path / "copy"))
    next((copy / "96").rglob("*.jpg")).unlink()
    ended = commands.run(
        "compare", f"nvme={small_set}", f"nfs={copy}", "--res", "96", *TINY, "--results", tmp_path / "results"
    )
    assert (ended.code, len(ended.lines)) == (2, 1)
    assert "nvme and nfs do not hold the same images: 1 (" in ended.err and "only in nvme" in ended.err
    assert not list((tmp_path / "results").glob("*"))


def test_a_dry_run_lists_the_turns(small_set: Path, tmp_path: Path) -> None:
    options = ("--res", "96", *DEVICE, "--workers", "1,2", "--cache", "cold,warm", "--rounds", "2", "--dry-run")
    copy = shutil.copytree(small_set, tmp_path / "copy")
    ended = commands.run("compare", f"a={small_set}", f"b={copy}", *options, "--results", tmp_path / "results")
    lines = ended.out.splitlines()
    assert (ended.code, len(lines)) == (0, 17)
    assert lines[0].startswith("round 1, cold: a/96 ") and lines[1].startswith("round 1, cold: b/96 ")
    assert lines[-1].startswith("16 cases, at most ")
    assert not (tmp_path / "results").exists()


def test_ctrl_c_keeps_what_was_finished(small_set: Path, tmp_path: Path) -> None:
    options = ("--res", "96", *LONG, "--steps", "6", "--loader", "threaded", "--cache", "warm", "--arms", "real")
    copy, tmp_path = shutil.copytree(small_set, tmp_path / "copy"), tmp_path / "results"
    with Started("compare", f"a={small_set}", f"b={copy}", *options, "--results", tmp_path) as started:
        started.wait_for(lambda: Store(tmp_path).studies())
        started.process.send_signal(signal.SIGINT)
        ended = started.end()
        assert ended.code == commands.INTERRUPTED
        assert started.alive() == []
    assert "of 6 cases finished and are kept" in ended.lines[-1]
    kept = assert_kept(tmp_path, "compare")
    finished = [one for one in commands.records(tmp_path) if one["status"] == "ok"]
    assert isinstance(kept.findings, Comparison)
    assert [one["run_id"] for one in finished] == [
        run for pair in kept.findings.pairs for side in (pair.a, pair.b) for run in side.runs
    ][: len(finished)]
    assert list(kept.runs) == [one["run_id"] for one in finished]


def test_a_case_that_fails_is_kept_and_the_rest_goes_on(small_set: Path, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(small_set / "96", tmp_path / name)) for name in ("a", "b")]
    targets = [f"{copy.name}={copy}" for copy in copies]
    # more steps of a batch than --max-bytes lets a run read of its storage
    options = ("--cache", "cold", "--rounds", "1", "--max-bytes", "60K", "--arms", "real")
    ended = commands.run("compare", *targets, *options, *TINY, "--results", tmp_path / "results", "--json", "-")
    assert ended.code == 1
    found = json.loads(ended.out)
    assert found["ratio"] is None and found["outcome"] is None
    assert len(commands.records(tmp_path / "results")) == 2
    assert "--max-bytes" in found["pairs"][0]["a"]["failures"][0]["message"]
