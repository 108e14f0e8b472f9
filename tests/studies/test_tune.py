"""Tuning: how many settings fit into a budget, and snippets that run. The search itself is run by the command line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loaderbench.cases.case import Case
from loaderbench.studies.tune import _search_s, _that_fit, describe, snippet

BASE = Case(
    dataset="/data/256", dataset_name="data", resolution=256, loader="multiprocess", decoder="pillow", workers=2,
    prefetch=2, batch_size=8, model="resnet50", mode="train", precision="fp32", device="cpu", input_size=64,
)  # fmt: skip


def test_the_rungs_take_what_their_trials_take() -> None:
    # 8 trials of 2 + 2.5 s, 4 of 4 + 2.5
    assert _search_s(8) == pytest.approx(8 * 4.5 + 4 * 6.5)
    assert _search_s(2) == pytest.approx(2 * 4.5)


def test_a_small_budget_tries_each_loader_and_decoder_before_more_of_one() -> None:
    kinds = [("multiprocess", "pillow"), ("multiprocess", "turbojpeg"), ("threaded", "turbojpeg"), ("dali", None)]
    cases = [
        replace(BASE, loader=loader, decoder=decoder, workers=workers, prefetch=prefetch)
        for loader, decoder in kinds
        for workers in (1, 2, 4)
        for prefetch in (2, 4)
    ]
    assert _that_fit(cases, 1000.0, 0) != cases and len(_that_fit(cases, 1000.0, 0)) == len(cases)
    few = _that_fit(cases, _search_s(4), 0)
    assert sorted((one.loader, one.decoder) for one in few if one.decoder) == kinds[:3]
    assert len(few) == 4 and len({describe(one) for one in few}) == 4
    assert len(_that_fit(cases, 0.0, 0)) == 2


@pytest.mark.parametrize(
    ("loader", "decoder", "output", "workers"),
    [
        ("multiprocess", "pillow", "float32", 1),
        pytest.param("serial", "turbojpeg", "uint8", 0, marks=pytest.mark.slow),
        pytest.param("multiprocess", "torchvision", "uint8", 1, marks=pytest.mark.slow),
        ("threaded", "turbojpeg", "uint8", 2),
    ],
)
def test_the_snippet_runs_and_gives_the_batches_it_promises(
    loader: str, decoder: str, output: str, workers: int, small_set: Path, tmp_path: Path
) -> None:
    case = replace(BASE, dataset=str(small_set / "96"), loader=loader, decoder=decoder, output=output, workers=workers)
    code = snippet(case)
    if "LoaderContext" not in code:
        code += "\nif __name__ == '__main__':\n    inputs, targets = next(iter(loader))\n"
        code += "    print(tuple(inputs.shape), inputs.dtype, len(targets))\n"
    else:
        code += "\nprint(tuple(inputs.shape), inputs.dtype, len(targets))\n"
    script = tmp_path / "train.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == f"(8, 3, 64, 64) torch.{output} 8".split()
