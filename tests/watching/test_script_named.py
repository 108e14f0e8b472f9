"""What `loaderbench watch` makes of its words: a script, a module, or the right command for something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderbench.commands.script_named import script_named
from loaderbench.errors import ConfigError


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "nb.ipynb", "run.sh", "torchrun"):
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("train.py --python 3", ("train.py", ["--python", "3"], False)),
        ("python train.py --lr 3", ("train.py", ["--lr", "3"], False)),
        ("python3.12 train.py", ("train.py", [], False)),
        ("python -m pkg.train -m 3", ("pkg.train", ["-m", "3"], True)),
    ],
)
def test_python_in_front_is_left_out(words: str, found: tuple[str, list[str], bool]) -> None:
    assert script_named(words.split(), as_module=False) == found


def test_a_module_is_taken_by_its_name() -> None:
    assert script_named(["torchrun", "x"], as_module=True) == ("torchrun", ["x"], True)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("torchrun --nproc-per-node 2 train.py 1", "torchrun --nproc-per-node 2 -m loaderbench watch train.py 1"),
        ("torchrun --nnodes 1 -m pkg.train 1", "torchrun --nnodes 1 -m loaderbench watch -m pkg.train 1"),
        ("accelerate launch --a b train.py", "accelerate launch --a b -m loaderbench watch train.py"),
        ("deepspeed --a b train.py", "deepspeed --a b --module loaderbench watch train.py"),
        ("python -m torch.distributed.run -x train.py", "torch.distributed.run -x -m loaderbench watch train.py"),
        ("nosuchlauncher -n 2 python train.py 1", "nosuchlauncher -n 2 python -m loaderbench watch train.py 1"),
        ("env A=1 python -m pkg.train", "env A=1 python -m loaderbench watch -m pkg.train"),
        ("python -u train.py", "python -u -m loaderbench watch SCRIPT"),
        ("run.sh", "python -m loaderbench watch"),
        ("bash run.sh", "python -m loaderbench watch"),
        ("nb.ipynb", "loaderbench.watch(loader)"),
        ("nosuch.py", "there is no script nosuch.py"),
    ],
)  # fmt: skip
def test_what_is_no_script_is_answered_by_the_right_command(words: str, command: str) -> None:
    with pytest.raises(ConfigError) as raised:
        script_named(words.split(), as_module=False)
    assert command in str(raised.value)
    assert "\n" not in str(raised.value)
