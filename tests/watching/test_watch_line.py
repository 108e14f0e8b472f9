"""The line of `loaderbench watch` on a terminal: what stands there, and what becomes of the script's own output."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from loaderbench.recording.record import Estimate, Verdict
from loaderbench.recording.store import Store
from loaderbench.reporting.live import WatchLine, watch_line
from loaderbench.studies import watch_writing
from loaderbench.studies.watch_writing import Judging
from loaderbench.watching.cost import cost_of
from loaderbench.watching.data_loader import noticed
from loaderbench.watching.watcher import Watcher

ROWS = 6


def shown(written: str) -> list[str]:
    """What a terminal of ROWS rows shows behind it, and what has scrolled out above."""
    out: list[str] = []
    rows, at, column, saved, last = [""] * ROWS, 0, 0, (0, 0), ROWS - 1
    for piece in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b.|[^\x1b]", written):
        if piece in ("\n", "\x1bD"):
            if at == last:
                out.append(rows.pop(0))
                rows.insert(last, "")
            else:
                at = min(at + 1, ROWS - 1)
        elif piece == "\x1bM":
            assert at > 0
            at -= 1
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[2K":
            rows[at] = ""
        elif piece == "\x1b7":
            saved = at, column
        elif piece == "\x1b8":
            at, column = saved
        elif piece.endswith("r") and len(piece) > 1:
            last, at, column = int((piece[2:-1] or f"1;{ROWS}").split(";")[1]) - 1, 0, 0
        elif piece.endswith("H") and len(piece) > 1:
            at, column = int(piece[2:].split(";")[0]) - 1, 0
        elif piece[0] != "\x1b":
            row = rows[at].ljust(column)
            rows[at] = row[:column] + piece + row[column + 1 :]
            column += 1
    assert last == ROWS - 1 or "batches/s" in rows[-1]
    return [*out, *rows]


class Judged:
    """Judges nothing."""

    verdict: Verdict | None = None
    problem: str | None = None
    has_ended = False

    def tick(self, watcher: Watcher) -> None:
        pass

    def end(self) -> None:
        self.has_ended = True


class Numbers(Dataset[int]):
    def __init__(self, seconds: float = 0.0, num: int = 160) -> None:
        self.seconds, self.num = seconds, num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


def watched(
    probes: str = "none", workers: int = 0, display: Any = None, seconds: float = 0.0, num: int = 160
) -> Watcher:
    """Behind one epoch."""
    watcher = Watcher(probes)
    watcher.follows_device, watcher.display = False, display
    with noticed(watcher):
        for _ in DataLoader(Numbers(seconds, num), 4, num_workers=workers):
            pass
    return watcher


def pty_of_rows() -> tuple[int, int]:
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, 80, 0, 0))
    return master, slave


def read(master: int) -> str:
    """All that was written so far."""
    written = b""
    while select.select((master,), (), (), 0)[0]:
        written += os.read(master, 65_536)
    return written.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Any]]:
    """A pseudo terminal's two ends; this process's stderr is on it."""
    master, slave = pty_of_rows()
    with open(slave, "w") as stream:
        monkeypatch.setattr(sys, "__stderr__", stream)
        yield master, stream
    os.close(master)


def test_it_stands_below_what_the_script_prints_and_goes_at_its_end(terminal: tuple[int, Any]) -> None:
    master, stream = terminal
    watcher, judged = watched(), Judged()
    line = WatchLine(judged)
    # given a script that draws a bar in one row, then prints lines, to below the terminal's last row
    for piece in ("\r 10%", "\r 20%", "\rdone\n", "epoch 1\n", "epoch 2\n", "epoch 3 ", "loss 4\n", "epoch 4\n", "end"):
        os.write(stream.fileno(), piece.encode())
        line.show(watcher)
    written = read(master)
    rows = shown(written)
    # then each of its lines is as it printed it, and one line of ours is below the last
    *above, told = rows
    assert [row for row in above if row] == [
        "done", "epoch 1", "epoch 2", "epoch 3 loss 4", "epoch 4", "end",
    ]  # fmt: skip
    assert "batches/s" in told and told.endswith("no verdict yet · no probes") and len(told) < 80
    # and at its end the row is the terminal's again, and what follows stands behind what it printed
    watcher.display = line.show
    watcher.close()
    assert judged.has_ended
    os.write(stream.fileno(), b"\nthe verdict")
    rows = shown(written + read(master))
    assert [row for row in rows if row][-2:] == ["end", "the verdict"]
    assert not [row for row in rows if "batches/s" in row]


def test_what_is_said_of_the_verdict_and_of_the_next_probe() -> None:
    ready, gain = watched("burst", workers=2), Estimate(2.345, 2.1, 2.6, 9, "", "")
    verdict = Verdict("prep", speedup_if_removed={"prep": gain, "storage": Estimate(1.0, 1.0, 1.0, 9, "", "")})
    now = time.perf_counter_ns()
    ready.num_bursts, ready._last_burst_ns = 20, now - round(5.6e9)
    assert watch_line(ready, verdict, None).endswith("· prep 2.3× · next burst in 24 s")
    ready.num_bursts = 3
    assert watch_line(ready, Verdict("undetermined"), None).endswith("· undetermined so far · next burst now")
    both = replace(verdict, bottleneck="mixed", joint=("storage", "prep"), joint_speedup=gain)
    ready.no_burst = "its queue cannot be inspected"
    assert watch_line(ready, both, None).endswith("· storage+prep 2.3× · no bursts")
    assert watch_line(watched("none"), None, "KeyError").endswith("· not judged (KeyError) · no probes")


def test_a_terminal_that_is_gone_or_stands_still_holds_up_nothing(
    terminal: tuple[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, stream = terminal
    watcher = watched()
    for _ in range(2_000):  # nobody reads: its memory is full before that
        WatchLine(Judged()).show(watcher)
    assert "batches/s" in read(master)
    line = WatchLine(Judged())
    with open(os.devnull, "w") as no_terminal:
        for gone in (None, no_terminal):
            monkeypatch.setattr(sys, "__stderr__", gone)
            line.show(watcher)
    stream.close()
    monkeypatch.setattr(sys, "__stderr__", stream)
    WatchLine(Judged()).show(watcher)
    line.clear()


def test_it_is_judged_beside_the_script_and_that_counts_as_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    # given samples of 2 ms that read nothing, without workers, and a loop that does nothing
    monkeypatch.setattr(watch_writing, "FIRST_JUDGED_S", 0.3)
    monkeypatch.setattr("loaderbench.watching.watcher.DISPLAY_S", 0.05)
    monkeypatch.setattr("loaderbench.watching.iterator.WINDOW_S", 0.2)
    judging, seen = Judging("train.py"), []

    def display(watcher: Watcher) -> None:
        judging.tick(watcher)
        seen.append(judging.verdict)

    watcher = watched("burst", 0, display, seconds=0.002, num=640)
    assert len(seen) > 5 and seen[0] is None
    judging.end()
    assert judging.problem is None and judging.verdict is not None
    cost = cost_of(watcher)
    assert watcher.judging_s > 0 and cost.line_s >= watcher.judging_s + watcher.display_ns / 1e9 > watcher.judging_s
    # once judged, only 30 s later again
    judged_s = watcher.judging_s
    watcher.is_closed = False
    judging._has_ended = False
    judging.tick(watcher)
    judging.end()
    assert watcher.judging_s == judged_s


SCRIPT = """
import sys, time
from torch.utils.data import DataLoader

class Slow:
    def __len__(self): return 1000
    def __getitem__(self, index):
        time.sleep(0.002)
        return index

{first}
for number, batch in enumerate(DataLoader(Slow(), 4, num_workers=1)):
    if number % 50 == 0:
        print("batch", number, flush=True)
"""


REDIRECTED = "import os; os.dup2(os.open('log', os.O_WRONLY | os.O_CREAT), 2)"


@pytest.mark.parametrize("first", [pytest.param("sys.stderr = open('log', 'w')", marks=pytest.mark.slow), REDIRECTED])
def test_under_watch_the_script_s_lines_are_its_own(tmp_path: Path, first: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(first=first))
    master, slave = pty_of_rows()
    command = [sys.executable, "-m", "loaderbench", "watch", "--results", "results", "train.py"]
    written = b""
    with subprocess.Popen(command, cwd=tmp_path, stdout=slave, stderr=slave) as process:
        os.close(slave)
        try:
            while piece := os.read(master, 65_536):
                written += piece
        except OSError:  # the last process that had it has ended
            pass
    os.close(master)
    text = written.decode()
    rows = shown(text)
    assert process.returncode == 0, text
    assert [row for row in rows if row.startswith("batch")] == [f"batch {number}" for number in range(0, 250, 50)]
    assert bool(re.search(r"no verdict yet · next burst", text)) is (first != REDIRECTED)
    if first != REDIRECTED:
        (run,) = Store(tmp_path / "results").runs()
        assert run.record is not None and run.record.watched is not None and run.record.watched.cost is not None
        assert run.record.watched.cost.line_s > 0
        assert not [row for row in rows if "next burst" in row]
