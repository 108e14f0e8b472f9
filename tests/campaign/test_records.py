"""Real records, spoilt at random: whatever one of them holds, the commands go on with the others."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from random import Random

import commands
import pytest
from commands import TINY, Ended, call

from loaderbench.recording.store import Store
from tests.campaign.damage import spoil
from tests.campaign.drawn import SEED, TIMES

NUM_SPOILT = 600 * TIMES
ROUNDS_A_TEST = 50
ARGUMENTS = ("--res", "96", *TINY)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def measured(small_set: Path, set_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with four runs, a study of two of them, and a comparison of two data sets."""
    results = tmp_path_factory.mktemp("measured")
    for ended in (
        commands.run("sweep", small_set, "--loader", "serial,threaded", *ARGUMENTS, "--results", results),
        commands.run(
            "compare", f"a={small_set / '96'}", f"b={set_copy / '96'}", "--rounds", "1", "--cache", "as-is",
            *TINY, "--results", results,
        ),
    ):  # fmt: skip
        assert (ended.code, ended.err) == (0, "")
    return results


def checked(what: str, ended: Ended, *codes: int) -> Ended:
    """The command ended as it should, and said little."""
    told = f"{what}: {ended.code}\n{ended.err[-2000:]}"
    assert ended.code in codes, told
    assert "Traceback" not in ended.err + ended.out, told
    assert "\x1b" not in ended.out + ended.err, told
    assert len([line for line in ended.lines if line.startswith("loaderbench: ")]) == (ended.code in (1, 2)), told
    return ended


def rows(results: Path) -> dict[str, dict[str, str]]:
    text = checked("report csv", call("report", "--format", "csv", "--out", "-", "--results", results), 0).out
    return {row["run_id"]: row for row in csv.DictReader(io.StringIO(text))}


def entries(results: Path) -> dict[str, object]:
    listed = checked("list --json", call("list", "--json", "-", "--results", results), 0)
    return {entry["run_id"]: entry for entry in json.loads(listed.out)}


def try_commands(results: Path, spoilt: Path, before: tuple[dict[str, object], dict[str, dict[str, str]]]) -> None:
    """What reads the store, with `spoilt` in it: the other runs are as they were `before`."""
    kept = {run: entry for run, entry in before[0].items() if run != spoilt.name}
    other = sorted(kept)
    text = checked("list", call("list", "--results", results), 0).out
    found = entries(results)
    assert {run: entry for run, entry in found.items() if run in kept} == kept
    assert spoilt.name in found or not before[0].get(spoilt.name)
    assert spoilt.name in text or "-".join(spoilt.name.split("-")[:3]) in text
    assert {run: row for run, row in rows(results).items() if run in kept} == {run: before[1][run] for run in kept}
    checked("report", call("report", "--format", "md", "--out", "-", "--results", results), 0)
    checked("show another", call("show", other[0], "--results", results), 0)
    checked("show", call("show", spoilt.name, "--results", results), 0, 2)
    checked("compare others", call("compare", other[0], other[1], "--results", results), 0)
    checked("compare", call("compare", other[0], spoilt.name, "--results", results), 0, 2)
    judged = call("analyze", "--all", "--json", "-", "--quiet", "--results", results)
    assert judged.code in (0, 1) and judged.err == "", judged.err[-2000:]
    problems = {one["name"]: one["problem"] for one in json.loads(judged.out)}
    assert all(problems[run] is None for run in kept), problems
    checked("trace", call("trace", spoilt.name, "--out", results / "trace.gz", "--results", results), 0, 2)


@pytest.mark.parametrize("part", range(NUM_SPOILT // ROUNDS_A_TEST))
def test_a_spoilt_record_never_breaks_the_others(measured: Path, tmp_path: Path, part: int) -> None:
    results = tmp_path / "results"
    before = entries(measured), rows(measured)
    for number in range(part * ROUNDS_A_TEST, (part + 1) * ROUNDS_A_TEST):
        random = Random(f"{SEED} {number}")
        shutil.rmtree(results, ignore_errors=True)
        shutil.copytree(measured, results)
        spoilt = random.choice(sorted(path for path in results.iterdir() if path.is_dir()))
        what = f"seed {SEED} number {number}: {spoil(spoilt, random)} in {spoilt.name}"
        print(what)
        try:
            try_commands(results, spoilt, before)
            Store(results).runs()
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
