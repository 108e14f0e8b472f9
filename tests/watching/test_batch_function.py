"""A loop without a loader: the function that makes its batches is found, stamped, and left as it was."""

import textwrap
from pathlib import Path

import pytest

from loaderbench.watching.batch_function import is_batch
from tests.watching.test_watch_command import record, watched

LOOP = """
import time
import numpy as np

def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass

def get_batch(size):
    burn(0.012)
    return np.zeros((size, 4), dtype=np.float32), np.zeros(size)

def train(batch):
    burn(0.004)
    return batch[0].sum()

before, begun, seen = get_batch, time.time(), []
while time.time() - begun < 14:
    x, y = get_batch(8)
    seen.append(float(train((x, y))))
print("LOSSES", sum(seen), flush=True)
"""


@pytest.mark.alone
def test_a_loop_without_a_loader_is_judged_by_its_function(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(textwrap.dedent(LOOP))
    done = watched(script, folder=tmp_path)
    assert "LOSSES 0.0" in done.out, done.err
    assert (tmp_path / "record.json").exists(), done.err
    found = record(tmp_path)
    loader = found["watched"]["loaders"][0]
    assert (loader["kind"], loader["data"]) == ("function", "get_batch")
    assert loader["seconds"]["wait"] > loader["seconds"]["step"]
    if found["verdict"]["bottleneck"] == "prep":  # on a machine that others use, it may be these
        assert found["verdict"]["cause_detail"] == "no_loader"
    assert any(one["function"] == "burn" for one in found["verdict"]["where"])


class Tensor:
    shape, requires_grad = (8, 3), False


class Output(Tensor):
    requires_grad = True


def test_what_a_model_gives_is_no_batch() -> None:
    assert is_batch((Tensor(), Tensor()))
    assert is_batch({"x": Tensor()})
    assert not is_batch(Output())
    assert not is_batch((Tensor(), Output()))
    assert not is_batch(0.5)
    assert not is_batch(None)
