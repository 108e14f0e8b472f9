"""What the user names as an output: a file is replaced whole or stays; all else is written into, and stays."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import commands
import pytest
from commands import call

from loaderbench.errors import ConfigError
from loaderbench.recording.output import check_output, is_standard_output, write_output
from loaderbench.recording.store import Store, load_run

DATA = b"new\n" * 5000
NOBODY = 65534


@pytest.fixture(scope="module")
def stored_run(stored_results: Path) -> Path:
    return next(path for path in sorted(stored_results.iterdir()) if path.is_dir())


@pytest.fixture(scope="module")
def results(stored_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one run, which can be drawn."""
    root = tmp_path_factory.mktemp("store")
    shutil.copytree(stored_run, root / stored_run.name)
    return root


WRITING: dict[str, tuple[str, ...]] = {
    "report md": ("report", "--format", "md", "--out"),
    "report csv": ("report", "--format", "csv", "--out"),
    "trace": ("trace", "latest", "--out"),
    "list": ("list", "--json"),
    "analyze": ("analyze", "latest", "--quiet", "--json"),
}
"""Commands that write a file of the user's."""


@pytest.fixture(params=WRITING)
def write(request: pytest.FixtureRequest, results: Path) -> Callable[[Path], commands.Ended]:
    arguments = WRITING[request.param]
    return lambda target: call(*arguments, target, "--results", results)


# -- what is no file ---------------------------------------------------------------------------------------


def device(path: Path) -> Path:
    """A null device of our own: never the machine's."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    return path


def test_a_device_stays_one(write: Callable[[Path], commands.Ended], tmp_path: Path) -> None:
    node = device(tmp_path / "null")
    ended = write(node)
    assert (ended.code, ended.out) == (0, "")
    assert stat.S_ISCHR(node.stat().st_mode) and os.listdir(tmp_path) == ["null"]  # noqa: PTH208


def test_the_reader_of_a_pipe_gets_it(write: Callable[[Path], commands.Ended], tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    ended = write(pipe)
    reader.join(20)
    assert (ended.code, ended.out) == (0, "")
    assert len(got[0]) > 1 and stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_socket_is_refused_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(ConfigError, match="it is a socket"):
            check_output("socket")


def test_an_open_file_of_ours_goes_on_where_it_was(tmp_path: Path) -> None:
    # as of `>(command)`, and of `--json /dev/stdout >>log`
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("ab") as opened:
        assert not write_output(f"/dev/fd/{opened.fileno()}", DATA)
        assert not write_output(f"/proc/self/fd/{opened.fileno()}", b"end")
    assert log.read_bytes() == b"before\n" + DATA + b"end"


@pytest.mark.parametrize("name", ["out", "link"])
def test_standard_output_by_any_name_holds_the_file_and_nothing_else(results: Path, tmp_path: Path, name: str) -> None:
    # a link of our own: a command that replaced it must not spoil the machine's
    target = tmp_path / "out"
    target.symlink_to("/proc/self/fd/1")
    if name == "link":
        (tmp_path / name).symlink_to(target)
        target = tmp_path / name
    script = '"$@" >>log'
    (tmp_path / "log").write_text("before\n")
    ended = commands.run(
        "analyze", "latest", "--json", target, "--results", results, wrapper=("sh", "-c", script, "sh"), folder=tmp_path
    )
    assert ended.code == 0, ended.err
    text = (tmp_path / "log").read_text()
    assert text.startswith("before\n[\n") and text.endswith("]\n") and target.is_symlink()


def test_standard_output_is_known_by_its_names(tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to("/proc/self/fd/2")
    assert is_standard_output("-") and is_standard_output("/dev/fd/1") and is_standard_output(Path("/dev/stdout"))
    for no_such in (None, "", "x.json", "/dev/stderr", "/dev/fd/" + "9" * 5000, tmp_path / "other"):
        assert not is_standard_output(no_such)


# -- what is one -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing"])
def test_a_link_stays_one_and_leads_to_the_new_file(
    write: Callable[[Path], commands.Ended], tmp_path: Path, there: bool
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "links").mkdir()
    file, link = tmp_path / "deep" / "file", tmp_path / "links" / "link"
    if there:
        file.write_text("before")
    (tmp_path / "links" / "first").symlink_to("../deep/file")
    link.symlink_to("first")
    assert write(link).code == 0
    assert link.is_symlink() and file.stat().st_size > 1 and not file.read_bytes().startswith(b"before")
    assert os.listdir(tmp_path / "deep") == ["file"]  # noqa: PTH208


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    file.chmod(0o640)
    assert write_output(file, DATA)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640 and file.read_bytes() == DATA


def test_a_name_as_long_as_the_file_system_takes_it_is_written(tmp_path: Path) -> None:
    assert write_output(tmp_path / ("x" * 255), DATA)


def test_what_lies_at_a_name_of_our_own_is_replaced_and_not_followed(results: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for usual in (results / "report.html", results / "report.csv"):
        usual.symlink_to(mine)
    for kind in ("html", "csv"):
        assert call("report", "--format", kind, "--results", results).code == 0
    assert mine.read_text() == "mine"


def test_a_run_that_calls_itself_a_path_is_drawn_in_this_folder(
    stored_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = Store(tmp_path / "store"), load_run(stored_run)
    folder = store.open_run(run.case)
    folder.write_run(replace(run, run_id="../../mine"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert call("trace", folder.run_id, "--results", store.root).code == 0
    assert os.listdir() == ["mine.perfetto.json.gz"]  # noqa: PTH208
    assert sorted(os.listdir(tmp_path)) == ["a", "store"]  # noqa: PTH208


# -- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no/such/x", "there is no folder"),
        ("folder", "it is a folder"),
        ("file/x", "Not a directory"),
        ("loop", "symbolic links"),
        ("n" * 300, "name too long"),
        ("/proc/self/fd/9999", "no file is open under that number"),
    ],
)
def test_a_place_that_takes_no_file_is_said_in_one_line(
    write: Callable[[Path], commands.Ended], tmp_path: Path, name: str, says: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    ended = write(tmp_path / name)
    assert (ended.code, len(ended.lines)) == (2, 1), ended.err
    assert "cannot write " in ended.err and says in ended.err and "name another file" in ended.err


@pytest.mark.parametrize("arguments", [("report",), ("trace", "latest")])
def test_a_folder_is_no_file_to_write(results: Path, arguments: tuple[str, ...]) -> None:
    ended = call(*arguments, "--out", ".", "--results", results)
    assert (ended.code, len(ended.lines)) == (2, 1) and "it is a folder" in ended.err


def test_a_file_is_whole_or_as_it_was(
    tmp_path: Path, results: Path, write: Callable[[Path], commands.Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link = tmp_path / "x.json", tmp_path / "link.json"
    target.write_text("before")
    link.symlink_to(target)

    def no_sync(descriptor: int) -> None:
        assert target.read_text() == "before", "it is not written over"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_sync)
    ended = write(link)
    (said,) = (line for line in ended.lines if line.startswith("loaderbench: "))
    assert ended.code == 2 and "No space left on device" in said
    assert target.read_text() == "before" and set(os.listdir(tmp_path)) == {"x.json", "link.json"}  # noqa: PTH208


def child(do: Callable[[], object], user: int | None = None, most_bytes: int | None = None) -> int:
    """Do it in a process of its own, as an ordinary user or with a limit on a file's size. Returns how that ended: 0,
    the number of the OSError behind a ConfigError, 255 for a ConfigError without one, or - the signal."""
    pid = os.fork()
    if not pid:
        code = 254
        try:
            if most_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            if user is not None and os.geteuid() == 0:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            do()
            code = 0
        except ConfigError as error:
            code = error.__cause__.errno or 255 if isinstance(error.__cause__, OSError) else 255
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path) -> None:
    # a limit on the size of files is refused by the kernel in the same place as a full disk
    file = tmp_path / "file"
    file.write_text("before")
    assert child(lambda: write_output(file, DATA), most_bytes=4096) == errno.EFBIG
    assert file.read_text() == "before" and os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_a_process_that_is_killed_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")

    def killed() -> None:
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        write_output(file, DATA)

    assert child(killed) == -signal.SIGKILL
    assert file.read_text() == "before"


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that takes no new file of an ordinary user's, with one that may be written over."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's folder that is another's")
    with tempfile.TemporaryDirectory() as name:  # pytest's are for root alone
        folder, file = Path(name), Path(name, "file")
        folder.chmod(0o755)
        file.write_text("before")
        file.chmod(0o666)
        yield folder


def test_where_a_folder_takes_no_new_file_one_is_written_over(closed: Path) -> None:
    file = closed / "file"
    assert child(lambda: write_output(file, DATA), user=NOBODY) == 0
    assert file.read_bytes() == DATA
    assert child(lambda: write_output(file, b"short"), user=NOBODY) == 0
    assert file.read_bytes() == b"short"
    assert child(lambda: write_output(file, DATA), user=NOBODY, most_bytes=4096) == errno.EFBIG
    assert file.read_bytes() == b"short", "space is there before anything is written over"


def test_what_may_not_be_written_is_refused_before_anything_is_done(closed: Path) -> None:
    (closed / "file").chmod(0o644)
    assert child(lambda: check_output(closed / "file"), user=NOBODY) == 255
    assert child(lambda: check_output(closed / "new"), user=NOBODY) == 255


def test_a_file_keeps_its_owner_where_root_writes_it(closed: Path) -> None:
    os.chown(closed / "file", NOBODY, NOBODY)
    write_output(closed / "file", DATA)
    assert (closed / "file").stat().st_uid == NOBODY


def test_a_link_of_another_user_in_a_folder_of_all_is_not_followed(closed: Path) -> None:
    if Path("/proc/sys/fs/protected_symlinks").read_text().strip() != "1":
        pytest.skip("the kernel follows such links")
    place = closed / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    for name, to in (("there", "file"), ("nothing", "planted")):
        (place / name).symlink_to(closed / to)
        os.chown(place / name, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(ConfigError, match="Permission denied"):
            write_output(place / name, DATA)
    assert (closed / "file").read_text() == "before" and not (closed / "planted").exists()


def test_a_file_that_is_a_mount_point_is_written_over(tmp_path: Path) -> None:
    # as one that is passed into a container
    (tmp_path / "outside").write_text("before")
    (tmp_path / "file").touch()
    script = 'mount --bind outside file && exec "$@"'
    wrapper = ("unshare", "--mount", "sh", "-c", script, "sh")
    allowed = os.geteuid() == 0 and not subprocess.run([*wrapper, "true"], cwd=tmp_path, check=False).returncode
    if not allowed:
        pytest.skip("needs mount namespaces")
    ended = commands.run("list", "--results", tmp_path / "none", "--json", "file", wrapper=wrapper, folder=tmp_path)
    assert (ended.code, (tmp_path / "outside").read_text()) == (0, "[]\n"), ended.err
