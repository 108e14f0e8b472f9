"""A notebook: results as pages, progress below the cell, the line magic. Run by nbclient in a real kernel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loaderbench.reporting.figures import COLOURS
from loaderbench.reporting.result import Column, Result, Table

ROOT = Path(__file__).resolve().parents[2]
CELLS = [
    "%load_ext loaderbench\nimport loaderbench, time",
    "loaderbench.run('photos', res=96, loader='threaded', workers=1, batch_size=4, duration=1, device='emulated')",
    "batches = loaderbench.watch([[1, 2]] * 400)\nwith batches:\n    for batch in batches:\n        time.sleep(0.006)",
    "loaderbench.show('latest')",
    "loaderbench.sweep('photos', res=96, loader=['serial', 'threaded'], workers=[1], batch_size=4, duration=1, "
    "device='emulated')",
    "loaderbench.whatif('latest', workers=2)",
    "loaderbench.load_run('latest')",
    "%loaderbench watch --results own train.py",
    "%loaderbench list",
    "%loaderbench show nothing",
]
RUNNER = """
import json, sys
import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
notebook = new_notebook(cells=[new_code_cell(text) for text in json.load(sys.stdin)])
client = NotebookClient(notebook, timeout=500, kernel_name="python3", store_widget_state=False)
seen = []
client.on_cell_executed = None
process = client.process_message
def noted(message, cell, cell_index):
    seen.append([cell_index, message["header"]["msg_type"], message["content"].get("data", {}).get("text/html", "")])
    return process(message, cell, cell_index)
client.process_message = noted
client.execute()
print(json.dumps({"cells": [[dict(one) for one in cell.outputs] for cell in notebook.cells], "seen": seen}))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_notebook_shows_pages_progress_and_commands(small_set: Path, tmp_path: Path) -> None:
    import json

    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    (tmp_path / "photos").symlink_to(small_set)
    (tmp_path / "train.py").write_text(
        "import time\nfrom torch.utils.data import DataLoader\n"
        "for one in DataLoader(list(range(900)), 4):\n    time.sleep(0.005)\n"
    )
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FORCE_COLOR": "1",
        "JUPYTER_PLATFORM_DIRS": "1",
        "IPYTHONDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], input=json.dumps(CELLS), cwd=tmp_path, env=environ, capture_output=True,
        text=True, check=False, timeout=590,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    _, run, watched, shown, sweep, whatif, loaded, magic, listed, refused = found["cells"]
    returned = [*run, *shown, *sweep, *whatif, *loaded, *magic]
    pages = [one["data"]["text/html"] for one in returned if one["output_type"] == "execute_result"]
    pages += [one["data"]["text/html"] for one in watched if "<div" in one.get("data", {}).get("text/html", "")]
    assert len(pages) == 7 and all(page.startswith('<div class="loaderbench">') for page in pages)
    assert not [one for one in watched if one.get("name") == "stderr"]  # which a notebook shows as an error
    assert not any("\x1b" in html for _, _, html in found["seen"])
    for number, word in ((1, "images/s"), (2, "watch: ")):
        updates = [html for cell, kind, html in found["seen"] if cell == number and kind.endswith("display_data")]
        assert any(word in html for html in updates), (number, updates)
    texts = ["".join(one.get("text", "") for one in outputs) for outputs in (listed, refused)]
    assert "session" in texts[0] and "\x1b" not in texts[0]
    assert "loaderbench:" in texts[1]
    assert "Traceback" not in done.stdout


def test_a_page_needs_no_network_and_has_both_modes() -> None:
    table = Table("Rates", (Column("side", left=True), Column("images/s")), [("<a>", 3.5)])
    page = Result("<one>", ["b"], ["Fast."], [table])._repr_html_()
    assert "&lt;one&gt;" in page and "&lt;a&gt;" in page and "<one>" not in page
    assert not re.search(r"https?:|src=|url\(|@import", page)
    light, dark = COLOURS["page"]
    assert f"--page: {light}" in page and f"--page: {dark}" in page
    for where in ("prefers-color-scheme: dark", 'data-jp-theme-light="false"', 'data-jp-theme-light="true"'):
        assert where in page
