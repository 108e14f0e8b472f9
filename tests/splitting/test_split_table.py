"""The file of a model's times: added to by several at once, edited by hand, refused where it is another's."""

from __future__ import annotations

import json
import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from loaderbench.errors import ConfigError
from loaderbench.machine import environment
from loaderbench.recording.split_times import SplitTime, TableMachine, TableSubject
from loaderbench.splitting.table import drop, extend, machine_of, path_of, read

MACHINE = TableMachine("x86_64", "Test CPU", 4, ("NVIDIA Test",), "2.15.0")
SUBJECT = TableSubject("resnet50", "infer", "fp32", (3, 224, 224), MACHINE)


def taken(device: str, size: int, seconds: float | None = 1.0, *beside: str) -> SplitTime:
    return SplitTime(device, size, seconds, low=seconds, high=seconds, num_turns=5, beside=beside, date="2026-01-02")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return path_of(tmp_path, SUBJECT)


def test_a_table_has_a_name_of_its_own_for_each_subject(tmp_path: Path) -> None:
    assert path_of(tmp_path, SUBJECT) == tmp_path / "tables" / "resnet50-infer-fp32-3x224x224.jsonl"
    own = replace(SUBJECT, model="my.models:../net")
    assert path_of(tmp_path, own).parent == tmp_path / "tables"
    others = [replace(SUBJECT, precision="bf16"), replace(SUBJECT, input_shape=(3, 64, 64)), own]
    assert len({path_of(tmp_path, one) for one in (SUBJECT, *others)}) == 4


def test_what_is_added_is_read_again(path: Path) -> None:
    assert read(path, SUBJECT).entries == ()
    entries = [taken("cpu:1", 8, 0.25, "cuda:0", "cpu:2"), replace(taken("cuda:0", 64, None), outcome="out_of_memory")]
    added = extend(path, SUBJECT, entries)
    assert read(path, SUBJECT) == added
    assert added.of("cpu:1", ["cpu:2", "cuda:0"])[8].seconds == 0.25  # in whatever order
    assert added.points("cuda:0") == {64: math.inf}
    assert added.of("cpu:1") == {}  # not measured alone


def test_a_time_is_not_taken_again_unless_asked(path: Path) -> None:
    extend(path, SUBJECT, [taken("cpu:1", 8, 0.25)])
    extend(path, SUBJECT, [taken("cpu:1", 8, 0.75), taken("cpu:1", 9, 0.5)])
    assert read(path, SUBJECT).points("cpu:1") == {8: 0.25, 9: 0.5}
    extend(path, SUBJECT, [replace(taken("cpu:1", 8, 0.75), origin="set by hand")], over=True)
    assert read(path, SUBJECT).points("cpu:1") == {8: 0.75, 9: 0.5}


def test_entries_are_dropped_by_size_or_all_of_a_device(path: Path) -> None:
    entries = [taken("cpu:1", 8), taken("cpu:1", 8, 2.0, "cuda:0"), taken("cpu:1", 9), taken("cuda:0", 8)]
    extend(path, SUBJECT, entries)
    assert len(drop(path, SUBJECT, "cpu:1", 8).entries) == 2
    assert [one.device for one in drop(path, SUBJECT, "cpu:1").entries] == ["cuda:0"]
    with pytest.raises(ConfigError, match=r"has no times of cpu:1 at batch 8; it has times of cuda:0$"):
        drop(path, SUBJECT, "cpu:1", 8)


def _extend_many(path: Path, device: str, count: int, start: multiprocessing.synchronize.Barrier) -> None:
    start.wait(60)
    for size in range(1, count + 1):
        extend(path, SUBJECT, [taken(device, size)])


def test_two_processes_add_to_one_table_at_once(path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    count, start = 40, fork.Barrier(2)
    writers = [fork.Process(target=_extend_many, args=(path, device, count, start)) for device in ("cpu:1", "cuda:0")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    table = read(path, SUBJECT)
    assert set(table.points("cpu:1")) == set(table.points("cuda:0")) == set(range(1, count + 1))
    assert [one.name for one in path.parent.iterdir() if one.name.endswith(".jsonl")] == [path.name]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "vgg16"}, "for the model resnet50, not vgg16"),
        ({"precision": "bf16"}, "for the precision fp32, not bf16"),
        ({"input_shape": (3, 64, 64)}, "for the input shape 3, 224, 224, not 3, 64, 64"),
        ({"machine": replace(MACHINE, cpu_model="Other")}, "for the CPU Test CPU, not Other"),
        ({"machine": replace(MACHINE, gpus=())}, "for the GPUs NVIDIA Test, not none"),
        ({"machine": replace(MACHINE, cpus_usable=8)}, "for the number of usable CPUs 4, not 8"),
        ({"machine": replace(MACHINE, torch="2.14.0")}, "for the PyTorch version 2.15.0, not 2.14.0"),
    ],
)
def test_the_table_of_another_is_refused_and_kept(path: Path, changed: dict[str, object], said: str) -> None:
    extend(path, SUBJECT, [taken("cpu:1", 8)])
    before = path.read_bytes()
    wanted = replace(SUBJECT, **changed)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        extend(path, wanted, [taken("cpu:1", 9)])
    message = str(caught.value)
    assert said in message and "give other --results, or delete the file" in message and "\n" not in message
    assert path.read_bytes() == before


def test_this_machine_is_told_from_others_by_what_changes_times() -> None:
    found = environment()
    assert machine_of(found) == machine_of(replace(found, kernel="1.0", python="3.99"))
    assert machine_of(found) != machine_of(replace(found, packages={**found.packages, "torch": "1.0"}))


GOOD = '{"device": "cpu:1", "batch_size": 8, "seconds": 0.25}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{seconds: 1}", "line 3: it is not valid JSON"),
        ('{"device": "cpu:1", "batch_size": 9}', "line 3: it lacks seconds"),
        ('{"device": "cpu:1", "batch_size": "9", "seconds": 1}', "line 3: batch_size must be a whole number, not '9'"),
        ('{"device": "cpu:1", "batch_size": 0, "seconds": 1}', "line 3: an entry needs a device and a batch_size of 1"),
        ('{"device": "cpu:1", "batch_size": 9, "seconds": -1}', "line 3: seconds must be more than 0, not -1"),
        ('{"device": "cpu:1", "batch_size": 9, "seconds": NaN}', "line 3: NaN is not JSON"),
        ('{"device": "cpu:1", "batch_size": 9, "second": 1}', "line 3: unknown second"),
        ('{"device": "cpu:1", "batch_size": 9, "seconds": 1, "origin": "guessed"}', "line 3: origin must be one of"),
        ('{"device": "c", "batch_size": 9, "seconds": 1, "outcome": "out_of_memory"}', "line 3: seconds must be null"),
        ('{"device": "c", "batch_size": 9, "seconds": 1, "low": 3, "high": 2}', "line 3: low and high must be"),
        ("[1, 2]", "line 3: the value must be an object"),
        (GOOD, "line 3: the same device, companions and size as on line 2; delete one"),
    ],
)
def test_a_wrong_line_is_told_by_its_number(path: Path, line: str, said: str) -> None:
    extend(path, SUBJECT, [])
    path.write_text(path.read_text() + GOOD + "\n" + line + "\n")
    with pytest.raises(ConfigError) as caught:
        read(path, SUBJECT)
    assert f"{path}, {said}" in str(caught.value) and "\n" not in str(caught.value)


def test_a_line_by_hand_needs_little_and_blank_lines_are_nothing(path: Path) -> None:
    extend(path, SUBJECT, [])
    path.write_text(path.read_text() + "\n" + GOOD + "\n\n")
    assert read(path, SUBJECT).points("cpu:1") == {8: 0.25}


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("", "is empty: delete it"),
        ("{}", "line 1: it lacks 'version'; expected"),
        ('{"version": "1"}', "line 1: version must be a whole number, not '1'"),
        ('{"version": 1, "times_of": {}}', "line 1: it lacks model"),
        ('{"version": 99, "times_of": 7}', "has version 99, and this loaderbench reads 1: upgrade"),
        ("[]", "line 1: "),
        ("\x00\x01", "line 1: it is not valid JSON"),
    ],
)
def test_a_file_that_is_no_table_is_refused(path: Path, head: str, said: str) -> None:
    path.parent.mkdir()
    path.write_text(head)
    with pytest.raises(ConfigError) as caught:
        read(path, SUBJECT)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_in_its_place_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot read the table"):
        read(path, SUBJECT)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot write the table .*: "):
        extend(path_of(tmp_path, SUBJECT), SUBJECT, [taken("cpu:1", 8)])


def test_a_link_in_the_place_of_its_lock_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.with_name(f".{path.name}.lock").symlink_to(tmp_path / "made by us")
    with pytest.raises(ConfigError, match="cannot write the table"):
        extend(path, SUBJECT, [taken("cpu:1", 8)])
    assert not (tmp_path / "made by us").exists()


def test_an_entry_is_one_line(path: Path) -> None:
    extend(path, SUBJECT, [taken("cpu:1", 8), taken("cpu:1", 9)])
    head, *lines = path.read_text().splitlines()
    assert json.loads(head)["times_of"]["model"] == "resnet50"
    assert [json.loads(line)["batch_size"] for line in lines] == [8, 9]
