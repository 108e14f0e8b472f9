"""What is run from a cache folder is nobody else's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderbench import native, prefixes
from loaderbench.errors import UnavailableError
from loaderbench.images.files import check_own, make_own_folder, user_cache_folder

STRANGER = 4242


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An own cache folder in an own folder; pytest's own is 0700."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return user_cache_folder()


@pytest.fixture
def prefix(cache: Path) -> Path:
    """A package as `loaderbench install` leaves it."""
    folder = prefixes.folder("pillow-simd")
    make_own_folder(folder / "PIL")
    (folder / "PIL" / "__init__.py").touch(mode=0o644)
    return folder


def given_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def opened(mode: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode)


SPOILED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "another user's": (".", given_away, f"user {STRANGER} owns"),
    "writable by the group": (".", opened(0o770), "other users may write to"),
    "writable by all": (".", opened(0o707), "other users may write to"),
    "sticky, which protects no new file in it": (".", opened(0o1777), "other users may write to"),
    "a file of another user in it": ("PIL/__init__.py", given_away, f"user {STRANGER} owns"),
    "a file in it that all may write": ("PIL/__init__.py", opened(0o666), "other users may write to"),
    "a folder in it that all may write": ("PIL", opened(0o777), "other users may write to"),
    "in another user's folder": ("..", given_away, f"user {STRANGER} owns"),
    "in a folder that all may write": ("..", opened(0o777), "other users may write to"),
    "far below a folder that all may write": ("../../..", opened(0o777), "other users may write to"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_prefix_that_others_could_have_filled_is_refused(prefix: Path, name: str) -> None:
    where, spoil, why = SPOILED[name]
    check_own(prefix)
    spoil((prefix / where).resolve())
    with pytest.raises(UnavailableError, match=why) as told:
        prefixes.prefix_of("pillow-simd")
    assert str((prefix / where).resolve()) in str(told.value) and "XDG_CACHE_HOME" in str(told.value)
    assert len(str(told.value).splitlines()) == 1
    assert prefixes.no_pillow_simd() == str(told.value)
    with pytest.raises(UnavailableError, match=why):  # neither is it called installed
        prefixes.install("pillow-simd", lambda line: None)


def test_below_a_sticky_folder_as_tmp_is_fine(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").chmod(0o1777)
    assert prefixes.prefix_of("pillow-simd") == prefix


def test_links_are_followed_to_whose_they_are(prefix: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    (tmp_path / "cache").rename(foreign / "cache")
    (tmp_path / "cache").symlink_to("foreign/cache")
    check_own(prefix)
    foreign.chmod(0o777)
    with pytest.raises(UnavailableError, match=rf"other users may write to {foreign}"):
        check_own(prefix)
    foreign.chmod(0o700)
    given_away(tmp_path / "cache")
    with pytest.raises(UnavailableError, match=f"user {STRANGER} owns"):
        check_own(prefix)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    check_own(tmp_path / "a" / "c")  # it ends


def test_a_library_is_not_loaded_from_where_others_could_have_put_it(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "answer.c"
    source.write_text("int answer(void) { return 42; }\n")
    try:
        built = native.build(source)
    except UnavailableError as error:
        pytest.skip(str(error))
    for path in (built, built.parent, cache, cache.parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        with pytest.raises(UnavailableError, match=f"other users may write to {path}"):
            native.build(source)
        path.chmod(mode)
    assert native.build(source) == built


def test_own_folders_are_closed_to_others_whatever_the_umask(cache: Path) -> None:
    before = os.umask(0)
    try:
        make_own_folder(cache / "prefixes" / "one")
    finally:
        os.umask(before)
    check_own(cache / "prefixes" / "one")
    check_own(cache / "not" / "there" / "yet")
