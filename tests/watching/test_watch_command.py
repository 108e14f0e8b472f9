"""Scripts under `loaderbench watch`: what is said of them, and that they are what they were."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Ended, call, run, run_script

from loaderbench.recording.store import Store
from tests.warm import Where

SCRIPT = """
import random, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, path): self.path = path
    def __len__(self): return 240
    def __getitem__(self, index):
        with open(self.path, "rb") as file:
            file.read()
        time.sleep({sample_s})
        return torch.full((3,), float(index)), index

if __name__ == "__main__":
    random.seed(3)
    torch.manual_seed(3)
    loader = DataLoader(Files(sys.argv[1]), 4, shuffle=True, num_workers={workers})
    order = []
    for epoch in range(2):
        for values, index in loader:
            order += index.tolist()
            time.sleep({step_s})
    print(order, random.random(), torch.rand(2).tolist())
    {end}
"""


def written(folder: Path, *, sample_s: float = 0.0, workers: int = 2, step_s: float = 0.002, end: str = "") -> Path:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(sample_s=sample_s, workers=workers, step_s=step_s, end=end))
    (folder / "sample.bin").write_bytes(os.urandom(4096))
    return script


def python(script: Path, *arguments: object, folder: Path) -> Ended:
    return run_script(script, *map(str, arguments), folder=folder, whole_end=True, timeout_s=120)


def loaderbench(*arguments: object, folder: Path, whole_end: bool = False) -> Ended:
    where = Where(whole_end=True) if whole_end else None
    return run(*map(str, arguments), folder=folder, where=where, timeout_s=120)


def watched(*arguments: object, folder: Path, whole_end: bool = True) -> Ended:
    options = ("--results", folder / "results", "--json", folder / "record.json")
    return loaderbench("watch", *options, *arguments, folder=folder, whole_end=whole_end)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return found


@pytest.mark.alone
def test_a_loader_that_sleeps_is_named_and_nothing_of_the_script_changes(tmp_path: Path) -> None:
    # 4 samples of 10 ms by 2 workers: 20 ms a batch, and 5 ms a step.
    script = written(tmp_path, sample_s=0.01, step_s=0.005)
    bare = python(script, "sample.bin", folder=tmp_path)
    seen = watched(script, "sample.bin", folder=tmp_path)
    assert (seen.code, seen.out) == (bare.code, bare.out) == (0, bare.out), seen.err
    found = record(tmp_path)
    verdict = found["verdict"]
    assert (verdict["bottleneck"], verdict["cause_detail"]) == ("prep", "sleep"), verdict["summary"]
    assert 2.5 < verdict["speedup_if_removed"]["prep"]["value"] < 4.5
    assert verdict["where"][0]["callee"] == "time.sleep" and verdict["where"][0]["state"] == "sleep"
    loader = found["watched"]["loaders"][0]
    assert (loader["num_batches"], loader["num_iterators"], loader["batch_size"], loader["workers"]) == (120, 2, 4, 2)
    parts = found["watched"]["before_s"] + sum(loader["seconds"].values())
    assert parts == pytest.approx(found["watched"]["wall_s"], rel=1e-6)
    assert "Where the script's time went" in seen.err
    stored = Store(tmp_path / "results").find("latest")
    assert stored.record is not None and stored.record.watched is not None
    assert "train.py" in loaderbench("list", folder=tmp_path).out


@pytest.mark.alone
def test_the_script_s_own_step_is_named_where_batches_are_ready(tmp_path: Path) -> None:
    assert watched(written(tmp_path, step_s=0.02), "sample.bin", folder=tmp_path).code == 0
    verdict = record(tmp_path)["verdict"]
    named = verdict["bottleneck"], verdict["cause_detail"]
    assert named in [("compute", "step"), ("contention", "neighbours"), ("contention", "steal")], verdict["summary"]


def test_a_price_is_said_and_written_and_not_stored(tmp_path: Path) -> None:
    seen = watched("--price", "2 EUR/h", written(tmp_path, step_s=0.005), "sample.bin", folder=tmp_path)
    assert seen.code == 0, seen.err
    assert "At 2.00 EUR an hour" in seen.err and "An epoch of 240 samples" in seen.err
    price = record(tmp_path)["price"]
    assert (price["per_hour"], price["currency"], price["epoch_samples"]) == (2.0, "EUR", 240)
    stored = Store(tmp_path / "results").find("latest")
    assert stored.record is not None and stored.record.price is None


ALIKE = """
import sys, time
from torch.utils.data import DataLoader, IterableDataset
sys.path.insert(0, "site-packages")
from bars import bar

class Stream(IterableDataset):
    def __iter__(self): return iter(range(400))

def epoch(loader, step_s):
    for batch in bar(loader):
        time.sleep(step_s)

train, held_out = DataLoader(Stream(), 4), DataLoader(Stream(), 4)
for _ in range(2):
    epoch(train, 0.003)  # of the first
    epoch(held_out, 0.001)  # of the second
"""


def test_loaders_that_look_alike_are_named_by_the_places_in_the_script(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "bars.py").write_text(
        "def bar(batches):\n    for one in batches:\n        yield one\n"
    )
    script = tmp_path / "train.py"
    script.write_text(ALIKE)
    within, first, second = (
        next(f"train.py:{k}" for k, line in enumerate(ALIKE.splitlines(), 1) if what in line)
        for what in ("in bar(", "# of the first", "# of the second")
    )
    seen = watched(script, folder=tmp_path)
    assert seen.code == 0, seen.err
    assert [one["iterated_at"] for one in record(tmp_path)["watched"]["loaders"]] == [[within, first], [within, second]]
    assert f"first iterated at {first})" in record(tmp_path)["verdict"]["evidence"][0]
    shown = call("show", "latest", "--all", "--results", tmp_path / "results")
    lines = " ".join(shown.out.split())
    assert f"200 steps of DataLoader over Stream (first iterated at {first})," in lines
    assert f"DataLoader over Stream (first iterated at {second}): 200 batches" in lines
    assert f"advice are about DataLoader over Stream (first iterated at {first});" in lines


@pytest.mark.alone
def test_without_workers_the_wait_is_in_line(tmp_path: Path) -> None:
    # 4 samples of 3 ms, then 4 ms: 16 ms, of which 4 are left without the reads.
    script = written(tmp_path, sample_s=0.003, workers=0, step_s=0.004)
    assert watched(script, "sample.bin", folder=tmp_path).code == 0
    verdict = record(tmp_path)["verdict"]
    assert (verdict["bottleneck"], verdict["cause_detail"]) == ("prep", "sleep"), verdict["summary"]
    assert 2.2 < verdict["speedup_if_removed"]["prep"]["value"] < 4.5


SPAWNED = """
import random, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 2800
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.rand(3) * 0 + index, index

if __name__ == "__main__":
    random.seed(3)
    torch.manual_seed(3)
    order = []
    for values, index in DataLoader(Slow(), 4, shuffle=True, num_workers=2, multiprocessing_context="spawn"):
        order += index.tolist()
        time.sleep(0.003)
    print(order, random.random(), torch.rand(2).tolist())
"""


@pytest.mark.alone
@pytest.mark.slow
def test_delays_show_that_spawned_workers_pace_a_run_which_stays_what_it_was(tmp_path: Path) -> None:
    # 4 samples of 4 ms by 2 workers: 8 ms a batch, of which nothing can be seen; 3 ms a step
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    bare = python(script, folder=tmp_path)
    seen = watched("--probes", "delay", script, folder=tmp_path)
    assert (seen.code, seen.out) == (0, bare.out), seen.err
    found = record(tmp_path)
    (dose,) = found["doses"]
    assert dose["place"] == "host" and dose["response"]["high"] < 0.6 and dose["agrees"] is True
    assert found["verdict"]["bottleneck"] != "compute"
    assert found["watched"]["cost"]["delays_s"] <= 0.055 * found["watched"]["wall_s"]
    assert "a known delay of" in seen.err


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3),
        pytest.param("raise ValueError('no such class')", 1, marks=pytest.mark.slow),
        pytest.param("__import__('os')._exit(4)", 4, marks=pytest.mark.slow),
    ],
)
def test_a_script_ends_as_it_would_and_what_was_seen_is_kept(tmp_path: Path, end: str, code: int) -> None:
    script = written(tmp_path, end=f"sys.stdout.flush(); {end}")
    command = [sys.executable, str(script), "sample.bin"]  # Python itself: a forked process has frames of its own
    bare = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    seen = watched(script, "sample.bin", folder=tmp_path)
    assert (bare.returncode, seen.code) == (code, code)
    assert seen.out == bare.stdout
    if code == 1:
        assert seen.err.startswith(bare.stderr)  # the same traceback, without frames of ours
    assert [one.record is not None for one in Store(tmp_path / "results").runs()] == [True]


def test_a_script_without_a_loader_says_so(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("print('done')\n")
    seen = watched(script, folder=tmp_path)
    assert (seen.code, seen.out) == (0, "done\n")
    assert "the script took no batch" in seen.err and "Traceback" not in seen.err  # it started no process


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nosuch.py",), "there is no script nosuch.py"),
        ((), "needs a script"),
        (("--probes", "pause", "x.py"), "use one or more of none, burst, delay"),
        (("--probes", "none,delay", "x.py"), "excludes all other probes"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    seen = watched(*arguments, folder=tmp_path, whole_end=False)
    assert seen.code == 2 and complaint in seen.err and len(seen.err.splitlines()) == 1


@pytest.mark.alone
def test_any_iterable_can_be_watched_from_within(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import time, loaderbench\n"
        "def batches():\n"
        "    for number in range(400):\n"  # a sample each 25 ms
        "        time.sleep(0.01)\n"
        "        yield [number] * 4\n"
        "total = 0\n"
        "for batch in loaderbench.watch(batches()):\n"
        "    total += sum(batch)\n"
        "    time.sleep(0.005)\n"
        "print(total)\n"
    )
    seen = python(script, folder=tmp_path)
    assert (seen.code, seen.out) == (0, f"{4 * sum(range(400))}\n"), seen.err
    stored = Store(tmp_path / "results").find("latest").record
    assert stored is not None and stored.verdict is not None
    assert (stored.verdict.bottleneck, stored.verdict.cause_detail) == ("prep", "sleep")
    # 3 where nobody waits for a processor
    assert stored.verdict.gain is not None and 1.4 < stored.verdict.gain.value < 3.6
    assert (stored.verdict.where[0].function, stored.verdict.where[0].line) == ("batches", 4)
