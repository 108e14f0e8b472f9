"""The command line with numbers that nothing can hold, drawn at random: exit code 2 and one line, never a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import commands
import pytest
import typer.main
from commands import call

from loaderbench.commands import app
from tests.campaign.drawn import SEED, TIMES

pytestmark = pytest.mark.slow

NUM_TRIED = 240 * TIMES
TRIED_A_TEST = 20
DIGITS, MANY = "9" * 5000, "9" * 400
NUMBERS = (
    DIGITS, f"-{DIGITS}", MANY, f"-{MANY}", "9" * 25, "1e400", "-1e400", "inf", "-inf", "nan", "-0.0", "-1", "1e308",
    "1e-320", "", "²", "٣", "1_0", "½", "0x10",
)  # fmt: skip
AROUND = (
    "{}", "{},1", "1,{}", "cpu:{}", "cuda:{}", "xpu:{}", "emulated:{}", "emulated:h200x{}", "{}G", "{}/s", "{}ms",
    "a={}", "io_threads={}", "{0}x{0}", "cpu:1,8={}", "cpu:1,{}",
)  # fmt: skip
"""Ways in which a text has a number in it."""
LEFT_OUT = ("--results", "--json", "--out", "--csv", "--save-profile", "--tag")


def request(command: str, images: Path, folder: Path) -> list[str | Path]:
    """A command line that the option is added to. None of them measures: a file is in the place of the results."""
    results = folder / "results"
    results.touch()
    (folder / "trace.json").write_text(json.dumps({"traceEvents": []}))
    closed: list[str | Path] = ["--results", results]
    copy = folder / "copy"
    if command == "compare" and not copy.exists():
        shutil.copytree(images, copy)
    emulated: list[str | Path] = [images, "--device", "emulated", *closed]
    model: list[str | Path] = ["lenet", "--device", "cpu", *closed]
    return {
        "run": [*emulated, "--dry-run"], "sweep": [*emulated, "--dry-run"], "tune": [*emulated, "--dry-run"],
        "compare": [f"a={images}", f"b={copy}", "--device", "emulated", "--dry-run", *closed],
        "capacity": [*emulated, "--max-ranks", "1", "--batch-size", "4"],
        "forecast": ["latest", *closed], "whatif": ["latest", *closed],
        "gaps": [folder / "trace.json"], "ledger": closed,
        "precision": ["--device", "cpu", *closed], "selftest": ["--device", "cpu", "--only", "nosuch", *closed],
        "model layers": model, "model memory": model, "model fit": model, "model size": model, "model offload": model,
        "model io": model, "model split": ["lenet", "--device", "cpu:1,cpu:1", *closed],
        "dataset make": ["--res", "32", "--out", results], "dataset derive": [images, "--res", "16", "--out", results],
        "dataset convert": [images, "--to", "wds", "--out", results],
    }[command]  # fmt: skip


COMMANDS = (
    "run", "sweep", "tune", "compare", "capacity", "forecast", "whatif", "gaps", "ledger", "precision", "selftest",
    "model layers", "model memory", "model fit", "model size", "model offload", "model io", "model split",
    "dataset make", "dataset derive", "dataset convert",
)  # fmt: skip


def options_of(command: str) -> list[str]:
    found = typer.main.get_command(app.app)
    for part in command.split():
        found = found.commands[part]  # type: ignore[attr-defined]
    flags = [one for one in found.params if one.param_type_name == "option" and not getattr(one, "is_flag", False)]
    return [one.opts[0] for one in flags if one.opts[0] not in LEFT_OUT]


@pytest.mark.parametrize("part", range(NUM_TRIED // TRIED_A_TEST))
def test_no_number_ends_a_command_by_a_traceback(small_set: Path, tmp_path: Path, part: int) -> None:
    for number in range(part * TRIED_A_TEST, (part + 1) * TRIED_A_TEST):
        random = Random(f"{SEED} {number}")
        command = random.choice(COMMANDS)
        option = random.choice(options_of(command))
        text = random.choice(AROUND).format(random.choice(NUMBERS))
        what = f"seed {SEED} number {number}: {command} {option}={text[:40]}"
        print(what)
        ended = commands.run(*command.split(), *request(command, small_set / "96", tmp_path), f"{option}={text}")
        told = f"{what}: {ended.code}\n{ended.err[-1500:]}"
        assert ended.code in (0, 2), told
        assert "Traceback" not in ended.err, told
        assert len([line for line in ended.lines if line.startswith("loaderbench: ")]) == (ended.code == 2), told


def test_the_machine_is_reached_where_the_number_is_a_good_one(small_set: Path, tmp_path: Path) -> None:
    # the requests are right apart from the place of the results, so that what is refused above is the number
    for command in ("run", "sweep", "tune"):
        assert call(command, *request(command, small_set / "96", tmp_path)).code == 0
    refused = call("capacity", *request("capacity", small_set / "96", tmp_path))
    assert refused.code == 2 and "cannot write results" in refused.err
