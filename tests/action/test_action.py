"""The steps of the GitHub Action, run here as the action runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, time
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, index):
        time.sleep({seconds})
        return index
for batch in DataLoader(Slow(), 4):
    time.sleep(0.002)
"""


def steps() -> dict[str, tuple[str, dict[str, str]]]:
    """Name → (what it runs, its variables), of the steps of action.yml that run something."""
    found = {}
    for text in (ROOT / "action.yml").read_text().split("    - name: ")[1:]:
        command = re.search(r"      run: (.*)", text)
        variables = dict(re.findall(r"        (\w+): (\$\{\{ .* \}\}.*)", text))
        assert command is not None
        found[text.splitlines()[0]] = command[1], variables
    return found


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=n", "-c", "user.email=n@n")
    done = subprocess.run(["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def made(folder: Path, base_s: float, head_s: float) -> tuple[str, str]:
    """A repository with a script of two speeds: its commits."""
    folder.mkdir()
    git(folder, "init", "-q")
    commits = []
    for seconds in (base_s, head_s):
        (folder / "train.py").write_text(SCRIPT.format(seconds=seconds))
        git(folder, "add", ".")
        git(folder, "commit", "--allow-empty", "-qm", "one")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits[0], commits[1]


def act(folder: Path, inputs: dict[str, str], runner: Path, **more: str) -> dict[str, subprocess.CompletedProcess[str]]:
    """Run the action's steps as GitHub does: until one fails, but for those that always run."""
    (runner / "bin").mkdir(parents=True, exist_ok=True)
    python = runner / "bin" / "python"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
    done: dict[str, subprocess.CompletedProcess[str]] = {}
    for name, (command, variables) in steps().items():
        failed = any(one.returncode for one in done.values())
        if name == "Install" or (failed and name != "Comment"):
            continue
        if name == "Measure in turns" and "measure=true" not in (runner / "output").read_text():
            continue
        given = {
            key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], value).replace(
                "${{ runner.temp }}", str(runner)
            )
            for key, value in variables.items()
        }
        environ = {
            **os.environ, "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_OUTPUT": str(runner / "output"),
            "GITHUB_STEP_SUMMARY": str(runner / "summary.md"), "PYTHONPATH": str(ROOT), **given, **more,
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }  # fmt: skip
        words = ["bash", "-c", command]
        done[name] = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done


@pytest.fixture
def github() -> Iterator[Any]:
    """A server that keeps the comments of a pull request, as GitHub's API does."""
    comments: list[dict[str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        def _answer(self, value: object, code: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.end_headers()
            self.wfile.write(data)

        def _body(self) -> str:
            return str(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"])

        def do_GET(self) -> None:
            self._answer(comments)

        def do_POST(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer secret"
            if allowed:
                comments.append({"body": self._body(), "url": f"{found.url}/comment/{len(comments)}"})
            self._answer({}, 201 if allowed else 403)

        def do_PATCH(self) -> None:
            comments[int(self.path.rpartition("/")[2])]["body"] = self._body()
            self._answer({})

        def log_message(self, *said: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answers)
    found = SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", comments=comments)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def inputs(base: str, head: str, **more: str) -> dict[str, str]:
    given = {"command": "loaderbench watch train.py", "limit": "0.05", "rounds": "2", "setup": "", "token": "secret"}
    return {**given, "base": base, "head": head, **more}


def event(folder: Path, github: Any) -> dict[str, str]:
    (folder / "event.json").write_text(json.dumps({"pull_request": {"number": 7}}))
    return {
        "GITHUB_EVENT_PATH": str(folder / "event.json"), "GITHUB_REPOSITORY": "o/r", "GITHUB_API_URL": github.url,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_slower_head_fails_and_is_commented_once(tmp_path: Path, github: Any) -> None:
    base, head = made(tmp_path / "repo", 0.001, 0.006)
    more = event(tmp_path, github)

    done = act(tmp_path / "repo", inputs(base, head), tmp_path / "runner", **more)

    turns = done["Measure in turns"]
    assert turns.returncode == 1, turns.stderr
    assert "regression=true" in (tmp_path / "runner/output").read_text()
    (comment,) = [one["body"] for one in github.comments]
    assert "**Slower: 0." in comment and "| train.py DataLoader" in comment and "What to try next" in comment
    facts = json.loads((tmp_path / "runner/loaderbench/comparison.json").read_text())
    (pair,) = facts["pairs"]
    assert pair["ratio"]["high"] < 0.95 and pair["ratio"]["low"] < pair["ratio"]["value"]
    assert (tmp_path / "runner/summary.md").read_text() in comment
    python = [sys.executable, str(ROOT / "action/comment.py"), str(tmp_path / "runner/loaderbench/comment.md")]
    subprocess.run(python, env={**os.environ, **more, "GITHUB_TOKEN": "secret"}, check=True)
    assert len(github.comments) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_equal_head_passes_and_a_limit_that_the_interval_holds_too(tmp_path: Path, github: Any) -> None:
    base, head = made(tmp_path / "repo", 0.004, 0.004)
    done = act(tmp_path / "repo", inputs(base, head, limit="0.3"), tmp_path / "runner", **event(tmp_path, github))
    turns = done["Measure in turns"]
    assert turns.returncode == 0, turns.stderr
    assert "**Slower" not in github.comments[0]["body"]


def test_a_head_that_does_not_run_fails_and_is_said(tmp_path: Path, github: Any) -> None:
    base, _ = made(tmp_path / "repo", 0.004, 0.004)
    given = inputs(base, base, setup="echo broken >&2; exit 3", rounds="2")
    done = act(tmp_path / "repo", given, tmp_path / "runner", **event(tmp_path, github))
    assert done["Measure in turns"].returncode == 1
    assert "**The head could not be measured.**" in github.comments[0]["body"]
    assert "broken" in github.comments[0]["body"] and "regression=unknown" in (tmp_path / "runner/output").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_base_that_does_not_run_fails_nothing(tmp_path: Path, github: Any) -> None:
    _, head = made(tmp_path / "repo", 0.001, 0.001)
    (tmp_path / "repo" / "train.py").unlink()
    git(tmp_path / "repo", "commit", "-qam", "none")
    base = git(tmp_path / "repo", "rev-parse", "HEAD")
    done = act(tmp_path / "repo", inputs(base, head), tmp_path / "runner", **event(tmp_path, github))
    assert done["Measure in turns"].returncode == 0
    assert "**The base could not be measured.** So nothing is compared" in github.comments[0]["body"]


@pytest.mark.parametrize("base", ["", "0" * 40])
def test_an_event_without_a_base_is_a_line_in_the_summary(base: str, tmp_path: Path, github: Any) -> None:
    _, head = made(tmp_path / "repo", 0.004, 0.004)
    done = act(tmp_path / "repo", inputs(base, head), tmp_path / "runner", **event(tmp_path, github))
    assert {name: one.returncode for name, one in done.items()} == {"Check out both sides": 0, "Comment": 0}
    assert "nothing is compared" in (tmp_path / "runner/summary.md").read_text() and github.comments == []


def test_a_base_that_the_checkout_lacks_is_fetched(tmp_path: Path, github: Any) -> None:
    base, head = made(tmp_path / "repo", 0.001, 0.004)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path / 'repo'}", "shallow")
    given = inputs(base, head, setup="exit 3")
    done = act(tmp_path / "shallow", given, tmp_path / "runner", **event(tmp_path, github))
    assert done["Check out both sides"].returncode == 0, done["Check out both sides"].stderr
    assert "0.001" in (tmp_path / "runner/loaderbench/sides/base" / "train.py").read_text()


def test_a_wrong_request_is_one_line(tmp_path: Path, github: Any) -> None:
    base, head = made(tmp_path / "repo", 0.004, 0.004)
    for number, (name, value, said) in enumerate([
        ("command", "python train.py", "must be `loaderbench run`, `sweep` or `watch`"),
        ("limit", "5", "the limit must be a fraction"),
    ]):  # fmt: skip
        runner = tmp_path / f"runner{number}"
        done = act(tmp_path / "repo", inputs(base, head, **{name: value}), runner, **event(tmp_path, github))
        turns = done["Measure in turns"]
        assert turns.returncode == 2 and said in turns.stderr and len(turns.stderr.splitlines()) == 1
    done = act(tmp_path / "repo", inputs("1" * 40, head), tmp_path / "runner9", **event(tmp_path, github))
    assert done["Check out both sides"].returncode == 2 and "fetch-depth" in done["Check out both sides"].stderr


def test_a_token_that_may_not_write_fails_nothing(tmp_path: Path, github: Any) -> None:
    (tmp_path / "comment.md").write_text("<!-- loaderbench -->\ntext")
    environ = {**os.environ, **event(tmp_path, github), "GITHUB_TOKEN": "other"}
    command = [sys.executable, str(ROOT / "action/comment.py"), str(tmp_path / "comment.md")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "pull-requests: write" in done.stdout and github.comments == []


def test_the_documented_workflow_names_inputs_of_the_action() -> None:
    text = (ROOT / "action.yml").read_text()
    given = set(re.findall(r"^  (\w+):$", text[text.index("inputs:") : text.index("outputs:")], re.M))
    example = (ROOT / "docs/trackers.md").read_text().split("uses: loaderbench/")[1].split("```")[0]
    assert set(re.findall(r"^          (\w+):", example, re.M)) <= given
    used = set(re.findall(r"inputs\.(\w+)", text))
    assert used == given
