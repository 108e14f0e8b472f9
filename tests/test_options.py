"""Options: one declaration, and the same meaning on the command line, in a study file and from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from commands import call

from loaderbench.cases.case import OPTIONS
from loaderbench.cases.options import (
    Memory,
    Numbers,
    Pairs,
    Price,
    Rate,
    Ratios,
    Side,
    Size,
    Time,
    case_option,
    flag_of,
    options_of,
    read,
)
from loaderbench.cases.study import StudyOptions, read_options
from loaderbench.commands import app, run, sweep
from loaderbench.errors import ConfigError
from loaderbench.printable import short


def commands_of(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of the program, with those of groups."""
    for child_name, child in group.commands.items():
        if hasattr(child, "commands"):
            yield from commands_of(child, f"{name}{child_name} ")
        else:
            yield f"{name}{child_name}", child


COMMANDS = dict(commands_of(typer.main.get_command(app.app)))


def test_there_are_the_commands_that_are_known() -> None:
    assert set(COMMANDS) == {
        "run", "sweep", "tune", "compare", "list", "show", "ledger", "analyze", "trace", "gaps", "report", "rm",
        "selftest", "precision", "forecast", "whatif", "attach", "capacity", "watch", "demo", "install", "doctor",
        "agents",
        "dataset make", "dataset derive", "dataset convert", "dataset scan",
        "model layers", "model memory", "model fit", "model size", "model offload", "model split", "model io",
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_every_command_has_help(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name}"
    shown = call(*name.split(), "--help")
    assert shown.code == 0
    for parameter in command.params:
        for flag in parameter.opts if parameter.param_type_name == "option" else ():
            assert flag in shown.out, f"{name} --help lacks {flag}"


@pytest.mark.parametrize("name", ["run", "sweep", "tune", "compare"])
def test_measuring_commands_take_the_options_by_their_names(name: str) -> None:
    flags = {flag for parameter in COMMANDS[name].params for flag in parameter.opts}
    # what each of them leaves to itself is told in docs/studies.md and their own help
    left_out = {
        "run": {"buffer_ratio"},
        "sweep": set(),
        "compare": {"decode_scale", "io_threads", "buffer_ratio", "repeats", "all_reduce"},
        "tune": {
            "arms", "steps", "duration", "ci_target", "max_bytes", "warmup", "repeats", "kernels", "io_threads",
            "buffer_ratio", "loader_option", "decoder_option", "loss_scale", "all_reduce",
        },
    }[name]  # fmt: skip
    assert {flag_of(option) for option in OPTIONS} & flags == {flag_of(option) for option in set(OPTIONS) - left_out}


# -- one meaning ------------------------------------------------------------------------------------------

SAME: dict[str, tuple[list[str], list[object], str]] = {
    "res": (["96,128"], ["96,128", [96, 128], (96, 128)], "[96, 128]"),
    "cache": (["warm"], ["warm", ["warm"], ("warm",)], "'warm'"),
    "loader": (["serial, threaded"], ["serial,threaded", ["serial", "threaded"]], "['serial', 'threaded']"),
    "decoder": (["pillow"], ["pillow", ["pillow"]], "'pillow'"),
    "decode_scale": (["auto"], ["auto"], "'auto'"),
    "workers": (["4"], [4, "4", [4], (4,)], "4"),
    "io_threads": (["3"], [3], "3"),
    "prefetch": (["2,4"], [[2, 4], "2,4"], "[2, 4]"),
    "buffer_ratio": (["0.5,1"], [[0.5, 1], "0.5,1", (0.5, 1.0)], "[0.5, 1]"),
    "output": (["uint8"], ["uint8"], "'uint8'"),
    "loader_option": (["a=1", "b=x=y"], [{"a": 1, "b": "x=y"}, ["a=1", "b=x=y"]], "{a = 1, b = 'x=y'}"),
    "decoder_option": (["a="], [{"a": ""}, "a=", ["a="]], "['a=']"),
    "batch_size": (["32"], [32, "32", [32]], "32"),
    "model": (["resnet18,vgg16"], [["resnet18", "vgg16"], "resnet18,vgg16"], "['resnet18', 'vgg16']"),
    "mode": (["infer"], ["infer"], "'infer'"),
    "input_size": (["96"], [96, "96"], "96"),
    "input_shape": (["3,96,96"], [[3, 96, 96], "3,96,96"], "[3, 96, 96]"),
    "precision": (["fp32,bf16"], [["fp32", "bf16"], "fp32,bf16"], "['fp32', 'bf16']"),
    "loss_scale": (["128"], [128, "128"], "128"),
    "overlap": (["--no-overlap"], [False], "false"),
    "device": (["cpu"], ["cpu"], "'cpu'"),
    "arms": (["real,host"], [["real", "host"], "real,host"], "['real', 'host']"),
    "steps": (["10"], [10], "10"),
    "duration": (["5"], [5, 5.0], "5"),
    "ci_target": (["0.1"], [0.1], "0.1"),
    "max_bytes": (["1.5G"], [1_500_000_000, "1.5G", "1500M", "1500000k", "1500000000B"], "'1.5G'"),
    "warmup": (["0"], [0], "0"),
    "repeats": (["3"], [3], "3"),
    "kernels": (["--no-kernels"], [False], "false"),
    "seed": (["7"], [7], "7"),
    "all_reduce": (["2M"], [2_000_000, "2M"], "'2M'"),
    "max_failures": (["0.5"], [0.5], "0.5"),
}
"""Option → as flags, in Python (several ways), in a study file."""


def flags(name: str, texts: list[str]) -> list[str]:
    if texts[0].startswith("--"):
        return texts
    return [part for text in texts for part in (flag_of(name), text)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StudyOptions]:
    """`asked(*flags)`: the options that reach the study from `loaderbench sweep *flags`."""
    taken: list[StudyOptions] = []
    monkeypatch.setattr(sweep, "measure", lambda options, datasets, output, **more: taken.append(options))
    monkeypatch.setattr(run, "measure", lambda options, datasets, output, **more: taken.append(options))

    def asked(*arguments: str | Path, command: str = "sweep") -> StudyOptions:
        ended = call(command, *arguments)
        assert ended.code == 0, ended.err
        return taken[-1]

    return asked


@dataclass(frozen=True)
class Part:
    """Of a case, as cases/case.py declares one."""

    depth: int = case_option("How deep", many=True)
    mode: Literal["fast", "slow"] = case_option("fast or slow", "slow", asked="fast")
    sizes: Mapping[str, str] = case_option("KEY=VALUE", {}, asked=None, kind=Pairs, name="size")
    width: float = case_option("How wide", 0.5, many=True)
    measured: bool = False


def test_an_option_is_one_field() -> None:
    declared = [(one.field, one.name, one.kind, one.default) for one in options_of(Part)]
    assert declared == [
        ("depth", "depth", Numbers | None, None), ("mode", "mode", str, "fast"), ("sizes", "size", Pairs | None, None),
        ("width", "width", Ratios, (0.5,)),
    ]  # fmt: skip
    assert Part(3) == Part(3, "slow", {}, 0.5, measured=False)
    with pytest.raises(TypeError):
        Part()


def test_the_table_holds_every_option() -> None:
    assert set(SAME) == set(OPTIONS)


@pytest.mark.parametrize("name", SAME)
def test_a_flag_a_study_file_and_python_say_the_same(
    name: str, asked: Callable[..., StudyOptions], tmp_path: Path
) -> None:
    texts, values, toml = SAME[name]
    study = tmp_path / "study.toml"
    study.write_text(f"[study]\n{name.replace('_', '-')} = {toml}\n")
    loaders = {} if name == "loader" else {"loader": "multiprocess"}  # sweep's own default is several
    loader = flags("loader", ["multiprocess"]) if loaders else ()
    by_flag = asked(*flags(name, texts), *loader)
    assert by_flag != asked(*loader), "not the default, or nothing is shown"
    assert asked(study, *loader) == by_flag
    for value in values:
        assert read_options({name: value, **loaders}) == by_flag, value
        assert read_options({}).changed(**{name: value, **loaders}) == by_flag, value
        assert type(vars(read_options({name: value}))[name]) is type(vars(by_flag)[name])
    # and nothing else is touched
    usual = vars(read_options({}))
    assert {one for one, value in vars(by_flag).items() if value != usual[one]} == {name, *loaders}


@pytest.mark.parametrize("name", SAME)
def test_a_flag_beats_the_study_file(name: str, asked: Callable[..., StudyOptions], tmp_path: Path) -> None:
    """Where it was given, even with the value that would have been its default."""
    _, _, toml = SAME[name]
    study = tmp_path / "study.toml"
    study.write_text(f"[study]\n{name} = {toml}\n")
    default = OPTIONS[name].default
    others = {
        "res": ["256"], "cache": ["cold"], "decoder": ["libjpeg"], "decode_scale": ["off"], "workers": ["1"],
        "io_threads": ["0"], "buffer_ratio": ["2"], "output": ["float32"], "loader_option": ["c=2"],
        "decoder_option": ["c=2"], "precision": ["fp16"], "loss_scale": ["dynamic"], "steps": ["5"], "duration": ["60"],
        "ci_target": ["0.03"],
        "max_bytes": ["1k"], "all_reduce": ["1k"], "warmup": ["1"], "input_shape": ["3,64,64"],
        "overlap": ["--overlap"], "kernels": ["--kernels"],
    }  # fmt: skip
    given = others.get(name) or [",".join(map(str, default)) if isinstance(default, tuple) else str(default)]
    assert asked(study, *flags(name, given)) == asked(*flags(name, given))
    assert asked(study, *flags(name, given)) != asked(study)


def test_full_size_is_said_in_a_word(asked: Callable[..., StudyOptions]) -> None:
    assert asked("--input-size", "full").input_size == read_options({"input_size": "full"}).input_size
    assert asked("--input-size", "full").input_size == 0 != asked().input_size


def test_a_command_s_own_defaults_are_its_own(asked: Callable[..., StudyOptions]) -> None:
    assert asked(command="run") == read_options({})
    assert asked() == read_options({"loader": ["serial", "multiprocess", "threaded"]})


# -- what is refused -----------------------------------------------------------------------------------------

WRONG: list[tuple[str, str, object]] = [
    ("workers", "two", "two"),
    ("workers", "1,", "1,"),
    ("workers", "1.5", 1.5),
    ("batch_size", "4,x", [4, "x"]),
    ("res", " ", True),
    ("buffer_ratio", "much", "much"),
    ("buffer_ratio", "1;2", ["a"]),
    ("input_size", "half", "half"),
    ("input_size", "0", 0),
    ("input_size", "64,96", 64.5),
    ("max_bytes", "much", "much"),
    ("max_bytes", "10X", "10X"),
    ("max_bytes", "-1", -1),
    ("loader_option", "prefetch", "prefetch"),
    ("decoder_option", "=1", ["a=b", "=1"]),
]
"""Option, text of its flag, value in Python: of every kind that reads texts."""


@pytest.mark.parametrize(("name", "text", "value"), WRONG)
def test_what_cannot_be_read_is_refused_in_one_line_that_names_the_flag(
    name: str, text: str, value: object, tmp_path: Path
) -> None:
    ended = call("sweep", "/nowhere", flag_of(name), text, "--results", tmp_path)
    assert (ended.code, ended.out, len(ended.lines)) == (2, "", 1)
    wants = {
        "workers": "whole numbers separated by commas", "batch_size": "whole numbers separated by commas",
        "res": "whole numbers separated by commas", "buffer_ratio": "numbers separated by commas",
        "input_size": "a whole number, or full", "max_bytes": "a size such as 500M or 20G",
        "loader_option": "KEY=VALUE", "decoder_option": "KEY=VALUE",
    }  # fmt: skip
    assert ended.lines == [f"loaderbench: {flag_of(name)} takes {wants[name]}, not {text!r}"]
    with pytest.raises(ConfigError, match=f"^{flag_of(name)} takes {wants[name]}, not ") as refused:
        read_options({name: value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("5000/s", 5000.0), ("5k/s", 5000.0), ("5K/s", 5000.0), ("2.5M/h", 2.5e6 / 3600), ("300k/h", 300e3 / 3600),
        ("90/min", 1.5), ("0.5/s", 0.5), (" 1 /s", 1.0), ("1G/h", 1e9 / 3600),
    ],
)  # fmt: skip
def test_a_rate_is_read_with_its_unit(text: str, per_s: float) -> None:
    assert Rate.parse(text) == pytest.approx(per_s, rel=1e-12)
    assert read("target", Rate | None, text) == Rate.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("0.2s", 0.2), ("800us", 8e-4), ("800µs", 8e-4), ("2min", 120.0), ("1.5 ms", 0.0015)],
)
def test_a_time_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert Time.parse(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("given", "price"),
    [
        ("2.50/h", Price(2.5)), ("2.50", Price(2.5)), ("2.50/hour", Price(2.5)), (" 2.50 / h ", Price(2.5)),
        (2.5, Price(2.5)), (3, Price(3.0)),
        ("$2.50/h", Price(2.5, "$", True)), ("€0.31", Price(0.31, "€", True)), ("£ 2/h", Price(2.0, "£", True)),
        ("2.50€/h", Price(2.5, "€", False)), ("2.50 EUR/h", Price(2.5, "EUR", False)),
        ("EUR 2.50", Price(2.5, "EUR", True)),
        ("12usd", Price(12.0, "USD", False)), ("0.001 CHF/hour", Price(0.001, "CHF", False)),
    ],
)  # fmt: skip
def test_a_price_is_read_with_its_currency(given: object, price: Price) -> None:
    assert Price.parse(given) == price
    assert read("price", Price | None, given) == price
    assert read("price", Price | None, price) is price


@pytest.mark.parametrize(
    ("kind", "text", "size"),
    [
        (Size, "500M", 500 * 10**6), (Size, "1.5k", 1500), (Size, "20GiB", 20 * 2**30), (Size, "7", 7), (Size, 7, 7),
        (Memory, "16G", 16 * 2**30), (Memory, "500 MB", 500 * 2**20), (Memory, "1.5GiB", 3 * 2**29), (Memory, "7", 7),
    ],
)  # fmt: skip
def test_files_are_decimal_and_memory_is_binary(kind: type[Size] | type[Memory], text: object, size: int) -> None:
    assert kind.parse(text) == size
    assert read("x", kind, text) == size


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (kind, text, f"--x takes {kind.wants}, not {repr(short(text)) if isinstance(text, str) else text}")
        for kind, texts in (
            (Rate, ("5000", "5000/d", "/s", "-5/s", "0/s", "0.0k/h", "5e3/s", "nan/s", "5/s/s", 5000, f"{10**400}/s")),
            (Time, ("50", "ms", "-1ms", "0ms", "1h", "50 m s s", "inf s", 0.05, f"{10**400}ms")),
            (
                Price,
                (
                    "",
                    "abc",
                    "0",
                    "0.00/h",
                    "-3/h",
                    "+3",
                    "nan",
                    "inf",
                    "1e9",
                    "2,50",
                    ".50/h",
                    "2.",
                    "2.50/d",
                    "2.50/min",
                    "/h",
                    "$",
                    "$2 EUR",
                    "#2",
                    "2 EURO",
                    "EU 2",
                    "٣",
                    "2h",
                    "9" * 5000,
                    f"{10**400}",
                    True,
                    None,
                    -1.0,
                ),
            ),
            (Memory, ("16Q", "0", "0G", "-1G", "G", "1e9", "16 GiBs", f"{10**400}")),
            (Size, ("16Q", "-1G", "G", "1e9", f"{10**18}", "9" * 5000)),
            (Numbers, ("1,", "1_0", "٣", "²", f"1,{10**18}", f"-{'9' * 5000}", [10**18], [1.0])),
            (Side, ("", "0", "-", f"{10**18}", "9" * 5000, "1_0")),
        )
        for text in texts
    ],
)
def test_what_is_none_of_its_kind_is_refused(kind: Any, text: object, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read("x", kind, text)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("name", "value", "wants"),
    [
        ("steps", 1.5, "a whole number"), ("steps", True, "a whole number"), ("steps", "10", "a whole number"),
        ("duration", "10", "a number"), ("duration", True, "a number"), ("overlap", 1, "true or false"),
        ("mode", 1.5, "text"), ("device", ["cpu"], "text"),
    ],
)  # fmt: skip
def test_plain_values_of_another_kind_are_refused(name: str, value: object, wants: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag_of(name)} takes {wants}, not "):
        read_options({name: value})


@pytest.mark.parametrize(("flag", "text"), [("--steps", "x"), ("--duration", "x"), ("--seed", "1.5")])
def test_plain_flags_of_another_kind_are_refused_in_one_line(flag: str, text: str, tmp_path: Path) -> None:
    ended = call("run", "/nowhere", flag, text, "--results", tmp_path)
    assert (ended.code, len(ended.lines)) == (2, 1) and flag in ended.err


@pytest.mark.parametrize("name", ["model", "batch_size", "buffer_ratio"])
def test_an_empty_list_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag_of(name)} is empty"):
        read_options({name: []})


def test_an_unknown_option_names_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"^no option 'worker'; there are: res, cache, loader"):
        read_options({"worker": 2})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[study]\nworkerz = [1]\n", "no option 'workerz'; close names: workers"),
        ("[study]\nbatch-sizes = [1]\n", "no option 'batch-sizes'; close names: batch_size"),
        ("[study]\nxyzzy = 1\n", "no option 'xyzzy'; close names: none"),
        ("[study]\nresults = 'x'\n", "no option 'results'"),
        ("[study]\nworkers = ['a']\n", "--workers takes whole numbers separated by commas, not ['a']"),
        ("[study]\nsteps = '5'\n", "--steps takes a whole number, not '5'"),
        ("[studies]\nworkers = 1\n", "has no table [study], which has options of sweep: workers = [1, 2, 4]"),
        ("workers = \n", "is not valid TOML"),
        (f"[study]\nworkers = [{'9' * 5000}]\n", "is not valid TOML: it holds a number of more than 4,300 digits"),
        (f"[study]\nworkers = {'[' * 5000}\n", "is not valid TOML: it is nested too deeply"),
        (f"[study]\n{'x' * 5000} = 1\n", f"no option '{'x' * 60}…'; close names: none"),
        (f"[study]\nworkers = [{'9' * 400}]\n", "--workers takes whole numbers separated by commas, not [9999"),
        (f"[study]\nsteps = -{'9' * 400}\n", "--steps takes a number of at most 18 digits, not -9999"),
        (f"# {'x' * (1 << 20)}\n[study]\n", "it is longer than 1,048,576 bytes"),
    ],
)
def test_a_study_file_that_cannot_be_read_says_what_to_change(text: str, says: str, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(text)
    ended = call("sweep", study, "--dry-run")
    assert (ended.code, ended.out, len(ended.lines)) == (2, "", 1)
    assert str(study) in ended.err and says in ended.err


def test_a_study_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = call("sweep", tmp_path / "nosuch.toml")
    assert (ended.code, ended.lines) == (
        2, [f"loaderbench: cannot read the study {tmp_path / 'nosuch.toml'}: No such file or directory"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("res", "1,2"), ("loader", "serial,threaded"), ("workers", "1,2"), ("decoder", "pillow,opencv"),
        ("model", "resnet18,resnet50"), ("precision", "fp32,bf16"), ("batch_size", "1,2"), ("prefetch", "1,2"),
    ],
)  # fmt: skip
def test_a_list_given_to_run_names_sweep(name: str, text: str) -> None:
    ended = call("run", "/nowhere", flag_of(name), text)
    assert (ended.code, ended.out) == (2, "")
    assert ended.lines == [f"loaderbench: run takes one {flag_of(name)}: use `loaderbench sweep` for a list"]


@pytest.mark.parametrize("command", ["run", "sweep", "tune"])
def test_cache_states_are_no_list_but_for_compare(command: str, small_set: Path) -> None:
    ended = call(command, small_set, "--res", "96", "--device", "emulated", "--cache", "cold,warm", "--dry-run")
    assert (ended.code, ended.out) == (2, "")
    assert ended.lines == ["loaderbench: --cache must be one of cold, warm, as-is, not 'cold,warm'"]
