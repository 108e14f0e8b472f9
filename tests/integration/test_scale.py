import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale.py"


def measured(tmp_path: Path, num_files: int, loaders: str) -> dict[str, Any]:
    """The figures of benchmarks/scale.py; it removes its tree at the end."""
    out = tmp_path / "scale.json"
    flags = ["--files", str(num_files), "--folder", str(tmp_path), "--loaders", loaders, "--workers", "2"]
    subprocess.run([sys.executable, str(SCRIPT), *flags, "--json", str(out)], check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == ["scale.json"]
    facts: dict[str, Any] = json.loads(out.read_text())
    return facts


def check(facts: dict[str, Any], num_files: int) -> None:
    # Names such as n01440764/n01440764_00000.JPEG of 30 bytes; int64 offset and size, int32 label.
    expected = 30 * num_files + 8 * (num_files + 1) + 8 * num_files + 4 * num_files
    assert facts["listed"]["index_bytes"] == facts["kept"]["index_bytes"] == expected
    assert facts["listed"]["files"] == facts["kept"]["files"] == num_files
    for one in facts["loaders"].values():
        assert one["growth_bytes"]["worker"]["private"] < 10_000_000  # torch's own differs by 3 MB from run to run
        assert one["seconds"]["list"] < 2


@pytest.mark.slow
@pytest.mark.parametrize("num_files", [4_000, 20_000])
def test_thousands_of_files(num_files: int, tmp_path: Path) -> None:
    check(measured(tmp_path, num_files, "multiprocess:fork"), num_files)


@pytest.mark.timeout(900)
@pytest.mark.slow  # 1.3 million links are made and removed, and all of them opened: 2 minutes
def test_as_many_files_as_imagenet(tmp_path: Path) -> None:
    facts = measured(tmp_path, 1_300_000, "multiprocess:fork,multiprocess:spawn")
    check(facts, 1_300_000)
    assert facts["listed"]["index_bytes"] <= 150e6
    seconds = facts["loaders"]["multiprocess:fork"]["seconds"]
    assert seconds["list"] + seconds["first_batch"] < 5  # 0.5 s here when idle; the imports between them are torch's
    assert facts["listed"]["peak_rss_growth_bytes"] < 150e6
