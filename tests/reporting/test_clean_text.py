"""Nothing that a terminal would obey, and no undecodable byte, comes out of any text that a record can hold."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from rich.console import Console

from loaderbench import plain
from loaderbench.analysis.study import summarize
from loaderbench.analysis.trace_gaps import TraceGaps
from loaderbench.images.filesystem import FileSystem
from loaderbench.images.scan import DatasetScan
from loaderbench.printable import clean, clean_lines
from loaderbench.recording.capacity import Capacity
from loaderbench.recording.caveats import Reason
from loaderbench.recording.ledger import Entry, Ledger
from loaderbench.recording.model_io import ModelIo
from loaderbench.recording.model_size import Sizing
from loaderbench.recording.model_split import ModelSplit
from loaderbench.recording.offload_study import ModelOffload
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store, StoredRun, StoredStudy
from loaderbench.recording.studies import (
    CompareFacts,
    Comparison,
    PrecisionResult,
    SelfTest,
    SelfTestFacts,
    Sweep,
    SweepFacts,
    TuneFacts,
    Tuning,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting.comparison import print_regression
from loaderbench.reporting.console import make_console, print_bullets, print_result, print_rows, styled
from loaderbench.reporting.data_set import print_scan
from loaderbench.reporting.format import cleaned
from loaderbench.reporting.gaps import print_gaps
from loaderbench.reporting.html import render_html
from loaderbench.reporting.ledger import ledger_result
from loaderbench.reporting.listing import print_list
from loaderbench.reporting.markdown import render_markdown
from loaderbench.reporting.report import read_report
from loaderbench.reporting.studies import print_findings
from loaderbench.reporting.terminal import print_run
from tests import filled as filling

T = TypeVar("T")

UNCLEAN = "name\x1b[31m\udcff\n\x07end"
CLEAN = "name\ufffd[31m? \ufffdend"


@pytest.fixture(autouse=True)
def unclean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text of what is filled is unclean; numbers are of a size that can be drawn."""
    monkeypatch.setattr(filling, "TEXTS", (UNCLEAN,))
    monkeypatch.setattr(filling, "NUMBERS", (0.5,))
    monkeypatch.setattr(filling, "COUNTS", (2,))
    monkeypatch.setattr(filling, "JSON", (UNCLEAN, [UNCLEAN], {UNCLEAN: UNCLEAN}))


def filled(kind: type[T], seed: int = 0) -> T:
    made: T = filling.filled(kind, Random(seed), whole=True)
    return made


def record(seed: int = 0) -> RunRecord:
    return replace(filled(RunRecord, seed), status="ok", run_id=f"run{seed}")


def facts() -> CompareFacts:
    notes = (Reason("note", {"text": UNCLEAN}), Reason("as_is_for_cold", {"path": UNCLEAN}))
    return replace(filled(CompareFacts), labels={"a": UNCLEAN, "b": f"other {UNCLEAN}"}, notes=notes)


def scan() -> DatasetScan:
    return DatasetScan(
        root=UNCLEAN, num_images=2, num_classes=1, total_bytes=2, bytes_per_pixel=None, progressive_fraction=None,
        resolutions=[], num_resolutions=None, file_sizes_bytes={}, shorter_sides={}, variants=[],
        file_system=FileSystem(UNCLEAN, UNCLEAN, UNCLEAN, "0:0", UNCLEAN, ()), broken=[(UNCLEAN, UNCLEAN)],
        other_suffixes={UNCLEAN: 2},
    )  # fmt: skip


def stored(run: RunRecord) -> StoredRun:
    return StoredRun(UNCLEAN, Path("x"), "crashed", UNCLEAN, None, UNCLEAN)


def failed(seed: int) -> RunRecord:
    return replace(record(seed), status="failed")


def sweep() -> Sweep:
    return summarize([record(1)])


def precision() -> PrecisionResult:
    """All modes of a result are compared with fp32 in one way."""
    found = filled(PrecisionResult)
    return replace(found, modes=found.modes[:1])


def shown(found: Any, console: Console, facts: Any = None, runs: Sequence[RunRecord] = ()) -> None:
    print_findings(facts, found, console, runs)


VIEWS: dict[str, Callable[[Console], None]] = {
    "run": lambda console: print_run(record(), console),
    "failed run": lambda console: print_run(replace(record(), status="failed"), console),
    "list": lambda console: print_list([stored(record())], console, [StoredStudy(UNCLEAN, Path("x"), None, UNCLEAN)]),
    "sweep": lambda console: shown(sweep(), console, filled(SweepFacts), [record(1), failed(2)]),
    "tuning": lambda console: shown(filled(Tuning), console, filled(TuneFacts)),
    "comparison": lambda console: shown(filled(Comparison), console, facts()),
    "regression": lambda console: print_regression(filled(Comparison), 0.05, True, console),
    "gaps": lambda console: print_gaps(filled(TraceGaps), console),
    "self-test": lambda console: shown(filled(SelfTest), console, filled(SelfTestFacts)),
    "precision": lambda console: shown(precision(), console),
    "sizing": lambda console: shown(filled(Sizing), console),
    "split": lambda console: shown(replace(filled(ModelSplit), check=None, moved=()), console),
    "capacity": lambda console: shown(filled(Capacity), console),
    "copies": lambda console: shown(filled(ModelIo), console),
    "offloading": lambda console: shown(filled(ModelOffload), console),
    "ledger": lambda console: print_result(
        ledger_result(fmt.cleaned(Ledger((filled(Entry),), {})), last=1, kinds=()), console
    ),
    "data set": lambda console: print_scan(scan(), console),
}


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_unclean_reaches_the_terminal(name: str) -> None:
    stream = io.StringIO()
    VIEWS[name](Console(file=stream, width=400, force_terminal=True, color_system=None))
    text = stream.getvalue()
    assert CLEAN in text or name == "regression"  # which names nothing
    unprintable = {character for character in text if not character.isprintable()}
    assert unprintable <= {"\n"}


def test_nothing_unclean_reaches_a_report(tmp_path: Path) -> None:
    for seed in range(4):
        run = record(seed)
        (tmp_path / run.run_id).mkdir()
        (tmp_path / run.run_id / "case.json").write_text(json.dumps(run.case.to_json()))
        (tmp_path / run.run_id / "run.json").write_text(json.dumps(plain.to_json(run)))
    report = read_report(Store(tmp_path))
    assert report.figures and len(report.records) == 4
    for text in (render_html(report), render_markdown(report)):
        assert {character for character in text if not character.isprintable()} <= {"\n"}
        assert "name\ufffd" in text
        text.encode()


CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028]))


def test_what_a_terminal_obeys_is_gone_and_the_rest_stays() -> None:
    assert not any(character in clean(f"a{CONTROLS}b") for character in CONTROLS)
    kept = "Prüfung 图片 صور\u3000a\u00a0b 🙂 é 1.5×"
    assert clean(kept) == kept and clean_lines(f"{kept}\n{kept}") == f"{kept}\n{kept}"
    assert clean_lines("a\n\x1b[2Jb") == "a\n\ufffd[2Jb"


def test_a_console_cleans_what_nobody_has_cleaned_and_keeps_its_own_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = make_console()
    console.print(styled("a\x1b]0;title\x07b\x9b2J\u202ec", "bold red"))
    print_rows(console, [("na\x1bme", "va\x1blue")])
    print_bullets(console, "ti\x1btle", ["it\x1bem"])
    text = capsys.readouterr().out
    assert "\x1b[1;31ma\ufffd]0;titleb\ufffd2J\ufffdc\x1b[0m" in text  # rich itself drops the bell
    assert not re.search(r"\x1b(?!\[[\d;]*m)", text)


def test_cleaning_changes_texts_and_nothing_else() -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for item in value.items() for text in texts(list(item))]
        return (
            [text for item in value for text in texts(item)]
            if isinstance(value, list)
            else [value] * isinstance(value, str)
        )

    before = filled(RunRecord)
    after = cleaned(before)
    assert UNCLEAN in texts(plain.to_json(before)) and UNCLEAN not in texts(plain.to_json(after))
    assert type(after.case.effort.arms[0]) is type(before.case.effort.arms[0])  # arms stay arms
    assert json.dumps(plain.to_json(after)) == json.dumps(plain.to_json(before)).replace(
        json.dumps(UNCLEAN)[1:-1], json.dumps(CLEAN)[1:-1]
    )
    assert cleaned(after) == after and clean(clean(UNCLEAN)) == CLEAN
