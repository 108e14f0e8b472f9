"""What the benchmarks' figures are judged by, against tables of the sign test; what the check of a GPU says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import call

from loaderbench.recording.store import Store
from loaderbench.studies import memory, model_fit
from tests.studies.here import Here


def loaded(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def turns() -> ModuleType:
    return loaded("turns")


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    return loaded("gpu_check")


@pytest.mark.parametrize(
    ("rounds", "ranks"),
    # Ranks of the 95 % interval of a median: Conover, Practical Nonparametric Statistics, from the binomial of 1/2.
    [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (12, (3, 10)), (15, (4, 12)), (20, (6, 15)), (25, (8, 18))],
)
def test_the_interval_of_a_median_is_a_pair_of_order_statistics(
    turns: ModuleType, rounds: int, ranks: tuple[int, int]
) -> None:
    values = [float(2**number) for number in range(1, rounds + 1)]
    _, low, high = turns.median_interval(values[::-1])
    assert (low, high) == (2.0 ** ranks[0], 2.0 ** ranks[1])


def test_few_rounds_give_no_interval_and_no_judgement(turns: ModuleType) -> None:
    few = turns.median_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert few == (3.0, None, None)
    assert turns.spread(few) == "3.000"
    assert turns.judged(few, 1.0) == "not decided in fewer than 6 rounds"


@pytest.mark.parametrize(("goal", "judgement"), [(0.9, "reached"), (1.0, "not decided"), (1.2, "missed")])
def test_a_goal_is_judged_by_the_interval(turns: ModuleType, goal: float, judgement: str) -> None:
    assert turns.judged((1.0, 0.95, 1.1), goal) == judgement
    assert turns.spread((1.0, 0.95, 1.1), 2) == "1.00 [0.95, 1.10]"


# -- a batch over several devices ---------------------------------------------------------------------------

REACHED: dict[str, Any] = {
    "device": "cpu:1,cpu:1", "within_10_percent": True, "slower": False, "outputs_equal": True,
    "measured_over_predicted": 1.02,
}  # fmt: skip


@pytest.mark.parametrize(
    ("search", "row", "says"),
    [
        (1500, {}, None),
        (1500, {"outputs_equal": None}, None),  # of a device that computes nothing
        (1499, {}, "the exact search is not the best on 1 tables"),
        (1500, {"within_10_percent": False, "measured_over_predicted": 1.25}, "1.250 of the predicted time"),
        (1500, {"slower": True}, "slower than the fastest alone"),
        (1500, {"outputs_equal": False}, "outputs differ"),
    ],
)
@pytest.mark.parametrize("part", ["members", "gain"])
def test_a_split_that_misses_its_goal_ends_the_benchmark_with_status_1(
    part: str, search: int, row: dict[str, Any], says: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    split = loaded("split")
    told = {"search": {"num_tables": 1500, "num_optimal": search}, part: [{**REACHED, **row}]}
    monkeypatch.setattr(split, "PARTS", {name: lambda asked, found=found: found for name, found in told.items()})
    target = tmp_path / "split.json"
    monkeypatch.setattr("sys.argv", ["split.py", "--only", f"search,{part}", "--json", str(target)])
    if says is None:
        split.main()
    else:
        with pytest.raises(SystemExit, match=says):
            split.main()
    assert json.loads(target.read_text())[part] == told[part]  # written whatever was found


# -- the check of a GPU ------------------------------------------------------------------------------------


def batch(live: int | None, reserved: int | None, predicted: int | None = 1000) -> dict[str, Any]:
    return {
        "batch_size": 8,
        "predicted": None if predicted is None else {"peak_live_bytes": predicted},
        "predicted_reserved_bytes": None if predicted is None else 2 * predicted,
        "measured": {"peak_live_bytes": live, "peak_reserved_bytes": reserved, "missing": {"x": "no driver"}},
        "trace_failure": None if predicted is not None else {"kind": "UnavailableError", "message": "reads values"},
        "failure": None,
    }


@pytest.mark.parametrize(
    ("one", "passed"),
    [
        (batch(1029, 2100), [True, True]),  # 2.8 and 4.8 % above the prediction
        (batch(971, 1904), [True, False]),  # 3.0 below, and 5.04 below
        (batch(1040, 2120), [False, False]),
        (batch(1000, None), [True, False]),
        (batch(1000, 1000, None), [False, False]),
    ],
)
def test_a_gpus_memory_is_judged_by_both_of_its_figures(
    gpu_check: ModuleType, one: dict[str, Any], passed: list[bool]
) -> None:
    lines = gpu_check.memory_lines({"batches": [one]})
    assert [ok for _, ok, _ in lines] == passed
    assert ["live" in what for what, _, _ in lines] == [True, False]


def test_a_figure_that_is_missing_fails_with_its_reason(gpu_check: ModuleType) -> None:
    (_, (_, passed, why)) = gpu_check.memory_lines({"batches": [batch(1000, None)]})
    assert not passed and "no driver" in why
    ((_, _, why), _) = gpu_check.memory_lines({"batches": [batch(1000, 1000, None)]})
    assert "reads values" in why


@pytest.mark.parametrize(
    ("rows", "cost", "passed"),
    [(1.0, 1.04, [True, True]), (0.94, 1.06, [False, False]), (1.06, None, [False, False])],
)
def test_layers_are_judged_by_their_closure(
    gpu_check: ModuleType, rows: float | None, cost: float | None, passed: list[bool]
) -> None:
    found = {"layers_over_whole": {"value": rows}, "timed_over_untimed": None if cost is None else {"value": cost}}
    assert [ok for _, ok, _ in gpu_check.layer_lines(found)] == passed


@pytest.mark.parametrize(
    ("confirmed", "searched", "outcome", "passed"),
    [(True, 3, "out_of_memory", [True, True, True]), (False, 4, "unknown", [False, False, False])],
)
def test_a_fit_is_judged_by_its_trials(
    gpu_check: ModuleType, confirmed: bool, searched: int, outcome: str, passed: list[bool]
) -> None:
    found = {
        "confirmed": confirmed, "num_search_trials": searched, "largest_batch": 9, "predicted_batch": 9,
        "trials": [{"batch_size": 10, "outcome": outcome}],
    }  # fmt: skip
    assert [ok for _, ok, _ in gpu_check.fit_lines(found)] == passed


@pytest.mark.slow
def test_the_lines_are_made_of_what_the_commands_write(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands themselves, of LeNet on the CPU, whose allocator reserves nothing: a failed line with its reason."""
    asked: list[tuple[str, ...]] = []
    written = {
        "layers": {"layers_over_whole": {"value": 1.01}, "timed_over_untimed": {"value": 1.02}},
        "size": {"devices_needed": 3, "chosen_batch": 64, "bound": "compute"},
    }

    def on_the_cpu(check: Any, name: str, *command: str | Path) -> bool:
        words = [str(part) for part in command]
        asked.append(tuple(words))
        begin = words.index("loaderbench") + 1
        if words[begin + 1] in written:
            Path(words[-1]).write_text(json.dumps(written[words[begin + 1]]))
            return True
        return call(*({"cuda": "cpu"}.get(word, word) for word in words[begin:])).code == 0

    for module in (memory, model_fit):
        monkeypatch.setattr(module, "Child", Here)
    monkeypatch.setattr(gpu_check.Check, "call", on_the_cpu)
    monkeypatch.setattr(gpu_check, "MEMORY_MODELS", ("lenet",))
    monkeypatch.setattr(gpu_check, "FIT_MODEL", "lenet")
    monkeypatch.setattr(gpu_check, "FIT_MEMORY", "1500K")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check = gpu_check.Check(tmp_path, 1.0, ["models"])
    gpu_check.models(check)
    said = {one["check"]: one for one in check.found}
    assert said["model memory-lenet-train: batch 16, predicted within 3% of live"]["passed"]
    reserved = said["model memory-lenet-infer: batch 64, predicted within 5% of reserved"]
    assert not reserved["passed"] and "keeps no reserve" in reserved["found"]
    assert all(one["passed"] for name, one in said.items() if "reserved" not in name)
    assert {"model layers: rows ÷ whole step 0.95 to 1.05", "model size: devices needed"} <= set(said)
    assert "fits" in said["model fit-infer-expandable: largest batch confirmed"]["found"]
    assert [words[:2] for words in asked].count(("env", gpu_check.EXPANDABLE)) == 2
    assert json.loads((tmp_path / "model-fit-train.json").read_text())["trials"]


# -- a store of many runs ----------------------------------------------------------------------------------


@pytest.fixture
def of_stores(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return loaded("store")


def test_the_store_of_the_benchmark_holds_whole_runs_that_are_reproduced(of_stores: ModuleType, tmp_path: Path) -> None:
    ids = of_stores.fill(tmp_path, 3)
    runs = Store(tmp_path).runs()
    assert [(run.run_id, run.problem) for run in runs] == [(one, None) for one in ids]
    assert len({run.record.case.key for run in runs if run.record is not None}) == 3
    assert call("analyze", "--all", "--results", tmp_path).code == 0


@pytest.mark.parametrize(
    ("command", "grown", "clock", "reached"),
    [
        ("show latest", (1.1, 1.0, 1.2), (9.0, 9.0, 9.0), "reached"),
        ("rm ID", (2.0, 1.9, 2.1), (1.0, 1.0, 1.0), "missed"),
        ("trace latest", (1.5, 1.4, 1.6), (1.0, 1.0, 1.0), "not decided"),
        ("list", (9.0, 9.0, 9.0), (4.5, 4.0, 4.9), "reached"),
        ("list", (1.0, 1.0, 1.0), (6.0, 5.5, 6.5), "missed"),
        ("ledger", (9.0, 9.0, 9.0), (9.0, 9.0, 9.0), None),
    ],
)
def test_a_command_about_one_run_must_not_grow_and_the_list_must_be_quick(
    command: str, grown: Any, clock: Any, reached: str | None, of_stores: ModuleType
) -> None:
    assert of_stores.goal(command, True, grown, clock) == reached
    assert of_stores.goal(command, False, grown, clock) is None
