"""The fixture `loader_rate`, in a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import sys, time

class Slow:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(0.004)
        return index

class Batches:
    def __iter__(self):
        for number in range(20):
            time.sleep(0.004)
            yield [number] * 8

def test_light(loader_rate):
    rate = loader_rate(Slow(), seconds=0.5)
    assert rate.low <= rate.value <= rate.high and 0 < rate.value <= 250
    assert rate.at_least(rate.value) is rate
    assert rate.at_least(rate.high) is rate
    assert "torch" not in sys.modules

def test_slow(loader_rate):
    loader_rate(Slow(), seconds=0.5).at_least(1000)

def test_batches(loader_rate):
    assert 0 < loader_rate(Batches(), seconds=0.5).value <= 2000

def test_once(loader_rate):
    assert 0 < loader_rate(iter(Batches()), seconds=5).value <= 2000

def test_undecided(loader_rate):
    rate = loader_rate(Slow(), seconds=0.5)
    rate.at_least(rate.high)

def test_too_short(loader_rate):
    loader_rate([1])

def test_no_data(loader_rate):
    loader_rate(5)
"""


def ended(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "loaderbench.pytest_plugin", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_it_fails_only_where_the_whole_interval_is_below(tmp_path: Path) -> None:
    (tmp_path / "test_rates.py").write_text(TESTS)
    done = ended(tmp_path, "-q", "--junitxml=out.xml")
    assert "3 failed, 4 passed" in done.stdout, done.stdout
    assert re.search(r"Failed: \d+ samples/s \(\d+ – \d+\) is below 1,000 samples/s", done.stdout)
    assert "at least two batches, or samples, a pass" in done.stdout
    assert "takes a data set, a DataLoader or another iterable, not int" in done.stdout
    assert "pytest_plugin.py:" not in done.stdout  # the test's own line is what fails
    assert len(re.findall(r"not decided: \d+ samples/s", done.stdout)) >= 2
    listed = done.stdout.split("= loader_rate =")[1]
    assert len(re.findall(r"test_rates.py::test_\w+  [\d,]+ samples/s \(", listed)) == 5
    assert 'name="loader_rate"' in (tmp_path / "out.xml").read_text()


def test_who_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text(
        "import sys\ndef test_none():\n"
        "    own = {name for name in sys.modules if name.startswith('loaderbench')}\n"
        "    assert own == {'loaderbench', 'loaderbench.pytest_plugin'}\n"
        "    assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    done = ended(tmp_path, "-q")
    assert "1 passed" in done.stdout and "loader_rate" not in done.stdout


def test_it_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"loaderbench": "loaderbench.pytest_plugin"}
