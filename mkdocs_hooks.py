"""Hooks of `make docs`: pages that lie outside docs/, and pages that nobody has put into the navigation yet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "results/reference/README.md": "reference-runs.md",
}
"""File outside docs/ → its page in the site."""
LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the pages that `nav` lacks to its last section."""
    assert config.nav is not None
    listed = set(re.findall(r"[\w./-]+\.md", str(config.nav)))
    pages = [*sorted(path.name for path in Path(config.docs_dir).glob("*.md")), *OUTSIDE.values()]
    (last,) = config.nav[-1].values()
    last.extend(page for page in pages if page not in listed)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links between docs/ and the pages outside of it lead to their places in the site."""
    sources = {page: source for source, page in OUTSIDE.items()}
    source = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def target(link: re.Match[str]) -> str:
        goal = (source.parent / link[1]).resolve()
        if "://" in link[1] or not goal.is_relative_to(ROOT):
            return link[0]
        name = goal.relative_to(ROOT).as_posix()
        if goal.is_dir():  # a folder of examples: its first file
            name = next(path for path in sorted(goal.rglob("*.py"))).relative_to(ROOT).as_posix()
        return f"]({OUTSIDE.get(name, name.removeprefix('docs/'))}{link[2]})"

    return LINK.sub(target, markdown)
