"""How benchmarks/hard_cases.py judges what was said, and which causes benchmarks/time_to_verdict.py asks about."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loaderbench.cases.case import Case
from loaderbench.errors import UnavailableError
from loaderbench.plain import from_json, to_json
from loaderbench.recording.record import DataWait, Estimate, RunRecord
from loaderbench.selftest.scenarios import HARD
from tests.corpus.packed import Truth
from tests.made import make_case
from tests.reporting import example_records


@pytest.fixture
def hard(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("hard_cases")


def record(bottleneck: str, *, joint: list[str] | None = None, high: float = 2.1, **more: Any) -> dict[str, Any]:
    """What `run --json` gives of a run that says a gain of 2.0."""
    gain = {"value": 2.0, "low": 1.9, "high": high}
    return {
        "verdict": {
            "bottleneck": bottleneck, "summary": "any one of them", "joint": joint or [],
            "joint_speedup": gain if joint else None, "speedup_if_removed": {bottleneck: gain},
        },
        "throughput": {"value": 100.0, "low": 95.0, "high": 105.0},
        **more,
    }  # fmt: skip


def judged(
    hard: ModuleType, cause: str, by: str | None, said: dict[str, Any], gain: float = 2.0
) -> tuple[str, list[str]]:
    wanted = hard.HardCase(cause, by, None)
    found: tuple[str, list[str]] = hard.judge(wanted, [hard.Gain(cause, gain)], hard.said_of(said))
    return found


def test_the_true_cause_is_right_another_is_wrong_and_none_is_undetermined(hard: ModuleType) -> None:
    assert judged(hard, "storage", None, record("storage")) == ("right", [])
    assert judged(hard, "storage", None, record("prep"))[0] == "WRONG"
    assert judged(hard, "storage", None, record("compute"))[0] == "WRONG"
    assert judged(hard, "storage", None, record("undetermined"))[0] == "undetermined"
    assert judged(hard, "storage", None, record("mixed", joint=["storage", "transfer"]))[0] == "in part"
    assert judged(hard, "storage", None, record("mixed", joint=["prep", "transfer"]))[0] == "WRONG"
    # what slowed nothing cannot be judged
    assert judged(hard, "storage", None, record("prep"), gain=1.05)[0] == "unclear"


def test_where_either_may_go_one_of_them_or_together_is_in_part(hard: ModuleType) -> None:
    both = record("mixed", joint=["storage", "prep"])
    assert judged(hard, "either", None, both) == ("right", [])
    both["verdict"]["summary"] = "bound this run together"
    mark, notes = judged(hard, "either", None, both)
    assert mark == "in part" and "together" in notes[0]
    assert judged(hard, "either", None, record("prep")) == ("in part", ["either may go, and it names one"])
    assert judged(hard, "either", None, record("compute"))[0] == "WRONG"


def test_a_cause_alone_is_right_in_part_and_what_is_short_is_said(hard: ModuleType) -> None:
    named = record("contention", contention={"by": "quota"})
    assert judged(hard, "contention", "quota", named) == ("right", [])
    assert judged(hard, "contention", "neighbours", named) == ("in part", ["neighbours, not quota"])
    # an older engine tells no kind
    assert judged(hard, "storage", "tail", record("storage")) == ("in part", ["tail, not None"])
    assert judged(hard, "storage", "tail", record("storage", storage={"kind": "tail"})) == ("right", [])
    assert judged(hard, "storage", None, record("storage", high=9.0)) == ("in part", ["its gain is not bounded"])
    assert judged(hard, "storage", None, record("storage"), gain=3.0) == ("in part", ["its gain is off by -33%"])
    assert judged(hard, "storage", None, record("storage"), gain=1.7) == ("in part", ["its gain is off by +18%"])
    assert judged(hard, "storage", None, record("storage"), gain=2.15) == ("right", [])
    wide = record("storage")
    wide["throughput"]["high"] = 708_331.0
    assert judged(hard, "storage", None, wide) == ("in part", ["its throughput is not bounded"])
    late, wanted = hard.lateness(31.0, 20.0), hard.HardCase("storage", None, None)
    found = hard.judge(wanted, [hard.Gain("storage", 2.0)], hard.said_of(record("storage")), late)
    assert found == ("in part", ["answered 11 s after --duration 20"])
    assert hard.lateness(29.0, 20.0) == []


def test_the_truth_of_a_hard_case_is_kept_as_the_corpus_takes_it(hard: ModuleType, tmp_path: Path) -> None:
    gains = [hard.gain_of("storage", [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]), hard.gain_of("prep", [2.0] * 3, [0.8] * 3)]
    for cause, by, wanted in (("storage", "tail", 2.0), ("either", None, 2.5)):
        hard.keep_truth(tmp_path, "some", hard.HardCase(cause, by, lambda bench: None), gains)
        told = json.loads((tmp_path / "truth.json").read_text())
        truth = from_json(Truth, {**told, "machine": "a machine", "beside": "nothing"})
        assert (truth.cause, truth.kind, truth.culprit) == (cause, by, None)
        assert truth.gain == pytest.approx((wanted, wanted, wanted))


def test_an_advice_that_is_off_is_wrong_only_where_its_interval_says_something(hard: ModuleType) -> None:
    measured = hard.Gain("--workers 2", 2.0)
    told = {(1.5, 1.4, 1.8): (True, True), (1.5, 1.4, 1.95): (False, True), (1.5, 0.4, 3.0): (True, False)}
    for (value, low, high), expected in told.items():
        assert hard.advice_beside({"value": value, "low": low, "high": high}, measured)[1:] == expected
    assert hard.advice_beside({"value": 1.5, "low": 1.4, "high": None}, measured)[1:] == (True, False)
    assert hard.advice_beside({"value": 1.9, "low": 0.4, "high": None}, measured)[1:] == (False, False)


def test_stored_lines_are_marked_again_and_what_was_right_in_part_is_counted(
    hard: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    said = to_json(hard.said_of(record("storage", storage={"kind": "tail"})))
    late = "answered 12 s after --duration 20"
    stored = {
        "name": "capped-serial", "truth": "storage (bandwidth)", "mark": "right", "seconds": 32.0, "said": said,
        "gains": [{"what": "storage", "value": 2.0}], "notes": [late, "of an older mark"], "rates": {},
    }  # fmt: skip
    line = hard.judged_again(stored)
    assert (line.mark, line.notes) == ("in part", ["bandwidth, not tail", late])
    with pytest.raises(SystemExit) as ended:
        hard.end_with([line, hard.judged_again({**stored, "name": "bench-table"})])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"1 in part, 1 right\nin part: capped-serial (bandwidth, not tail; {late})\n"


def test_the_command_asks_for_the_case(hard: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # given what the command line makes of the options
    from commands import call

    tree = tmp_path / "tree" / "class0"
    tree.mkdir(parents=True)
    (tree / "a.jpg").write_bytes(b"")
    case: Case = make_case(dataset=str(tree.parent), cache="warm", device="emulated:h200-resnet50-train-fp32")
    flags = hard.flags_of(case)
    said = call("run", *flags, "--dry-run", "--results", tmp_path / "results")
    assert said.code == 0, said.err
    for word in (case.feed.loader, f"w{case.feed.workers}", f"b{case.step.batch_size}"):
        assert word in said.out


def test_a_case_that_cannot_be_made_is_skipped_with_its_reason(
    hard: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks(bench: object) -> object:
        raise UnavailableError("no cgroup here")

    hard.CASES["lacking"] = hard.HardCase("contention", "quota", lacks)
    assert hard.one_line(None, "lacking", "") == []
    assert "skipped: no cgroup here" in capsys.readouterr().out


def test_time_to_verdict_asks_about_every_hard_class(benchmark_module: Callable[[str], ModuleType]) -> None:
    asked = benchmark_module("time_to_verdict").causes()
    assert set(HARD) <= set(asked) and {"nothing", "prep ×1.5", "storage ×2.5"} <= set(asked)
    assert {one.loader for one in asked.values()} == {"multiprocess"}
    assert {asked[name].cause for name in HARD} == {"storage", "contention", "either", "prep"}


def test_time_to_verdict_asks_again_only_where_a_way_has_not_answered(
    benchmark_module: Callable[[str], ModuleType],
) -> None:
    bench = benchmark_module("time_to_verdict")
    rows = [{"round": 0, "built_in": "tails", "way": way} for way in ("loaderbench", "three phases")]
    assert bench.is_asked(rows, 0, "tails", ("loaderbench", "three phases"))
    assert not bench.is_asked(rows, 0, "tails", ("loaderbench", "three phases", "TraceML"))
    assert not bench.is_asked(rows, 1, "tails", ("loaderbench",))
    assert not bench.is_asked(rows, 0, "stalls", ("loaderbench",))


def test_intervals_of_a_repeated_table_are_held_against_the_median_of_the_repeats(hard: ModuleType) -> None:
    def table(*rates: tuple[float, float, float | None]) -> Any:
        return hard.Line("bench-table", "", "right", 0.0, rates=dict(zip("ab", rates, strict=True)))

    two = [table((10, 9, 11), (5, 4, 6)), table((12, 11, 13), (5, 4, 6))]
    assert hard.held(two) is None
    # medians 11 and 5: the first row's last interval misses its own
    assert (
        hard.held([*two, table((11, 11.5, 12), (5.5, 5, 6))]) == "3 repeats: 5 of 6 intervals hold their row's median"
    )
    told = hard.held([*two, table((11, 10, None), (5, 4, 6))])
    assert told == "3 repeats: 5 of 5 intervals hold their row's median, 1 are not bounded"


def test_a_repeat_of_the_table_knows_its_rows_by_resolution_and_loader(hard: ModuleType) -> None:
    records = [record for record in example_records.sweep() if record.throughput is not None]
    rates = hard.rates_of([to_json(one) for one in [*records, example_records.ended_badly()]])
    assert set(rates) == {f"{one.case.subject.resolution} {one.case.feed.loader}" for one in records}
    assert all(low <= value <= high for value, low, high in rates.values())


def test_the_interval_of_a_stall_holds_contention_too(benchmark_module: Callable[[str], ModuleType]) -> None:
    made = next(one for one in example_records.sweep() if one.verdict is not None)
    assert made.verdict is not None
    verdict = made.verdict

    def width(waits: Estimate | None, contention: Estimate | None) -> float | None:
        waiting = None if waits is None else DataWait(waits, waits)
        record: RunRecord = replace(
            made,
            verdict=replace(verdict, waiting_for_data=waiting),
            shares={**(made.shares or {}), "contention": contention},
        )
        found: float | None = benchmark_module("time_to_verdict").half_width_of(record)
        return found

    waits = Estimate(0.5, 0.47, 0.53, "fraction", 9, "")
    assert width(waits, Estimate(0.2, 0.16, 0.24, "fraction", 9, "")) == pytest.approx(0.05)  # √(0.03² + 0.04²)
    assert width(waits, Estimate(0.0, 0.0, 0.3, "fraction", 9, "")) == pytest.approx(0.03)
    assert width(waits, Estimate(0.2, None, None, "fraction", 9, "")) is None
    assert width(None, None) is None


def test_time_to_verdict_counts_the_answers_until_they_are_known_as_well(
    benchmark_module: Callable[[str], ModuleType],
) -> None:
    bench = benchmark_module("time_to_verdict")

    def rows(way: str, stalls: list[float], half_width: float | None, seconds: float) -> list[dict[str, Any]]:
        return [
            {"built_in": "tails", "way": way, "stall": stall, "half_width": half_width, "seconds": seconds}
            for stall in stalls
        ]

    ours = rows("loaderbench", [0.5, 0.52, 0.48], 0.05, 18.0)
    # s = 0.02: with 2 answers 12.71 · 0.02 ÷ √2 = 0.18, with 3 4.30 · 0.02 ÷ √3 = 0.0497
    spread = [0.5, 0.52, 0.48]
    assert bench.seconds_at_equal_interval([*ours, *rows("phases", spread, None, 14.0)], "phases") == 3 * 14.0
    assert bench.seconds_at_equal_interval(ours, "loaderbench") == 18.0
    # always the same answer: two, to know that; of two rounds nothing is told
    assert bench.seconds_at_equal_interval([*ours, *rows("phases", [1.0] * 3, None, 14.0)], "phases") == 2 * 14.0
    assert bench.seconds_at_equal_interval([*ours, *rows("phases", [0.5, 0.6], None, 14.0)], "phases") is None
