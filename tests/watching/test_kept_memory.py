"""Memory that a data set gives back and takes anew, against the same script with glibc told to keep it."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from loaderbench.recording.facts import SPAN
from loaderbench.recording.store import Store
from loaderbench.running.heap import VARIABLES
from tests.watching.test_watch_command import record

SCRIPT = """
import sys, time
import numpy as np
from torch.utils.data import DataLoader, Dataset

how, workers, num = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Samples(Dataset):
    grown = []
    def __len__(self): return num
    def __getitem__(self, index):
        end = time.thread_time() + 0.002
        while time.thread_time() < end: pass
        return getattr(self, how)()
    def churns(self):  # 16 MiB, of which glibc gives back half or all: it keeps twice the largest array
        arrays = [np.ones(1 << 19) for _ in range(4)]
        return float(arrays[-1][0])
    def keeps(self):
        return 0.0
    def grows(self):
        self.grown.append(np.ones(1 << 17))
        return 0.0

if __name__ == "__main__":
    begun = time.perf_counter()
    for batch in DataLoader(Samples(), 4, num_workers=workers):
        pass
    print((time.perf_counter() - begun) / num)
"""
THRESHOLDS = """
import ctypes, sys
import numpy as np
from torch.utils.data import DataLoader, Dataset

def told():
    held, size = [], 100_000
    while size < 40_000_000:
        for _ in range(6):
            held.append(np.empty(size, np.uint8))
            if ctypes.c_size_t.from_address(held[-1].ctypes.data - 8).value & 2:  # malloc.c: IS_MMAPPED
                print(size, flush=True)
                return
        size += size // 8

class Samples(Dataset):
    def __len__(self): return 200
    def __getitem__(self, index):
        if index == 0: told()
        return 0.0

if __name__ == "__main__":
    told()
    for batch in DataLoader(Samples(), 4, num_workers=int(sys.argv[1])): pass
"""
"""Prints the size from which glibc maps an array by itself; it is raised by each such array that is freed, and twice
as much free memory stays with the process (mallopt(3))."""
KEPT = {name: str(value) for name, value in VARIABLES.items()}


def ran(folder: Path, *command: object, kept: bool = False) -> float:
    """Seconds a sample of a process that has these variables or not."""
    plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=True, cwd=folder, timeout=120,
        env={**plain, **(KEPT if kept else {})},
    )  # fmt: skip
    return float(done.stdout)


def watched(folder: Path, *arguments: object, kept: bool = False) -> float:
    command = ("-m", "loaderbench", "watch", "--json", "record.json", "script.py", *arguments)
    return ran(folder, *command, kept=kept)


def pages(folder: Path) -> float:
    """Of a batch."""
    store = Store(folder / "results")
    recording = store.load_run(store.find("latest").run_id).recording
    assert recording is not None
    return statistics.median(
        number
        for one in recording.segments
        if one.spans is not None
        for number in one.spans[one.num_warmup :, SPAN["minor_faults"]].tolist()
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


# One that grows takes 1,024 pages a batch. It may do so unnoticed up to its largest size so far: the script's own was
# large when it imported PyTorch.
@pytest.mark.parametrize(
    ("how", "workers", "least", "most"),
    [
        ("churns", 0, 4 * 1900, 4 * 4200), ("churns", 2, 4 * 1900, 4 * 4200), ("keeps", 0, 0, 8), ("keeps", 2, 0, 8),
        ("grows", 2, 0, 100),
    ],
)  # fmt: skip
def test_pages_of_a_batch_are_those_that_were_given_back(
    folder: Path, how: str, workers: int, least: int, most: int
) -> None:
    watched(folder, how, workers, 480)
    assert least <= pages(folder) <= most


def test_with_the_variables_nothing_is_told(folder: Path) -> None:
    watched(folder, "churns", 0, 480, kept=True)
    assert pages(folder) <= 8 and record(folder)["watched"]["page_s"] is None
    assert "keep_memory" not in [one["code"] for one in record(folder)["verdict"]["advice"]]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_watched_script_s_malloc_gives_memory_back_from_the_same_size_on(tmp_path: Path, workers: str) -> None:
    (tmp_path / "script.py").write_text(THRESHOLDS)

    def sizes(*command: str) -> list[int]:
        done = subprocess.run(
            [sys.executable, *command, "script.py", workers], capture_output=True, text=True, check=True, cwd=tmp_path,
            timeout=120, env={name: value for name, value in os.environ.items() if name not in VARIABLES},
        )  # fmt: skip
        return [int(line) for line in done.stdout.splitlines()]

    alone = sizes()
    assert len(alone) == 2
    assert sizes("-m", "loaderbench", "watch") == pytest.approx(alone, rel=0.3)


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, 2])
def test_the_predicted_gain_is_what_the_variables_give(folder: Path, workers: int) -> None:
    plain = ("script.py", "churns", workers, 400)
    gains, values = [], []
    for _ in range(3):
        gains.append(ran(folder, *plain) / ran(folder, *plain, kept=True))
        watched(folder, "churns", workers, 800)
        (found,) = [one for one in record(folder)["verdict"]["advice"] if one["code"] == "keep_memory"]
        assert found["predicted_speedup"]["low"] == 1.0
        values.append(found["predicted_speedup"]["value"])
    gain = statistics.median(gains)
    assert gain > 1.2 and statistics.median(values) == pytest.approx(gain, rel=0.2), (gains, values)
