"""Trackers in their offline modes, what they wrote read back with their own readers; and trackers that fail."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from loaderbench.errors import ConfigError, MissingExtra
from loaderbench.lacking import is_installed
from loaderbench.trackers import delivery, tracker
from loaderbench.trackers.delivery import ProcessDelivery, ThreadDelivery
from loaderbench.trackers.messages import MOST_FAILED
from loaderbench.trackers.tracker import Point, Summary, Target, Tracker, names_of

pytestmark = pytest.mark.timeout(600)
READER = Path(__file__).parent / "reading.py"
POINTS = [Point(10, {"waiting_fraction": 0.75, "share/storage": 0.5}), Point(30, {"waiting_fraction": 0.25})]
SUMMARY = Summary({"verdict": "storage", "gain": 2.5, "advice": "cache it"}, "**Storage**", "<html>the page</html>")


def read(name: str, folder: Path) -> dict[str, Any]:
    """What the tracker's files in the folder hold."""
    command = [sys.executable, str(READER), name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, and no login anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(delivery, "PATIENCE_S", 300.0)  # of a machine that others keep busy
    monkeypatch.setattr(delivery, "MOST_S", 500.0)
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def sent(delivery_: ProcessDelivery | ThreadDelivery, *, failed: bool = False) -> str | None:
    for point in POINTS:
        delivery_.point(point)
    delivery_.summarize(SUMMARY)
    return delivery_.finish(failed=failed)


def needs(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")


def test_wandb_has_points_summary_and_page(offline: Path) -> None:
    needs("wandb")
    assert sent(ProcessDelivery("wandb", Target(name="train.py"))) is None
    found = read("wandb", offline)
    shown = [(one["loaderbench/step"], one["loaderbench/waiting_fraction"]) for one in found["points"][:2]]
    assert shown == [(10, 0.75), (30, 0.25)]
    assert found["summary"]["loaderbench/verdict"] == "storage" and found["summary"]["loaderbench/gain"] == 2.5
    assert found["pages"] == ["<html>the page</html>"]


def test_mlflow_has_points_tags_and_page(offline: Path) -> None:
    needs("mlflow")
    assert sent(ProcessDelivery("mlflow", Target(name="train.py"))) is None
    found = read("mlflow", offline)
    assert found["points"]["loaderbench/waiting_fraction"] == [[10, 0.75], [30, 0.25]]
    assert found["points"]["loaderbench/gain"][0][1] == 2.5
    assert found["summary"]["loaderbench.verdict"] == "storage" and found["status"] == "FINISHED"
    assert found["pages"] == ["loaderbench/report.html"]


def test_mlflow_takes_the_run_that_the_script_has_open_and_leaves_it_open(offline: Path) -> None:
    needs("mlflow")
    place = f"sqlite:///{offline}/mlflow.db"
    code = (
        f"import mlflow; mlflow.set_tracking_uri({place!r}); run = mlflow.start_run(); mlflow.log_metric('loss', 3.0);"
        "from loaderbench.trackers.mlflow_run import LIBRARY; target = LIBRARY.target_of('x');"
        "print(target.run == run.info.run_id, target.place, run.info.run_id); import os; os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=offline)
    same, found_place, run = done.stdout.split()
    assert (same, found_place) == ("True", place)
    assert sent(ProcessDelivery("mlflow", Target(run, place))) is None
    found = read("mlflow", offline)
    assert found["runs"] == 1 and found["status"] == "RUNNING"
    assert found["points"]["loss"] == [[0, 3.0]] and "loaderbench/waiting_fraction" in found["points"]


def test_tensorboard_has_points_and_text(offline: Path) -> None:
    needs("tensorboard")
    assert sent(ProcessDelivery("tensorboard", Target(name="train.py"))) is None
    found = read("tensorboard", offline)
    assert found["points"]["loaderbench/waiting_fraction"] == [[10, 0.75], [30, 0.25]]
    assert found["summary"]["loaderbench/verdict"] == "storage"
    assert found["summary"]["loaderbench/result"] == "**Storage**"


def test_tensorboard_joins_the_folder_of_the_scripts_writer(offline: Path) -> None:
    needs("tensorboard")
    code = (
        "from torch.utils.tensorboard import SummaryWriter; writer = SummaryWriter('mine');"
        "writer.add_scalar('loss', 1, 0); from loaderbench.trackers.tensorboard_run import LIBRARY;"
        "print(LIBRARY.target_of('x').run); writer.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=offline)
    folder = done.stdout.strip()
    assert folder == str(offline / "mine")
    assert sent(ProcessDelivery("tensorboard", Target(folder))) is None
    found = read("tensorboard", offline)
    assert found["runs"] == 1 and {"loss", "loaderbench/waiting_fraction"} <= set(found["points"])


# -- what fails --------------------------------------------------------------------------------------------


def test_without_a_login_one_line_says_it(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wandb")
    monkeypatch.delenv("WANDB_MODE")
    problem = sent(ProcessDelivery("wandb", Target()))
    assert problem is not None and "API key" in problem and "\n" not in problem


def test_a_wrong_project_is_one_line(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wandb")
    monkeypatch.setenv("WANDB_PROJECT", "a/b")
    problem = sent(ProcessDelivery("wandb", Target()))
    assert problem is not None and "project" in problem and "\n" not in problem


def test_a_wrong_experiment_is_one_line(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "424242")
    problem = sent(ProcessDelivery("mlflow", Target()))
    assert problem is not None and "424242" in problem and "\n" not in problem


FAKES = {
    "raises": "def __getattr__(name):\n raise ConnectionError('the server said no')\n",
    "ends": "import os\nos._exit(7)\n",
    "hangs": "import time\ntime.sleep(1e6)\n",
}


@pytest.mark.parametrize(("how", "said"), [("raises", "the server said no"), ("ends", "ended"), ("hangs", "no answer")])
def test_a_library_that_fails_is_one_line(how: str, said: str, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (offline / "fake").mkdir()
    (offline / "fake" / "mlflow.py").write_text(FAKES[how])
    monkeypatch.setenv("PYTHONPATH", str(offline / "fake"))
    if how == "hangs":
        monkeypatch.setattr(delivery, "PATIENCE_S", 6.0)
    found = ProcessDelivery("mlflow", Target())
    for number in range(2000):  # more than a pipe holds
        found.point(Point(number, {"waiting_fraction": 0.5}))
    problem = sent(found)
    assert problem is not None and said in problem and "\n" not in problem


def test_its_process_ends_with_the_script(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (offline / "fake").mkdir()
    (offline / "fake" / "mlflow.py").write_text(FAKES["hangs"])
    monkeypatch.setenv("PYTHONPATH", f"{offline / 'fake'}:{Path(delivery.ROOT)}")
    code = (
        "import time; from loaderbench.trackers import process; from loaderbench.trackers.delivery import *\n"
        "found = ProcessDelivery('mlflow', Target())\n"
        "while found._pid is None: found._hear(); time.sleep(0.05)\n"
        "print(found._pid, flush=True); os._exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    pid = int(done.stdout)
    deadline = time.monotonic() + delivery.PATIENCE_S + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Kept:
    """A tracker that keeps what it is told, or fails."""

    def __init__(self, fails: bool = False, hangs: threading.Event | None = None) -> None:
        self.steps: list[int] = []
        self.verdicts: list[object] = []
        self.num_calls, self._fails, self._hangs = 0, fails, hangs

    def point(self, point: Point) -> None:
        self.num_calls += 1
        if self._hangs is not None:
            self._hangs.wait()
        if self._fails:
            raise OSError("No space left on device")
        self.steps.append(point.step)

    def summarize(self, summary: Summary) -> None:
        self.verdicts.append(summary.values["verdict"])

    def close(self, *, failed: bool) -> None: ...


def test_a_thread_logs_in_order() -> None:
    kept = Kept()
    assert sent(ThreadDelivery(lambda: kept)) is None
    assert (kept.steps, kept.verdicts) == ([10, 30], ["storage"])


def test_after_some_failures_points_are_given_up_but_the_summary_is_not() -> None:
    kept = Kept(fails=True)
    found = ThreadDelivery(lambda: kept)
    for number in range(50):
        found.point(Point(number, {}))
    assert sent(found) == "OSError: No space left on device"
    assert kept.num_calls == MOST_FAILED and kept.verdicts == ["storage"]


def test_a_run_that_cannot_be_opened_is_one_line() -> None:
    def fails() -> Tracker:
        raise SystemExit("no")

    assert sent(ThreadDelivery(fails)) == "SystemExit: no"


def test_a_thread_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PATIENCE_S", 0.3)
    let_go = threading.Event()
    assert sent(ThreadDelivery(lambda: Kept(hangs=let_go))) == "no answer for 0 s"
    let_go.set()


# -- names -------------------------------------------------------------------------------------------------


def test_names_are_read_from_text_and_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "is_installed", lambda name: True)
    assert names_of("wandb, mlflow,wandb") == ("wandb", "mlflow") == names_of(["wandb", "mlflow"])
    assert names_of(None) == ()
    with pytest.raises(ConfigError, match="unknown tracker 'wandbb'; log to one or more of wandb, mlflow, tensorboard"):
        names_of("wandbb")


def test_without_its_library_one_line_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "is_installed", lambda name: False)
    with pytest.raises(MissingExtra, match=r"mlflow, which is not installed: pip install 'loaderbench\[mlflow\]'"):
        names_of("mlflow")
