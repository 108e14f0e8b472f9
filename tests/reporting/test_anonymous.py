"""A report that may be given away names no folder, host, user, server or disk of the machine, in any form."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from commands import call

from loaderbench import plain
from loaderbench.recording.record import Advice, RunRecord, SlowFile, SlowFolder, Tail
from loaderbench.recording.store import Store
from loaderbench.reporting.anonymous import Anonymous
from loaderbench.reporting.csv import csv_text
from loaderbench.reporting.html import render_html
from loaderbench.reporting.markdown import render_markdown
from loaderbench.reporting.report import Report, read_report
from tests import filled as filling
from tests.made import CASE, make_record
from tests.reporting import example_records as examples

SECRETS = {
    "folder": "/srv/projekt-x/photos",
    "file with blanks": "/srv/projekt-x/photos/class a/holiday in rome.JPG",
    "home": "~/private/thing.toml",
    "NFS": "filer7.example.org:/export/vol-q",
    "NFS by number": "10.20.30.41:/export2",
    "mount": "/mnt/tape-archive",
    "host": "gpu-node-417",
    "user": "a.turing",
    "address": "head-3.example.org:6379",
    "URL": "ray://192.168.7.9:10001",
    "number": "172.16.8.77",
    "disk": "nvme3n1p2",
    "small disk": "sdq1",
    "filesystem": "5f3a1c52-9d3e-4b7a-8f00-1a2b3c4d5e6f",
    "bus": "00000000:5E:00.0",
}
TOKENS = (
    "projekt", "holiday", "rome", "private", "filer7", "export", "vol-q", "tape", "gpu-node", "turing", "head-3",
    "6379", "192.168", "172.16", "10.20", "nvme3", "sdq", "9d3e", "5E:00",
)  # fmt: skip
TEXT = "cannot read {}: gone; 914 images/s, 2.90 GB/s of and/or (1.5×)"


def every_secret(seed: int = 0) -> RunRecord:
    """A record with all of them in each of its texts, and in the folder of its data set."""
    made: RunRecord = filling.filled(RunRecord, Random(seed), whole=True)
    case = replace(made.case, subject=replace(made.case.subject, dataset=SECRETS["folder"], dataset_name="photos"))
    return replace(made, status="ok", run_id=f"run{seed}", case=case)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    texts = TEXT.format(" and ".join(SECRETS.values()))
    monkeypatch.setattr(filling, "TEXTS", (texts,))
    monkeypatch.setattr(filling, "NUMBERS", (0.5,))
    monkeypatch.setattr(filling, "COUNTS", (2,))
    monkeypatch.setattr(filling, "JSON", (texts, [texts], {"path": texts}))
    for seed in range(3):
        keep(every_secret(seed), tmp_path)
    return Store(tmp_path)


def keep(run: RunRecord, root: Path) -> None:
    (root / run.run_id).mkdir()
    (root / run.run_id / "case.json").write_text(json.dumps(run.case.to_json()))
    (root / run.run_id / "run.json").write_text(json.dumps(plain.to_json(run)))


def whole(html: str) -> str:
    """With what its links to CSV hold."""
    data = re.findall(r"base64,([\w+/=]+)", html)
    return "\n".join([html, *(base64.b64decode(one).decode() for one in data)])


FORMS: dict[str, Callable[[Report], str]] = {
    "html": lambda report: whole(render_html(report)),
    "md": render_markdown,
    "csv": lambda report: csv_text(report.records),
}


@pytest.mark.parametrize("form", FORMS)
def test_no_name_of_the_machine_is_in_a_report(form: str, store: Store) -> None:
    anonymous = Anonymous({SECRETS["host"], SECRETS["user"]})
    hidden = FORMS[form](read_report(store, anonymous=anonymous))
    assert [token for token in TOKENS if token in hidden] == []
    assert "photos" in hidden and "(path)" in hidden
    shown = FORMS[form](read_report(store)).replace("\\", "")
    assert [token for token in TOKENS if token not in shown] == []


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_goes_and_what_is_around_it_stays(name: str) -> None:
    anonymous = Anonymous({SECRETS["host"], SECRETS["user"]})
    anonymous(make_record(CASE.changed(dataset=SECRETS["folder"])))
    hidden = anonymous(TEXT.format(SECRETS[name]))
    assert re.fullmatch(re.escape(TEXT).replace(r"\{\}", r"\(\w+\)"), hidden), hidden


@pytest.mark.parametrize(
    "text",
    [
        "914 images/s at 2.90 GB/s, and/or 1/8, 4:2:0, 12:30",
        "6.1.0-12-amd64", "13.4.1.3", "NVIDIA H200", "emulated:h200-resnet50-train-fp32", "cgroup v2, /sys/fs/cgroup",
        "read_bytes of /proc/self/io", "enlarge /dev/shm", "resnet50 · train · fp32", "docs/loaders.md", "md5", "loop",
        "--loader threaded", "×1.4 (1.2 – 1.6)", "my_models.net:small",
    ],
)  # fmt: skip
def test_what_is_no_name_stays(text: str) -> None:
    assert Anonymous(set())(text) == text


def test_two_data_sets_stay_two_and_one_stays_one(tmp_path: Path) -> None:
    places = ("/a/photos/256", "/a/photos/512", "/b/photos/256")
    for number, place in enumerate(places):
        one = examples.measured(run_id=f"run{number}", dataset=place, dataset_name="photos", resolution=int(place[-3:]))
        keep(one, tmp_path)
    open_report, hidden = read_report(Store(tmp_path)), read_report(Store(tmp_path), anonymous=Anonymous(set()))
    assert [len(part.records) for part in hidden.parts] == [len(part.records) for part in open_report.parts]
    assert {record.case.subject.dataset for record in hidden.records} == {
        "data-set-1/256", "data-set-1/512", "data-set-2/256",
    }  # fmt: skip


def test_the_command_leaves_them_out(tmp_path: Path) -> None:
    keep(examples.measured(run_id="run0", dataset="/srv/projekt-x/photos"), tmp_path)
    for form in ("html", "md", "csv"):
        done = call("report", "--anonymous", "--format", form, "--out", "-", "--results", tmp_path)
        assert done.code == 0 and done.out and "projekt" not in done.out and str(tmp_path) not in done.out


def test_a_slow_folder_is_not_named() -> None:
    record = examples.measured()
    assert record.storage is not None and record.verdict is not None
    storage = replace(record.storage, slow_folder=SlowFolder("holiday", 0.2, 0.95, 5.0))
    advice = Advice("slow_files_elsewhere", "storage", details={"folder": "holiday"}, action="the slow files (holiday)")
    evidence = ("files in holiday take 5.0 times as long as the others",)
    verdict = replace(record.verdict, evidence=evidence, advice=(advice,))
    found = Anonymous(())(replace(record, storage=storage, verdict=verdict))
    assert "holiday" not in repr(found) and "5.0 times as long" in repr(found)


def test_slow_files_and_their_folder_are_not_named() -> None:
    record, slow = examples.measured(), SlowFile("class a/holiday in rome.jpg", 0.4, 2)
    assert record.storage is not None and record.verdict is not None
    details = {"folder": "train", "files": [slow.path]}
    advice = Advice("slow_files_elsewhere", "storage", details=details, action="move the slow files (train)")
    record = replace(
        record,
        storage=replace(record.storage, tail=Tail(0.7, 0.4, 0.001, True, (slow,), "train", 0.9)),
        verdict=replace(
            record.verdict,
            evidence=(f"90% of them in train; the same ones each time, such as {slow.path}", "in mode train"),
            advice=(advice,),
        ),
    )
    found = Anonymous(())(record)
    assert found.verdict is not None and found.storage is not None and found.storage.tail is not None
    assert found.verdict.evidence == ("90% of them in (path); the same ones each time, such as (path)", "in mode train")
    assert (found.verdict.advice[0].action, found.verdict.advice[0].details) == ("move the slow files ((path))", {})
    assert [one.path for one in found.storage.tail.files] == ["(path)"] and found.storage.tail.folder == "(path)"
    assert found.case.step.mode == record.case.step.mode
