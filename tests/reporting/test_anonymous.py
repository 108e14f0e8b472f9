"""A report that may be given away holds no text that is somebody's own, in any form, and every figure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from commands import call

from loaderbench import plain
from loaderbench.cases.case import CACHE_STATES, PRECISIONS
from loaderbench.findings.table import FINDINGS
from loaderbench.recording.caveats import Caveat, Reason
from loaderbench.recording.facts import SCHEMA, Failure, ImageFailure
from loaderbench.recording.forecast import LeftOut
from loaderbench.recording.kinds import KINDS
from loaderbench.recording.model_layers import LayersFacts
from loaderbench.recording.ranks import RankedCase, RanksFacts
from loaderbench.recording.record import Advice, Bottleneck, Range, RunRecord, SlowFile, SlowFolder, Tail
from loaderbench.recording.store import Store
from loaderbench.recording.studies import CompareFacts, StudyKind, StudyRecord
from loaderbench.reporting import public_names, words
from loaderbench.reporting import report as of_report
from loaderbench.reporting.anonymous import KEYED, LEFT_OUT, RULES, Anonymous, device_name, rule_of
from loaderbench.reporting.csv import csv_text
from loaderbench.reporting.html import render_html
from loaderbench.reporting.markdown import render_markdown
from loaderbench.reporting.own_texts import is_own
from loaderbench.reporting.report import Report, read_report
from tests import filled as filling
from tests.analysis import test_layer_rows as layers
from tests.analysis import test_sizing as sizing
from tests.capacity_facts import capacity_facts, of_storage
from tests.ledger_records import (
    batch_memory,
    checked,
    fit_study,
    forecast_study,
    keep_study,
    memory_study,
    study_of,
    whatif_study,
)
from tests.made import make_environment
from tests.offload_facts import study as offload_facts
from tests.poisoned import poisoned, text_fields, texts_of
from tests.reporting import example_records as examples
from tests.split_facts import split_facts
from tests.watched_facts import watched_facts

POISONS = (
    "zyxPOISON", "zyxPOISON.py", "/srv/zyxPOISON 7/holiday in rome.jpg", "~zyxPOISON/x", "POISON/relative.jpg",
    "cannot read 'class zyxPOISON/passport POISON 2.jpg'", "host-zyxPOISON:/export", "emulated:/srv/zyxPOISON.toml",
    "emulated POISON (profile zyxPOISON: measured elsewhere, once)", "my.zyxPOISON:factory", "torch.zyxPOISON",
    "fe80::1ff:fe23:4567:890a%zyxPOISON", "52:54:00:zyxPOISON", "20261124-024001-123-zyxPOISON-1", "6.1.0-zyxPOISON",
    "1.2.3+zyxPOISON", "/sys/fs/cgroup/zyxPOISON/memory.max", "diskstats zyxPOISON (/sys/class/block/zyxPOISON/stat)",
    "a cgroup quota of 2 CPUs (/sys/fs/cgroup/zyxPOISON)", "aten::zyxPOISON", "layer1.zyxPOISON.conv1", "cpu:zyxPOISON",
    "emulated:h200-resnet50-train-fp32POISON", "torch.POISON.RandomSampler",
    "emulated H200 (profile h200-resnet50-train-fp32: POISON)", "2026-11-24T02:40:01 zyxPOISON",
)  # fmt: skip


def stored_fields() -> set[str]:
    """Every field of text of what is stored."""
    of_kinds = [kind for types in KINDS.values() for kind in (types.facts, types.findings)]
    return text_fields(RunRecord, StudyRecord, *of_kinds) - {"StudyRecord.facts", "StudyRecord.findings"}


def stored_values(seed: int) -> list[Any]:
    """A run, and a study of each kind, with every field filled."""
    random = Random(seed)
    values: list[Any] = [filling.filled(RunRecord, random, whole=True)]
    for kind, types in KINDS.items():
        facts, findings = (filling.filled(one, random, whole=True) for one in (types.facts, types.findings))
        values.append(StudyRecord(SCHEMA, 1, POISONS[0], kind, POISONS[0], facts, findings, POISONS, POISONS))
    return values


@pytest.mark.parametrize("poison", POISONS)
def test_no_field_of_anything_stored_lets_a_text_through(poison: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is added to what is stored: its texts are left out until somebody says why they are harmless."""
    monkeypatch.setattr(filling, "TEXTS", (poison,))
    monkeypatch.setattr(filling, "JSON", (poison, [poison], {"path": poison, "name": poison, poison: poison}))
    filled, through = set(), set()
    for seed in range(2):  # a union's members by turns
        for value in stored_values(seed):
            filled |= {place for place, text in texts_of(value) if "POISON" in text}
            anonymous = Anonymous()
            found = anonymous.record(value) if isinstance(value, RunRecord) else anonymous.study(value)
            through |= {place for place, text in texts_of(found) if "POISON" in text}
    closed = {"Advice.code", "Caveat.code", "Caveat.hint", "StudyRecord.kind"}
    assert stored_fields() - filled == closed
    assert through == set()


def test_every_rule_is_about_something_that_is_stored() -> None:
    fields = stored_fields()
    names = {field.partition(".")[2] for field in fields}
    of_details = {"path", "files", "folder", "name", "thread", "loader", "decoder", "device", "model"}
    assert {rule for rule in RULES if rule not in fields | names | of_details} == set()
    assert fields >= KEYED and rule_of("Caveat", "details") is None


# -- pages -------------------------------------------------------------------------------------------------


def keep(run: RunRecord, root: Path) -> None:
    (root / run.run_id).mkdir()
    (root / run.run_id / "case.json").write_text(json.dumps(run.case.to_json()))
    (root / run.run_id / "run.json").write_text(json.dumps(plain.to_json(run)))


def sensible_records() -> list[RunRecord]:
    """A sweep, a comparison's sides, a watched script, slow files, a failed run."""
    record, script = examples.measured(), watched_facts()
    assert record.storage is not None and record.verdict is not None
    alike = tuple(replace(script.loaders[0], iterated_at=(f"train.py:{line}",)) for line in (7, 9))
    advice = (
        Advice("slow_files_elsewhere", "storage", details={"folder": "class a", "files": ["class a/x.jpg"]}),
        Advice("cheaper_transform", "prep", details={"name": "Deblur", "part": 0.41}),
    )
    tail = Tail(0.7, 0.4, 0.001, True, (SlowFile("class a/x.jpg", 0.4, 2),), "class a", 0.9)
    storage = replace(record.storage, tail=tail, slow_folder=SlowFolder("class a", 0.2, 0.95, 5.25))
    shown = replace(record.verdict, advice=(*record.verdict.advice, *advice))
    return [
        *map(words.worded, examples.sweep()),
        *(
            words.worded(examples.measured(run_id=f"r-{name}", dataset=f"/mnt/{name}", dataset_name=name))
            for name in ("mine", "nfs")
        ),
        words.worded(replace(record, run_id="r-slow", storage=storage, verdict=shown, tag="nightly")),
        words.worded(
            replace(
                record, run_id="r-watched", watched=replace(script, loaders=alike),
                notes=(Reason("of_a_thread", {"thread": "T"}),),
                case=record.case.changed(model="train.py", dataset="/home/a/train.py", dataset_name="train.py", seed=3),
            )
        ),
        replace(
            examples.ended_badly(), run_id="r-failed", failure=Failure("CaseFailed", "cannot read it"),
            failures=(ImageFailure("class a/x.jpg", "broken"),),
        ),
    ]  # fmt: skip


def sensible_studies() -> list[StudyRecord]:
    """A study of each kind that a report shows."""
    ranks = RanksFacts(make_environment(), (), "a test", 1, (RankedCase(examples.case(), ()),))
    facts: dict[StudyKind, Any] = {
        "model_layers": layers.facts(), "model_offload": offload_facts(), "model_split": split_facts(),
        "model_size": sizing.facts(sizing.batch(8, 0.010)), "capacity": capacity_facts(*of_storage([1, 2, 4])),
        "ranks": ranks,
    }  # fmt: skip
    return [
        *(study_of(kind, one, None) for kind, one in facts.items()),
        memory_study(batch_memory(8, 10**6, 10**6 + 1)),
        fit_study(100, 101),
        forecast_study([checked(Range(1.0, 0.9, 1.1), 1.05)]),
        whatif_study(0.04, 0.03, 0.05, assumed=(Reason("whatif_workers", {"cpus": 8.0}),)),
        replace(study_of("compare", CompareFacts({"a": "mine", "b": "nfs"}, 2), None), runs=("r-mine", "r-nfs")),
    ]


def fill(root: Path, poison: Callable[[str, str | None], str | None]) -> Store:
    """A store of these, each text as `poison` makes it; and what cannot be read."""
    store = Store(root)
    for record in sensible_records():
        keep(poisoned(record, RunRecord, poison), root)
    for study in sensible_studies():
        types = KINDS[study.kind]
        facts, findings = poisoned(study.facts, types.facts, poison), poisoned(study.findings, types.findings, poison)
        keep_study(store, replace(study, facts=facts, findings=findings))
    for name in ("run-of-POISON", "study-of-POISON"):
        (root / name).mkdir()
        (root / name / f"{name.partition('-')[0]}.json").write_text('{"POISON')
    return store


IDS = ("RunRecord.run_id", "StudyRecord.runs", "StudyRecord.study_id", "Caveat.code", "Advice.code")


def everywhere(place: str, text: str | None) -> str | None:
    return text if place in IDS else "/srv/POISON home/x"


def where_nothing_is_known(place: str, text: str | None) -> str | None:
    """Codes stay, so that all is judged and worded."""
    if place in IDS or (text is not None and is_own(text)):
        return text
    return "POISON/home x" if text is None else f"{text}-POISON"


def whole(html: str) -> str:
    """With what its links to CSV hold."""
    data = re.findall(r"base64,([\w+/=]+)", html)
    return "\n".join([html, *(base64.b64decode(one).decode() for one in data)])


FORMS: dict[str, Callable[[Report], str]] = {
    "html": lambda report: whole(render_html(report)),
    "md": render_markdown,
    "csv": lambda report: csv_text(report.records),
    "names of files": lambda report: "".join(figure.name for figure in report.figures),
}


@pytest.mark.parametrize("poison", [everywhere, where_nothing_is_known])
def test_no_form_of_a_report_holds_a_text_of_somebody(poison: Any, tmp_path: Path) -> None:
    store = fill(tmp_path, poison)
    shown, hidden = read_report(store), read_report(store, anonymous=Anonymous())
    assert len(hidden.records) == len(shown.records) and len(hidden.parts) >= len(shown.parts)
    for name, form in FORMS.items():
        text = form(hidden)
        assert not re.findall(r"POISON.{0,60}", text), name
        assert str(tmp_path) not in text
        assert "POISON" in form(shown) or name == "names of files"


def decimals(text: str) -> set[str]:
    """Figures that are measured, such as `0.41`. Whole numbers are in names too, and tags hold places of drawings."""
    return {*re.findall(r"\d+\.\d+", re.sub(r"<[^>]*>", " ", text))}


@pytest.mark.parametrize("form", ["html", "md", "csv"])
def test_every_figure_stands_in_it_too(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(tmp_path, lambda place, text: text)
    shown, hidden = read_report(store), read_report(store, anonymous=Anonymous())
    assert numbers_of(hidden) == numbers_of(shown)
    monkeypatch.setattr(of_report, "MOST_DRAWN", 0)  # the drawings are of these numbers
    shown, hidden = read_report(store), read_report(store, anonymous=Anonymous())
    assert [part.name for part in hidden.parts] == [part.name for part in shown.parts]
    assert decimals(FORMS[form](hidden)) == decimals(FORMS[form](shown))
    assert len(decimals(FORMS[form](hidden))) > 30


def numbers_of(report: Report) -> list[list[object]]:
    return [[one for one in row if isinstance(one, int | float)] for figure in report.figures for row in figure.rows]


def test_a_whole_store_is_anonymous(stored_results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_report, "MOST_DRAWN", 0)
    store = Store(stored_results)
    shown, hidden = (render_html(read_report(store, anonymous=one)) for one in (None, Anonymous()))
    places = {record.case.subject.dataset for run in store.runs() if (record := run.record) is not None}
    assert decimals(hidden) <= decimals(shown)
    assert [place for place in places if place in hidden or place not in shown] == []


# -- single texts ------------------------------------------------------------------------------------------


def test_two_data_sets_stay_two_and_one_stays_one(tmp_path: Path) -> None:
    places = ("/a/photos/256", "/a/photos/512", "/b/photos/256")
    for number, place in enumerate(places):
        one = examples.measured(run_id=f"run{number}", dataset=place, dataset_name="photos", resolution=int(place[-3:]))
        keep(one, tmp_path)
    shown, hidden = read_report(Store(tmp_path)), read_report(Store(tmp_path), anonymous=Anonymous())
    assert [len(part.result.tables) for part in hidden.parts] == [len(part.result.tables) for part in shown.parts]
    assert {record.case.subject.dataset for record in hidden.records} == {
        "folder 1/256",
        "folder 1/512",
        "folder 2/256",
    }
    assert {record.case.subject.dataset_name for record in hidden.records} == {"data set 1"}


@pytest.mark.parametrize(
    ("changes", "instead"),
    [
        ({"model": "resnet50"}, {}),
        ({"model": "mine.net:small"}, {"model": "model 1"}),
        ({"model": "train.py", "dataset_name": "train.py"}, {"model": "script 1", "dataset_name": "script 1"}),
        ({"dataset_name": "nvme"}, {}),
        ({"dataset_name": "128"}, {}),
        ({"dataset_name": "patient 7"}, {"dataset_name": "data set 1"}),
        ({"device": "cuda:1"}, {}),
        ({"device": "emulated:h200-resnet50-train-fp32x0.5"}, {}),
        ({"device": "emulated:./card.toml"}, {"device": "emulated:profile 1"}),
        ({"device": "mychip:3"}, {"device": "device 1"}),
        ({"loader": "theirs", "decoder": "ours"}, {"loader": "loader 1", "decoder": "decoder 1"}),
        ({"loader": "multiprocess", "loader_options": {"samples": "direct", "workers": "4"}}, {}),
        ({"loader_options": {"address": "head-3:6379"}}, {"loader_options": {"address": "value 1"}}),
        ({"loader_options": {"mine": "4"}}, {"loader_options": {"name 1": "4"}}),
        ({"shard": "2/4"}, {}),
    ],
)  # fmt: skip
def test_a_name_that_everybody_has_stays_and_another_gets_a_number(changes: Any, instead: Any) -> None:
    found = Anonymous().record(examples.measured(**changes)).case.to_json()
    assert {name: found[name] for name in changes} == {**changes, **instead}


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("NVIDIA H100 80GB HBM3", None),
        ("CPU AMD EPYC 9B14, 2 threads", None),
        ("CPU Alice's node, 2 threads", "device 1"),
        ("NVIDIA gpunode417", "device 1"),
        ("emulated NVIDIA H200 (profile h200-resnet50-train-fp32: measured elsewhere, once)", None),
        (
            "emulated Prototype 9 (profile h200-resnet50-train-fp32: measured elsewhere, once)",
            "emulated device 1 (profile profile 1: measured elsewhere, once)",
        ),
        ("emulated H200 (profile mine: by Alice)", "emulated device 1 (profile profile 1: text left out)"),
        ("emulated Prototype 9", "device 1"),
        ("emulated:/home/a/card.toml", "emulated:profile 1"),
        ("/dev/mychip0", "device 1"),
    ],
)
def test_a_device_is_called_what_its_maker_calls_it(name: str, instead: str | None) -> None:
    assert device_name(Anonymous(), name) == (instead or name)


@pytest.mark.parametrize(
    ("field", "told", "instead"),
    [
        ("kernel", "6.1.0-12-amd64", "6.1.0-12-amd64"),
        ("kernel", "5.14.0-362.8.1.el9_3.x86_64", "5.14.0-362.8.1.el9"),
        ("kernel", "6.5.0-acme-corp7", "6.5.0"),
        ("packages", {"torch": "2.9.1+cu130", "numpy": "2.3.1+acme"}, {"torch": "2.9.1+cu130", "numpy": "version 1"}),
        ("variables", {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ("variables", {"LD_PRELOAD": "libacme.so", "OMP_ACME": "4"}, {"LD_PRELOAD": "value 1", "name 1": "4"}),
        ("memory_limit_source", "MemTotal", None),
        ("memory_limit_source", "/sys/fs/cgroup/user-1000.slice/memory.max", "a cgroup"),
        ("cpu_limit_reason", "a cgroup quota of 1.5 CPUs (/sys/fs/cgroup/acme/cpu.max)", "a cgroup quota of 1.5 CPUs"),
        ("cpu_limit_reason", "the affinity mask allows 2 of 4 CPUs (taskset, cpuset)", None),
        ("cpu_limit_reason", "Alice took them", LEFT_OUT),
        ("container", "docker", None),
        ("container", "acme-runner", LEFT_OUT),
        ("python", "3.11.2", None),
        ("cpu_model", "AMD EPYC 9B14", None),
        ("cpu_model", "Alice's CPU 7", "processor 1"),
    ],
)
def test_of_a_machine_stays_what_many_have(field: str, told: Any, instead: Any) -> None:
    environment = make_environment(**{field: told})
    found = Anonymous().record(replace(examples.measured(), environment=environment)).environment
    assert getattr(found, field) == (told if instead is None else instead)


MAKERS = (
    "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz",
    "Intel(R) Core(TM) i9-14900KF", "Intel Core Processor (Skylake, IBRS)", "AMD EPYC 7763 64-Core Processor",
    "AMD Ryzen 7 PRO 7840U w/ Radeon 780M Graphics", "AMD EPYC-Rome-v4 Processor", "QEMU Virtual CPU version 2.5+",
    "aarch64 implementer 0x41 part 0xd0c", "aarch64 implementer None part 0xd4f", "Neoverse-N1", "Apple M2 Max",
    "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 3060 Laptop GPU",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition", "AMD Instinct MI300X", "Intel(R) Data Center GPU Max 1550",
)  # fmt: skip
OWNERS = (
    "", "7", "ACME hosting node17", "Intel(R) Xeon(R) of Alice", "AMD john7", "NVIDIA 52:54:00:12:34:56",
    "CPU 10.1.2.3", "CPU fe80::1", "GPU-8f3c-1111", "/dev/mychip0", "CPU alice@example.com", "NVIDIA ../x",
)  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_hardware_keeps_the_names_of_its_makers(name: str) -> None:
    assert public_names.is_hardware(name)


@pytest.mark.parametrize("name", OWNERS)
def test_hardware_loses_the_names_of_its_owners(name: str) -> None:
    assert not public_names.is_hardware(name)


@pytest.mark.parametrize("name", ["layer1.0.conv1", "features.denseblock1.norm.1", "_log_softmax", "aten::addmm", ""])
def test_layers_of_known_networks_keep_their_names(name: str) -> None:
    call = replace(layers.facts().calls[0], name=name, type="BatchNorm2d")
    study = Anonymous().study(study_of("model_layers", replace(layers.facts(), calls=(call,)), None))
    assert isinstance(study.facts, LayersFacts) and study.facts.calls == (call,)
    own = replace(layers.facts(), calls=(replace(call, name="face_matcher.0", type="FaceMatcher"),))
    found = Anonymous().study(study_of("model_layers", own, None)).facts
    assert isinstance(found, LayersFacts)
    assert [(one.name, one.type) for one in found.calls] == [("layer 1", "layer 2")]


def test_ids_hold_the_time_alone_and_stay_apart() -> None:
    anonymous = Anonymous()
    ids = ["20261124-024001-123-photos-w2-1a", "20261124-024001-123-other-w2-1b", "renamed by hand"]
    assert [anonymous.run_id(one) for one in ids * 2] == ["20261124-024001-123", "run 1", "run 2"] * 2


LEAKS = (
    "2 of 194 images could not be decoded: class FACE/passport NAME 2.jpg (Premature end of JPEG file)",
    "no route to fe80::1ff:fe23:4567:890a", "52:54:00:12:34:56 is gone", "gpunode417 does not answer",
    "see ~alice/x.toml", "see ../alice/x.toml", "cannot open 'holiday in rome/x.jpg'", "cannot open \"/srv/a b\" c",
)  # fmt: skip


@pytest.mark.parametrize("message", LEAKS)
@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_a_free_text_is_in_a_report(form: str, message: str, tmp_path: Path) -> None:
    keep(examples.measured(run_id="run0"), tmp_path)
    keep(replace(examples.ended_badly(), run_id="run1", failure=Failure("CaseFailed", message)), tmp_path)
    hidden = FORMS[form](read_report(Store(tmp_path), anonymous=Anonymous()))
    assert message not in hidden and not [
        word for word in ("FACE", "alice", "rome", "fe80", "gpunode") if word in hidden
    ]


def test_only_its_owner_is_told_what_stands_for_what(tmp_path: Path) -> None:
    keep(examples.measured(run_id="run0", dataset="/srv/projekt-x/photos", dataset_name="patient 7"), tmp_path)
    for form in ("html", "md", "csv"):
        done = call("report", "--anonymous", "--format", form, "--out", "-", "--results", tmp_path)
        assert done.code == 0 and "data set 1" in done.out
        assert "patient" not in done.out and "projekt" not in done.out and str(tmp_path) not in done.out
        assert {"data set 1: patient 7", "folder 1: /srv/projekt-x/photos"} <= {*done.lines}


def test_of_many_names_the_owner_is_told_the_first() -> None:
    anonymous = Anonymous()
    for number in range(25):
        anonymous.numbered("class", f"Face{number}")
    assert anonymous.told()[-2:] == ["class 20: Face19", "and 5 more"]


def test_a_code_of_a_newer_version_ends_no_report(tmp_path: Path) -> None:
    record = examples.measured()
    assert record.verdict is not None
    verdict = replace(record.verdict, bottleneck="undetermined", reasons=(Reason("new_one", {}),), summary="New.")
    found = Anonymous().record(replace(record, verdict=verdict, caveats=(Caveat("arms_not_measured", {"why": "new"}),)))
    assert found.verdict is not None and found.verdict.summary == f"Undetermined: {LEFT_OUT}."
    assert [caveat.message for caveat in found.caveats] == [
        f"unknown: {LEFT_OUT}. Figures that need these arms are missing"
    ]


# -- own texts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *FINDINGS, *FINDINGS["kernel_gap_not_measured"].choices["why"], FINDINGS["cache_state_gone"].words,
        *CACHE_STATES, *PRECISIONS, *get_args(Bottleneck), *get_args(LeftOut), *KINDS,
        "the start took 7 s in all", "Python took 13 s to start, because the CPUs are slow", "num_workers", "MemTotal",
    ],
)  # fmt: skip
def test_loaderbench_s_own_texts_are_known(text: str) -> None:
    assert is_own(text)


@pytest.mark.parametrize(
    "text",
    [
        "gpunode417", "10.20.30.41", "the start took Alice s in all", "12 s after its start, in /srv", "1985", "# s",
        "Layers of mine on yours", "/srv/photos",
    ],
)  # fmt: skip
def test_no_other_text_is_taken_for_one(text: str) -> None:
    assert not is_own(text)


@pytest.mark.parametrize("name", ["conv192.168.1.17", "layer4915112345678", "1" * 40 + "-", "conv1234"])
def test_numbers_that_no_layer_has_are_not_those_of_one_and_take_no_time(name: str) -> None:
    assert not public_names.is_layer(name)


def test_layers_keep_their_numbers() -> None:
    assert all(map(public_names.is_layer, ("layer1.0.conv1", "BatchNorm2d", "features.0.1.2", "conv1")))
