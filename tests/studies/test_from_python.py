"""Studies in a script of the user's own: without a terminal, and the results where every command finds them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_script

import loaderbench
from loaderbench.errors import ConfigError
from loaderbench.recording.store import Store
from loaderbench.studies.measure import stored
from tests.analysis.simulate import Pipeline, run
from tests.made import make_case, make_run
from tests.studies.kept import assert_kept

BEGIN = """
import sys
from loaderbench.cases.study import read_options
from loaderbench.recording.store import Store
from loaderbench.studies.request import find_data_sets, plan

tree, results = sys.argv[1:]
store = Store(results)
tiny = {"device": "emulated", "precision": "fp32", "batch_size": 4, "workers": 1, "steps": 6, "warmup": 2,
        "duration": 2, "cache": "warm", "arms": ["real", "device"], "kernels": False}

def quiet(*told):
    pass

"""
END = """
assert not {"typer", "rich", "click"} & set(sys.modules), sorted({"typer", "rich", "click"} & set(sys.modules))
"""

SCRIPTS = {
    "sweep": """
from loaderbench.studies.sweep import SweepStudy

asked = read_options({**tiny, "loader": ["synthetic", "serial"]})
study = SweepStudy(plan(asked, find_data_sets(tree, asked)), store)
study.measure(quiet, lambda record: print(record.case.feed.loader, record.status))
found = study.store_study().findings
print(len(found.rows), found.rows[0].rate.value > 0)
""",
    "compare": """
import shutil, tempfile

from loaderbench.studies.compare import ComparisonStudy, plan_data_sets

asked, other = read_options({**tiny, "loader": "threaded"}), tempfile.TemporaryDirectory()
copy = shutil.copytree(tree, other.name, dirs_exist_ok=True)
study = ComparisonStudy(
    plan_data_sets([("a", tree), ("b", copy)], asked, 2, on_note=quiet, progress=quiet), store
)
study.measure(quiet, lambda record: print(record.case.subject.dataset_name, record.status))
print(study.findings().outcome in ("faster", "slower", "indistinguishable", "from_memory"))
other.cleanup()
""",
    "tune": """
from loaderbench.studies.tune import Tune, plan_tuning

asked = read_options({**tiny, "loader": "serial", "decoder": "pillow", "prefetch": 2})
cases, default = plan_tuning(asked, tree, on_note=quiet, progress=quiet)
study = Tune(cases, cases[0], 20.0, store, lambda line: print(line.split(":")[0])).run()
print(study.findings.winner.feed.loader, len(study.own_runs), len(study.runs))
""",
    "precision": """
from loaderbench.cases.options import PrecisionOptions
from loaderbench.studies.precision import PrecisionStudy
from loaderbench.studies.precision_plan import plan_precision

options = PrecisionOptions(
    "shufflenet_v2_x0_5", "infer", ["bf16"], device="cpu", steps=2, batch_size=2, input_size=32
)
study = PrecisionStudy(plan_precision(options), store)
study.run(quiet)
print(*(mode.precision for mode in study.modes), *(mode.status for mode in study.modes))
""",
    "selftest": """
from loaderbench.selftest import study as selftest
from loaderbench.selftest.request import request_for
from loaderbench.selftest.study import Scenario, SelfTestStudy

selftest.resolve_dataset = lambda name, resolution: (tree, "small")
selftest.scenarios = lambda quick: [Scenario("serial-none-#0", "serial", "none", 1.0)]
selftest.QUICK_SECONDS = (2.0, 0.3)
study = SelfTestStudy(request_for("emulated", quick=True), store, lambda line: None).run()
print([one.name for one in study.findings.cases], study.findings.null_loader_au_fraction is not None)
""",
}
PRINTS = {
    "sweep": {"synthetic ok", "serial ok", "2 True"},
    "compare": {"a ok", "b ok", "True"},
    "tune": {"rung 1, 1 of 1", "final, round 1 of 3", "serial 1 3"},
    "precision": {"fp32 bf16 ok ok"},
    "selftest": {"['serial-none-#0'] True"},
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in ("precision", "selftest", "tune") else ())
        for kind in SCRIPTS
    ],
)
def test_a_study_is_run_from_a_script(kind: str, small_set: Path, tmp_path: Path) -> None:
    script, results = tmp_path / "study.py", tmp_path / "results"
    script.write_text(BEGIN + SCRIPTS[kind] + END)
    ended = run_script(script, small_set / "96", results, folder=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert PRINTS[kind] <= set(ended.out.splitlines())
    assert_kept(results, kind)  # type: ignore[arg-type]
    # nothing but the results was made
    assert {path.name for path in tmp_path.iterdir()} == {"study.py", "results"}


def test_a_stored_run_is_judged_from_a_script_as_the_documentation_says(small_set: Path, tmp_path: Path) -> None:
    """The lines of docs/stored-runs.md, `From Python`."""
    text = (Path(__file__).parents[2] / "docs" / "stored-runs.md").read_text()
    (code,) = (part.partition("```")[0] for part in text.split("```python\n")[1:])
    folder = Store(tmp_path / "results").open_run(make_case(dataset=str(small_set)))
    stored(folder, make_run(segments=run(Pipeline(decode=0.120)), run_id=folder.run_id))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    bottleneck, rate = done.stdout.split(maxsplit=1)
    value = float(rate.partition("value=")[2].partition(",")[0])
    assert bottleneck == "prep" and value == pytest.approx(64 / 0.060, rel=0.01)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda tree: loaderbench.run(tree, repeats=3), r"give 3 runs, and run\(\) returns one: use sweep\(\)"),
        (lambda tree: loaderbench.tune(tree, duration=99), "no option 'duration' of tune"),
        (lambda tree: loaderbench.compare({"a": tree, "b": tree}, repeats=5), "no option 'repeats' of compare"),
        (lambda tree: loaderbench.compare({"a": tree}), "two different names"),
        (lambda tree: loaderbench.run(tree, workrs=3), "no option 'workrs'"),
        (lambda tree: loaderbench.run(tree, loader="synthetic", decoder="pillow"), "synthetic does not decode"),
    ],
)
def test_what_python_asks_for_and_cannot_have_is_refused_in_one_line(
    call: Callable[[str], object], says: str, small_set: Path
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        call(str(small_set / "96"))
    assert "\n" not in str(caught.value)
