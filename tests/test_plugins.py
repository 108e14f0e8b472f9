"""Plug-ins of another package: one of each kind through entry points, and every command works with them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import records, run

import loaderbench
from loaderbench import plugins
from loaderbench.cases.case import Case
from loaderbench.cases.study import read_options
from loaderbench.cases.traits import LoaderTraits
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.recording.store import Store
from loaderbench.studies import tune as tuning
from loaderbench.studies.again import run_again
from loaderbench.studies.request import no_note, no_progress

FAKES = Path(__file__).parent / "fakes"
ENTRY_POINTS = """
[loaderbench.loaders]
fake-loader = fake_plugins:LOADER
broken-loader = fake_plugins:NOT_A_PLUGIN
gone-loader = no_such_package:LOADER
newer-loader = fake_newer:LOADER
riddle-loader = fake_plugins:RIDDLE
[loaderbench.decoders]
fake-decoder = fake_plugins:DECODER
[loaderbench.devices]
fake = fake_plugins:DEVICE
[loaderbench.workloads]
fake-workload = fake_plugins:WORKLOAD
"""
FAKE = ("--device", "fake:3", "--model", "fake-workload:2", "--batch-size", "8", "--input-size", "64")
TINY = (*FAKE, "--workers", "1", "--steps", "6", "--warmup", "2", "--duration", "0.5", "--quiet")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is installed, for this process and those that it starts."""
    metadata = tmp_path / "site" / "fake_plugins-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugins\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(FAKES), str(tmp_path / "site")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]))
    for path in paths:
        monkeypatch.syspath_prepend(path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "fake_plugins"]:
        del sys.modules[name]


@pytest.mark.usefixtures("installed")
def test_a_run_with_all_of_them(small_set: Path, tmp_path: Path) -> None:
    # given a loader that decodes for itself, no decoder is planned for it
    ended = run("run", small_set / "96", "--loader", "fake-loader", *TINY, "--results", tmp_path / "results")
    assert (ended.code, ended.err) == (0, "")
    (record,) = records(tmp_path / "results")
    case = record["case"]
    assert (case["loader"], case["decoder"], case["output"]) == ("fake-loader", None, "uint8")
    assert (case["device"], case["precision"], case["model"]) == ("fake:3", "bf16", "fake-workload:2")
    assert (record["device"]["kind"], record["device"]["name"]) == ("fake", "fake device 3")
    assert record["loader"] == {"loader": "fake", "grey": 128}
    assert record["throughput"]["value"] > 0
    assert record["verdict"]["bottleneck"]


@pytest.mark.usefixtures("installed")
def test_a_sweep_over_them_and_its_report(small_set: Path, tmp_path: Path) -> None:
    lists = ("--loader", "fake-loader,serial,threaded", "--decoder", "fake-decoder,pillow")
    ended = run("sweep", small_set / "96", *lists, *TINY, "--arms", "real", "--results", tmp_path, "--json", "-")
    assert (ended.code, ended.err) == (0, "")
    rows = json.loads(ended.out)["study"]["rows"]
    settings = {(row["case"]["loader"], row["case"]["decoder"]) for row in rows}
    ours = {(loader, decoder) for loader in ("serial", "threaded") for decoder in ("fake-decoder", "pillow")}
    assert settings == {("fake-loader", None), *ours}
    assert all(row["rate"]["value"] > 0 for row in rows)
    made = run("report", "--results", tmp_path)
    assert (made.code, made.err) == (0, "studies: 1\n")
    page = (tmp_path / "report.html").read_text()
    assert "fake-loader" in page and "fake-decoder" in page and "fake device 3" in page


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_tune_searches_them(small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "FINAL_ROUNDS", 1)
    asked = read_options(
        {"loader": ["fake-loader", "threaded"], "decoder": "fake-decoder", "workers": 1, "prefetch": 2, "batch_size": 8,
         "device": "fake", "model": "fake-workload", "input_size": 64}
    )  # fmt: skip
    cases, default = tuning.plan_tuning(asked, str(small_set / "96"), on_note=no_note, progress=no_progress)
    assert {(case.feed.loader, case.feed.decoder) for case in cases} == {
        ("fake-loader", None), ("threaded", "fake-decoder"),
    }  # fmt: skip
    study = tuning.Tune(cases, default, 5.0, Store(tmp_path), no_note).run()
    facts = study.facts
    assert {case.feed.loader for case in (trial.case for trial in facts.trials)} == {"fake-loader", "threaded"}
    assert study.findings is not None and study.findings.winner is not None


@pytest.mark.usefixtures("installed")
def test_everything_that_is_installed_is_searched_by_default() -> None:
    loaders = [choice.name for choice in plugins.installed_loaders(with_gpu=False)]
    assert {"serial", "multiprocess", "threaded", "fake-loader"} <= set(loaders)
    assert "nvjpeg" not in loaders and "webdataset" not in loaders and "synthetic" not in loaders
    assert plugins.installed_decoders()[0].name == "fake-decoder", "its rank is the least"


@pytest.mark.usefixtures("installed")
def test_a_broken_one_of_another_package_hurts_nobody_who_does_not_name_it() -> None:
    """One for another version of loaderbench, one whose check is not there, a package that was removed in part."""
    sys.modules["fake_newer"] = Newer("fake_newer")
    try:
        known = plugins.LOADERS.known()
        assert "fake-loader" in known and "newer-loader" not in known
        assert "riddle-loader" not in plugins.predictable_loaders()
        assert "riddle-loader" not in {choice.name for choice in plugins.installed_loaders(with_gpu=False)}
        assert "failed to say what is missing" in str(plugins.missing(known["riddle-loader"].needs))
        with pytest.raises(UnavailableError, match=r"'newer-loader' is not available: .*new_trait"):
            plugins.LOADERS.find("newer-loader")
    finally:
        del sys.modules["fake_newer"]


class Newer(ModuleType):
    def __getattr__(self, name: str) -> LoaderTraits:
        if name != "LOADER":
            raise AttributeError(name)
        return LoaderTraits("threads", new_trait=True)  # type: ignore[call-arg]


def test_a_package_without_metadata_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.packages.cache_clear()
    assert "torch" in plugins.packages()
    plugins.packages.cache_clear()


@pytest.mark.usefixtures("installed")
def test_help_names_them_and_doctor_what_they_need() -> None:
    told = run("run", "--help").out
    assert "fake-loader" in told and "fake-decoder" in told and "fake" in told


@pytest.mark.usefixtures("installed")
def test_a_stored_run_is_judged_where_the_plug_in_is_not_installed(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    assert run("run", small_set / "96", "--loader", "fake-loader", *TINY, "--results", results).code == 0
    monkeypatch.delenv("PYTHONPATH")
    again = run("analyze", "latest", "--results", results)
    assert (again.code, "reproduced exactly" in again.out) == (0, True)
    assert run("report", "--results", results).code == 0


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            ("--loader", "broken-loader"),
            "entry point loaderbench.loaders:broken-loader must name a Plugin(LoaderTraits",
        ),
        (("--loader", "gone-loader"), "loader 'gone-loader' is not available: No module named 'no_such_package'"),
        (("--device", "fake:x"), "no fake device 'x'; use fake:N"),
        (("--loader", "fake-loader", "--decoder", "pillow"), "the loader fake-loader decodes for itself"),
        (("--loader", "fake"), "unknown loader 'fake' (it is a device: --device fake)"),
    ],
)
def test_what_is_wrong_with_one_is_said_in_one_line(wrong: tuple[str, ...], says: str, small_set: Path) -> None:
    ended = run("run", small_set / "96", *wrong, "--workers", "1", "--quiet", "--dry-run")
    assert (ended.code, ended.out, len(ended.lines)) == (2, "", 1)
    assert says in ended.err


@pytest.mark.usefixtures("installed")
def test_reading_traits_imports_no_torch() -> None:
    code = "import sys; from loaderbench import plugins; [table.find(name) for table in plugins.TABLES for name in "
    code += "table.names() if name not in ('broken-loader', 'gone-loader', 'newer-loader')]; "
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_line_of_every_table_is_a_module_that_has_what_it_must() -> None:
    for table in plugins.TABLES:
        for name in table.built_in:
            try:
                table.load(name)
            except UnavailableError:
                continue  # not installed here


@pytest.mark.parametrize("table", [plugins.LOADERS, plugins.DECODERS], ids=lambda table: table.kind)
def test_the_options_that_a_source_declares_are_those_of_the_module(table: plugins.Table[Any]) -> None:
    """Each is read as `Options` takes it, so that a request is refused before the module is imported, or not at all."""
    for name in table.built_in:
        declared = plugins.declared_options(table.find(name).module)
        assert declared is not None, name
        try:
            module = table.load(name)
        except UnavailableError:
            continue  # not installed here
        fields = {one.name: one for one in dataclasses.fields(module.Options)}
        assert declared.keys() == fields.keys(), name
        defaults = {key: str(one.default) for key, one in fields.items()}
        assert plugins.parse_options(module, defaults) == module.Options()
        plugins.check_options(table, name, defaults)
        with pytest.raises(ConfigError, match="unknown option 'nosuch'"):
            plugins.check_options(table, name, {"nosuch": "1"})


def test_options_that_no_source_declares_are_left_to_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_elsewhere.py").write_text("from made_here import Options\nraise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.declared_options("made_elsewhere") is None
    assert plugins.declared_options("not_there.at_all") is None


@pytest.mark.parametrize(
    ("traits", "workers", "batches"),
    [
        (LoaderTraits("in line"), 0, 0),
        (LoaderTraits("processes"), 4, 12),
        (LoaderTraits("threads", shared_queue=True), 4, 3),
    ],
)
def test_the_buffer_is_what_all_workers_prepare_ahead(traits: LoaderTraits, workers: int, batches: int) -> None:
    case = Case.from_json(
        {"dataset": "/x", "dataset_name": "x", "resolution": 96, "loader": "any", "decoder": None, "workers": workers,
         "prefetch": 3, "batch_size": 8, "model": "resnet50", "mode": "train", "precision": "fp32", "device": "cpu",
         "input_size": 64}
    )  # fmt: skip
    assert traits.buffer_batches(case.feed) == batches


def test_the_python_face_has_what_it_says_and_nothing_is_imported_for_it() -> None:
    code = "import sys, loaderbench; assert not {'numpy', 'torch', 'typer'} & set(sys.modules); print(dir(loaderbench))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in loaderbench.__all__)
    for name in loaderbench.__all__:
        assert getattr(loaderbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        _ = loaderbench.nosuch  # type: ignore[attr-defined]


def test_options_from_python_are_checked_as_flags_are() -> None:
    with pytest.raises(ConfigError, match="no option 'worker'"):
        loaderbench.run(worker=3)
    with pytest.raises(ConfigError, match="--workers takes whole numbers"):
        loaderbench.run(workers="many")
    with pytest.raises(ConfigError, match="run takes one --workers"):
        loaderbench.run(workers=[1, 2])


def test_a_run_judged_again_from_python(small_set: Path, tmp_path: Path) -> None:
    record = loaderbench.run(
        small_set, results=tmp_path, res=96, workers=1, steps=6, warmup=2, duration=0.5, batch_size=4,
        device="emulated", precision="fp32",
    )  # fmt: skip
    assert record.status == "ok"
    assert loaderbench.analyze("latest", results=tmp_path) == record
    run = loaderbench.load_run(tmp_path / record.run_id)
    assert loaderbench.analyze(run) == record
    assert run_again(Store(tmp_path).find("latest")).differences == ()
