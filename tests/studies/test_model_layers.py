"""`loaderbench model layers`: a real study of LeNet on the CPU, and what goes wrong."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import INTERRUPTED, call
from rich.console import Console

from loaderbench.cases.options import ModelOptions
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_layers import LayersFacts, LayersResult
from loaderbench.recording.store import Store
from loaderbench.reporting.console import make_console
from loaderbench.reporting.model_layers import profile, profile_csv
from loaderbench.reporting.studies import print_findings
from loaderbench.running.jobs.table import TIME_ALONE, Job
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies import model_layers as study_module
from loaderbench.studies.layers_plan import DataOptions, plan_layers
from loaderbench.studies.model_layers import LayersStudy
from tests.studies.kept import assert_kept, only_study

FUNCTIONS = (
    "Convolution : Convolution", "MaxPooling : MaxPooling", "ReLU : ReLU", "Convolution_2 : Convolution",
    "MaxPooling_2 : MaxPooling", "ReLU_2 : ReLU", "Affine : Affine", "ReLU_3 : ReLU", "Affine_2 : Affine",
    "Softmax : Softmax", "CategoricalCrossEntropy : CategoricalCrossEntropy",
)  # fmt: skip
PROFILE_OF_2019 = (
    "load_dataset", "let_data (x to Input)", "let_data (y to the loss)",
    *(f"setup_function ({name})" for name in FUNCTIONS), *(f"forward_function ({name})" for name in FUNCTIONS),
    "prepare_backward", *(f"backward_function ({name})" for name in reversed(FUNCTIONS)),
    "forward_all", "backward_all", "backward_all(wo param zero_grad)", "update (Adam)", "monitor_loss",
)  # fmt: skip
CPU_ADAM = ModelOptions(device="cpu", optimizer="adam")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads that spin for each other would be most of the time where other tests run beside these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def ignore(line: str, keep: bool) -> None:
    pass


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layers")


@pytest.fixture(scope="module")
def result(results: Path) -> LayersResult:
    study = LayersStudy(plan_layers("lenet", CPU_ADAM, 4, 5), Store(results))
    study.run(ignore)
    found = study.store().findings
    assert isinstance(found, LayersResult) and study.measured and not study.failed
    return found


def test_it_is_stored_whole(result: LayersResult, results: Path) -> None:
    study = assert_kept(results, "model_layers", num_runs=0)
    assert isinstance(study.facts, LayersFacts) and study.facts.times is not None and study.facts.alone is not None


def test_the_profile_has_the_rows_of_2019(result: LayersResult) -> None:
    """Neural Network Console's profile of its LeNet: 42 rows."""
    found = profile(result)
    assert tuple(name for name, _, _ in found) == PROFILE_OF_2019 and len(found) == 42
    unknown = {name for name, step, _ in found if step is None}
    assert unknown == {"load_dataset"}
    times = {name: step for name, step, _ in found if step is not None}
    assert times["backward_all"] == pytest.approx(times["backward_all(wo param zero_grad)"] + times["prepare_backward"])
    alone = {name for name, _, seconds in found if seconds is not None}
    once = {name for name in PROFILE_OF_2019 if name.startswith("setup_function")}
    assert alone == set(PROFILE_OF_2019) - once - {"load_dataset", "prepare_backward", "backward_all"}


def test_the_csv_is_in_milliseconds(result: LayersResult) -> None:
    heading, *rows = csv.reader(profile_csv(result).splitlines())
    assert heading == ["time in ms", "in the running step", "alone"] and len(rows) == 42
    assert rows[0] == ["load_dataset", "", ""]
    (forward,) = (row for row in rows if row[0] == "forward_all")
    assert result.forward_s is not None and float(forward[1]) == pytest.approx(result.forward_s.value * 1e3, rel=1e-4)


def rows_in_their_pass(result: LayersResult) -> list[float]:
    """Of the forward and the backward pass, the fraction that its 12 rows take."""
    fractions = []
    for phase, whole in (("forward", result.forward_s), ("backward", result.backward_s)):
        rows = [row.in_step_s.value for row in result.rows if row.phase == phase and row.in_step_s is not None]
        assert whole is not None and len(rows) == 12
        fractions.append(sum(rows) / whole.value)
    return fractions


def test_rows_add_up_to_their_pass(result: LayersResult) -> None:
    """The calls lie within their pass. How much of it they are is for a quiet machine (the test below)."""
    assert all(0 < fraction < 1 for fraction in rows_in_their_pass(result))
    assert [row.type for row in result.rows if row.phase == "forward"][-2:] == ["LogSoftmax", "NLLLoss"]
    assert result.num_parameters == 20_192 and result.optimizer == "Adam"


@pytest.mark.alone
def test_the_rows_sum_to_the_whole_iteration(tmp_path: Path) -> None:
    study = LayersStudy(plan_layers("lenet", CPU_ADAM, 64, 20, alone=False), Store(tmp_path))
    study.run(ignore)
    found = study.store().findings
    assert isinstance(found, LayersResult) and found.layers_over_whole is not None
    assert found.missing["alone"] == "--no-alone" and found.timed_over_untimed is not None
    for ratio in (found.layers_over_whole, found.timed_over_untimed):
        assert ratio.low is not None and ratio.high is not None
        assert ratio.low <= 1.05 and ratio.high >= 0.95
    assert all(0.3 < fraction < 1 for fraction in rows_in_their_pass(found))


def test_text_names_every_call_where_asked(result: LayersResult, capsys: pytest.CaptureFixture[str]) -> None:
    print_findings(None, result, make_console())
    short = capsys.readouterr().out
    print_findings(None, result, Console(width=200), whole=True)
    whole = capsys.readouterr().out
    names = {row.name for row in result.rows if row.phase == "forward"}
    assert all(name in whole for name in names) and not all(name in short for name in names)
    assert "The 10 most expensive of 12 calls" in short and f"{result.required_bytes:,} bytes" in short
    assert "load_dataset: no data set given" in short and "4×16×24×24" in whole


def test_json_and_report(result: LayersResult, results: Path, tmp_path: Path) -> None:
    shown = call("show", only_study(results).study_id, "--results", results, "--json", "-")
    found: dict[str, Any] = json.loads(shown.out)
    names = {
        "name", "type", "phase", "call", "output_shape", "parameters", "flops", "required_bytes", "in_step_s",
        "alone_s", "share_fraction",
    }  # fmt: skip
    assert all(names <= set(row) for row in found["rows"])
    assert {"forward_s", "backward_s", "layers_over_whole", "timed_over_untimed"} <= set(found)
    page = tmp_path / "report.html"
    assert call("report", "--results", results, "--out", page).code == 0
    text = page.read_text()
    assert "Layers of lenet" in text and "Each call, in the order of the forward pass" in text and "By type" in text


# -- the whole iteration -----------------------------------------------------------------------------------


def test_loading_is_measured_from_the_running_loader(tmp_path: Path, small_set: Path) -> None:
    data = DataOptions(str(small_set), 96, workers=1)
    planned = plan_layers("lenet", ModelOptions(device="cpu"), 4, 5, alone=False, data=data)
    assert (planned.request.step.channels, planned.request.step.input_size) == (3, 28)
    study = LayersStudy(planned, Store(tmp_path / "results"))
    study.run(ignore)
    found = study.store().findings
    assert isinstance(found, LayersResult) and "load_dataset" not in found.missing
    name, seconds, _ = profile(found)[0]
    assert name == "load_dataset" and seconds is not None and seconds > 0
    assert_kept(tmp_path / "results", "model_layers")


# -- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("lenet", "--batch-size", "0"), "--batch-size must be at least 1, not 0"),
        (("lenet", "--steps", "2"), "--steps must be at least 5, not 2"),
        (("resnet50", "--device", "emulated"), "not measured: an emulated device has no layers"),
        (("lenet", "--res", "64"), "need a data set: give --data"),
        (("lenet", "--data", "/nowhere"), "/nowhere"),
        (("lenet", "--optimizer", "lion"), "--optimizer"),
    ],
)
def test_wrong_requests_are_one_line(asked: tuple[str, ...], said: str, tmp_path: Path) -> None:
    device = () if "--device" in asked else ("--device", "cpu")
    ended = call("model", "layers", *asked, *device, "--results", tmp_path)
    assert ended.code == 2 and len(ended.lines) == 1 and said in ended.lines[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("squeezenet1_2",), "squeezenet1_1"),
        (("vgg11", "--input-size", "20"), "takes images of 32×32 or larger"),
        (("nowhere:factory",), "there is no module nowhere"),
    ],
)
def test_models_that_cannot_run_leave_nothing(asked: tuple[str, ...], said: str, tmp_path: Path) -> None:
    ended = call("model", "layers", *asked, "--device", "cpu", "--results", tmp_path, "--quiet")
    assert ended.code == 2 and said in ended.lines[-1]
    assert list(tmp_path.iterdir()) == []


class _Failing(Child):
    """A child whose second job fails."""

    error: BaseException

    def ask(self, job: Job[Any, Any], request: Any, on_message: Any) -> Any:
        if job is TIME_ALONE:
            raise self.error
        return super().ask(job, request, on_message)


def test_the_layers_in_the_step_survive_what_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "Child", _Failing)
    _Failing.error = JobFailed(Failure("OutOfMemory", "does not fit"))
    asked = ("model", "layers", "lenet", "--device", "cpu", "--batch-size", "2", "--steps", "5", "--quiet")
    assert call(*asked, "--results", tmp_path / "failed").code == 1
    facts = assert_kept(tmp_path / "failed", "model_layers").facts
    assert isinstance(facts, LayersFacts)
    assert (facts.no_alone, facts.times is not None, facts.alone) == ("does not fit", True, None)
    _Failing.error = KeyboardInterrupt()
    ended = call(*asked, "--results", tmp_path / "interrupted")
    assert ended.code == INTERRUPTED and "the layers' times in the step are kept" in ended.err
    assert_kept(tmp_path / "interrupted", "model_layers")


def test_lists_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes one --loader"):
        plan_layers("lenet", CPU_ADAM, data=DataOptions("x", loader="serial,threaded"))
