from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter. Those of pytest are the user's alone, and each new pytest sets that again."""
    folder = Path(tempfile.mkdtemp(prefix="loaderbench-campaign-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
