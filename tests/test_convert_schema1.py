"""Results of schema 1, converted: the stored records are the truth, written by the version that measured them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import call

from loaderbench.analysis.model import WORTH
from loaderbench.analysis.record import analyze
from loaderbench.analysis.studies import judge
from loaderbench.cases.arms import CHAIN, Arm
from loaderbench.plain import to_json
from loaderbench.recording.record import DeviceFigures, RunRecord
from loaderbench.recording.store import Store, load_run, read_study
from loaderbench.recording.studies import Comparison, StudyRecord, Sweep
from loaderbench.reporting import words
from tests import convert_schema1
from tests.convert_schema1 import convert

STORE = Path(__file__).parent / "data" / "schema1"
RUNS = sorted(path.parent for path in STORE.glob("*/run.json"))
MEASURED = [folder for folder in RUNS if (folder / "recording.json").exists()]
VERIFIED = [folder for folder in MEASURED if "measured_speedup" in (folder / "run.json").read_text()]

TOLD_OTHERWISE = re.compile(
    r"^\.storage\.ceiling|\.(low|high|summary) was |^\.verdict\.(evidence\[\d+\]|advice\[\d+\]\.action) was "
    r"|^\.verdict\.(speedup_if_removed\.launch|advice\[\d+\]\.at_most)\.value was 3\.759039"
    r"|^\.verdict\.(advice|evidence has other items)"
)
"""What later rules find in the same facts: a ceiling without the probe's first burst, intervals of arms that
share their rounds, and in one run, bound by launches, what issuing grew by counted from `device`. Sentences hold such
ends; their figures are compared where they come from. Advice is predicted by replay, how well that explains the run is
evidence."""

by_name = pytest.mark.parametrize("folder", MEASURED, ids=lambda folder: folder.name[20:])


def stored(folder: Path, name: str = "run.json") -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / name).read_text())
    return value


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Where what an old version said is not said again, to 1e-9. What is new is no difference."""
    if isinstance(old, Mapping):
        for name, value in old.items():
            if not isinstance(new, Mapping) or name not in new:
                yield f"{where}.{name} is gone"
            else:
                yield from differences(value, new[name], f"{where}.{name}")
    elif isinstance(old, list):
        if not isinstance(new, list) or len(new) != len(old):
            yield f"{where} has other items"
        else:
            for number, (before, after) in enumerate(zip(old, new, strict=True)):
                yield from differences(before, after, f"{where}[{number}]")
    elif isinstance(old, float) and isinstance(new, float | int):
        if new != pytest.approx(old, rel=1e-9, abs=1e-12):
            yield f"{where} was {old} and is {new}"
    elif old != new:
        yield f"{where} was {old!r} and is {new!r}"


def told_otherwise(text: str, record: RunRecord) -> bool:
    """Whether later rules mean the difference. Other than TOLD_OTHERWISE: a verdict on too few steps is none, or a
    bound; a loader whose storage costs something is not its preparation alone, though the files are in memory; of
    DALI's threads nothing says that they wait for a processor; where an arm took longer than `real`, the wait on the
    timeline is a part of what `real` took, so that less is unexplained."""
    assert record.verdict is not None
    gain = record.verdict.gain
    is_bound = gain is not None and gain.low is not None and gain.high is None
    too_short = is_bound or any(reason.code == "too_few_steps" for reason in record.verdict.reasons)
    storage = record.verdict.speedup_if_removed["storage"]
    costs = record.case.subject.cache == "warm" and (storage is None or storage.value >= WORTH)
    assert record.arms is not None
    steps_s = {arm: found.step_s.value for arm, found in record.arms.items() if arm in CHAIN}
    out_of_order = max(steps_s.values()) > steps_s[Arm.REAL]
    return (
        bool(TOLD_OTHERWISE.search(text))
        or (too_short and text.startswith(".verdict."))
        or (costs and text.startswith(".capacities.prep."))
        or (out_of_order and text.startswith((".shares.prep.value was", ".shares.unexplained.value was")))
        or (record.case.feed.loader == "dali" and text == ".verdict.advice has other items")
    )


def as_today(record: dict[str, Any]) -> dict[str, Any]:
    """An old record with its figures where they stand today; without its caveats, which have other words."""
    moved = {name: value for name, value in record.items() if name not in ("schema", "caveats")}
    moved["failures"] = [{"path": path, "reason": reason} for path, reason in record["failures"]]
    device = record["device"]
    own_names = {one.name for one in fields(DeviceFigures)}
    own = {name: value for name, value in device.items() if name in own_names}
    details = {name: value for name, value in device.items() if name not in own_names}
    moved["device"] = {**own, "details": details}
    gap = device["kernel_gap"]
    if gap is not None:
        largest = [{"gap_class": each.pop("class"), **each} for each in gap["largest"]]
        moved["device"]["kernel_gap"] = {**gap, "largest": largest}
    for advice in record["verdict"]["advice"]:  # what --verify measured was thrown away
        advice.pop("measured_speedup", None)
        advice.pop("not_verified", None)
    return moved


def judged_again(folder: Path) -> RunRecord:
    return words.worded(analyze(convert_schema1.load_run(folder)))


def codes(record: RunRecord) -> set[str]:
    return {caveat.code for caveat in record.caveats}


# -- runs that were measured -------------------------------------------------------------------------------


def test_the_runs_kept_are_of_every_kind() -> None:
    assert len(RUNS) == 14 and len(MEASURED) == 11 and len(VERIFIED) == 1
    records = [stored(folder) for folder in RUNS]
    assert {record["status"] for record in records} == {"ok", "failed", "skipped", "interrupted"}
    loaders = {record["case"]["loader"] for record in records}
    assert loaders == {"serial", "multiprocess", "threaded", "dali", "spdl", "synthetic"}
    assert {record["case"]["cache"] for record in records} >= {"warm", "cold"}


@by_name
def test_a_run_is_judged_to_the_figures_and_the_verdict_that_it_has(folder: Path) -> None:
    record = judged_again(folder)
    before, after = as_today(stored(folder)), to_json(record)
    assert [text for text in differences(before, after) if not told_otherwise(text, record)] == []
    was, now = ({name: part and part["value"] for name, part in one["shares"].items()} for one in (before, after))
    if was["unexplained"] is not None:  # what is less of it is preparation's, to the last digit
        assert 0 <= now["unexplained"] <= was["unexplained"] + 1e-12
        assert now["unexplained"] + now["prep"] == pytest.approx(was["unexplained"] + was["prep"], rel=1e-9, abs=1e-12)
    assert record.schema == 2 and record.rules_version > 0


@by_name
def test_it_has_the_caveats_that_it_had(folder: Path) -> None:
    record = judged_again(folder)
    before = {caveat["code"] for caveat in stored(folder)["caveats"]}
    after = {caveat.code for caveat in record.caveats}
    not_stored_then = {"facts_missing", "worker_memory_not_measured", "contention_not_measured", "reads_not_timed"}
    assert after - before <= not_stored_then
    assert before - after == {"cpu_not_measured"}  # it was of the memory of all loaders' workers


@by_name
def test_only_what_was_thrown_away_is_named_as_missing(folder: Path) -> None:
    missing = [caveat.details for caveat in judged_again(folder).caveats if caveat.code == "facts_missing"]
    assert missing == ([{"names": ["what --verify measured"]}] if folder in VERIFIED else [])


# -- what is missing ---------------------------------------------------------------------------------------


@by_name
def test_without_its_record_a_run_has_no_invented_figure(folder: Path, tmp_path: Path) -> None:
    # given the facts alone, as a crash before run.json leaves them
    alone = shutil.copytree(folder, tmp_path / folder.name)
    (alone / "run.json").unlink()

    record = judged_again(alone)

    names = [caveat.details["names"] for caveat in record.caveats if caveat.code == "facts_missing"]
    assert names == [["environment", "sampling cost", "the supervisor's caveats"]]
    assert record.environment is None
    assert (record.overhead_fraction, record.sampling_cpu_fraction) == (None, None)
    assert "overhead_not_measured" in codes(record)
    # all other figures are those of the facts, or not there
    full = to_json(judged_again(folder))
    told = to_json(record)
    assert isinstance(full, dict) and isinstance(told, dict)
    for name in ("environment", "started_at", "wall_s", "timing", "overhead_measured_at", "caveats"):
        del told[name]
    if not told["verdict"]["advice"]:  # where nothing tells the number of processors, nothing is predicted
        del told["verdict"]["advice"]
    invented = [text for text in differences(told, full) if " was None and is " not in text]
    assert invented == []
    assert record.throughput is not None and told["throughput"] == full["throughput"]


@pytest.mark.parametrize("damage", ["recording.json", "arrays.npz", "case.json"])
def test_damaged_facts_are_left_out_and_named(damage: str, tmp_path: Path) -> None:
    folder = shutil.copytree(MEASURED[0], tmp_path / "old" / MEASURED[0].name)
    (folder / damage).write_bytes((folder / damage).read_bytes()[:300])
    shutil.copytree(MEASURED[1], tmp_path / "old" / MEASURED[1].name)
    (problem,) = convert(tmp_path / "old", tmp_path / "new")
    assert problem.startswith(folder.name)
    assert [run.run_id for run in Store(tmp_path / "new").runs()] == [MEASURED[1].name]


def test_facts_of_the_first_runs_of_all_lack_more_and_say_what(tmp_path: Path) -> None:
    # given a run as it was stored before these facts were kept
    folder = shutil.copytree(MEASURED[0], tmp_path / "run")
    recording = stored(folder, "recording.json")
    for name in ("image_bytes", "loop_overhead_s", "batch_bytes", "peak_memory_bytes"):
        recording["facts"].pop(name, None)
    recording["facts"]["loader"].pop("description")
    (folder / "recording.json").write_text(json.dumps(recording))
    record = judged_again(folder)
    (names,) = [caveat.details["names"] for caveat in record.caveats if caveat.code == "facts_missing"]
    assert names == [
        "bytes of the data set", "cost of the loop", "bytes of a batch", "peak of the device's memory",
        "the loader's libraries",
    ]  # fmt: skip
    assert (record.overhead_fraction, record.loader, record.transfer) == (None, None, None)
    assert record.storage is not None and record.storage.mean_file_bytes is None
    assert record.throughput is not None


# -- runs that did not end well ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["failed", "skipped", "interrupted"])
def test_a_run_that_did_not_end_well_keeps_its_reason_and_has_no_figure(status: str) -> None:
    (folder,) = [folder for folder in RUNS if stored(folder)["status"] == status]
    old, record = stored(folder), judged_again(folder)
    assert record.status == status
    assert to_json(record.failure) == old["failure"]
    assert (record.throughput, record.verdict, record.arms) == (None, None, None)
    assert to_json(record.case) == old["case"] | {
        "optimizer": "sgd", "channels": 3, "shard": None, "all_reduce_bytes": None, "strict_duration": False,
            "inputs": None, "loss": None, "until_decided": False,
    }  # fmt: skip
    assert record.wall_s == old["wall_s"] and record.started_at == old["started_at"]


# -- a folder of results -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole store, converted by the script."""
    out = tmp_path_factory.mktemp("converted") / "results"
    script = [sys.executable, "-m", "tests.convert_schema1", str(STORE), str(out)]
    done = subprocess.run(script, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def test_all_that_was_stored_is_listed_and_judged_alike(converted: Path) -> None:
    store = Store(converted)
    assert [run.run_id for run in store.runs()] == [folder.name for folder in RUNS]
    assert [run.problem for run in store.runs() if run.problem] == []
    assert [study.problem for study in store.studies()] == [None, None]
    for folder in MEASURED:
        assert words.worded(analyze(load_run(converted / folder.name))) == judged_again(folder)
    ended = call("analyze", "--all", "--results", converted)
    assert ended.code == 0 and f"{len(RUNS) + 2} of {len(RUNS) + 2} are reproduced exactly" in ended.err + ended.out


def test_what_has_today_s_schema_is_copied(converted: Path, tmp_path: Path) -> None:
    assert convert(converted, tmp_path / "again") == []
    before, after = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (converted, tmp_path / "again")
    )
    assert after == before


@pytest.mark.parametrize("command", ["show", "analyze", "trace", "forecast", "compare", "report"])
@pytest.mark.parametrize("status", ["ok", "failed"])
def test_what_is_not_converted_is_refused_with_the_script_s_name(command: str, status: str, tmp_path: Path) -> None:
    more: dict[str, tuple[str | Path, ...]] = {
        "trace": ("--out", tmp_path / "trace.json"),
        "forecast": ("--images", "1000", "--epochs", "1"),
        "compare": (RUNS[0].name,),
        "report": ("--out", tmp_path / "report.html"),
    }
    run = next(folder for folder in reversed(RUNS) if stored(folder)["status"] == status)
    ended = call(command, run.name, *more.get(command, ()), "--results", STORE)
    assert ended.code in (1, 2) and not [*tmp_path.iterdir()]
    assert "python -m tests.convert_schema1 RESULTS NEW_FOLDER" in " ".join((ended.err + ended.out).split())


def test_they_are_listed_with_the_script_s_name() -> None:
    ended = call("list", "--json", "-", "--results", STORE)
    problems = [str(one["problem"]) for one in json.loads(ended.out)]
    assert len(problems) >= len(RUNS) and all("tests.convert_schema1" in problem for problem in problems)


# -- studies -----------------------------------------------------------------------------------------------


def study_of(kind: str, results: Path) -> tuple[dict[str, Any], StudyRecord, dict[str, RunRecord]]:
    """(as the old file says, as it was converted, the records of its runs judged again)"""
    name = {"sweep": "study.json", "compare": "compare.json"}[kind]
    (path,) = STORE.glob(f"*/{name}")
    study = read_study(results / path.parent.name)
    assert study.kind == kind
    return stored(path.parent, name), study, {run: judged_again(STORE / run) for run in study.runs}


def test_a_sweep_is_judged_again_from_its_runs(converted: Path) -> None:
    old, study, records = study_of("sweep", converted)
    assert list(study.runs) == old["runs"] and study.study_id == old["study_id"]
    sweep = judge(study.facts, records)
    assert isinstance(sweep, Sweep) and study.findings == sweep
    told = {
        "num_steps": sweep.num_steps,
        **{name: to_json(getattr(sweep, name)) for name in ("rows", "knees", "flips")},
    }
    # one of its runs has too few steps for a verdict, by the rules of today
    short = (".rows[1].bottleneck was 'mixed' and is 'undetermined'", ".rows[1].speedup_if_removed.")
    found = differences({name: old[name] for name in told}, told)
    assert [text for text in found if not text.startswith(short) and not TOLD_OTHERWISE.search(text)] == []
    assert len(sweep.rows) == 2 and sweep.rows[1].faster_than_serial is not None


def test_a_comparison_is_judged_again_from_its_runs(converted: Path) -> None:
    old, study, records = study_of("compare", converted)
    comparison = judge(study.facts, records)
    assert isinstance(comparison, Comparison)
    told = to_json(comparison)
    assert isinstance(told, dict)
    # both sides answered from memory, which the rules of then took for a comparison of the storages
    assert (old["outcome"], comparison.outcome, comparison.parity) == ("indistinguishable", "from_memory", None)
    names = ("ratio", "differs", "factor", "pairs")
    found = differences({name: old[name] for name in names}, told)
    later = (".pairs[0].outcome was 'indistinguishable' and is 'from_memory'", ".pairs[0].b.summary was 'Undetermined")
    assert [text for text in found if not text.startswith(later) and not TOLD_OTHERWISE.search(text)] == []
    assert comparison.a is not None and comparison.b is not None
    assert comparison.ratio is not None and len(comparison.pairs) == 1
    facts = to_json(study.facts)
    assert isinstance(facts, dict)
    for name in ("labels", "num_cases", "same_files"):
        assert facts[name] == old[name]
