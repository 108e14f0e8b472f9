"""What benchmarks/watch.py takes for clear, and that the scripts' injections take time and change nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from loaderbench.plain import from_json
from tests.corpus.packed import Truth

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def watch(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("watch")


def side(seconds: float, seen: str = "a") -> dict[str, Any]:
    return {"seconds_per_step": seconds, "losses_and_order": seen}


@pytest.mark.parametrize(
    ("without", "rival_gone", "clear"),
    [(1.0, 1.9, True), (1.6, 1.9, False), (1.0, 1.7, False), (1.0, None, True)],
)
def test_a_case_is_clear_where_its_cause_gains_much_and_its_rival_little(
    watch: ModuleType, without: float, rival_gone: float | None, clear: bool
) -> None:
    rounds = [{"with": side(2.0), "without": side(without)} for _ in range(3)]
    for one in rounds:
        if rival_gone is not None:
            one["rival_gone"] = side(rival_gone, "of another step")
    found = watch.truth_of(rounds)
    assert found.is_clear == clear
    assert found.same
    rounds[1]["with"] = side(2.0, "b")
    assert not watch.truth_of(rounds).same


@pytest.mark.parametrize(
    ("name", "rival_gone", "cause", "also"),
    [
        ("plain/item@10", 1.9, "prep", None),
        ("plain/storage@10", 1.6, "storage", "compute"),
        ("plain/issue@10", 1.9, "launch", "compute"),
        ("plain/neighbours@10", None, "contention", None),
        ("several_loaders/validation@10", None, None, None),
    ],
)
def test_the_truth_of_a_watched_script_is_kept_as_the_corpus_takes_it(
    watch: ModuleType, name: str, rival_gone: float | None, cause: str | None, also: str | None, tmp_path: Path
) -> None:
    rounds = [{"with": side(2.0), "without": side(1.0)} for _ in range(3)]
    for one in rounds:
        if rival_gone is not None:
            one["rival_gone"] = side(rival_gone)
    watch.keep_truth(tmp_path, watch.cases()[name], watch.truth_of(rounds))
    if cause is None:
        assert not [*tmp_path.iterdir()]
        return
    told = json.loads((tmp_path / "truth.json").read_text())
    truth = from_json(Truth, {**told, "machine": "a machine", "beside": "nothing"})
    assert (truth.cause, truth.also) == (cause, also)
    assert truth.gain == pytest.approx((2.0, 2.0, 2.0))


def test_two_more_rounds_are_asked_where_three_leave_it_open(
    watch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*gains: float) -> int:
        given = iter(gains)
        monkeypatch.setattr(watch, "one_round", lambda *of: {"with": side(next(given)), "without": side(1.0)})
        return len(watch.asked_in_rounds(None, None, 3).gains)

    assert asked(2.0, 2.1, 2.0) == 3
    assert asked(1.0, 1.01, 1.0) == 3
    assert asked(1.05, 1.2, 1.1, 1.1, 1.1) == 5


def test_there_are_cases_of_every_injection_and_script(watch: ModuleType) -> None:
    known = watch.cases().values()
    assert len(known) >= 60
    assert {one.injection for one in known} == set(watch.CAUSES)
    assert {one.script for one in known} == {path.stem for path in watch.SCRIPTS.glob("*.py")} - {"scene"}


@pytest.mark.slow
def test_a_scripts_injection_takes_its_time_and_changes_no_loss(watch: ModuleType, tmp_path: Path) -> None:
    data = watch.make_data(tmp_path / "data")
    told = {}
    for injected in (False, True):
        one = watch.Asked("no_workers", "issue", 3.0, step_ms=2.0)
        command = [*watch.command_of(one, data, injected=injected), "--epoch-steps", "20"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        told[injected] = json.loads(done.stdout.removeprefix("TIMED "))
    assert told[True]["losses_and_order"] == told[False]["losses_and_order"]
    more = told[True]["main_cpu_s_per_step"] - told[False]["main_cpu_s_per_step"]
    assert 0.8 * 6e-3 < more < 1.5 * 6e-3
    assert sys.executable == command[0]


# -- what watching costs ----------------------------------------------------------------------------------------


@pytest.fixture
def watch_overhead(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("watch_overhead")


def epochs_of(more_s: float, num: int = 40, noise: float = 0.02) -> list[Any]:
    """Steps of 2 ms of the processor and 4 ms in all, the watched ones longer by `more_s`. The machine is half as fast
    in every third epoch, for both loaders; the one that is made first takes 0.2 ms more, and each varies by chance."""
    random = np.random.default_rng(3)
    epochs = []
    for number in range(num):
        speed, first = 1.0 if number % 3 else 2.0, number % 2
        both = [speed * 2e-3 * (1 + noise * random.standard_normal()) for _ in range(2)]
        both[first] += 0.2e-3
        epochs.append([[both[0] + more_s, both[0] + more_s + 2e-3], [both[1], both[1] + 2e-3]])
    return epochs


def test_a_machine_that_changes_its_speed_hides_no_overhead(watch_overhead: ModuleType) -> None:
    more_s, epochs = 0.1e-3, epochs_of(0.1e-3)
    row = watch_overhead.row_of("default probes", 1.0, [epochs[:20], epochs[20:]], same=True)
    value, low, high = row["part_of_step"]
    assert row["bare_s_per_step"] == pytest.approx(4.78e-3, rel=0.02)  # 4.1 and 6.1 ms
    assert low < more_s / 4.78e-3 < high and low <= value <= high
    assert 0.003 < high - low < 0.02  # 2 x 0.02 x 2.8 ms x sqrt(2) / 4.8 ms / sqrt(40) = 0.005 to either side
    assert row["judged"] == "reached"
    assert row["num_epochs"] == 40 == 2 * len(row["part_of_step_by_two_epochs"])


@pytest.mark.parametrize(("more_s", "judgement"), [(0.0, "NOT FOUND"), (0.03e-3, "found"), (0.1e-3, "NOT FOUND")])
def test_the_known_overhead_must_be_what_is_found(watch_overhead: ModuleType, more_s: float, judgement: str) -> None:
    row = watch_overhead.row_of(watch_overhead.KNOWN, 1.0, [epochs_of(more_s, noise=0.005)], same=True)
    assert row["known"] == pytest.approx(0.03 / 4.78, rel=0.02)
    assert row["judged"] == judgement


def test_the_interval_of_a_mean_is_student_s(watch_overhead: ModuleType) -> None:
    # ten values of 0 and ten of 2, s = sqrt(20 / 19); of Student's t, 19 degrees of freedom: 2.093 (tables)
    value, low, high = watch_overhead.mean_interval([0.0, 2.0] * 10)
    half = 2.093 * (20 / 19) ** 0.5 / 20**0.5
    assert (value, low, high) == pytest.approx((1.0, 1.0 - half, 1.0 + half), rel=1e-3)


@pytest.mark.slow
def test_of_two_loaders_in_turns_a_watch_sees_one(watch: ModuleType, tmp_path: Path) -> None:
    data = watch.make_data(tmp_path / "data")
    script = [str(BENCHMARKS / "watch_turns.py"), str(data), "--step-ms", "1", "--epoch-steps", "80", "--epochs", "2"]
    record, told = tmp_path / "record.json", {}
    commands = {
        "bare": [sys.executable, *script],
        "spun": [sys.executable, *script, "--spin", "4"],
        "watched": [
            sys.executable, "-m", "loaderbench", "watch", "--results", str(tmp_path / "runs"), "--json", str(record),
            *script,
        ],
    }  # fmt: skip
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        told[name] = json.loads(done.stdout.removeprefix("TIMED "))
    assert len({one["losses_and_order"] for one in told.values()}) == 1
    assert {len(one["epochs"]) for one in told.values()} == {2}
    for (cpu_s, wall_s), (bare_cpu_s, bare_s) in told["spun"]["epochs"]:
        assert 0.0 < bare_cpu_s < bare_s and bare_s > 1e-3
        assert 0.7 * 4e-3 < cpu_s - bare_cpu_s < 1.6 * 4e-3 and wall_s > bare_s
    (loader,) = json.loads(record.read_text())["watched"]["loaders"]
    assert (loader["num_batches"], loader["num_iterators"]) == (160, 2)
