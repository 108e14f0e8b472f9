"""The screens: each a command line over stored facts, a report's page, or a table of words, and how it is kept.

Each gives two kinds of files. Those of words hold what people read. Those of facts hold what no change of words may
change: of a text its numbers, units and codes, taken where nothing is wrapped or cut; of a JSON or a table all but its
sentences.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from unittest import mock

import typer.main

from loaderbench.commands import app
from loaderbench.findings.row import Row
from loaderbench.findings.table import SECTIONS, words
from loaderbench.reporting.figures import Figure, svg
from tests.screens import stored
from tests.screens.facts import facts_of, split_json
from tests.screens.golden import Made
from tests.screens.refused import Refusals
from tests.screens.shown import LOOKS, WIDEST, Look, as_text, page_text, printed, run, same_everywhere


class Kept(Protocol):
    """What is kept of a screen."""

    @property
    def name(self) -> str:
        """The begin of its files' places."""

    def made(self, folder: Path) -> Made:
        """Its files, of stored facts in the folder."""


@dataclass(frozen=True)
class Screen:
    """What a command line prints. `looks`: at which terminals; `in_json`: with `--json -` too."""

    name: str
    line: tuple[str, ...]
    looks: tuple[str, ...] = ("80",)
    in_json: bool = False

    def _text(self, folder: Path, look: Look) -> str:
        return as_text(self.line, run(self.line, folder, look))

    def made(self, folder: Path) -> Made:
        texts = {f"{self.name}.{look}.txt": self._text(folder, LOOKS[look]) for look in self.looks}
        facts = {f"{self.name}.facts": facts_of(printed(run(self.line, folder, Look(WIDEST))))}
        if self.in_json:
            split = split_json(same_everywhere(run((*self.line, "--json", "-"), folder, LOOKS["piped"]).out))
            facts[f"{self.name}.json"] = split.data
            texts |= {f"{self.name}.json.txt": split.sentences} if split.sentences else {}
        return Made(texts, facts)


@dataclass(frozen=True)
class Written:
    """A report as Markdown, which is a text, or as CSV, a table."""

    name: str
    line: tuple[str, ...]

    def made(self, folder: Path) -> Made:
        ended = run(self.line, folder, LOOKS["piped"])
        assert ended.code == 0, ended.err
        text = same_everywhere(ended.out)
        if self.name.endswith(".csv"):
            return Made({}, {self.name: text})
        return Made({self.name: text}, {f"{self.name}.facts": facts_of(text)})


@dataclass(frozen=True)
class Page:
    """A report as a page: its text with the words in its drawings, and the figures' data as it offers them."""

    name: str
    line: tuple[str, ...]

    def made(self, folder: Path) -> Made:
        ended = run(self.line, folder, LOOKS["piped"], _words_for_drawings)
        assert ended.code == 0, ended.err
        told = "".join(f"-- stderr: {one}\n" for one in ended.err.splitlines())
        text, without_data = (same_everywhere(told + page_text(ended.out, data=data)) for data in (True, False))
        offered = re.findall(r'download="([^"]+)" href="data:text/csv[^,]*,([^"]*)"', ended.out)
        tables = {f"{self.name}.{name}": same_everywhere(base64.b64decode(data).decode()) for name, data in offered}
        return Made({f"{self.name}.txt": text}, {f"{self.name}.facts": facts_of(without_data), **tables})


def _words_for_drawings() -> AbstractContextManager[object]:
    return mock.patch("loaderbench.reporting.html.svg", _drawn_words)


def _drawn_words(figure: Figure, *, narrow: bool = False) -> str:
    """The words in a drawing."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg(figure, narrow=narrow))
    lines = (re.sub(r"</tspan><tspan[^>]*>", " ", text) for text in texts)
    words = [html.unescape(re.sub(r"<[^>]*>", "", line)) for line in lines]
    return f"<p>drawn: {' | '.join(dict.fromkeys(words))}</p>"


@dataclass(frozen=True)
class Sentences:
    """A table of words: code → the details that its makers give → the sentence."""

    name: str
    said: Mapping[str, Sequence[tuple[object, str]]]
    """Code → (details, sentence)."""

    def made(self, folder: Path) -> Made:
        texts, facts = [], []
        for code, given in self.said.items():
            texts += [f"{code} {details}\n  {text}\n" for details, text in given]
            facts += [f"{code}\n", *(f"  {line}\n" for _, text in given for line in facts_of(text).splitlines())]
        return Made({f"{self.name}.txt": "\n".join(texts)}, {f"{self.name}.facts": "".join(facts)})


# -- which ------------------------------------------------------------------------------------------------

EMULATED = ("--device", "emulated", "--precision", "fp32", "--batch-size", "4")
EVERY = tuple(LOOKS)


def tree(group: typer.core.TyperGroup, name: str = "") -> Iterator[tuple[str, ...]]:
    """The words of every group and command of the program."""
    yield tuple(name.split())
    for child_name, child in getattr(group, "commands", {}).items():
        yield from tree(child, f"{name}{child_name} ")


COMMANDS = [*tree(typer.main.get_command(app.app))]


GROUPS = [line for line in COMMANDS if any(one[:-1] == line for one in COMMANDS if one)]
LOOKS_AT_THE_MACHINE = (("doctor",), ("attach",))
"""Typed alone, they say what this machine has and runs; `doctor/made-up` shows another."""


def _of(folder: str, *line: str) -> tuple[str, ...]:
    return (*line, "--results", folder)


def _helps() -> Iterator[Kept]:
    for line in COMMANDS:
        yield Screen(f"help/{'-'.join(line) or 'loaderbench'}", (*line, "--help"))
    yield Screen("help/version", ("--version",))
    for line in GROUPS:
        yield Screen(f"alone/{'-'.join(line) or 'loaderbench'}", line, EVERY)
    yield Refusals(tuple(line for line in COMMANDS if line not in (*GROUPS, *LOOKS_AT_THE_MACHINE)))


def _shown() -> Iterator[Kept]:
    for name, study in stored.STUDY_IDS.items():
        whole = name in stored.KINDS
        line = _of("kinds" if whole else "variants", "show", study)
        yield Screen(f"show/{name}", line, EVERY if whole else ("80",), in_json=whole)
    for more in ("all", "caveats"):
        yield Screen(f"show/sweep-{more}", _of("kinds", "show", stored.STUDY_IDS["sweep"], f"--{more}"))
        yield Screen(f"show/run-{more}", _of("runs", "show", stored.RUN_IDS["run"], f"--{more}"), EVERY)
    for name, run_id in stored.RUN_IDS.items():
        whole = name in ("run", "run-failed", "watched-waits")
        yield Screen(f"show/{name}", _of("runs", "show", run_id), EVERY if whole else ("80",), in_json=whole)
        if name != "run":
            yield Screen(f"show/{name}-all", _of("runs", "show", run_id, "--all"))
    for run_id in stored.MEASURED:
        name = f"show/measured-{run_id.split('-', 3)[3]}"
        yield Screen(name, _of("measured", "show", run_id), in_json=True)
        yield Screen(f"{name}-all", _of("measured", "show", run_id, "--all"))


def _listed() -> Iterator[Kept]:
    for folder in ("measured", "runs", "kinds", "predictions", "damaged", "nothing"):
        yield Screen(f"list/{folder}", _of(folder, "list"), EVERY, in_json=True)
    yield Screen("list/variants", _of("variants", "list"))
    yield Screen("ledger/predictions", _of("predictions", "ledger", "--all"), EVERY, in_json=True)
    yield Screen("ledger/of-this-machine", _of("predictions", "ledger"))
    yield Screen("ledger/gains", _of("predictions", "ledger", "--all", "--kind", "gain"))
    yield Screen("ledger/last-two", _of("predictions", "ledger", "--all", "--last", "2"))
    yield Screen("ledger/empty", _of("runs", "ledger"), EVERY, in_json=True)
    yield Screen("analyze/measured", _of("measured", "analyze", "--all"))
    yield Screen("analyze/older", _of("older", "analyze", "--all"), ("80", "piped"))
    yield Screen(
        "analyze/older-diff",
        _of("older", "analyze", stored.OLDER, "--diff"),
        ("40", "80", "120", "colour"),
        in_json=True,
    )
    yield Screen("analyze/watched", _of("runs", "analyze", stored.RUN_IDS["watched-waits"]))
    yield Screen("analyze/kinds", _of("kinds", "analyze", "--all"))
    yield Screen("analyze/damaged", _of("damaged", "analyze", "--all"))


def _compared() -> Iterator[Kept]:
    between = stored.RUN_IDS["run"], stored.RUN_IDS["run-cold"]
    nfs, nvme = "nfs-cold-1", "nvme-cold-1"
    yield Screen("compare/runs", _of("runs", "compare", *between), EVERY, in_json=True)
    yield Screen("compare/failed", _of("runs", "compare", stored.RUN_IDS["run"], stored.RUN_IDS["run-failed"]))
    yield Screen("compare/other-work", _of("runs", "compare", "--baseline", *between))
    for name, before, now in (("regression", nvme, nfs), ("no-regression", nfs, nvme)):
        line = _of("kinds", "compare", "--baseline", before, now, "--allow-different")
        yield Screen(f"compare/{name}", line, EVERY, in_json=True)
    yield Screen("compare/from-memory", _of("kinds", "compare", "nvme-warm-1", "nfs-warm-1"))


def _others() -> Iterator[Kept]:
    yield Screen("gaps/trace", ("gaps", "trace.json"), EVERY, in_json=True)
    yield Screen("trace/run", _of("runs", "trace", stored.RUN_IDS["watched-waits"], "--out", "x.json"))
    for name in ("split", "ranks", "capacity"):
        yield Screen(f"trace/{name}", _of("kinds", "trace", stored.STUDY_IDS[name], "--out", "x.json"))
    yield Screen("rm/run", _of("runs", "rm", "latest"))
    yield Screen("rm/study", _of("kinds", "rm", stored.STUDY_IDS["compare"], stored.STUDY_IDS["selftest"]))
    yield Screen("rm/run-of-a-study", _of("kinds", "rm", "nvme-warm-1"))
    yield Screen("dry-run/run", ("run", "set/96", *EMULATED, "--workers", "2", "--dry-run"), EVERY)
    several = ("--res", "96,128", "--loader", "serial,multiprocess", "--workers", "1,2", "--duration", "10")
    yield Screen("dry-run/sweep", ("sweep", "set", *EMULATED, *several, "--dry-run"))
    sides = ("a=set/96", "b=copy/96", *EMULATED, "--workers", "2", "--cache", "as-is")
    yield Screen("dry-run/compare", ("compare", *sides, "--dry-run"))
    yield Screen("doctor/made-up", ("doctor",), EVERY, in_json=True)


def _worded() -> Iterator[Kept]:
    for title, rows in SECTIONS.items():
        said = {
            row.code: [(details, _with_hint(row, words(row.code, details))) for details in row.examples] for row in rows
        }
        yield Sentences(f"words/{title.lower().replace(' ', '-')}", said)


def _with_hint(row: Row, text: str) -> str:
    return f"{text}: {row.hint}" if row.hint else text


def _reported() -> Iterator[Kept]:
    for folder in ("measured", "runs", "predictions", "damaged"):
        line = _of(folder, "report", "--out", "-")
        yield Written(f"report/{folder}.csv", (*line, "--format", "csv"))
        yield Written(f"report/{folder}.md", (*line, "--format", "md"))
        yield Page(f"report/{folder}.page", line)
    for name in (*stored.KINDS, "split-times"):
        if name != "selftest":  # it has no page
            folder = "kinds" if name in stored.KINDS else "variants"
            line = _of(folder, "report", stored.STUDY_IDS[name], "--out", "-")
            yield Written(f"report/{name}.md", (*line, "--format", "md"))
            yield Page(f"report/{name}.page", line)
    shown = [("kinds", name, stored.STUDY_IDS[name]) for name in ("capacity", "compare", "tune")]
    for folder, name, stored_id in (*shown, ("runs", "run", stored.RUN_IDS["run"])):
        for form in ("csv", "md"):
            yield Written(f"forms/{name}.{form}", _of(folder, "show", stored_id, "--format", form))
    given_away = [stored.STUDY_IDS[name] for name in ("sweep", "compare", "split")]
    yield Page("report/anonymous.page", _of("kinds", "report", *given_away, "--anonymous", "--out", "-"))


def _priced() -> Iterator[Kept]:
    at, ids = ("--price", "2.50/h"), stored.RUN_IDS
    yield Screen("price/run", _of("runs", "show", ids["run"], *at), EVERY, in_json=True)
    yield Screen("price/dollars", _of("runs", "show", ids["run-heavy"], "--price", "$2.50/h"), ("40", "80"))
    yield Screen("price/euros", _of("runs", "show", ids["run-verified"], "--price", "0.345 EUR", "--all"))
    for name in ("compute", "undetermined", "mixed", "failed"):
        yield Screen(f"price/{name}", _of("runs", "show", ids[f"run-{name}"], *at))
    yield Screen("price/watched", _of("runs", "show", ids["watched-waits"], *at), EVERY, in_json=True)
    yield Screen("price/measured", _of("measured", "show", stored.MEASURED[0], *at))
    yield Screen("price/sweep", _of("kinds", "show", stored.STUDY_IDS["sweep"], *at), EVERY)
    line = _of("runs", "report", ids["run"], ids["watched-waits"], *at, "--out", "-")
    for form in ("csv", "md"):
        yield Written(f"price/form.{form}", _of("runs", "show", ids["watched-waits"], *at, "--format", form))
        yield Written(f"price/report.{form}", (*line, "--format", form))
    yield Page("price/report.page", line)


SCREENS: Sequence[Kept] = (
    *_priced(),
    *_helps(),
    *_shown(),
    *_listed(),
    *_compared(),
    *_others(),
    *_worded(),
    *_reported(),
)
