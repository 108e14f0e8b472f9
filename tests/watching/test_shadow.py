"""The shadow reader: what it says, what it leaves, and that nothing of the script's own moves."""

import gc
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.shadow import differ, storage_part
from loaderbench.images.cache_state import evict, residency
from loaderbench.recording.facts import ShadowRead
from loaderbench.watching.shadow import Shadow
from tests.garbage import Tensor
from tests.thinned import thinned
from tests.watching.test_watch_command import python, record, watched

NUM, COLD_S, WARM_S = 40, 0.02, 0.004


class Files:
    """Files on a storage that takes COLD_S for what is not in memory; each sample then takes WARM_S of work."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(folder / f"{number}.bin") for number in range(NUM)]
        for path in self.paths:
            Path(path).write_bytes(os.urandom(4096))

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> float:
        if residency([self.paths[index]]).fraction != 1.0:
            time.sleep(COLD_S)
        with open(self.paths[index], "rb") as file:
            file.read()
        end = time.thread_time() + WARM_S
        while time.thread_time() < end:
            pass
        return random.random() + float(np.random.rand())  # noqa: NPY002 - as users do


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path)
    for path in made.paths:
        evict(path)
    if residency(made.paths).fraction != 0.0:
        pytest.skip("this file system's pages cannot be evicted")
    return made


def read(shadow: Shadow, num: int, between: Callable[[], object] = lambda: None) -> None:
    """Let it read so many samples, or until it stops."""
    until = time.monotonic() + 30
    while len(shadow.reads) < num and shadow.problem is None and time.monotonic() < until:
        shadow.tick(time.perf_counter_ns())
        between()
        time.sleep(0.001)


class Collecting(Files):
    """Each sample collects garbage, and needs a collector that is on."""

    def __getitem__(self, index: int) -> float:
        assert gc.isenabled()
        gc.collect()
        return super().__getitem__(index)


def test_the_reader_does_not_collect_the_script_s_garbage(tmp_path: Path) -> None:
    log, files = tmp_path / "ended", Collecting(tmp_path)
    gc.collect()
    Tensor(log)  # garbage now, which this process collects at some time
    shadow = Shadow(files, NUM)
    assert gc.isenabled()
    read(shadow, 2)
    shadow.close()
    assert len(shadow.reads) == 2, shadow.problem
    gc.collect()
    assert set(log.read_text().split()) == {str(os.getpid())}


@pytest.mark.alone
def test_what_was_not_in_memory_takes_longer_the_first_time_and_is_evicted_again(files: Files) -> None:
    states = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index, union-attr] # noqa: NPY002
    shadow = Shadow(files, NUM)
    begun = time.perf_counter()
    read(shadow, 10)
    took = time.perf_counter() - begun
    shadow.close()
    assert len(shadow.reads) == 10, shadow.problem
    for one in shadow.reads:
        assert one.cold_ns > COLD_S * 1e9 + one.warm_ns / 2 and one.warm_ns >= WARM_S * 1e9 * 0.9
        assert (one.num_files, one.num_evicted, one.in_memory_before) == (1, 1, 0.0) and one.read_bytes >= 4096
    part = storage_part(shadow.reads)
    assert part is not None and part.low > 0.5
    # it left nothing in memory, worked for a quarter of the time at most, and drew no random number of ours
    assert residency(files.paths).fraction == 0.0
    assert sum(one.cold_ns + one.warm_ns for one in shadow.reads) / 1e9 < 0.35 * took
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == states  # type: ignore[index, union-attr] # noqa: NPY002


@pytest.mark.alone
def test_what_was_in_memory_before_stays_there(files: Files) -> None:
    for path in files.paths:
        Path(path).read_bytes()
    shadow = Shadow(files, NUM)
    read(shadow, 8)
    shadow.close()
    assert all(one.num_evicted == 0 and one.in_memory_before == 1.0 for one in shadow.reads)
    assert residency(files.paths).fraction == 1.0
    part = storage_part(shadow.reads)
    assert part is not None and part.value < 0.5


def test_samples_that_the_script_asked_for_are_left_out(files: Files) -> None:
    shadow = Shadow(files, NUM)
    shadow.took(list(range(2, NUM)))
    read(shadow, 10)
    assert len(shadow.reads) == 2 and shadow.problem == "the script had read nearly all samples"


class Open:
    """One open file with many samples, as an archive's reader keeps it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(range(200)) * 100)
        self.file = path.open("rb", buffering=0)

    def __getitem__(self, index: int) -> bytes:
        self.file.seek(index * 100)
        return self.file.read(100)


def test_the_position_in_an_open_file_does_not_move_under_the_script(tmp_path: Path) -> None:
    data = Open(tmp_path / "archive")
    data.file.seek(17)
    shadow = Shadow(data, 200)
    read(shadow, 10, lambda: data.file.tell() == 17 or pytest.fail("it moved"))
    shadow.close()
    assert len(shadow.reads) == 10 and data.file.tell() == 17
    data.file.close()


class Remote:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def __getitem__(self, index: int) -> int:
        self.connection.sendall(b"give me one")
        return index


def test_nothing_is_said_over_the_script_s_connections(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        shadow = Shadow(Remote(ours), 100)
        read(shadow, 3)
        assert shadow.problem is not None and shadow.problem.startswith("sample ")
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)


class Broken:
    def __getitem__(self, index: int) -> int:
        print("not for the script's eyes", flush=True)
        raise ValueError("no such file")


def test_a_data_set_that_fails_ends_it_with_the_reason(capfd: pytest.CaptureFixture[str]) -> None:
    shadow = Shadow(Broken(), 100)
    read(shadow, 3)
    assert shadow.problem is not None and shadow.problem.endswith("ValueError: no such file")
    assert capfd.readouterr() == ("", "")


class Dies:
    def __getitem__(self, index: int) -> int:
        os._exit(3)


def test_a_reader_that_has_ended_remembers_no_more_samples() -> None:
    shadow = Shadow([0] * 100, 100)
    shadow.close()
    for number in range(100):
        shadow.took([number])
    assert not shadow._taken


def test_a_reader_that_dies_is_no_matter() -> None:
    shadow = Shadow(Dies(), 100)
    read(shadow, 3)
    assert shadow.problem is not None and shadow.problem.startswith("the reader has ended")
    shadow.close()


class Hangs:
    def __getitem__(self, index: int) -> int:
        time.sleep(600)
        return index


def test_the_reader_ends_when_it_is_told_to() -> None:
    shadow = Shadow(Hangs(), 100)
    shadow.tick(time.perf_counter_ns())  # it reads now
    shadow.close()
    is_gone(shadow._pid)


def is_gone(pid: int) -> None:
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < until
        time.sleep(0.005)


KILLED = """
import os, signal, time
from loaderbench.watching.shadow import Shadow

class Hangs:
    def __getitem__(self, index):
        time.sleep(600)

shadow = Shadow(Hangs(), 100)
shadow.tick(time.perf_counter_ns())
if not os.fork():  # has the pipes too, and goes on
    time.sleep(20)
    os._exit(0)
print(shadow._pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_does_not_outlive_a_script_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        is_gone(int(process.stdout.readline()))


WAITS = """
import os, subprocess, time
from torch.utils.data import DataLoader

class Numbers:
    def __len__(self): return 400
    def __getitem__(self, index): return index

for batch in DataLoader(Numbers(), 4):
    time.sleep(0.002)
helper = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "0.1")
found = []
while True:
    try:
        found.append(os.wait()[0])
    except ChildProcessError:
        break
print(found == [helper])
"""


def test_a_script_that_waits_for_all_of_its_children_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    seen = watched("--probes", "shadow", script, folder=tmp_path)
    assert (seen.code, seen.out) == (0, "True\n"), seen.err


def made(*times: tuple[int, int]) -> list[ShadowRead]:
    return [ShadowRead(cold, warm, warm, 4096, 1, 1, 0.0) for cold, warm in times]


def test_the_part_is_that_of_the_sums_and_needs_some_reads() -> None:
    part = storage_part(made(*[(100, 25), (300, 75)] * 5))
    assert part is not None and part.value == pytest.approx(0.75) and part.low == pytest.approx(0.75)
    assert storage_part(made(*[(100, 25)] * 7)) is None
    slower_again = storage_part(made(*[(100, 110)] * 9))
    assert slower_again is not None and slower_again.value == 0.0
    assert differ(part, slower_again) and not differ(part, part)


def test_waiting_the_second_time_too_is_storage_where_it_reads() -> None:
    # 10 ms both times, of which 2 are work: a server that is asked for each open
    reads = [ShadowRead(10, 10, 2, 4096, 1, 0, 0.0)] * 8
    assert (part := storage_part(reads)) is not None and part.value == pytest.approx(0.8)
    # and something else where it reads nothing
    asleep = [ShadowRead(10, 10, 2, 0, 0, 0, None)] * 8
    assert (part := storage_part(asleep)) is not None and part.value == 0.0


SCRIPT = """
import random, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Augmented(Dataset):
    def __init__(self, path): self.path = path
    def __len__(self): return 1600
    def __getitem__(self, index):
        with open(self.path, "rb") as file:
            file.read()
        noise = random.random() + np.random.rand()
        return torch.rand(3) + noise, index

if __name__ == "__main__":
    random.seed(3); np.random.seed(3); torch.manual_seed(3)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    workers, context = int(sys.argv[2]), sys.argv[3] or None
    seen = []
    for epoch in range(2):
        for values, index in DataLoader(
            Augmented(sys.argv[1]), 4, shuffle=True, num_workers=workers, multiprocessing_context=context
        ):
            optimizer.zero_grad()
            loss = model(values).square().mean()
            loss.backward()
            optimizer.step()
            seen.append((loss.item(), index.tolist()))
            time.sleep(0.003)
    print(seen, random.random(), np.random.rand(), torch.rand(2).tolist(), model.weight.tolist())
"""


@pytest.mark.parametrize(
    ("workers", "context"),
    thinned([(2, "fork"), (0, ""), (2, "spawn")], 3),
)
def test_losses_order_and_random_state_are_the_script_s_own_with_every_probe(
    tmp_path: Path, workers: int, context: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "sample.bin").write_bytes(os.urandom(4096))
    arguments: tuple[Any, ...] = (script, "sample.bin", workers, context)
    bare = python(*arguments, folder=tmp_path)
    assert bare.code == 0, bare.err
    for probes in ("none", "burst,delay,shadow"):
        seen = watched("--probes", probes, *arguments, folder=tmp_path)
        assert (seen.code, seen.out) == (0, bare.out), seen.err
    found = record(tmp_path)["watched"]
    assert len(found["shadow"]["reads"]) >= 8 and found["probes"] == "burst,delay,shadow"
    assert found["paused_s"] + found["cost"]["delays_s"] > 0  # and it was probed


TWO_LOADERS = """
import time
from torch.utils.data import DataLoader

class Numbers:
    def __init__(self, num): self.num = num
    def __len__(self): return self.num
    def __getitem__(self, index): return index

for check in DataLoader(Numbers(8), 4):  # as trainers look whether validation works
    pass
train = DataLoader(Numbers(4000), 4)
for epoch in range(2):  # of seconds, until no sample is unread: a busy machine delays the reader
    for batch in train:
        time.sleep(0.003)
"""


def test_the_reader_goes_over_to_the_loader_that_the_verdict_is_about(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TWO_LOADERS)
    seen = watched("--probes", "shadow", script, folder=tmp_path)
    assert seen.code == 0, seen.err
    found = record(tmp_path)["watched"]
    assert found["loaders"][0]["num_samples"] == 4000 and len(found["shadow"]["reads"]) >= 8


@pytest.mark.alone
@pytest.mark.parametrize(
    ("work", "cause"),
    [
        ("time.sleep(0.01)", "storage"),
        pytest.param("burn(0.008)", "prep", marks=pytest.mark.slow),
    ],
)
def test_storage_is_told_from_preparation_though_nothing_is_known_of_the_workers(
    tmp_path: Path, work: str, cause: str
) -> None:
    # given spawned workers, which take 20 ms for a batch, and steps of 2 ms
    script = tmp_path / "train.py"
    script.write_text(SPAWNED.replace("WORK", work))
    (tmp_path / "sample.bin").write_bytes(os.urandom(4096))
    seen = watched("--probes", "burst,shadow", script, "sample.bin", folder=tmp_path)
    assert seen.code == 0, seen.err
    found = record(tmp_path)
    # then the reader's samples tell them apart
    assert found["storage_by_shadow"]["value"] == pytest.approx(1.0 if cause == "storage" else 0.0, abs=0.25)
    if found["verdict"]["bottleneck"] != "contention":  # this machine may be busy with something else
        assert found["verdict"]["bottleneck"] == cause, found["verdict"]
    assert "a shadow reader took" in seen.err


SPAWNED = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

class Files(Dataset):
    def __init__(self, path): self.path = path
    def __len__(self): return 800
    def __getitem__(self, index):
        with open(self.path, "rb") as file:
            file.read()
        WORK
        return torch.rand(3), index

if __name__ == "__main__":
    torch.set_num_threads(1)
    for values, index in DataLoader(
        Files(sys.argv[1]), 4, shuffle=True, num_workers=2, multiprocessing_context="spawn"
    ):
        time.sleep(0.002)
"""
