"""What the command line refuses, in one line that says what to change, before anything is measured."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import pytest
from commands import DEVICE, call

from loaderbench.cases.case import Case, Feed, Step, Subject
from loaderbench.commands import measuring
from loaderbench.commands.options import OutputOptions
from loaderbench.recording.store import Store
from tests.made import make_case


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"device": "cuda:1"}, True), ({"device": "cuda:0", "steps": 50}, False), ({"device": "cpu"}, False)],
)
def test_before_a_gpu_starts_its_start_is_told_where_time_is_limited(
    changes: dict[str, Any], told: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said_before: list[str] = []
    case = make_case(**changes)
    study: Any = SimpleNamespace(left=[case], cases=[case])
    study.measure = lambda *_: said_before.append(capsys.readouterr().err)
    assert measuring._run(study, OutputOptions(tmp_path), verify=False) is None
    assert ("longer than --duration" in said_before[0]) == told


def test_a_dry_run_lists_the_cases_and_stores_nothing(small_set: Path, tmp_path: Path) -> None:
    study = ("--res", "96,128", "--loader", "serial,multiprocess", "--workers", "1,2", "--duration", "10")
    ended = call("sweep", small_set, *DEVICE, *study, "--results", tmp_path / "results", "--dry-run")
    assert ended.code == 0
    # serial has no workers, so its list of workers is one case
    assert sum("serial" in line for line in ended.out.splitlines()) == 2
    assert sum("multiprocess" in line for line in ended.out.splitlines()) == 4
    assert re.search(r"6 cases, at most [0-9.]+ minutes", ended.out)
    assert not (tmp_path / "results").exists()


def test_the_package_of_a_decoder_is_its_name_too(small_set: Path) -> None:
    ended = call("run", small_set, "--res", "96", *DEVICE, "--decoder", "simplejpeg", "--workers", "1", "--dry-run")
    assert ended.code == 0
    assert "multiprocess+turbojpeg" in ended.out


@pytest.fixture
def store_with_a_broken_run(tmp_path: Path) -> Path:
    """A store in which a process died, and whose record of another run is damaged."""
    store = Store(tmp_path)
    case = Case(
        Subject("/nowhere", "set", 96), Feed("serial", "pillow", 0), Step("resnet50", "train", "fp32", "cpu", 8, 224)
    )
    died, damaged = store.open_run(case), store.open_run(case)
    (died.path / "running.json").unlink()
    (damaged.path / "run.json").write_text('{"schema": 1, "stat')
    return tmp_path


@pytest.mark.parametrize("words", [(), ("run",), ("dataset",), ("dataset", "make")], ids=" ".join)
def test_h_is_help(words: tuple[str, ...]) -> None:
    assert call(*words, "-h") == call(*words, "--help")


def test_a_reader_that_goes_away_is_no_error_to_speak_of(store_with_a_broken_run: Path) -> None:
    # Given a listing whose reader has gone before anything is printed
    gone = ("sh", "-c", '"$@" | true', "sh")
    ended = commands.run("list", "--results", store_with_a_broken_run, wrapper=gone)
    assert ended.err == ""


def test_a_full_standard_output_is_said_in_one_line(store_with_a_broken_run: Path) -> None:
    full = ("sh", "-c", '"$@" >/dev/full', "sh")
    ended = commands.run("list", "--results", store_with_a_broken_run, wrapper=full)
    assert (ended.code, ended.err) == (1, "loaderbench: No space left on device\n")
