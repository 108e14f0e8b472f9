"""The list of a store: names that `show` understands, what each study is about, and what cannot be read."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import example_records as examples
import pytest
from commands import call
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from loaderbench.analysis.offload import offload_of
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.kinds import KINDS
from loaderbench.recording.store import Store, StoredRun, StoredStudy
from loaderbench.recording.studies import CompareFacts, StudyKind, StudyRecord
from loaderbench.reporting.listing import print_list, short_names
from loaderbench.reporting.shown import shown_as
from tests.filled import filled
from tests.offload_facts import study


def listed(runs: list[StoredRun], studies: list[StoredStudy] | None = None, width: int = 160) -> str:
    stream = io.StringIO()
    print_list(runs, Console(file=stream, width=width), studies or [])
    return stream.getvalue()


def run(run_id: str, status: str = "ok", problem: str | None = None) -> StoredRun:
    record = examples.measured() if status == "ok" else None
    return StoredRun(run_id, Path(run_id), status, problem, record, "photos/512 multiprocess+pillow w8")


def stored(study_id: str, **changes: Any) -> StoredStudy:
    facts = study(**changes)
    began = "2025-01-03T09:08:07.000+00:00"
    record = StudyRecord(SCHEMA, RULES_VERSION, study_id, "model_offload", began, facts, offload_of(facts))
    return StoredStudy(study_id, Path(study_id), record, None)


def test_runs_are_named_briefly_where_that_is_unique() -> None:
    crashed = "process 12 ended before the result was written"
    runs = [
        run("20250102-030405-006-512-serial-aaaaaaaa-000000"),
        run("20250102-030405-007-512-serial-aaaaaaaa-000000"),
        run("20250102-030405-007-512-serial-aaaaaaaa-000001", "crashed", crashed),
    ]
    names = [one.run_id for one in runs]
    assert short_names(names) == ["20250102-030405-006", *names[1:]]
    text = listed(runs, width=120)
    assert "crashed" in text and crashed in text
    both = listed(runs[:1], [stored("20250102-030405-006-model-offload-resnet18-train-abcdef")])
    assert all(name in both for name in (names[0], "20250102-030405-006-model-offload-resnet18-train-abcdef"))


NAMES = ("photos", "写真" * 30, "a\x1b[31mb", "x" * 90, "storage")
ODD = [
    *(replace(run(f"2025010{number}-030405-006-x"), title=name) for number, name in enumerate(NAMES)),
    run("20250106-030405-006-x", "crashed"),
]


@pytest.mark.parametrize("width", [24, 28, 37, 40, 49])
def test_lines_that_cannot_be_narrower_are_cut_as_rich_does_it(width: int) -> None:
    narrow, least = (listed(ODD, width=wide).splitlines()[: len(ODD) + 2] for wide in (width, 50))
    assert {cell_len(line) for line in least} == {50}
    for line, whole in zip(narrow, least, strict=True):
        text = Text(whole)
        text.truncate(width, overflow="ellipsis")
        assert line == text.plain


@pytest.mark.parametrize("width", [28, 45, 80, 160])
def test_colours_change_no_letter_of_the_list(width: int) -> None:
    stream = io.StringIO()
    print_list(ODD, Console(file=stream, width=width, force_terminal=True, color_system="256", no_color=False))
    text = Text.from_ansi(stream.getvalue())
    assert text.plain.splitlines() == listed(ODD, width=width).splitlines()
    coloured = {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}
    assert coloured[text.plain.splitlines()[0].strip()] == "bold"
    if width >= 80:
        assert coloured["crashed"] == "color(1)" and "photos" not in coloured


def test_a_store_without_studies_is_listed_without_what_judges_them(tmp_path: Path) -> None:
    record = examples.measured()
    folder = Store(tmp_path).open_run(record.case)
    folder.write_record(replace(record, run_id=folder.run_id))
    code = (
        "import sys\n"
        "from loaderbench.commands.app import main\n"
        f"sys.argv[1:] = ['list', '--results', {str(tmp_path)!r}]\n"
        "try:\n    main()\nfinally:\n    print('loaderbench.analysis.studies' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert folder.run_id[:19] in done.stdout and done.stdout.splitlines()[-1] == "False"


def test_a_run_takes_one_line_of_80_columns() -> None:
    title = "a-data-set-with-a-long-name/512 multiprocess+turbojpeg w16 b256 emulated:h200-resnet50-train-fp32"
    other = "photos/256 serial+pillow w0 b64 cpu"
    titles = [title, title.replace("/512", "/256"), other]
    runs = [
        replace(run(f"20250102-03040{number}-007-512-serial-aaaaaaaa-000000"), title=text)
        for number, text in enumerate(titles)
    ]
    lines = listed(runs, width=80).splitlines()
    assert len(lines) == 2 + len(runs) + 1 and max(map(len, lines)) <= 80
    assert all(f"20250102-03040{number}-007 " in lines[2 + number] for number in range(len(runs)))
    assert all(line.rstrip().endswith("prep") and "914 ±2%" in line for line in lines[2:5])
    assert "b64 cpu" in lines[4]  # a device of its own is named
    assert lines[5] == "device, unless the case names one: emulated:h200-resnet50-train-fp32"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_study_has_a_row(kind: StudyKind) -> None:
    facts, findings = (filled(one, Random(1), whole=True) for one in (KINDS[kind].facts, KINDS[kind].findings))
    facts = replace(facts, labels={"a": "nvme", "b": "nfs"}) if isinstance(facts, CompareFacts) else facts
    record = StudyRecord(SCHEMA, 1, "20250102-030405-006-x", kind, "2025-01-02T03:04", facts, findings)
    row = listed([], [StoredStudy(record.study_id, Path("x"), record, None)], width=1000).splitlines()[-1]
    assert kind.replace("_", " ") in row and shown_as(kind).about(facts) in row and "Error" not in row


INTERRUPTED: dict[StudyKind, dict[str, Any]] = {
    "capacity": {"interrupted": True},
    "model_fit": {"interrupted": True},
    "model_io": {"num_batches": 9, "batches": ()},
    "model_layers": {"status": "interrupted"},
    "model_memory": {"interrupted": True},
    "model_offload": {"interrupted": True},
    "model_size": {"stopped_by": "interrupted"},
    "model_split": {"interrupted": True},
    "precision": {"modes": ()},
}


@pytest.mark.parametrize("kind", INTERRUPTED)
def test_a_study_that_was_interrupted_is_listed_so(kind: StudyKind) -> None:
    facts: Any = filled(KINDS[kind].facts, Random(1), whole=True)
    findings = filled(KINDS[kind].findings, Random(1), whole=True)

    def row(facts: Any) -> str:
        record = StudyRecord(SCHEMA, 1, "20250102-030405-006-x", kind, "2025-01-02T03:04", facts, findings)
        return listed([], [StoredStudy(record.study_id, Path("x"), record, None)], width=1000).splitlines()[-1]

    assert "interrupted: " in row(replace(facts, **INTERRUPTED[kind]))


def test_latest_is_the_newest_of_runs_and_studies(tmp_path: Path) -> None:
    store, facts = Store(tmp_path), study()
    folder = store.new_study("model_offload", ["resnet18", "train"])
    folder.write(StudyRecord(SCHEMA, RULES_VERSION, folder.study_id, "model_offload", folder.started_at, facts, None))
    done = call("show", "latest", "--results", tmp_path)
    assert done.code == 0 and "Batch 10 does not fit in 100 MiB" in done.out
    record = examples.measured()
    opened = store.open_run(record.case)
    opened.write_record(replace(record, run_id=opened.run_id))
    later = call("show", "latest", "--results", tmp_path)
    assert later.code == 0 and "914 ± 18 images/s" in later.out
