"""The split study with members whose times are known: what it measures, searches and runs, and how it ends badly."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import INTERRUPTED, Ended, call
from split_crew import Crew
from split_facts import toy_card

from loaderbench.analysis.model_split import split_of
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_split import ModelSplit, SplitFacts
from loaderbench.running.members import MemberFailed
from loaderbench.running.supervisor import JobFailed
from loaderbench.studies import model_split as study_module
from loaderbench.studies import split_plan
from tests.studies.kept import assert_kept, only_study


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Crew]]:
    """Members that are not there, on a machine of 8 CPUs."""

    class Own(Crew):
        pass

    monkeypatch.setattr(study_module, "Members", Own)
    monkeypatch.setattr(split_plan, "usable_cpus", lambda: 8)
    monkeypatch.setattr("loaderbench.devices.select.usable_cpus", lambda: 8)
    monkeypatch.setattr(study_module, "TURNS_S", 0.0)  # these turns are short, and their number is told
    yield Own


def split(results: Path, *flags: str, device: str = "cpu:2,cpu:1", batch: int = 16) -> Ended:
    shared = ("--device", device, "--batch-size", str(batch), "--results", str(results))
    return call("model", "split", "lenet", *shared, *flags)


def found(results: Path, *flags: str, code: int = 0, **asked: Any) -> dict[str, Any]:
    done = split(results, *flags, "--json", "-", **asked)
    assert done.code == code, done.err
    told: dict[str, Any] = json.loads(done.out)
    return told


def only_times(results: Path) -> list[Any]:
    """What the table holds."""
    times: list[Any] = json.loads(split(results, "--show-table", "--json", "-").out)["times"]
    return times


def stepped(member: int, size: int, beside: bool) -> float:
    """Member 0 is twice as fast, with a fixed cost; both step at every 4 images, and are slower beside one another."""
    one = 0.010 + 0.010 * -(-size // 4) if member == 0 else 0.020 * -(-size // 4)
    return one * (1.1 if beside else 1.0)


def best_of(seconds: Any, batch: int, num: int = 2) -> float:
    """The least finish of all splits, by trying each."""
    return min(
        max(seconds(member, size, sum(map(bool, sizes)) > 1) for member, size in enumerate(sizes) if size)
        for sizes in itertools.product(range(batch + 1), repeat=num)
        if sum(sizes) == batch
    )


# -- the answer ------------------------------------------------------------------------------------------


def test_the_split_that_is_run_is_the_best_of_all(crew: type[Crew], tmp_path: Path) -> None:
    crew.seconds = staticmethod(stepped)
    told = found(tmp_path)
    assert told["exact_s"] == pytest.approx(best_of(stepped, 16)) == told["predicted_s"]
    sizes = [one["batch_size"] for one in told["members"]]
    assert sum(sizes) == 16 and all(sizes) and told["greedy_s"] >= told["exact_s"]
    # the turns took what the members take, beside one another and alone
    assert told["measured_s"]["value"] == pytest.approx(told["exact_s"])
    assert told["fastest_alone"]["device"] == "cpu:2"
    assert told["fastest_alone"]["s"]["value"] == pytest.approx(stepped(0, 16, False))
    ratio = told["exact_s"] / stepped(0, 16, False)
    assert told["ratio_to_fastest_alone"]["value"] == pytest.approx(ratio) and ratio < 1
    assert told["outcome"] == "faster" and told["num_turns"] == 10 and told["is_equal"]
    for one in told["members"]:
        expected = stepped(told["members"].index(one), one["batch_size"], True)
        assert one["predicted_s"] == pytest.approx(expected) == one["measured_s"]["value"]
    facts = assert_kept(tmp_path, "model_split", num_runs=0).facts
    assert isinstance(facts, SplitFacts) and not facts.interrupted and facts.turns is not None
    assert facts.turns.split_ns.shape == (10, 2, 2) and facts.turns.alone_ns.shape == (10, 2)


def test_turns_alternate_between_the_split_and_the_fastest_alone(crew: type[Crew], tmp_path: Path) -> None:
    found(tmp_path, "--turns", "3")
    runs = [set(parts) for what, parts in crew.last.calls if what == "run"]
    both, alone = {0, 1}, {0}
    assert runs == [both, alone, both, alone, both, alone, both, alone]  # the first two compare outputs


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.004, 200), (0.1, 20), (0.3, 10)],
    ids=["no more than 200", "4 s of turns of 0.2 s", "no fewer than 10"],
)
def test_turns_go_on_while_they_are_short(
    crew: type[Crew], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, expected: int
) -> None:
    monkeypatch.setattr(study_module, "TURNS_S", 4.0)
    # a turn's two halves take as long: the split ends with its slower part
    crew.seconds = staticmethod(lambda member, size, beside: 0.6 * seconds if beside else seconds * (1 + member))
    crew.turn = staticmethod(lambda member, size, beside: seconds)
    assert found(tmp_path)["num_turns"] == expected
    assert found(tmp_path, "--turns", "10")["num_turns"] == 10


def test_the_fastest_alone_is_an_answer(crew: type[Crew], tmp_path: Path) -> None:
    crew.seconds = staticmethod(lambda member, size, beside: 0.002 * size if member == 0 else 0.1 + 0.05 * size)
    told = found(tmp_path)
    assert told["outcome"] == "alone" and [one["batch_size"] for one in told["members"]] == [16, 0]
    assert told["ratio_to_fastest_alone"] is None and "no split ends before" in told["answer"][0]
    assert told["measured_s"]["value"] == pytest.approx(0.032) and told["greedy_sizes"] == [16, 0]
    facts = only_study(tmp_path).facts
    assert isinstance(facts, SplitFacts) and facts.turns is not None
    assert len(facts.turns.split_start_ns) == 0 and len(facts.turns.alone_start_ns) == 10


def test_a_split_that_the_intervals_do_not_tell_from_the_fastest_alone_is_run(crew: type[Crew], tmp_path: Path) -> None:
    """By the table 60 ms alone and 62 ms at best for a split, each ± 5 %; in the turns the split takes 30."""
    crew.noise = staticmethod(lambda call: (0.95, 1.0, 1.05)[call % 3])

    def seconds(member: int, size: int, beside: bool) -> float:
        return (0.062 if size == 8 else 0.100) if beside else (0.060, 1.0)[member]

    crew.seconds = staticmethod(seconds)
    crew.turn = staticmethod(lambda member, size, beside: 0.030 if beside else 0.060)
    told = found(tmp_path)
    assert told["exact_sizes"] == [16, 0] and told["exact_s"] == pytest.approx(0.060)
    assert [one["batch_size"] for one in told["members"]] == [8, 8] and told["outcome"] == "faster"
    assert told["predicted_s"] == pytest.approx(0.062) == told["members"][0]["predicted_s"]
    assert told["ratio_to_fastest_alone"]["value"] == pytest.approx(0.5, rel=0.11)
    crew.noise = staticmethod(lambda call: 1.0)  # with no doubt about the times nothing else is run
    told = found(tmp_path, "--remeasure")
    assert told["outcome"] == "alone" and [one["batch_size"] for one in told["members"]] == [16, 0]


def test_times_for_the_table_are_turns_of_a_split(crew: type[Crew], tmp_path: Path) -> None:
    """From a common start, each member on its own images, the faster one at work until the slower is done."""
    crew.seconds = staticmethod(lambda member, size, beside: 0.010 * size * (1 + member))
    asked = list[tuple[dict[int, Any], int]]()
    run = Crew.run

    def noted(self: Crew, parts: Any, *, busy_s: float = 0.0, **asks: Any) -> Any:
        asked.append((dict(parts), round(busy_s * 1e3)))
        return run(self, parts, busy_s=busy_s, **asks)

    crew.run = noted  # type: ignore[method-assign]
    found(tmp_path)
    assert asked.count(({0: (0, 4), 1: (4, 4)}, 72)) >= 6
    assert asked.count(({0: (0, 16)}, 144)) == 6  # alone: within the batch
    assert asked.count(({0: (0, 9), 1: (7, 9)}, 162)) >= 6


def test_a_split_that_is_slower_than_it_was_predicted_is_said(crew: type[Crew], tmp_path: Path) -> None:
    crew.turn = staticmethod(lambda member, size, beside: 0.01 * size * (2.5 if beside else 1.0))
    told = found(tmp_path)
    assert told["outcome"] == "slower" and told["measured_over_predicted"] == pytest.approx(2.5)
    assert told["answer"][0].startswith("This split is slower than cpu:2 alone: ")
    assert "Measured ÷ predicted: 2.500, more than 10 % off" in " ".join(told["answer"])


def test_a_member_that_gains_nothing_is_left_out_and_the_others_are_measured_without_it(
    crew: type[Crew], tmp_path: Path
) -> None:
    crew.seconds = staticmethod(lambda member, size, beside: 5.0 if member == 2 else 0.01 * size)
    told = found(tmp_path, device="cpu:1,cpu:2,cpu:3")
    assert [one["batch_size"] for one in told["members"]] == [8, 8, 0] and told["num_searches"] == 2
    companies = {tuple(one["beside"]) for one in told["times"] if one["device"] == "cpu:1"}
    assert companies == {(), ("cpu:2",), ("cpu:2", "cpu:3")}


def test_a_chosen_size_between_measured_ones_is_measured_and_the_search_repeated(
    crew: type[Crew], tmp_path: Path
) -> None:
    def bumped(member: int, size: int, beside: bool) -> float:
        return 0.01 * size * (3 if member else 1) * (4 if size in (11, 12, 13) and member == 0 else 1)

    crew.seconds = staticmethod(bumped)
    told = found(tmp_path, batch=16)  # 2^n and its neighbours leave out 10 to 14 and 6
    measured = {one["batch_size"] for one in told["times"] if one["device"] == "cpu:2" and one["beside"]}
    assert measured > {1, 2, 3, 4, 5, 7, 8, 9, 15, 16} and told["num_searches"] >= 2
    first = told["members"][0]["batch_size"]
    assert first in measured and first not in (11, 12, 13)
    assert told["measured_over_predicted"] == pytest.approx(1.0)


# -- the table -------------------------------------------------------------------------------------------


def test_times_are_taken_beside_the_others_and_never_again(crew: type[Crew], tmp_path: Path) -> None:
    first = found(tmp_path)
    sizes = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16}
    times = [(one["device"], tuple(one["beside"]), one["batch_size"]) for one in first["times"]]
    assert set(times) >= {("cpu:2", ("cpu:1",), size) for size in sizes} | {("cpu:2", (), 16), ("cpu:1", (), 16)}
    assert len(set(times)) == len(times) == first["num_measured"]
    repeats = [sizes for what, sizes in crew.last.calls if what == "repeat" and len(sizes) > 1]
    assert all(set(one) == {0, 1} for one in repeats)  # nobody rests while a member is timed
    again = found(tmp_path)
    assert again["num_measured"] == 0 and again["times"] == first["times"]
    assert not [what for what, _ in crew.last.calls if what == "repeat"]
    third = found(tmp_path, "--remeasure")
    assert third["num_measured"] == first["num_measured"]


def test_equal_members_share_their_times_one_a_turn_that_of_the_last(crew: type[Crew], tmp_path: Path) -> None:
    crew.seconds = staticmethod(lambda member, size, beside: 0.100 * size * (1.5 if member == 1 else 1.0))
    told = found(tmp_path, device="cpu:1,cpu:1")
    assert {one["device"] for one in told["times"]} == {"cpu:1"}
    assert [one["batch_size"] for one in told["members"]] == [8, 8]
    for one in told["times"]:
        assert one["num_turns"] == 6  # not 12: both are of the same moments
        assert one["seconds"] == pytest.approx(one["batch_size"] * (0.150 if one["beside"] else 0.100))
    assert told["measured_over_predicted"] == pytest.approx(1.0)


def test_a_time_beside_a_member_that_rested_is_not_kept_for_later(crew: type[Crew], tmp_path: Path) -> None:
    """cpu:1 has a fixed cost of 0.5 s and rests beside small batches; where it works cpu:2 is half as fast again."""

    def fixed(member: int, size: int, beside: bool) -> float:
        return (0.5 + 0.001 * size) if member else 0.010 * size * (1.5 if beside else 1.0)

    crew.seconds = staticmethod(fixed)
    told = found(tmp_path, batch=8)
    assert told["outcome"] == "alone"
    for one in only_times(tmp_path):
        number = ("cpu:2", "cpu:1").index(one["device"])
        assert one["seconds"] == pytest.approx(fixed(number, one["batch_size"], bool(one["beside"])))
    assert [one["seconds"] for one in told["times"] if (one["device"], one["batch_size"]) == ("cpu:2", 2)] == [0.020]
    told = found(tmp_path, batch=100)
    assert told["exact_s"] == pytest.approx(best_of(fixed, 100), rel=1e-6)


def test_what_is_measured_again_is_all_that_counts(crew: type[Crew], tmp_path: Path) -> None:
    expected = found(tmp_path / "other", batch=12)
    flags = ("--set", "cpu:1,6=0.0001", "--set", "cpu:2,6=0.0001", "--set", "cpu:2,10=0.0001", "--quiet")
    assert split(tmp_path, *flags).code == 0
    told = found(tmp_path, "--remeasure", batch=12)
    assert told["exact_s"] == pytest.approx(best_of(crew.seconds, 12)) == expected["exact_s"]
    assert {one["origin"] for one in told["times"]} == {"measured"}


def test_sizes_above_one_that_did_not_fit_before_are_measured_again(crew: type[Crew], tmp_path: Path) -> None:
    crew.most = staticmethod(lambda member, what: 3 if member == 1 else 100)
    assert [one["batch_size"] for one in found(tmp_path)["members"]] == [13, 3]
    crew.most = staticmethod(lambda member, what: 100)
    assert [one["batch_size"] for one in found(tmp_path, "--remeasure")["members"]] == [8, 8]


def test_sizes_above_what_fits_are_not_tried_where_the_whole_batch_fits_nowhere(
    crew: type[Crew], tmp_path: Path
) -> None:
    crew.most = staticmethod(lambda member, what: 40)
    told = found(tmp_path, batch=64)
    assert sum(one["batch_size"] for one in told["members"]) == 64
    missed = [one for one in told["times"] if one["outcome"] == "out_of_memory"]
    assert {one["batch_size"] for one in missed} == {63, 64} and len(missed) == 4  # 64 alone, 63 beside one another


def test_a_size_whose_turns_never_begin_together_is_refused(crew: type[Crew], tmp_path: Path) -> None:
    crew.late = staticmethod(lambda what, call: what == "repeat" and call > 40)
    done = split(tmp_path, "--quiet")
    assert (done.code, done.out, len(done.lines)) == (1, "", 1)
    assert "turns started together, and 6 are needed: stop other programs" in done.err
    assert all(one["num_turns"] >= 6 for one in only_times(tmp_path)) and only_times(tmp_path)


def test_a_size_with_turns_enough_is_kept_however_many_began_late(crew: type[Crew], tmp_path: Path) -> None:
    crew.late = staticmethod(lambda what, call: what == "repeat" and call % 3 != 0)
    told = found(tmp_path)
    assert all(one["num_turns"] >= 6 for one in told["times"]) and told["times"]


def test_a_turn_in_which_a_member_began_late_is_repeated_with_its_neighbour(crew: type[Crew], tmp_path: Path) -> None:
    crew.late = staticmethod(lambda what, call: what == "run" and call in (3, 6))  # the first two compare outputs
    told = found(tmp_path)
    assert told["num_turns"] == 10 == told["ratio_to_fastest_alone"]["n"] and told["num_left_out"] == 2
    facts = only_study(tmp_path).facts
    assert isinstance(facts, SplitFacts) and facts.turns is not None
    assert len(facts.turns.split_start_ns) == len(facts.turns.alone_start_ns) == 10
    assert sum(what == "run" for what, _ in crew.last.calls) == 2 + 2 * 12


def test_a_run_of_which_many_turns_began_late_decides_nothing(crew: type[Crew], tmp_path: Path) -> None:
    crew.late = staticmethod(lambda what, call: what == "run" and call % 4 == 3)  # every second pair
    told = found(tmp_path)
    assert (told["num_turns"], told["num_left_out"], told["outcome"]) == (10, 10, None)


def test_a_time_far_beyond_any_split_is_not_measured(crew: type[Crew], tmp_path: Path) -> None:
    crew.seconds = staticmethod(lambda member, size, beside: 0.001 * size * (1 if member == 0 else 25))
    told = found(tmp_path)
    slow = {one["batch_size"] for one in told["times"] if one["device"] == "cpu:1" and one["beside"]}
    assert slow == {1, 2}  # 3 × 16 ms are passed with 50 ms


def test_the_table_is_shown_set_and_dropped(crew: type[Crew], tmp_path: Path) -> None:
    found(tmp_path, batch=4)
    assert split(tmp_path, "--show-table").out.count("cpu:2") > 4
    told = json.loads(split(tmp_path, "--set", "cpu:2,3=12.5", "--set", "cpu:1,2=0.5s", "--json", "-").out)
    by_place = {(one["device"], tuple(one["beside"]), one["batch_size"]): one for one in told["times"]}
    mine = by_place["cpu:2", ("cpu:1",), 3]
    assert mine["seconds"] == pytest.approx(0.0125) and mine["origin"] == "set by hand"
    assert by_place["cpu:1", ("cpu:2",), 2]["seconds"] == pytest.approx(0.5)
    used = found(tmp_path, batch=4)
    assert used["num_measured"] == 0 and any(one["origin"] == "set by hand" for one in used["times"])
    told = json.loads(split(tmp_path, "--drop", "cpu:2,3", "--drop", "cpu:1", "--json", "-").out)
    assert {one["device"] for one in told["times"]} == {"cpu:2"}
    assert 3 not in {one["batch_size"] for one in told["times"]}
    # the last entry may go too; only then is there nothing to show
    dropped = split(tmp_path, "--drop", "cpu:2")
    assert (dropped.code, dropped.err) == (0, "")
    assert split(tmp_path, "--show-table").code == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--set", "cpu:1=3"), "--set needs DEVICE,BATCH=MS"), (("--set", "cpu:1,4=-3"), "--set needs"),
        (("--set", "cpu:1,x=3"), "has no batch size"), (("--set", "cuda:0,4=3"), "is not in --device"),
        (("--device", "cpu:1", "--set", "foo,8=3"), "unknown device 'foo'"),
        (("--set", "foo,8=3"), "unknown device 'foo'"),
        (("--device", "cpu:1", "--set", "cpu,64=12"), "needs a number of threads, e.g. cpu:1"),
        (("--device", "cpu:1", "--set", "emulated,9=4"), "takes its times from its profile"),
        (("--drop", "cpu:7"), "has no times of cpu:7"), (("--show-table",), "has no times yet"),
    ],
)  # fmt: skip
def test_an_edit_that_cannot_be_made_is_refused_in_one_line(
    flags: tuple[str, ...], says: str, crew: type[Crew], tmp_path: Path
) -> None:
    done = split(tmp_path, *flags)
    assert (done.code, done.out, len(done.lines)) == (2, "", 1) and says in done.err


def test_commas_that_part_nothing_are_no_devices(crew: type[Crew], tmp_path: Path) -> None:
    found(tmp_path, device="cpu:1, ,cpu:1", batch=4)
    assert split(tmp_path, "--show-table", device="cpu:1,").code == 0
    told = json.loads(split(tmp_path, "--set", "cpu:1,2=3", "--json", "-", device="cpu:1,,cpu:1").out)
    assert [one["seconds"] for one in told["times"] if one["origin"] == "set by hand"] == [pytest.approx(0.003)]


# -- members that compute nothing ------------------------------------------------------------------------


def test_an_emulated_member_goes_by_its_profile_and_is_left_out_of_the_check(crew: type[Crew], tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(toy_card(16, 320.0))
    crew.output = staticmethod(lambda member, image: np.array([image + 1.0], dtype=np.float32) if member == 0 else None)
    crew.seconds = staticmethod(lambda member, size, beside: 0.040 * size)
    device = f"cpu:1,emulated:{tmp_path / 'toy.toml'}"
    told = found(tmp_path / "results", "--input-shape", "3,28,28", device=device, batch=16)
    one = told["members"][1]
    # 20 ms an image, and the copy of 3·28·28 values of 4 bytes and a label of 8 at 1 MB/s
    expected = one["batch_size"] * (0.020 + (3 * 28 * 28 * 4 + 8) / 1e6)
    assert one["emulated"] and one["predicted_s"] == pytest.approx(expected)
    assert {one["device"] for one in told["times"]} == {"cpu:1"}
    assert told["check"]["num_images"] == told["members"][0]["batch_size"] and told["is_equal"]
    (line,) = told["assumptions"]  # of its part: the profile has 16 images alone
    assert "extrapolated (in proportion to batch 16, published: a test; link: " in line


# -- outputs ---------------------------------------------------------------------------------------------


def test_outputs_of_another_image_are_found(crew: type[Crew], tmp_path: Path) -> None:
    def shifted(member: int, image: int) -> Any:
        return np.array([image + 1.0 + (member == 1), 1.0], np.float32)

    crew.output = staticmethod(shifted)
    told = found(tmp_path, code=1)
    assert told["is_equal"] is False and "DIFFER" in " ".join(told["answer"])
    # the first image of the second part has the outputs of the next one
    first = told["members"][0]["batch_size"]
    assert told["check"]["deviation"] == pytest.approx(1 / np.hypot(first + 1, 1), rel=1e-6)


def test_one_device_is_not_compared_with_itself(crew: type[Crew], tmp_path: Path) -> None:
    crew.seconds = staticmethod(lambda member, size, beside: 0.002 * size if member == 0 else 0.1 + 0.05 * size)
    told = found(tmp_path)
    assert told["check"] is None and told["is_equal"] is None
    assert "no other outputs to compare" in told["missing"]["check"]


def test_a_batch_whose_parts_all_are_on_devices_that_compute_nothing_is_not_compared(
    crew: type[Crew], tmp_path: Path
) -> None:
    (tmp_path / "toy.toml").write_text(toy_card(16, 320.0))
    crew.output = staticmethod(lambda member, image: np.array([1.0], dtype=np.float32) if member == 0 else None)
    crew.seconds = staticmethod(lambda member, size, beside: 9.0 * size)
    device = f"cpu:1,emulated:{tmp_path / 'toy.toml'}"
    told = found(tmp_path / "results", "--input-shape", "3,28,28", device=device, batch=16)
    assert [one["batch_size"] for one in told["members"]] == [0, 16]
    assert told["missing"]["check"] == "no part is on a device that computes outputs"


def test_after_a_move_the_outputs_of_the_last_split_count_alone(crew: type[Crew], tmp_path: Path) -> None:
    """The second part runs out of memory behind the comparison, and the first device does all."""
    asked = iter([100, 100])  # the comparison's turn, and its reference's
    crew.most = staticmethod(lambda member, what: 100 if (member, what) != (1, "run") else next(asked, 0))
    told = found(tmp_path)
    assert told["moved"] and [one["batch_size"] for one in told["members"]] == [16, 0]
    assert told["check"] is None and "no other outputs to compare" in told["missing"]["check"]


def test_time_that_was_stolen_from_the_profile_is_not_that_of_the_turns(
    crew: type[Crew], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fractions = iter([0.25, *[0.0] * 99])  # what the first search met, then the turns
    monkeypatch.setattr(study_module.Stolen, "fraction", lambda self: next(fractions))
    crew.most = staticmethod(lambda member, what: 4 if (member, what) == (1, "run") else 100)
    told = found(tmp_path)
    assert told["num_searches"] > 1 and told["stolen_profile_fraction"] == 0.25


# -- how it ends badly -----------------------------------------------------------------------------------


def test_a_size_that_does_not_fit_is_kept_and_the_split_goes_around_it(crew: type[Crew], tmp_path: Path) -> None:
    crew.most = staticmethod(lambda member, what: 5 if member == 1 else 100)
    told = found(tmp_path)
    assert [one["batch_size"] for one in told["members"]] == [11, 5]
    (missed,) = [one for one in told["times"] if one["batch_size"] == 7 and one["device"] == "cpu:1"]
    assert (missed["outcome"], missed["seconds"]) == ("out_of_memory", None) and "1 GB" in missed["message"]
    assert told["alone"][1]["predicted_s"] is None and "1 GB" in told["alone"][1]["why"]


def test_a_part_that_no_longer_fits_in_the_run_goes_to_the_others_and_that_is_said(
    crew: type[Crew], tmp_path: Path
) -> None:
    crew.most = staticmethod(lambda member, what: 4 if (member, what) == (1, "run") else 100)
    told = found(tmp_path)
    assert [one["batch_size"] for one in told["members"]] == [12, 4] and told["num_turns"] == 10
    (moved, *_) = told["moved"]
    assert moved["member"] == 1 and moved["size"] > 4
    (said,) = [line for line in told["answer"] if "no longer fitted" in line]
    assert "on cpu:1 (" in said and "it gets 4." in said
    for one in told["moved"]:
        assert f"--drop cpu:1,{one['size']}" in said
        assert split(tmp_path, "--drop", f"cpu:1,{one['size']}", "--quiet", "--json", "-").code == 0
    assert any(one["outcome"] == "out_of_memory" for one in told["times"])


def test_a_device_that_cannot_hold_the_model_is_left_out_and_that_is_said(crew: type[Crew], tmp_path: Path) -> None:
    crew.holds = staticmethod(lambda device: device != "cpu:1")
    told = found(tmp_path, device="cpu:1,cpu:2,cpu:3")
    assert [(one["device"], one["batch_size"]) for one in told["members"]] == [("cpu:2", 8), ("cpu:3", 8)]
    assert [one["device"] for one in told["dropped"]] == ["cpu:1"] and told["is_equal"]
    assert [one.step.device for one in crew.last.requests] == ["cpu:2", "cpu:3"]
    assert [line for line in told["answer"] if line.startswith("cpu:1 has no part, for it cannot hold the model")]
    assert {one["device"] for one in told["times"]} == {"cpu:2", "cpu:3"}
    assert_kept(tmp_path, "model_split", num_runs=0)


def test_where_one_device_holds_the_model_it_does_the_whole_batch(crew: type[Crew], tmp_path: Path) -> None:
    crew.holds = staticmethod(lambda device: device != "cpu:1")
    told = found(tmp_path)
    assert [(one["device"], one["batch_size"]) for one in told["members"]] == [("cpu:2", 16)]
    assert (
        told["outcome"] == "alone"
        and told["check"] is None
        and "no other outputs to compare" in told["missing"]["check"]
    )


def test_a_model_that_no_device_holds_is_an_error_that_names_them_and_leaves_nothing(
    crew: type[Crew], tmp_path: Path
) -> None:
    crew.holds = staticmethod(lambda device: False)
    done = split(tmp_path, "--quiet")
    assert (done.code, done.out, len(done.lines)) == (1, "", 1)
    small = "the model needs more than the device's 1 GB"
    assert f"none of these devices can hold lenet (cpu:2: {small}; cpu:1: {small})" in done.err


def test_any_failure_of_a_member_has_its_name(crew: type[Crew], tmp_path: Path) -> None:
    def fails(self: Crew) -> Any:
        raise MemberFailed(1, JobFailed(Failure("RuntimeError", "RuntimeError: no image")), self.requests[1], [0, 1])

    crew.open = fails  # type: ignore[method-assign]
    done = split(tmp_path, "--quiet")
    assert (done.code, done.lines) == (1, ["loaderbench: cpu:1 (member 2 of 2): RuntimeError: no image"])


def test_a_device_that_does_not_start_is_named(crew: type[Crew], tmp_path: Path) -> None:
    def fails(self: Crew) -> Any:
        refused = JobFailed(Failure("UnavailableError", "no driver"))
        raise MemberFailed(1, refused, self.requests[1], [0, 1])

    crew.open = fails  # type: ignore[method-assign]
    done = split(tmp_path, "--quiet")
    assert (done.code, done.lines) == (1, ["loaderbench: cpu:1 (member 2 of 2): no driver"])


def test_a_batch_that_fits_nowhere_is_an_error_of_one_line(crew: type[Crew], tmp_path: Path) -> None:
    crew.most = staticmethod(lambda member, what: 0)
    done = split(tmp_path, "--quiet")
    assert (done.code, done.out, len(done.lines)) == (1, "", 1) and "give a smaller --batch-size" in done.err


@pytest.mark.parametrize(("what", "call_number"), [("repeat", 20), ("run", 5)])
def test_a_member_that_dies_ends_the_run_by_name_and_the_table_is_kept(
    what: str, call_number: int, crew: type[Crew], tmp_path: Path
) -> None:
    crew.dies = staticmethod(lambda name, number: 1 if (name, number) == (what, call_number) else None)
    done = split(tmp_path, "--quiet")
    assert (done.code, done.out, len(done.lines)) == (1, "", 1)
    assert "cpu:1 (member 2 of 2): the measuring process was killed by SIGKILL" in done.err and ".jsonl" in done.err
    num_kept = len(only_times(tmp_path))
    facts = only_study(tmp_path).facts
    assert isinstance(facts, SplitFacts) and facts.failure is not None and facts.interrupted
    shown = " ".join(call("show", only_study(tmp_path).study_id, "--results", tmp_path).out.split())
    assert "It ended early: cpu:1 (member 2 of 2): the measuring process was killed by SIGKILL" in shown
    crew.dies = staticmethod(lambda name, number: None)
    again = found(tmp_path)["num_measured"]  # it goes on from the table
    assert again == 0 if what == "run" else 0 < again == len(only_times(tmp_path)) - num_kept


def test_ctrl_c_keeps_the_turns_that_were_done(
    crew: type[Crew], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Crew.run

    def stopped(self: Crew, parts: Any, **asked: Any) -> Any:
        if sum(what == "run" for what, _ in self.calls) == 9:
            signal.raise_signal(signal.SIGINT)
        return run(self, parts, **asked)

    monkeypatch.setattr(crew, "run", stopped)
    done = split(tmp_path)
    assert done.code == INTERRUPTED and "3 turns were measured" in done.err
    result = split_of(only_study(tmp_path).facts)  # type: ignore[arg-type]
    assert isinstance(result, ModelSplit) and result.interrupted and result.num_turns == 3
    assert result.ratio_to_fastest_alone is not None and result.ratio_to_fastest_alone.n == 3


def test_a_model_that_is_unknown_leaves_nothing(crew: type[Crew], tmp_path: Path) -> None:
    refused = JobFailed(Failure("ConfigError", "unknown model 'nosuch'"))

    def fails(self: Crew) -> Any:
        raise MemberFailed(0, refused, self.requests[0], [0, 1])

    crew.open = fails  # type: ignore[method-assign]
    done = split(tmp_path)
    assert (done.code, done.out, done.lines) == (2, "", ["loaderbench: unknown model 'nosuch'"])
    assert not list(tmp_path.iterdir())


# -- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("auto", "needs at least two devices"), ("cpu:1", "needs at least two devices"),
        ("cpu,cpu", "--device names cpu twice: give each its threads, e.g. cpu:1,cpu:1"),
        ("cpu:6,cpu:4", "needs 10 CPUs, and 8 are usable here"), ("cpu:8,cpu", "needs 9 CPUs"),
        ("cpu:1,auto", "each by its name"), ("cpu:1,tpu:0", "unknown device 'tpu"),
        ("cpu:0,cpu:1", "cpu:0"), ("cpu:1,emulated:nosuch", "nosuch"),
    ],
)  # fmt: skip
def test_devices_that_make_no_split_are_refused_in_one_line(
    device: str, says: str, crew: type[Crew], tmp_path: Path
) -> None:
    done = split(tmp_path, device=device)
    assert (done.code, done.out, len(done.lines)) == (2, "", 1) and says in done.err
    assert not list(tmp_path.iterdir())


def test_an_emulated_device_twice_is_refused(crew: type[Crew], tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(toy_card(16, 320.0))
    one = f"emulated:{tmp_path / 'toy.toml'}"
    done = split(tmp_path, "--input-shape", "3,28,28", "--precision", "fp32", device=f"{one},{one}")
    assert (done.code, len(done.lines)) == (2, 1) and "twice: give each device once" in done.err


def test_a_batch_smaller_than_the_members_and_turns_below_one_are_refused(crew: type[Crew], tmp_path: Path) -> None:
    done = split(tmp_path, batch=1)
    assert (done.code, len(done.lines)) == (2, 1) and "less than the number of devices, 2" in done.err
    done = split(tmp_path, "--turns", "0")
    assert (done.code, len(done.lines)) == (2, 1) and "--turns must be at least 1" in done.err


@pytest.mark.parametrize(
    ("device", "resolved"),
    [
        ("cpu,cpu:3", ["cpu:5", "cpu:3"]),
        ("cpu,emulated", ["cpu:7", "emulated:h200-resnet50-infer-amp-bf16"]),
        ("cpu:8,emulated", ["cpu:8", "emulated:h200-resnet50-infer-amp-bf16"]),
    ],
)
def test_a_cpu_without_threads_gets_what_the_others_leave(
    device: str, resolved: list[str], crew: type[Crew], tmp_path: Path
) -> None:
    """One thread for each device that has processors of its own: the host's, which feeds it."""
    from loaderbench.cases.options import ModelOptions

    plan = split_plan.plan_split("resnet50", ModelOptions(device=device, precision="amp-bf16"), 8, tmp_path)
    assert list(plan.devices) == resolved
