"""What works from the light installation, without the packages of any extra; and that it starts at once."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from loaderbench.commands import first
from loaderbench.commands.app import GROUPS, commands
from loaderbench.lacking import RUN_EXTRA
from tests.screens import stored

ROOT = Path(__file__).resolve().parents[1]
OF_EXTRAS = ("torch", "torchvision", "PIL", "simplejpeg", "matplotlib", "nvidia.dali", "cv2", "resvg_py", "mfusepy")
"""Modules that the light installation does not bring."""
BLOCKED = '''
import io, json, os, runpy, sys
from contextlib import redirect_stderr, redirect_stdout
class Without:
    """Finds modules as another finder does, but for some."""
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        absent = any(name == one or name.startswith(one + ".") for one in {absent})
        return None if absent else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
ended = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            if isinstance(arguments, str):
                exec(arguments)
            else:
                sys.argv = ["loaderbench", *arguments]
                runpy.run_module("loaderbench", run_name="__main__")
            code = 0
        except SystemExit as stop:
            code = stop.code
    ended.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(ended), file=sys.__stdout__)
sys.__stdout__.flush()
os._exit(0)
'''


def ended(asked: Sequence[Sequence[str] | str], folder: Path, absent: Sequence[str] = OF_EXTRAS) -> list[list[str]]:
    """[exit code, output, stderr] of each command, or piece of Python, without these modules."""
    program = BLOCKED.format(absent=set(absent) or {"no-such-module"})
    environ = {**os.environ, "COLUMNS": "100", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(asked)], cwd=folder, env=environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of stored study, and runs."""
    folder = tmp_path_factory.mktemp("light") / "stored"
    stored.make_all(folder)
    return folder


def test_the_light_installation_asks_for_nothing_large() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[]", one)[0] for one in project["dependencies"]}
    assert names == {"jinja2", "numpy", "nvidia-ml-py", "psutil", "rich", "typer"}
    measuring = {re.split(r"[<>=\[]", one)[0] for one in project["optional-dependencies"]["run"]}
    assert {"torch", "torchvision", "pillow"} <= measuring


def test_stored_runs_and_studies_are_shown_and_judged_without_what_measures(results: Path) -> None:
    studies = sorted(path.parent.name for path in (results / "kinds").glob("*/study.json"))
    assert len(studies) > 10
    run = stored.MEASURED[0]
    light = [
        ["list", "--results", "kinds"],
        ["list", "--results", "measured"],
        *(["show", study, "--all", "--results", "kinds"] for study in studies),
        ["show", run, "--all", "--results", "measured"],
        ["show", run, "--format", "html", "--results", "measured"],
        ["show", run, "--json", "-", "--results", "measured"],
        ["analyze", "--all", "--json", "-", "--results", "measured"],
        ["report", "--out", "-", "--results", "kinds"],
        ["report", "--format", "md", "--out", "-", "--results", "measured"],
        ["report", "--format", "csv", "--out", "-", "--results", "measured"],
        ["ledger", "--all", "--results", "predictions"],
        ["gaps", "trace.json"],
        ["trace", run, "--out", "trace.out", "--results", "measured"],
        ["dataset", "scan", "set/96"],
        ["compare", run, run, "--results", "measured"],
    ]
    without, complete = ended(light, results), ended(light, results, absent=())
    for arguments, lacking, whole in zip(light, without, complete, strict=True):
        assert lacking[0] == 0, (arguments, lacking[2])
        assert lacking[1:] == whole[1:], arguments
    page = without[light.index(["report", "--out", "-", "--results", "kinds"])][1]
    assert page.count("<svg") > 10


def test_a_job_is_looked_at_without_what_measures(results: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1) as job:
        assert job.stdout is not None
        job.stdout.readline()
        asked = [["attach"], ["attach", str(job.pid), "--seconds", "1", "--results", "looks"]]
        try:
            (code, _, err), looked = ended(asked, results)
        finally:
            job.kill()
    assert (code, err) == (0, "")
    assert RUN_EXTRA not in looked[2] and "from outside" in looked[1] + looked[2]


def test_doctor_says_which_extra_measures(results: Path) -> None:
    ((code, out, _),) = ended([["doctor"]], results)
    assert code == 0
    assert "measuring" in out and f"→ `{RUN_EXTRA}`" in unwrapped_text(out)


def unwrapped_text(text: str) -> str:
    return " ".join(text.split())


def measuring() -> list[list[str]]:
    """A complete command line of each command that measures."""
    named = {
        "run": ["set/96"], "demo": [], "sweep": ["set/96"], "tune": ["set/96"], "compare": ["a=set/96", "b=copy/96"],
        "capacity": ["set/96"], "precision": [], "selftest": ["--quick"], "model layers": ["resnet18"],
        "model memory": ["resnet18"], "model fit": ["resnet18", "--memory", "1G"],
        "model offload": ["resnet18", "--memory", "1G"], "model io": ["resnet18"],
        "model split": ["resnet18", "--device", "cpu,cuda:0"], "model size": ["resnet18", "--target", "9/s"],
        "dataset make": ["--res", "32", "--out", "made"],
        "dataset derive": ["set/96", "--res", "32", "--out", "made"],
    }  # fmt: skip
    return [[*words.split(), *more] for words, more in named.items()]


def test_what_measures_names_the_extra_in_one_line_and_its_help_is_there(results: Path) -> None:
    asked = [*measuring(), ["forecast", stored.MEASURED[0], "--images", "9", "--check", "--results", "measured"]]
    for arguments, (code, out, err) in zip(asked, ended(asked, results), strict=True):
        assert (code, out) == (2, ""), arguments
        assert len(err.splitlines()) == 1, err
        assert err.startswith(f"loaderbench: `loaderbench {arguments[0]}") and err.endswith(f": {RUN_EXTRA}\n")
        assert all(name in err for name in ("torch", "torchvision", "Pillow"))
    helped = [[*arguments, "--help"] for arguments in asked]
    assert all(code == 0 and "Usage" in out for code, out, _ in ended(helped, results))


def test_every_command_is_light_or_names_its_extra() -> None:
    listed = {" ".join(one[:2] if one[0] in GROUPS else one[:1]) for one in measuring()}
    light = {
        "watch", "list", "show", "ledger", "analyze", "trace", "gaps", "report", "rm", "install", "doctor", "forecast",
        "whatif", "attach", "agents",
    }  # fmt: skip
    of_data_sets = {f"dataset {one.name}" for one in GROUPS["dataset"].registered_commands}
    assert {*commands(), *of_data_sets} - listed - light <= {"dataset scan", "dataset convert"}


def test_a_script_without_pytorch_is_told_where_to_install(results: Path) -> None:
    (results / "script.py").write_text("print('runs')\n")
    ((code, out, err),) = ended([["watch", "script.py"]], results)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and "PyTorch" in err and "pip install loaderbench" in err


@pytest.mark.parametrize("name", ["run", "sweep", "tune", "compare", "offload", "watch"])
def test_from_python_too(results: Path, name: str) -> None:
    given = {"compare": "{'a': 'set/96', 'b': 'copy/96'}", "watch": "[1]", "offload": ""}.get(name, "'set/96'")
    piece = (
        "import loaderbench\nfrom loaderbench.errors import ConfigError\n"
        f"try: loaderbench.{name}({given})\nexcept ConfigError as error: print(error)\nelse: print('measured')"
    )
    ((_, out, err),) = ended([piece], results)
    assert err == "" and out.startswith(f"`loaderbench.{name}` ") and "pip install" in out


def test_png_names_its_extra(results: Path) -> None:
    ((code, _, err),) = ended([["report", "--format", "png", "--out", "figures", "--results", "measured"]], results)
    assert code == 2 and err.splitlines()[-1].endswith("pip install 'loaderbench[png]'")


@pytest.mark.parametrize(
    ("version", "what", "is_enough"),
    [
        ("2.0.1", "run", False),
        ("2.5.1+cu121", "run", False),
        ("2.6.0", "run", True),
        ("3.0a1", "run", True),
        ("2.0.1", "watch", False),
        ("2.1.0", "watch", True),
        ("2.15.0+cpu", "watch", True),
    ],
)
def test_pytorch_that_is_too_old_is_named_with_its_version(
    version: str, what: str, is_enough: bool, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loaderbench import lacking
    from loaderbench.errors import MissingExtra

    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    require = lacking.require_run if what == "run" else lacking.require_torch
    if is_enough:
        require(f"loaderbench {what}")
        return
    with pytest.raises(MissingExtra, match=re.escape(version)):
        require(f"loaderbench {what}")


# -- the first look ----------------------------------------------------------------------------------------


def test_the_kept_help_is_that_of_the_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from loaderbench.commands.app import app

    monkeypatch.setenv("COLUMNS", "200")
    for words in first.KEPT:
        app([*words, "--help"], prog_name="loaderbench", standalone_mode=False)
        text = capsys.readouterr().out
        if os.environ.get("LOADERBENCH_SCREENS"):
            Path(first.FOLDER, first.KEPT[words]).write_text(text)
        assert first.first_text([*words, "--help"]) == text, "`make screens` writes it anew"
    monkeypatch.setenv("COLUMNS", "60")
    assert first.first_text(["watch", "--help"]) is None  # it is wrapped


def test_typed_alone_it_says_the_ways_in() -> None:
    done = subprocess.run([sys.executable, "-m", "loaderbench"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert done.stderr == "" and 8 <= len(lines) <= 11 and max(map(len, lines)) <= 80
    assert all(f"loaderbench {way}" in done.stdout for way in ("attach 4711", "watch train.py", "run photos"))
    named = set(re.findall(r"loaderbench ([a-z]+)", done.stdout)) - {"finds"}
    assert named <= {*commands()}


def test_a_reader_that_stops_reading_is_no_error() -> None:
    line = f"{sys.executable} -m loaderbench --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr == "" and done.stdout.strip() in ("0", "1")


@pytest.mark.alone
@pytest.mark.parametrize("words", [[], ["--help"], ["watch", "--help"]], ids=" ".join)
def test_the_first_look_takes_few_times_a_bare_start_of_python(words: list[str]) -> None:
    def cpu_s(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    cpu_s("-m", "loaderbench", *words)  # compiled from now on
    rounds = [(cpu_s("-c", "pass"), cpu_s("-m", "loaderbench", *words)) for _ in range(9)]
    ratios = sorted(ours / bare for bare, ours in rounds)
    assert ratios[len(ratios) // 2] <= 6, ratios
