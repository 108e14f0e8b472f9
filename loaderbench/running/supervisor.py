"""Runs one case in a child process, samples it from outside, and survives whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loaderbench.cases.case import Case
from loaderbench.machine import environment
from loaderbench.recording.store import RunFolder
from loaderbench.recording.types import Recording, Run
from loaderbench.samplers.base import SamplerThread
from loaderbench.samplers.sources import samplers_for

HANG_S = 300.0
"""No message from the child for so long: it hangs (a dead NFS server, a deadlock) and is ended."""
GRACE_S = 5.0
"""What the child gets to end its workers before the whole session is killed."""

OnMessage = Callable[[str, Any], None]


def supervise(case: Case, folder: RunFolder, on_message: OnMessage) -> Run:
    """Run `case`, writing the child's output to the folder's worker.log.

    Never raises for what happens to the child: the Run says how it ended. KeyboardInterrupt and SystemExit
    of this process end the child, its workers included, and go on up.
    """
    started_at, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    case_file = folder.path / "case.json"
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "loaderbench.running.worker", str(case_file), str(write_end), str(os.getpid())]
    with folder.log_path.open("ab") as log:
        process = subprocess.Popen(
            command, pass_fds=(write_end,), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    os.close(write_end)
    pipe = Connection(read_end, writable=False)
    samplers, caveats = samplers_for(case.dataset, process.pid, case.device)
    sampling = SamplerThread(samplers)
    sampling.start()
    recording: Recording | None = None
    failure: tuple[str, str] | None = None
    try:
        while True:
            if not pipe.poll(HANG_S):
                failure = (
                    "CaseFailed",
                    f"no sign of life for {HANG_S:.0f} s: does the storage under {case.dataset} hang?",
                )
                break
            try:
                kind, payload = pipe.recv()
            except EOFError:
                _wait(process, GRACE_S)
                break
            if kind == "recording":
                recording = payload
            elif kind == "failure":
                failure = payload
            on_message(kind, payload)
    finally:
        end_session(process)
        pipe.close()
        series, sampler_caveats, sampling_cpu_ns = sampling.stop()
    if recording is None and failure is None:
        failure = ("CaseFailed", _how_it_died(process.returncode, folder.log_path))
    status = "ok" if failure is None else "skipped" if failure[0] == "UnavailableError" else "failed"
    return Run(
        case=case,
        status=status,
        started_at=started_at,
        wall_s=time.perf_counter() - begun,
        recording=recording if failure is None else None,
        series=series,
        caveats=[*caveats, *sampler_caveats],
        environment=environment(),
        failure=failure,
        sampling_cpu_s=sampling_cpu_ns / 1e9,
    )


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def session_members(session: int) -> list[int]:
    """Pids of the session's processes (field 6 of /proc/PID/stat, proc(5)), zombies left out."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if int(after_name[3]) == session and after_name[0] != "Z":
            members.append(int(entry.name))
    return members


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End the child and everything in its session: SIGTERM and a grace, then SIGKILL until nothing is left."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            _wait(process, GRACE_S)
        except KeyboardInterrupt:
            process.kill()  # a second Ctrl-C: no more patience, but still nothing left behind
    deadline = time.monotonic() + GRACE_S
    while (left := session_members(process.pid)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    _wait(process, GRACE_S)


def _how_it_died(returncode: int | None, log: Path) -> str:
    if returncode is not None and returncode < 0:
        name = signal.Signals(-returncode).name
        hint = " (out of memory? try fewer --workers or a smaller --batch-size)" if name == "SIGKILL" else ""
        return f"the measuring process was killed by {name}{hint}"
    lines = log.read_text(errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    return f"the measuring process ended with status {returncode}{last}"
