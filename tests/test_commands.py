"""What the command line refuses, in one line that says what to change, before anything is measured."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import pytest
from commands import DEVICE, call
from typer.testing import CliRunner

from loaderbench.cases.case import Case, Feed, Step, Subject
from loaderbench.commands import app, measuring
from loaderbench.commands.options import OutputOptions
from loaderbench.recording.store import Store
from tests.made import make_case

WRONG = [
    (("--res", "97"), "no variant 97; there are 96, 128"),
    ((), "choose one with --res: 96, 128"),
    (("--res", "abc"), "--res"),
    (("--res", "96", "--workers", "-1"), "--workers must be 1 or more, not -1"),
    (("--res", "96", "--workers", "0"), "use --loader serial"),
    (("--res", "96", "--workers", "99999"), "--workers 99999 is more than this machine can run"),
    (("--res", "96", "--workers", "two"), "--workers takes whole numbers"),
    (("--res", "96", "--workers", "1,2"), "loaderbench sweep"),
    (("--res", "96", "--loader", "nosuch"), "known: serial, multiprocess, threaded"),
    (("--res", "96", "--decoder", "nosuch"), "known: pillow, turbojpeg, torchvision"),
    (("--res", "96", "--loader", "dali", "--decoder", "pillow"), "leave --decoder out"),
    (("--res", "96", "--decode-scale", "auto"), "--decoder libjpeg, not pillow"),
    (("--res", "96", "--io-threads", "4"), "--io-threads is for --loader threaded"),
    (("--res", "96", "--loader-option", "prefetch"), "KEY=VALUE"),
    (("--res", "96", "--precision", "fp8"), "--precision must be one of fp32,"),
    (("--res", "96", "--mode", "test"), "--mode must be one of train, infer"),
    (("--res", "96", "--device", "tpu"), "use auto, cpu[:THREADS], cuda[:N], xpu[:N], emulated[:PROFILE][xF]"),
    (("--res", "96", "--device", "emulated:nosuch"), "there are profiles of a100, h100, h200"),
    (("--res", "96", "--model", "nosuch"), "nosuch"),
    (("--res", "96", "--cache", "hot"), "--cache must be one of cold, warm, as-is"),
    (("--res", "96", "--arms", "host"), "--arms must be all, or a list with real"),
    (("--res", "96", "--steps", "0"), "--steps must be at least 2"),
    (("--res", "96", "--duration", "nan"), "--duration must be above 0"),
    (
        ("--res", "96", "--duration", "inf"),
        "--duration must be above 0 seconds, and 2592000 (30 days) at most, not inf",
    ),
    (("--res", "96", "--json", "nosuch/folder/x.json"), "there is no folder nosuch/folder"),
    (("--res", "96", "--nosuch"), "--nosuch"),
    (("--res", "96", "--loss-scale", "128"), "computes nothing"),
    (("--res", "96", "--device", "cpu", "--loss-scale", "128"), "--loss-scale is for fp16, pure-fp16, amp-fp16"),
    (("--res", "96", "--device", "cpu", "--mode", "infer", "--loss-scale", "dynamic"), "for training"),
    (("--res", "96", "--device", "cpu", "--precision", "fp16", "--loss-scale", "-2"), "a whole number of 1 or more"),
]


@pytest.mark.parametrize(
    ("options", "says"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_a_wrong_request_is_refused_in_one_line(
    options: tuple[str, ...], says: str, small_set: Path, tmp_path: Path
) -> None:
    ended = call("run", small_set, *DEVICE, "--results", tmp_path / "results", "--quiet", *options)
    assert (ended.code, ended.out) == (2, "")
    assert len(ended.lines) == 1 and ended.err.startswith("loaderbench: ")
    assert says in ended.err
    assert not list((tmp_path / "results").glob("*")), "nothing was measured, so nothing is stored"


def test_res_on_a_tree_without_variants_names_derive(small_set: Path, tmp_path: Path) -> None:
    ended = call("run", small_set / "96", "--res", "96", *DEVICE, "--results", tmp_path)
    assert ended.code == 2
    assert f"loaderbench dataset derive {small_set / '96'} --res 96" in ended.lines[-1]


def test_a_missing_data_set_is_named(tmp_path: Path) -> None:
    ended = call("run", tmp_path / "nosuch", *DEVICE, "--results", tmp_path)
    assert ended.code == 2
    assert f"no data set '{tmp_path / 'nosuch'}'" in ended.lines[-1]


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")  # noqa: PTH110
def test_cuda_without_a_gpu_says_what_to_use(small_set: Path, tmp_path: Path) -> None:
    ended = call("run", small_set, "--res", "96", "--device", "cuda", "--results", tmp_path)
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "--device emulated" in ended.err


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


def test_show_of_an_unknown_run_is_refused(tmp_path: Path) -> None:
    ended = call("show", "nosuch", "--results", tmp_path)
    assert ended.code == 2
    assert ended.lines == [f"loaderbench: no run in {tmp_path} begins with 'nosuch'; `loaderbench list` shows them"]


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


def test_broken_runs_are_listed_as_what_they_are(store_with_a_broken_run: Path) -> None:
    listed = call("list", "--results", store_with_a_broken_run)
    as_json = call("list", "--results", store_with_a_broken_run, "--json", "-")
    assert (listed.code, as_json.code) == (0, 0)
    assert "crashed" in listed.out and "unreadable" in listed.out
    assert sorted(entry["status"] for entry in json.loads(as_json.out)) == ["crashed", "unreadable"]


def test_a_run_without_a_result_cannot_be_shown(store_with_a_broken_run: Path) -> None:
    for run in Store(store_with_a_broken_run).runs():
        ended = call("show", run.run_id, "--results", store_with_a_broken_run)
        assert ended.code == 2
        assert ended.lines == [f"loaderbench: {run.run_id} has no result: {run.problem}"]


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    ended = call("report", "--results", tmp_path)
    assert ended.code == 2
    assert "no finished run" in ended.err


def test_every_command_explains_itself() -> None:
    runner = CliRunner()
    for args in ([], ["dataset"]):
        listing = runner.invoke(app.app, [*args, "--help"])
        assert listing.exit_code == 0
    for command in ("run", "sweep", "list", "show", "report", "doctor", "selftest"):
        assert runner.invoke(app.app, [command, "--help"]).exit_code == 0
        assert runner.invoke(app.app, [command, "-h"]).output == runner.invoke(app.app, [command, "--help"]).output
    for command in ("make", "derive", "scan"):
        assert runner.invoke(app.app, ["dataset", command, "--help"]).exit_code == 0
        assert "Usage:" in runner.invoke(app.app, ["dataset", command, "-h"]).output


def test_a_reader_that_goes_away_is_no_error_to_speak_of(store_with_a_broken_run: Path) -> None:
    # Given a listing whose reader has gone before anything is printed
    gone = ("sh", "-c", '"$@" | true', "sh")
    ended = commands.run("list", "--results", store_with_a_broken_run, wrapper=gone)
    assert ended.err == ""


def test_a_full_standard_output_is_said_in_one_line(store_with_a_broken_run: Path) -> None:
    full = ("sh", "-c", '"$@" >/dev/full', "sh")
    ended = commands.run("list", "--results", store_with_a_broken_run, wrapper=full)
    assert (ended.code, ended.err) == (1, "loaderbench: No space left on device\n")
