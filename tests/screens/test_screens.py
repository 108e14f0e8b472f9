"""What every command prints, beside the files that keep it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

from loaderbench.recording.kinds import KINDS
from tests.screens import golden, stored
from tests.screens.listed import SCREENS, Kept

CHANGED_WORDS = "What is printed differs from what is kept. Run `make screens` and read `git diff`:"
CHANGED_FACTS = """A NUMBER, A UNIT OR A CODE IS NOT WHAT IT WAS. Another sentence must not do that.
Only if it is meant: `make screens FACTS=yes`, and say in the commit why."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which commands run. Read only; made once for all processes that test beside each other."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    made = shared / "screens"
    with open(shared / "screens.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            making = shared / "screens.new"
            shutil.rmtree(making, ignore_errors=True)
            stored.make_all(making)
            making.rename(made)
    return made


@pytest.fixture(scope="session", params=SCREENS, ids=lambda screen: screen.name)
def made(request: pytest.FixtureRequest, folder: Path) -> tuple[str, golden.Made]:
    """Each screen, made once for its two tests."""
    screen: Kept = request.param
    return screen.name, screen.made(folder)


def test_words_are_those_that_are_kept(made: tuple[str, golden.Made]) -> None:
    name, today = made
    differences = golden.differing(name, today.words, golden.WORDS)
    assert not differences, f"{CHANGED_WORDS}\n{differences}"


def test_numbers_units_and_codes_are_those_that_are_kept(made: tuple[str, golden.Made]) -> None:
    name, today = made
    differences = golden.differing(name, today.facts, golden.FACTS)
    assert not differences, f"{CHANGED_FACTS}\n{differences}"


@pytest.mark.parametrize(("kind", "message"), [(golden.WORDS, CHANGED_WORDS), (golden.FACTS, CHANGED_FACTS)])
def test_each_file_is_a_screen_s(kind: str, message: str) -> None:
    names = [screen.name for screen in SCREENS]
    assert len(set(names)) == len(names)
    nobody_s = [file for file in golden.files() if not any(golden.is_of(file, name) for name in names)]
    left = golden.without([file for file in nobody_s if golden.kind_of(file) == kind], kind)
    assert not left, f"{message}\n{left}"


def test_every_kind_of_study_is_shown() -> None:
    assert {*stored.OF_KIND, *stored.OF_RUNS} == {*KINDS}


@pytest.mark.skipif(bool(golden.WRITES), reason="the files are being written")
def test_what_is_drawn_fits_the_terminal() -> None:
    """But for what is to be copied in one piece. What only echoes lines (`rm`, errors) leaves them to the terminal."""
    drawn = [
        file
        for file in golden.files()
        if re.match(r"(show|list|ledger|compare|analyze|gaps|doctor)/.*\.(80|120)\.", file)
    ]
    assert len(drawn) > 150
    wide = []
    for file in drawn:
        columns = int(file.split(".")[-2])
        lines = (golden.FOLDER / file).read_text().partition("-- stderr --")[0].splitlines()[1:]
        wide += [line for line in lines if cell_len(line) > columns and not line.startswith("loaderbench run ")]
    assert wide == []
