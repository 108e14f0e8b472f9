"""Nothing of the folder that one stands in is run: neither Python modules nor libraries that lie there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from pictures import write_tree

from loaderbench import native, neutral
from loaderbench.recording.store import Store

MODEL = """
from pathlib import Path
from torch import nn

def make():
    outputs = int(Path("outputs.txt").read_text())
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, outputs))
"""
PROGRAM = str(Path(sysconfig.get_path("scripts"), "loaderbench"))
"""As installed: `python -m loaderbench` itself imports from the current folder, as Python does."""
Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: images, and what ends the process that loads it, under each name that is looked for there."""
    root = tmp_path / "photos"
    write_tree(root, [np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)], [(40, 40)] * 48)
    trap = root / "libcuda.so.1"
    code = "void __attribute__((constructor)) f() { __builtin_trap(); }"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", trap], input=code, text=True, check=True)
    for name in ("multiprocessing", "psutil", "numpy", "torch", "sitecustomize"):
        (root / f"{name}.py").write_text("import os; os._exit(77)\n")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def program() -> Program:
    """`program(ARGUMENTS)`: the installed program, started and not forked, in the current folder."""
    if not Path(PROGRAM).exists():
        pytest.skip("loaderbench is not installed beside this Python")

    def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [PROGRAM, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})

    return run


def test_a_library_in_the_current_folder_would_be_loaded_with_torch(photos: Path) -> None:
    """Else the tests below show nothing. Not every build of torch looks there."""
    done = subprocess.run([sys.executable, "-P", "-c", "import torch"], check=False)
    if done.returncode == 0:
        pytest.skip("this build of torch looks for no library in the current folder")
    assert done.returncode < 0


@pytest.mark.parametrize(
    "arguments",
    [
        (
            "run",
            ".",
            "--device",
            "emulated",
            "--steps",
            "4",
            "--duration",
            "0.5",
            "--batch-size",
            "4",
            "--workers",
            "2",
        ),
        ("model", "memory", "lenet", "--device", "cpu", "--batch-size", "2", "--no-measure"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_measuring_process_loads_no_library_of_the_current_folder(
    arguments: tuple[str, ...], photos: Path, program: Program, tmp_path: Path
) -> None:
    done = program(*arguments, "--results", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr
    if arguments[0] == "run":
        (stored,) = Store(tmp_path / "results").runs()
        assert stored.record is not None and stored.record.case.subject.dataset == str(photos)


def test_ranks_meet_without_loading_a_library_of_the_current_folder(photos: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    meets = (
        "from loaderbench.running.meeting import Meeting; from loaderbench.running.ranks import Rank\n"
        f"with Meeting(Rank(0, 1, 0, 'Slurm'), {place}) as meeting: print(meeting.nodes)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", meets], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str([socket.gethostname()]), done.stderr


def test_a_pool_imports_nothing_from_the_current_folder(photos: Path, program: Program, tmp_path: Path) -> None:
    done = program("dataset", "make", "--res", "32", "--num-images", "40", "--out", str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "set").rglob("*.jpg"))) == 40


@pytest.mark.parametrize("way", ["module here", "relative PYTHONPATH"])
def test_a_model_of_ones_own_is_found_where_one_stands_and_reads_its_files_from_there(
    way: str, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "code").mkdir(parents=True)
    (tmp_path / "here" / "outputs.txt").write_text("10")
    monkeypatch.chdir(tmp_path / "here")
    Path("." if way == "module here" else "code", "own_model.py").write_text(MODEL)
    path = os.pathsep.join(filter(None, ["code", os.environ.get("PYTHONPATH")]))
    env = {} if way == "module here" else {"PYTHONPATH": path}
    asked = ("--device", "cpu", "--batch-size", "2", "--input-size", "32", "--no-measure")
    done = program("model", "memory", "own_model:make", *asked, "--results", "results", env=env)
    assert done.returncode == 0, done.stderr


def test_what_variables_name_is_named_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {
        "PYTHONPATH": ":lib:/usr/lib:.", "LD_LIBRARY_PATH": "/opt/x::", "TORCH_HOME": "weights", "TMPDIR": "/tmp",
        "HF_HUB_CACHE": "hub", "MPLCONFIGDIR": "~/mpl", "DATA_DIR": "s3://bucket/x",
        "LD_PRELOAD": "libx.so:./liby.so ./libz.so", "LD_AUDIT": "./audit.so", "TMP": "tmp",
        "SSL_CERT_FILE": "cert.pem",
        "UV_NO_CACHE": "1", "PYTHONSAFEPATH": "1", "LANG": "C", "EMPTY_DIR": "",
    }  # fmt: skip
    told = neutral.environment(given)
    assert told.pop(neutral.STARTED_IN) == str(tmp_path)
    assert told == {
        **given,
        "PYTHONPATH": f"{tmp_path}/lib:/usr/lib:{tmp_path}/.",
        "LD_LIBRARY_PATH": "/opt/x",
        "TORCH_HOME": f"{tmp_path}/weights",
        "HF_HUB_CACHE": f"{tmp_path}/hub",
        "LD_PRELOAD": f"libx.so:{tmp_path}/./liby.so:{tmp_path}/./libz.so",
        "LD_AUDIT": f"{tmp_path}/./audit.so",
        "TMP": f"{tmp_path}/tmp",
        "SSL_CERT_FILE": f"{tmp_path}/cert.pem",
    }


def test_where_the_package_lies_it_is_found_without_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(neutral.PACKAGES)
    env = neutral.environment({name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    asks = [sys.executable, "-P", "-S", "-c", "import loaderbench; print(loaderbench.__file__)"]
    done = subprocess.run(asks, env=env, cwd=neutral.FOLDER, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(neutral.PACKAGES / "loaderbench" / "__init__.py"), done.stderr


def test_a_current_folder_that_was_removed_hinders_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert neutral.environment({"TORCH_HOME": "weights"}) == {"TORCH_HOME": "weights"}
    with neutral.standing_in():
        assert str(Path.cwd()) == neutral.FOLDER
    with pytest.raises(FileNotFoundError):
        Path.cwd()


def test_the_compiler_may_be_named_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", "./mycc -m64")
    monkeypatch.chdir(tmp_path)
    assert native.compiler() == [f"{tmp_path}/mycc", "-m64"]
