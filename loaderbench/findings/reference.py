"""The reference of findings, docs/findings.md. `python -m loaderbench.findings.reference` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from loaderbench.findings.row import FIGURE, INFORMATION, VERDICT, Row
from loaderbench.findings.table import SECTIONS, words

REFERENCE_FILE = Path(__file__).parents[2] / "docs/findings.md"
INTRODUCTION = """# Findings

Everything that loaderbench reports under a fixed code, with the sentences that it prints. The figures are examples.
`python -m loaderbench.findings.reference` writes this page from the table in `loaderbench/findings/`."""
ABOUT = {
    "Caveats": "What to know before trusting a figure: `caveats` in the record. `loaderbench show RUN --caveats` "
    "prints all of a run's caveats.",
    "Reasons": "Why a verdict is undetermined or mixed: `verdict.reasons` in the record.",
    "Trace faults": "Why a kernel trace is incomplete: the details of the caveat `trace_incomplete`.",
    "Advice": "What to try: `verdict.advice` in the record ([how to read a verdict](reading-a-verdict.md)).",
    "Advice for a watched script": "The same, from `loaderbench watch` ([your own training](watch.md)).",
    "Why advice was not verified": "`not_verified` of advice, after `--verify`.",
    "Evidence": "Lines of evidence that have a code.",
    "Notes on a watched script": "`notes` in the record.",
    "Notes of a comparison": "What `loaderbench compare` skipped or changed.",
    "Limits of a capacity study": "`caveats` in the findings of `loaderbench capacity`.",
    "What a what-if assumes": "`assumed` in the findings of `loaderbench whatif`, which hold the sentence.",
    "What attach says of a job": "Sentences of the findings of `loaderbench attach`.",
    "Why a figure is missing": "`missing` of a study, and `no_...` fields: these hold the sentence, not the code.",
}
"""Section → what it is about."""
SEVERITIES = {
    VERDICT: "Changes the verdict: check these first",
    FIGURE: "Limits a figure: it is null, or less certain than it could be",
    INFORMATION: "For your information",
}


def reference_text() -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION]
    for title, rows in SECTIONS.items():
        parts += [f"## {title}\n{ABOUT[title]}"]
        for severity, heading in SEVERITIES.items():
            if of_severity := [row for row in rows if row.severity == severity]:
                parts += [f"### {heading}", "\n".join(_table(of_severity))]
        if others := [row for row in rows if row.severity is None]:
            parts += ["\n".join(_table(others))]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| code | what it says | what to do, remarks |"
    yield "| --- | --- | --- |"
    for row in rows:
        texts = dict.fromkeys(words(row.code, details) for details in row.examples)
        remarks = [row.hint and f"{row.hint}.", row.remark]
        cells = [f"`{row.code}`", "<br>".join(map(_escaped, texts)), " ".join(filter(None, remarks))]
        yield f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    REFERENCE_FILE.write_text(reference_text(), encoding="utf-8")
