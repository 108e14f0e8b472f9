"""A result as a piece of HTML that needs nothing else."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import TYPE_CHECKING

from loaderbench.reporting.figures import COLOURS, svg

if TYPE_CHECKING:
    from loaderbench.reporting.result import Column, Result, Table

DARK = ('body[data-jp-theme-light="false"]', "body.vscode-dark", "body.vscode-high-contrast", "html[data-theme=dark]")
"""What JupyterLab, VS Code and pages of documentation set on dark; where none is set, the browser's preference says."""
LIGHT = ('body[data-jp-theme-light="true"]', "body.vscode-light", "html[data-theme=light]")
RULES = (
    ".loaderbench { background: var(--page); color: var(--ink); padding: 0.1em 0.8em }",
    ".loaderbench table { color: inherit; border-collapse: collapse; background: none }",
    ".loaderbench tr, .loaderbench td, .loaderbench th { background: none }",
    ".loaderbench td, .loaderbench th { padding: 0.15em 0.6em; border-bottom: 1px solid var(--line) }",
    ".loaderbench caption { text-align: left; color: var(--soft) }",
    ".loaderbench pre { background: none; color: inherit }",
    ".loaderbench svg { max-width: 100%; height: auto }",
)


@cache
def _style() -> str:
    """The colours of both modes, for our piece alone."""
    light, dark = (" ".join(f"--{name}: {both[mode]};" for name, both in COLOURS.items()) for mode in (0, 1))
    of_light, of_dark = (", ".join(f"{where} .loaderbench" for where in one) for one in (LIGHT, DARK))
    return "\n".join(
        [
            f".loaderbench {{ {light} }}",
            f"@media (prefers-color-scheme: dark) {{ .loaderbench {{ {dark} }} }}",
            f"{of_light} {{ {light} }}",
            f"{of_dark} {{ {dark} }}",
            *RULES,
        ]
    )


def html(result: Result) -> str:
    """A piece of a page, with its figures: what a notebook shows, on light and on dark, without a network."""
    parts = [f'<div class="loaderbench"><style>{_style()}</style>', f"<h3>{escape(result.title)}</h3>"]
    parts.append(f"<p>{escape(' · '.join(result.settings))}</p>")
    parts += [f"<p><b>{escape(line)}</b></p>" for line in result.answer]
    parts += map(svg, result.draw())
    parts += map(_table, result.tables)
    for heading, lines in result.remarks:
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(f"<h4>{escape(heading)}</h4><ul>{items}</ul>")
    parts += [f"<h4>{escape(heading)}</h4><pre>{escape(text)}</pre>" for heading, text in result.code]
    return "\n".join([*parts, "</div>"])


def _table(table: Table) -> str:
    def cells(tag: str, texts: list[str], columns: list[Column]) -> str:
        sides = ["left" if column.left else "right" for column in columns]
        row = (
            f'<{tag} style="text-align: {side}">{escape(text)}</{tag}>' for side, text in zip(sides, texts, strict=True)
        )
        return f"<tr>{''.join(row)}</tr>"

    columns = list(table.columns)
    rows = [cells("th", [column.name for column in columns], columns)]
    rows += [cells("td", texts, columns) for texts in table.texts]
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return f"<table><caption>{escape(table.title)}</caption>{''.join(rows)}</table>{note}"
