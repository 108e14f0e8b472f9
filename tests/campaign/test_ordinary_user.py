"""What root may do and an ordinary user may not: no traceback, one line that says what is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import commands
import pytest
from commands import TINY

from loaderbench.images.convert import convert_dataset
from tests.campaign.watching import Command, as_nobody, can_be_nobody, left, one_clear_line

HANGS_S = 150

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not can_be_nobody(), reason="needs root, to be an ordinary user"),
]


@dataclass(frozen=True)
class Place:
    """The folders of one test."""

    images: Path
    """A tree that everybody may read."""
    stored: Path
    """Root's results: everybody may read them."""
    own: Path
    """The user's own folder, and home."""
    closed: Path
    """A folder that root alone may enter."""
    fixed: Path
    """A folder that everybody may read and root alone may write."""

    def copy_of_stored(self) -> Path:
        """The results, as the user's own."""
        target = Path(shutil.copytree(self.stored, self.own / "results"))
        for path in (target, *target.rglob("*")):
            os.chown(path, 65534, 65534)
        return target


@pytest.fixture(scope="module")
def stored(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("stored")
    sweep = ("sweep", small_set / "96", *TINY, "--loader", "serial,synthetic", "--results", results)
    assert commands.run(*sweep).code == 0
    return results


@pytest.fixture
def place(stored: Path, small_set: Path, open_folder: Path) -> Place:
    images = Path(shutil.copytree(small_set / "96", open_folder / "images"))
    own, closed, fixed = (open_folder / name for name in ("own", "closed", "fixed"))
    for folder, mode in ((own, 0o777), (closed, 0o700), (fixed, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
    images.chmod(0o755)
    copied = Path(shutil.copytree(stored, open_folder / "results"))
    copied.chmod(0o755)
    return Place(images, copied, own, closed, fixed)


def newest(results: Path) -> Path:
    return sorted(path.parent for path in results.glob("*/run.json"))[-1]


def closed_file(path: Path) -> None:
    path.chmod(0o600)
    os.chown(path, 0, 0)


def closed_folder(path: Path) -> None:
    path.chmod(0o700)
    os.chown(path, 0, 0)


@dataclass(frozen=True)
class Try:
    """One thing that an ordinary user does."""

    name: str
    arguments: Callable[[Place], Sequence[object]]
    codes: Sequence[int]
    says: str = ""
    before: Callable[[Place], object] = lambda place: None


def run(place: Place, *options: object) -> list[object]:
    return ["run", place.images, *TINY, "--loader", "synthetic", *options]


TRIES = [
    Try("a run", lambda p: [*run(p), "--results", p.own / "r"], (0,)),
    Try("a run with workers", lambda p: [*run(p), "--loader", "multiprocess", "--results", p.own / "r"], (0,)),
    Try("a run of threads", lambda p: [*run(p), "--loader", "threaded", "--results", p.own / "r"], (0,)),
    Try(
        "a cold run", lambda p: [*run(p), "--loader", "serial", "--cache", "cold", "--results", p.own / "r"], (0, 1, 2)
    ),
    Try(
        "a warm run", lambda p: [*run(p), "--loader", "serial", "--cache", "warm", "--results", p.own / "r"], (0, 1, 2)
    ),
    Try("results of another", lambda p: [*run(p), "--results", p.fixed], (2,), "Permission denied"),
    Try("results in a closed folder", lambda p: [*run(p), "--results", p.closed / "r"], (2,), "Permission denied"),
    Try(
        "closed images",
        lambda p: [*run(p), "--results", p.own / "r"],
        (1, 2),
        "Permission denied",
        lambda p: closed_folder(p.images),
    ),
    Try(
        "one closed class",
        lambda p: [*run(p), "--loader", "serial", "--results", p.own / "r"],
        (1, 2),
        "Permission denied",
        lambda p: closed_folder(p.images / "class1"),
    ),
    Try(
        "one closed image",
        lambda p: [*run(p), "--loader", "serial", "--results", p.own / "r"],
        (0, 1, 2),
        "",
        lambda p: closed_file(next(p.images.rglob("*.jpg"))),
    ),
    Try(
        "json in a folder of another",
        lambda p: [*run(p), "--json", p.fixed / "x.json", "--results", p.own / "r"],
        (2,),
        "cannot write",
    ),
    Try("list", lambda p: ["list", "--results", p.stored], (0,)),
    Try(
        "list with a closed run",
        lambda p: ["list", "--results", p.stored],
        (0,),
        "Permission denied",
        lambda p: closed_folder(newest(p.stored)),
    ),
    Try(
        "list with a closed record",
        lambda p: ["list", "--results", p.stored],
        (0,),
        "Permission denied",
        lambda p: closed_file(newest(p.stored) / "run.json"),
    ),
    Try(
        "list with a closed case",
        lambda p: ["list", "--results", p.stored],
        (0,),
        "case.json cannot be read",
        lambda p: closed_file(newest(p.stored) / "case.json"),
    ),
    Try("list of closed results", lambda p: ["list", "--results", p.closed], (2,), "not readable"),
    Try(
        "show a closed run",
        lambda p: ["show", newest(p.stored).name, "--results", p.stored],
        (2,),
        "Permission denied",
        lambda p: closed_folder(newest(p.stored)),
    ),
    Try(
        "a report of another's results",
        lambda p: ["report", "--format", "md", "--results", p.stored],
        (2,),
        "cannot write",
    ),
    Try(
        "a report with a closed run",
        lambda p: ["report", "--format", "md", "--out", "-", "--results", p.stored],
        (0,),
        "Permission denied",
        lambda p: closed_folder(newest(p.stored)),
    ),
    Try(
        "a report with closed facts",
        lambda p: ["report", "--format", "html", "--out", p.own / "x.html", "--results", p.stored],
        (0,),
        "",
        lambda p: closed_file(newest(p.stored) / "facts.json"),
    ),
    Try(
        "figures into a folder of another",
        lambda p: ["report", "--format", "svg", "--out", p.fixed / "f", "--results", p.stored],
        (2,),
        "cannot write",
    ),
    Try("analyze", lambda p: ["analyze", "--all", "--results", p.stored], (0,)),
    Try(
        "analyze with closed facts",
        lambda p: ["analyze", "--all", "--quiet", "--results", p.stored],
        (1,),
        "",
        lambda p: closed_file(newest(p.stored) / "facts.json"),
    ),
    Try(
        "save a record of another",
        lambda p: ["analyze", newest(p.stored).name, "--save", "--results", p.stored],
        (1,),
        "cannot store the result",
        lambda p: spoilt_rules(newest(p.stored)),
    ),
    Try(
        "remove a run of another",
        lambda p: ["rm", newest(p.stored).name, "--yes", "--results", p.stored],
        (1,),
        "cannot remove",
    ),
    Try(
        "remove an own run",
        lambda p: ["rm", newest(p.copy_of_stored()).name, "--yes", "--results", p.own / "results"],
        (0,),
    ),
    Try(
        "resume from results of another",
        lambda p: ["sweep", p.images, *TINY, "--loader", "serial", "--resume", "--results", p.stored],
        (2,),
        "Permission denied",
    ),
    Try(
        "a trace into a folder of another",
        lambda p: ["trace", newest(p.stored).name, "--out", p.fixed / "x.gz", "--results", p.stored],
        (2,),
        "cannot write",
    ),
    Try(
        "scan closed images", lambda p: ["dataset", "scan", p.images], (0, 1, 2), "", lambda p: closed_folder(p.images)
    ),
    Try(
        "derive into a folder of another",
        lambda p: ["dataset", "derive", p.images, "--res", "64", "--out", p.fixed / "d"],
        (1, 2),
    ),
    Try(
        "convert within images of another",
        lambda p: ["dataset", "convert", p.images, "--to", "wds"],
        (1, 2),
        "Permission denied",
    ),
    Try(
        "make into a folder of another",
        lambda p: ["dataset", "make", "--res", "64", "--num-images", "4", "--out", p.fixed / "m"],
        (1, 2),
        "Permission denied",
    ),
    Try("gaps of a closed trace", lambda p: ["gaps", p.closed / "x.json"], (1, 2)),
    Try(
        "compare with closed images",
        lambda p: ["compare", f"a={p.images}", f"b={p.closed}", *TINY, "--results", p.own / "r"],
        (1, 2),
    ),
    Try(
        "a closed study file",
        lambda p: ["sweep", p.fixed / "x.toml", "--results", p.own / "r"],
        (1, 2),
        "",
        lambda p: ((p.fixed / "x.toml").write_text("[study]\n"), closed_file(p.fixed / "x.toml")),
    ),
    Try("doctor", lambda p: ["doctor"], (0, 1)),
]


def spoilt_rules(folder: Path) -> None:
    record = json.loads((folder / "run.json").read_bytes())
    (folder / "run.json").write_text(json.dumps({**record, "rules_version": 0}))


def test_there_are_enough() -> None:
    assert len(TRIES) >= 20 and len({one.name for one in TRIES}) == len(TRIES)


@pytest.mark.parametrize("one", TRIES, ids=lambda one: one.name)
def test_what_an_ordinary_user_may_not_do_is_said(one: Try, place: Place) -> None:
    one.before(place)
    variables = {"HOME": str(place.own), "TMPDIR": str(place.own)}
    command = Command(one.arguments(place), wrapper=as_nobody(), variables=variables)
    ended = command.end(HANGS_S)
    print(f"{one.name}: exit {ended.code}, {ended.wall_s:.0f} s: {(ended.err.strip() or ended.out.strip())[-300:]}")
    assert left(ended.token, 12) == []
    assert one_clear_line(ended, one.codes, lines=2 if "report" in one.name or "figures" in one.name else 1) is None
    assert one.says in " ".join((ended.out + ended.err).split())


def test_a_converted_set_of_another_is_read(place: Place) -> None:
    convert_dataset(place.images, "wds", place.fixed / "wds", shard_images=10, processes=1)
    command = Command(["dataset", "scan", place.fixed / "wds"], wrapper=as_nobody(), variables={"HOME": str(place.own)})
    assert one_clear_line(command.end(HANGS_S), (0,)) is None
