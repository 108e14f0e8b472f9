"""The doctor: every loss is named with one step, and what it says agrees with what the parts do."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaderbench import doctor, machine, plugins, prefixes
from loaderbench.commands.app import app
from loaderbench.decoders import libjpeg
from loaderbench.devices.profile import shipped_names
from loaderbench.doctor import DEGRADED, MISSING, OK, Finding, examine
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.images import cache_state
from loaderbench.images.cache_state import Residency
from loaderbench.images.filesystem import storage_behind
from loaderbench.recording.facts import Gpu
from loaderbench.selftest.doctor import examine_beds


def found(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


@pytest.fixture
def image_tree(tmp_path: Path) -> Path:
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(bytes(100_000))
    return tmp_path


def test_every_loss_has_one_step_and_nothing_else_has(image_tree: Path) -> None:
    for findings in (examine(), examine(image_tree)):
        assert len({finding.name for finding in findings}) == len(findings)
        for finding in findings:
            assert finding.state in (OK, DEGRADED, MISSING)
            assert finding.what
            assert (finding.enable is None) == (finding.state == OK), finding


def test_json_is_what_was_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    findings = examine()
    monkeypatch.setattr(doctor, "examine", lambda dataset: findings)
    app(["doctor", "--json", "-"], standalone_mode=False)
    record = json.loads(capsys.readouterr().out)
    assert list(record) == ["findings"]
    assert [Finding(**entry) for entry in record["findings"]] == [*findings, *examine_beds()]


def test_each_emulated_machine_is_listed_with_its_models_and_where_its_times_are_from() -> None:
    findings = {finding.name: finding for finding in examine()}
    a100, h200 = findings["emulated a100"].what, findings["emulated h200"].what
    assert a100.startswith("published, not measured here; ") and h200.startswith("measured elsewhere, once; ")
    assert "infer pure-fp16 (batch 12): densenet121, mobilenet_v2, " in a100
    assert "infer amp-fp16 (batch 1 to 256): resnet50" in a100 and "train fp32 (batch 64): resnet50" in h200
    listed = sum(finding.what.count("resnet50") for name, finding in findings.items() if name.startswith("emulated "))
    assert listed == sum("-resnet50-" in name for name in shipped_names())


@pytest.mark.parametrize(("version", "state"), [("None", MISSING), ("'20250300'", OK)])
def test_an_intel_gpu_needs_a_torch_that_was_built_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, state: str
) -> None:
    assert "Intel GPU" not in {finding.name for finding in examine()}
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(f"cuda: str | None = None\nxpu: str | None = {version}\n")
    spec = importlib.util.spec_from_file_location("torch", tmp_path / "torch" / "__init__.py")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(doctor, "has_intel_gpu", lambda: True)
    (finding,) = doctor._xpu()
    assert (finding.state, finding.enable is None) == (state, state == OK)


def test_torch_is_not_imported() -> None:
    script = "import sys, loaderbench.doctor as d; d.examine(); assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        examine(tmp_path / "absent")


def test_a_data_set_on_disk_is_counted_and_can_be_evicted(image_tree: Path) -> None:
    file_system = storage_behind(image_tree)
    if file_system.device is None:
        pytest.skip(f"the temporary folder is on {file_system.type}, not on a block device; set TMPDIR")
    findings = examine(image_tree)
    assert found(findings, "storage bytes").state == OK
    assert str(file_system.device) in found(findings, "storage bytes").what
    assert found(findings, "page cache").state == OK
    assert cache_state.residency([str(image_tree / "class" / "a.jpg")]).fraction == 0


def test_a_data_set_in_memory_has_no_storage_and_no_cold() -> None:
    if not Path("/dev/shm").is_dir() or not storage_behind("/dev/shm").is_memory:
        pytest.skip("/dev/shm is no tmpfs here")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="loaderbench-test-") as folder:
        Path(folder, "a.jpg").write_bytes(bytes(100_000))
        findings = examine(folder)
    assert found(findings, "storage bytes").state == MISSING
    assert "which is in memory" in found(findings, "storage bytes").what
    assert found(findings, "page cache").state == DEGRADED
    assert "100%" in found(findings, "page cache").what


def test_an_empty_folder_has_nothing_to_try(tmp_path: Path) -> None:
    assert "no image" in found(examine(tmp_path), "page cache").what


def gone(*_: object, **__: object) -> Any:
    raise UnavailableError("NVML does not start (gone); install the NVIDIA driver")


def no_headers() -> Any:
    raise UnavailableError("no jpeglib.h; `apt-get install libjpeg62-turbo-dev`")


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "value", "state", "step"),
    [
        ("cpus", machine, "usable_cpus", lambda: 1, DEGRADED, "at least 2 CPUs"),
        ("cpus", machine, "cpu_limit_reason", lambda: "a cgroup quota of 2 CPUs (x)", DEGRADED, "--cpus"),
        ("memory", machine, "memory_limit_bytes", lambda: (1 << 30, "cgroup"), DEGRADED, "memory limit"),
        ("shared memory", machine, "shm_bytes", lambda: (64 << 20, 64 << 20), DEGRADED, "--shm-size="),
        ("shared memory", machine, "shm_bytes", lambda: None, MISSING, "tmpfs"),
        ("open files", machine, "open_files_limit", lambda: 256, DEGRADED, "ulimit -n"),
        ("locked memory", cache_state, "memlock_limit_bytes", lambda: 64 << 10, DEGRADED, "ulimit -l"),
        ("cachestat", cache_state, "has_cachestat", lambda: False, DEGRADED, "6.5"),
        ("pressure (PSI)", doctor, "pressure_off_reason", lambda: "is missing; boot with `psi=1`", MISSING, "psi=1"),
        ("run-queue delay", doctor, "runqueue_off_reason", lambda: "zeros; boot so", MISSING, "boot so"),
        ("GPU (NVML)", doctor, "gpu_facts", gone, MISSING, "install the NVIDIA driver"),
        ("GPU (NVML)", doctor, "gpu_facts", lambda: [Gpu("H200", 1 << 37, "580", "13.0")], OK, None),
        ("CUDA in torch", doctor, "torch_cuda_version", lambda: (False, None), MISSING, "loaderbench[run]"),
        ("CUDA in torch", doctor, "torch_cuda_version", lambda: (True, None), MISSING, "CUDA build"),
        ("loader dali", plugins, "packages", dict, MISSING, "loaderbench[dali]"),
        ("decoder turbojpeg", plugins, "packages", dict, MISSING, "loaderbench[run]"),
        ("decoder pillow", plugins, "packages", lambda: {"pillow-simd": "9.5"}, MISSING, "loaderbench[run]"),
        ("decoder pillow-simd", plugins, "packages", lambda: {"pillow-simd": "9.5"}, OK, None),
        (
            "decoder pillow-simd",
            prefixes,
            "folder",
            lambda name: Path("nowhere"),
            MISSING,
            "loaderbench install pillow-simd",
        ),
        ("decoder opencv", plugins, "packages", dict, MISSING, "pip install opencv-python-headless"),
        ("decoder libjpeg", libjpeg, "library", no_headers, MISSING, "libjpeg62-turbo-dev"),
    ],
)
def test_each_loss_is_named_with_its_step(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    owner: object,
    attribute: str,
    value: Callable[..., Any],
    state: str,
    step: str | None,
) -> None:
    if name == "cpus" and attribute == "cpu_limit_reason":
        monkeypatch.setattr(machine, "usable_cpus", lambda: 2)
    monkeypatch.setattr(owner, attribute, value)
    finding = found(examine(), name)
    assert finding.state == state, finding
    assert (finding.enable is None) if step is None else (step in str(finding.enable)), finding


def test_pages_that_nobody_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Residency(0, 0, 1, 1, "none", "the kernel shows page residency only to a file's owner")
    monkeypatch.setattr(cache_state, "residency", lambda paths: unknown)
    monkeypatch.setattr(cache_state, "evict_files", lambda paths: unknown)
    finding = found(examine(), "page cache")
    assert finding.state == DEGRADED
    assert "owner" in finding.what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '13.0'\nhip = None\n", (True, "13.0")),
        ("cuda = '12.8'\n", (True, "12.8")),
        ("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n", (True, None)),
    ],
)
def test_cuda_of_torch_is_read_from_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: tuple[bool, str | None]
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')")
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor.torch_cuda_version() == expected
