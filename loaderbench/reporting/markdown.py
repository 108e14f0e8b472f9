"""A report as Markdown, for a pull request: verdicts first, then the tables, folded."""

from __future__ import annotations

import re

from loaderbench import __version__
from loaderbench.reporting.report import Part, Report
from loaderbench.reporting.tables import Page, Table


def render_markdown(report: Report) -> str:
    """The report's Markdown text (GitHub's flavour; plain tables elsewhere)."""
    lines = [f"## {_plain(report.title)}", ""]
    lines += [f"- **{_plain(part.title)}**: {_plain(part.sentence)}" for part in report.parts]
    lines += [] if report.parts else ["- no run ended well"]
    for part in report.parts:
        lines += _section(part)
    if report.predictions is not None:
        lines += [*_section(report.predictions), _plain(report.predictions.sentence), ""]
    if report.without is not None:
        lines += ["", f"### {report.without.title}", "", *_table(report.without), ""]
    if report.caveats:
        lines += ["<details>", "<summary>Caveats</summary>", ""]
        for severity, caveats in report.caveats:
            lines += [f"**{severity.capitalize()}**", ""]
            lines += [f"- {_plain(line.code)}: {_plain(line.text)} ({line.num_runs} runs)" for line in caveats]
            lines.append("")
        lines += ["</details>", ""]
    lines.append(f"{report.count}; loaderbench {__version__}")
    return "\n".join(lines) + "\n"


def _section(part: Part | Page) -> list[str]:
    lines = ["", f"### {_plain(part.title)}", "", _plain(" · ".join(part.settings)), ""]
    for number, table in enumerate(part.tables):
        text = _table(table)
        if number:
            text = ["<details>", f"<summary>{_plain(table.title)}</summary>", "", *text, "", "</details>"]
        lines += [*text, ""]
    for heading, found in part.findings:
        lines += [f"**{heading}**", "", *(f"- {_plain(line)}" for line in found), ""]
    return lines


def _table(table: Table) -> list[str]:
    rule = [":--" if number < table.num_left else "--:" for number in range(len(table.columns))]
    rows = [[heading for heading, _ in table.columns], rule, *table.rows]
    lines = ["| " + " | ".join(cell if row is rule else _plain(cell) for cell in row) + " |" for row in rows]
    return [*lines, "", f"*{_plain(table.note)}*"] if table.note else lines


def _plain(text: str) -> str:
    """Escapes markup in names: `[a](b)` and `<script>` are shown literally."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
