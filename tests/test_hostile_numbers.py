"""Numbers that nothing can hold, and texts that only look like numbers: one line that names the place, no traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import call

from loaderbench.cases.case import OPTIONS
from loaderbench.cases.options import is_count, read, whole_number
from loaderbench.cases.study import MOST_CASES, check_number, read_study
from loaderbench.devices import select
from loaderbench.devices.profile import load
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.images.manifest import read_manifest, resolve_dataset
from loaderbench.images.variants import parse_resolution
from loaderbench.printable import short
from loaderbench.recording.split_times import SplitTime, TableMachine, TableSubject
from loaderbench.running.meeting import address_of
from loaderbench.running.ranks import Rank, rank_of
from loaderbench.samplers.nvml import find_device
from loaderbench.splitting import table
from loaderbench.studies.split_plan import read_place, read_set
from loaderbench.studies.watch import _threads_wanted
from tests.devices.profile_text import profile_text

DIGITS, MANY = "9" * 5000, "9" * 400
VALUES = (
    DIGITS, f"-{DIGITS}", MANY, f"-{MANY}", "1e400", "-1e400", "inf", "-inf", "nan", "-0.0", "1e-400", "1e308", "",
    " ", "²", "٣", "½", "1_0", "0x10", "+", "-", "1,", "9" * 18, "9" * 19, "\0", "🂡",
)  # fmt: skip
TOML_VALUES = (
    DIGITS, f"-{DIGITS}", MANY, "1e400", "inf", "-inf", "nan", "-0.0", "1e308", "true", "'x'", "[]", "{}", f"[{MANY}]",
    "[" * 3000, "[[1]]", "1979-05-27", f"'{DIGITS}'", "[nan]", "{a = 1}",
)  # fmt: skip
PROFILE = profile_text()
ARGUMENTS = ("resolutions", "num_images", "num_classes", "seed", "aspect_spread", "quality_spread", "other")
JSON_VALUES = (
    DIGITS, MANY, f"-{MANY}", "1e400", "NaN", "Infinity", "-0.0", "1e308", "true", "[" * 3000, f'"{DIGITS}"'
)  # fmt: skip
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def refused_or_taken(do: Callable[[], object]) -> None:
    """It works, or says in one line of reasonable length why not."""
    try:
        do()
    except (ConfigError, UnavailableError) as error:
        assert "\n" not in str(error) and 0 < len(str(error)) < 700


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_reads_any_text(name: str) -> None:
    for value in (*VALUES, float("nan"), float("inf"), 10**400, -(10**400), [10**400], {"a": 10**400}):
        refused_or_taken(lambda value=value: read(name, OPTIONS[name].kind, value))


@pytest.mark.parametrize("name", [*OPTIONS, "dataset"])
def test_each_option_of_a_study_file_reads_any_value(name: str, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    for value in TOML_VALUES:
        study.write_text(f"[study]\n{name} = {value}\n")
        refused_or_taken(lambda: read_study(study))


@pytest.mark.parametrize("line", [line.partition(" = ")[0] for line in PROFILE.splitlines() if " = " in line])
def test_each_entry_of_a_profile_reads_any_value(line: str, tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    for value in TOML_VALUES:
        for new in (f"{line} = {value}", f'{line} = {{ value = {value}, label = "assumed", source = "" }}'):
            profile.write_text(re.sub(rf"(?m)^{line} = .*$", lambda found, new=new: new, PROFILE))
            refused_or_taken(lambda: load(profile))


@pytest.mark.parametrize("line", ["name", "description", "root", "variants", "generate", "other", "generate.seed"])
def test_each_field_of_a_manifest_reads_any_value(line: str, tmp_path: Path) -> None:
    manifest = tmp_path / "mine.toml"
    for value in TOML_VALUES:
        manifest.write_text(f"{line} = {value}\n{'' if line in ('root', 'generate') else 'root = 1'}\n")
        refused_or_taken(lambda: read_manifest(manifest))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_each_argument_of_a_generated_set_reads_any_value(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADERBENCH_DATA", str(tmp_path / "kept"))
    manifest, usual = tmp_path / "mine.toml", {"resolutions": "[32]", "num_images": "1"}
    for value in TOML_VALUES:
        lines = (f"{key} = {given}\n" for key, given in {**usual, name: value}.items())
        manifest.write_text(f"[generate]\n{''.join(lines)}")
        refused_or_taken(lambda: resolve_dataset(str(manifest), 32))


@pytest.mark.parametrize("name", ["device", "batch_size", "seconds", "outcome", "beside", "low", "origin", "other"])
def test_each_field_of_a_table_of_times_reads_any_value(name: str, tmp_path: Path) -> None:
    machine = TableMachine("x86_64", "a CPU", 2, (), "2.0")
    subject = TableSubject("lenet", "train", "fp32", (1, 28, 28), machine)
    path = tmp_path / "table.jsonl"
    table.extend(path, subject, [SplitTime("cpu:1", 8, 0.25, origin="set by hand")])
    head, line = path.read_text().splitlines()
    for value in JSON_VALUES:
        entry = json.dumps({**json.loads(line), name: "@"}).replace('"@"', value)
        path.write_text(f"{head}\n{entry}\n")
        refused_or_taken(lambda: table.read(path, subject))
        path.write_text(f"{head.replace('1', value, 1)}\n{line}\n")
        refused_or_taken(lambda: table.read(path, subject))


READERS: dict[str, Callable[[str], object]] = {
    "--res": parse_resolution,
    "--set": read_set,
    "--set batch": lambda text: read_set(f"cpu:1,{text}=1ms"),
    "--set time": lambda text: read_set(f"cpu:1,8={text}"),
    "--drop": lambda text: read_place(f"cpu:1,{text}"),
    **{
        f"--device {kind}": lambda text, kind=kind: select.parse_device(
            f"{kind}:{text}", model="resnet50", mode="train", precision=None, batch_size=8
        )
        for kind in ("cpu", "cuda", "xpu", "emulated", "emulated:h200x", "nosuch")
    },
    "rank": lambda text: rank_of(dict.fromkeys(TORCHRUN, text)),
    "world size": lambda text: rank_of({"RANK": "0", "WORLD_SIZE": text, "LOCAL_RANK": "0"}),
    "port": lambda text: address_of({"MASTER_ADDR": "here", "MASTER_PORT": text}, Rank(0, 2, 0, "torchrun")),
}


@pytest.mark.parametrize("reader", READERS)
def test_each_text_with_a_number_in_it_is_read_or_refused(reader: str) -> None:
    for value in VALUES:
        refused_or_taken(lambda value=value: READERS[reader](value))


def test_variables_that_hold_no_number_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_num_gpus", lambda dev: 2)
    for value in VALUES:
        monkeypatch.setenv("OMP_NUM_THREADS", value.replace("\0", ""))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value.replace("\0", ""))
        assert _threads_wanted() in (None, 10**18 - 1)
        assert 0 <= select.num_visible_gpus() <= 2


def test_a_gpu_of_a_number_that_is_none_is_unavailable() -> None:
    class NoGpus:
        NVMLError = OSError

        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *arguments: 0

    for value in VALUES:
        refused_or_taken(lambda value=value: find_device(NoGpus(), 0, value))


def test_whole_numbers_are_those_of_a_counter() -> None:
    assert [whole_number(text) for text in ("0", " -7 ", "+5", "9" * 18)] == [0, -7, 5, 10**18 - 1]
    assert [is_count(text) for text in ("0", "007", "9" * 18)] == [True] * 3
    for text in ("", "-", "1.0", "9" * 19, "١", "²", "1_0", "1 0", "1\n2"):
        with pytest.raises(ValueError):
            whole_number(text)
        assert not is_count(text)
    assert not is_count("-1") and not is_count(" 1") and not is_count("1\n")


def test_what_a_message_repeats_is_short() -> None:
    assert (short("x" * 60), short("x" * 61), short(1.5)) == ("x" * 60, "x" * 60 + "…", "1.5")
    assert short(10**5000) == "a number of thousands of digits"


# -- studies that never end --------------------------------------------------------------------------------


def test_a_study_is_counted_before_its_cases_are_made(tmp_path: Path, small_set: Path) -> None:
    study = tmp_path / "study.toml"
    numbers = list(range(1, 101))
    study.write_text(
        f"[study]\ndataset = '{small_set / '96'}'\nworkers = {numbers}\nbatch-size = {numbers}\nprefetch = {numbers}\n"
        "repeats = 100\nloader = 'multiprocess'\ndevice = 'emulated'\n"
    )
    ended = call("sweep", study, "--dry-run")
    assert (ended.code, ended.lines) == (
        2, ["loaderbench: that is 100,000,000 cases, and a study has 10,000 at most: give shorter lists"]
    )  # fmt: skip
    models, precisions = ",".join(["resnet50"] * 1000), ",".join(["fp32"] * 1000)
    ended = call("sweep", small_set / "96", "--model", models, "--precision", precisions, "--dry-run")
    assert ended.code == 2 and "that is 1,000,000 cases" in ended.err


def test_the_largest_study_is_taken() -> None:
    check_number(100, 100, MOST_CASES // 10_000)
    with pytest.raises(ConfigError):
        check_number(MOST_CASES + 1)


@pytest.mark.parametrize("rounds", ["1000000000", "999999999999999999", MANY])
def test_a_comparison_of_as_many_rounds_is_refused_too(small_set: Path, rounds: str) -> None:
    options = ("--loader", "serial", "--device", "emulated", "--rounds", rounds, "--dry-run")
    ended = call("compare", f"a={small_set / '96'}", f"b={small_set / '96'}", *options)
    assert (ended.code, len(ended.lines)) == (2, 1) and "cases, and a study has" in ended.err
