"""Commands on names that a terminal would obey: of folders, images, traces and stored runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import DEVICE, Ended, call
from pictures import encode, write_tree

from loaderbench import plain
from loaderbench.recording.facts import Failure
from loaderbench.recording.record import Verdict
from tests.ledger_records import gain
from tests.made import CASE, make_estimate, make_record

HOSTILE = "n\x1b]0;owned\x07\x1b[2J\x9b1m\x7f\u202egpj\nloaderbench: all is well"
"""Sets the title, clears the screen, colours the rest, turns the direction of the text, and adds a line."""


def unsafe(text: str) -> set[str]:
    """What a terminal would obey, colours and the rewriting of a line of progress left out, which are ours."""
    ours = re.sub(r"\x1b\[[\d;]*m|\r\x1b\[K", "", text)
    return {character for character in ours if not character.isprintable()} - {"\n"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Images of which one is broken, all with such names."""
    root = tmp_path / HOSTILE / f"tree{HOSTILE}"
    write_tree(root, [np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)], [(32, 32)] * 20)
    (root / f"class0{HOSTILE}").mkdir()
    (root / f"class0{HOSTILE}" / f"{HOSTILE}.jpg").write_bytes(encode(np.zeros((40, 40, 3), np.uint8))[:200])
    (root / HOSTILE).write_text("")
    return root


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two stored runs whose records somebody has edited, and one that failed."""
    case = CASE.changed(dataset=f"/{HOSTILE}", dataset_name=HOSTILE, model=HOSTILE, decoder=HOSTILE)
    root = tmp_path / "results"
    for number in range(3):
        record = make_record(case, run_id=f"run{number}", throughput=make_estimate(100.0, 0.02))
        if number == 1:
            advice = gain(1.5, 1.4, 1.6, 1.5, change={"decoder": HOSTILE})
            record = replace(record, verdict=Verdict("prep", advice=(advice,)))
        if number == 2:
            record = replace(record, status="failed", failure=Failure("CaseFailed", HOSTILE))
        (root / record.run_id).mkdir(parents=True)
        (root / record.run_id / "case.json").write_text(json.dumps(record.case.to_json()))
        (root / record.run_id / "run.json").write_text(json.dumps(plain.to_json(record)))
    return root


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": HOSTILE, "ts": 10 * n, "dur": 4, "args": {"device": 0, "stream": 7}}
        for n in range(9)
    ]
    path = tmp_path / f"{HOSTILE}.json"
    path.write_text(json.dumps({"traceEvents": kernels}))
    return path


OF_IMAGES: dict[str, Callable[[Path], tuple[str | Path, ...]]] = {
    "scan": lambda tree: ("dataset", "scan", tree),
    "derive": lambda tree: ("dataset", "derive", tree, "--res", "16", "--out", tree.parent.parent / "out"),
    "derive into itself": lambda tree: ("dataset", "derive", tree, "--res", "16", "--out", tree / "out"),
    "convert": lambda tree: ("dataset", "convert", tree, "--to", "wds"),
    "convert to nothing known": lambda tree: ("dataset", "convert", tree, "--to", HOSTILE),
    "dry run": lambda tree: ("run", tree, "--dry-run", *DEVICE),
    "dry sweep": lambda tree: ("sweep", tree, "--workers", "1,2", "--dry-run", *DEVICE),
    "no such data set": lambda tree: ("run", tree / HOSTILE / "gone", *DEVICE),
    "no such variant": lambda tree: ("run", tree, "--res", "77", *DEVICE),
    "no such loader": lambda tree: ("run", tree, "--loader", HOSTILE, *DEVICE),
    "no such option": lambda tree: ("run", tree, f"--{HOSTILE}"),
    "no such command": lambda tree: (HOSTILE,),
    "a target that is a folder": lambda tree: ("run", tree, "--json", tree, *DEVICE),
    "doctor": lambda tree: ("doctor", tree),
}


@pytest.mark.parametrize("name", OF_IMAGES)
def test_names_of_images_and_folders(name: str, tree: Path) -> None:
    check(call(*OF_IMAGES[name](tree)))


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("ledger", "--all"),
        ("ledger", "--kind", HOSTILE),
        ("show", "run0"),
        ("show", "run2"),
        ("show", HOSTILE),
        ("compare", "run0", "run1"),
        ("compare", "run0", "run2"),
        ("compare", "--baseline", "run0", "run1"),
        ("analyze", "--all", "--diff"),
        ("analyze", "run0"),
        ("report", "--out", "-", "--format", "md"),
        ("report", "--out", f"{HOSTILE}/report.html"),
        ("trace", "run0"),
    ],
    ids=lambda words: " ".join(words[:2]).partition("\x1b")[0],
)
def test_edited_records(words: tuple[str, ...], store: Path) -> None:
    check(call(*words, "--results", store))


@pytest.mark.parametrize("more", [(), ("--device", "5")])
def test_names_of_traces_and_of_what_is_in_them(more: tuple[str, ...], trace: Path) -> None:
    check(call("gaps", trace, *more))
    check(call("gaps", trace.with_name(f"{HOSTILE}.gone"), *more))


def check(done: Ended) -> None:
    assert not unsafe(done.out) and not unsafe(done.err)
    assert "\nloaderbench: all is well" not in done.out + done.err
    assert "Traceback" not in done.err
