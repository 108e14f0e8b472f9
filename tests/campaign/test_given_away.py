"""Real commands over names that nobody may see: an anonymous report of what they stored holds none of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import commands
import pytest
from commands import TINY, call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NETWORK = """
from torch import nn
class PoisonLinear(nn.Linear): pass
def poison(num_classes=10):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), PoisonLinear(48, num_classes))
def broken(): raise OSError("cannot open 'POISON weights/x y' on hostPOISON")
"""
SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, Dataset
class PoisonFaces(Dataset):
    def __len__(self): return 400
    def __getitem__(self, number):
        time.sleep(0.002)
        return torch.zeros(4)
def poison_collate(samples): return torch.stack(samples)
loaders = [DataLoader(PoisonFaces(), batch_size=4, num_workers=2, collate_fn=poison_collate) for _ in range(2)]
for loader in loaders:
    for batch in loader: time.sleep(0.002)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What runs, a comparison, a watched script, a model's layers and memory, and a run that failed have stored."""
    home = tmp_path_factory.mktemp("POISON home")
    results, photos = home / "results", home / "POISON photos"
    made = commands.run("dataset", "make", "--res", "64", "--num-images", "48", "--out", photos)
    assert made.code == 0, made.err
    folder = next(path for path in (photos / "64").iterdir() if path.is_dir())
    folder = folder.rename(folder.with_name("class POISON"))
    for path in [*folder.iterdir()]:
        path.with_name(f"passport POISON {path.name}").write_bytes(path.read_bytes()[:400])
        path.unlink()
    shutil.copytree(photos / "64", home / "POISON copy")
    (home / "netPOISON.py").write_text(NETWORK)
    (home / "scriptPOISON.py").write_text(SCRIPT)
    of_model = ("netPOISON:poison", "--device", "cpu", "--input-size", "64", "--batch-size", "4")
    for *command, code in (
        ["run", photos / "64", *TINY, "--tag", "tag POISON", "--max-failures", "1", 0],
        ["run", photos / "64", "--device", "cpu", "--model", "netPOISON:broken", "--duration", "1", 2],
        ["compare", f"sidePOISON={photos / '64'}", f"nvme={home / 'POISON copy'}", "--rounds", "1", "--cache", "as-is",
         "--max-failures", "1", *TINY, 0],
        ["watch", "scriptPOISON.py", 0],
        ["model", "layers", *of_model, "--steps", "5", 0],
        ["model", "memory", *of_model, 0],
    ):  # fmt: skip
        script = [command.pop()] if command[0] == "watch" else []
        ended = commands.run(*command, "--results", results, *script, folder=home)
        assert ended.code == code, (command, ended.err)
    return results


@pytest.mark.parametrize("form", ["html", "md", "csv", "svg", "png"])
def test_no_name_of_its_owner_is_in_it(form: str, results: Path, tmp_path: Path) -> None:
    ended = call("report", "--anonymous", "--format", form, "--out", tmp_path / "given", "--results", results)
    assert ended.code == 0 and "POISON" in ended.err
    files = [path for path in (tmp_path / "given", *tmp_path.glob("given/*")) if path.is_file()]
    assert files and not [path.name for path in files if b"poison" in path.read_bytes().lower()]
    assert not [path.name for path in files if "poison" in path.name.lower()]
