"""A report as Markdown, for a pull request: verdicts first, then the tables, folded."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loaderbench import __version__
from loaderbench.reporting.report import Report
from loaderbench.reporting.result import Result, Section, Table


def render_markdown(report: Report) -> str:
    """The report's Markdown text (GitHub's flavour; plain tables elsewhere)."""
    lines = [f"## {_plain(report.title)}", ""]
    lines += [f"- **{_plain(part.result.title)}**: {_plain(part.headline)}" for part in report.parts]
    lines += [] if report.parts else ["- no run ended well"]
    for part in report.parts:
        lines += section(part.result, part.sections)
    if report.predictions is not None:
        lines += [*section(report.predictions, report.predictions.remarks), _plain(report.predictions.headline), ""]
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


def section(result: Result, sections: Sequence[Section], lead: Sequence[str] = ()) -> list[str]:
    """Its title, what was asked for, `lead` in bold, tables (folded but for the first), sections and code."""
    lines = ["", f"### {_plain(result.title)}", ""]
    lines += [_plain(" · ".join(result.settings)), ""] if result.settings else []
    for line in lead:
        lines += [f"**{_plain(line)}**", ""]
    for number, table in enumerate(result.tables):
        text = _table(table)
        if number:
            text = ["<details>", f"<summary>{_plain(table.title)}</summary>", "", *text, "", "</details>"]
        lines += [*text, ""]
    for heading, found in sections:
        lines += [f"**{_plain(heading)}**", "", *(f"- {_plain(line)}" for line in found), ""]
    for heading, code in result.code:
        lines += [f"**{heading}**", "", "```", code, "```", ""]
    return lines


def _table(table: Table) -> list[str]:
    rule = [":--" if column.left else "--:" for column in table.columns]
    rows = [[column.name for column in table.columns], rule, *table.texts]
    lines = ["| " + " | ".join(cell if row is rule else _plain(cell) for cell in row) + " |" for row in rows]
    return [*lines, "", f"*{_plain(table.note)}*"] if table.note else lines


def _plain(text: str) -> str:
    """Escapes markup in names: `[a](b)` and `<script>` are shown literally."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
