"""Wrong command lines of every command: refused in one line that says what to do, before anything large is imported,
started or stored; and what such a line proposes works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import call
from planned import MEASURES, Planned, planned

from loaderbench.commands import app
from loaderbench.machine import usable_cpus
from tests.screens.refused import OPTIONS

BASE: dict[str, list[str]] = {
    "run": ["set/96", "--device", "emulated"],
    "sweep": ["set/96", "--device", "emulated", "--loader", "serial"],
    "tune": ["set/96", "--device", "emulated"],
    "compare": ["a=set/96", "b=copy/96", "--device", "emulated"],
    "watch": ["script.py"],
    "list": [],
    "show": ["latest"],
    "ledger": [],
    "analyze": ["latest"],
    "trace": ["latest"],
    "gaps": ["trace.json"],
    "report": [],
    "rm": ["latest"],
    "selftest": [],
    "precision": ["--device", "cpu"],
    "forecast": ["latest"],
    "whatif": ["latest", "--workers", "2"],
    "attach": ["--all"],
    "capacity": ["set/96", "--batch-size", "1"],
    "demo": [],
    "install": ["pillow-simd"],
    "doctor": [],
    "dataset make": ["--res", "32", "--num-images", "2", "--out", "made"],
    "dataset derive": ["set/96", "--res", "32", "--out", "made"],
    "dataset convert": ["set/96", "--to", "wds", "--out", "made"],
    "dataset scan": ["set/96"],
    "model layers": ["resnet18"],
    "model memory": ["resnet18"],
    "model fit": ["resnet18"],
    "model size": ["resnet18", "--target", "5/s"],
    "model offload": ["resnet18"],
    "model split": ["resnet18", "--device", "cpu:1,emulated:h200-resnet50-train-amp-bf16"],
    "model io": ["resnet18"],
}
"""Command → arguments that are right, or as right as they can be in an empty store."""
NOT_RUN = {"demo", "install", "doctor", "watch", "attach", "dataset make", "dataset derive", "dataset convert"}
"""Their right command lines do the work at once: they are not run here with right values."""
FREE = {"--tag", "--results", "--json", "--out", "--csv", "--save-profile", "--only", "--checkpoint-to", "--metrics"}
"""They take any text, or are looked at once something is found in the store."""
ANY_NUMBER = {
    "--max-bytes", "--all-reduce", "--mean-file-bytes", "--last", "--shard-images", "--offload-above", "--images",
    "--epochs", "--val-images", "--val-every", "--checkpoint-every", "--keep-last", "--older-than", "--loss-scale",
    "--every",
}  # fmt: skip
"""A number that is too large asks for nothing that could not be: it limits nothing, or is only multiplied."""
HUGE = "9" * 20


def tree(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every group and command of the program."""
    yield name.strip(), group
    for child_name, child in getattr(group, "commands", {}).items():
        yield from tree(child, f"{name}{child_name} ")


TREE = dict(tree(typer.main.get_command(app.app)))
GROUPS = [name for name, one in TREE.items() if hasattr(one, "commands")]
COMMANDS = {name: one for name, one in TREE.items() if name not in GROUPS}


def options_of(name: str) -> list[str]:
    """The long names of a command's options that take a value."""
    params = [one for one in COMMANDS[name].params if one.param_type_name == "option" and not one.is_flag]
    return [next(flag for flag in one.opts if flag.startswith("--")) for one in params]


def given(name: str, flag: str, value: str) -> list[str]:
    """The command's right arguments, with this option."""
    return [*name.split(), flag, value, *without(BASE[name], flag)]


def without(words: list[str], flag: str) -> list[str]:
    """The command line without an option and its value."""
    left = list(words)
    while flag in left:
        at = left.index(flag)
        has_value = at + 1 < len(left) and not left[at + 1].startswith("--")
        del left[at : at + 1 + has_value]
    return left


RUN, CPU = ["run", "set/96", "--device", "emulated"], ["run", "set/96", "--device", "cpu", "--model", "resnet18"]
WRONG: list[tuple[list[str], str]] = [
    ([*CPU, "--precision", "fp16", "--device", "cuda"], "no NVIDIA GPU here"),
    ([*CPU, "--device", "cuda"], "use --device cpu"),
    ([*RUN, "--device", "cuda"], "use --device emulated or --device cpu"),
    ([*RUN, "--device", "xpu"], "use --device emulated or --device cpu"),
    ([*RUN, "--device", "cuda:7"], "use --device emulated or --device cpu"),
    ([*RUN, "--save-profile", "x.toml"], "and this machine has none"),
    ([*RUN, "--batch-size", "100000000"], "give a smaller --batch-size"),
    ([*RUN, "--prefetch", "100000000"], "give a smaller --batch-size, --prefetch"),
    ([*RUN, "--workers", "99999"], "--workers 99999 is more than this machine can run"),
    (["compare", "a=set/96", "b=link"], "a and b are the same files"),
    (["compare", "a=set/96", "b=hard"], "a and b are the same files"),
    (["precision", "--device", "cuda"], "use --device cpu"),
    (["model", "layers", "resnet18", "--device", "cuda"], "use --device cpu"),
    (["model", "memory", "resnet18", "--device", "cuda"], "use --device cpu"),
    (["model", "memory", "resnet50", "--device", "cuda"], "use --device emulated or --device cpu"),
    (["model", "split", "resnet18", "--device", "cpu:1,cuda:0"], "use other devices"),
]
"""Command line, and what its refusal says, where the machine has a part in it. What others say is in tests/screens."""


def generated() -> list[list[str]]:
    """Every option of every command with values that are none of its own: unknown, below and above all sense."""
    return [
        given(name, flag, value)
        for name in COMMANDS
        for flag in options_of(name)
        for value in ("nosuch", "-1", HUGE)
        if flag not in FREE
    ]


@pytest.fixture(scope="module")
def folder(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set, a copy of it, the same by a link to it and to its files, a script and a trace."""
    root = tmp_path_factory.mktemp("refusals")
    (root / "set").symlink_to(small_set)
    shutil.copytree(small_set, root / "copy")
    (root / "link").symlink_to(small_set / "96")
    shutil.copytree(small_set / "96", root / "hard", copy_function=lambda one, other: Path(other).hardlink_to(one))
    (root / "nothing").mkdir()
    (root / "script.py").write_text("")
    (root / "trace.json").write_text("{}")
    return root


@pytest.fixture(scope="module")
def refusals(folder: Path) -> list[Planned]:
    """How all wrong command lines end."""
    return planned([*(words for words, _ in WRONG), *OPTIONS, *generated()], folder)


def test_a_wrong_command_line_is_refused_by_its_words(refusals: list[Planned]) -> None:
    odd = [
        f"{ended}\n   says: {says}"
        for ended, (_, says) in zip(refusals, WRONG, strict=False)
        if ended.code != 2 or says not in ended.err
    ]
    assert not odd, "\n".join(odd)


def test_a_refusal_is_one_line_before_anything_large_is_imported_started_or_stored(refusals: list[Planned]) -> None:
    assert len(refusals) > 100
    late = [str(one) for one in refusals if not one.is_taken and one.code != 2]
    assert not late, "\n".join(late)
    refused = [one for one in refusals if one.code == 2]
    assert len(refused) > 0.8 * len(refusals)
    for one in refused:
        said = [line for line in one.err.splitlines() if line.startswith("loaderbench: ")]
        assert len(said) == 1 and one.err.splitlines()[-1] == said[0], one
        assert one.stored == [], one


def test_no_option_takes_what_is_none_of_its_values(refusals: list[Planned]) -> None:
    taken = [
        str(one)
        for one in refusals[len(WRONG) + len(OPTIONS) :]
        if one.is_taken and not (HUGE in one.words and one.words[one.words.index(HUGE) - 1] in ANY_NUMBER)
    ]
    assert not taken, "\n".join(taken)


# -- how soon it comes -----------------------------------------------------------------------------------------

SOON = [
    *([*RUN, flag, value] for flag, value in (("--loader-option", "foo=1"), ("--decoder-option", "resize=z"))),
    *([*RUN, flag, value] for flag, value in (("--duration", "1e12"), ("--workers", "9999"), ("--json", "no/folder"))),
    *(["run", "--device", "emulated", flag, value] for flag, value in (("--res", "96"), ("--batch-size", "100000000"))),
    [*CPU, "--model", "resnet5"],
    [*CPU, "--precision", "fp16"],
    ["run", "nosuch"],
    ["run", "nothing"],
    ["run", ""],
    ["sweep", "nosuch"],
    ["tune", "set/96", "--budget", "0"],
    ["compare", "a=set/96", "b=link"],
    ["capacity", "set/96", "--batch-size", "1", "--device", "cuda"],
    ["precision", "--model", "nosuch"],
    ["watch", "nosuch.py"],
    ["dataset", "convert", "nosuch", "--to", "wds"],
    ["model", "layers", "nosuch"],
    ["model", "memory", "nosuch"],
    ["model", "fit", "resnet18", "--memory", "1"],
    ["model", "size", "nosuch", "--target", "5/s"],
    ["model", "offload", "resnet18", "--memory", "1K"],
    ["model", "split", "resnet18", "--device", "cpu:1,cuda:0"],
    ["model", "io", "nosuch"],
    ["selftest", "--device", "cuda"],
    ["selftest", "--only", "nosuch"],
]
"""Wrong command lines of every command that measures."""


@pytest.mark.parametrize("words", SOON, ids=" ".join)
def test_a_refusal_comes_before_anything_that_computes_is_imported(words: list[str], folder: Path) -> None:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "loaderbench", *words],
        capture_output=True, text=True, cwd=folder, env=environ, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-300:]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "numpy", "PIL", "multiprocessing", "rich"}


# -- what a refusal proposes ---------------------------------------------------------------------------------

PROPOSED = re.compile(r"\b(?:use|give|as|with|or|to) (--[a-z-]+) ([\w.:,/=+-]*[\w/])")
LEFT_OUT = re.compile(r"leave (--[a-z-]+) out")
COMMAND = re.compile(r"`(loaderbench [^`]*)`")


def proposals(refused: Planned) -> Iterator[list[str]]:
    """The command lines that a refusal proposes: with an option of another value, without one, or another command."""
    for flag, value in PROPOSED.findall(refused.err):
        if flag in TREE_FLAGS and not re.search(r"\b[A-Z]+\b", value):
            yield [*without(refused.words, flag), flag, value]
    for flag in LEFT_OUT.findall(refused.err):
        yield without(refused.words, flag)


TREE_FLAGS = {flag for name in COMMANDS for flag in options_of(name)}


def test_what_a_refusal_proposes_is_taken(refusals: list[Planned], folder: Path) -> None:
    refused = [one for one in refusals if one.code == 2 and " ".join(one.words[:2]) not in NOT_RUN]
    tries = [(one, words) for one in refused for words in proposals(one)]
    assert len(tries) > 30
    ended = planned([words for _, words in tries], folder)
    wrong = [f"{before}\n   {after}" for (before, _), after in zip(tries, ended, strict=True) if not after.is_taken]
    assert not wrong, "\n".join(wrong)


def test_a_proposed_command_is_one(refusals: list[Planned]) -> None:
    proposed = {line for one in refusals for line in COMMAND.findall(one.err)}
    assert proposed
    for line in proposed:
        _, *words = line.split()
        name = next((" ".join(words[:number]) for number in (2, 1) if " ".join(words[:number]) in TREE), None)
        assert name is not None, line
        assert {word for word in words if word.startswith("--")} <= {*options_of(name)} if name in COMMANDS else True


# -- typed alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(("term", "columns"), [("xterm", "100"), ("dumb", "30")])
def test_a_group_typed_alone_prints_its_help(
    name: str, term: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", columns)
    alone, asked = call(*name.split()), call(*name.split(), "--help")
    assert (alone.code, alone.err) == (0, "")
    if not name:
        assert "loaderbench --help" in alone.out  # the ways in
        return
    assert alone.out == asked.out
    assert all(f"\n  {child} " in alone.out for child in TREE[name].commands)


def test_a_command_typed_alone_names_what_it_lacks(folder: Path) -> None:
    needing = [name for name, one in COMMANDS.items() if any(param.required for param in one.params)]
    for name, ended in zip(needing, planned([name.split() for name in needing], folder), strict=True):
        first = next(param for param in COMMANDS[name].params if param.required)
        lacks = first.opts[0] if first.param_type_name == "option" else first.metavar or first.name.upper()
        assert ended.code == 2 and len(ended.err.splitlines()) == 1, ended
        assert f"`loaderbench {name}` needs {lacks}: {first.help[0].lower()}{first.help[1:]}" in ended.err, ended


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_an_empty_text(name: str) -> None:
    for flag in options_of(name):
        ended = call(*given(name, flag, ""))
        assert (ended.code, ended.lines) == (2, [f"loaderbench: {flag} is empty: give it a value, or leave it out"])


def test_the_arguments_of_a_script_may_be_empty(folder: Path) -> None:
    (ended,) = planned([["watch", "nosuch.py", ""]], folder)
    assert "nosuch.py" in ended.err


def test_help_of_split_says_that_its_devices_are_required_and_no_default() -> None:
    shown = " ".join(
        re.split(r"\n  --\w+", call("model", "split", "--help").out.split("\n  --device", 1)[1])[0].split()
    )
    assert "required to measure" in shown and "default" not in shown


def test_what_can_run_is_still_taken(folder: Path) -> None:
    """Where some of a sweep's cases can run, the others are skipped later, with the reason."""
    lines = [
        [*CPU, "--precision", "bf16"],
        [*CPU, "--model", "planned_model:make"],
        ["sweep", "set/96", "--device", "cpu", "--model", "resnet18", "--precision", "fp16,fp32"],
        ["sweep", "set/96", "--device", "emulated", "--loader", "nvjpeg,serial"],
        ["model", "layers", "lenet"],
        ["model", "fit", "lenet", "--memory", "1M"],
        ["model", "split", "lenet", "--device", "cpu:1,emulated"]
        if usable_cpus() < 2
        else ["model", "split", "lenet", "--device", "cpu:1,cpu:1"],
        ["precision", "--precisions", "fp16", "--device", "cpu"],
    ]
    (folder / "planned_model.py").write_text("raise SystemExit('it is looked for, and not imported')\n")
    for ended in planned(lines, folder):
        assert ended.code == MEASURES, ended
