"""What somebody put into a folder of images: no link in it leads a write elsewhere, and nothing is waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderbench.errors import ConfigError
from loaderbench.images.convert import convert_dataset
from loaderbench.images.derive import derive_dataset
from loaderbench.images.shards import folder_inside, open_data_set
from loaderbench.images.synthesize import make_dataset

PRECIOUS = "what nobody asked to change\n"


def convert(images: Path, folder: Path) -> None:
    convert_dataset(images, "wds", folder, processes=1)


def derive(images: Path, folder: Path) -> None:
    derive_dataset(images, [32], folder, processes=1)


def make(images: Path, folder: Path) -> None:
    make_dataset(folder, [32], 4, processes=1)


Command = Callable[[Path, Path], None]
COMMANDS: tuple[Command, ...] = (convert, derive, make)
WRITTEN: tuple[tuple[Command, str], ...] = (
    (convert, ".loaderbench-converted.json.partial.part"),
    (convert, ".loaderbench-converted.npz"),
    (derive, "32/.loaderbench-derived.json.part"),
    (make, "32/.loaderbench-generated.json.partial.part"),
)
"""Names below the folder that a command writes to, all of which begin as our own files do."""
READ: tuple[tuple[Command, str], ...] = (
    (convert, ".loaderbench-converted.json"),
    (convert, ".loaderbench-converted.json.partial"),
    (derive, "32/.loaderbench-derived.json"),
    (make, "32/.loaderbench-generated.json"),
    (make, "32/.loaderbench-generated.json.partial"),
)


def planted(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize(("command", "name"), WRITTEN)
def test_a_link_leads_no_write_out_of_the_folder(command: Command, name: str, own_tree: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text(PRECIOUS)
    planted(tmp_path / "out", name).symlink_to(victim)
    command(own_tree, tmp_path / "out")
    assert victim.read_text() == PRECIOUS
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]


def test_the_hidden_folder_of_a_conversion_is_no_way_out_either(own_tree: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text(PRECIOUS)
    planted(folder_inside(own_tree, "wds"), ".loaderbench-converted.json.partial.part").symlink_to(victim)
    convert_dataset(own_tree, "wds", processes=1)
    assert victim.read_text() == PRECIOUS
    assert open_data_set(str(own_tree), "wds").shards is not None


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_lock_that_is_no_file_is_refused(command: Command, kind: str, own_tree: Path, tmp_path: Path) -> None:
    lock = planted(tmp_path / "out", ".loaderbench-lock")
    if kind == "link":
        lock.symlink_to(tmp_path / "made by us")
    else:
        os.mkfifo(lock)
    with pytest.raises(ConfigError, match="cannot write"):
        command(own_tree, tmp_path / "out")
    assert not (tmp_path / "made by us").exists()


@pytest.mark.parametrize(("command", "name"), READ)
@pytest.mark.parametrize("kind", ["pipe", "device", "list", "deep"])
def test_a_record_that_is_none_is_refused(
    command: Command, name: str, kind: str, own_tree: Path, tmp_path: Path
) -> None:
    record = planted(tmp_path / "out", name)
    if kind == "pipe":
        os.mkfifo(record)
    elif kind == "device":
        record.symlink_to("/dev/zero")
    else:
        record.write_text({"list": "[]", "deep": "[" * 99_999}[kind])
    with pytest.raises(ConfigError, match="is damaged; remove"):
        command(own_tree, tmp_path / "out")


def test_a_pipe_among_images_is_not_waited_for(own_tree: Path) -> None:
    os.mkfifo(own_tree / ".loaderbench-converted.json")
    with pytest.raises(ConfigError, match="is damaged; remove"):
        open_data_set(str(own_tree), None)
