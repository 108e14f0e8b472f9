"""Ray Data on a local cluster. Starting one takes seconds, so few tests share what they start."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from loader_cases import build, context_for, indices_of, need, open_loader, take

from loaderbench.errors import CaseFailed, ConfigError, UnavailableError
from tests.warm import own_children

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, about processes and sockets that it ends late
]


@pytest.fixture(autouse=True)
def _need_ray() -> None:
    need("ray")


def test_pixels_epochs_failures_and_the_end(own_tree: Path) -> None:
    with open_loader("serial", own_tree) as serial:
        expected = take(serial, 6)
        whole = list(serial.batches(1, 2))
    with open_loader("ray", own_tree) as loader:
        found = take(loader, 6)
        for ours, theirs in zip(expected, found, strict=True):
            assert theirs.indices.tolist() == ours.indices.tolist()  # type: ignore[union-attr]
            assert torch.equal(theirs.inputs, ours.inputs)
            assert theirs.encoded_bytes == ours.encoded_bytes
        again = list(loader.batches(1, 2))
        assert [batch.num_samples for batch in again] == [batch.num_samples for batch in whole]
        assert indices_of(again).tolist() == indices_of(whole).tolist()

        broken = sorted(own_tree.rglob("*.jpg"))[7]
        broken.write_bytes(b"")
        second = build("ray", context_for("ray", own_tree, max_failure_fraction=0.2))
        failures = [failure for batch in second.batches(0, 1) for failure in batch.failures]
        second.close()
        assert [reason for _, reason in failures] == ["empty file"]
        assert psutil.Process().children()  # the first loader's cluster runs on
        broken.unlink()
        with pytest.raises(CaseFailed, match=f"cannot read {broken}.*vanished"):
            list(loader.batches(0, 1))
    assert own_children() == []


def test_a_cluster_that_is_not_there(image_tree: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        build("ray", context_for("ray", image_tree), address="127.0.0.1:1")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        build("ray", context_for("ray", image_tree), address="127.0.0.1")


SCRIPT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import psutil
from loader_cases import build, context_for
if __name__ == "__main__":
    loader = build("ray", context_for("ray", Path(sys.argv[2])))
    stream = loader.batches()
    next(stream)
    print(json.dumps([child.pid for child in psutil.Process().children(recursive=True)]), flush=True)
    time.sleep(100)
"""


def test_the_cluster_ends_with_its_parent(image_tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "consumer.py"
    path.write_text(SCRIPT)
    command = [sys.executable, str(path), str(Path(__file__).parent), str(image_tree)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as consumer:
        assert consumer.stdout is not None
        pids = json.loads(consumer.stdout.readline())
        consumer.send_signal(signal.SIGKILL)
        consumer.wait(10)
    deadline = time.monotonic() + 90  # its agents look for their parent every few seconds
    while time.monotonic() < deadline:
        pids = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not pids:
            break
        time.sleep(0.2)
    assert pids == []
