"""`loaderbench attach` on real processes whose pipeline is known. None of them needs torch."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loaderbench.attach import find
from loaderbench.attach.find import all_processes, chosen, jobs_among, process_of, workers_of
from loaderbench.attach.measure import Job, received_by_socket, watch_jobs
from loaderbench.errors import ConfigError
from loaderbench.recording.store import Store
from tests.commands import call

JOB = """
import multiprocessing, os, queue, sys, time
def worker(asked, made):
    with open("/proc/self/comm", "w") as comm: comm.write("pt_data_worker")
    while True:
        index = asked.get()
        time.sleep(WORK_S)
        made.put(index)
def main():
    context = multiprocessing.get_context(START)
    made, asked = context.Queue(), [context.Queue() for _ in range(2)]
    for one in asked: context.Process(target=worker, args=(one, made), daemon=True).start()
    for index in range(4): asked[index % 2].put(index)
    for index in range(4, 1 << 30):
        made.get()
        asked[index % 2].put(index)
        time.sleep(STEP_S)
if __name__ == "__main__": main()
"""


@contextmanager
def started(
    folder: Path, *, work_s: float = 0.04, step_s: float = 0.005, start: str = "fork", python: str = sys.executable,
    **env: str,
) -> Iterator[int]:  # fmt: skip
    """The PID of a job with two workers: what its loader and its step take is known."""
    script = folder / "job.py"
    text = JOB.replace("WORK_S", str(work_s)).replace("STEP_S", str(step_s)).replace("START", repr(start))
    script.write_text(text)
    with subprocess.Popen([python, str(script)], env={**os.environ, **env}, start_new_session=True) as process:
        try:
            end = time.monotonic() + 20
            while time.monotonic() < end and len(workers_of(all_processes()[process.pid])) < 2:
                time.sleep(0.1)
            time.sleep(1.0)
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_a_slow_loader_is_found_from_outside(tmp_path: Path, start: str) -> None:
    with started(tmp_path, start=start) as pid:
        ended = call("attach", pid, "--seconds", 14, "--results", tmp_path / "results", "--json", "-", "--quiet")
        assert process_of(pid) is not None
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    (one,) = found["jobs"]
    assert (one["pid"], one["workers"]) == (pid, 2)
    assert (found["verdict"]["bottleneck"], found["verdict"]["cause_detail"]) == ("prep", "sleep")
    gain = found["verdict"]["speedup_if_removed"]["prep"]
    most = math.inf if gain["high"] is None else gain["high"]  # null: without a bound
    assert gain["low"] <= 4.2 and most >= 3.0  # two workers make one in 20 ms, the step takes 5
    assert one["steps_per_s"]["value"] == pytest.approx(48, rel=0.15)
    assert found["cores_used_fraction"] < 0.1


def test_a_step_that_limits_and_what_is_stored_of_it(tmp_path: Path) -> None:
    with started(tmp_path, work_s=0.002, step_s=0.03) as pid:
        ended = call("attach", pid, "--seconds", 14, "--results", tmp_path / "results")
    assert ended.code == 0 and "The training step limits this job" in ended.out
    (stored,) = Store(tmp_path / "results").studies()
    for command in (("show", stored.study_id), ("list",), ("report", "--out", tmp_path / "page.html")):
        again = call(*command, "--results", tmp_path / "results")
        assert again.code == 0 and (command[0] == "report" or "training step limits" in again.out)
    assert call("rm", stored.study_id, "--yes", "--results", tmp_path / "results").code == 0


def test_without_the_right_to_see_calls_the_cause_is_the_same(tmp_path: Path) -> None:
    from loaderbench.attach.judge import judge_job

    with started(tmp_path) as pid:
        process = process_of(pid)
        assert process is not None
        job = Job(process, with_calls=False, with_names=False)
        looked = watch_jobs([job], 6.0, lambda part, looked: None)
        facts = job.facts()
        job.close()
    assert not facts.rights.calls and not looked.interrupted
    verdict = judge_job(facts).verdict
    assert (verdict.bottleneck, verdict.cause_detail) == ("prep", "sleep")
    assert any("CAP_SYS_PTRACE" in line for line in verdict.advice)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python3.9", "python3.11", "python3.13", "python3.14"])
def test_a_job_of_another_python(tmp_path: Path, name: str) -> None:
    python = shutil.which(name)
    if python is None or subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip(f"no {name} here")
    with started(tmp_path, python=python) as pid:
        ended = call("attach", pid, "--seconds", 14, "--results", tmp_path / "results", "--json", "-", "--quiet")
    verdict = json.loads(ended.out)["verdict"]
    assert (verdict["bottleneck"], verdict["cause_detail"]) == ("prep", "sleep")


def test_jobs_are_listed_without_their_workers(tmp_path: Path) -> None:
    with started(tmp_path, SLURM_JOB_ID="7777", RANK="3", WORLD_SIZE="8") as pid:
        processes = all_processes()
        worker = workers_of(processes[pid])[0]
        assert pid in [one.pid for one in jobs_among(processes)]
        assert worker.pid not in [one.pid for one in jobs_among(processes)]
        assert [one.pid for one in chosen(worker.pid, processes)] == [pid]
        assert [one.pid for one in find.of_slurm("7777", processes)] == [pid]
        assert find.of_slurm("777", processes) == []
        assert find.rank_of(pid) == (3, 8)
        listed = json.loads(call("attach", "--json", "-").out)
        assert [one["workers"] for one in listed["jobs"] if one["pid"] == pid] == [2]


def test_an_interrupt_keeps_what_was_seen(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loaderbench", "attach", "--seconds", "60", "--results", f"{tmp_path}/results"]
    with started(tmp_path) as pid:
        with subprocess.Popen(
            [*command, str(pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            time.sleep(8)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert process_of(pid) is not None
    assert process.returncode in (130, -signal.SIGINT)
    assert "limits this job" in out and "kept" in err
    assert len(Store(tmp_path / "results").studies()) == 1


def test_what_cannot_be_measured_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    def refused(*words: Any) -> str:
        ended = call("attach", *words, "--results", tmp_path / "none")
        assert ended.code == 2 and not (tmp_path / "none").exists()
        return " ".join(ended.err.split())

    assert "no process has PID 4999999" in refused(4999999)
    assert "not a training that I know" in refused(2 if (process_of(2) or process_of(1)).comm == "kthreadd" else 1)  # type: ignore[union-attr]
    assert "give one of PID, --all, --slurm and --container" in refused(1, "--all")
    assert "--seconds must be" in refused(1, "--seconds", "0")
    assert "hexadecimal" in refused("--container", "nosuch!")
    assert "no training process found" in refused("--slurm", "4999999")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        assert "is stopped by a signal" in refused(process.pid)
        process.kill()
        time.sleep(0.2)
        assert "a zombie" in refused(process.pid)


def test_another_users_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "may_see", lambda pid: False)
    with pytest.raises(ConfigError, match="may not be seen"):
        chosen(os.getpid(), all_processes())


def test_a_pid_that_another_process_has_now_is_not_the_job(tmp_path: Path) -> None:
    process = process_of(os.getpid())
    assert process is not None and process.is_there()
    process.begun_ticks -= 1
    assert not process.is_there()
    job = Job(process)
    assert job.ended
    job.close()


def test_bytes_of_connections_are_those_that_were_sent() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        other, _ = server.accept()
        with other:
            other.sendall(bytes(123_456))
            left = 123_456
            while left:
                left -= len(mine.recv(left))
            counted = received_by_socket()
            if counted is None:
                pytest.skip("this kernel has no sock_diag")
            inode = int(os.readlink(f"/proc/self/fd/{mine.fileno()}")[len("socket:[") : -1])  # noqa: PTH115
            assert counted[inode] == 123_456
