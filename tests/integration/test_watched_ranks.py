"""`torchrun -m loaderbench watch`: a real data-parallel training of two ranks over gloo, watched."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loaderbench.recording.store import Store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, sys, time, hashlib
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

rank = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
path, slow, fails = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fails"

class Files(Dataset):
    def __len__(self): return 960
    def __getitem__(self, index):
        with open(path, "rb") as file:
            file.read()
        time.sleep(0.006 if rank == slow else 0.001)
        return torch.full((3,), index / 960), index % 2

torch.manual_seed(3)
dist.init_process_group("gloo", rank=rank, world_size=2)
sampler = DistributedSampler(Files(), shuffle=True)
loader = DataLoader(Files(), 4, sampler=sampler, num_workers=1)
model = DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = hashlib.sha256()
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, (values, labels) in enumerate(loader):
        if fails and rank == 1 and step == 60:
            raise ValueError("no such class")
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(values), labels)
        loss.backward()
        optimizer.step()
        seen.update(loss.detach().numpy().tobytes())
        time.sleep(0.004)
print(f"rank {rank} {seen.hexdigest()}", flush=True)
dist.destroy_process_group()
"""


def written(folder: Path) -> list[str]:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "sample.bin").write_bytes(os.urandom(4096))
    return [str(folder / "train.py"), str(folder / "sample.bin")]


def launched(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command],
        capture_output=True, text=True, check=False, cwd=folder, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def hashes(out: str) -> list[str]:
    return sorted(line for line in out.splitlines() if line.startswith("rank "))


@pytest.mark.alone
def test_the_rank_with_slow_files_is_named_and_losses_are_what_they_were(tmp_path: Path) -> None:
    script = written(tmp_path)
    bare = launched(tmp_path, *script, "1", "ends")
    seen = launched(
        tmp_path, "-m", "loaderbench", "watch", "--results", "results", "--json", "all.json", *script, "1", "ends"
    )
    assert (bare.returncode, seen.returncode) == (0, 0), seen.stderr
    assert hashes(seen.stdout) == hashes(bare.stdout) and len(hashes(bare.stdout)) == 2
    (case,) = json.loads((tmp_path / "all.json").read_text())["cases"]
    part = case["verdict"]["part"]
    assert (case["verdict"]["limited_by"], part["pattern"], part["rank"], part["late_by"]) == (
        "imbalance", "rank", 1, "reading",
    )  # fmt: skip
    first, second = case["ranks"]
    # 24 ms a batch on rank 1 and about 8 ms of steps; rank 0 has its batches
    assert first["data_s"] < 0.003 < 0.012 < second["data_s"]
    assert (first["bottleneck"], second["bottleneck"]) == ("compute", "storage")
    assert case["ready_step_s"] < 0.6 * case["imbalance"]["step_s"]
    assert "Rank 1" in seen.stderr and seen.stderr.count("What the imbalance is made of") == 1
    store = Store(tmp_path / "results")
    assert len(store.runs()) == 2 and [one.study.kind for one in store.studies() if one.study] == ["ranks"]
    bursts = {run.record.watched.num_bursts for run in store.runs() if run.record and run.record.watched}
    assert len(bursts) == 1 and bursts.pop() >= 4


def test_a_rank_whose_script_fails_ends_the_launch_as_ever_and_what_was_seen_is_stored(tmp_path: Path) -> None:
    script = written(tmp_path)
    seen = launched(tmp_path, "-m", "loaderbench", "watch", "--results", "results", *script, "1", "fails")
    assert seen.returncode == 1 and "ValueError: no such class" in seen.stderr
    store = Store(tmp_path / "results")
    assert [run.record is not None for run in store.runs()] == [True, True]
    (study,) = [one.study for one in store.studies()]
    assert study is not None and study.findings is not None
    ended = study.findings.ended  # type: ignore[union-attr]
    assert ended is not None and (ended.rank, ended.what) == (1, "its script ended with ValueError: no such class")


def test_processes_of_a_slurm_step_meet_beside_the_port_that_is_the_script_s(tmp_path: Path) -> None:
    script = written(tmp_path)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    common = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS_PER_NODE": "2",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "loaderbench", "watch", "--results", "results", *script, "-1", "ends"], cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**common, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
        )
        for rank in "01"
    ]  # fmt: skip
    told = [rank.communicate(timeout=90) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert "2 ranks" in told[0][1] and "Slurm" in told[0][1] and told[1][1] == ""
    assert len(Store(tmp_path / "results").runs()) == 2


def test_a_launcher_that_is_ended_ends_the_ranks_which_store_what_they_saw_before(tmp_path: Path) -> None:
    script = written(tmp_path)
    path = tmp_path / "train.py"
    # every rank says where it is, and would go on for ever: whatever is raised in its loop is caught
    path.write_text(
        path.read_text().replace(
            'print(f"rank {rank} {seen.hexdigest()}", flush=True)',
            "(open(f'ready{rank}', 'w').close(), dist.barrier())\n"
            "while True:\n    try: time.sleep(1)\n    except BaseException: continue",
        )
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    with subprocess.Popen(
        [*command, "loaderbench", "watch", "--results", "results", *script, "-1", "ends"], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    ) as running:  # fmt: skip
        deadline = time.monotonic() + 90
        while not all((tmp_path / f"ready{rank}").exists() for rank in (0, 1)):
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        begun = time.monotonic()
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=90)
    assert running.returncode != 0
    assert time.monotonic() - begun < 25, said  # torchrun kills after 30 s
    store = Store(tmp_path / "results")
    assert [run.record is not None for run in store.runs()] == [True, True], said
    assert len([one for one in store.studies() if one.study is not None]) == 1
