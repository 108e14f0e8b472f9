"""pillow-simd beside Pillow: planned, refused with one line, and really built and used."""

from __future__ import annotations

import json
import platform
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run

from loaderbench import native, prefixes
from loaderbench.errors import ConfigError, UnavailableError


def nothing(line: str) -> None:
    pass


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def write_compiler(folder: Path, refuses: str) -> str:
    """A compiler that finds every header but those in `refuses`."""
    path = folder / "fake-cc"
    path.write_text(f'#!/bin/sh\nif grep -q "{refuses}"; then exit 1; fi\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_only_a_case_of_pillow_simd_has_a_prefix_and_only_once_it_is_built(own_cache: Path) -> None:
    assert prefixes.prefix_of("pillow-simd") is None
    prefixes.folder("pillow-simd").mkdir(parents=True)
    assert prefixes.prefix_of("pillow-simd") == prefixes.folder("pillow-simd")
    assert own_cache in prefixes.folder("pillow-simd").parents
    assert prefixes.prefix_of("pillow") is None
    assert prefixes.prefix_of(None) is None


def test_the_prefix_comes_before_what_the_user_has_on_the_path() -> None:
    assert prefixes.with_prefix(Path("/p"), {"PYTHONPATH": "/q"}) == {"PYTHONPATH": "/p:/q"}
    assert prefixes.with_prefix(Path("/p"), {}) == {"PYTHONPATH": "/p"}
    assert prefixes.with_prefix(None, {"PYTHONPATH": "/q"}) == {"PYTHONPATH": "/q"}


def test_what_is_installed_is_not_built_again(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes.folder("pillow-simd").mkdir(parents=True)
    monkeypatch.setattr(prefixes.subprocess, "Popen", None)
    assert prefixes.install("pillow-simd", nothing) == prefixes.folder("pillow-simd")


def test_an_unknown_package_is_refused() -> None:
    done = run("install", "numpy")
    assert done.code == 2
    assert "pillow-simd" in done.err and len(done.err.strip().splitlines()) == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="pillow-simd is for x86-64 only")
@pytest.mark.parametrize(
    ("header", "package"),
    [("jpeglib.h", "libjpeg62-turbo-dev"), ("zlib.h", "zlib1g-dev"), ("Python.h", "python3-dev")],
)
def test_a_missing_header_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, header: str, package: str
) -> None:
    monkeypatch.setenv("CC", write_compiler(tmp_path, header))
    with pytest.raises(UnavailableError, match=f"{header}: `apt-get install {package}`"):
        prefixes.check_machine()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="pillow-simd is for x86-64 only")
def test_no_compiler_and_another_processor_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(UnavailableError, match="no C compiler"):
        prefixes.check_machine()
    monkeypatch.setattr(prefixes.platform, "machine", lambda: "aarch64")
    with pytest.raises(UnavailableError, match="x86-64"):
        prefixes.check_machine()


def test_a_build_that_fails_leaves_nothing_and_names_the_reason(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = own_cache / "pip-stand-in"
    pip.write_text(
        f"#!{sys.executable}\nprint('  error: subprocess-exited-with-error')\n"
        "print('_imaging.c:1: fatal error: all is lost')\nraise SystemExit(1)\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(prefixes, "check_machine", lambda: "-mavx2")
    monkeypatch.setattr(prefixes.sys, "executable", str(pip))
    with pytest.raises(UnavailableError, match=r"could not be built: _imaging.c:1: fatal error: all is lost"):
        prefixes.install("pillow-simd", nothing)
    assert list(prefixes.folder("pillow-simd").parent.iterdir()) == []


def test_pip_gets_versions_and_hashes_and_nothing_else(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip, told = own_cache / "pip-stand-in", own_cache / "told"
    pip.write_text(
        f"#!{sys.executable}\nimport json, os, pathlib, sys\n"
        "wanted = pathlib.Path(sys.argv[sys.argv.index('-r') + 1]).read_text()\n"
        f"line = json.dumps([sys.argv[1:], wanted, os.umask(0)])\n"
        f"print(line, file=open({str(told)!r}, 'a'))\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(prefixes, "check_machine", lambda: "-mavx2")
    monkeypatch.setattr(prefixes.sys, "executable", str(pip))
    with pytest.raises(UnavailableError):  # nothing was built
        prefixes.install("pillow-simd", nothing)
    calls = [json.loads(line) for line in told.read_text().splitlines()]
    assert len(calls) == 2
    for arguments, wanted, umask in calls:
        assert "--require-hashes" in arguments and "--no-deps" in arguments and umask == 0o022
        assert all(re.fullmatch(r"[\w-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in wanted.splitlines())
    assert "--no-build-isolation" in calls[1][0]  # else pip would fetch other tools, unchecked


def test_a_run_with_pillow_simd_without_it_is_refused_with_the_step(
    image_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run(
        "run", str(image_tree), "--loader", "serial", "--decoder", "pillow-simd", "--device", "cpu", "--model",
        "resnet18", "--batch-size", "4", "--steps", "4", "--arms", "real", "--results", str(tmp_path / "results"),
        "--json", "-",
    )  # fmt: skip
    assert (done.code, done.out, len(done.lines)) == (2, "", 1)
    assert "loaderbench install pillow-simd" in done.err
    assert not (tmp_path / "results").exists()


def test_a_config_error_for_what_cannot_be_installed() -> None:
    with pytest.raises(ConfigError, match="pip install"):
        prefixes.install("opencv", nothing)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pillow_and_pillow_simd_in_one_sweep(image_tree: Path, tmp_path: Path) -> None:
    try:
        prefixes.check_machine()
    except UnavailableError as error:
        pytest.skip(str(error))
    cache = ("env", f"XDG_CACHE_HOME={tmp_path}")
    built = run("install", "pillow-simd", wrapper=cache, timeout_s=500)
    if built.code and ("Could not find a version" in built.err or "No matching" in built.err):
        pytest.skip("the package index cannot be reached")
    assert built.code == 0, built.err
    again = run("install", "pillow-simd", wrapper=cache)
    assert again.code == 0 and "building" not in again.err

    done = run(
        "sweep", str(image_tree), "--loader", "serial,multiprocess", "--decoder", "pillow,pillow-simd", "--workers",
        "1", "--device", "cpu", "--model", "resnet18", "--input-size", "64", "--batch-size", "4", "--steps", "4",
        "--arms", "real", "--no-kernels", "--results", str(tmp_path / "results"), "--json", "-",
        wrapper=cache, timeout_s=300,
    )  # fmt: skip
    assert done.code == 0, done.err
    records = json.loads(done.out)["runs"]
    assert len(records) == 4
    cores: dict[str, set[str]] = {"pillow": set(), "pillow-simd": set()}
    for record in records:
        decoder, name = record["loader"]["decoder"], record["case"]["decoder"]
        assert decoder["library"] == name
        assert (".post" in decoder["version"]) == (name == "pillow-simd")
        assert decoder["core"] == ("loaderbench install" if name == "pillow-simd" else "this environment")
        cores[name].add(decoder["core_sha256"])
    assert len(cores["pillow"]) == len(cores["pillow-simd"]) == 1 and cores["pillow"] != cores["pillow-simd"]


def test_a_c_file_is_built_once_for_each_content(own_cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "answer.c"
    source.write_text("int answer(void) { return 42; }\n")
    try:
        first = native.build(source)
    except UnavailableError as error:
        pytest.skip(str(error))
    code = f"import ctypes; print(ctypes.CDLL({str(first)!r}).answer())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "42"
    made = first.stat().st_mtime_ns
    assert native.build(source) == first and first.stat().st_mtime_ns == made
    source.write_text("int answer(void) { return 43; }\n")
    assert native.build(source) != first
    source.write_text("int answer(void) { return }\n")
    with pytest.raises(UnavailableError, match=r"cannot build answer.c: answer.c:1"):
        native.build(source)
