"""The corpus itself: what is packed comes back, scores are what they are said to be, none is below the floor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderbench import plain
from loaderbench.analysis.record import analyze
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import Run
from loaderbench.recording.record import Estimate, Verdict
from loaderbench.recording.store import load_run
from tests.corpus import adding, packed, score
from tests.corpus.__main__ import AT_LEAST, AT_MOST, FLOOR, changes, judge, not_right
from tests.corpus.packed import Truth, half_of, names_of_sets, pack, read_set, without_paths, write_set

MACHINE = {"machine": "a machine", "beside": "nothing"}


def truth(cause: str, with_s: tuple[float, ...], without_s: tuple[float, ...], **more: Any) -> Truth:
    return Truth(cause, {"with_s": with_s, "without_s": without_s}, "without_s", {}, **{**MACHINE, **more})


CLEAR = truth("storage", (2.0, 2.02, 1.98), (1.0, 1.0, 1.0), kind="latency")


@pytest.fixture(scope="session")
def runs(stored_results: Path) -> list[Run]:
    """Runs with steps, spans and reads, one of each loader."""
    found = [load_run(path.parent) for path in sorted(stored_results.glob("2*/facts.json"))]
    return [run for run in found if run.recording is not None]


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packed, "SETS", tmp_path)
    return tmp_path


def test_a_packed_run_comes_back_whole_but_for_what_is_thinned(runs: list[Run]) -> None:
    for run in runs:
        told, again = pack("a", CLEAR, run).opened()
        assert told == CLEAR
        before, after = plain.Arrays(), plain.Arrays()
        value = plain.to_json(packed.thinned(run), [], before)
        assert plain.to_json(again, [], after) == without_paths(value)
        assert before.keys() == after.keys()
        for place, table in before.items():
            assert table.dtype == after[place].dtype
            np.testing.assert_array_equal(table, after[place])


@pytest.mark.parametrize(
    "table",
    [
        np.array([[1, 2**62], [-(2**62), 5], [7, -1]], dtype=np.int64),
        np.array([0.1, -2.5, 1e300]),
        np.zeros((0, 5), dtype=np.int64),
        np.arange(7, dtype=np.int32),
        np.arange(12.0).reshape(4, 3),
        np.array([[True], [False]]),
    ],
)
def test_tables_of_every_kind_come_back(table: np.ndarray) -> None:
    again = packed.unpacked(packed.packed(table), table.dtype, table.shape)
    assert again.dtype == table.dtype
    np.testing.assert_array_equal(again, table)


def test_no_folder_of_the_machine_is_kept() -> None:
    value = {
        "dataset": "/home/somebody/images/val",
        "of": ["cannot read /mnt/a b/x.jpg; /proc/self/io"],
        "part": "2/4 n/a",
    }
    assert without_paths(value) == {
        "dataset": "/data/val",
        "of": ["cannot read /data/a b/x.jpg; /proc/self/io"],
        "part": "2/4 n/a",
    }


def test_a_half_depends_on_the_name_alone_and_both_are_about_as_large() -> None:
    assert half_of("serial-storage-x2") == "tune" and half_of("serial-storage-x1.4") == "held"
    assert 400 < sum(half_of(f"case {number}") == "tune" for number in range(1000)) < 600


def test_a_set_is_read_by_halves_and_written_the_same_again(runs: list[Run], sets: Path) -> None:
    cases = [pack(f"case-{number}", CLEAR, runs[0]) for number in range(6)]
    write_set("some", cases)
    content = (sets / "some.tar.xz").read_bytes()
    assert [one.name for one in read_set("some", "both")] == [one.name for one in cases]
    assert [one.name for one in read_set("some")] == [one.name for one in cases if half_of(one.name) == "tune"]
    write_set("some", read_set("some", "both"))
    assert (sets / "some.tar.xz").read_bytes() == content


def test_a_case_is_added_by_its_folder_and_its_truth_and_replaced_by_its_name(
    runs: list[Run], stored_results: Path, sets: Path, tmp_path: Path
) -> None:
    told = {**plain.to_json(CLEAR), "name": "slow-disk"}  # type: ignore[dict-item]
    (tmp_path / "truth.json").write_text(json.dumps(told))
    folder = stored_results / runs[0].run_id
    assert adding.add("mine", iter([adding.of_run(folder, tmp_path / "truth.json", "nothing")])) == [
        f"added slow-disk ({half_of('slow-disk')})"
    ]
    assert adding.add("mine", iter([adding.of_run(folder, tmp_path / "truth.json", "much")])) == [
        f"replaced slow-disk ({half_of('slow-disk')})"
    ]
    (case,) = read_set("mine", "both")
    assert case.opened()[0].turns == CLEAR.turns


def test_a_run_that_is_judged_in_another_way_once_it_is_packed_is_refused(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = next(one for one in runs if one.recording and len(one.recording.segments) > 1)
    monkeypatch.setattr(packed, "thinned", lambda one: replace(one, recording=None))
    with pytest.raises(ConfigError, match="judged in another way"):
        adding.checked("a", CLEAR, run)


# -- scores ----------------------------------------------------------------------------------------------


def case_of(
    told: Truth, run: Run, cause: str, gains: Mapping[str, tuple[float, float, float]], kind: str | None = None
) -> score.Case:
    """The run with this verdict, beside the truth."""
    estimates = {name: Estimate(*gain, "ratio", 9, "made up") for name, gain in gains.items()}
    verdict = Verdict(cause, speedup_if_removed=estimates)  # type: ignore[arg-type]
    return score.compare("a", told, score.Said(verdict, kind, None), run)


@pytest.fixture(scope="session")
def run(runs: list[Run]) -> Run:
    return next(one for one in runs if (found := analyze(one)).verdict is not None and found.storage is not None)


def test_a_clear_cause_is_right_wrong_or_undetermined(run: Run) -> None:
    gains = {"storage": (1.9, 1.7, 2.1)}
    right = case_of(CLEAR, run, "storage", gains, "latency")
    assert right.clear and right.right and not right.confidently_wrong
    assert right.kind == ("latency", "latency")
    wrong = case_of(CLEAR, run, "prep", gains)
    assert wrong.clear and not wrong.right and wrong.confidently_wrong
    silent = case_of(CLEAR, run, "undetermined", gains)
    assert silent.clear and not silent.right and not silent.confidently_wrong

    found = score.scores([right, wrong, silent])
    assert (found.num_cases, found.num_clear, found.num_right) == (3, 3, 1)
    assert (found.num_confidently_wrong, found.num_undetermined, found.num_kind_right) == (1, 1, 1)
    assert found.gain_error_median == pytest.approx(1 - 1.9 / CLEAR.gain[0])
    assert found.residual_median is None


def test_an_interval_that_holds_no_gain_is_no_clear_cause(run: Run) -> None:
    told = truth("storage", (1.2, 1.0, 1.6), (1.0, 1.1, 1.0))
    assert told.gain[0] > 1.15 and told.gain[1] < 1
    case = case_of(told, run, "compute", {})
    assert (case.truth, case.clear, case.confidently_wrong) == ("compute", False, False)


def test_a_cause_named_where_nothing_was_built_in_is_confidently_wrong(run: Run) -> None:
    nothing = truth("none", (1.0, 1.01, 0.99), (1.0, 1.0, 1.0))
    assert case_of(nothing, run, "storage", {}).confidently_wrong
    right = case_of(nothing, run, "compute", {})
    assert right.null and not right.clear and not right.confidently_wrong


@pytest.mark.parametrize(
    ("predicted", "held"),
    [((2.0, 1.9, 2.1), True), ((1.9, 1.8, 1.97), True), ((1.8, 1.75, 1.85), False), ((2.3, 2.05, 2.6), False)],
)
def test_a_predicted_gain_holds_where_both_intervals_allow_it(
    predicted: tuple[float, float, float], held: bool, run: Run
) -> None:
    told = truth("storage", (2.0, 2.04, 1.96), (1.0, 1.0, 1.0))
    assert told.gain == pytest.approx((2.0, 1.90, 2.10), abs=0.01)
    case = case_of(told, run, "storage", {"storage": predicted})
    found = score.scores([case])
    assert (found.interval_coverage, found.coverage_num) == (float(held), 1)


def test_what_changed_is_told_case_by_case(run: Run) -> None:
    def told(*cases: score.Case) -> dict[str, Any]:
        return {"cases": {"some": [plain.to_json(case) for case in cases]}}

    first = case_of(CLEAR, run, "storage", {}, "latency")
    second = replace(first, verdict="prep", kind=("latency", "bandwidth"))
    assert changes(told(first), told(first)) == []
    assert changes(told(first), told(second, replace(first, name="b"))) == [
        "some/a (truth storage 2.00x): verdict storage -> prep, kind latency -> bandwidth",
        "some/b: new",
    ]
    assert changes(told(first), told()) == ["some/a: gone"]


# -- today's code ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", score.JUDGES)
@pytest.mark.parametrize("name", names_of_sets())
def test_todays_scores_are_not_below_the_floor(name: str, by: score.Judge) -> None:
    floor = json.loads(FLOOR.read_text())[by][name]
    found = judge([name], "tune", 1, by)
    now = found["sets"][name]
    assert now["num_cases"] == floor["num_cases"], "cases were added: `python -m tests.corpus --floor`"
    lost = [field for field in AT_LEAST if now[field] < floor[field]]
    lost += [field for field in AT_MOST if now[field] > floor[field]]
    assert not lost, f"{lost}; not right are {not_right(found['cases'][name])}"


def test_no_case_names_a_folder_of_the_machine_that_measured_it() -> None:
    for name in names_of_sets():
        for case in read_set(name):
            value = json.loads(case.facts)["run"]
            assert without_paths(value) == value


def test_judging_needs_no_torch() -> None:
    code = "import sys; from tests.corpus.__main__ import judge, names_of_sets; judge(names_of_sets()[:1], 'tune', 1); "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
