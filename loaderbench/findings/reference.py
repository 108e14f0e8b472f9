"""The reference of findings, docs/findings.md. `python -m loaderbench.findings.reference` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from loaderbench.findings.row import FIGURE, INFORMATION, VERDICT, Row
from loaderbench.findings.table import SECTIONS, words

REFERENCE_FILE = Path(__file__).parents[2] / "docs/findings.md"
INTRODUCTION = """# Findings

Everything that loaderbench reports under a fixed code, with the sentences that it prints, and after → what to do or
what it may mean. The figures are examples; … stands for words of the sentence before it.
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
FEWEST_SHARED = 3
"""Words that two sentences of one code share at an end, from which on the second shows an ellipsis."""
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
                parts += [f"### {heading}", "\n".join(_lines(of_severity))]
        if others := [row for row in rows if row.severity is None]:
            parts += ["\n".join(_lines(others))]
    return "\n\n".join(parts) + "\n"


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        texts = _shortened(list(dict.fromkeys(words(row.code, details) for details in row.examples)))
        todo = " ".join(filter(None, [row.hint and f"{row.hint}.", row.remark]))
        yield f"- `{row.code}`: {'<br>'.join(map(_escaped, texts))}" + (f"<br>→ {_escaped(todo)}" if todo else "")


def _shortened(texts: Sequence[str]) -> list[str]:
    """Return the first sentence whole, and of each further one the words in which it differs from the one before.

    Words at both ends that the two share become an ellipsis, if there are at least `FEWEST_SHARED` of them.
    """
    shortened = list(texts[:1])
    for before, text in pairwise(texts):
        own = text.split()
        start, end = (n if n >= FEWEST_SHARED else 0 for n in _shared_ends(own, before.split()))
        shortened.append(" ".join(["…"] * (start > 0) + own[start : len(own) - end] + ["…"] * (end > 0)))
    return shortened


def _shared_ends(own: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """Return how many words two texts share at their beginning and at their end; at least one word of `own` remains."""
    most = min(len(own), len(other))
    start = next((place for place in range(most) if own[place] != other[place]), most)
    start = min(start, len(own) - 1)
    most -= start
    end = next((place for place in range(most) if own[-1 - place] != other[-1 - place]), most)
    return start, min(end, len(own) - start - 1)


def _escaped(text: str) -> str:
    return text.replace("*", "\\*")


if __name__ == "__main__":
    REFERENCE_FILE.write_text(reference_text(), encoding="utf-8")
