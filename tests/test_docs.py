"""The documentation keeps up with the code."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import TINY, records, run, run_script

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.commands.app import GROUPS, commands

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_example_loader_runs_as_a_package_of_somebody_else(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    metadata = site / "plain_loader-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copytree(ROOT / "docs/examples/plain_loader", site / "plain_loader")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-loader\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[loaderbench.loaders]\nplain = plain_loader:PLUGIN\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))

    ended = run("run", small_set / "96", "--loader", "plain", *TINY, "--results", tmp_path / "results")

    assert ended.code == 0, ended.err
    (record,) = records(tmp_path / "results")
    assert record["case"]["loader"] == "plain"
    assert record["throughput"]["value"] > 0
    unknown = run("run", small_set / "96", "--loader", "plane", "--dry-run")
    assert unknown.code == 2
    assert "plain" in unknown.err


@pytest.mark.slow  # a run, a sweep and a comparison: 10 s
def test_the_examples_of_python_run(small_set: Path, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)
    assert len(examples) == 3
    (tmp_path / "photos").symlink_to(small_set / "96")

    (tmp_path / "examples.py").write_text("\n".join(examples))

    ended = run_script(tmp_path / "examples.py", folder=tmp_path)

    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("ok ") and len(records(tmp_path / "results")) == 3
    assert re.fullmatch(r"serial \d+ images/s \w+", lines[2]) and re.fullmatch(r"threaded \d+ images/s \w+", lines[3])
    assert lines[-1] == f"{RULES_VERSION} {records(tmp_path / 'results')[-1]['verdict']['bottleneck']}"


@pytest.mark.slow  # 4 s, and only where `make docs` has installed what it needs
def test_the_site_is_built_and_a_dead_link_ends_it(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make docs installs it")
    names = {*subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.split("\n")}
    copied = [name for name in names if re.match(r"(docs/|mkdocs|results/reference/README|[A-Z]+\.md)", name)]
    for name in copied:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]

    assert subprocess.run(build, cwd=tmp_path, stderr=subprocess.PIPE, text=True).returncode == 0
    site = tmp_path / "build/site"
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")} and (site / "search/search_index.json").is_file()
    home = (site / "index.html").read_text()
    assert all(f'href="{page}.html' in home for page in pages)

    with (tmp_path / "docs/report.md").open("a") as page:
        page.write("\n[gone](nowhere.md)\n")
    broken = subprocess.run(build, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert broken.returncode != 0 and "nowhere.md" in broken.stderr


# -- the README ---------------------------------------------------------------------------------------------

README = (ROOT / "README.md").read_text()


def test_the_readme_is_short_and_its_picture_comes_first() -> None:
    lines = README.splitlines()
    assert len(lines) <= 90
    assert lines[1].startswith("![") and (ROOT / lines[1].rpartition("(")[2].rstrip(")")).is_file()


def test_what_the_readme_tells_to_type_exists() -> None:
    named = {one.group(1) for one in re.finditer(r"^\$? ?loaderbench ([a-z]+)", README, re.MULTILINE)}
    table = re.findall(r"^\| [^|]* \| ([^|]*) \|", README, re.MULTILINE)
    named |= {words.split()[0] for cell in table[2:] for words in re.findall(r"`([a-z][^`]*)`", cell)}
    named -= {"torchrun", "loader_rate"}  # a launcher; a fixture
    of_model = {command.name for command in GROUPS["model"].registered_commands}
    assert len(named) > 20
    assert named <= {*commands(), *GROUPS, *of_model}
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert asked == ["bench", "test"] and set(asked) <= targets
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"loaderbench\[(\w+)\]", README)) <= {*extras}


def test_every_page_is_linked_and_every_link_leads_somewhere() -> None:
    texts = {path: path.read_text() for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]}
    linked = set()
    for path, text in texts.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if "://" in target or target.startswith("mailto:"):
                continue
            name, _, anchor = target.partition("#")
            goal = (path.parent / name).resolve() if name else path
            assert goal.exists(), f"{path.name}: {target}"
            linked.add(goal)
            if anchor and goal in texts:
                titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", texts[goal], flags=re.DOTALL), re.MULTILINE)
                assert anchor in {anchor_of(title) for title in titles}, f"{path.name}: {target}"
    assert set(ROOT.glob("docs/*.md")) <= linked


def anchor_of(title: str) -> str:
    """The anchor that Markdown readers give a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_no_screen_names_a_file_that_the_wheel_lacks() -> None:
    """Docstrings may: who reads the code has a checkout."""
    found = []
    for path in sorted((ROOT / "loaderbench").rglob("*.py")):
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        found += [
            f"{path.name}:{one.lineno}" for one in texts if id(one) not in docs and re.search(r"docs/\w", one.value)
        ]
    made = ("reference.py:", "schema.py:")  # they write files of a checkout
    assert [one for one in found if not one.startswith(made)] == []
